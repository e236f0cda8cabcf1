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
"""The whole Hessian, in blocks per pair of parts."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.diag_hessian import MODES, HessianMode
from tfp_diag.diagonal import blocks, evaluate
from tfp_diag.diagonal.reading import caution_of_whole
from tfp_diag.internal import arguments
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.jacobian import dense_row

__all__ = ['hessian']


@not_converted
def hessian(
  fn: Callable,
  xs: Any,
  sample_shape: SampleShape | None = (),
  *,
  mode: HessianMode = 'auto',
  strict: bool = False,
  chunk_size: int | None = None,
  name: str | None = None,
) -> Any:
  """Computes the Hessian of `fn` at `xs`: the Jacobian of its gradient.

  Use it for a whole matrix. `tfp_diag.diag_hessian` is cheaper if you need the
  diagonal only, and `tfp_diag.LazyHessian` if you need some rows.

  Args:
    fn: Python callable of the parts of `xs`, or without arguments, as for
      `tfp_diag.jacobian`. Returns one scalar per sample, a Tensor of shape
      `sample_shape`.
    xs: Tensor, or structure of Tensors, of shape `sample_shape + event_shape`
      and of a floating dtype; or `tf.Variable`s.
    sample_shape: The leading shape that all parts share, whose entries are
      independent samples. Default: `()`, `fn` returns one scalar, as the
      shapes of the blocks follow from it; `tfp_diag.diag_hessian`, whose
      results have the shapes of `xs`, can take that of the value.
    mode: 'forward_over_reverse', 'reverse_over_reverse' or 'auto' (the latter,
      which differentiates once less). They give the same numbers, as in
      `tfp_diag.jacobian`.
    strict: Python bool. Whether it is an error if `fn` has no second derivative
      at all with respect to some part. Otherwise its blocks are zero.
    chunk_size: Python int, how many passes are vectorized together: memory
      grows with it. 1 is a plain loop, None all passes of a part at once. What
      `parallel_iterations` is for `tfp_diag.diag_jacobian`.
    name: Python str, name of the ops. Default: `'hessian'`.

  Returns:
    The structure of `xs`, each part in it replaced by the structure of `xs`,
    each part in that replaced by a Tensor of shape `sample_shape + e_i + e_j`:
    `h[i][j]` holds the second derivatives with respect to the parts `i` and
    `j`. With a Tensor
    as `xs` it is one Tensor of shape `sample_shape + e + e`. It is symmetric up
    to rounding, and can be differentiated by a tape around the call.

  Raises:
    ValueError: if `fn` does not return one scalar per sample; if an argument
      is not valid; if samples mix; with `strict`, if `fn` has no second
      derivative with respect to some part.
    TypeError: if a part is not floating.
    LookupError: if an op of `fn` has no second derivative in TensorFlow.

  #### Examples

  ```python
  x = tf.constant([1.0, 2.0, 3.0])
  hessian(lambda x: tf.reduce_prod(x) + x[0] ** 3, x)
  # ==> [[6., 3., 2.], [3., 0., 1.], [2., 1., 0.]]
  ```

  #### What a gradient of a gradient is not

  `tape.gradient(tape.gradient(value, x), x)` adds up each row of the Hessian:
  `[11., 4., 3.]` here, where the diagonal is `[6., 0., 0.]`.
  """
  with arguments.op_scope(name, 'hessian'):
    arguments.check_choice('mode', mode, tuple(MODES))
    if chunk_size is not None:
      chunk_size = arguments.check_chunk('chunk_size', chunk_size)
    arguments.check_flag('strict', strict)
    problem = HessianProblem(fn, xs, sample_shape)
    rank = problem.rank or 0
    # A Hessian is square, so what is left is which of the two costs less.
    one_of_two = MODES[mode] if mode != 'auto' else 'reverse'

    def body(evaluation):
      is_linear = caution_of_whole(problem, evaluation.graph)
      parts = evaluation.xs
      gradients, derivative = evaluation.hessian()
      found = blocks.jacobian_blocks(
        derivative, evaluation, rank, one_of_two, chunk_size, is_linear
      )
      return problem.pack(
        [
          problem.pack(_row(row, i, g, parts, rank, strict))
          for i, (row, g) in enumerate(zip(found, gradients))
        ]
      )

    return evaluate.run(problem, ('hessian', mode, strict, chunk_size), body)


def _row(
  row: list,
  index: int,
  gradient: tf.Tensor,
  parts: list,
  rank: int,
  strict: bool,
) -> list:
  if strict and all(block is None for block in row):
    raise ValueError(
      f'No second derivative with respect to part {index} of `xs` depends on '
      '`xs`, and `strict` is set: `fn` does not depend on that part, or is '
      'linear in it. Leave it out, or pass `strict=False` to get zeros.'
    )
  return dense_row(row, index, gradient, parts, rank, strict=False)
