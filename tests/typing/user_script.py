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
"""What users write, for `pyright` to find right; it runs, too."""

import pathlib
import tempfile

import numpy as np
import tensorflow as tf

import tfp_diag
from tfp_diag import sparsity


def field(x: tf.Tensor) -> tf.Tensor:
  return x**3 + tf.roll(x, 1, axis=-1)


def log_density(x: tf.Tensor) -> tf.Tensor:
  return -tf.reduce_sum(x**4, axis=-1)


def diagonals(x: tf.Tensor) -> tf.Tensor:
  ys, diag = tfp_diag.diag_jacobian(
    [x], fn=field, sample_shape=[2], mode='forward', schedule='unrolled'
  )
  value, gradient, curvature = tfp_diag.diag_hessian(
    log_density, x, mode='reverse_over_reverse', validate_args=True
  )
  return ys[0] + diag[0] + gradient + curvature + value[:, tf.newaxis]


def plans(x: tf.Tensor) -> tfp_diag.Plan:
  plan = tfp_diag.plan_diag_hessian(
    log_density,
    tf.TensorSpec([2, 4]),
    tf.TensorShape([2]),
    memory_limit=1 << 20,
  )
  value, gradient, curvature = plan(x)
  tfp_diag.diag_hessian(log_density, x, (2,), plan=plan)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'plan.npz'
    plan.save(path)
    plan = tfp_diag.load_plan(path, fn=log_density)
  other = tfp_diag.plan_diag_jacobian(
    field, x, mode='reverse', pattern=np.ones([8, 8])
  )
  print(plan.num_passes + other.num_colors, other.notes, value, gradient)
  print(curvature)
  return other


def matrices(x: tf.Tensor) -> tf.Tensor:
  dense = tfp_diag.jacobian(field, x, [2], mode='forward', chunk_size=2)
  curved = tfp_diag.hessian(
    log_density, x, np.array([2]), mode='forward_over_reverse', strict=True
  )
  lazy = tfp_diag.LazyJacobian(field, x, [2])
  row = lazy[:, 0]
  total = lazy.trace() + tfp_diag.LazyHessian(log_density, x, [2]).trace()
  operator = lazy.as_linear_operator()
  print(lazy @ np.ones([4], np.float32))
  print(row, operator.to_dense(), lazy.num_passes + 1, lazy.shape.as_list())
  return dense + curved + total[:, tf.newaxis, tf.newaxis]


def estimates(x: tf.Tensor, plan: tfp_diag.Plan) -> tfp_diag.StochasticDiagonal:
  tfp_diag.stochastic_diag_jacobian(field, x, 20, (0, 1), plan=plan)
  tfp_diag.stochastic_diag_jacobian(field, x, 20, 7)
  tfp_diag.stochastic_diag_hessian(log_density, x, 20, None)
  return tfp_diag.stochastic_diag_hessian(
    log_density, x, 20, [0, 1], tolerance=0.1, chunk_size=5
  )


def over_data(x: tf.Tensor) -> tfp_diag.DatasetDiagonal:
  w = tf.Variable(tf.constant([1.0, 2.0, 3.0, 4.0]))
  data = tf.data.Dataset.from_tensor_slices(x).batch(1)
  tfp_diag.diag_hessian_over_dataset(
    lambda x: tf.reduce_mean(tf.linalg.matvec(x, w) ** 2),
    w,
    data,
    method='stochastic',
    num_probes=2,
    seed=7,
    progress_bar=False,
  )
  return tfp_diag.diag_hessian_over_dataset(
    lambda x: tf.reduce_mean(tf.linalg.matvec(x, w) ** 2),
    w,
    data,
    reduction='mean',
    method='exact',
    progress_bar=False,
  )


def traces(x: tf.Tensor) -> tf.Tensor:
  def ode(time: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
    return time * state**3

  state = (x, tf.zeros_like(x))
  exact = tfp_diag.trace_jacobian_exact(ode, [2, 4], tf.float32)
  random = tfp_diag.trace_jacobian_hutchinson(
    ode, x.shape, x.dtype, num_probes=2, seed=tf.constant([0, 1])
  )
  tfp_diag.trace_jacobian_hutchinson(ode, x.shape, x.dtype, seed=None)
  return exact(0.5, state)[1] + random(0.5, state)[1]


def patterns(x: tf.Tensor) -> tuple[int, ...]:
  pattern = sparsity.hessian_sparsity(log_density, x, [2])
  coloring = sparsity.color_diagonal(pattern)
  sparsity.check_diagonal_coloring(pattern, coloring)
  given = sparsity.SparsityPattern(np.eye(4), row_shapes=((4,),))
  flow = sparsity.Flow.identity(3).then(sparsity.Flow.dense(2, 3))
  print(coloring.num_colors + 1, given.nnz + flow.rows)
  return pattern.shape


def main() -> None:
  x = tf.constant([[1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 0.5, 1.5]])
  print(diagonals(x), matrices(x), over_data(x).num_passes, traces(x))
  print(estimates(x, plans(x)).standard_error, patterns(x))
  tfp_diag.clear_cache()


if __name__ == '__main__':
  main()
