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

import tensorflow as tf
import tensorflow_probability as tfp

__all__ = ['ParameterizedKernel', 'argument']


class ParameterizedKernel(tfp.mcmc.TransitionKernel):
  """A kernel that is its constructor's arguments, and nothing besides.

  `type(kernel)(**kernel.parameters)` makes it again, which is what TFP's
  meta-kernels rely on.
  """

  # The prefix of op names where no `name` is given.
  _default_name = 'transition_kernel'

  def __init__(self, **parameters):
    """Keeps the arguments.

    Args:
      **parameters: The keyword arguments of the subclass's constructor.
    """
    self._parameters = parameters

  @property
  def parameters(self):
    """The constructor's keyword arguments and their values."""
    return self._parameters

  @property
  def name(self):
    """The prefix of op names."""
    return self._parameters['name']

  def _scope(self, method):
    """The name scope of a method."""
    return tf.name_scope(f'{self.name or self._default_name}_{method}')


def argument(name, doc):
  """A property that reads an argument of the constructor.

  Args:
    name: Python `str`, the argument's.
    doc: Python `str`, the property's docstring.

  Returns:
    A `property`, for the body of a `ParameterizedKernel`.
  """
  return property(lambda kernel: kernel.parameters[name], doc=doc)
