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
"""The exact diagonal of a Jacobian."""

import tensorflow as tf

from typing import Any

from tfp_diag.diagonal import checks, evaluate, linear_map, sweep
from tfp_diag.diagonal.decide import Mode, Request, Schedule
from tfp_diag.internal import arguments, batching
from tfp_diag.internal.problem import JacobianProblem
from tfp_diag.plan import Plan, check_plan

__all__ = ['diag_jacobian']

MODES = ('auto', 'forward', 'reverse')


@tf.autograph.experimental.do_not_convert
def diag_jacobian(
  xs,
  ys=None,
  sample_shape=None,
  fn=None,
  parallel_iterations=10,
  name=None,
  *,
  plan=None,
  mode='auto',
  schedule='auto',
  validate_args=False,
):
  """Computes the exact diagonal of the Jacobian of `ys = fn(*xs)`.

  The call is that of `tfp.math.diag_jacobian`, and may take its place.

  Args:
    xs: Tensor or list of Tensors of shape `sample_shape + event_shape_i`, of a
      floating dtype each.
    ys: Tensor or list of Tensors that broadcast to `xs`, computed from `xs`.
      Enough by itself while a graph is built; if `fn` is given too, `fn` is
      what is differentiated, in every regime.
    sample_shape: The leading shape that all parts share: list, tuple,
      `tf.TensorShape` or integer vector. Its entries are independent samples:
      `ys[s]` depends on `xs[s]` alone, so that all samples share each pass.
      `None` means that everything is event: right for every function. It costs
      no more passes where the samples are seen to be independent (as `plan`
      says when structure is looked for), else a pass for each entry of `xs`.
    fn: Python callable, `ys = fn(*xs)`: a Tensor or a list of Tensors, one per
      part of `xs`, or one for all of them.
    parallel_iterations: Python int, how many passes run together: the chunk
      that pfor vectorizes, and the parallel iterations of a `tf.while_loop`.
      A plan brings its own chunk size.
    name: Python str, name of the ops. Default: `'diag_jacobian'`.
    plan: What `tfp_diag.plan_diag_jacobian` returned for this function and
      these shapes. `None` looks for structure in the graph of `fn`, or of
      `ys`; in eager mode what was found is remembered by what `fn` does. Where
      none is found, or the event shapes are dynamic, each coordinate gets a
      pass of its own.
    mode: 'forward' (Jacobian-vector products), 'reverse' (vector-Jacobian
      products) or 'auto'. Both give the same numbers.
    schedule: 'unrolled' (each pass written out in the graph), 'pfor'
      (vectorized in chunks), 'while_loop' (one after the other) or 'auto' (the
      first for a few passes, else the second). They give the same numbers.
      Where pfor cannot vectorize `fn`, the loop takes over with a warning that
      names the op. Only 'auto' cuts a dense Jacobian where that takes fewer
      passes: at normalizers, in networks of one hidden layer.
    validate_args: Python bool. Checks at run time what the arguments promise:
      that `sample_shape` leads every part, that samples do not mix, that a
      plan's colors fit the function, and that both modes agree. XLA has no
      assertions: under it nothing is checked.

  Returns:
    ys: List of Tensors, what `fn` returned, or `ys`.
    diag: List of Tensors shaped as `xs`: `diag[i][s, e]` is the derivative of
      `ys[i][s, e]`, after broadcasting, by `xs[i][s, e]`. Zero where there is
      no path. It can be differentiated again by a tape around the call.

  Raises:
    ValueError: if eager `ys` come without `fn`; if there are neither one nor as
      many `ys` as `xs`; if a part of `ys` does not broadcast to its part of
      `xs`; if `sample_shape` does not lead a part; if `mode`, `schedule` or
      `parallel_iterations` is none that exists.
    TypeError: if a part of `xs` is not floating.
    LookupError: if an op of `fn` has no derivative in TensorFlow.
    tf.errors.InvalidArgumentError: with `validate_args`, for a promise that
      does not hold.

  #### Examples

  Five samples of three coordinates each, which interact within a sample. One
  pass per coordinate serves all samples:

  ```python
  x = tf.reshape(tf.range(15.0), [5, 3])
  fn = lambda x: x**2 * tf.reduce_sum(x, axis=-1, keepdims=True)
  ys, diag = diag_jacobian(x, sample_shape=[5], fn=fn)
  diag[0][1]  # 2 x_i sum(x) + x_i^2 for x = [3, 4, 5]
  # ==> [81., 112., 145.]
  ```

  #### What `sample_shape` is for

  Without it the samples are coordinates too, 15 instead of 3. The result is the
  same as long as samples are independent. If they are not, as under batch
  normalization in training, only `sample_shape=None` is right.
  """
  with tf.name_scope(name or 'diag_jacobian'):
    arguments.check_choice('mode', mode, MODES)
    arguments.check_choice('schedule', schedule, sweep.SCHEDULES)
    arguments.check_chunk('parallel_iterations', parallel_iterations)
    xs = list(xs) if isinstance(xs, (list, tuple)) else [xs]
    if fn is None:
      _check_ys(ys, xs)
    problem = JacobianProblem(fn, xs, sample_shape)
    check_plan(plan, problem)
    request = Request(mode, schedule, parallel_iterations, None, plan)
    if validate_args:
      request = request._replace(validate=True)
      problem.promise(sample_shape)
    if fn is None:
      return _of_ys(ys, problem, request)
    found = evaluate.run_diagonal(
      problem, request, plan is not None and plan.jit_compile
    )
    return found.result, found.diag


def _check_ys(ys, xs):
  """Raises a ValueError if `ys` alone do not do."""
  if ys is None:
    raise ValueError('Give `fn`, or, while a graph is built, `ys`.')
  if tf.executing_eagerly():
    raise ValueError(
      '`ys` alone cannot be differentiated in eager mode: nothing remembers '
      'how they came from `xs`. Pass `fn`, with `ys = fn(*xs)`, or call '
      'diag_jacobian inside a `tf.function`.'
    )
  if not all(tf.is_tensor(x) for x in xs):
    raise ValueError(
      '`ys` comes without `fn`, so `xs` must be the very Tensors that `ys` '
      f'was computed from, but `xs` is {xs}. Pass those, or `fn`.'
    )


def _of_ys(ys, problem, request):
  ys = list(ys) if isinstance(ys, (list, tuple)) else [ys]
  evaluation = linear_map.evaluation_of_graph(
    ys, problem.outputs(ys, problem.parts), problem.parts
  )
  found, _ = evaluate.diagonal(problem, evaluation, request)
  return ys, found.diag
