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
"""The kernel's protocol: shapes, seeds, regimes, counts, bad points."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.examples import gaussian
from tfp_diag.mcmc import (
  LangevinTerms,
  PreconditionedMALA,
  UncalibratedPreconditionedLangevin,
)

_TARGET = gaussian.three_dimensional()


def _state(shape, dtype=tf.float32, seed=1):
  return tf.random.stateless_normal(shape, (seed, 0), dtype=dtype)


def _volatility(x):
  return 0.8 + 0.4 * tf.tanh(x + 0.5 * tf.roll(x, 1, axis=-1))


def _two_part_log_prob(x, w):
  return _TARGET.log_prob(x) - 0.5 * (w - 0.3 * tf.reduce_sum(x, -1)) ** 2


def _two_part_volatility(x, w):
  return [_volatility(x), 1.0 + 0.3 * tf.sin(w + x[..., 0])]


_SCALES = {
  'none': {},
  'scale': {'preconditioner': np.array([0.5, 1.0, 2.0])},
  'operator': {'preconditioner': tf.linalg.LinearOperatorDiag([0.5, 1.0, 2.0])},
  'volatility': {'volatility_fn': _volatility},
}


def _run(kernel, state, num_steps, seed=(1, 2)):
  results = kernel.bootstrap_results(state)
  for i in range(num_steps):
    state, results = kernel.one_step(state, results, seed=(seed[0] + i, 0))
  return state, results


# The constructor.


@pytest.mark.parametrize(
  'kernel_class', [PreconditionedMALA, UncalibratedPreconditionedLangevin]
)
def test_parameters_are_the_constructors_arguments(kernel_class):
  arguments = dict(
    target_log_prob_fn=_TARGET.log_prob,
    step_size=0.3,
    preconditioner=2.0,
    volatility_fn=None,
    parallel_iterations=4,
    discretization='euler',
    experimental_shard_axis_names=['a'],
    experimental_chain_axis_names=None,
    validate_args=True,
    name='langevin',
  )
  if kernel_class is UncalibratedPreconditionedLangevin:
    arguments['compute_acceptance'] = False
  kernel = kernel_class(**arguments)
  assert kernel.parameters == arguments
  again = type(kernel)(**kernel.parameters)
  assert again.parameters == arguments
  for name in ('target_log_prob_fn', 'step_size', 'preconditioner', 'name'):
    assert getattr(kernel, name) == arguments[name]
  assert kernel.experimental_shard_axis_names == ['a']
  resharded = kernel.experimental_with_shard_axes(['b'])
  assert resharded.parameters == {
    **arguments,
    'experimental_shard_axis_names': ['b'],
  }
  assert kernel.copy(step_size=0.1).step_size == 0.1


def test_one_axis_of_replicas():
  with pytest.raises(ValueError, match='a strategy has one axis of replicas'):
    PreconditionedMALA(
      _TARGET.log_prob,
      0.3,
      experimental_shard_axis_names=[None, 'data'],
      experimental_chain_axis_names='chains',
    )
  kernel = PreconditionedMALA(
    _TARGET.log_prob,
    0.3,
    experimental_shard_axis_names=[None],
    experimental_chain_axis_names='chains',
  )
  assert kernel.experimental_chain_axis_names == 'chains'


def test_calibration():
  arguments = (_TARGET.log_prob, 0.3)
  assert PreconditionedMALA(*arguments).is_calibrated
  assert not UncalibratedPreconditionedLangevin(*arguments).is_calibrated


def test_public_names():
  assert set(tfp_diag.mcmc.__all__) >= {
    'PreconditionedMALA',
    'UncalibratedPreconditionedLangevin',
  }


# Structure, dtypes and shapes.


def _specs(tree):
  return tf.nest.map_structure(lambda x: (x.dtype, tuple(x.shape)), tree)


@pytest.mark.parametrize('scale', _SCALES)
@pytest.mark.parametrize('chains', [[], [4], [2, 3], [2, 1, 3]])
def test_loop_carry_has_one_structure(scale, chains):
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.3, **_SCALES[scale])
  state = _state([*chains, 3])
  before = kernel.bootstrap_results(state)
  next_state, after = kernel.one_step(state, before, seed=(1, 2))
  assert _specs(next_state) == _specs(state)
  tf.nest.assert_same_structure(before, after)
  assert _specs(before) == _specs(after)
  assert after.log_accept_ratio.shape == chains
  proposal = UncalibratedPreconditionedLangevin(**kernel.parameters)
  before = proposal.bootstrap_results(state)
  next_state, after = proposal.one_step(state, before, seed=(1, 2))
  tf.nest.assert_same_structure(before, after)
  assert _specs((state, before)) == _specs((next_state, after))


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('container', [list, tuple])
def test_several_parts(dtype, container):
  kernel = PreconditionedMALA(
    _two_part_log_prob, [0.3, 0.1], volatility_fn=_two_part_volatility
  )
  state = container([_state([4, 3], dtype), _state([4], dtype)])
  next_state, results = _run(kernel, state, 2)
  assert type(next_state) is container
  assert [x.dtype for x in next_state] == [dtype, dtype]
  assert [x.shape for x in next_state] == [[4, 3], [4]]
  assert len(results.accepted_results.step_size) == 2
  terms = results.accepted_results.grads_target_log_prob
  assert isinstance(terms, LangevinTerms)
  for field in terms:
    assert [x.shape for x in field] == [[4, 3], [4]]


def test_one_part_in_a_list():
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.3)
  state = _state([4, 3])
  alone, _ = _run(kernel, state, 2)
  (in_a_list,), _ = _run(kernel, [state], 2)
  np.testing.assert_array_equal(alone, in_a_list)


@pytest.mark.parametrize('scale', _SCALES)
def test_chains_of_any_rank_are_the_same_chains(scale):
  # float32 on purpose: what broadcasts must do so without rounding apart.
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.5, **_SCALES[scale])
  flat = _state([12, 3])
  reference, reference_results = _run(kernel, flat, 3)
  for chains in ([3, 4], [2, 3, 2]):
    state, results = _run(kernel, tf.reshape(flat, [*chains, 3]), 3)
    np.testing.assert_allclose(
      tf.reshape(state, [12, 3]), reference, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(
      np.ravel(results.is_accepted), reference_results.is_accepted
    )


def test_tfp_mixes_chains_of_rank_two_and_this_kernel_does_not():
  """`tfp.math.diag_jacobian` reverses the axes of a sample shape of rank 2."""
  state = _state([2, 3, 3], tf.float64)
  derivative = 0.4 / tf.cosh(state + 0.5 * tf.roll(state, 1, axis=-1)) ** 2
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.5, volatility_fn=_volatility)
  terms = kernel.bootstrap_results(state).accepted_results.grads_target_log_prob
  np.testing.assert_allclose(terms.volatility[0], _volatility(state))
  np.testing.assert_allclose(
    terms.volatility_gradient[0], derivative, rtol=1e-10
  )

  upstream = tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(
    _TARGET.log_prob, tf.constant(0.5, tf.float64), _volatility
  )
  (squared,) = upstream.bootstrap_results(
    state
  ).accepted_results.grads_volatility
  right = 2.0 * _volatility(state) * derivative
  assert np.max(np.abs(squared - right)) > 0.01


def test_step_size_per_chain():
  kernel = PreconditionedMALA(
    _TARGET.log_prob, np.array([[[0.1]], [[0.5]]]), 1.3
  )
  state = _state([2, 4, 3], tf.float64)
  both = kernel.one_step(state, kernel.bootstrap_results(state), seed=(1, 2))[1]
  assert both.accepted_results.step_size.shape == [2, 1, 1]
  for i, step_size in enumerate([0.1, 0.5]):
    alone = PreconditionedMALA(_TARGET.log_prob, step_size, 1.3)
    results = alone.one_step(
      state, alone.bootstrap_results(state), seed=(1, 2)
    )[1]
    np.testing.assert_allclose(
      both.log_accept_ratio[i], results.log_accept_ratio[i], rtol=1e-10
    )


def test_scale_per_chain():
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.3, np.array([[0.5], [2.0]]))
  state = _state([2, 3], tf.float64)
  both = kernel.one_step(state, kernel.bootstrap_results(state), seed=(1, 2))[1]
  for i, scale in enumerate([0.5, 2.0]):
    alone = PreconditionedMALA(_TARGET.log_prob, 0.3, scale)
    results = alone.one_step(
      state, alone.bootstrap_results(state), seed=(1, 2)
    )[1]
    np.testing.assert_allclose(
      both.log_accept_ratio[i], results.log_accept_ratio[i], rtol=1e-10
    )


def test_step_size_per_part():
  kernel = PreconditionedMALA(_two_part_log_prob, [0.1, 0.5])
  state = [_state([4, 3], tf.float64), _state([4], tf.float64)]
  both = kernel.one_step(state, kernel.bootstrap_results(state), seed=(1, 2))[1]
  for i, step_size in enumerate([0.1, 0.5]):
    alone = PreconditionedMALA(_two_part_log_prob, step_size)
    results = alone.one_step(
      state, alone.bootstrap_results(state), seed=(1, 2)
    )[1]
    np.testing.assert_allclose(
      both.proposed_state[i], results.proposed_state[i], rtol=1e-12
    )


# Seeds and regimes.


@pytest.mark.parametrize(
  ('scale', 'dtype', 'dynamic_in'),
  [('scale', tf.float32, 'graph'), ('volatility', tf.float64, 'xla')],
)
def test_eager_graph_and_xla_draw_the_same_chains(scale, dtype, dynamic_in):
  """The number of chains is known to one of graph and XLA, not to the other."""
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.8, **_SCALES[scale])

  def run(state):
    def body(i, state, results):
      return i + 1, *kernel.one_step(state, results, seed=[7, i])

    loop = (tf.constant(0), state, kernel.bootstrap_results(state))
    return tf.while_loop(lambda i, *_: i < 8, body, loop, maximum_iterations=8)[
      1:
    ]

  start = _state([5, 3], dtype)
  eager, eager_results = run(start)
  rtol = 1e-3 if dtype == tf.float32 else 1e-10
  for regime in ('graph', 'xla'):
    num_chains = None if regime == dynamic_in else 5
    function = tf.function(
      run,
      input_signature=[tf.TensorSpec([num_chains, 3], dtype)],
      jit_compile=regime == 'xla',
    )
    state, results = function(start)
    np.testing.assert_allclose(state, eager, rtol=rtol, atol=rtol)
    np.testing.assert_array_equal(
      results.is_accepted, eager_results.is_accepted
    )
  moved = np.any(np.abs(eager - start) > 0.1, axis=-1)
  assert np.all(moved)


def test_seeds():
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.8)
  state = _state([5, 3])
  results = kernel.bootstrap_results(state)

  def proposal(seed):
    return kernel.one_step(state, results, seed=seed)[1].proposed_state.numpy()

  np.testing.assert_array_equal(proposal((1, 2)), proposal((1, 2)))
  assert not np.any(proposal((1, 2)) == proposal((1, 3)))
  # Without a seed, and with a Python integer, TFP's stateful seeds.
  assert not np.any(proposal(None) == proposal(None))
  tf.random.set_seed(1)
  first = proposal(5)
  tf.random.set_seed(1)
  np.testing.assert_array_equal(first, proposal(5))


def test_no_assertions_in_a_compiled_step():
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.8, volatility_fn=_volatility)

  @tf.function
  def step(state):
    return kernel.one_step(state, kernel.bootstrap_results(state), seed=(1, 2))

  graph = step.get_concrete_function(_state([5, 3])).graph
  assert not [op for op in graph.get_operations() if op.type == 'Assert']


# Nothing is computed twice.


class _Counting:
  """Counts executed values and gradients of a target, and of a volatility."""

  def __init__(self):
    self.values = self.gradients = self.volatilities = 0

  def log_prob(self, x):
    @tf.custom_gradient
    def fn(x):
      self.values += 1

      def gradient(upstream):
        self.gradients += 1
        return -upstream[..., tf.newaxis] * x

      return -0.5 * tf.reduce_sum(x**2, -1), gradient

    return fn(x)

  def volatility(self, x):
    self.volatilities += 1
    return 1.0 + 0.1 * tf.tanh(x)


@pytest.mark.parametrize('scale', [None, np.ones(3)])
def test_one_gradient_per_step(scale):
  count = _Counting()
  kernel = PreconditionedMALA(count.log_prob, 0.5, scale)
  state = _state([4, 3])
  results = kernel.bootstrap_results(state)
  # Once evaluated, and once looked at aside: do the chains mix?
  assert (count.values, count.gradients) == (2, 2)
  for i in range(5):
    state, results = kernel.one_step(state, results, seed=(i, 0))
  assert (count.values, count.gradients) == (7, 7)


def test_one_gradient_and_one_diagonal_per_step():
  count = _Counting()
  kernel = PreconditionedMALA(
    count.log_prob, 0.5, volatility_fn=count.volatility
  )

  @tf.function
  def start(state):
    return kernel.bootstrap_results(state)

  @tf.function
  def step(state, results):
    return kernel.one_step(state, results, seed=(1, 2))

  state = _state([4, 3])
  results = start(state)
  # Once evaluated, and once looked at aside: do the chains mix?
  assert (count.values, count.gradients) == (2, 2)
  step(state, results)
  assert (count.values, count.gradients) == (3, 3)
  # In Python the volatility is called to find its structure, too. What counts
  # is what runs.
  for graph in (
    start.get_concrete_function(state).graph,
    step.get_concrete_function(state, results).graph,
  ):
    types = [op.type for op in graph.get_operations()]
    assert types.count('Tanh') == 1  # The volatility.
    assert types.count('TanhGrad') == 1  # One pass for all coordinates.


def test_eager_steps_evaluate_the_volatility_once_per_point():
  count = _Counting()
  kernel = PreconditionedMALA(
    count.log_prob, 0.5, volatility_fn=count.volatility
  )
  _run(kernel, _state([4, 3]), 5)
  # Once more at the start, to see whether the chains mix.
  assert (count.values, count.gradients) == (7, 7)
  assert count.volatilities == 6


@pytest.mark.parametrize('scale', _SCALES)
def test_cache_belongs_to_the_state(scale):
  kernel = PreconditionedMALA(_TARGET.log_prob, 1.5, **_SCALES[scale])
  state, results = _run(kernel, _state([40, 3]), 4)
  assert 0 < np.sum(results.is_accepted) < 40
  fresh = kernel.bootstrap_results(state).accepted_results
  for field in ('target_log_prob', 'grads_target_log_prob'):
    tf.nest.map_structure(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
      getattr(results.accepted_results, field),
      getattr(fresh, field),
    )


# Bad points.


def _broken_log_prob(value):
  """A normal whose log density is `value` beyond 1."""

  def log_prob(x):
    normal = -0.5 * tf.reduce_sum(x**2, -1)
    return tf.where(x[..., 0] > 1.0, tf.constant(value, x.dtype), normal)

  return log_prob


@tf.custom_gradient
def _broken_gradient_log_prob(x):
  def gradient(upstream):
    bad = tf.where(x > 1.0, tf.constant(np.nan, x.dtype), -x)
    return upstream[..., tf.newaxis] * bad

  return -0.5 * tf.reduce_sum(x**2, -1), gradient


def _broken_volatility(value):
  def volatility(x):
    return tf.where(x > 1.0, tf.constant(value, x.dtype), tf.ones_like(x))

  return volatility


def _normal_log_prob(x):
  return -0.5 * tf.reduce_sum(x**2, -1)


_BROKEN = {
  'density nan': (_broken_log_prob(np.nan), {}),
  'density inf': (_broken_log_prob(np.inf), {}),
  'density -inf': (_broken_log_prob(-np.inf), {}),
  'gradient nan': (_broken_gradient_log_prob, {}),
  **{
    f'volatility {value}': (
      _normal_log_prob,
      {'volatility_fn': _broken_volatility(value)},
    )
    for value in (np.nan, np.inf, 0.0, -1.0)
  },
}


@pytest.mark.parametrize(
  ('case', 'jit_compile'),
  [
    *((case, None) for case in _BROKEN),
    ('density nan', True),
    ('volatility -1.0', True),
  ],
)
def test_a_bad_proposal_is_rejected_and_poisons_nothing(case, jit_compile):
  log_prob, kwargs = _BROKEN[case]
  kernel = PreconditionedMALA(log_prob, 0.7, **kwargs)
  step = kernel.one_step
  if jit_compile:
    step = tf.function(step, jit_compile=True)
  state = tf.zeros([50, 2])
  results = kernel.bootstrap_results(state)
  num_bad = 0
  last_moves = np.zeros(50, bool)
  for i in range(30):
    state, results = step(state, results, seed=tf.constant([i, 5]))
    bad = results.proposed_state.numpy()[:, 0] > 1.0
    if 'gradient' in case or 'volatility' in case:
      bad |= results.proposed_state.numpy()[:, 1] > 1.0
    num_bad += np.sum(bad)
    assert not np.any(results.is_accepted.numpy()[bad])
    assert np.all(results.log_accept_ratio.numpy()[bad] == -np.inf)
    assert not np.any(np.isnan(results.log_accept_ratio))
    cached = results.accepted_results
    for x in tf.nest.flatten([state, cached.grads_target_log_prob]):
      assert np.all(np.isfinite(x))
    assert np.all(np.isfinite(cached.target_log_prob))
    if i >= 15:
      last_moves |= results.is_accepted.numpy()
  assert num_bad > 100
  assert np.all(last_moves)


@pytest.mark.parametrize(
  ('case', 'what'),
  [
    ('density nan', 'log density is nan'),
    ('density -inf', 'log density is -inf'),
    ('gradient nan', 'gradient of the target log density is nan'),
    ('volatility nan', '`volatility_fn` is nan'),
    ('volatility 0.0', '`volatility_fn` is 0.0 '),
    ('volatility -1.0', '`volatility_fn` is -1.0 '),
  ],
)
def test_a_bad_start_is_a_clear_error(case, what):
  log_prob, kwargs = _BROKEN[case]
  kernel = PreconditionedMALA(log_prob, 0.7, **kwargs)
  start = np.zeros([2, 3, 2], np.float32)
  start[1, 2] = 1.5
  with pytest.raises(ValueError, match=what + '.*1 of 6 chains.*') as error:
    kernel.bootstrap_results(start)
  assert 'at index [1, 2], but must be' in str(error.value)


def test_a_bad_start_of_a_single_chain_names_the_part():
  kernel = PreconditionedMALA(
    _two_part_log_prob,
    0.3,
    volatility_fn=lambda x, w: [tf.ones_like(x), w],
  )
  with pytest.raises(
    ValueError, match=r'is -2\.0 for part 1 of the state, but'
  ):
    kernel.bootstrap_results([tf.zeros([3]), tf.constant(-2.0)])


@pytest.mark.parametrize('compiled', [False, True])
def test_validate_args_reports_a_bad_volatility(compiled):
  kernel = PreconditionedMALA(
    _normal_log_prob,
    0.7,
    volatility_fn=_broken_volatility(-1.0),
    validate_args=True,
  )
  state = tf.zeros([50, 2])
  results = kernel.bootstrap_results(state)
  step = kernel.one_step
  if compiled:
    step = tf.function(step)
  with pytest.raises(tf.errors.InvalidArgumentError, match='standard dev'):
    for i in range(5):
      state, results = step(state, results, seed=tf.constant([i, 5]))


def test_validate_args_reports_a_bad_start_in_a_graph():
  kernel = PreconditionedMALA(_broken_log_prob(np.nan), 0.7, validate_args=True)
  bootstrap = tf.function(kernel.bootstrap_results)
  bootstrap(tf.zeros([4, 2]))
  with pytest.raises(tf.errors.InvalidArgumentError, match='start cannot be'):
    bootstrap(2.0 * tf.ones([4, 2]))


# Wrong arguments.


def test_refuses_two_kinds_of_scale():
  with pytest.raises(ValueError, match='Both `preconditioner` and'):
    PreconditionedMALA(
      _TARGET.log_prob, 0.3, preconditioner=1.0, volatility_fn=_volatility
    )


@pytest.mark.parametrize(
  'kwargs',
  [
    {'target_log_prob_fn': 3.0},
    {'target_log_prob_fn': _TARGET.log_prob, 'volatility_fn': 2.0},
  ],
)
def test_refuses_what_cannot_be_called(kwargs):
  with pytest.raises(TypeError, match='cannot be called'):
    PreconditionedMALA(step_size=0.3, **kwargs)


_LOWER_2 = tf.linalg.LinearOperatorDiag([1.0, 2.0])


@pytest.mark.parametrize(
  ('kwargs', 'error', 'match'),
  [
    ({'step_size': [0.1, 0.2]}, ValueError, '`step_size` has 2 entries'),
    ({'step_size': np.ones(5)}, ValueError, 'does not broadcast to part 0'),
    ({'step_size': np.ones([7, 1, 3])}, ValueError, 'does not broadcast'),
    ({'preconditioner': [1.0, 2.0]}, ValueError, 'has 2 entries'),
    ({'preconditioner': np.ones(5)}, ValueError, 'does not broadcast'),
    ({'preconditioner': 0.0}, ValueError, 'not positive'),
    ({'preconditioner': np.array([1.0, -1.0, 1.0])}, ValueError, 'not posit'),
    ({'preconditioner': _LOWER_2}, ValueError, 'must be square and act on'),
    *(
      ({'preconditioner': operator}, ValueError, 'singular, or not finite')
      for operator in (
        tf.linalg.LinearOperatorFullMatrix(tf.ones([3, 3])),
        tf.linalg.LinearOperatorDiag([1.0, np.nan, 1.0]),
        tf.linalg.LinearOperatorDiag([1.0, 0.0, 1.0]),
        tf.linalg.LinearOperatorLowerTriangular(
          [[1.0, 0.0, 0.0], [np.inf, 1.0, 0.0], [0.0, 0.0, 1.0]]
        ),
        tf.linalg.LinearOperatorZeros(3),
      )
    ),
    (
      {'preconditioner': tf.linalg.LinearOperatorFullMatrix(tf.ones([3, 2]))},
      ValueError,
      'must be square',
    ),
    (
      {'preconditioner': tf.linalg.LinearOperatorDiag(np.ones(3))},
      TypeError,
      'has dtype float64',
    ),
    (
      {'volatility_fn': lambda x: [x, x]},
      ValueError,
      'returned 2 values for a state of 1 part;',
    ),
    (
      {'target_log_prob_fn': lambda x: -tf.reduce_sum(x**2)[tf.newaxis]},
      ValueError,
      'one value per chain',
    ),
    (
      {'target_log_prob_fn': lambda x: tf.zeros([4])},
      ValueError,
      'does not depend on part 0',
    ),
  ],
)
def test_refuses_what_does_not_fit(kwargs, error, match):
  arguments = {
    'target_log_prob_fn': _TARGET.log_prob,
    'step_size': 0.1,
    **kwargs,
  }
  kernel = PreconditionedMALA(**arguments)
  with pytest.raises(error, match=match):
    kernel.bootstrap_results(tf.ones([4, 3]))


_RANK_TWO = np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
_CORRELATED = np.float32([[1, 0.999, 0], [1, 1, 0], [0, 0, 1e-12]])


@pytest.mark.parametrize(
  ('operator', 'is_invertible'),
  [
    (tf.linalg.LinearOperatorFullMatrix(_RANK_TWO), False),
    (tf.linalg.LinearOperatorFullMatrix(_CORRELATED), True),
    (tf.linalg.LinearOperatorDiag([1e-12, -1.0, 1e12]), True),
  ],
)
def test_a_matrix_of_constants_is_invertible(operator, is_invertible):
  """In a graph, too; and units of any size are no fault."""
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.1, operator)
  start = tf.function(kernel.bootstrap_results, autograph=False)
  if is_invertible:
    start(tf.ones([4, 3]))
    return
  with pytest.raises(ValueError, match='LinearOperatorFullMatrix that is sing'):
    start(tf.ones([4, 3]))


def test_refuses_a_state_of_the_wrong_kind():
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.1)
  with pytest.raises(TypeError, match='Part 0 of the state has dtype int32'):
    kernel.bootstrap_results(tf.ones([4, 3], tf.int32))
  with pytest.raises(TypeError, match='The state is a dict'):
    kernel.bootstrap_results({'x': tf.ones([4, 3])})
  operator = tf.linalg.LinearOperatorDiag([1.0])
  kernel = PreconditionedMALA(lambda x: -(x**2), 0.1, operator)
  with pytest.raises(ValueError, match='whose event is a scalar'):
    kernel.bootstrap_results(tf.ones([4]))


@pytest.mark.parametrize('num_names', [1, 3])
def test_refuses_another_number_of_shard_axes(num_names):
  kernel = PreconditionedMALA(
    lambda x, y: -(x**2) - y**2,
    0.1,
    experimental_shard_axis_names=[None] * num_names,
  )
  state = [tf.zeros([3]), tf.zeros([3])]
  with pytest.raises(ValueError, match=r'shard_axis_names. is .* has 2 parts'):
    kernel.one_step(state, kernel.bootstrap_results(state), seed=(0, 1))


def test_refuses_a_nested_state():
  a, b = tf.zeros([3]), tf.zeros([3])
  kernel = PreconditionedMALA(lambda x, y: -(x[0] ** 2) - y**2, 0.1)
  with pytest.raises(
    TypeError, match='Part 0 of the state is a list, but tran'
  ):
    kernel.bootstrap_results([[a, b], b])


@pytest.mark.parametrize(
  'step_size',
  [0, -1, float('nan'), np.inf, tf.constant(-1.0), [0.1, 0.0], np.zeros([3])],
  ids=str,
)
@pytest.mark.parametrize(
  'make',
  [
    lambda h: tfp_diag.mcmc.PreconditionedMALA(_standard, h),
    lambda h: tfp_diag.mcmc.PreconditionedMALA(_standard, 0.1).copy(
      step_size=h
    ),
    lambda h: tfp_diag.mcmc.UncalibratedPreconditionedLangevin(_standard, h),
    lambda h: tfp_diag.mcmc.FisherDivergenceMALA(_standard, h, 10),
    lambda h: tfp_diag.mcmc.FisherAdaptiveMALA(_standard, h, 10, 2),
  ],
  ids=['mala', 'copy', 'uncalibrated', 'divergence', 'fisher'],
)
def test_a_step_size_is_refused_when_a_kernel_is_made(make, step_size):
  with pytest.raises(ValueError, match='`step_size` must be positive and fini'):
    make(step_size)


@pytest.mark.parametrize('step_size', ['big', None, 1j, object(), {}, True, []])
def test_what_is_no_step_size_is_refused_when_a_kernel_is_made(step_size):
  with pytest.raises(TypeError, match='`step_size` is'):
    tfp_diag.mcmc.PreconditionedMALA(_standard, step_size)


def test_a_step_size_without_a_value_is_taken():
  variable = tf.Variable(-1.0)  # Its value may change.
  tfp_diag.mcmc.PreconditionedMALA(_standard, variable)

  @tf.function(autograph=False)
  def step(h):
    kernel = tfp_diag.mcmc.PreconditionedMALA(_standard, h)
    results = kernel.bootstrap_results(tf.ones([2, 3]))
    return results.accepted_results.step_size

  assert step(tf.constant(-0.5)) == -0.5


@pytest.mark.parametrize(
  ('preconditioner', 'match'),
  [
    ('local', r"is 'local', but .*`LocalHessianPreconditioner\(\)`"),
    (tfp_diag.mcmc.LocalHessianPreconditioner, 'the class Local.*an instance'),
    ([None, tfp_diag.mcmc.LocalHessianPreconditioner()], 'whose entry 1 is a'),
    ([lambda x: 1.0 + x**2], 'entry 0 is .* a function of the position'),
    ({'a': 1.0}, 'list of these'),
  ],
)
def test_what_is_no_scale_is_refused_when_a_kernel_is_made(
  preconditioner, match
):
  with pytest.raises(TypeError, match=match):
    tfp_diag.mcmc.PreconditionedMALA(_standard, 0.1, preconditioner)


def _standard(x):
  return -0.5 * tf.reduce_sum(x**2, -1)
