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
"""Runs that end when they have enough."""

import collections
import pickle

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc import StopWhen


class Autoregression(tfp.mcmc.TransitionKernel):
  """x' = 0.5 x + noise, which takes no time to trace."""

  is_calibrated = True

  def bootstrap_results(self, state):
    return ()

  def one_step(self, state, results, seed=None):
    noise = tf.random.stateless_normal(state.shape, seed)
    return 0.5 * state + noise, results


def sample(num_results, stop_when, **kwargs):
  settings = dict(block_size=20, seed=1, jit_compile=False)
  return tfp_diag.mcmc.sample(
    Autoregression(),
    np.zeros([4, 2], np.float32),
    num_results,
    stop_when=stop_when,
    **{**settings, **kwargs},
  )


def test_thresholds_are_those_of_rhat_and_ess():
  draws = np.random.default_rng(0).normal(size=[100, 4, 3])
  draws[:, 1, 2] += 1.0
  rhat = np.max(tfp_diag.mcmc.rhat(draws))
  ess = np.min(tfp_diag.mcmc.ess(draws))
  assert StopWhen(max_rhat=rhat + 0.01)(draws)
  assert not StopWhen(max_rhat=rhat - 0.01)(draws)
  assert StopWhen(min_ess=ess - 1)(draws)
  assert not StopWhen(min_ess=ess + 1)(draws)
  assert StopWhen(max_rhat=rhat + 0.01, min_ess=ess - 1)(draws)
  assert not StopWhen(max_rhat=rhat + 0.01, min_ess=ess + 1)(draws)
  assert not StopWhen(max_rhat=rhat - 0.01, min_ess=ess - 1)(draws)


def test_all_parts_count():
  random = np.random.default_rng(0)
  good, bad = random.normal(size=[2, 100, 4])
  bad += np.arange(4.0)
  stop_when = StopWhen(max_rhat=1.1)
  assert stop_when({'a': good, 'b': good[..., np.newaxis]})
  assert not stop_when({'a': good, 'b': bad[..., np.newaxis]})


@pytest.mark.parametrize(
  'stop_when', [StopWhen(1.1), StopWhen(None, 10.0)], ids=['rhat', 'ess']
)
def test_a_coordinate_that_never_moves_is_not_enough(stop_when):
  draws = np.random.default_rng(0).normal(size=[100, 4, 2])
  assert stop_when(draws)
  draws[..., 1] = 1.0
  assert not stop_when(draws)


def test_few_draws_are_not_judged():
  draws = np.random.default_rng(0).normal(size=[60, 4])
  assert StopWhen(min_ess=10.0)(draws)
  assert not StopWhen(min_ess=10.0)(draws[:49])
  assert StopWhen(min_ess=10.0, min_draws=40)(draws[:49])


def test_axes_of_chains():
  draws = np.random.default_rng(0).normal(size=[100, 2, 3, 5])
  assert StopWhen(1.1, 50.0, chain_ndims=2)(draws)
  assert StopWhen(None, 50.0, chain_ndims=0)(draws[:, 0, 0])
  with pytest.raises(ValueError, match='compares chains, but there is one'):
    StopWhen(1.1, 50.0, chain_ndims=0)(draws)
  with pytest.raises(ValueError, match='asks for nothing'):
    StopWhen()(draws)


def test_a_run_ends_at_the_first_block_that_has_enough():
  stop_when = StopWhen(min_ess=150.0)
  found = sample(1000, stop_when)
  assert found.stopped_by == 'stop_when'
  assert found.num_results == len(found.draws)
  full = sample(1000, None)
  assert full.stopped_by == 'finished'
  np.testing.assert_array_equal(found.draws, full.draws[: len(found.draws)])
  enough = [n for n in range(20, 1001, 20) if stop_when(full.draws[:n])]
  # Draws are judged after every block as long as a block is a twentieth.
  assert found.num_results == enough[0] < 400
  np.testing.assert_array_equal(found.final_state, found.draws[-1])


def test_a_run_of_one_block_asks_at_its_end():
  """Or what is wrong with a function would show in long runs alone."""
  seen = []

  def stop_when(draws, trace):
    seen.append(len(draws))
    return True

  for num_results in (7, 20, 0):
    assert sample(num_results, stop_when).stopped_by == 'finished'
  assert seen == [7, 20]
  with pytest.raises(ZeroDivisionError):
    sample(7, lambda draws, trace: 1 / 0)


def test_a_result_is_shown_on_one_line():
  found = sample(
    30, None, trace_fn=lambda state, _: {'first': state[0, 0], 'all': state}
  )
  assert repr(found) == (
    '<SampleResults finished: draws x [30, 4, 2]; '
    'trace all [30, 4, 2], first [30]>'
  )
  nothing = sample(30, None, trace_fn=lambda *_: {})
  assert repr(nothing).endswith('trace of nothing>')
  many = found._replace(trace=[np.zeros([30])] * 20)
  assert repr(many).endswith('x7 [30], and 12 more>')
  pair = tfp_diag.mcmc.DrawsAndTrace(found.draws, found.trace)
  assert repr(pair).startswith('<DrawsAndTrace: draws x [30, 4, 2]; trace all ')


def test_a_callable_sees_draws_and_trace():
  seen = []

  def stop_when(draws, trace):
    seen.append((draws.shape, trace['first'].shape))
    return len(draws) >= 60

  found = sample(
    100,
    stop_when,
    num_burnin_steps=30,
    trace_fn=lambda state, _: {'first': state[0, 0]},
  )
  # Of burn-in alone there is nothing to see.
  assert [draws[0] for draws, _ in seen] == [10, 30, 50, 70]
  assert seen[-1] == ((70, 4, 2), (70,))
  assert (found.num_results, found.stopped_by) == (70, 'stop_when')


def test_a_callable_cannot_change_the_draws():
  def sort(draws, _):
    draws.sort(axis=0)

  with pytest.raises(ValueError, match='read-only'):
    sample(100, sort)
  # They are the caller's afterwards.
  assert sample(20, None).draws.flags.writeable


@pytest.mark.parametrize('pieces', [(7, 25, 1000), (1000, 1000)])
def test_pieces_stop_where_the_whole_does(tmp_path, pieces):
  stop_when = StopWhen(min_ess=150.0)
  whole = sample(1000, stop_when)
  for num_results in pieces:
    found = sample(
      num_results, stop_when, checkpoint=tmp_path / 'run', resume=True
    )
  assert found.stopped_by == 'stop_when'
  np.testing.assert_array_equal(found.draws, whole.draws)
  # It goes on if asked to.
  longer = sample(
    whole.num_results + 50, None, checkpoint=tmp_path / 'run', resume=True
  )
  assert longer.num_results == whole.num_results + 50


def test_an_r_hat_that_no_chains_have_is_refused():
  with pytest.raises(ValueError, match=r'`max_rhat` is 0.9, .* at least 1'):
    sample(10, StopWhen(max_rhat=0.9))


def test_the_trace_says_which_axes_are_chains():
  """One chain of four coordinates, of which R-hat must not be taken."""
  rng = np.random.default_rng(3)
  draws = rng.normal(size=[200, 4])
  with pytest.raises(ValueError, match='there is one'):
    StopWhen(max_rhat=1.1)(draws, {'is_accepted': np.ones([200], bool)})
  # Chains of shape [2, 4], half of which are elsewhere.
  draws = rng.normal(size=[200, 2, 4, 3]) + 9.0 * (np.arange(4) < 2)[:, None]
  trace = {'is_accepted': np.ones([200, 2, 4], bool)}
  assert not StopWhen(max_rhat=1.1)(draws, trace)
  assert StopWhen(max_rhat=1.1, chain_ndims=1)(draws, trace)


def test_draws_of_the_adaptation_do_not_count():
  draws = np.random.default_rng(0).normal(size=[120, 4])
  tune = np.arange(120) < 60
  stop_when = StopWhen(min_ess=10.0)
  assert stop_when(draws, {'tune': tune})
  assert not stop_when(draws[:109], {'tune': tune[:109]})
  always = StopWhen(min_ess=10.0, min_draws=0)
  assert not always(draws[:60], {'tune': tune[:60]})
  # Of one chain that adapts nothing counts.
  tune = tune[:, np.newaxis] & (np.arange(4) == 2)
  assert not stop_when(draws[:109], {'tune': tune[:109]})


def test_a_trace_without_known_names():
  draws = np.random.default_rng(0).normal(size=[120, 4])
  trace = collections.namedtuple('Trace', ['total'])(draws.sum(1))
  assert StopWhen(min_ess=10.0, chain_ndims=1)(draws, trace)


def test_a_run_does_not_end_while_it_adapts():
  found = sample(
    200,
    StopWhen(min_ess=10.0),
    trace_fn=lambda state, _: {'tune': state[0, 0] < np.inf},
  )
  assert found.stopped_by == 'finished'


def test_what_is_not_callable_is_refused():
  with pytest.raises(ValueError, match=r'`stop_when` is 1\.01, but must be'):
    sample(10, 1.01)


@pytest.mark.parametrize(
  'says', [np.array([True, True]), [False], 'yes', 1, 0.0], ids=str
)
def test_one_truth_value_is_asked_for(says):
  with pytest.raises(ValueError, match=r'stop_when. returned .* True or False'):
    sample(40, lambda draws, trace: says)


def test_the_kernel_says_which_axes_are_chains():
  """One chain of five coordinates, and a trace that does not tell."""
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, -1), 0.02
  )
  with pytest.raises(ValueError, match='compares chains, but there is one'):
    tfp_diag.mcmc.sample(
      kernel,
      tf.zeros([5]),
      20,
      trace_fn=lambda _, results: {'h': results.accepted_results.step_size},
      stop_when=StopWhen(max_rhat=1.1),
      block_size=10,
      seed=1,
      jit_compile=False,
    )


@pytest.mark.parametrize(
  'trace_fn', [lambda x, _: x[0, 0], lambda *_: ()], ids=['array', 'empty']
)
def test_a_trace_without_names_does_not_matter(trace_fn):
  found = sample(200, StopWhen(min_ess=50.0), trace_fn=trace_fn)
  assert found.stopped_by == 'stop_when'


@pytest.mark.parametrize(
  'says', [True, np.bool_(True), tf.constant(True), np.array([True])], ids=str
)
def test_truth_values_of_any_kind_will_do(says):
  assert sample(40, lambda draws, trace: says).stopped_by == 'stop_when'


@pytest.mark.parametrize(
  ('fields', 'match'),
  [
    ({}, 'asks for nothing'),
    ({'max_rhat': 0.5}, '`max_rhat` is 0.5'),
    ({'max_rhat': 'small'}, '`max_rhat` is'),
    ({'min_ess': float('nan')}, '`min_ess` is nan'),
    ({'min_ess': np.inf}, '`min_ess` is inf'),
    ({'max_rhat': 1.1, 'min_draws': -1}, '`min_draws` is -1'),
    ({'max_rhat': 1.1, 'chain_ndims': 0.5}, '`chain_ndims` is 0.5'),
  ],
)
def test_is_refused_when_it_is_made(fields, match):
  with pytest.raises(ValueError, match=match):
    StopWhen(**fields)


def test_is_a_value():
  made = StopWhen(1.1, min_draws=7)
  assert made == StopWhen(max_rhat=1.1, min_draws=7) != StopWhen(1.2)
  assert repr(made) == (
    'StopWhen(max_rhat=1.1, min_ess=None, min_draws=7, chain_ndims=None)'
  )
  assert made._replace(chain_ndims=2).chain_ndims == 2
  assert type(pickle.loads(pickle.dumps(made))) is StopWhen
