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
"""What the transition kernels share: arguments that can be read again."""

from typing import Any, Generic, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.internal import arguments
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.seeds import as_seed
from tfp_diag.internal.text_table import as_html

Results = TypeVar('Results')


class ParameterizedKernel(tfp.mcmc.TransitionKernel, Generic[Results]):
  """A kernel that is determined by the arguments of its constructor.

  `type(kernel)(**kernel.parameters)` makes it again, which is what TFP's
  meta-kernels rely on. A subclass has `_bootstrap_results` and `_one_step`, the
  latter of results that were checked.
  """

  # The prefix of op names where no `name` is given.
  _default_name: str
  _results_type: type[Results]

  def __init__(self, parameters):
    """Keeps the arguments.

    Args:
      parameters: Dict of the arguments of the subclass's constructor, its
        `locals()`: what Python adds to these is left out.
    """
    arguments.check_name(parameters['name'])
    self._parameters = {
      name: value
      for name, value in parameters.items()
      if name not in ('self', '__class__')
    }

  @property
  def parameters(self):
    """The constructor's keyword arguments and their values."""
    return self._parameters

  @property
  def name(self):
    """The prefix of op names."""
    return self._parameters['name']

  @property
  def is_calibrated(self):
    """True: the target is invariant, once a kernel that learns has learned."""
    return True

  @not_converted
  def bootstrap_results(self, init_state: Any) -> Results:
    """Evaluates the target at the start.

    A kernel that learns begins with what it was made with, or the identity.

    Args:
      init_state: Tensor or list of Tensors, the parts of the state, of leading
        chain shape: the shape of the target log density. For a full matrix the
        event shapes must be static.

    Returns:
      Kernel results, of the class that is called like the kernel, with
      `Results` behind its name.

    Raises:
      TypeError: if there is a kernel inside that does not fit.
      ValueError: if a shape or the scale of a kernel inside does not fit, or
        if, in eager mode, the target, its gradient or the volatility cannot be
        used at `init_state`.
    """
    with self._scope('bootstrap_results'):
      return self._bootstrap_results(init_state)

  @not_converted
  def one_step(
    self, current_state: Any, previous_kernel_results: Any, seed: Any = None
  ) -> tuple[Any, Results]:
    """Takes a step, and learns from it if this kernel learns.

    Args:
      current_state: Tensor or list of Tensors, the parts of the state.
      previous_kernel_results: What the last call, or `bootstrap_results`,
        returned.
      seed: PRNG seed; see `tfp.random.sanitize_seed`.

    Returns:
      next_state: The next state, in the structure of `current_state`.
      kernel_results: As of `bootstrap_results`.

    Raises:
      TypeError: if `previous_kernel_results` is not what this kernel returns.
      ValueError: if the state is not the one that they belong to, or `seed` is
        not a valid seed.
    """
    with self._scope('one_step'):
      previous = as_results(self._results_type, previous_kernel_results)
      return self._one_step(current_state, previous, seed)

  def copy(self, **override_parameter_kwargs):
    """A kernel like this one, with other values of some arguments.

    Args:
      **override_parameter_kwargs: Keyword arguments of the constructor.

    Returns:
      A kernel of this class.

    Raises:
      TypeError: if the constructor has no such argument.
    """
    for name in override_parameter_kwargs:
      arguments.check_known(
        name,
        self.parameters,
        f'is not one of the arguments of {type(self).__name__}',
      )
    return type(self)(**{**self.parameters, **override_parameter_kwargs})

  def __repr__(self):
    """The class and the arguments that were given, each in a few words."""
    given = ', '.join(
      f'{name}={_in_short(value)}'
      for name, value in self.parameters.items()
      if value is not None
    )
    return f'{type(self).__name__}({given})'

  def _repr_html_(self):
    return as_html(repr(self))

  def _scope(self, method):
    """The name scope of a method."""
    return tf.name_scope(f'{self.name or self._default_name}_{method}')


def _in_short(value):
  if callable(value) and not isinstance(value, tf.Module):
    return getattr(value, '__name__', type(value).__name__)
  if isinstance(value, tf.linalg.LinearOperator):
    return f'<{type(value).__name__} {value.shape}>'
  if tf.is_tensor(value) and not value.shape.rank:
    known = tf.get_static_value(value)
    return 'Tensor' if known is None else f'{float(known):g}'
  return arguments.shown(value)


class Argument(property):
  """A property of a `ParameterizedKernel`: the argument of the same name."""

  def __init__(self, doc: str) -> None:
    """Initializes the property.

    Args:
      doc: Python `str`, its docstring.
    """
    super().__init__(doc=doc)

  def __set_name__(self, owner: type, name: str) -> None:
    """Takes note of the name."""
    self._name = name

  def __get__(self, kernel: Any, owner: type | None = None) -> Any:
    """What the kernel was made with."""
    return self if kernel is None else kernel.parameters[self._name]


def as_results(kind, given):
  """Kernel results with Tensors in the place of NumPy arrays.

  Args:
    kind: The class that they must have.
    given: What `one_step` was given.

  Returns:
    A `kind`.

  Raises:
    TypeError: if they are something else.
  """
  if not isinstance(given, kind):
    raise TypeError(
      f'`previous_kernel_results` is {arguments.shown(given)}, but must be a '
      f'{kind.__name__}: what `bootstrap_results` or the last `one_step` has '
      'returned.'
    )
  return tf.nest.map_structure(
    lambda x: (
      tf.convert_to_tensor(np.asarray(x))
      if isinstance(x, (np.ndarray, np.generic))
      else x
    ),
    given,
  )


def checked_seed(seed, salt):
  """Converts the seed of a step, by `tfp.random.sanitize_seed`.

  Equal Tensors give equal results. Of a Python `int`, each eager call in a
  process gives another one, as in all kernels of TFP.

  Args:
    seed: What `one_step` was given: None, a Python `int`, or an integer Tensor
      of shape [2].
    salt: Python `str`, which is mixed in.

  Returns:
    int32 Tensor of shape [2].
  """
  as_seed(seed)  # Refuses what is no seed.
  return tfp.random.sanitize_seed(seed, salt=salt)


def check_axis_name(name, value):
  """Refuses what is no name of an axis of replicas.

  Args:
    name: Python `str`, the argument.
    value: What was given: a `str`, or a list of them, or None.

  Raises:
    TypeError: if it is something else.
  """
  if value is None:
    return
  if not all(isinstance(v, str) for v in tf.nest.flatten(value)):
    raise TypeError(
      f'`{name}` is {arguments.shown(value)}, but must be the name of an axis '
      'of replicas, a str, or None.'
    )


def check_kernel(name, value):
  """Refuses what is no transition kernel.

  Args:
    name: Python `str`, the argument.
    value: What was given.

  Raises:
    TypeError: if it is something else, or the class of one.
  """
  if not isinstance(value, tfp.mcmc.TransitionKernel):
    raise TypeError(
      f'`{name}` is {arguments.shown(value)}, but must be a transition kernel, '
      'an instance of a `tfp.mcmc.TransitionKernel`, like '
      '`tfp_diag.mcmc.PreconditionedMALA(target_log_prob_fn, step_size=0.1)`.'
    )
