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
"""The examples in the docstrings run, and give what they say."""

import ast
import inspect
import re
import textwrap

import pytest

from tfp_diag.examples import gaussian, targets
from tfp_diag.mcmc import PreconditionedMALA


@pytest.mark.parametrize(
  'documented', [PreconditionedMALA, gaussian.Gaussian, targets.get]
)
def test_examples(documented):
  blocks = re.findall(
    r'```python\n(.*?)```', inspect.getdoc(documented), re.DOTALL
  )
  assert blocks
  names = {}
  num_results = 0
  for block in blocks:
    block = textwrap.dedent(block)
    exec(block, names)
    for expression, result in re.findall(r'^(.*?)  # ==> (.*)$', block, re.M):
      assert list(eval(expression, names)) == ast.literal_eval(result)
      num_results += 1
  assert num_results > 0
