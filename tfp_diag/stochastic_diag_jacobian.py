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
"""An estimate of the diagonal of a Jacobian, from random probes."""

from collections.abc import Callable
from typing import Any

from tfp_diag.diagonal.probes import Seed
from tfp_diag.internal import arguments
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import JacobianProblem
from tfp_diag.plan import Plan
from tfp_diag.stochastic_diagonal import (
  Method,
  StochasticDiagonal,
  estimate_diagonal,
)

__all__ = ['stochastic_diag_jacobian']


@not_converted
def stochastic_diag_jacobian(
  fn: Callable,
  xs: Any,
  num_probes: int,
  seed: Seed,
  sample_shape: SampleShape | None = (),
  *,
  plan: Plan | None = None,
  method: Method = 'hutchinson',
  tolerance: float | None = None,
  chunk_size: int = 10,
  name: str | None = None,
) -> StochasticDiagonal:
  r"""Estimates the diagonal of the Jacobian of `fn`, without bias.

  Use it for functions with many coordinates and without structure. If
  `tfp_diag.plan_diag_jacobian` takes few passes, `tfp_diag.diag_jacobian` is
  exact and cheaper.

  Args:
    fn: Python callable of the parts of `xs`, as for `tfp_diag.jacobian`;
      returns one Tensor per part that broadcasts to it, or one for all of them.
    xs: Tensor, or structure of Tensors, of shape `sample_shape + event_shape`
      and of a floating dtype; or `tf.Variable`s.
    num_probes: Python int, how many random vectors of signs are used, at most.
      Each sample has its own.
    seed: Two integers, a stateless seed: the same seed, the same estimate. Or
      one integer; or None, which draws a new seed.
    sample_shape: The leading shape that all parts share, whose entries are
      independent samples. Default: `()`, everything is one event.
    plan: A plan for this function. Each probe then takes one pass for each
      color, and only coordinates of the same color disturb each other. With the
      colors of the plan the result is exact; pass
      `dataclasses.replace(plan, colors=...)` with fewer colors.
    method: 'hutchinson', the mean of $z \circ J^\top z$ over the probes $z$
      [1]; or 'xdiag' [2], which is better if few singular values dominate. It
      takes `num_probes` products with the Jacobian and as many with its
      transpose, and at least 16 coordinates.
    tolerance: Python float. After 10 probes or more, at the end of a chunk,
      stop if in each sample the standard errors together (2-norm over
      coordinates) are at most this fraction of the estimate. Default: None, use
      all probes.
    chunk_size: Python int, how many passes are vectorized together: what
      `parallel_iterations` is for `tfp_diag.diag_jacobian`.
    name: Python str, name of the ops. Default: `'stochastic_diag_jacobian'`.

  Returns:
    `StochasticDiagonal`, a namedtuple `(estimate, standard_error, num_passes)`;
    the first two have the structure of `xs`.

  Raises:
    ValueError: if an argument is not valid, or samples mix.
    TypeError: if a part is not floating.
    LookupError: if an op of `fn` has no derivative in TensorFlow.

  #### Examples

  Two coordinates disturb each other, with a coupling of 1: one probe is off by
  one, the mean of a hundred by about a tenth.

  ```python
  x = tf.constant([1.0, 2.0])
  result = stochastic_diag_jacobian(
    lambda x: x**3 + tf.reverse(x, [0]), x, num_probes=100, seed=[0, 1]
  )
  abs(result.estimate - [3.0, 12.0]) < 3 * result.standard_error
  # ==> [True, True]
  result.num_passes
  # ==> 100
  ```

  #### References

  [1]: Costas Bekas, Effrosyni Kokiopoulou and Yousef Saad (2007). An estimator
       for the diagonal of a matrix. _Applied Numerical Mathematics_ 57(11-12).
       https://doi.org/10.1016/j.apnum.2007.01.003

  [2]: Ethan N. Epperly, Joel A. Tropp and Robert J. Webber (2024). XTrace:
       making the most of every sample in stochastic trace estimation. _SIAM
       Journal on Matrix Analysis and Applications_ 45(1).
       https://doi.org/10.1137/23M1548323
  """
  with arguments.op_scope(name, 'stochastic_diag_jacobian'):
    return estimate_diagonal(
      JacobianProblem(arguments.checked_callable('fn', fn), xs, sample_shape),
      num_probes,
      seed,
      plan,
      method,
      tolerance,
      chunk_size,
    )
