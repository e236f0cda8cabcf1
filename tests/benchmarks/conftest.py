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
"""What the tests of the benchmarks share."""

import pytest
import tensorflow as tf


@pytest.fixture
def without_xla(monkeypatch):
  """Of runs that measure nothing, compiling would be most of the time."""
  function = tf.function

  def uncompiled(*args, jit_compile=None, **kwargs):
    del jit_compile
    return function(*args, **kwargs)

  monkeypatch.setattr(tf, 'function', uncompiled)
