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
"""An estimate of the diagonal of a Hessian, from random probes."""

from collections.abc import Callable
from typing import Any

from tfp_diag.diagonal.probes import Seed
from tfp_diag.internal import arguments
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.plan import Plan
from tfp_diag.stochastic_diagonal import (
  Method,
  StochasticDiagonal,
  estimate_diagonal,
)

__all__ = ['stochastic_diag_hessian']


@not_converted
def stochastic_diag_hessian(
  fn: Callable,
  xs: Any,
  num_probes: int,
  seed: Seed,
  sample_shape: SampleShape | None = None,
  *,
  plan: Plan | None = None,
  method: Method = 'hutchinson',
  tolerance: float | None = None,
  chunk_size: int = 10,
  name: str | None = None,
) -> StochasticDiagonal:
  """Estimates the diagonal of the Hessian of `fn`, without bias.

  Use it for functions of very many coordinates without structure, for example
  the loss of a convolutional network as a function of its weights. For up to
  some thousand coordinates, or if a plan takes few passes,
  `tfp_diag.diag_hessian` is exact.

  Args:
    fn: Python callable of the parts of `xs`, or without arguments if all parts
      are `tf.Variable`s; returns one scalar per sample.
    xs: Tensor, or structure of Tensors, of shape `sample_shape + event_shape`
      and of a floating dtype; or `tf.Variable`s.
    num_probes: Python int, how many random vectors of signs are used, at most.
    seed: Two integers, a stateless seed: the same seed, the same estimate. Or
      one integer; or None, which draws a new seed.
    sample_shape: The leading shape that all parts share, whose entries are
      independent samples. Default: the shape of what `fn` returns.
    plan: A plan for this function. Only coordinates of the same color disturb
      each other, as in `tfp_diag.stochastic_diag_jacobian`.
    method: 'hutchinson' or 'xdiag', as in `tfp_diag.stochastic_diag_jacobian`.
      The latter takes `2 * num_probes` passes.
    tolerance: Python float or None: when to stop, as in
      `tfp_diag.stochastic_diag_jacobian`.
    chunk_size: Python int, how many passes are vectorized together: what
      `parallel_iterations` is for `tfp_diag.diag_jacobian`.
    name: Python str, name of the ops. Default: `'stochastic_diag_hessian'`.

  Returns:
    `StochasticDiagonal`, a namedtuple `(estimate, standard_error, num_passes)`;
    the first two have the structure of `xs`.

  Raises:
    ValueError: if `fn` does not return one scalar per sample, if an argument is
      not valid, or if samples mix.
    TypeError: if a part is not floating.
    LookupError: if an op of `fn` has no second derivative in TensorFlow.

  #### Examples

  If coordinates do not interact, one probe is exact:

  ```python
  x = tf.constant([1.0, 2.0, 3.0])
  stochastic_diag_hessian(lambda x: tf.reduce_sum(x**3), x, 1, [0, 1]).estimate
  # ==> [6., 12., 18.]
  ```
  """
  with arguments.op_scope(name, 'stochastic_diag_hessian'):
    return estimate_diagonal(
      HessianProblem(fn, xs, sample_shape),
      num_probes,
      seed,
      plan,
      method,
      tolerance,
      chunk_size,
    )
