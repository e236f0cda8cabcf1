# Copyright 2026 The tfp_diag Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
# ============================================================================
"""How large a pattern may become before it is given up."""

import contextlib
import contextvars
from collections.abc import Iterator

# No matrix with more entries than this is built. A caller that only needs to
# know whether there is structure can set a lower limit.
DEFAULT = 200_000_000
_limit = contextvars.ContextVar('max_entries', default=DEFAULT)


class NoStructureError(ValueError):
  """The structure of a function cannot be read off its graph."""

  # AutoGraph keeps the type of an error only if it has this constructor.
  __init__ = Exception.__init__


class UnknownShapeError(NoStructureError):
  """A shape is not known that is needed to find a pattern."""


class PatternTooDenseError(NoStructureError):
  """The pattern has too many nonzeros to be stored as a sparse matrix.

  Diagonals can still be computed, with a pass for each coordinate.

  #### Examples

  ```python
  def fn(x):
    return tf.reduce_sum(x) ** 2  # All coordinates interact.


  try:
    tfp_diag.sparsity.hessian_sparsity(fn, tf.TensorSpec([20_000]))
  except tfp_diag.sparsity.PatternTooDenseError as error:
    message = str(error)
  message[:47]  # ==> 'The pattern would have up to 400000000 nonzeros'
  ```
  """


@contextlib.contextmanager
def at_most(entries: int) -> Iterator[None]:
  """Detection in this context gives up at this many nonzeros."""
  token = _limit.set(entries)
  try:
    yield
  finally:
    _limit.reset(token)


def fits(entries: float) -> bool:
  """Whether a matrix with this many nonzeros may be built."""
  return entries <= _limit.get()


def check_entries(entries: float) -> None:
  """Raises a `PatternTooDenseError` if this many nonzeros are too many."""
  if not fits(entries):
    raise PatternTooDenseError(
      f'The pattern would have up to {entries} nonzeros, more than the limit '
      f'of {_limit.get()}: there is no structure to exploit. Use the function '
      'without a pattern, or name the sample shape if the coordinates include '
      'independent samples.'
    )
