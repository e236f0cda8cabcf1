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
"""The whole Jacobian of any structure by any structure."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfp_diag.diagonal import blocks, evaluate
from tfp_diag.diagonal.reading import caution_of_whole
from tfp_diag.diagonal.request import Mode
from tfp_diag.internal import arguments, batching, nest
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import Problem

__all__ = ['jacobian']

MODES = ('auto', 'forward', 'reverse')


@not_converted
def jacobian(
  fn: Callable,
  xs: Any,
  sample_shape: SampleShape | None = (),
  *,
  mode: Mode = 'auto',
  strict: bool = False,
  chunk_size: int | None = None,
  name: str | None = None,
) -> Any:
  """Computes the Jacobian of `fn` at `xs`.

  Use it for a whole matrix. `tfp_diag.diag_jacobian` is cheaper if you need the
  diagonal only, and `tfp_diag.LazyJacobian` if you need some rows or columns.

  Args:
    fn: Python callable of the parts of `xs`; returns a floating Tensor of shape
      `sample_shape + event_shape`, or a structure (list, tuple, dict,
      namedtuple) of such. Called as `fn(x)` with a Tensor or a
      namedtuple, `fn(*xs)` with a list or tuple, `fn(**xs)` with a dict;
      without arguments if all parts are `tf.Variable`s and it takes none.
    xs: Tensor, or structure of Tensors, of shape `sample_shape + event_shape`
      and of a floating dtype; or `tf.Variable`s.
    sample_shape: The leading shape that all inputs and outputs share: list,
      tuple, `tf.TensorShape` or integer vector of any length. Its entries are
      independent samples, which share each pass. Derivatives between two
      samples are zero and left out. Default: `()`, everything is one event, as
      the shapes of the results follow from it.
    mode: 'reverse' costs one pass per output coordinate, 'forward' one per
      input coordinate; 'auto' takes the cheaper one, reverse mode in case of
      doubt. They give the same numbers: where a derivative is not finite,
      'forward' runs reverse passes, too.
    strict: Python bool. Whether an output that does not depend on a part of
      `xs` is an error; its derivative is zero otherwise.
    chunk_size: Python int, how many passes are vectorized together: memory
      grows with it. 1 is a plain loop, None all passes of a part at once. What
      `parallel_iterations` is for `tfp_diag.diag_jacobian`.
    name: Python str, name of the ops. Default: `'jacobian'`.

  Returns:
    The structure that `fn` returns, each Tensor of shape `sample_shape + e_y`
    in it replaced by the structure of `xs`, in which each Tensor of shape
    `sample_shape + e_x` is replaced by a Tensor of its dtype and of shape
    `sample_shape + e_y + e_x`. It can be differentiated by a tape around the
    call.

  Raises:
    ValueError: if an argument is not valid; as
      `tfp_diag.sparsity.SampleMixingError`, which names the op, if samples mix,
      as in batch normalization during training; with `strict`, if an output
      does not depend on an input.
    TypeError: if an input or output is not floating.
    LookupError: if an op of `fn` has no derivative in TensorFlow.

  #### Examples

  ```python
  x = tf.constant([1.0, 2.0])
  jacobian(lambda x: tf.stack([x[0] * x[1], x[1] ** 2, 3.0 * x[0]]), x)
  # ==> [[2., 1.], [0., 4.], [3., 0.]]
  ```

  Two samples, two outputs, two parts:

  ```python
  a, b = tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])
  jac = jacobian(lambda a, b: {'sum': a + b, 'prod': a * b}, (a, b), [2])
  jac['prod']
  # ==> ([3., 5.], [1., 2.])
  ```

  #### What `sample_shape` does

  Without it a batch of size `B` gives blocks of shape `[B, ..., B, ...]`, zero
  except where both indices are equal. With it only these are computed, of shape
  `[B, ..., ...]`, by a `B`-th of the passes. That has no meaning if samples
  influence each other, as under batch normalization in training: adding up what
  all samples do to one, as the `batch_jacobian` of a tape then does, gives a
  Tensor of the expected shape. For `x - tf.reduce_mean(x, 0)` it is zero, where
  the derivative is `1 - 1 / B`. Such a function is refused, and the op named.

  ```python
  x = tf.constant([[1.0], [2.0], [4.0]])
  try:
    jacobian(lambda x: x - tf.reduce_mean(x, 0), x, sample_shape=[3])
  except ValueError as e:
    print(e)  # fn mixes samples: Mean (op 'Mean') makes the result of one ...
  jacobian(lambda x: x - tf.reduce_mean(x, 0), x)[0, 0, :, 0]
  # ==> [0.6666667, -0.3333333, -0.3333333]
  ```
  """
  with arguments.op_scope(name, 'jacobian'):
    arguments.check_choice('mode', mode, MODES)
    if chunk_size is not None:
      chunk_size = arguments.check_chunk('chunk_size', chunk_size)
    arguments.check_flag('strict', strict)
    problem = Problem(fn, xs, sample_shape)
    rank = problem.rank or 0

    def body(evaluation):
      is_linear = caution_of_whole(problem, evaluation.graph)
      parts = evaluation.xs
      sizes = [y.shape[rank:].num_elements() for y in evaluation.ys]
      evaluation.check_passes(None if None in sizes else sum(sizes))
      found = blocks.jacobian_blocks(
        evaluation.jacobian(), evaluation, rank, mode, chunk_size, is_linear
      )
      rows = [
        problem.pack(dense_row(row, i, y, parts, rank, strict))
        for i, (row, y) in enumerate(zip(found, evaluation.ys))
      ]
      return nest.pack_as(evaluation.result, rows)

    return evaluate.run(problem, ('jacobian', mode, strict, chunk_size), body)


def dense_row(
  row: Sequence, index: int, y: tf.Tensor, xs: Sequence, rank: int, strict: bool
) -> list:
  """One output's blocks: zeros, or an error, where there is no path.

  Args:
    row: List of Tensors or None, one per part of `xs`.
    index: Python int, the number of the output.
    y: Tensor, the output.
    xs: List of Tensors, the parts.
    rank: Python int, the number of sample dimensions.
    strict: Python bool.

  Returns:
    List of Tensors.
  """
  full = []
  for j, (block, x) in enumerate(zip(row, xs)):
    if block is None and strict:
      raise ValueError(
        f'Output {index} of `fn` does not depend on part {j} of `xs`, and '
        '`strict` is set. Leave one of them out, or pass `strict=False` to get '
        'zeros.'
      )
    if block is None:
      y = tf.convert_to_tensor(y)
      shape = tf.concat([tf.shape(y), tf.shape(x)[rank:]], 0)
      block = tf.zeros(shape, x.dtype)
      block = batching.with_shape(block, y.shape.concatenate(x.shape[rank:]))
    full.append(tf.cast(block, x.dtype))
  return full
