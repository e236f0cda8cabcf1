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
"""Plans the diagonal of a Hessian."""

from collections.abc import Callable
from typing import Any

from tfp_diag.diag_hessian import MODES, HessianMode
from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.request import Request, Schedule
from tfp_diag.internal import arguments
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.plan import Plan, make_plan

__all__ = ['plan_diag_hessian']


@not_converted
def plan_diag_hessian(
  fn: Callable,
  xs: Any,
  sample_shape: SampleShape | None = None,
  *,
  mode: HessianMode = 'auto',
  schedule: Schedule = 'auto',
  memory_limit: int | None = None,
  jit_compile: bool = False,
  pattern: Any = None,
) -> Plan:
  """Finds the structure of `fn` and decides how to compute its curvatures.

  It does for the diagonal of a Hessian what `tfp_diag.plan_diag_jacobian` does
  for that of a Jacobian. The pattern of the Hessian of a log density is its
  conditional-independence graph, which `plan.pattern.spy()` draws.

  Args:
    fn: Python callable, one scalar per sample, as for `tfp_diag.diag_hessian`.
    xs: Tensor or `tf.TensorSpec`, or a structure of them, of shape
      `sample_shape + event_shape_i`; or `tf.Variable`s, if `fn` takes these or
      no arguments. The event shapes must be static; the number of samples may
      be open, `None`.
    sample_shape: The leading shape that all parts share. Default: the shape of
      what `fn` returns.
    mode: 'forward_over_reverse', 'reverse_over_reverse' or 'auto'.
    schedule: 'unrolled', 'pfor', 'while_loop' or 'auto'.
    memory_limit: Number of bytes that the passes of one chunk may hold; decides
      how many run together. Default: 64 MiB, or 1 GiB where there is a GPU.
    jit_compile: Python bool, whether `plan(xs)` is compiled with XLA.
    pattern: Which derivatives can be nonzero, if you know it better: a
      `SparsityPattern` or a square matrix over the coordinates of one sample.
      It is not checked; `validate_args=True` finds a wrong one when the plan is
      used.

  Returns:
    A `tfp_diag.Plan`: `plan(xs)` returns `(value, gradient, diag)`, and
      `print(plan)` explains it.

  Raises:
    tfp_diag.sparsity.SampleMixingError: a ValueError, if the value of one
      sample depends on another one. The message names the op.
      `sample_shape=()` and a scalar `fn` treat everything as one event.
    TypeError: if a part of `xs` is not floating; if `fn` needs the value of a
      Tensor in Python (NumPy, `.numpy()`, `float()`).
    ValueError: if the event shapes are not static; if an argument is not valid;
      if what `fn` computes depends on the number of samples, and this number is
      open or large.

  #### Examples

  A Gaussian chain: the Hessian is tridiagonal, with two colors for any number
  of coordinates and samples. Each coordinate reaches each square on one path,
  so that one sweep with squared derivatives gives the diagonal.

  ```python
  chain = lambda x: (
    -tf.reduce_sum((x[..., 1:] - 0.9 * x[..., :-1]) ** 2, axis=-1)
  )
  plan = plan_diag_hessian(chain, tf.TensorSpec([None, 1000]))
  plan.num_colors, plan.num_passes
  # ==> (2, 1)
  value, gradient, diag = plan(tf.ones([5, 1000]))
  diag[0, :3]
  # ==> [-1.62, -3.62, -3.62]
  ```
  """
  arguments.check_choice('mode', mode, tuple(MODES))
  arguments.check_choice('schedule', schedule, sweep.SCHEDULES)
  return make_plan(
    HessianProblem(fn, xs, sample_shape),
    Request(MODES[mode], schedule, memory_limit=memory_limit),
    jit_compile,
    pattern,
  )
