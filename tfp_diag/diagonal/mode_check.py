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
"""Whether forward mode can be trusted with a function.

Forward mode transposes the vector-Jacobian product. Where a gradient is not
linear in its cotangent, one that clips it say, that is another map.
"""

import numpy as np
import tensorflow as tf

from tfp_diag.internal import evaluate, nest, passes, validation

__all__ = ['forward_obstacle']


def forward_obstacle(kind, fn, xs):
  """Compares the modes on one random pair; why forward cannot be used, or None.

  Args:
    kind: 'jacobian' or 'hessian'.
    fn: Python callable.
    xs: The state. Where it has no values, normal ones are drawn.

  Returns:
    Python str or None.
  """
  if not tf.executing_eagerly():
    return 'it cannot be checked while a graph is built'
  rng = np.random.default_rng(0)

  def normal(x):
    shape = [2 if size is None else size for size in x.shape]
    return tf.cast(rng.standard_normal(shape), x.dtype)

  parts = nest.flatten(xs)
  is_closure = nest.takes_variables(fn, parts)
  if not is_closure:
    parts = [
      normal(x) if isinstance(x, tf.TensorSpec) else tf.convert_to_tensor(x)
      for x in parts
    ]

  u, v = ([normal(p) for p in parts] for _ in range(2))

  # As a graph, which is what a plan runs as; the eager gradients of a function
  # that calls other graphs take ten times as long.
  @tf.function(autograph=False)
  def products(*tensors):
    state = parts if is_closure else list(tensors)

    def call():
      return nest.call_traceable(
        fn, [] if is_closure else nest.pack_as(xs, state)
      )

    def outputs():
      if kind == 'jacobian':
        return evaluate.align(call(), state)
      return passes.value_and_gradient(call, state)

    _, forward, reverse = passes.linearize_both(outputs, state)
    return _product(forward, v, u), _product(reverse, u, v)

  try:
    (forward, size), (reverse, other_size) = tf.nest.map_structure(
      float, products(*([] if is_closure else parts))
    )
  except Exception as e:
    reason = str(e).strip().splitlines()
    return f'it fails ({type(e).__name__}: {reason[0] if reason else ""})'
  if not np.isfinite(forward) or not np.isfinite(reverse):
    return 'it could not be checked, the derivative is not finite at this point'
  tolerance = max(validation.tolerance(p.dtype) for p in parts)
  if abs(forward - reverse) > tolerance * max(size, other_size):
    return 'the two disagree, some gradient is not linear in its cotangent'
  return None


def _product(linear_map, seeds, others):
  """The inner product of one pass with `others`, and the size of its terms."""
  results = linear_map.apply(list(range(len(seeds))), seeds)
  terms = [
    tf.cast(r, tf.float64) * tf.cast(o, tf.float64)
    for r, o in zip(results, others)
    if r is not None
  ]
  zero = tf.zeros([], tf.float64)
  return (
    sum([tf.reduce_sum(t) for t in terms], zero),
    sum([tf.reduce_sum(tf.abs(t)) for t in terms], zero),
  )
