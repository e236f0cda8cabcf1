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
"""States and chains that are spread over the replicas of a strategy.

A strategy of `tf.distribute` has one axis, that of its replicas, so that the
name of an axis says no more than that something is spread.
"""

import tensorflow as tf


def chain_shard(axis_names):
  """Which slice of the chains this replica has.

  Args:
    axis_names: The name of the chain axis, or None if chains are not spread.

  Returns:
    int32 scalar Tensor, or None.
  """
  if not axis_names:
    return None
  context = tf.distribute.get_replica_context()
  return tf.cast(context.replica_id_in_sync_group, tf.int32)


def fold_in_shard(seed, axis_name):
  """Gives each replica a seed of its own, for a sharded part.

  Args:
    seed: int32 Tensor of shape [2].
    axis_name: The name of the shard axis, or None for a part that all share.

  Returns:
    int32 Tensor of shape [2].
  """
  shard = chain_shard(axis_name)
  if shard is None:
    return seed
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


def gather_over_shards(x):
  """Puts the rows of all replicas below each other, in their order.

  Args:
    x: Tensor of shape [rows, ...], as many rows on each replica.

  Returns:
    Tensor of shape [replicas * rows, ...], the same on all replicas.
  """
  return tf.distribute.get_replica_context().all_gather(x, axis=0)
