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
"""arviz, where it is installed."""

import importlib
import warnings

__all__ = ['arviz_module']


def arviz_module(why):
  """Imports arviz.

  Args:
    why: Python `str`, who needs it: the beginning of the error message.

  Returns:
    The module.

  Raises:
    ImportError: if it is not installed; says how to install it.
  """
  try:
    with warnings.catch_warnings():
      # arviz 0.23 announces arviz 1; both are supported here.
      warnings.simplefilter('ignore', FutureWarning)
      return importlib.import_module('arviz')
  except ImportError as e:
    raise ImportError(
      f'{why} arviz, which cannot be imported ({e}): pip install '
      "'tfp-diag[arviz]'"
    ) from e
