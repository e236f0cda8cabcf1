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
"""States whose members are spread over the replicas of a strategy."""

import tensorflow as tf

__all__ = ['fold_in_shard', 'sum_over_shards']


def fold_in_shard(seed, axis_name):
  """Gives each replica a seed of its own, for a sharded part.

  Args:
    seed: int32 Tensor of shape [2].
    axis_name: The name of the shard axis, or None for a part that all share.

  Returns:
    int32 Tensor of shape [2].
  """
  if not axis_name:
    return seed
  context = tf.distribute.get_replica_context()
  shard = tf.cast(context.replica_id_in_sync_group, tf.int32)
  return tf.random.fold_in(seed, shard, alg='philox')


def sum_over_shards(x, axis_name):
  """Adds up the contributions of all replicas, for a sharded part.

  Args:
    x: Tensor of the chain shape.
    axis_name: The name of the shard axis, or None for a part that all share.

  Returns:
    Tensor of the chain shape.
  """
  if not axis_name:
    return x
  context = tf.distribute.get_replica_context()
  return context.all_reduce(tf.distribute.ReduceOp.SUM, x)
