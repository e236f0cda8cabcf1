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
"""Tests the walk: what is constant, what is unknown, what is forgotten."""

import importlib
import re
import textwrap
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.sparsity import (
  evaluation,
  hessian_sparsity,
  interpreter,
  jacobian_sparsity,
)
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.interpreter import Walker
from tfp_diag.sparsity.value import Value

SPEC = tf.TensorSpec([3])


def nonzeros(fn, *specs):
  return jacobian_sparsity(fn, list(specs or [SPEC])).matrix.toarray()


def test_constants_are_evaluated_only_when_asked_for():
  def fn(x):
    # Would fail if it were evaluated.
    tf.linalg.cholesky(-tf.eye(2))
    index = tf.argsort(tf.constant([2.0, 0.0, 1.0]))
    # NaN; above the diagonal TensorFlow leaves what was in the memory.
    return tf.gather(x, index) * tf.linalg.cholesky(-tf.eye(3))[2]

  np.testing.assert_array_equal(nonzeros(fn), np.eye(3)[[1, 2, 0]])


def test_long_chains_of_constants():
  def fn(x):
    index = tf.constant(0)
    for _ in range(3000):
      index = (index + 1) % 3
    return x[index]

  np.testing.assert_array_equal(nonzeros(fn), [[1, 0, 0]])


def test_ops_with_a_list_among_their_results():
  def fn(x):
    ragged = tf.RaggedTensor.from_row_lengths(x, [2, 1])
    gathered = tf.gather(ragged, [1, 0, 1])
    return tf.reduce_sum(tf.concat([gathered, ragged], 0).flat_values ** 2)

  assert hessian_sparsity(fn, SPEC).matrix.shape == (3, 3)


def test_random_numbers_are_not_constants():
  def fn(x):
    return x * tf.cast(tf.random.uniform([3]) > 2.0, tf.float32)

  np.testing.assert_array_equal(nonzeros(fn), np.eye(3))

  def picked(x):
    return tf.gather(x, tf.random.uniform([1], 0, 3, tf.int32))

  np.testing.assert_array_equal(nonzeros(picked), [[1, 1, 1]])


def test_captured_tensors_are_constants():
  index = tf.constant([2, 0])
  np.testing.assert_array_equal(
    nonzeros(lambda x: tf.gather(x, index)), [[0, 0, 1], [1, 0, 0]]
  )


def test_tensors_of_a_surrounding_graph_are_unknown():
  found = []

  @tf.function(autograph=False)
  def surrounding(index):
    found.append(nonzeros(lambda x: tf.gather(x, index)))
    found.append(nonzeros(lambda x: x * tf.cast(index[0], tf.float32)))
    return index

  surrounding(tf.constant([1]))
  np.testing.assert_array_equal(found[0], [[1, 1, 1]])
  np.testing.assert_array_equal(found[1], np.eye(3))


def test_integers_have_no_derivative():
  def fn(x):
    return x * tf.cast(tf.cast(10 * x[::-1], tf.int32), tf.float32)

  np.testing.assert_array_equal(nonzeros(fn), np.eye(3))


def test_dense_means_what_the_inputs_depend_on():
  def fn(x):
    image = tf.reshape(x[:2], [1, 2, 1, 1])
    return tf.image.draw_bounding_boxes(image, tf.zeros([1, 1, 4]), [[1.0]])

  pattern = jacobian_sparsity(fn, tf.TensorSpec([4]))
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), [[1, 1, 0, 0], [1, 1, 0, 0]]
  )
  second = hessian_sparsity(lambda x: tf.reduce_sum(fn(x)), tf.TensorSpec([4]))
  assert second.nnz == 4
  assert second.fallback_ops == pattern.fallback_ops


def test_shapes_that_the_graph_does_not_know():
  def fn(x):
    kept = tf.boolean_mask(x, tf.constant([True, False, True]))
    return tf.ensure_shape(kept * kept, [2])

  pattern = jacobian_sparsity(fn, SPEC)
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), [[1, 0, 0], [0, 0, 1]]
  )

  def by_value(x):
    return tf.reduce_sum(tf.boolean_mask(x, x > 0.5) ** 2)

  np.testing.assert_array_equal(
    hessian_sparsity(by_value, SPEC).matrix.toarray(), np.ones([3, 3])
  )


MASK = np.array([True, False, True, True])


def of_kept(fn):
  return lambda mask: lambda x: fn(tf.boolean_mask(x, mask, axis=1))


@pytest.mark.parametrize('kind', [np.array, tf.constant])
@pytest.mark.parametrize(
  'function, is_separable',
  [
    (of_kept(lambda y: tf.reduce_logsumexp(y, -1)), False),
    (of_kept(lambda y: tf.reduce_max(y, -1) * y[:, 0]), False),
    (of_kept(lambda y: tf.reduce_sum(tf.where(y > 0, y**2, y), -1)), True),
    (of_kept(lambda y: tf.reduce_sum(y**2 * tf.stop_gradient(y), -1)), True),
    (
      of_kept(lambda y: tf.reduce_sum(tf.exp(y + tf.zeros_like(y)), -1)),
      True,
    ),
    (
      lambda mask: (
        lambda x: tf.reduce_sum(
          tf.exp(tf.gather(x, tf.where(mask)[:, 0], axis=1)), -1
        )
      ),
      True,
    ),
    (
      lambda mask: (
        lambda x: tf.reduce_sum(
          tf.nn.softplus(tf.repeat(x, tf.cast(mask, tf.int32), axis=1)), -1
        )
      ),
      True,
    ),
    (
      lambda mask: (
        lambda x: tf.reduce_sum(
          tf.exp(tf.dynamic_partition(tf.transpose(x), [1, 0, 1, 1], 2)[1]), 0
        )
      ),
      True,
    ),
  ],
)
def test_ops_after_a_shape_that_the_graph_does_not_know(
  function, is_separable, kind
):
  fn = function(kind(MASK))
  spec = tf.TensorSpec([3, 4], tf.float64)
  first = jacobian_sparsity(fn, spec, [3])
  second = hessian_sparsity(fn, spec)
  assert not first.fallback_ops and not second.fallback_ops
  np.testing.assert_array_equal(first.matrix.toarray(), [MASK])
  wanted = np.outer(MASK, MASK)
  if is_separable:
    wanted &= np.eye(4, dtype=bool)
  found = second.matrix.toarray()
  np.testing.assert_array_equal(found & ~wanted, False)
  x = tf.constant(np.random.default_rng(0).normal(size=[3, 4]))
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
      inner.watch(x)
      value = fn(x)
    columns = tf.unstack(inner.gradient(value, x), axis=1)
  for j, column in enumerate(columns):
    row = outer.gradient(column, x, unconnected_gradients='zero')
    nonzero = (row.numpy() != 0).any(0)
    assert not (nonzero & ~found[j]).any()


def test_constants_whose_shape_the_graph_does_not_know():
  numbers = tf.constant([2.0, 3.0, 4.0, 5.0])

  def fn(x):
    return tf.exp(tf.concat([x, tf.boolean_mask(numbers, MASK)], 0))

  np.testing.assert_array_equal(nonzeros(fn), np.eye(6)[:, :3])


def test_side_effects_are_noted():
  counter = tf.Variable(0.0)

  def fn(x):
    counter.assign_add(1.0)
    return x * counter

  (note,) = jacobian_sparsity(fn, SPEC).notes
  assert 'AssignAddVariableOp' in note


def test_a_walk_forgets_what_it_does_not_need():
  graph = trace(
    lambda parts: tf.exp(tf.sin(parts[0])) + parts[0], lambda y, _: [y], [SPEC]
  )
  walker = Walker(graph)
  x = Value((3,), tf.float32, depends=True)
  (y,) = walker.walk([x])
  assert [step.op_type for step in walker.tape.steps] == ['Sin', 'Exp', 'AddV2']
  from tfp_diag.sparsity.dependency import Dependency
  from tfp_diag.sparsity.groups import Groups

  left = walker.tape.run({x: Dependency.identity(3)}, [y], Groups(3))
  assert list(left) == [y]


@pytest.mark.parametrize(
  'name', ['detect', 'flow', 'registry', 'structure', 'dependency']
)
def test_examples_in_docstrings_run(name, no_rule_left_behind):
  module = importlib.import_module(f'tfp_diag.sparsity.{name}')
  for value in vars(module).values():
    if getattr(value, '__module__', None) != module.__name__:
      continue
    for block in re.findall(
      r'```python\n(.*?)```', value.__doc__ or '', re.DOTALL
    ):
      # Python 3.13 takes the indentation of docstrings away.
      exec(textwrap.dedent(block), dict(vars(module)))


@pytest.mark.parametrize('is_written_out', [False, True])
def test_shapes_within_a_loop_are_inferred_once(is_written_out, monkeypatch):
  def count(num_iterations):
    inferred = []
    infer = evaluation._inferred
    with monkeypatch.context() as patch:
      patch.setattr(
        evaluation,
        '_inferred',
        lambda op, *rest: inferred.append(op) or infer(op, *rest),
      )

      def fn(x):
        noise = tf.random.stateless_uniform(tf.shape(x), [1, 2])

        def step(i, y):
          first = tf.tile(x[:, :1], [1, tf.shape(x)[1]])
          return i + 1, y * tf.sin(x) + tf.exp(noise) * first

        if is_written_out:
          y = x
          for i in range(num_iterations):
            _, y = step(i, y)
        else:
          _, y = tf.while_loop(lambda i, y: i < num_iterations, step, (0, x))
        return tf.reduce_sum(y, -1)

      jacobian_sparsity(fn, tf.TensorSpec([None, 4]), sample_shape=[None])
    return len(inferred)

  assert count(3) == count(12) > 0


def test_a_turn_of_a_loop_does_not_go_through_its_lists(monkeypatch):
  """Their items are asked for derivatives where there are cotangents alone."""
  asked = []
  is_index = interpreter._is_index
  monkeypatch.setattr(
    interpreter, '_is_index', lambda v: asked.append(v) or is_index(v)
  )

  def fn(x):
    return tf.map_fn(lambda sample: sample * tf.reduce_sum(sample), x)

  plan = tfp_diag.plan_diag_jacobian(fn, tf.ones([9, 3]), sample_shape=[9])
  assert plan.num_passes == 3
  assert not asked


def test_shapes_of_ops_that_differ_in_an_attribute_alone():
  def fn(x):
    y = tf.boolean_mask(x, tf.constant([True, False, True]))
    whole, rows = (tf.reduce_sum(y, 1, keepdims=k) for k in (False, True))
    return tf.concat([whole, tf.reshape(tf.concat([rows, y], 1), [-1])], 0)

  dense = np.zeros([8, 3, 2], bool)
  dense[0, 0] = dense[2, 0] = dense[1, 2] = dense[5, 2] = True
  dense[3, 0, 0] = dense[4, 0, 1] = dense[6, 2, 0] = dense[7, 2, 1] = True
  found = nonzeros(fn, tf.TensorSpec([3, 2]))
  np.testing.assert_array_equal(found, dense.reshape([8, 6]))


def test_constants_are_evaluated_in_a_graph_of_tensorflow_1():
  """There `tf.init_scope` does not lead to eager mode."""
  with tf.Graph().as_default(), warnings.catch_warnings():
    warnings.simplefilter('error')
    x = tf.compat.v1.placeholder(tf.float64, [None, 3])
    diag = tfp_diag.diag_hessian(
      lambda x: tf.reduce_prod(x, -1) - tf.reduce_sum(x**4, -1), x
    )[2]
    _, (of_rows,) = tfp_diag.diag_jacobian(
      x,
      fn=lambda x: x**3 * tf.reduce_sum(x, -1, keepdims=True),
      sample_shape=tf.shape(x)[:1],
    )
    with tf.compat.v1.Session() as session:
      found = session.run([diag, of_rows], {x: [[1.0, 2.0, 3.0]]})
  np.testing.assert_allclose(found, [[[-12, -48, -108]], [[19, 80, 189]]])
