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
"""Plans the diagonal of a Jacobian."""

from collections.abc import Callable
from typing import Any

from tfp_diag.diag_jacobian import MODES
from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.request import Mode, Request, Schedule
from tfp_diag.internal import arguments
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import JacobianProblem
from tfp_diag.plan import Plan, make_plan

__all__ = ['plan_diag_jacobian']


@not_converted
def plan_diag_jacobian(
  fn: Callable,
  xs: Any,
  sample_shape: SampleShape | None = None,
  *,
  mode: Mode = 'auto',
  schedule: Schedule = 'auto',
  memory_limit: int | None = None,
  jit_compile: bool = False,
  pattern: Any = None,
) -> Plan:
  """Finds the structure of `fn` and decides how to compute its diagonal.

  The function is traced, and the pattern of its Jacobian is read from its
  graph. Coordinates that do not interact share a pass: they get the same color
  in a distance-1 coloring of the symmetrized pattern [1]. There may be other
  ways to the diagonal. The cost of each is estimated, and the cheapest is
  chosen. If that is not passes, it runs once, at `xs` or at normal random
  numbers, and is compared with one pass at a random coordinate of each sample.

  Args:
    fn: Python callable, `ys = fn(*xs)`, as for `tfp_diag.diag_jacobian`.
    xs: Tensor or `tf.TensorSpec`, or a list of them, of shape `sample_shape +
      event_shape_i`. The event shapes must be static; the number of samples may
      be open, `None`. With Tensors the plan is tried at these values.
    sample_shape: The leading shape that all parts share. Default: `None`,
      everything is one event. If the samples of the batch are independent,
      colors cost no more passes; networks and normalizers are cut only with a
      `sample_shape`.
    mode: 'forward', 'reverse' or 'auto', which is 'reverse'. Forward mode is
      compared with reverse mode on a random pair of vectors. If they
      disagree, reverse mode is used, and a note says so.
    schedule: 'unrolled', 'pfor', 'while_loop' or 'auto'.
    memory_limit: Number of bytes that the passes of one chunk may hold; decides
      how many run together. Default: 64 MiB, or 1 GiB where there is a GPU.
    jit_compile: Python bool, whether `plan(xs)` is compiled with XLA.
    pattern: Which derivatives can be nonzero, if you know it better: a
      `SparsityPattern` or a square matrix over the coordinates of one sample.
      It is not checked; `validate_args=True` finds a wrong one when the plan is
      used.

  Returns:
    A `tfp_diag.Plan`: `plan(xs)` returns `(ys, diag)`, and `print(plan)`
      explains it.

  Raises:
    tfp_diag.sparsity.SampleMixingError: a ValueError, if the result of one
      sample depends on another one. The message names the op.
      `sample_shape=()` treats everything as one event.
    TypeError: if a part of `xs` is not floating; if `fn` needs the value of a
      Tensor in Python (NumPy, `.numpy()`, `float()`).
    ValueError: if the event shapes are not static; if an argument is not valid;
      if what `fn` computes depends on the number of samples, and this number is
      open or large.

  #### Examples

  ```python
  fn = lambda x: x**2 + tf.roll(x, 1, axis=-1)
  plan = plan_diag_jacobian(
    fn, tf.TensorSpec([None, 1000]), sample_shape=[None]
  )
  plan.num_passes
  # ==> 1
  ys, diag = plan(tf.ones([5, 1000]))
  diag[0][0, :3]
  # ==> [2., 2., 2.]
  ```

  #### References

  [1]: Assefaw H. Gebremedhin, Fredrik Manne and Alex Pothen (2005). What color
       is your Jacobian? Graph coloring for computing derivatives. _SIAM Review_
       47(4). https://doi.org/10.1137/S0036144504444711
  """
  arguments.check_choice('mode', mode, MODES)
  xs = list(xs) if isinstance(xs, (list, tuple)) else [xs]
  arguments.check_choice('schedule', schedule, sweep.SCHEDULES)
  return make_plan(
    JacobianProblem(arguments.checked_callable('fn', fn), xs, sample_shape),
    Request(mode, schedule, memory_limit=memory_limit),
    jit_compile,
    pattern,
  )
