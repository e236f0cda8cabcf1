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
"""Plans as values: what they say, refuse, keep, and how often they trace."""

import copy
import dataclasses
import io
import json
import os
import pickle
import warnings
import zipfile

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.diagonal import graphs

pytestmark = pytest.mark.usefixtures('without_sweeps')


def chain(x):
  """Log density of a chain: a tridiagonal Hessian."""
  return -tf.reduce_sum(tf.cosh(x[..., 1:] - 0.9 * x[..., :-1]), axis=-1)


def chain_curvature(x):
  second = np.cosh(x[..., 1:] - 0.9 * x[..., :-1])
  curvature = np.zeros(x.shape)
  curvature[..., 1:] -= second
  curvature[..., :-1] -= 0.81 * second
  return curvature


def dense(x):
  return tf.sin(tf.reduce_sum(x, axis=-1)) * tf.reduce_sum(x**2, axis=-1)


def ring(x):
  """Each coordinate meets the next one."""
  return x**2 * tf.roll(x, 1, axis=-1)


def two_parts(x, y):
  return [x**2 * y[..., :1], y**3]


def draw(*shape, dtype='float64', seed=0):
  return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


class Counted:
  """A function that counts how often Python runs it."""

  def __init__(self, fn):
    self.fn = fn
    self.calls = 0

  def __call__(self, *xs):
    self.calls += 1
    return self.fn(*xs)


@pytest.fixture(name='chain_plan')
def fixture_chain_plan(without_sweeps):
  del without_sweeps
  return tfp_diag.plan_diag_hessian(chain, tf.TensorSpec([None, 6], tf.float64))


@pytest.fixture(name='parts_plan', scope='module')
def fixture_parts_plan():
  return tfp_diag.plan_diag_jacobian(
    two_parts,
    [tf.TensorSpec([5, 3], tf.float64), tf.TensorSpec([5, 2], tf.float64)],
    sample_shape=[5],
  )


# What a plan says.


def test_fields_of_a_hessian_plan(chain_plan):
  assert isinstance(chain_plan, tfp_diag.Plan)
  assert chain_plan.kind == 'hessian'
  assert (chain_plan.num_coordinates, chain_plan.num_passes) == (6, 2)
  np.testing.assert_array_equal(chain_plan.colors, [0, 1, 0, 1, 0, 1])
  assert chain_plan.colors.dtype == np.int32
  tridiagonal = np.abs(np.subtract.outer(range(6), range(6))) <= 1
  np.testing.assert_array_equal(
    chain_plan.pattern.matrix.toarray(), tridiagonal
  )
  assert chain_plan.mode in ('forward_over_reverse', 'reverse_over_reverse')
  assert chain_plan.schedule == 'unrolled'
  assert chain_plan.sample_rank == 1
  assert chain_plan.event_shapes == ((6,),)
  assert chain_plan.notes == ()
  assert chain_plan.fn is chain


def test_fields_of_a_jacobian_plan(parts_plan):
  assert parts_plan.kind == 'jacobian'
  assert (parts_plan.num_coordinates, parts_plan.num_passes) == (5, 1)
  # The first entry of y meets all of x, and the others nothing.
  colors = parts_plan.colors
  assert colors[3] not in colors[:3]
  assert len(set(colors[:3])) == 1
  assert parts_plan.mode in ('forward', 'reverse')
  assert parts_plan.event_shapes == ((3,), (2,))


def test_str_says_what_it_will_do():
  plan = tfp_diag.plan_diag_hessian(
    chain, tf.TensorSpec([None, 4096]), mode='reverse_over_reverse'
  )
  assert str(plan) == (
    'Plan for a diagonal Hessian: 2 passes instead of 4,096\n'
    '  coordinates  4,096, of event shape [4096]; for samples of shape [B]\n'
    '  pattern      12,286 nonzeros, 3.0 per coordinate\n'
    '  passes       reverse_over_reverse, written out one after the other'
  )
  assert repr(plan) == (
    "<Plan kind='hessian' num_passes=2 num_coordinates=4096 "
    "mode='reverse_over_reverse' schedule='unrolled'>"
  )


def test_str_without_structure():
  plan = tfp_diag.plan_diag_hessian(
    dense,
    tf.TensorSpec([20]),
    memory_limit=1,
    mode='reverse_over_reverse',
    schedule='pfor',
  )
  lines = str(plan).splitlines()
  assert lines[0] == 'Plan for a diagonal Hessian: 20 passes'
  assert lines[1].endswith('everything is event')
  assert lines[3].endswith('vectorized, 1 at a time')
  assert 'Every coordinate interacts with every other one' in lines[4]
  elementwise = tfp_diag.plan_diag_jacobian(tf.sin, tf.TensorSpec([2, 3, 1]))
  assert '1 pass instead of 6' in str(elementwise)


def test_a_loop_that_pfor_cannot_vectorize_is_known_before_the_first_call():
  def fn(x):
    k = tf.reduce_sum(tf.cast(x > 0, tf.int32))

    def step(i, y):
      return i + 1, tf.sin(y) * tf.reduce_sum(y)

    return tf.reduce_sum(tf.while_loop(lambda i, y: i < k, step, [0, x])[1])

  x = tf.linspace(0.1, 0.9, 12)
  plan = tfp_diag.plan_diag_hessian(fn, x, mode='reverse_over_reverse')
  assert plan.schedule == 'while_loop'
  assert any('cannot vectorize the op' in note for note in plan.notes)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    plan(x)


def test_a_plan_is_immutable(chain_plan):
  with pytest.raises(dataclasses.FrozenInstanceError):
    chain_plan.mode = 'auto'
  with pytest.raises(ValueError, match='read-only'):
    chain_plan.colors[0] = 1
  given = np.array([0, 1, 0, 1, 0, 1])
  other = dataclasses.replace(chain_plan, colors=given)
  given[0] = 5
  assert other.colors[0] == 0


# What it computes.


@pytest.mark.parametrize('jit_compile', (False, True))
def test_calling_a_hessian_plan(jit_compile):
  x = draw(3, 6)
  plan = tfp_diag.plan_diag_hessian(chain, x, jit_compile=jit_compile)
  value, gradient, diag = plan(x)
  np.testing.assert_allclose(value, chain(x))
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = chain(x)
  np.testing.assert_allclose(gradient, tape.gradient(y, x), rtol=1e-12)
  np.testing.assert_allclose(diag, chain_curvature(x.numpy()), rtol=1e-12)


@pytest.mark.parametrize('jit_compile', (False, True))
def test_calling_a_jacobian_plan(jit_compile):
  xs = [draw(5, 3), draw(5, 2, seed=1)]
  plan = tfp_diag.plan_diag_jacobian(
    two_parts, xs, sample_shape=[5], jit_compile=jit_compile
  )
  ys, diag = plan(xs)
  for y, want in zip(ys, two_parts(*xs)):
    np.testing.assert_allclose(y, want)
  np.testing.assert_allclose(diag[0], 2 * xs[0] * xs[1][:, :1], rtol=1e-12)
  np.testing.assert_allclose(diag[1], 3 * xs[1] ** 2, rtol=1e-12)


def test_jit_compile_compiles():
  # The string of a Tensor has no XLA kernel.
  def fn(x):
    tf.print(x[0], output_stream='file:///dev/null')
    return x**2

  plan = tfp_diag.plan_diag_jacobian(fn, tf.ones([2]))
  np.testing.assert_allclose(plan(tf.ones([2]))[1][0], [2.0, 2.0])
  compiled = dataclasses.replace(plan, jit_compile=True)
  with pytest.raises(tf.errors.InvalidArgumentError, match=r'(?i)xla|compil'):
    compiled(tf.ones([2]))


def test_a_plan_fits_every_batch_and_dtype(chain_plan):
  for batch, dtype in ((1, 'float64'), (4, 'float64'), (0, 'float32')):
    x = draw(batch, 6, dtype=dtype)
    diag = chain_plan(x)[2]
    assert diag.dtype == dtype
    np.testing.assert_allclose(
      diag, chain_curvature(x.numpy().astype(np.float64)), rtol=1e-5
    )


@pytest.mark.parametrize('jit_compile', (None, True))
@pytest.mark.parametrize('dynamic', (False, True))
def test_plan_inside_a_function(chain_plan, jit_compile, dynamic):
  shape = [None, None] if dynamic else [3, 6]

  @tf.function(
    input_signature=[tf.TensorSpec(shape, tf.float64)], jit_compile=jit_compile
  )
  def both(x):
    called = chain_plan(x)
    handed = tfp_diag.diag_hessian(chain, x, plan=chain_plan)
    return called[2], handed[2]

  x = draw(3, 6)
  for diag in both(x):
    np.testing.assert_allclose(diag, chain_curvature(x.numpy()), rtol=1e-12)


def test_plan_of_ys_without_fn(parts_plan):
  @tf.function
  def run(x, y):
    ys = two_parts(x, y)
    return tfp_diag.diag_jacobian([x, y], ys=ys, plan=parts_plan)[1]

  x, y = draw(5, 3), draw(5, 2, seed=1)
  diag = run(x, y)
  np.testing.assert_allclose(diag[0], 2 * x * y[:, :1], rtol=1e-12)
  np.testing.assert_allclose(diag[1], 3 * y**2, rtol=1e-12)


def test_arguments_win_over_the_plan(chain_plan):
  x = draw(2, 6)
  for mode in ('forward_over_reverse', 'reverse_over_reverse', 'auto'):
    for schedule in ('unrolled', 'pfor', 'while_loop', 'auto'):
      _, _, diag = tfp_diag.diag_hessian(
        chain, x, plan=chain_plan, mode=mode, schedule=schedule
      )
      np.testing.assert_allclose(diag, chain_curvature(x.numpy()), rtol=1e-12)


def test_structures_of_xs():
  def fn(a, b):
    return tf.reduce_sum(a**3, -1) * tf.reduce_sum(b, -1)

  a, b = draw(4, 2), draw(4, 3, seed=1)
  plan = tfp_diag.plan_diag_hessian(fn, {'a': a, 'b': b})
  assert plan.num_passes == 2  # Each of a meets each of b.
  _, gradient, diag = plan({'a': a, 'b': b})
  assert sorted(gradient) == ['a', 'b']
  want = 6 * a * tf.reduce_sum(b, -1, keepdims=True)
  np.testing.assert_allclose(diag['a'], want, rtol=1e-12)
  np.testing.assert_array_equal(diag['b'], tf.zeros([4, 3]))


def test_variables_and_a_closure():
  variables = [tf.Variable(draw(3)), tf.Variable(draw(2, seed=1))]

  def loss():
    return tf.reduce_sum(variables[0][1:] * variables[1]) ** 2

  plan = tfp_diag.plan_diag_hessian(loss, variables)
  assert plan.num_passes == 4
  for _ in range(2):
    diag = plan(variables)[2]
    x, y = (v.numpy() for v in variables)
    np.testing.assert_allclose(diag[0], [0, *(2 * y**2)], rtol=1e-12)
    np.testing.assert_allclose(diag[1], 2 * x[1:] ** 2, rtol=1e-12)
    variables[0].assign_add(tf.ones([3], tf.float64))


def test_xs_that_are_arrays_or_numbers():
  assert tfp_diag.plan_diag_jacobian(tf.sin, np.ones([4])).num_passes == 1
  plan = tfp_diag.plan_diag_hessian(lambda x: x**3, 2.0)
  assert plan(2.0)[2].numpy() == 12.0


def test_nothing_to_differentiate():
  plan = tfp_diag.plan_diag_jacobian(tf.sin, tf.zeros([3, 0]), [3])
  assert (plan.num_coordinates, plan.num_passes) == (0, 0)
  assert plan(tf.zeros([3, 0]))[1][0].shape == (3, 0)
  assert '0 passes' in str(plan)


def test_a_tape_around_a_plan(chain_plan):
  x = draw(2, 6)
  with tf.GradientTape() as tape:
    tape.watch(x)
    diag = chain_plan(x)[2]
  d = np.sinh(x[:, 1:] - 0.9 * x[:, :-1])
  want = np.zeros([2, 6])
  want[:, 1:] -= 1.81 * d
  want[:, :-1] += 0.9 * 1.81 * d
  np.testing.assert_allclose(tape.gradient(diag, x), want, rtol=1e-10)


# How often it traces.


def test_a_hundred_calls_trace_once():
  fn = Counted(chain)
  x = draw(3, 6)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  plan(x)
  after_first = fn.calls
  for i in range(99):
    diag = plan(draw(3, 6, seed=i))[2]
    assert fn.calls == after_first
  np.testing.assert_allclose(
    diag, chain_curvature(draw(3, 6, seed=98).numpy()), rtol=1e-12
  )
  plan(draw(4, 6))
  assert fn.calls > after_first  # A new shape: the counter does count.


@pytest.mark.parametrize('size', (6, 40))
def test_a_hundred_eager_calls_run_python_each_and_compile_once(
  size, monkeypatch
):
  compiled = []
  remember = graphs._remember

  def counted(*args):
    compiled.append(args)
    remember(*args)

  monkeypatch.setattr(graphs, '_remember', counted)
  tfp_diag.clear_cache()
  fn = Counted(chain)
  for i in range(100):
    before = fn.calls
    diag = tfp_diag.diag_hessian(fn, draw(3, size, seed=i))[2]
    assert fn.calls == before + 1
  assert len(compiled) == 1
  np.testing.assert_allclose(
    diag, chain_curvature(draw(3, size, seed=99).numpy()), rtol=1e-12
  )


@pytest.mark.parametrize('kind', (float, np.float64, np.array))
def test_numbers_trace_once(kind):
  fn = Counted(lambda x: x**3)
  plan = tfp_diag.plan_diag_hessian(fn, kind(1.0))
  plan(kind(2.0))
  before = fn.calls
  assert plan(kind(3.0))[2].numpy() == 18.0
  assert fn.calls == before


def test_planning_runs_nothing_on_specs_of_a_batch():
  shapes = []

  def fn(x):
    if not tf.is_symbolic_tensor(x):
      shapes.append(x.shape.as_list())
    return chain(x)

  tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 6]))
  # Only to compare the modes, on a batch of two.
  assert all(shape == [2, 6] for shape in shapes)


# What it refuses.


def test_a_plan_for_something_else(chain_plan, parts_plan):
  x = draw(3, 6)
  with pytest.raises(ValueError, match=r'is for a diagonal Hessian.*plan_diag'):
    tfp_diag.diag_jacobian(x, fn=ring, plan=chain_plan)
  with pytest.raises(ValueError, match=r'is for a diagonal Jacobian'):
    tfp_diag.diag_hessian(chain, x, plan=parts_plan)
  with pytest.raises(ValueError, match=r'event shapes \(6,\).*\(3, 7\)'):
    chain_plan(draw(3, 7))
  with pytest.raises(ValueError, match=r'\(3,\), \(2,\).*\(5, 3\).*\(5, 1\)'):
    parts_plan([draw(5, 3), draw(5, 1)])
  with pytest.raises(ValueError, match='event shapes'):
    parts_plan([draw(5, 3)])
  with pytest.raises(ValueError, match=r'1 sample dimensions, but .* has 2'):
    tfp_diag.diag_hessian(chain, draw(1, 3, 6), [1, 3], plan=chain_plan)
  with pytest.raises(ValueError, match='event shapes'):
    chain_plan(draw(6))


def test_a_plan_for_too_few_dimensions():
  plan = tfp_diag.plan_diag_jacobian(tf.sin, tf.ones([2, 3]), [2, 3])
  with pytest.raises(ValueError, match='2'):
    plan(tf.ones([2]))


SPEC = tf.TensorSpec([5, 4])


@pytest.mark.parametrize(
  'make, error, message',
  [
    (lambda p: p(ring, SPEC, mode='sideways'), ValueError, '`mode`.*sideways'),
    (lambda p: p(ring, SPEC, schedule='no'), ValueError, '`schedule`.*no'),
    (lambda p: p(ring, SPEC, memory_limit=0), ValueError, '`memory_limit` is'),
    (lambda p: p(ring, SPEC, [3]), ValueError, r'`sample_shape` is \(3,\)'),
    (lambda p: p(ring, SPEC, [5, 4, 1]), ValueError, '3 dimensions'),
    (lambda p: p('ring', SPEC), TypeError, "`fn` is 'ring'"),
    (lambda p: p(ring, []), ValueError, 'no part'),
    (lambda p: p(ring, tf.TensorSpec([4], tf.int32)), TypeError, 'int32'),
    (lambda p: p(ring, tf.constant([4])), TypeError, 'int32'),
    (lambda p: p(ring, tf.TensorSpec(None)), ValueError, 'unknown rank'),
  ],
)
def test_arguments_that_do_not_fit(make, error, message):
  for plan in (tfp_diag.plan_diag_jacobian, tfp_diag.plan_diag_hessian):
    with pytest.raises(error, match=message):
      make(plan)


def test_an_event_shape_has_to_be_known():
  spec = tf.TensorSpec([2, None])
  with pytest.raises(ValueError, match='must be known'):
    tfp_diag.plan_diag_jacobian(ring, spec, [2])
  with pytest.raises(ValueError, match='must be known'):
    tfp_diag.plan_diag_hessian(chain, spec, [2])


def test_functions_that_do_not_fit():
  with pytest.raises(ValueError, match='3 parts of `ys` but 2'):
    tfp_diag.plan_diag_jacobian(lambda x, y: [x, y, x], [SPEC, SPEC])
  with pytest.raises(ValueError, match='does not broadcast'):
    tfp_diag.plan_diag_jacobian(lambda x: x[..., :2], SPEC)
  with pytest.raises(ValueError, match=r'one (Tensor|scalar|number)'):
    tfp_diag.plan_diag_hessian(lambda x: x, SPEC, sample_shape=[5])


# Modes.


@tf.custom_gradient
def clipped(x):
  """A gradient that is not linear in its cotangent."""
  return 3.0 * x, lambda dy: tf.clip_by_value(3.0 * dy, -1.0, 1.0)


@tf.custom_gradient
def signed(x):
  return tf.identity(x), lambda dy: tf.sign(dy) * (1.0 + x**2)


def test_forward_mode_is_given_up_where_it_is_wrong():
  def fn(x):
    return signed(tf.sin(x)) + tf.roll(x, 1, axis=-1)

  assert tfp_diag.plan_diag_jacobian(fn, draw(4)).mode == 'reverse'
  for mode in ('forward',):
    plan = tfp_diag.plan_diag_jacobian(fn, draw(4), mode=mode)
    assert plan.mode == 'reverse'
    (note,) = (n for n in plan.notes if 'forward' in n)
    assert 'Reverse instead of forward mode' in note
    assert 'not linear in its cotangent' in note
    assert note in str(plan)


def test_forward_mode_is_given_up_in_hessians_too():
  def fn(x):
    return tf.reduce_sum(signed(x) ** 2 * clipped(x))

  plan = tfp_diag.plan_diag_hessian(fn, draw(4), mode='forward_over_reverse')
  assert plan.mode == 'reverse_over_reverse'
  assert any('Reverse instead of forward mode' in n for n in plan.notes)


def test_forward_mode_where_it_is_right():
  plan = tfp_diag.plan_diag_jacobian(ring, draw(4), mode='forward')
  assert (plan.mode, plan.notes) == ('forward', ())
  # By itself a Jacobian goes the way that infinite derivatives cannot spoil.
  assert tfp_diag.plan_diag_jacobian(ring, draw(4)).mode == 'reverse'
  plan = tfp_diag.plan_diag_hessian(chain, draw(4))
  assert (plan.mode, plan.notes) == ('forward_over_reverse', ())


def test_loops_run_in_reverse():
  def looped(x):
    return tf.scan(lambda a, b: 0.5 * a + tf.sin(b), x)

  called = tf.function(looped)
  for fn in (looped, called):
    plan = tfp_diag.plan_diag_jacobian(fn, tf.TensorSpec([4]))
    assert (plan.num_passes, plan.mode) == (4, 'reverse')
    assert not any('instead of forward mode' in note for note in plan.notes)
    plan = tfp_diag.plan_diag_jacobian(fn, tf.ones([4]), mode='forward')
    assert plan.mode == 'forward'


def test_one_pass_runs_in_reverse():
  """It shares nothing with another one."""
  plan = tfp_diag.plan_diag_hessian(lambda x: tf.reduce_sum(x**4), draw(4))
  assert (plan.num_passes, plan.mode) == (1, 'reverse_over_reverse')


def test_many_passes_run_in_reverse():
  def products(x):
    return tf.reduce_sum(tf.reduce_prod(x, axis=-1))

  plan = tfp_diag.plan_diag_hessian(products, draw(10, 9))
  assert (plan.num_passes, plan.mode, plan.schedule) == (
    9,
    'reverse_over_reverse',
    'pfor',
  )
  plan = tfp_diag.plan_diag_hessian(products, draw(10, 8))
  assert (plan.num_passes, plan.mode, plan.schedule) == (
    8,
    'forward_over_reverse',
    'unrolled',
  )


def test_a_derivative_that_cannot_be_checked_runs_in_reverse():
  plan = tfp_diag.plan_diag_jacobian(
    lambda x: tf.math.log(x), tf.constant([-1.0, 0.0]), mode='forward'
  )
  assert plan.mode == 'reverse'
  assert any('not finite at this point' in n for n in plan.notes)


def test_planning_inside_a_graph():
  plans = []

  @tf.function
  def run(x):
    plans.append(tfp_diag.plan_diag_hessian(chain, x))
    return tfp_diag.diag_hessian(chain, x, plan=plans[0])[2]

  x = draw(3, 6)
  np.testing.assert_allclose(run(x), chain_curvature(x.numpy()), rtol=1e-12)
  assert plans[0].num_passes == 2
  assert plans[0].mode == 'reverse_over_reverse'
  assert any('while a graph is built' in n for n in plans[0].notes)


def test_planning_where_an_op_raises():
  """A plan for specs is tried at normal points, where `fn` may not hold."""

  def positive(x):
    tf.debugging.assert_positive(x)
    return x**2 * tf.roll(x, 1, axis=-1)

  def normalizer(x):
    tf.debugging.assert_positive(x)
    return tf.reduce_logsumexp(x, axis=-1)

  spec = tf.TensorSpec([None, 20], tf.float64)
  plan = tfp_diag.plan_diag_jacobian(positive, spec, [None], mode='forward')
  assert plan.mode == 'reverse'
  assert any('it fails (InvalidArgument' in n for n in plan.notes)
  plan = tfp_diag.plan_diag_hessian(normalizer, spec)
  assert plan.num_passes == 2
  x = tf.exp(draw(3, 20))
  p = tf.nn.softmax(x)
  np.testing.assert_allclose(plan(x)[2], p - p**2, rtol=1e-10)


def test_a_loop_over_an_open_number_of_samples():
  def mapped(x):
    return tf.reduce_sum(tf.map_fn(lambda row: row**3, x), axis=-1)

  with pytest.raises(ValueError, match='Plan for a given number of samples'):
    tfp_diag.plan_diag_hessian(mapped, tf.TensorSpec([None, 3], tf.float64))
  plan = tfp_diag.plan_diag_hessian(mapped, tf.TensorSpec([2, 3], tf.float64))
  x = draw(2, 3)
  np.testing.assert_allclose(plan(x)[2], 6 * x, rtol=1e-10)


def test_notes_name_what_blocked_a_cheaper_plan():
  def unknown(x):
    y = tf.py_function(lambda x: x**2, [x], tf.float64)
    return tf.ensure_shape(y, x.shape)

  plan = tfp_diag.plan_diag_jacobian(unknown, draw(4))
  assert plan.num_passes == 4
  assert any('EagerPyFunc' in op for op in plan.pattern.fallback_ops)
  assert any('No rule' in n and 'EagerPyFunc' in n for n in plan.notes)
  assert 'register_rule' in str(plan)


# Memory.


def test_memory_limit_sets_the_chunk():
  spec = tf.TensorSpec([10, 50], tf.float64)
  sizes = [
    tfp_diag.plan_diag_hessian(dense, spec, memory_limit=limit).chunk_size
    for limit in (1, 10**5, 4 * 10**5, None)
  ]
  assert sizes[0] == 1
  assert 1 < sizes[1] < sizes[2] < 50
  assert sizes[3] == 50  # Not more than there are passes.
  # Some Tensors of 10 x 50 doubles each, for each pass.
  assert 4 * 10**5 // (20 * 4000) <= sizes[2] <= 4 * 10**5 // 4000


def test_chunks_that_do_not_divide_the_passes():
  x = draw(2, 11)
  plan = tfp_diag.plan_diag_hessian(dense, x)
  s = np.sum(x, -1, keepdims=True)
  q = np.sum(x**2, -1, keepdims=True)
  want = -np.sin(s) * q + 4 * x * np.cos(s) + 2 * np.sin(s)
  for chunk in (1, 4, 10, 11):
    diag = dataclasses.replace(plan, chunk_size=chunk)(x)[2]
    np.testing.assert_allclose(diag, want, rtol=1e-10, err_msg=str(chunk))


# Files.


def assert_same(plan, other):
  for field in dataclasses.fields(plan):
    if field.name not in ('fn', 'colors'):
      assert getattr(plan, field.name) == getattr(other, field.name), field.name
  np.testing.assert_array_equal(plan.colors, other.colors)


def test_save_and_load(tmp_path, chain_plan, parts_plan):
  for i, plan in enumerate((chain_plan, parts_plan)):
    path = tmp_path / f'{i}.npz'
    plan.save(path)
    loaded = tfp_diag.load_plan(path)
    assert_same(plan, loaded)
    assert loaded.fn is None
    assert str(loaded) == str(plan)
  x = draw(3, 6)
  loaded = tfp_diag.load_plan(tmp_path / '0.npz', fn=chain)
  np.testing.assert_array_equal(loaded(x)[2], chain_plan(x)[2])


def test_everything_is_saved(tmp_path):
  def unknown(x):
    return tf.ensure_shape(
      tf.py_function(lambda x: x**2, [x], x.dtype), x.shape
    )

  plan = dataclasses.replace(
    tfp_diag.plan_diag_jacobian(unknown, tf.zeros([2, 0, 3])),
    chunk_size=3,
    schedule='while_loop',
    jit_compile=True,
    notes=('Umlaute: ä', 'two'),
  )
  plan.save(str(tmp_path / 'plan.npz'))
  assert_same(plan, tfp_diag.load_plan(str(tmp_path / 'plan.npz')))


def test_a_plan_without_its_function(tmp_path, chain_plan):
  chain_plan.save(tmp_path / 'plan.npz')
  loaded = tfp_diag.load_plan(tmp_path / 'plan.npz')
  x = draw(3, 6)
  with pytest.raises(ValueError, match=r'without its function.*fn=fn'):
    loaded(x)
  diag = tfp_diag.diag_hessian(chain, x, plan=loaded)[2]
  np.testing.assert_allclose(diag, chain_curvature(x.numpy()), rtol=1e-12)


@pytest.mark.parametrize(
  'copied', [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_a_plan_that_was_called_can_be_copied(copied):
  x = tf.constant([[0.3, -0.2, 0.5]], tf.float64)
  plan = tfp_diag.plan_diag_hessian(chain, x)
  want = plan(x)[2]
  found = copied(plan)
  assert found._functions == {} != plan._functions
  np.testing.assert_array_equal(found(x)[2], want)


def test_there_is_no_pickle_in_a_file(tmp_path, chain_plan):
  chain_plan.save(tmp_path / 'plan.npz')
  with np.load(tmp_path / 'plan.npz', allow_pickle=False) as file:
    assert all(file[name].dtype != object for name in file.files)


def test_a_damaged_file_is_refused_or_the_same(tmp_path, chain_plan):
  path = tmp_path / 'plan.npz'
  chain_plan.save(path)
  whole = path.read_bytes()
  for length in range(0, len(whole), 101):
    path.write_bytes(whole[:length])
    with pytest.raises(
      ValueError, match=r'plan\.npz.*cannot be read as a plan'
    ):
      tfp_diag.load_plan(path)
  refused = 0
  for place in range(0, len(whole), 7):
    damaged = bytearray(whole)
    damaged[place] ^= 0x55
    path.write_bytes(bytes(damaged))
    try:
      assert_same(chain_plan, tfp_diag.load_plan(path))
    except ValueError as e:
      assert 'cannot be read as a plan' in str(e)
      refused += 1
  assert refused > len(whole) / 7 / 3


def edited(path, **changes):
  """Writes a well-formed file in which something is not as it was."""
  with np.load(path) as file:
    arrays = dict(file)
  meta = json.loads(str(arrays['meta'][()]))
  for name, value in changes.items():
    if name in arrays:
      arrays[name] = np.array(value)
    elif value is None:
      del meta[name]
    else:
      meta[name] = value
  arrays['meta'] = np.array(json.dumps(meta))
  np.savez(path, **arrays)


@pytest.mark.parametrize(
  'changes',
  [
    {'format': 2},
    {'format': 4},
    {'kind': 'gradient'},
    {'kind': 'jacobian'},
    {'mode': 'auto'},
    {'mode': None},
    {'schedule': 'auto'},
    {'chunk_size': 0},
    {'chunk_size': True},
    {'chunk_size': 2.5},
    {'sample_rank': -1},
    {'jit_compile': 'yes'},
    {'event_shapes': [[7]]},
    {'event_shapes': [[-2, -3]]},
    {'event_shapes': [6]},
    {'event_shapes': [[6.0]]},
    {'notes': 'a sentence'},
    {'notes': [1]},
    {'fallback_ops': 'Sort'},
    {'pattern_notes': [None]},
    {'colors': [0, 1, 0, 1, 0]},
    {'colors': [0, 2, 0, 2, 0, 2]},
    {'colors': [0, 0, 1, 0, 1, 0]},  # The first two meet in the pattern.
    {'colors': [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]},
    {'colors': [-1, 0, -1, 0, -1, 0]},
    {'indices': [0] * 15},
    {'indices': [0, 1, 0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 6]},
    {'indices': [0, 1, 0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, -1]},
    {'indptr': [0, 2, 5, 8, 11, 14, 15]},
    {'indptr': [0, 5, 2, 8, 11, 14, 16]},
    {'meta': '{'},
  ],
  ids=str,
)
def test_an_edited_file_is_refused(tmp_path, chain_plan, changes):
  path = tmp_path / 'plan.npz'
  chain_plan.save(path)
  edited(path)
  assert_same(chain_plan, tfp_diag.load_plan(path))
  if 'meta' in changes:
    with np.load(path) as file:
      arrays = dict(file)
    np.savez(path, **{**arrays, **changes})
  else:
    edited(path, **changes)
  with pytest.raises(ValueError, match='cannot be read as a plan'):
    tfp_diag.load_plan(path)


class Dangerous:
  ran = False

  def __reduce__(self):
    return setattr, (Dangerous, 'ran', True)


def test_a_pickled_file_is_refused_unread(tmp_path, chain_plan):
  path = tmp_path / 'plan.npz'
  pickled = pickle.dumps(Dangerous())
  path.write_bytes(pickled)
  with pytest.raises(ValueError, match=r'not an \.npz file'):
    tfp_diag.load_plan(path)
  for name in ('meta', 'colors', 'indptr'):
    chain_plan.save(path)
    with np.load(path) as file:
      arrays = dict(file)
    content = io.BytesIO()
    np.save(content, np.array([Dangerous()], object), allow_pickle=True)
    del arrays[name]
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, 'a') as archive:
      archive.writestr(f'{name}.npy', content.getvalue())
    with pytest.raises(ValueError, match='cannot be read as a plan'):
      tfp_diag.load_plan(path)
  assert not Dangerous.ran
  pickle.loads(pickled)
  assert Dangerous.ran  # It would have been seen.


def test_other_files_are_refused(tmp_path):
  path = tmp_path / 'array.npy'
  np.save(path, np.ones(3))
  with pytest.raises(ValueError, match=r'not an \.npz file'):
    tfp_diag.load_plan(path)
  np.savez(tmp_path / 'other.npz', x=np.ones(3))
  with pytest.raises(ValueError, match='cannot be read as a plan'):
    tfp_diag.load_plan(tmp_path / 'other.npz')
  with pytest.raises(FileNotFoundError):
    tfp_diag.load_plan(tmp_path / 'nowhere.npz')
  with pytest.raises(OSError):
    tfp_diag.load_plan(tmp_path)


def test_a_save_that_fails_leaves_the_old_file(
  tmp_path, chain_plan, parts_plan, monkeypatch
):
  path = tmp_path / 'plan.npz'
  chain_plan.save(path)

  def half(file, **arrays):
    file.write(b'half of it')
    raise KeyboardInterrupt

  monkeypatch.setattr(np, 'savez_compressed', half)
  with pytest.raises(KeyboardInterrupt):
    parts_plan.save(path)
  monkeypatch.undo()
  assert os.listdir(tmp_path) == ['plan.npz']
  assert_same(chain_plan, tfp_diag.load_plan(path))
  parts_plan.save(path)
  assert_same(parts_plan, tfp_diag.load_plan(path))
  assert os.listdir(tmp_path) == ['plan.npz']


def test_a_saved_file_has_the_permissions_of_a_new_one(tmp_path, chain_plan):
  chain_plan.save(tmp_path / 'plan.npz')
  (tmp_path / 'new').write_bytes(b'')
  modes = [(tmp_path / name).stat().st_mode for name in ('plan.npz', 'new')]
  assert modes[0] == modes[1]


def test_colors_with_which_passes_are_not_exact_are_for_estimates_only():
  x = tf.constant([1.0, 2.0, 3.0, 4.0])

  def fn(x):
    return x**2 * tf.roll(x, 1, -1)

  plan = dataclasses.replace(
    tfp_diag.plan_diag_jacobian(fn, x), colors=np.zeros(4, np.int32)
  )
  for exact in (
    lambda: plan(x),
    lambda: tfp_diag.diag_jacobian(x, fn=fn, plan=plan),
    lambda: tfp_diag.LazyJacobian(fn, x).diag(plan=plan),
  ):
    with pytest.raises(ValueError, match='one color for coordinates 0 and 3'):
      exact()
  found = tfp_diag.stochastic_diag_jacobian(fn, x, 5, [0, 1], plan=plan)
  assert found.estimate.shape == [4]
