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
"""The examples in the docstrings of the Jacobian family give what they say."""

import inspect
import re
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag

DOCUMENTED = [
  'LazyHessian',
  'LazyJacobian',
  'diag_hessian_over_dataset',
  'hessian',
  'jacobian',
  'stochastic_diag_hessian',
  'stochastic_diag_jacobian',
  'trace_jacobian_exact',
  'trace_jacobian_hutchinson',
]


@pytest.mark.parametrize('name', DOCUMENTED)
def test_examples(name):
  text = inspect.getdoc(getattr(tfp_diag, name))
  names = {'np': np, 'tf': tf, 'tfp_diag': tfp_diag}
  names[name] = getattr(tfp_diag, name)
  num_results = 0
  for block in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
    # Each result is checked where it stands; later lines may change names.
    *pieces, rest = re.split(r'\n# ==> (.*)\n', textwrap.dedent(block))
    for code, result in zip(pieces[::2], pieces[1::2]):
      *lines, expression = code.splitlines()
      exec('\n'.join(lines), names)
      actual, expected = eval(expression, names), eval(result, names)
      assert isinstance(actual, tuple) == isinstance(expected, tuple)
      if not isinstance(actual, tuple):
        actual, expected = [actual], [expected]
      for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)
      num_results += 1
    exec(rest, names)
  assert num_results > 0
