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
"""Gaussian log densities whose structure shows in their graph.

Each one is a map `standardize` from `x` to independent standard normal
residuals, followed by a sum of squares. The chain slices, the arrowhead
broadcasts its hub, the axis-aligned ones are elementwise: what couples two
coordinates is visible op by op, and only `from_covariance` multiplies with a
dense matrix.
"""

import dataclasses
import math
import typing

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments

__all__ = [
  'Gaussian',
  'ar1',
  'arrowhead',
  'axis_aligned',
  'from_covariance',
  'isotropic',
  'three_dimensional',
]


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussian:
  """A normal distribution over the last axis, with what is known about it.

  Constants are kept as NumPy float64 and cast to the dtype of the argument, so
  that one object serves float32 and float64. Instances can be pickled.

  Attributes:
    name: Python `str`.
    mean: float64 array of shape [n].
    structure: One of this module's private structures, which knows how to
      turn centered values into independent residuals.

  #### Examples

  ```python
  import tensorflow as tf
  from tfp_diag.examples import gaussian

  target = gaussian.three_dimensional()
  x = tf.constant([[0.0, 1.0, 2.0], [1.0, 0.0, -1.0]])
  target.log_prob(x).shape  # ==> [2]
  target.diag_hessian(x).shape  # ==> [2, 3]
  ```
  """

  name: str
  mean: np.ndarray
  structure: typing.Any

  def __post_init__(self):
    arguments.check_word('name', self.name)
    object.__setattr__(self, 'mean', arguments.as_vector('mean', self.mean))
    if not hasattr(self.structure, 'standardize'):
      raise TypeError(
        f'`structure` is {arguments.shown(self.structure)}, but must be one of '
        'this module; make a Gaussian by `from_covariance` or `isotropic`.'
      )

  @property
  def num_dims(self) -> int:
    """The number n of coordinates."""
    return self.mean.size

  def log_prob(self, x: typing.Any) -> tf.Tensor:
    """The normalized log density.

    Args:
      x: Floating point Tensor of shape [..., n].

    Returns:
      Tensor of shape [...] and the dtype of `x`.

    Raises:
      TypeError: if `x` is not a floating point Tensor.
      ValueError: if its last axis has not the size n.
    """
    x = self._point(x)
    residuals = self.structure.standardize(x - _constant(self.mean, x))
    return -0.5 * tf.reduce_sum(tf.square(residuals), axis=-1) - _constant(
      self.structure.log_scale + 0.5 * self.num_dims * math.log(2 * math.pi), x
    )

  def diag_hessian(self, x: typing.Any) -> tf.Tensor:
    r"""The diagonal of the Hessian of `log_prob`, in closed form.

    Args:
      x: Floating point Tensor of shape [..., n].

    Returns:
      Tensor of the shape and dtype of `x`: everywhere the diagonal of
      $-\Sigma^{-1}$, where $\Sigma$ is the covariance.

    Raises:
      TypeError: if `x` is not a floating point Tensor.
      ValueError: if its last axis has not the size n.
    """
    x = self._point(x)
    diag = _constant(-self.structure.precision_diag(), x)
    return tf.broadcast_to(diag, tf.shape(x))

  def _point(self, x):
    """A floating point Tensor whose last axis is that of the coordinates."""
    x = arguments.as_tensor('`x`', x)
    if not x.dtype.is_floating:
      raise TypeError(
        f'`x` has dtype {x.dtype.name}, but a density is of real numbers; cast '
        'it to a floating dtype.'
      )
    if not x.shape[-1:].is_compatible_with([self.num_dims]):
      raise ValueError(
        f'`x` has shape {x.shape}, but its last axis must have the size '
        f'{self.num_dims}, one for each coordinate.'
      )
    return x

  def covariance(self) -> np.ndarray:
    """The covariance as a float64 array of shape [n, n]."""
    return self.structure.covariance()

  def standard_deviations(self) -> np.ndarray:
    """The marginal standard deviations as a float64 array of shape [n]."""
    return np.sqrt(self.structure.variance())


def isotropic(num_dims: int, scale: float = 1.0) -> Gaussian:
  """Independent coordinates of the same standard deviation.

  Args:
    num_dims: Python `int`, the number of coordinates.
    scale: Python `float`, the standard deviation.

  Returns:
    A `Gaussian` with mean zero.

  Raises:
    ValueError: if `num_dims` is not a positive integer, or `scale` is not a
      positive number.

  #### Examples

  ```python
  from tfp_diag.examples import gaussian

  gaussian.isotropic(3, scale=2.0).standard_deviations()  # ==> [2., 2., 2.]
  ```
  """
  num_dims = _num_dims(num_dims)
  _check_scale('scale', scale)
  return Gaussian(
    name='isotropic',
    mean=np.zeros(num_dims),
    structure=_Diagonal(np.full(num_dims, float(scale))),
  )


def axis_aligned(num_dims: int, condition_number: float = 1e4) -> Gaussian:
  """Independent coordinates on very different scales.

  Args:
    num_dims: Python `int`, the number of coordinates.
    condition_number: Python `float`, the ratio of the largest to the smallest
      variance. The standard deviations are spaced geometrically around one.

  Returns:
    A `Gaussian` with mean zero.

  Raises:
    ValueError: if `num_dims` is not a positive integer, or `condition_number`
      is less than one.

  #### Examples

  ```python
  from tfp_diag.examples import gaussian

  gaussian.axis_aligned(3).standard_deviations()  # ==> [0.1, 1., 10.]
  ```
  """
  num_dims = _num_dims(num_dims)
  arguments.check_number(
    'condition_number',
    condition_number,
    'a number of one or more',
    lambda x: 1.0 <= x < math.inf,
  )
  # A single coordinate is in the middle.
  half_range = 0.25 * math.log(condition_number) if num_dims > 1 else 0.0
  return Gaussian(
    name='axis_aligned',
    mean=np.zeros(num_dims),
    structure=_Diagonal(np.exp(np.linspace(-half_range, half_range, num_dims))),
  )


def three_dimensional() -> Gaussian:
  """The 3-D normal of variances 1, 2 and 3, and covariances 1/4.

  Returns:
    A `Gaussian` with mean zero.

  #### Examples

  ```python
  from tfp_diag.examples import gaussian

  gaussian.three_dimensional().covariance()[0]  # ==> [1., 0.25, 0.25]
  ```
  """
  covariance = np.full([3, 3], 0.25)
  np.fill_diagonal(covariance, [1.0, 2.0, 3.0])
  return dataclasses.replace(
    from_covariance(covariance), name='three_dimensional'
  )


def ar1(
  num_dims: int, coefficient: float = 0.9, scale: float = 1.0
) -> Gaussian:
  r"""A stationary autoregression of order one.

  $x_1 \sim N(0, \sigma^2 / (1 - a^2))$ and $x_t = a x_{t-1} + \sigma
  \varepsilon_t$ with standard normal $\varepsilon_t$, where $a$ is the
  coefficient and $\sigma$ the scale.

  Args:
    num_dims: Python `int`, the number of time steps.
    coefficient: Python `float` in (-1, 1).
    scale: Python `float`, the standard deviation of the innovations.

  Returns:
    A `Gaussian` with mean zero and a tridiagonal precision matrix.

  Raises:
    ValueError: if `num_dims` is not a positive integer, `coefficient` is not
      inside (-1, 1), or `scale` is not a positive number.

  #### Examples

  ```python
  import tensorflow as tf
  from tfp_diag.examples import gaussian

  chain = gaussian.ar1(4, coefficient=0.5)
  chain.diag_hessian(tf.zeros([4]))  # ==> [-1., -1.25, -1.25, -1.]
  ```
  """
  num_dims = _num_dims(num_dims)
  arguments.check_number(
    'coefficient',
    coefficient,
    'strictly between -1 and 1, for a stationary autoregression',
    lambda x: -1.0 < x < 1.0,
  )
  _check_scale('scale', scale)
  return Gaussian(
    name='ar1',
    mean=np.zeros(num_dims),
    structure=_Chain(num_dims, float(coefficient), float(scale)),
  )


def arrowhead(
  num_dims: int, slope: float = 0.5, hub_scale: float = 1.0, scale: float = 1.0
) -> Gaussian:
  r"""A hub and leaves that depend on nothing but the hub.

  With the slope $b$, the scale of the hub $\tau$ and the scale $\sigma$:
  $x_1 \sim N(0, \tau^2)$, and $x_i \sim N(b x_1, \sigma^2)$ for $i > 1$.

  Args:
    num_dims: Python `int`, the number of coordinates, hub included.
    slope: Python `float`, how strongly the leaves follow the hub.
    hub_scale: Python `float`, the standard deviation of the hub.
    scale: Python `float`, the standard deviation of a leaf given the hub.

  Returns:
    A `Gaussian` with mean zero and an arrowhead precision matrix.

  Raises:
    ValueError: if `num_dims` is not a positive integer, `slope` is not finite,
      or a scale is not a positive number.

  #### Examples

  ```python
  import tensorflow as tf
  from tfp_diag.examples import gaussian

  star = gaussian.arrowhead(5)
  star.diag_hessian(tf.zeros([5]))  # ==> [-2., -1., -1., -1., -1.]
  ```
  """
  num_dims = _num_dims(num_dims)
  arguments.check_number('slope', slope, 'a finite number')
  _check_scale('hub_scale', hub_scale)
  _check_scale('scale', scale)
  return Gaussian(
    name='arrowhead',
    mean=np.zeros(num_dims),
    structure=_Arrow(num_dims, float(slope), float(hub_scale), float(scale)),
  )


def from_covariance(
  covariance: typing.Any, mean: typing.Any = None
) -> Gaussian:
  """The normal distribution of any given covariance.

  Args:
    covariance: Positive definite array of shape [n, n].
    mean: Array of shape [n]. Default: zeros.

  Returns:
    A `Gaussian`, with a dense matrix product in its graph.

  Raises:
    ValueError: if `covariance` is not a symmetric positive definite matrix, or
      if `mean` does not fit to it.

  #### Examples

  ```python
  import tensorflow as tf
  from tfp_diag.examples import gaussian

  target = gaussian.from_covariance([[2.0, 1.0], [1.0, 2.0]], mean=[1.0, 0.0])
  x = tf.zeros([2])
  target.diag_hessian(x)  # ==> [-0.6666667, -0.6666667]
  target.standard_deviations()  # ==> [1.4142136, 1.4142136]
  ```
  """
  covariance = arguments.as_array('covariance', covariance)
  if (
    covariance.ndim != 2
    or covariance.shape[0] != covariance.shape[1]
    or (not covariance.size)
  ):
    raise ValueError(
      f'`covariance` has shape {list(covariance.shape)}, but a square matrix '
      'of a coordinate or more is needed.'
    )
  atol = 1e-8 * np.abs(covariance).max()
  if not np.allclose(covariance, covariance.T, atol=atol):
    raise ValueError(
      '`covariance` is not symmetric; pass (c + c.T) / 2 if it should be.'
    )
  try:
    cholesky = np.linalg.cholesky(covariance)
  except np.linalg.LinAlgError as e:
    raise ValueError(
      '`covariance` is not positive definite; its smallest eigenvalue is '
      f'{np.linalg.eigvalsh(covariance)[0]:.3g}. Add to its diagonal.'
    ) from e
  num_dims = covariance.shape[0]
  mean = arguments.as_vector(
    'mean', np.zeros(num_dims) if mean is None else mean
  )
  if mean.shape != (num_dims,):
    raise ValueError(
      f'`mean` has shape {list(mean.shape)}, but `covariance` asks for '
      f'[{num_dims}].'
    )
  return Gaussian(
    name='from_covariance',
    mean=mean,
    structure=_Dense(covariance, np.linalg.inv(cholesky)),
  )


def _num_dims(num_dims):
  return arguments.as_count('num_dims', num_dims, 1, 'how many coordinates')


def _check_scale(name, scale):
  arguments.check_number(
    name,
    scale,
    'a positive number, a standard deviation',
    arguments.is_positive,
  )


def _constant(value, x):
  return tf.constant(value, x.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class _Diagonal:
  """Independent coordinates."""

  scales: np.ndarray

  def standardize(self, x):
    return x / _constant(self.scales, x)

  @property
  def log_scale(self):
    return np.sum(np.log(self.scales))

  def precision_diag(self):
    return 1.0 / np.square(self.scales)

  def variance(self):
    return np.square(self.scales)

  def covariance(self):
    return np.diag(self.variance())


@dataclasses.dataclass(frozen=True, eq=False)
class _Chain:
  """Each coordinate depends on the one before it."""

  num_dims: int
  coefficient: float
  scale: float

  @property
  def _start_scale(self):
    return self.scale / math.sqrt(1.0 - self.coefficient**2)

  def standardize(self, x):
    start = x[..., :1] / self._start_scale
    steps = (x[..., 1:] - self.coefficient * x[..., :-1]) / self.scale
    return tf.concat([start, steps], axis=-1)

  @property
  def log_scale(self):
    return math.log(self._start_scale) + (self.num_dims - 1) * math.log(
      self.scale
    )

  def precision_diag(self):
    diag = np.full(self.num_dims, self.scale**-2)
    diag[0] = self._start_scale**-2
    diag[:-1] += (self.coefficient / self.scale) ** 2
    return diag

  def variance(self):
    return np.full(self.num_dims, self._start_scale**2)

  def covariance(self):
    t = np.arange(self.num_dims)
    lag = np.abs(t[:, np.newaxis] - t)
    return self._start_scale**2 * self.coefficient**lag


@dataclasses.dataclass(frozen=True, eq=False)
class _Arrow:
  """Every coordinate depends on the first one alone."""

  num_dims: int
  slope: float
  hub_scale: float
  scale: float

  def standardize(self, x):
    hub = x[..., :1]
    leaves = (x[..., 1:] - self.slope * hub) / self.scale
    return tf.concat([hub / self.hub_scale, leaves], axis=-1)

  @property
  def log_scale(self):
    return math.log(self.hub_scale) + (self.num_dims - 1) * math.log(self.scale)

  def precision_diag(self):
    diag = np.full(self.num_dims, self.scale**-2)
    pull = (self.num_dims - 1) * (self.slope / self.scale) ** 2
    diag[0] = self.hub_scale**-2 + pull
    return diag

  def _loadings(self):
    loadings = np.full(self.num_dims, self.slope * self.hub_scale)
    loadings[0] = self.hub_scale
    return loadings

  def _own_variance(self):
    own = np.full(self.num_dims, self.scale**2)
    own[0] = 0.0
    return own

  def variance(self):
    return np.square(self._loadings()) + self._own_variance()

  def covariance(self):
    loadings = self._loadings()
    return np.outer(loadings, loadings) + np.diag(self._own_variance())


@dataclasses.dataclass(frozen=True, eq=False)
class _Dense:
  """Any covariance, with the inverse of its Cholesky factor."""

  matrix: np.ndarray
  whitening: np.ndarray

  def standardize(self, x):
    return tf.linalg.matvec(_constant(self.whitening, x), x)

  @property
  def log_scale(self):
    return -np.sum(np.log(np.diag(self.whitening)))

  def precision_diag(self):
    return np.sum(np.square(self.whitening), axis=0)

  def variance(self):
    return np.diag(self.matrix).copy()

  def covariance(self):
    return self.matrix.copy()
