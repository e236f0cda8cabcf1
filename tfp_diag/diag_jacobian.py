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

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.diagonal import evaluate, linear_map
from tfp_diag.diagonal.request import Mode, Request, Schedule
from tfp_diag.internal import arguments, batching
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import JacobianProblem, Problem
from tfp_diag.plan import Plan, check_request, run_request

__all__ = ['diag_jacobian']

MODES = ('auto', 'forward', 'reverse')


@not_converted
def diag_jacobian(
  xs: Any,
  ys: Any = None,
  sample_shape: SampleShape | None = None,
  fn: Callable | None = None,
  parallel_iterations: int = 10,
  name: str | None = None,
  *,
  plan: Plan | None = None,
  mode: Mode = 'auto',
  schedule: Schedule = 'auto',
  validate_args: bool = False,
) -> tuple[list, list]:
  r"""Computes the exact diagonal of the Jacobian of `ys = fn(*xs)`.

  That is $\partial y_i / \partial x_i$ for each coordinate $i$. The function
  takes the place of `tfp.math.diag_jacobian`, whose first six arguments it has.
  It traces `fn` to a graph, reads from the graph which derivatives can be
  nonzero, and differentiates the same graph in as few passes as possible.

  Args:
    xs: Tensor or list of Tensors of shape `sample_shape + event_shape_i`, of a
      floating dtype each.
    ys: Tensor or list of Tensors that broadcast to `xs`, computed from `xs`.
      Inside of a `tf.function` they are enough without `fn`. If `fn` is given
      too, `fn` is differentiated.
    sample_shape: The leading shape that all parts share: list, tuple,
      `tf.TensorShape` or integer vector. Its entries are independent samples:
      `ys[s]` depends on `xs[s]` alone, so that all samples share each pass.
      Default: `None`, everything is one event. That is right for every
      function. If the samples are found to be independent, colors cost no more
      passes; what is cheaper than a pass for each color, such as the cuts of
      a network, needs a `sample_shape`. Else it costs up to one pass for each
      entry of `xs`.
    fn: Python callable, `ys = fn(*xs)`: a Tensor or a list of Tensors, one per
      part of `xs`, or one for all of them. Made of TensorFlow ops. What it
      closes over is constant, even if that is `xs`: the results are partial
      derivatives with respect to the arguments.
    parallel_iterations: Python int, how many passes run together: the size of
      the chunks that pfor vectorizes, and the parallel iterations of a
      `tf.while_loop`. Called `chunk_size` where whole matrices are made. A plan
      has its own.
    name: Python str, name of the ops. Default: `'diag_jacobian'`.
    plan: What `tfp_diag.plan_diag_jacobian` returned for this function and
      these event shapes. A plan is refused if a derivative of `fn` can be
      nonzero where the plan has a zero. If the plan cannot be followed, a
      warning says what runs instead. Default: `None`, the call makes its own
      plan. If no structure is found, or event shapes are dynamic, each
      coordinate gets a pass of its own.
    mode: 'forward' (Jacobian-vector products), 'reverse' (vector-Jacobian
      products) or 'auto', which is 'reverse' or what `plan` says. Both give the
      same numbers: at an infinite derivative 'forward' runs reverse passes,
      too.
    schedule: 'unrolled' (each pass written out in the graph), 'pfor'
      (vectorized in chunks), 'while_loop' (one after the other) or 'auto' (the
      first for a few passes, else the second). They give the same numbers.
      If pfor cannot vectorize `fn`, a loop runs instead, and a warning names
      the op. That is so for a `tf.while_loop` in `fn` where XLA may compile
      this call, or a tape record it: 'pfor' says that they do not. Only 'auto'
      uses ways to a dense Jacobian that take fewer passes: at normalizers, in
      networks with one hidden layer, and where `fn` is seen to be a gradient.
    validate_args: Python bool. Whether to check at run time that `sample_shape`
      leads every part, that samples do not mix, that the colors fit the
      function, that forward mode agrees with reverse mode, and that what is
      cheaper than passes agrees with passes at random coordinates of each
      sample. XLA has no assertions: there nothing is checked.

  Returns:
    ys: List of Tensors, what `fn` returned, or `ys`.
    diag: List of Tensors of the shapes and dtypes of `xs`: `diag[i][s, e]` is
      the derivative of `ys[i][s, e]`, after broadcasting, with respect to
      `xs[i][s, e]`. Zero if there is no dependence. It can be differentiated
      again by a tape around the call.

  Raises:
    ValueError: if `ys` come without `fn` in eager mode; if the number of `ys`
      is neither one nor that of `xs`; if a part of `ys` does not broadcast to
      its part of `xs`; if `sample_shape` does not lead a part; if `mode`,
      `schedule` or `parallel_iterations` is not a valid choice; if `plan` was
      made for another function or other event shapes.
    tfp_diag.sparsity.SampleMixingError: a ValueError, if the result of one
      sample depends on another one. The message names the op.
    TypeError: if a part of `xs` is not floating; if `fn` needs the value of a
      Tensor in Python (NumPy, `.numpy()`, `float()`).
    LookupError: if an op of `fn` has no derivative in TensorFlow.
    tf.errors.InvalidArgumentError: with `validate_args`, if a check fails.

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

  #### Eager calls

  Each eager call runs the Python code of `fn` and traces it, which takes some
  milliseconds. If the graph is one that is known, its compiled derivative is
  used again. No Python state is remembered. In a loop that must be fast, put
  the call into a `tf.function`, or call `plan(xs)`. Pass data that change as
  Tensors or variables: a NumPy array is a constant of the graph, and each new
  one is compiled again.

  ```python
  power = 2
  fn = lambda x: x**power
  diag_jacobian(tf.constant([3.0]), fn=fn)[1][0]
  # ==> [6.]
  power = 3
  diag_jacobian(tf.constant([3.0]), fn=fn)[1][0]
  # ==> [27.]
  ```

  #### What `sample_shape` is for

  Without it the entries of all samples are coordinates: 15 instead of 3. The
  result is the same as long as samples are independent. If they are not, as in
  batch normalization during training, leave `sample_shape` out; the shape of
  the batch is refused.
  """
  with arguments.op_scope(name, 'diag_jacobian'):
    arguments.check_choice('mode', mode, MODES)
    request = Request.of_call(
      mode, schedule, parallel_iterations, validate_args, plan
    )
    xs = list(xs) if isinstance(xs, (list, tuple)) else [xs]
    if fn is None:
      _check_ys(ys, xs)
    elif ys is not None:
      # What is differentiated is `fn`; so `ys` are seen to be its, at least.
      batching.align(ys, batching.convert_parts(xs))
    problem = JacobianProblem(fn, xs, sample_shape)
    if fn is None:
      check_request(problem, request, sample_shape)
      return _of_ys(ys, problem, request)
    found = run_request(problem, request, sample_shape)
    return found.result, found.diag


def _check_ys(ys: Any, xs: list) -> None:
  """Raises an error if `ys` cannot be differentiated without `fn`."""
  if len(xs) == 1 and callable(xs[0]) and not tf.is_tensor(xs[0]):
    raise TypeError(
      f'`xs` is {arguments.shown(xs[0])}, which is a function. The first '
      'argument is where to differentiate: `diag_jacobian(xs, fn=fn)`.'
    )
  if callable(ys) and not tf.is_tensor(ys):
    raise TypeError(
      f'`ys` is {arguments.shown(ys)}, which is a function. Functions are '
      'given by name here: `diag_jacobian(xs, fn=fn)`.'
    )
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


def _are_apart(xs: list) -> bool:
  """Whether no part is another one, or computed from it."""
  for i, x in enumerate(xs):
    others = [y for k, y in enumerate(xs) if k != i]
    if others and tf.is_tensor(x):
      derivatives = linear_map.linear_map_of_graph([x], others).of_ones()
      if any(d is not None for d in derivatives):
        return False
  return True


def _of_ys(ys: Any, problem: Problem, request: Request) -> tuple[list, list]:
  ys = list(ys) if isinstance(ys, (list, tuple)) else [ys]
  outputs, parts = problem.outputs(ys, problem.parts), problem.parts
  # What keeps structure from being read: it would be that of derivatives with
  # the other parts held, or of what this graph alone computes.
  obstacle = None
  if not _are_apart(parts):
    obstacle = (
      'is for derivatives with respect to one part while the others are '
      'constant, but a part of `xs` is another one, or computed from it'
    )
  elif (inner := linear_map.parts_at_hand(outputs, parts)) is None:
    obstacle = (
      'is for one graph, but `ys` comes from `xs` by way of another one'
    )
  else:
    parts = inner
  if obstacle is not None:
    if request.plan is not None:
      raise ValueError(f'`plan` {obstacle}. Pass `fn`.')
    request = request._replace(is_dense=True)
  evaluation = linear_map.evaluation_of_graph(ys, outputs, parts)
  found, _ = evaluate.diagonal(problem, evaluation, request)
  return ys, found.diag
