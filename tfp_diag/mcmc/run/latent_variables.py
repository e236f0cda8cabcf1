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
"""Whether every variable that is not pinned can be moved by a gradient.

It can if TFP has a bijector for it from all of Rⁿ to all of its values, and a
right one.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.internal import arguments
from tfp_diag.mcmc.run.variables import by_name, free_names

# Classes of TFP (0.25) of which the bijector misses values, whatever the
# parameters are: Cholesky factors with a diagonal below log 2, and directions
# with a negative coordinate.
_PARTLY_REACHED = (
  'PowerSpherical',
  'SphericalUniform',
  'VonMisesFisher',
  'WishartLinearOperator',
)
# Draws that are looked at, and the numbers in all of them.
_MOST_DRAWS = 2048
_MOST_NUMBERS = 2**17
# Sigmoids and the like of less than that are not rounded to their limits.
_MODERATE = 6.0


def check_variables_left(model, of_model):
  """Refuses a model of which every variable is pinned.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    of_model: Python `str`, the argument that the model was given as.

  Raises:
    ValueError: if there is no other.
  """
  if not tf.nest.flatten(model.event_shape):
    raise ValueError(
      f'Every variable of `{of_model}` is pinned, so that nothing is left to '
      'sample; leave out the pin of what is not observed.'
    )


def check_latent_variables(model, of_model='joint_dist'):
  """Refuses a model with a variable that no gradient can move.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    of_model: Python `str`, the argument that the model was given as.

  Raises:
    TypeError: if those that are not pinned are of several dtypes.
    ValueError: if a variable that is not pinned is discrete, or TFP has no
      bijector from all of Rⁿ to all of its values for it, or a wrong one; names
      it.
  """
  whole = getattr(model, 'distribution', model)
  free = free_names(model)
  drawn = _drawn_distributions(whole)
  for name, distribution in by_name(whole, drawn).items():
    if name not in free:
      continue
    kind = _kind(distribution)
    what = f'The variable {name!r} of `{of_model}` is a {kind}'
    if _is_immovable(distribution):
      raise ValueError(
        f'{what}, which has no bijector from all of Rⁿ in TFP, as discrete '
        f'variables and mixtures have none. Pin it (`{name}=...`), sum it out, '
        'or, if it has a density on Rⁿ, pass the log density as a callable, '
        'with `init` and `bijectors`.'
      )
    if 'LKJ' in kind.split(' of '):
      raise ValueError(
        f'{what}, for which TFP has a bijector with a wrong log-determinant: '
        'the draws would have another distribution. Write it as a '
        '`tfd.CholeskyLKJ`, whose draws times their transposes are distributed '
        'as a `tfd.LKJ`.'
      )
    if _is_of_other_values(distribution):
      raise ValueError(
        f'{what} with `input_output_cholesky=True`: its draws are Cholesky '
        'factors, but its density is that of the matrices, so that the draws '
        'would have another distribution. Leave that out, and take '
        '`tf.linalg.cholesky` of it where the factor is needed.'
      )
    if _is_partly_reached(distribution):
      raise ValueError(
        f'{what}, and the bijector that TFP has for it does not reach all of '
        f'its values. {_way_out(kind)}pass a log density as a callable, with '
        '`bijectors`.'
      )
    fault = _fault_of_bijector(distribution)
    if fault is not None:
      raise ValueError(
        f'{what}, and the bijector that TFP has for it fails '
        f'({arguments.reason(fault)}). Pass a log density as a callable, with '
        '`init` and `bijectors`.'
      ) from fault
  dtypes = {
    name: dtype.name
    for name, dtype in by_name(model, model.dtype).items()
    if isinstance(dtype, tf.DType)
  }
  if len({*dtypes.values()}) > 1:
    shown = ', '.join(f'{name!r} of {dtypes[name]}' for name in dtypes)
    raise TypeError(
      f'`{of_model}` has the variables {shown}, but all that are not pinned '
      'must have one dtype: build the model in float32 or in float64.'
    )


def _drawn_distributions(model):
  """The distributions of the variables: where there are values, if it can."""
  seed = np.zeros([2], np.int32)
  try:
    with tf.init_scope():
      return model.sample_distributions(seed=seed)[0]
  except Exception:
    # A model that is made of Tensors of a graph.
    return model.sample_distributions(seed=seed)[0]


def _is_immovable(distribution):
  dtypes = tf.nest.flatten(distribution.dtype)
  if not all(tf.as_dtype(dtype).is_floating for dtype in dtypes):
    return True
  try:
    return distribution.experimental_default_event_space_bijector() is None
  except NotImplementedError:
    return True
  except Exception:
    # Not known; sampling will tell.
    return False


def _is_of_other_values(distribution):
  """Whether the density is not with respect to what is drawn."""
  return any(
    getattr(d, 'parameters', {}).get('input_output_cholesky')
    for d in _inward(distribution)
  )


def _is_partly_reached(distribution):
  """Whether the bijector of a distribution misses some of its values.

  Known of some distributions of TFP, and else looked for among draws: one that
  does not come back, although nothing on the way was large enough to overflow
  or to be rounded away, is not reached. Draws of a distribution that is nearly
  always reached cannot tell.
  """
  if any(
    _owner_of_bijector(d) in _PARTLY_REACHED for d in _inward(distribution)
  ):
    return True
  try:
    draws, free, back = _there_and_back(distribution)
  except NotImplementedError:
    return True  # There is no inverse, as of absolute values.
  except Exception:
    return False
  # Those of a wrong parameter are NaN, and say nothing.
  known = np.all(np.isfinite(draws), axis=1)
  if not np.any(known):
    return False
  draws, free, back = draws[known], free[known], back[known]
  sizes = np.abs(draws).max(axis=1, initial=0.0)
  with np.errstate(invalid='ignore'):
    errors = np.abs(draws - back)
    close = 0.01 * np.maximum(sizes, np.median(sizes))[:, np.newaxis]
    is_moderate = np.abs(free).max(axis=1, initial=0.0) < _MODERATE
    # What is zero, or nearly, has been rounded to the end of the support.
    is_inside = np.abs(draws).min(axis=1, initial=np.inf) > 1e-6 * sizes
    is_off = ~np.all(errors <= close, axis=1)
    is_far = ~np.all(errors <= 0.01 * sizes.max(), axis=1)
  is_nan = np.any(np.isnan(free), axis=1)
  is_lost = is_off & is_inside & (is_moderate | is_nan)
  return bool(np.any(is_lost)) or np.mean(is_far & ~is_nan) > 0.5


def _way_out(kind):
  if 'Wishart' in kind:
    return (
      'Make a class of it whose `_default_event_space_bijector` returns '
      '`tfb.Chain([tfb.CholeskyOuterProduct(), tfb.FillScaleTriL()])`, or '
    )
  if 'Truncated' in kind:
    return 'Give it two finite bounds, or '
  return (
    'Write it with another distribution (a direction, say, as a `tfd.Sample` '
    'of a `tfd.Normal`, divided by its norm), or '
  )


def _fault_of_bijector(distribution):
  """What the bijector of a distribution raises, or None."""
  if not tf.executing_eagerly():
    return None  # It may be made of Tensors of a graph.
  try:
    bijector = distribution.experimental_default_event_space_bijector()
    draw = distribution.sample(seed=tf.zeros([2], tf.int32))
    free = tf.nest.map_structure(tf.identity, bijector.inverse(draw))
    bijector.forward_log_det_jacobian(free)
  except Exception as e:
    return e
  return None


def _there_and_back(distribution):
  """Draws, what the bijector makes of them, and what leads back, as rows."""
  with tf.init_scope():
    bijector = distribution.experimental_default_event_space_bijector()
    sizes = [
      shape.num_elements()
      for shape in tf.nest.flatten(distribution.event_shape)
    ]
    num = int(np.clip(_MOST_NUMBERS // max(1, sum(sizes)), 16, _MOST_DRAWS))
    draws = distribution.sample(num, seed=tf.zeros([2], tf.int32))
    # Copies: a bijector remembers by identity what it computed elsewhere.
    free = tf.nest.map_structure(tf.identity, bijector.inverse(draws))
    back = bijector.forward(free)
    return [
      np.concatenate(
        [np.reshape(part, [num, -1]) for part in tf.nest.flatten(state)], axis=1
      )
      for state in (draws, free, back)
    ]


def _owner_of_bijector(distribution):
  """The name of the class that has written the bijector of a distribution."""
  return next(
    cls.__name__
    for cls in type(distribution).__mro__
    if '_default_event_space_bijector' in vars(cls)
  )


def _inward(distribution):
  """A distribution and those that it is made of, from the outermost inward."""
  while isinstance(distribution, tfp.distributions.Distribution):
    yield distribution
    distribution = getattr(distribution, 'parameters', {}).get('distribution')


def _kind(distribution):
  """The classes, from the outermost inward."""
  return ' of '.join(type(d).__name__ for d in _inward(distribution))
