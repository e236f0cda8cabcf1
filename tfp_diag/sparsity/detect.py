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
"""The public functions that find the pattern of a Jacobian or Hessian."""

from collections.abc import Callable
from typing import Any

from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import HessianProblem, Problem
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.budget import NoStructureError
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.pattern import SparsityPattern


@not_converted
def jacobian_sparsity(
  fn: Callable, xs: Any, sample_shape: Any = None
) -> SparsityPattern:
  """Finds which entries of the Jacobian of `fn` can be nonzero.

  The function is traced, not run. The pattern is valid for all inputs of these
  shapes, and for the constants that `fn` closes over. It may contain entries
  that are always zero, but it lacks none: the output of an op without a rule is
  assumed to depend on everything that its inputs depend on. Such ops are named
  in `fallback_ops`.

  Args:
    fn: Python callable of the parts of `xs`. Returns a Tensor or a structure
      of Tensors, each of shape `sample_shape + event_shape`.
    xs: Tensor, array or `tf.TensorSpec`, or a structure of them, each of shape
      `sample_shape + event_shape` and of a floating dtype. Event shapes must be
      static; the number of samples may be open.
    sample_shape: Leading shape that all parts share and whose entries are
      independent: the pattern is over the coordinates of one sample. Default:
      `()`, everything is event.

  Returns:
    `SparsityPattern`: one row per coordinate of the outputs, one column per
    coordinate of `xs`, parts in order.

  Raises:
    ValueError: If an event shape is not known, or a shape does not begin with
      `sample_shape`; if what `fn` computes depends on the number of samples,
      and this number is open or large; as `SampleMixingError` if the function
      mixes samples; as `PatternTooDenseError` if the pattern is too large to be
      stored.
    TypeError: If a part is not floating; if `fn` needs the value of a Tensor in
      Python (NumPy, `.numpy()`, `float()`).

  #### Examples

  ```python
  import tensorflow as tf

  pattern = jacobian_sparsity(lambda x: x[1:] * x[:-1], tf.TensorSpec([4]))
  assert pattern.matrix.toarray().astype(int).tolist() == [
    [1, 1, 0, 0],
    [0, 1, 1, 0],
    [0, 0, 1, 1],
  ]
  ```
  """
  shape = () if sample_shape is None else sample_shape
  return _pattern(Problem(fn, xs, shape))


@not_converted
def hessian_sparsity(
  fn: Callable, xs: Any, sample_shape: Any = None
) -> SparsityPattern:
  """Finds which entries of the Hessian of `fn` can be nonzero.

  The pattern of the Hessian of a log density is its conditional-independence
  graph. The function is traced, not run; see `jacobian_sparsity`.

  Args:
    fn: Python callable of the parts of `xs`. Returns one number per sample: a
      Tensor of shape `sample_shape`.
    xs: Tensor, array or `tf.TensorSpec`, or a structure of them, each of shape
      `sample_shape + event_shape` and of a floating dtype; or `tf.Variable`s,
      and `fn` takes no arguments.
    sample_shape: Leading shape that all parts share and whose entries are
      independent. Default: the shape of what `fn` returns.

  Returns:
    `SparsityPattern`: symmetric, one row and one column per coordinate of
    `xs`, parts in order.

  Raises:
    ValueError: As `jacobian_sparsity`, and if `fn` does not return one number
      per sample.

  #### Examples

  ```python
  import tensorflow as tf

  chain = lambda x: tf.reduce_sum((x[1:] - 0.9 * x[:-1]) ** 2)
  pattern = hessian_sparsity(chain, tf.TensorSpec([3]))
  assert pattern.matrix.toarray().astype(int).tolist() == [
    [1, 1, 0],
    [1, 1, 1],
    [0, 1, 1],
  ]
  ```
  """
  return _pattern(HessianProblem(fn, xs, sample_shape))


def _pattern(problem: Problem) -> SparsityPattern:
  problem.check_shapes_are_meant()

  def traced(shapes=None):
    return trace(problem.call, problem.outputs, problem.parts, shapes)

  graph = traced()
  rank = problem.rank_of(graph.ys)
  analysis = analyze(graph, rank, traced, problem.kind == 'hessian')
  if analysis is None:
    raise NoStructureError(
      '`fn` does not do the same with every number of samples, as far as can '
      f'be seen, and the shapes {[str(p.shape) for p in problem.parts]} leave '
      'that number unknown, or have too many samples to analyze all of them. '
      'Pass `xs` of a static and smaller sample shape.'
    )
  return analysis.pattern
