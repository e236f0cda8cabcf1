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
"""Summaries against closed forms and arviz, and what they must complain of."""

import collections

import arviz as az
import numpy as np
import pytest
import scipy.signal
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import (
  PreconditionedMALA,
  StopWhen,
  nested_rhat,
  sample,
  summarize,
  windowed_adaptive_mala,
)
from tfp_diag.mcmc.diagnose import convergence_warnings
from tfp_diag.mcmc.diagnose.summarize import warn_if_not_converged
from tfp_diag.mcmc.run.trace import default_trace


def ar1(coefficient, shape, seed=0):
  """A stationary AR(1) with unit variance; the draws are the first axis."""
  noise = np.random.default_rng(seed).normal(size=shape)
  noise[1:] *= np.sqrt(1 - coefficient**2)
  return scipy.signal.lfilter([1.0], [1.0, -coefficient], noise, axis=0)


def test_monte_carlo_errors_are_the_spread_of_the_estimates():
  """Of 200 runs: the spread of their means and sds, known to 5 per cent."""
  draws = 2.0 * ar1(0.7, [500, 4, 200]) + 5.0
  found = summarize(draws)
  assert found.names[199] == 'x[199]'
  spread = np.std(found.mean)
  np.testing.assert_allclose(np.mean(found.mcse_mean), spread, rtol=0.2)
  spread = np.std(found.sd)
  np.testing.assert_allclose(np.mean(found.mcse_sd), spread, rtol=0.2)
  # Five standard errors of 200 averages.
  error = np.std(found.mean) / np.sqrt(200)
  assert abs(np.mean(found.mean) - 5.0) < 5 * error
  np.testing.assert_allclose(np.mean(found.sd), 2.0, rtol=0.01)


def test_columns():
  draws = np.stack([np.exp(ar1(a, [101, 4])) for a in (0.0, 0.5, 0.9)], axis=-1)
  found = summarize(draws, quantiles=(0.1, 0.9))
  flat = draws.reshape([-1, 3])
  expected = {
    'mean': np.mean(flat, axis=0),
    'sd': np.std(flat, axis=0, ddof=1),
    '10%': np.quantile(flat, 0.1, axis=0),
    '90%': np.quantile(flat, 0.9, axis=0),
  }
  columns = [np.ascontiguousarray(draws[..., i].T) for i in range(3)]
  for title, compute in {
    'mcse_mean': lambda x: az.mcse(x, method='mean'),
    'mcse_sd': lambda x: az.mcse(x, method='sd'),
    'ess_bulk': lambda x: az.ess(x, method='bulk'),
    'ess_tail': lambda x: az.ess(x, method='tail', prob=(0.05, 0.95)),
    'r_hat': lambda x: az.rhat(x, method='rank'),
  }.items():
    # Beside numba arviz returns arrays of one number.
    expected[title] = [np.squeeze(compute(x)) for x in columns]
  assert list(found.columns()) == list(expected)
  for title, column in found.columns().items():
    assert column.dtype == np.float64
    np.testing.assert_allclose(column, expected[title], rtol=1e-6)
  assert (found.num_draws, found.chain_shape) == (101, (4,))
  assert found.probs == (0.1, 0.9)


def test_names_of_structures():
  State = collections.namedtuple('State', ['rate', 'effects'])
  rate, effects = np.zeros([5, 2]), np.zeros([5, 2, 2, 1])

  def names(draws, **kwargs):
    return summarize(draws, **kwargs).names

  assert names(State(rate, effects)) == (
    'rate',
    'effects[0, 0]',
    'effects[1, 0]',
  )
  # In the order of the dict.
  assert names({'b': rate, 'a': [rate, (rate,)]}) == ('b', 'a.0', 'a.1.0')
  assert names([rate, effects]) == ('x0', 'x1[0, 0]', 'x1[1, 0]')
  assert names(rate) == ('x',)
  assert names(rate, var_names='mu') == ('mu',)
  assert names([rate, rate], var_names=['mu', 'tau']) == ('mu', 'tau')
  assert names(effects, chain_ndims=2) == ('x[0]',)
  assert names(rate, chain_ndims=0) == ('x[0]', 'x[1]')


def test_axes_of_chains_are_one_after_the_other():
  draws = ar1(0.5, [60, 2, 3, 2])
  found = summarize(tf.constant(draws, tf.float32), chain_ndims=2)
  flat = summarize(draws.reshape([60, 6, 2]))
  assert found.chain_shape == (2, 3) and flat.chain_shape == (6,)
  for title, column in flat.columns().items():
    np.testing.assert_allclose(found.columns()[title], column, rtol=1e-3)


def good_trace(shape):
  rng = np.random.default_rng(0)
  log_ratio = rng.normal(size=shape)
  return {
    'is_accepted': np.log(rng.uniform(size=shape)) < log_ratio,
    'log_accept_ratio': log_ratio,
    'diverging': np.zeros(shape, bool),
    'tune': np.zeros(shape[0], bool),
    'step_size': np.full(shape[0], 0.3),
  }


def test_a_good_run_has_no_warnings():
  draws, trace = ar1(0.3, [1000, 2, 4, 2]), good_trace([1000, 2, 4])
  # The trace tells how many axes the chains have.
  found = summarize(draws, trace)
  assert found.warnings == () and found.stuck_chains == ()
  assert (found.num_not_finite, found.num_divergences) == (0, 0)
  assert found.chain_shape == (2, 4)
  np.testing.assert_array_equal(
    found.acceptance_rate, np.mean(trace['is_accepted'], axis=0)
  )


def bad(**changes):
  """A good run after changes, and its warnings."""
  draws = ar1(0.3, [1000, 8, 7])
  trace = good_trace([1000, 8])
  for name, change in changes.items():
    change({'draws': draws, **trace}[name])
  return summarize(draws, trace)


def set_at(index, value):
  return lambda array: array.__setitem__(index, value)


def test_chains_that_never_moved_are_named():
  found = bad(draws=set_at(np.s_[:, [2, 5]], 0.1))
  assert found.stuck_chains == (2, 5)
  assert '2 of 8 chains never moved, at index 2, 5' in found.warnings[0]
  # R-hat sees it, too.
  assert np.all(found.r_hat > 1.01)
  draws = ar1(0.3, [100, 2, 4])
  draws[:, 1, 3] = np.nan
  found = summarize(draws, chain_ndims=2)
  assert found.stuck_chains == ((1, 3),)


def test_numbers_that_are_too_far_apart():
  """Near 1e5 those of float32 are 0.0078 apart."""
  draws = {'a': ar1(0.3, [400, 8]), 'b': 1e5 + 0.01 * ar1(0.3, [400, 8, 2])}
  assert not summarize(draws).warnings
  draws = {name: part.astype(np.float32) for name, part in draws.items()}
  [warning] = summarize(draws).warnings
  assert warning.startswith('b[0], b[1] vary by little more than their numbers')
  assert '(0.0078 near 100000)' in warning
  draws['b'] = (1e5 + 0.1 * ar1(0.3, [400, 8, 2])).astype(np.float32)
  assert not summarize(draws).warnings


def test_a_parameter_that_never_moved_is_named():
  draws = {'a': ar1(0.3, [1000, 8, 3]), 'b': np.full([1000, 8], 0.1)}
  found = summarize(draws)
  assert found.stuck_chains == ()
  assert np.isnan(found.r_hat[3]) and np.isnan(found.ess_bulk[3])
  assert found.sd[3] == 0.0
  (warning,) = found.warnings
  assert warning.startswith('b never moved: all draws are the same')
  # A longer run moves no constant.
  with pytest.warns(UserWarning, match=r'for constants, .* not defined\.$'):
    warn_if_not_converged(found, 'Draw more.')
  # All of a part.
  draws['b'] = np.full([1000, 8, 2], [0.1, 0.2])
  (warning,) = summarize(draws).warnings
  assert warning.startswith('b[0], b[1] never moved: all draws are the same')


@pytest.mark.parametrize('unit', [1e-200, 1e200])
def test_units_do_not_matter(unit):
  draws = ar1(0.3, [1000, 8])
  one, other = summarize(draws), summarize(unit * draws)
  assert other.warnings == ()
  for name in ('mean', 'sd', 'mcse_mean', 'mcse_sd'):
    np.testing.assert_allclose(
      getattr(other, name), unit * getattr(one, name), rtol=1e-6
    )


def test_entries_that_are_constants_of_a_part_are_no_fault():
  """A Cholesky factor of a correlation; and a chain that holds another one."""
  draws = np.zeros([1000, 8, 2, 2])
  draws[..., 0, 0] = 1.0
  draws[..., 1, :] = ar1(0.3, [1000, 8, 2])
  assert summarize(draws).warnings == ()
  draws[:, 3, 0, 1] = 0.5
  (warning,) = summarize(draws).warnings
  assert 'R-hat is 1.01 or more for x[0, 1], at worst inf' in warning


def test_draws_that_are_not_finite_are_named():
  found = bad(draws=set_at((7, 1, 2), np.inf))
  assert found.warnings == ('x[2] became NaN or infinite.',)


def test_disagreement_is_said():
  found = bad(draws=set_at(np.s_[:, 0, :6], 4.0 + ar1(0.3, [1000, 6])))
  warning = found.warnings[0]
  assert 'R-hat is 1.01 or more for x[0]' in warning
  assert 'x[4] and 1 more, at worst' in warning


def test_short_chains_that_agree_are_told_what_the_limit_takes():
  draws = ar1(0.7, [200, 500])
  (sentence,) = summarize(draws).warnings
  assert 'do not agree' not in sentence
  assert 'with 500 chains that takes an effective sample size of 49,751' in (
    sentence
  )
  draws[:, :100] += 1.0
  assert 'the chains do not agree yet' in ' '.join(summarize(draws).warnings)


def test_very_many_chains_of_few_draws_are_too_short_and_agree():
  """Fewer than 20 effective draws of each chain say nothing of that."""
  draws = ar1(0.25, [20, 5000])
  (sentence,) = summarize(draws).warnings
  assert 'with 5,000 chains that takes an effective sample size of 4' in (
    sentence
  )
  assert summarize(draws).ess_bulk[0] < 20 * 5000
  offset, wider = draws.copy(), draws.copy()
  offset[:, :1000] += 0.5
  wider[:, :1000] *= 2.0
  for other in (offset, wider):
    (sentence,) = summarize(other).warnings
    assert 'the chains do not agree' in sentence


@pytest.mark.parametrize(
  ('coefficient', 'num_draws', 'num_chains'),
  [(0.5, 20, 1000), (0.4, 20, 64), (0.9, 200, 64), (0.97, 1000, 64)],
)
def test_short_chains_whose_halves_meet_agree(
  coefficient, num_draws, num_chains
):
  """Draws next to each other have something in common, and it does not last.

  Of 200 seeds 7 % at most are told that they do not agree: three of ten in
  3 % of all cases. Of two modes all are.
  """
  found = []
  for seed in range(10):
    draws = ar1(coefficient, [num_draws, num_chains], seed)
    found.append(summarize(draws).warnings[0])
    (text, *_) = summarize(draws + 4.0 * (np.arange(num_chains) % 2)).warnings
    assert 'the chains do not agree' in text
  assert sum('that takes an effective sample' in text for text in found) >= 8


@pytest.mark.parametrize(('size', 'said'), [(15.0, 1), (5.0, 1), (200.0, 0)])
def test_what_lasts_decides_where_chains_are_short(size, said):
  """Made-up statistics of 100 chains."""
  columns = {
    'mean': np.zeros(1),
    'sd': np.ones(1),
    'spacing': np.zeros(1),
    'r_hat': np.array([1.05]),
    'ess_bulk': np.array([100.0 * size]),
    'ess_tail': np.array([100.0 * size]),
  }

  def sentence(at_least, lasting):
    columns['lasting_at_least'] = np.array([at_least])
    columns['lasting'] = np.array([lasting])
    (text,) = convergence_warnings.parameter_warnings(
      ['x'], [1], columns, 20, 100, 100, 400
    )
    return text

  # Halves of ten draws differ by 0.2 in variance, of which half is 1.049.
  for lasting in 1.005, 1.045:
    text = sentence(1.0, lasting)
    is_short = 'takes an effective sample size of 9,950' in text
    assert is_short == bool(said)
  assert 'the chains do not agree' in sentence(1.0, 1.053)
  assert 'the chains do not agree' in sentence(1.011, 1.03)


def test_chains_that_differ_in_width_are_not_too_short():
  widths = np.linspace(0.5, 2.0, 64)
  draws = np.random.default_rng(0).normal(size=[500, 64]) * widths
  (sentence,) = summarize(draws).warnings
  assert 'do not agree, on where it is or on how wide' in sentence
  assert 'takes an effective sample size' not in sentence


def test_few_effective_draws_are_said():
  draws = ar1(0.0, [40, 4])
  (warning,) = summarize(draws).warnings[-1:]
  assert 'less than 400 for x, at worst 1' in warning
  assert not any(
    'less than' in w for w in summarize(draws, min_ess=90).warnings
  )


def test_proposals_that_are_not_finite_are_counted():
  change = set_at(([1, 2, 3], [4, 5, 6]), [-np.inf, np.nan, -np.inf])
  found = bad(log_accept_ratio=change)
  assert found.num_not_finite == 3
  assert '3 proposals not finite (0.04%)' in str(found)
  (warning,) = found.warnings
  assert warning.startswith('3 proposals were rejected (0.04 %) since')
  found = bad(log_accept_ratio=set_at((1, 4), np.nan))
  assert found.warnings[0].startswith('1 proposal was rejected (0.01 %) since')


def test_divergences_are_counted():
  found = bad(diverging=set_at(np.s_[10:12], True))
  assert found.num_divergences == 16
  assert found.warnings[0].startswith(
    '16 of 8,000 recorded proposals diverged (0.2 %): parts of the target'
  )


def test_what_is_not_finite_hides_no_divergence():
  """Counted one by one: where both are the case, the first."""
  ratio = set_at(np.s_[:3, :4], -np.inf)
  found = bad(log_accept_ratio=ratio, diverging=set_at(np.s_[2:4], True))
  assert (found.num_not_finite, found.num_divergences) == (12, 12)
  assert [text[:12] for text in found.warnings] == [
    '12 proposals',
    '12 of 8,000 ',
  ]


def test_means_of_a_tree_that_underflow_are_finite():
  """NUTS reports log(mean(exp(-dH))); dH beyond 1000 is a divergence."""
  energy = np.random.default_rng(0).uniform(0.0, 2000.0, [1000, 8])
  fields = tfp.mcmc.nuts.NUTSKernelResults._fields
  results = tfp.mcmc.nuts.NUTSKernelResults(*[None] * len(fields))._replace(
    log_accept_ratio=-np.where(energy < 104.0, energy, np.inf),
    has_divergence=energy > 1000.0,
    reach_max_depth=np.zeros([1000, 8], bool),
  )
  expected = int(np.sum(energy > 1000.0))
  for trace in (results, default_trace(None, results)):
    found = summarize(ar1(0.3, [1000, 8]), trace)
    assert (found.num_not_finite, found.num_divergences) == (0, expected)
    (warning,) = found.warnings
    assert warning.startswith(f'{expected:,} of 8,000 recorded proposals')


@pytest.mark.parametrize(
  ('count', 'said'),
  [
    (2, '2 of 32,000 recorded proposals diverged (0.006 %), which is no more'),
    (5_000, '(15.6 %): parts of the target'),
  ],
)
def test_divergences_are_a_share(count, said):
  draws, diverging = ar1(0.3, [1000, 32]), np.zeros([1000, 32], bool)
  diverging.ravel()[:count] = True
  (warning,) = summarize(draws, {'diverging': diverging}).warnings
  assert said in warning
  is_many = 'does not help' in warning
  assert is_many == ('which R-hat cannot see' in warning) == (count > 2)


@pytest.mark.parametrize(
  ('count', 'num_steps', 'are_many'),
  [
    (None, 100, False),
    (1, 8_000, False),
    (3, 8_000, False),
    (4, 8_000, True),
    (4, 38_400, True),
    (6, 64_000, False),
    (7, 64_000, True),
    (21, 64_000, True),
    (448, 64_000, True),
  ],
)
def test_many_faults_are_several_and_a_share(count, num_steps, are_many):
  assert convergence_warnings.are_many_faults(count, num_steps) == are_many


def test_tuning_is_left_out():
  draws, trace = ar1(0.3, [200, 4]), good_trace([200, 4])
  draws[:50] += 100.0
  trace['tune'][:50] = True
  trace['diverging'][:50] = True
  found = summarize(draws, trace)
  assert found.num_draws == 150 and found.num_divergences == 0
  np.testing.assert_allclose(found.mean, np.mean(draws[50:]))


def test_too_little_is_said():
  draws = ar1(0.3, [1000, 4])
  (warning,) = summarize(draws[:3]).warnings
  assert warning.startswith('Too few draws')
  with pytest.warns(UserWarning, match=r'^Too few draws .* need 4\.$'):
    warn_if_not_converged(summarize(draws[:3]), 'Draw more.')
  (warning,) = summarize(draws[:, :1]).warnings
  assert warning.startswith('There is one chain')
  with pytest.warns(UserWarning, match=r'run several\.$'):
    warn_if_not_converged(summarize(draws[:, :1]), 'Draw more.')
  with pytest.warns(UserWarning, match=r'run several\. .* uncertain\.$'):
    warn_if_not_converged(summarize(draws[:9, :1]), 'Draw more.')
  assert summarize(draws[:1]).num_draws == 1
  with pytest.raises(ValueError, match='0 draws of 4 chains'):
    summarize(draws[:0])


@pytest.mark.parametrize(
  'fault, says',
  [
    ({'log_accept_ratio': -np.inf}, 'not finite .* build it in float64.*of it'),
    (
      {'diverging': True},
      'diverged .* Write the model .* does not help at all',
    ),
  ],
)
def test_a_longer_run_is_advised_where_it_helps(fault, says):
  """Not at an edge of the support, and not where steps are too long."""
  draws, trace = ar1(0.3, [1000, 4]), good_trace([1000, 4])
  for name, value in fault.items():
    trace[name][7] = value
  with pytest.warns(UserWarning, match=rf'{says}\.$'):
    warn_if_not_converged(summarize(draws, trace), 'Draw more.')
  draws[:, 0] += 1.0
  with pytest.warns(UserWarning, match=rf'{says}\. R-hat .* Draw more\.$'):
    warn_if_not_converged(summarize(draws, trace), 'Draw more.')


@pytest.mark.parametrize(
  ('num_draws', 'shift', 'fault', 'is_said'),
  [
    (1000, 3.0, {}, True),
    # Slow, short, stuck, or for a reason that is known.
    (1000, 1.0, {}, False),
    (50, 3.0, {}, False),
    (1000, 3.0, {'is_accepted': False}, False),
    (1000, 3.0, {'diverging': True}, False),
    (1000, 3.0, {'log_accept_ratio': -np.inf}, False),
  ],
)
def test_chains_that_move_may_keep_to_modes(num_draws, shift, fault, is_said):
  draws, trace = ar1(0.3, [num_draws, 4]), good_trace([num_draws, 4])
  draws[:, :2] += shift
  for name, value in fault.items():
    trace[name][1:] = value
  with pytest.warns(UserWarning, match=r'do not agree .* Draw more\.') as seen:
    warn_if_not_converged(summarize(draws, trace), 'Draw more.')
  says = 'Draw more. If modes are far apart, that does not help: order labels'
  assert (says in str(seen[0].message)) == is_said
  assert ('`tfp.mcmc.ReplicaExchangeMC`' in str(seen[0].message)) == is_said


def test_many_short_chains_go_by_nested_r_hat():
  draws = np.random.default_rng(0).normal(size=[6, 256])
  assert any('R-hat' in warning for warning in summarize(draws).warnings)
  found = summarize(draws, num_superchains=8)
  assert found.nested_r_hat == nested_rhat(draws, 8)
  assert not any('do not agree' in warning for warning in found.warnings)
  draws[:, :32] += 1.0
  (warning,) = summarize(draws, num_superchains=8).warnings[:1]
  assert 'Nested R-hat is 1.016 or more for x, at worst' in warning


@pytest.mark.parametrize('num_draws', [1, 3])
def test_a_single_draw_of_many_chains_can_be_enough(num_draws):
  draws = np.random.default_rng(0).normal(size=[num_draws, 256])
  assert not summarize(draws, num_superchains=8).warnings
  draws[:, :32] += 3.0
  (warning,) = summarize(draws, num_superchains=8).warnings
  assert 'Nested R-hat is 1.016 or more for x, at worst' in warning


def test_the_table():
  draws = {'mu': 1e5 + ar1(0.3, [1000, 4]), 'tau': ar1(0.3, [1000, 4])}
  lines = str(summarize(draws, good_trace([1000, 4]))).splitlines()
  assert lines[0].split()[:6] == ['parameter', 'mean', 'sd', '5%', '50%', '95%']
  assert [line.split()[0] for line in lines[2:4]] == ['mu', 'tau']
  assert lines[5].startswith('4 chains of 1,000 draws, acceptance 0.')
  assert lines[5].endswith('0 proposals not finite (0.00%), 0 divergences.')
  draws = ar1(0.3, [20, 4, 40])
  draws[:, 0, 35] += 9.0
  lines = str(summarize(draws)).splitlines()
  assert lines[0].startswith('the 30 largest R-hat of 40 parameters')
  assert lines[2].startswith('x[35] ') and lines[32] == ''
  assert lines[-1].startswith('WARNING: The effective')


def test_a_dash_is_what_is_not_defined():
  draws = np.zeros([100, 4, 3])
  draws[..., 1:] = ar1(0.3, [100, 4, 2])
  draws[3, 2, 2] = np.nan
  summary = summarize(draws)
  constant, moves, broken = str(summary).splitlines()[2:5]
  # Mean, sd and quantiles are numbers; errors, ESS and R-hat are not defined.
  assert constant.split() == ['x[0]', *['0'] * 5, *['-'] * 5]
  assert '-' not in moves.split()
  assert broken.split() == ['x[2]', *['nan'] * 10]
  assert constant in summary._repr_html_()
  one_chain = str(summarize(draws[:, :1, 1:2])).splitlines()[2].split()
  assert one_chain[-1] == '-' and one_chain[-2] != '-'


def test_draws_of_the_sampler():
  draws, trace = windowed_adaptive_mala(
    20,
    # Undefined from 2 on.
    lambda x: tf.math.log(2.0 - x) - 0.5 * x**2,
    init=tf.zeros([8]),
    num_adaptation_steps=100,
    discard_tuning=False,
    seed=(1, 2),
  )
  found = summarize(draws, trace)
  assert found.num_draws == 20 and found.chain_shape == (8,)
  after = trace['log_accept_ratio'][100:]
  assert found.num_not_finite == np.sum(~np.isfinite(after)) > 0


def test_kernel_results_are_a_trace():
  kernel = tfp.mcmc.SimpleStepSizeAdaptation(
    PreconditionedMALA(lambda x: -0.5 * x**2, 0.5), 4
  )
  draws, results = tfp.mcmc.sample_chain(
    5,
    tf.zeros([2, 3]),
    kernel=kernel,
    trace_fn=lambda _, results: results,
    seed=(0, 1),
  )
  found = summarize(draws, results)
  is_accepted = results.inner_results.is_accepted
  assert found.num_not_finite == 0 and found.chain_shape == (2, 3)
  np.testing.assert_allclose(
    found.acceptance_rate, np.mean(is_accepted, axis=0), rtol=1e-6
  )


@pytest.mark.parametrize(
  ('args', 'kwargs', 'error', 'match'),
  [
    (([],), {}, ValueError, 'no parts'),
    ((np.ones([5]),), {}, ValueError, r'x has shape \[5\].*1 for the chains'),
    (
      ({'a': np.ones([5, 2]), 'b': np.ones([5, 3])},),
      {},
      ValueError,
      r'b has \[5, 3\] draws and chains, but a has \[5, 2\]',
    ),
    (
      (np.ones([5, 2]),),
      {'var_names': ['a', 'b']},
      ValueError,
      'has 2 entries.*1 part;',
    ),
    (
      ([np.ones([5, 2])] * 2,),
      {'var_names': ['a', 'a']},
      ValueError,
      'not distinct',
    ),
    ((np.ones([5, 2]),), {'quantiles': [5]}, ValueError, 'between 0 and 1'),
    (
      (np.ones([5, 2]), {'is_accepted': np.ones([4, 2])}),
      {},
      ValueError,
      r'is_accepted in `trace` has shape \[4, 2\].*5 steps.*\[2\]',
    ),
    ((np.ones([5, 2]), np.ones([5, 2])), {}, TypeError, 'ndarray and must be'),
  ],
  ids=[
    'nothing',
    'no_chains',
    'other_chains',
    'names',
    'same_names',
    'quantiles',
    'other_trace',
    'no_trace',
  ],
)
def test_errors(args, kwargs, error, match):
  with pytest.raises(error, match=match):
    summarize(*args, **kwargs)


def test_one_value_per_draw_may_be_that_of_all_chains():
  """A chain that is elsewhere does not become a coordinate."""
  draws = ar1(0.0, [500, 8, 2])
  draws[:, 3] += 3.0
  trace = {'accept_ratio': np.full(500, 0.8)}
  found = summarize(draws, trace)
  assert found.names == ('x[0]', 'x[1]') and found.chain_shape == (8,)
  assert 'R-hat is 1.01 or more for x[0], x[1]' in found.warnings[0]
  assert not StopWhen(max_rhat=1.05)(draws, trace)
  # Other columns know better, and who asks for it has it.
  trace['is_accepted'] = np.ones([500, 8, 2], bool)
  assert summarize(draws, trace).chain_shape == (8, 2)
  del trace['is_accepted']
  assert summarize(draws, trace, chain_ndims=0).chain_shape == ()
  # Flags are no means: there is one chain, of a matrix.
  trace['is_accepted'] = np.ones([500], bool)
  assert summarize(draws, trace).chain_shape == ()
  # Nor can a vector of draws have chains.
  del trace['is_accepted']
  assert summarize([draws[:, 0, 0], draws], trace).chain_shape == ()


def test_columns_of_other_uses_have_any_shape():
  draws = ar1(0.0, [500, 8, 2])
  found = summarize(draws, {'scale': np.ones([500, 2]), 'x': np.ones(3)})
  assert found.chain_shape == (8,)


def test_a_step_size_of_each_coordinate():
  """What `sample` records by itself is understood."""
  kernel = PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, -1), tf.constant([0.1, 0.2, 0.3])
  )
  found = sample(kernel, tf.zeros([4, 3]), 20, seed=1, jit_compile=False)
  assert found.trace['step_size'].shape == (20, 3)
  summary = summarize(found.draws, found.trace)
  assert 'x[2]' in str(summary)


@pytest.mark.filterwarnings('error')
def test_a_log_density_whose_differences_are_rounded():
  draws = ar1(0.3, [1000, 8])
  for dtype, level, is_rounded in (
    (np.float32, 9e6, True),
    (np.float32, -9e6, True),
    (np.float32, 1e6, False),
    (np.float64, 1e12, False),
    (np.float32, np.nan, False),
    (np.float16, 65504.0, True),
    (tf.bfloat16.as_numpy_dtype, 3000.0, True),
    (np.int32, 10**9, False),
  ):
    log_prob = np.full([1000, 8], level, dtype)
    warnings = summarize(draws, {'target_log_prob': log_prob}).warnings
    assert len(warnings) == is_rounded
    if is_rounded and dtype is np.float32:
      assert 'numbers of float32 are 1 apart' in warnings[0]


def test_places_that_chains_were_moved_away_from():
  draws = np.random.default_rng(0).normal(size=[50, 20, 2])
  far = np.tile([0.0, 9.0], [4, 1])
  (sentence,) = convergence_warnings.unreached(far, draws)
  assert 'In the warm-up 4 chains' in sentence
  assert 'no draw is there' in sentence
  # One of half the mass is enough.
  for count, said in (1, 'up 1 chain did'), (2, 'up 2 chains did'):
    (sentence,) = convergence_warnings.unreached(far[:count], draws)
    assert said in sentence
  # Of few chains, those not so far away are in the neck of a funnel.
  near = far * 4.7 / 9.0
  assert convergence_warnings.unreached(near, draws) != []
  # Draws are there; or none was moved.
  for places in (near[:2], far / 9.0, far[:1] / 9.0, np.zeros([0, 2]), None):
    assert convergence_warnings.unreached(places, draws) == []


def test_one_proposal_is_not_said_to_fail_twice():
  draws = ar1(0.3, [1000, 8])
  ratio, diverging = np.zeros([1000, 8]), np.zeros([1000, 8], bool)
  ratio[3, :5] = -np.inf
  diverging[3, :7] = True
  statistics = {'log_accept_ratio': ratio, 'diverging': diverging}
  first, second = summarize(draws, statistics).warnings
  assert first.startswith('5 proposals') and 'which keep chains' in first
  assert second.startswith('2 of 8,000')


def test_one_of_each():
  summary = summarize(ar1(0.3, [1000, 1]), min_ess=0.0)
  assert repr(summary) == (
    '<Summary of 1 parameter: 1 chain of 1,000 draws, 1 warning>'
  )
