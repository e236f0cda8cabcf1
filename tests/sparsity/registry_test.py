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
"""Tests the registry of rules."""

import ast
import inspect
import pathlib
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag import sparsity
from tfp_diag.diagonal import vectorize
from tfp_diag.sparsity import registry

OP = 'DrawBoundingBoxes'


def boxes(x):
  # An op without a rule; here of the images only.
  return tf.raw_ops.DrawBoundingBoxes(
    images=x, boxes=tf.zeros([x.shape[0], 1, 4])
  )


SPEC = tf.TensorSpec([1, 2, 1, 3])


def test_every_op_type_is_one_of_tensorflow():
  known = {*registry._RULES, *registry._EXPANSIONS, *registry._FACTS}
  for op_type in sorted(known):
    # Raises if there is none. Not all are in `tf.raw_ops`.
    tf.Graph().op_def_for_type(op_type)


def random_inputs(op_type):
  """Tensors for an op of a linear fact, and its other arguments."""
  numbers = [tf.random.stateless_normal([3, 1, 2], [k, 5]) for k in range(4)]
  if op_type == 'SelectV2':
    return [numbers[3] > 0, *numbers[:2]], {}
  if op_type == 'Einsum':
    return numbers[:2], {'equation': 'abc,dbc->ad'}
  if 'MatMul' in op_type:
    # [3, 1, 2] and [3, 2, 1], or [3, 2] and [2, 3].
    one, other = numbers[0], tf.transpose(numbers[1], [0, 2, 1])
    if 'Batch' not in op_type:
      one, other = one[:, 0], tf.transpose(other[..., 0])
    return [one, other], {'Tout': tf.float32} if op_type[-1] == '3' else {}
  more = {
    'BroadcastTo': ([[2, 3, 1, 2]], {}),
    'Cast': ([], {'DstT': tf.float64}),
    'Cumsum': ([0], {}),
    'ExpandDims': ([1], {}),
    'Mean': ([[0, 2]], {}),
    'Reshape': ([[2, 3]], {}),
    'Squeeze': ([], {}),
    'Sum': ([[0, 2]], {}),
    'Transpose': ([[2, 0, 1]], {}),
  }
  if op_type in more:
    rest, attributes = more[op_type]
    return [numbers[0], *rest], attributes
  count = 1 if op_type == 'Neg' else 2
  return [tf.abs(x) + 0.1 for x in numbers[:count]], {}


@pytest.mark.parametrize(
  'op_type', [t for t, known in registry._FACTS.items() if known.linear_in]
)
def test_linear_facts_hold(op_type):
  inputs, attributes = random_inputs(op_type)
  op = getattr(tf.raw_ops, op_type)
  names = [n for n in inspect.signature(op).parameters if n != 'name']

  def run(values, factor):
    replaced = [
      factor * value if k in which else value for k, value in enumerate(values)
    ]
    if op_type == 'Einsum':
      replaced = [replaced]
    return op(**dict(zip(names, replaced)), **attributes).numpy()

  for which in registry.facts(op_type).linear_in:
    others = [
      tf.reverse(v, [0]) if k in which else v for k, v in enumerate(inputs)
    ]
    both = [
      3 * v - 1000 * w if k in which else v
      for k, (v, w) in enumerate(zip(inputs, others))
    ]
    want = 3 * run(inputs, 1) - 1000 * run(others, 1)
    np.testing.assert_allclose(run(both, 1), want, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(run(inputs, 0), 0 * want)


def test_without_a_rule_an_op_is_dense_and_named():
  pattern = sparsity.jacobian_sparsity(boxes, SPEC)
  assert pattern.nnz == 36
  assert pattern.fallback_ops == (f"{OP} (op '{OP}')",)


def test_a_rule_of_the_user(no_rule_left_behind):
  @sparsity.register_rule(OP)
  def rule(op):
    assert op.inputs[0].depends and not op.inputs[1].depends
    assert op.inputs[1].value().shape == (1, 1, 4)
    return sparsity.Structure.linear(
      {0: sparsity.Flow.identity(op.outputs[0].size)}
    )

  assert callable(rule)
  pattern = sparsity.jacobian_sparsity(boxes, SPEC)
  np.testing.assert_array_equal(pattern.matrix.toarray(), np.eye(6))
  assert not pattern.fallback_ops
  assert not sparsity.hessian_sparsity(
    lambda x: tf.reduce_sum(boxes(x)), SPEC
  ).nnz


def test_rules_that_cannot_say(no_rule_left_behind):
  @sparsity.register_rule(OP)
  def rule(op):
    raise sparsity.CannotSay('anything about boxes')

  assert sparsity.jacobian_sparsity(boxes, SPEC).nnz == 36


def _of_wrong_shape(op):
  return sparsity.Structure.linear({0: sparsity.Flow.identity(5)})


def _of_wrong_type(op):
  return [op.outputs[0].size]


def _that_raises(op):
  return op.inputs[7]


@pytest.mark.parametrize(
  'rule', [_of_wrong_shape, _of_wrong_type, _that_raises]
)
def test_a_bug_in_a_rule_costs_the_structure_of_its_op_only(
  rule, no_rule_left_behind
):
  sparsity.register_rule(OP)(rule)

  def fn(x, y):
    return boxes(x), tf.exp(y)

  with pytest.warns(RuntimeWarning, match=f'The rule for {OP} raised') as seen:
    pattern = sparsity.jacobian_sparsity(fn, [SPEC, tf.TensorSpec([3])])
  assert len(seen) == 1
  expected = np.zeros([9, 9])
  expected[:6, :6] = 1
  expected[6:, 6:] = np.eye(3)
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)
  assert pattern.fallback_ops == (f"{OP} (op '{OP}')",)
  (note,) = pattern.notes
  assert note == str(seen[0].message)


@pytest.mark.parametrize('op_type', ['Exp', 'While'])
def test_an_op_type_has_one_rule(op_type):
  with pytest.raises(ValueError, match='has a rule already'):
    sparsity.register_rule(op_type)(lambda op: None)


@pytest.mark.parametrize('op_types', [(), (3,), (tf.exp,)])
def test_op_types_are_strings(op_types):
  with pytest.raises(ValueError, match='as strings'):
    sparsity.register_rule(*op_types)


def test_facts_beside_a_rule(no_rule_left_behind):
  assert registry.facts('MyOp') == registry.OpFacts()
  with pytest.warns(UserWarning, match="'MyOp', but TensorFlow has no such op"):
    sparsity.register_rule('MyOp', shape_inputs=(1,), is_pure=False)(
      lambda op: 0
    )
  known = registry.facts('MyOp')
  assert known.shape_inputs == (1,) and not known.is_pure
  registry.register_facts('MyOp', elementwise='c')
  assert registry.facts('MyOp').shape_inputs == (1,)
  assert registry.facts('MyOp').elementwise == 'c'


def test_a_fact_is_said_once(no_rule_left_behind):
  with pytest.raises(ValueError, match=r'is_loop.*already'):
    registry.register_facts('While', is_loop=False)
  with pytest.raises(TypeError, match='is_quick'):
    sparsity.register_rule(OP, is_quick=True)
  assert registry.find_rule(OP) is None


# Where a defect of TensorFlow is worked around.
EXCEPTIONS = {
  # The gradient of the gradient of a power is not a number at zero; the other
  # op has no gradient; nor have those of sums over sparse segments. Those of
  # segments divide by counts that may be zero.
  'sparsity/own_gradients.py': {
    'Pow',
    'SegmentMax',
    'SegmentMean',
    'SegmentMin',
    'SparseSegmentMean',
    'SparseSegmentSqrtN',
    'SparseSegmentSum',
    'UnsortedSegmentMax',
    'UnsortedSegmentMin',
    'XlaDynamicUpdateSlice',
  },
  # What pfor gets wrong, what serves for one of these, and what it lacks.
  'diagonal/vectorize.py': {
    *vectorize._CORRECTED,
    *vectorize._COMPLETED,
    'TensorListStack',
    *vectorize._CONVERTERS,
  },
}


# Ops of XLA, which `tf.raw_ops` leaves out.
OTHER_OPS = {'XlaDynamicUpdateSlice'}


def test_op_names_stand_among_the_rules_only():
  root = pathlib.Path(tfp_diag.__file__).parent
  found = {}
  for path in root.rglob('*.py'):
    if path.parent != root / 'sparsity' / 'rules':
      names = op_names_in(ast.parse(path.read_text(encoding='utf-8')))
      if names:
        found[path.relative_to(root).as_posix()] = names
  assert found == EXCEPTIONS


def op_names_in(tree):
  """The types of ops among the strings, but for names that are exported."""
  exported = {
    name
    for node in ast.walk(tree)
    if isinstance(node, ast.Assign)
    and getattr(node.targets[0], 'id', None) == '__all__'
    for name in ast.walk(node.value)
  }
  return {
    node.value
    for node in ast.walk(tree)
    if isinstance(node, ast.Constant)
    and isinstance(node.value, str)
    and node not in exported
    and node.value[:1].isupper()
    and (hasattr(tf.raw_ops, node.value) or node.value in OTHER_OPS)
  }


def test_a_fact_that_there_is_not():
  with pytest.raises(
    TypeError, match=r"`lineer_in` is .* Did you .*'linear_in"
  ):
    sparsity.register_rule(OP, lineer_in=((0, 1),))


def test_an_op_type_that_there_is_not_gets_a_warning(no_rule_left_behind):
  with pytest.warns(UserWarning, match="'MatMull'.*'MatMul'") as seen:
    sparsity.register_rule('MatMull')(lambda op: None)
  assert [w.filename for w in seen] == [__file__]
  # A custom op may be loaded later.
  assert registry.find_rule('MatMull') is not None


@pytest.mark.parametrize('op_type', [OP, 'XlaSharding', '_Retval'])
def test_an_op_type_that_there_is_gets_none(op_type, no_rule_left_behind):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    sparsity.register_rule(op_type)(lambda op: None)


def test_what_cannot_be_vectorized_is_written_out(
  no_rule_left_behind, without_sweeps
):
  def chain(x):
    return -tf.reduce_sum(tf.exp(-((x[1:] - x[:-1]) ** 2)))

  def schedule():
    return tfp_diag.plan_diag_hessian(chain, tf.TensorSpec([3000])).schedule

  assert schedule() == 'pfor'
  registry.register_facts('StridedSlice', vectorizes=False)
  assert schedule() == 'unrolled'
