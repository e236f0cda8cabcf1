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
"""An oracle for rules: derivatives by differences, in double precision."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity import registry
from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity


def traced_op_types(fn, specs):
  graph = tf.function(fn, autograph=False).get_concrete_function(*specs).graph
  definition = graph.as_graph_def()
  nodes = list(definition.node)
  for function in definition.library.function:
    nodes.extend(function.node_def)
  return {node.op for node in nodes}


def flat_function(fn, shapes):
  compiled = tf.function(
    lambda *xs: tf.concat(
      [
        tf.reshape(tf.cast(y, tf.float64), [-1])
        for y in tf.nest.flatten(fn(*xs))
        if y.dtype.is_floating
      ],
      0,
    ),
    autograph=False,
  )

  def one(flat):
    parts = tf.split(flat, [int(np.prod(shape)) for shape in shapes])
    return compiled(*[tf.reshape(p, s) for p, s in zip(parts, shapes)])

  many = tf.function(lambda points: tf.map_fn(one, points))

  def call(points):
    return many(tf.constant(points, tf.float64)).numpy()

  return call, sum(int(np.prod(shape)) for shape in shapes)


def jacobian_by_differences(f, x, step):
  shifts = step * np.eye(len(x))
  return ((f(x + shifts) - f(x - shifts)) / (2 * step)).T


def hessian_by_differences(f, x, weights, step=1e-3):
  n = len(x)
  a, b = [step * np.eye(n)[k] for k in np.tril_indices(n)]
  d = f(x + a + b) - f(x + a - b) - f(x - a + b) + f(x - a - b)
  hessian = np.zeros((n, n))
  hessian[np.tril_indices(n)] = d @ weights / (4 * step**2)
  return hessian + hessian.T


def check_rule(
  op_type,
  fn,
  *shapes,
  low=0.3,
  high=0.9,
  exact=True,
  exact_second=True,
  second=True,
  step=1e-6,
  fallback=False,
):
  """Compares the patterns of `fn` with differences at two random points.

  The patterns must contain every nonzero; `exact` says that they must not
  contain more (Jacobian), `exact_second` likewise (Hessian of a random
  weighted sum of the outputs).
  """
  specs = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
  if op_type is not None:
    assert op_type in traced_op_types(fn, specs)

  def real_outputs(*xs):
    return [y for y in tf.nest.flatten(fn(*xs)) if y.dtype.is_floating]

  pattern = jacobian_sparsity(real_outputs, specs)
  if fallback is not None:
    assert bool(pattern.fallback_ops) == fallback, pattern.fallback_ops
  found = pattern.matrix.toarray()
  f, size = flat_function(real_outputs, shapes)
  rng = np.random.default_rng(0)
  points = [rng.uniform(low, high, size) for _ in range(2)]
  true = np.zeros_like(found)
  for x in points:
    true |= np.abs(jacobian_by_differences(f, x, step)) > max(step, 1e-6)
  assert found.shape == true.shape
  assert not (true & ~found).any(), 'The Jacobian has a nonzero that is missed.'
  if exact:
    np.testing.assert_array_equal(found, true)
  if not second:
    return
  weights = rng.uniform(0.5, 1.5, len(true))

  def weighted(*xs):
    flat = [tf.reshape(y, [-1]) for y in real_outputs(*xs)]
    return tf.linalg.tensordot(
      tf.constant(weights), tf.concat(flat, 0), [[0], [0]]
    )

  found = hessian_sparsity(weighted, specs).matrix.toarray()
  true = np.zeros_like(found)
  for x in points:
    true |= np.abs(hessian_by_differences(f, x, weights)) > 1e-4
  assert not (true & ~found).any(), 'The Hessian has a nonzero that is missed.'
  if exact_second:
    np.testing.assert_array_equal(found, true)


@pytest.fixture(name='check_rule')
def check_rule_fixture():
  return check_rule


@pytest.fixture
def op_types_of():
  """The op types that a module of rules registers."""

  def find(module):
    tables = {**registry._RULES, **registry._EXPANSIONS}
    return {
      t for t, rule in tables.items() if rule.__module__ == module.__name__
    }

  return find
