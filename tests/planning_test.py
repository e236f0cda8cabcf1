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
"""From functions to plans: how many passes, when, and for how long remembered.

Passes are counted in two ways: by what reaches the graph (an unrolled schedule
has one copy of each), and by what runs (a gradient that counts itself).
"""

import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_by_copies
from tfp_diag.diagonal import graphs, linear_map, reading
from tfp_diag.sparsity import SampleMixingError, probe

pytestmark = pytest.mark.usefixtures('without_sweeps')


@pytest.fixture(name='copies')
def fixture_copies(monkeypatch):
  """Counts the passes that are written into a graph."""
  counter = types.SimpleNamespace(count=0)
  apply = linear_map.LinearMap.apply

  def counted(*args, **kwargs):
    counter.count += 1
    return apply(*args, **kwargs)

  monkeypatch.setattr(linear_map.LinearMap, 'apply', counted)
  return counter


@pytest.fixture(name='analyses')
def fixture_analyses(monkeypatch):
  """Counts how often a function is looked at, and forgets earlier ones."""
  tfp_diag.clear_cache()
  counter = types.SimpleNamespace(count=0)
  analyze = reading.analyze

  def counted(*args, **kwargs):
    counter.count += 1
    return analyze(*args, **kwargs)

  monkeypatch.setattr(reading, 'analyze', counted)
  return counter


class Probe:
  """The identity; its gradient counts how often it runs."""

  def __init__(self):
    self.count = 0

    def add():
      self.count += 1

    @tf.custom_gradient
    def identity(x):
      def gradient(dy):
        with tf.control_dependencies([tf.py_function(add, [], [])]):
          return tf.identity(dy)

      return tf.identity(x), gradient

    self.identity = identity


def draw(*shape, seed=0):
  return tf.constant(np.random.default_rng(seed).normal(size=shape))


# Structures whose number of colors is known in closed form. Each function takes
# one sample.


def diagonal(x):
  return tf.reduce_sum(x**4)


def chain(x):
  return tf.reduce_sum(tf.cosh(x[1:] - 0.9 * x[:-1]))


def band(half_width):
  def fn(x):
    terms = [x[k:] ** 2 * x[: x.shape[0] - k] for k in range(half_width + 1)]
    return tf.add_n([tf.reduce_sum(t) for t in terms])

  return fn


def grid(*axes):
  def fn(x):
    terms = [x**4]
    for axis in axes:
      left, right = (
        tf.gather(x, range(k, x.shape[axis] - 1 + k), axis=axis) for k in (0, 1)
      )
      terms.append((left - right) ** 4)
    return tf.add_n([tf.reduce_sum(t) for t in terms])

  return fn


def periodic(x):
  return sum(
    tf.reduce_sum((x - tf.roll(x, 1, axis)) ** 4)
    for axis in range(len(x.shape))
  )


def arrowhead(x):
  return x[0] ** 3 + tf.reduce_sum(tf.sin(x[1:] * x[0]))


def blocks(size):
  def fn(x):
    return tf.reduce_sum(tf.reduce_sum(tf.reshape(x, [-1, size]), 1) ** 4)

  return fn


def everything(x):
  return tf.reduce_sum(x) ** 4


COUNTS = {
  'diagonal': (diagonal, [12], 1),
  'large diagonal': (diagonal, [3, 1000], 1),
  'chain': (chain, [12], 2),
  'odd chain': (chain, [13], 2),
  'long chain': (chain, [5000], 2),
  **{f'band {b}': (band(b), [17], b + 1) for b in range(1, 6)},
  'large band': (band(3), [1000], 4),
  'grid': (grid(0, 1), [4, 6], 2),
  'odd grid': (grid(0, 1), [3, 5], 2),
  'large grid': (grid(0, 1), [40, 50], 2),
  'periodic grid': (periodic, [4, 6], 2),
  'odd ring': (periodic, [7], 3),
  'cube': (grid(0, 1, 2), [2, 4, 3], 2),
  'large cube': (grid(0, 1, 2), [10, 10, 10], 2),
  'arrowhead': (arrowhead, [12], 2),
  'large arrowhead': (arrowhead, [2000], 2),
  **{f'blocks of {k}': (blocks(k), [12], k) for k in (2, 3, 4, 6)},
  'large blocks': (blocks(5), [1000], 5),
  'everything': (everything, [9], 9),
}


def dense_diagonal(fn, x):
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
      inner.watch(x)
      y = fn(x)
    gradient = tf.reshape(inner.gradient(y, x), [-1])
  n = gradient.shape[0]
  rows = [
    tf.reshape(
      outer.gradient(
        gradient, x, output_gradients=tf.one_hot(i, n, dtype='double')
      ),
      [-1],
    )
    for i in range(n)
  ]
  return np.diag(tf.stack(rows)).reshape(x.shape)


@pytest.mark.parametrize('name', COUNTS)
def test_number_of_colors(name):
  fn, shape, colors = COUNTS[name]
  plan = tfp_diag.plan_diag_hessian(
    fn, tf.TensorSpec(shape, tf.float64), mode='reverse_over_reverse'
  )
  assert plan.coloring.num_colors == colors
  assert not plan.pattern.fallback_ops


# Both schedules in turn.
@pytest.mark.parametrize(
  'number, name', enumerate(n for n in COUNTS if 'large' not in n)
)
def test_passes_that_run(number, name):
  fn, shape, colors = COUNTS[name]
  schedule = ('unrolled', 'while_loop')[number % 2]
  probe = Probe()
  plan = tfp_diag.plan_diag_hessian(
    lambda x: fn(probe.identity(x)),
    tf.TensorSpec(shape, tf.float64),
    mode='reverse_over_reverse',
    schedule=schedule,
  )
  assert probe.count == 0  # A plan that compares no modes runs nothing.
  small = name != 'long chain'
  x = draw(*shape)
  diag = plan(x)[2]
  assert probe.count == 1 + colors  # The gradient, and each pass.
  plan(x)
  assert probe.count == 2 * (1 + colors)
  if small:
    np.testing.assert_allclose(diag, dense_diagonal(fn, x), rtol=1e-10)


def brusselator(u, v):
  """Two species on a periodic grid."""

  def laplacian(w):
    neighbors = [tf.roll(w, s, a) for s in (1, -1) for a in (0, 1)]
    return tf.add_n(neighbors) - 4 * w

  return [
    1 + u**2 * v - 4.4 * u + 0.1 * laplacian(u),
    3.4 * u - u**2 * v + 0.1 * laplacian(v),
  ]


def test_brusselator():
  probe = Probe()
  u, v = 1 + 0.1 * draw(32, 32), 3 + draw(32, 32, seed=1)
  plan = tfp_diag.plan_diag_jacobian(
    lambda u, v: [probe.identity(w) for w in brusselator(u, v)],
    [tf.TensorSpec([32, 32], tf.float64)] * 2,
    mode='reverse',
  )
  # What the neighbors bring does not return.
  assert (plan.num_coordinates, plan.num_passes) == (2048, 1)
  diag = plan([u, v])[1]
  before = probe.count  # The first call has a check, too.
  plan([u, v])
  assert probe.count - before == 2  # One pass through two parts.
  np.testing.assert_allclose(diag[0], 2 * u * v - 4.4 - 0.4, rtol=1e-12)
  np.testing.assert_allclose(diag[1], -(u**2) - 0.4, rtol=1e-12)


def test_as_many_copies_as_colors(copies):
  for mode in ('forward', 'reverse'):
    plan = tfp_diag.plan_diag_jacobian(
      lambda x: x * tf.roll(x, 1, 0),
      tf.TensorSpec([7]),
      mode=mode,
      schedule='unrolled',
    )
    copies.count = 0
    plan(tf.ones([7]))
    # By tangents there is a branch, too, for derivatives that are infinite.
    built = 6 if mode == 'forward' else 3
    assert (plan.num_passes, copies.count) == (3, built)


# Planning without being asked.


def ring(x):
  return x**2 * tf.roll(x, 1, axis=-1)


def ring_diagonal(x):
  return 2 * x * np.roll(x, 1, axis=-1)


@pytest.mark.parametrize('regime', [lambda f: f, tf.function])
@pytest.mark.parametrize('size, count', [(1, 1), (2, 2), (4, 2), (40, 2)])
def test_every_call_plans(copies, analyses, regime, size, count):
  @regime
  def run(x):
    return tfp_diag.diag_jacobian(
      x, sample_shape=[3], fn=ring, schedule='unrolled'
    )[1][0]

  x = draw(3, size)
  # With one coordinate the neighbor is the coordinate itself.
  want = ring_diagonal(x.numpy()) if size > 1 else 3 * x**2
  np.testing.assert_allclose(run(x), want, rtol=1e-12)
  assert copies.count == count
  assert analyses.count == 1


def test_hessians_plan_too(copies, analyses):
  def fn(x, y):
    return tf.reduce_sum(tf.sin(x * y[:, tf.newaxis]), 1) + y**3

  x, y = draw(3, 20), draw(3, seed=1)
  for count, regime in enumerate((lambda f: f, tf.function), start=1):
    copies.count = 0
    run = regime(lambda x, y: tfp_diag.diag_hessian(fn, [x, y])[2])
    diag = run(x, y)
    assert copies.count == 2
    z = y[:, tf.newaxis]
    np.testing.assert_allclose(diag[0], -tf.sin(x * z) * z**2, rtol=1e-12)
    want = 6 * y - tf.reduce_sum(tf.sin(x * z) * x**2, 1)
    np.testing.assert_allclose(diag[1], want, rtol=1e-10)
    assert analyses.count == count


def test_what_is_found_is_remembered_by_what_a_function_does(analyses):
  def run(x, fn=ring, sample_shape=(3,)):
    tfp_diag.diag_jacobian(x, sample_shape=sample_shape, fn=fn)
    return analyses.count

  x = draw(3, 20)
  assert run(x) == run(x) == 1
  assert run(x, lambda z: z**2 * tf.roll(z, 1, axis=-1)) == 1  # It is the same.
  assert run(draw(3, 30)) == 2
  assert run(x, sample_shape=()) == 3  # All of it is event.
  assert run(tf.cast(x, tf.float32)) == 4
  assert run(x, lambda x: x**2 * tf.roll(x, 2, axis=-1)) == 5
  assert run(x) == 5
  tfp_diag.clear_cache()
  assert run(x) == 6


def test_a_function_that_has_changed_is_looked_at_again(analyses):
  x = draw(24)
  settings = {'shift': 1}

  def fn(x):
    return x**2 * tf.roll(x, settings['shift'], axis=-1)

  for count, shift in enumerate((1, 12, 0, 5), start=1):
    settings['shift'] = shift
    want = 2 * x * np.roll(x, shift) if shift else 3 * x**2
    for _ in range(2):
      diag = tfp_diag.diag_jacobian(x, fn=fn)[1][0]
      np.testing.assert_allclose(diag, want, rtol=1e-12)
    assert analyses.count == count


def test_a_variable_may_change_after_planning():
  order = tf.Variable(np.arange(20))
  weight = tf.Variable(tf.eye(20, dtype=tf.float64))
  x = draw(20)

  def fn(x):
    mixed = tf.linalg.matvec(weight, tf.sin(x))
    return mixed + x * tf.gather(x, order)

  for seed in range(3):
    rng = np.random.default_rng(seed)
    m, o = weight.numpy(), order.numpy()
    want = np.diag(m) * np.cos(x) + x.numpy()[o] + x * (o == range(20))
    diag = tfp_diag.diag_jacobian(x, fn=fn)[1][0]
    np.testing.assert_allclose(diag, want, rtol=1e-10)
    order.assign(rng.permutation(20))
    weight.assign(rng.normal(size=[20, 20]))


def test_what_is_found_in_a_graph_ends_with_it(analyses):
  @tf.function
  def run(x, y):
    return tfp_diag.diag_jacobian(x, fn=lambda x: x * y)[1][0]

  x, y = draw(20), draw(20, seed=1)
  np.testing.assert_allclose(run(x, y), y)
  assert analyses.count == 1
  assert not graphs._cache


def test_events_of_unknown_size_take_a_pass_for_each():
  @tf.function(input_signature=[tf.TensorSpec([None], tf.float64)])
  def dynamic(x):
    return tfp_diag.diag_jacobian(x, fn=ring)[1][0]

  x = draw(7)
  want = ring_diagonal(x.numpy())
  np.testing.assert_allclose(dynamic(x), want, rtol=1e-12)


def test_ys_without_a_function(copies):
  @tf.function
  def without_fn(x):
    return tfp_diag.diag_jacobian([x], ys=[ring(x)], schedule='unrolled')[1][0]

  x = draw(7)
  want = ring_diagonal(x.numpy())
  np.testing.assert_allclose(without_fn(x), want, rtol=1e-12)
  assert copies.count == 3  # An odd ring.


@pytest.mark.parametrize(
  'leaves',
  [
    lambda x: x.numpy()[0],
    lambda x: float(x[0]),
    lambda x: np.mean(x),
    lambda x: np.asarray(x)[0],
  ],
)
def test_a_function_that_needs_values_in_python_is_refused(leaves):
  def fn(x):
    return x**2 * leaves(x)

  x = draw(20)
  for run in (
    lambda: tfp_diag.diag_jacobian(x, fn=fn),
    lambda: tfp_diag.diag_hessian(lambda x: tf.reduce_sum(fn(x)), x),
    lambda: tfp_diag.plan_diag_jacobian(fn, x),
  ):
    with pytest.raises(TypeError, match='needs the value of a Tensor'):
      run()


def test_errors_of_a_function_stay_its_own():
  def fn(x):
    raise KeyError('my own')

  with pytest.raises(KeyError, match='my own'):
    tfp_diag.diag_jacobian(draw(20), fn=fn)
  with pytest.raises(KeyError, match='my own'):
    tfp_diag.plan_diag_jacobian(fn, draw(20))


def test_without_structure_nothing_is_lost(copies):
  def fn(x):
    return tf.sin(x) * tf.reduce_sum(x)

  x = draw(20)
  diag = tfp_diag.diag_jacobian(x, fn=fn, schedule='unrolled')[1][0]
  assert copies.count == 20
  want = tf.cos(x) * tf.reduce_sum(x) + tf.sin(x)
  np.testing.assert_allclose(diag, want, rtol=1e-12)


# Samples.


@pytest.mark.parametrize('size', (6, 20))
def test_naming_the_samples_costs_no_fewer_passes(copies, size):
  x = draw(3, 2, size)

  def fn(x):
    return ring(x) + tf.roll(x, 3, axis=-1)

  plans = [
    tfp_diag.plan_diag_jacobian(fn, x, shape)
    for shape in (None, [], [3], [3, 2])
  ]
  assert [p.num_coordinates for p in plans] == [6 * size] * 2 + [
    2 * size,
    size,
  ]
  assert [p.num_passes for p in plans] == [1] * 4
  for plan in plans:
    assert plan.coloring.num_colors == 2
    diag = plan(x)[1][0]
    np.testing.assert_allclose(diag, ring_diagonal(x.numpy()), rtol=1e-12)
  for shape in (None, [3, 2]):
    copies.count = 0
    run = tf.function(
      lambda x, shape=shape: tfp_diag.diag_jacobian(
        x, sample_shape=shape, fn=lambda x: fn(x), schedule='unrolled'
      )
    )
    run(x)
    assert copies.count == 2


def normalized(x):
  """As batch normalization in training does."""
  mean, variance = tf.nn.moments(x, axes=[0], keepdims=True)
  return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def dense_jacobian_diagonal(fn, x):
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = tf.reshape(fn(x), [-1])
  jacobian = tape.jacobian(y, x, experimental_use_pfor=False)
  n = y.shape[0]
  return np.diag(tf.reshape(jacobian, [n, n])).reshape(x.shape)


def test_a_plan_refuses_functions_that_mix_samples():
  x = draw(5, 4)
  with pytest.raises(
    SampleMixingError, match=r"Mean \(op '.*sample_shape=\(\)"
  ):
    tfp_diag.plan_diag_jacobian(normalized, x, sample_shape=[5])
  with pytest.raises(ValueError, match='Cumsum'):
    tfp_diag.plan_diag_jacobian(
      lambda x: tf.cumsum(tf.sin(x), axis=0), x, sample_shape=[5]
    )
  with pytest.raises(SampleMixingError, match='mixes samples'):
    tfp_diag.plan_diag_hessian(
      lambda x: tf.reduce_sum(normalized(x) ** 3, axis=1), x
    )


@pytest.mark.parametrize('sample_shape', (None, ()))
def test_functions_that_mix_samples_as_one_event(sample_shape):
  x = draw(5, 4)
  plan = tfp_diag.plan_diag_jacobian(normalized, x, sample_shape=sample_shape)
  assert plan.num_passes == 5  # Columns do not meet.
  diag = plan(x)[1][0]
  want = dense_jacobian_diagonal(normalized, x)
  np.testing.assert_allclose(diag, want, rtol=1e-10)
  # Nothing is said against it.
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    diag = tfp_diag.diag_jacobian(x, fn=normalized)[1][0]
  np.testing.assert_allclose(diag, want, rtol=1e-10)


def test_a_hessian_that_mixes_samples_as_one_event():
  x = draw(5, 4)

  def fn(x):
    return tf.reduce_sum(normalized(x) ** 3)

  plan = tfp_diag.plan_diag_hessian(fn, x, sample_shape=())
  assert plan.num_passes == 5
  np.testing.assert_allclose(plan(x)[2], dense_diagonal(fn, x), rtol=1e-8)


@pytest.mark.parametrize('regime', [lambda f: f, tf.function])
def test_mixed_samples_are_refused_without_a_plan_too(regime):
  x = draw(5, 4)
  run = regime(
    lambda x: tfp_diag.diag_jacobian(x, sample_shape=[5], fn=normalized)[1][0]
  )
  with pytest.raises(SampleMixingError, match='`fn` mixes samples: Mean'):
    run(x)


def test_a_function_that_knows_its_batch():
  """It cannot be called on two samples, and is seen on the five it has."""
  weights = draw(5, 8)

  def fn(x):
    return ring(x) * tf.reshape(weights, [5, 8])

  x = draw(5, 8, seed=1)
  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[5])
  assert plan.num_passes == 1
  want = ring_diagonal(x.numpy()) * weights
  np.testing.assert_allclose(plan(x)[1][0], want, rtol=1e-12)


def test_large_data_are_not_probed_where_the_answer_cannot_matter(monkeypatch):
  """A run of an op on 200,000 rows takes longer than all the rest."""
  probed = []
  attempt = probe._try

  def counted(test, step, *args):
    probed.append(step.op_type)
    return attempt(test, step, *args)

  monkeypatch.setattr(probe, '_try', counted)
  rows = np.random.default_rng(0).normal(size=[200_000, 25])

  def fn(x):
    curved = tf.nn.softplus(tf.linalg.matvec(tf.constant(rows), x))
    linear = tf.linalg.matvec(tf.constant(rows + 1), x)
    return tf.reduce_sum(linear[:, ::2] - curved[:, ::2], -1)

  tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 25], tf.float64))
  assert not any('MatMul' in op_type for op_type in probed)


def length(x):
  return tf.shape(x)[0]


@pytest.mark.parametrize(
  'fn',
  [
    lambda x: tf.reduce_sum(x[: length(x), 1:5] ** 3, -1),
    lambda x: tf.reduce_sum(x[: tf.maximum(length(x), 1), ::2] ** 3, -1),
    lambda x: tf.reduce_sum(tf.signal.frame(x, 4, 2) ** 3, [-1, -2]),
    lambda x: tf.reduce_sum(
      tf.strided_slice(
        x, [0, 2], tf.stack([length(x), tf.shape(x)[1] - 1]), [1, 3]
      )
      ** 3,
      -1,
    ),
  ],
)
def test_slices_up_to_the_number_of_samples(fn):
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 8], tf.float64))
  assert plan.num_passes == 1
  assert not plan.notes
  x = tf.constant(np.random.default_rng(0).normal(size=[6, 8]))
  for batch in (1, 6):
    found = plan(x[:batch])
    np.testing.assert_allclose(
      tf.nest.flatten(found)[-1],
      hessian_by_copies(fn, x[:batch]),
      rtol=1e-10,
      atol=1e-12,
    )


def test_notes_say_of_ops_with_rules_why_they_are_dense():
  spec = tf.TensorSpec([None, 4], tf.float64)

  def rolled(x):
    return x * tf.roll(x, length(x) // 40, 0)

  notes = ' '.join(
    tfp_diag.plan_diag_jacobian(rolled, spec, sample_shape=[None]).notes
  )
  assert "What Roll (op 'Roll') depends on cannot be told" in notes
  assert 'register_rule' not in notes

  scale = tf.Variable(2.0, dtype=tf.float64)

  def loop(x):
    return tf.while_loop(
      lambda k, _: k < 3,
      lambda k, y: (k + 1, tf.roll(y, 1, -1) * scale),
      [0, x],
    )[1]

  notes = tfp_diag.plan_diag_jacobian(loop, spec, sample_shape=[None]).notes
  assert not any('may change a variable' in note for note in notes)


def test_slices_from_the_end_up_to_a_size():
  def fn(x):
    end = tf.maximum(0 * length(x), 8)
    return tf.reduce_sum(x[:, -4:end] * x[:, :4] ** 2, -1)

  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 8], tf.float64))
  x = tf.constant(np.random.default_rng(0).normal(size=[3, 8]))
  np.testing.assert_allclose(
    tf.nest.flatten(plan(x))[-1],
    hessian_by_copies(fn, x),
    rtol=1e-10,
    atol=1e-12,
  )
  assert 'cannot be told' not in str(plan)


def filtered(p, steps=20):
  """A local level, its Kalman filter written out by Python."""
  q, r = tf.exp(p[..., 0]), tf.exp(p[..., 1])
  mean, variance, total = tf.zeros_like(q), tf.ones_like(q), 0.0
  for t in range(steps):
    variance = variance + q
    scale, error = variance + r, np.sin(t) - mean
    total -= 0.5 * (tf.math.log(scale) + error**2 / scale)
    gain = variance / scale
    mean, variance = mean + gain * error, (1 - gain) * variance
  return total


def forward_algorithm(logits, steps=12):
  """A hidden Markov model of three states, written out by Python."""
  moves = np.log(np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]))
  found = -0.5 * logits**2
  for t in range(1, steps):
    found = tf.reduce_logsumexp(found[..., :, tf.newaxis] + moves, -2)
    found -= 0.5 * (np.sin(t) - logits) ** 2
  return tf.reduce_logsumexp(found, -1)


@pytest.mark.parametrize('fn, size', [(filtered, 2), (forward_algorithm, 3)])
def test_loops_that_python_writes_out_run_by_reverse_passes(fn, size):
  """Their many small ops are traced in no other mode, and not one by one."""
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, size], tf.float64))
  assert (plan.num_passes, plan.mode) == (size, 'reverse_over_reverse')
  assert plan.ways[0].name == 'passes'
  x = tf.constant(np.random.default_rng(0).normal(size=[2, size]))
  np.testing.assert_allclose(plan(x)[2], hessian_by_copies(fn, x), rtol=1e-9)


def test_a_constant_of_a_graph_around_a_plan():
  """A plan that is made while a graph is built traces a graph of its own."""

  @tf.function(autograph=False)
  def outer(x):
    flags = tf.constant([0.0, 1.0, 0.0])

    def fn(x):
      kept = tf.math.multiply_no_nan(x, flags)
      return kept * tf.reduce_sum(kept, axis=-1, keepdims=True)

    plan = tfp_diag.plan_diag_jacobian(fn, tf.TensorSpec([2, 3]), [2])
    assert (plan.num_passes, plan.pattern.nnz) == (1, 1)
    return plan(x)[1][0]

  with warnings.catch_warnings():
    warnings.simplefilter('error')
    diag = outer(tf.ones([2, 3]))
  np.testing.assert_array_equal(diag, [[0.0, 2.0, 0.0]] * 2)
