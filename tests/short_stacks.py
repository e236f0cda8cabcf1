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
"""What TensorFlow keeps of each op of a graph for its error messages."""

from tensorflow.python.util import tf_stack


def keep_short_stacks():
  """All ops are said to be made here, wherever that is.

  Below pytest a stack has a hundred frames, which are read for each op. Where
  the place of an op matters, leave out the call.
  """
  here = tf_stack.extract_stack()[-1:]
  tf_stack.extract_stack = lambda *_, **__: here
