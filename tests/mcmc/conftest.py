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
"""One target in closed form, and every kind of kernel with its oracle.

What a Langevin kernel must obey, each kind must obey: the constant scales, the
scales that depend on the position, and what adapts, once it is frozen.
"""

import dataclasses
import functools
import types
import typing

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.mcmc import (
  DiagonalPreconditionerAdaptation,
  FisherAdaptiveMALA,
  FisherDivergenceMALA,
  LocalHessianPreconditioner,
  PreconditionedMALA,
)
from tfp_diag.mcmc.adapt.diagonal_estimators import ESTIMATORS


class Bent:
  """A bent and sheared normal in three dimensions, of order one.

  z₀ = x₀, z₁ = x₁ + ½(x₀² - 1), z₂ = (x₂ - 0.6 x₁) exp(-x₀ / 4) are
  independent standard normals. The curvature changes its sign.
  """

  num_dims = 3
  step_size = 0.8
  softness = 0.3

  @staticmethod
  def log_prob(x):
    x0, x1, x2 = tf.unstack(x, axis=-1)
    z1 = x1 + 0.5 * (tf.square(x0) - 1.0)
    z2 = (x2 - 0.6 * x1) * tf.exp(-0.25 * x0)
    return -0.5 * (tf.square(x0) + tf.square(z1) + tf.square(z2)) - 0.25 * x0

  @staticmethod
  def volatility(x):
    """Every coordinate sees another one."""
    return 0.8 + 0.4 * tf.sin(x + 0.5 * tf.roll(x, 1, axis=-1))

  # The rest is NumPy, for arrays [..., 3].

  @staticmethod
  def standardize(x):
    z1 = x[..., 1] + 0.5 * (x[..., 0] ** 2 - 1.0)
    z2 = (x[..., 2] - 0.6 * x[..., 1]) * np.exp(-0.25 * x[..., 0])
    return np.stack([x[..., 0], z1, z2], -1)

  @staticmethod
  def exact(noise):
    x0 = noise[..., 0]
    x1 = noise[..., 1] - 0.5 * (x0**2 - 1.0)
    x2 = 0.6 * x1 + np.exp(0.25 * x0) * noise[..., 2]
    return np.stack([x0, x1, x2], -1)

  def np_log_prob(self, x):
    return -0.5 * np.sum(self.standardize(x) ** 2, -1) - 0.25 * x[..., 0]

  def np_gradient(self, x):
    z = self.standardize(x)
    e = np.exp(-0.25 * x[..., 0])
    g0 = -z[..., 0] - x[..., 0] * z[..., 1] + 0.25 * z[..., 2] ** 2 - 0.25
    return np.stack([g0, -z[..., 1] + 0.6 * e * z[..., 2], -e * z[..., 2]], -1)

  def np_scale_from_curvature(self, x):
    """s and ∂_i s_i of the local Hessian preconditioner; x is [3]."""
    z = self.standardize(x)
    e2 = np.exp(-0.5 * x[0])
    curvature = np.array(
      [1.0 + z[1] + x[0] ** 2 + z[2] ** 2 / 8.0, 1.0 + 0.36 * e2, e2]
    )
    slope = np.array([3.0 * x[0] - z[2] ** 2 / 16.0, 0.0, 0.0])
    t = curvature / self.softness
    soft = curvature / np.tanh(t)
    soft_slope = (1.0 / np.tanh(t) - t / np.sinh(t) ** 2) * slope
    return soft**-0.5, -0.5 * soft**-1.5 * soft_slope

  @staticmethod
  def np_volatility(x):
    phase = x + 0.5 * np.roll(x, 1)
    return 0.8 + 0.4 * np.sin(phase), 0.4 * np.cos(phase)


_DIAGONAL = np.array([0.6, 1.1, 1.5])
_LOWER = np.array([[0.8, 0.0, 0.0], [-0.3, 1.0, 0.0], [0.5, 0.4, 1.3]])

_CONSTANT = {
  'none': np.eye(3),
  'scale': 0.7 * np.eye(3),
  'diagonal': np.diag(_DIAGONAL),
  'cholesky': _LOWER,
  'exponential': _LOWER,
  'low_rank': np.diag(_DIAGONAL) + _LOWER[:, :1] @ _LOWER[:, :1].T,
}
_LOCAL = ['volatility', 'local_hessian']
_FULL_ADAPTED = ['adapted_full_fisher', 'adapted_full_fisher_divergence']
_ADAPTED = [*(f'adapted_{name}' for name in ESTIMATORS), *_FULL_ADAPTED]
# y = x + L(pull Lᵀ g + √spread z), with the pull and the spread of a time.
_DISCRETIZATIONS = {
  'euler': lambda time: (0.5 * time, time),
  'exponential': lambda time: (1.0 - np.exp(-0.5 * time), 1.0 - np.exp(-time)),
}
_KINDS = [*_CONSTANT, *_LOCAL, *_ADAPTED]
_NUM_LEARNING = 12


def _preconditioner(kind, dtype):
  if kind == 'none':
    return None
  if kind == 'scale':
    return 0.7
  if kind == 'diagonal':
    return _DIAGONAL
  lower = tf.constant(_LOWER, dtype)
  if kind in ('cholesky', 'exponential'):
    return tf.linalg.LinearOperatorLowerTriangular(lower)
  return tf.linalg.LinearOperatorLowRankUpdate(
    tf.linalg.LinearOperatorDiag(tf.constant(_DIAGONAL, dtype)), lower[:, :1]
  )


@dataclasses.dataclass(frozen=True)
class KernelOfKind:
  """A kernel whose adaptation, if any, is over.

  Attributes:
    kernel: A `tfp.mcmc.TransitionKernel`, for states [chains..., 3].
    start: Callable of a state: kernel results to start with there.
    matrix: float64 array [3, 3], L of a constant scale; or None.
    scale: Callable of a float64 array [3]: S and ½ div S Sᵀ there.
    times: Callable of τ: the factors of V g in the mean of a step, and of V in
      its covariance.
  """

  kernel: typing.Any
  start: typing.Any
  matrix: typing.Any
  scale: typing.Any
  times: typing.Any = _DISCRETIZATIONS['euler']


def _core(results):
  """The results of the `PreconditionedMALA` inside."""
  while hasattr(results, 'inner_results'):
    results = results.inner_results
  return results


def _with_core(results, core):
  """The same results around another core."""
  if not hasattr(results, 'inner_results'):
    return core
  return results._replace(inner_results=_with_core(results.inner_results, core))


def _adapting(kind, log_prob, step_size):
  """The kernel of a kind that adapts."""
  if kind == 'adapted_full_fisher':
    return FisherAdaptiveMALA(log_prob, step_size, _NUM_LEARNING - 1, 2)
  if kind == 'adapted_full_fisher_divergence':
    return FisherDivergenceMALA(
      log_prob, step_size, _NUM_LEARNING - 1, discretization='exponential'
    )
  return DiagonalPreconditionerAdaptation(
    PreconditionedMALA(log_prob, step_size),
    _NUM_LEARNING - 1,
    kind.removeprefix('adapted_'),
  )


@functools.cache
def _learned(kind, dtype, log_prob, draw, num_dims):
  """The results of a kernel after its adaptation, from exact draws.

  Always at one step size, so that kernels of other step sizes have one scale.
  """
  kernel = _adapting(kind, log_prob, tf.constant(Bent.step_size, dtype))
  noise = np.random.default_rng(5).normal(size=[200, num_dims])
  state = tf.constant(draw(noise), dtype)
  results = kernel.bootstrap_results(state)
  # So few steps are over before one has been traced.
  for i in range(_NUM_LEARNING):
    state, results = kernel.one_step(state, results, seed=(i, 77))
  return results


def _frozen_diagonal(kernel, learned):
  scales = _core(learned).accepted_results.preconditioner

  def start(state):
    results = kernel.bootstrap_results(state)
    core = _core(results)
    core = core._replace(
      accepted_results=core.accepted_results._replace(preconditioner=scales),
      proposed_results=core.proposed_results._replace(preconditioner=scales),
    )
    return _with_core(results, core)._replace(step=learned.step)

  return start, np.diag(scales[0].numpy().astype(np.float64))


def _frozen_matrix(kernel, learned):
  def start(state):
    return kernel.bootstrap_results(state)._replace(
      factor=learned.factor, step=learned.step
    )

  return start, learned.factor.numpy().astype(np.float64)


@functools.cache
def _make_kernel(
  kind, dtype=tf.float64, step_size=None, log_prob=None, draw=None, num_dims=3
):
  """The kernel of a kind, for `Bent` or for another target; learns once.

  Args:
    kind: Python `str`, one of the kinds.
    dtype: Of the state.
    step_size: Python `float`. Default: that of `Bent`.
    log_prob: Callable of a state. Default: that of `Bent`.
    draw: Callable from standard normals to exact draws, from which adaptation
      learns. Default: that of `Bent`. Equal callables share what was learned.
    num_dims: Python `int`.

  Returns:
    A `KernelOfKind`.
  """
  target = Bent()
  step_size = tf.constant(step_size or target.step_size, dtype)
  log_prob = log_prob or target.log_prob
  draw = draw or target.exact
  if kind == 'volatility':
    kernel = PreconditionedMALA(
      log_prob, step_size, volatility_fn=target.volatility
    )

    def scale(x):
      s, slope = target.np_volatility(x)
      return np.diag(s), s * slope

    return KernelOfKind(kernel, kernel.bootstrap_results, None, scale)
  if kind == 'local_hessian':
    kernel = PreconditionedMALA(
      log_prob, step_size, LocalHessianPreconditioner(target.softness)
    )

    def scale(x):
      s, slope = target.np_scale_from_curvature(x)
      return np.diag(s), s * slope

    return KernelOfKind(kernel, kernel.bootstrap_results, None, scale)
  times = 'euler'
  if kind in _CONSTANT:
    times = 'exponential' if kind == 'exponential' else 'euler'
    kernel = PreconditionedMALA(
      log_prob, step_size, _preconditioner(kind, dtype), discretization=times
    )
    start, matrix = kernel.bootstrap_results, _CONSTANT[kind]
  else:
    kernel = _adapting(kind, log_prob, step_size)
    learned = _learned(kind, dtype, log_prob, draw, num_dims)
    if kind not in _FULL_ADAPTED:
      start, matrix = _frozen_diagonal(kernel, learned)
    else:
      start, matrix = _frozen_matrix(kernel, learned)
    if kind == 'adapted_full_fisher':
      # The kernel makes the average of the diagonal of L Lᵀ one.
      matrix /= np.sqrt(np.mean(np.diag(matrix @ matrix.T)))
    if kind == 'adapted_full_fisher_divergence':
      times = 'exponential'
  return KernelOfKind(
    kernel,
    start,
    matrix,
    lambda x: (matrix, np.zeros(3)),
    _DISCRETIZATIONS[times],
  )


# Estimators differ by a formula, and not at all once they are frozen:
# 'variance' stands for those of means, beside 'hessian'.
_OTHER_GRAPHS = [
  kind
  for kind in _KINDS
  if kind not in ('adapted_fisher', 'adapted_fisher_divergence')
]
# Nor is XLA told whether a diagonal was learned.
_COMPILED = [
  kind for kind in _OTHER_GRAPHS if kind not in ('none', 'adapted_variance')
]


@pytest.fixture(params=_OTHER_GRAPHS)
def kind(request):
  """Every kind of kernel that is another graph."""
  return request.param


@pytest.fixture(params=_COMPILED)
def compiled_kind(request):
  """Every kind of kernel that is another program of XLA."""
  return request.param


@pytest.fixture(params=[k for k in _OTHER_GRAPHS if k not in _LOCAL])
def constant_kind(request):
  """Every kind of kernel whose scale is the same everywhere."""
  return request.param


# A correction is computed by a law, of which there are two for these kinds;
# 'adapted_full_fisher' is the one that scales the step.
@pytest.fixture(params=['cholesky', 'exponential', 'adapted_full_fisher'])
def corrected_kind(request):
  """Kinds of a constant scale that stand for all in controls."""
  return request.param


@pytest.fixture(params=_ADAPTED)
def adapted_kind(request):
  """Every kind of kernel whose scale has been learned."""
  return request.param


@pytest.fixture(params=_LOCAL)
def local_kind(request):
  """Every kind of kernel whose scale depends on the position."""
  return request.param


@pytest.fixture(scope='session')
def laws():
  """The target, the kernels and how to reach into their results."""
  return types.SimpleNamespace(
    target=Bent(),
    make_kernel=_make_kernel,
    core=_core,
    with_core=_with_core,
  )
