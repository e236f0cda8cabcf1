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
"""Posteriors with one call: against closed forms, and what can go wrong."""

import math
import os
import pickle
import shutil
import sys
import traceback
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc import sample_posterior
from tfp_diag.mcmc.adapt.newton_starts import NewtonStarts, newton_starts
from tfp_diag.mcmc.adapt.scales import DenseScale
from tfp_diag.mcmc.run import warm_up as warm_up_module
from tfp_diag.mcmc.run.block import SamplingBlock
from tfp_diag.mcmc.run.local_warm_up import varies
from tfp_diag.mcmc.run.sampling_run import SamplingRun

tfd = tfp.distributions

# The package exports the function under the name of the module.
sample_posterior_module = sys.modules[sample_posterior.__module__]

_COUNTS = np.float32([3.0, 0.0, 1.0, 2.0, 4.0])


@tfd.JointDistributionCoroutineAutoBatched
def poisson():
  """With the counts, the rate is Gamma(12, 6): mean 2, variance 1/3."""
  rate = yield tfd.Gamma(2.0, 1.0, name='rate')
  yield tfd.Sample(tfd.Poisson(rate), 5, name='counts')


@pytest.mark.parametrize('kernel', ['auto', 'mala'])
def test_a_closed_form(kernel):
  found = sample_posterior(
    poisson,
    300,
    kernel=kernel,
    jit_compile=kernel == 'auto',
    seed=2,
    counts=_COUNTS,
  )
  rate = found.draws.rate.numpy()
  assert rate.shape == (300, 64)
  # Within five MCSE, which are below 0.58 / sqrt(2000) and alike.
  assert abs(rate.mean() - 2.0) < 0.065
  assert abs(rate.var() - 1.0 / 3.0) < 0.06
  assert np.max(found.summary.r_hat) < 1.03
  assert found.stopped_by == 'finished'
  steps = found.trace['n_steps']
  assert found.num_gradients == steps.sum()
  assert (steps.max() == 1) == (kernel == 'mala')
  windows = found.warm_up.windows
  assert sum(w.num_steps for w in windows) == 400
  assert windows[-1].step_size == found.warm_up.step_size
  assert (
    found.num_gradients_warmup
    == sum(w.num_gradients for w in windows)
    + 3 * found.warm_up.num_newton_steps
  )


@pytest.fixture(scope='module')
def correlated():
  """A Gaussian with a condition number of 10⁶, and its draws."""
  rng = np.random.default_rng(5)
  rotation = np.linalg.qr(rng.normal(size=[6, 6]))[0]
  factor = rotation * np.geomspace(0.01, 10.0, 6)
  precision = np.linalg.inv(factor @ factor.T)

  def log_prob(x, y):
    z = tf.concat([x, y], -1) - 3.0
    return -0.5 * tf.reduce_sum(z * tf.linalg.matvec(precision, z), -1)

  init = [tf.zeros([32, 2], tf.float64), tf.zeros([32, 4], tf.float64)]
  found = sample_posterior(log_prob, 400, init=init, jit_compile=False, seed=1)
  return factor, log_prob, init, found


def test_a_matrix_for_coordinates_that_are_correlated(correlated):
  factor, _, _, found = correlated
  draws = np.concatenate([np.asarray(d) for d in found.draws], -1)
  assert draws.shape == (400, 32, 6)
  z = np.linalg.solve(factor, draws.reshape(-1, 6).T - 3.0)
  # Independent standard normals, of 2,000 effective draws or more.
  np.testing.assert_allclose(z.mean(1), np.zeros(6), atol=0.12)
  np.testing.assert_allclose(np.cov(z), np.eye(6), atol=0.2)
  learned = found.warm_up.scale.factor
  np.testing.assert_allclose(
    np.linalg.solve(factor, learned @ learned.T @ np.linalg.inv(factor.T)),
    np.eye(6),
    atol=0.05,
  )
  np.testing.assert_allclose(found.warm_up.integration_time, 1.6, atol=0.3)


def test_xla_takes_nothing_for_a_constant_of_the_program(monkeypatch):
  """Else it compiles again for each seed, each scale and all new data."""
  counts = {}
  remembered = SamplingBlock._remembered

  def counted(block, given):
    text = block.compiled.experimental_get_compiler_ir(*given)(stage='hlo')
    layout = text.split('entry_computation_layout={(')[1].split(')->')[0]
    inputs = block.compiled.get_concrete_function(*given).inputs
    counts[block.compiled.__name__] = layout.count('['), len(inputs)
    return remembered(block, given)

  monkeypatch.setattr(SamplingBlock, '_remembered', counted)

  @tfd.JointDistributionCoroutineAutoBatched
  def schools():
    mean = yield tfd.Normal(0.0, 10.0, name='mean')
    effects = yield tfd.Sample(tfd.Normal(0.0, 1.0), 5, name='effects')
    yield tfd.Normal(mean[..., tf.newaxis] + effects, 1.0, name='observed')

  sample_posterior(
    schools,
    5,
    num_warmup_steps=10,
    use_curvature=False,
    seed=0,
    observed=_COUNTS,
  )
  assert set(counts) == {'mcmc_trajectories'}
  for num_parameters, num_inputs in counts.values():
    assert num_parameters == num_inputs


def test_a_run_goes_on_with_its_warm_up(correlated, tmp_path, monkeypatch):
  _, log_prob, init, found = correlated
  options = dict(
    init=init, jit_compile=False, seed=1, checkpoint=tmp_path / 'run'
  )
  sample_posterior(log_prob, 100, **options)

  def no_warm_up(*args, **kwargs):
    raise AssertionError('The warm-up is made again.')

  monkeypatch.setattr('tfp_diag.mcmc.run.sample_posterior.warm_up', no_warm_up)
  longer = sample_posterior(log_prob, 400, resume=True, **options)
  for a, b in zip(longer.draws, found.draws):
    np.testing.assert_array_equal(a, b)
  assert longer.warm_up.windows == found.warm_up.windows


def normal(x):
  return -0.5 * tf.reduce_sum(x**2, -1)


def draw(path, num_draws=10, log_prob=normal, **kwargs):
  """Some draws of a small target, with hardly a warm-up."""
  settings = dict(
    init=tf.ones([8, 2]),
    preconditioner='diagonal',
    num_warmup_steps=4,
    use_curvature=False,
    num_steps_between_results=0,
    jit_compile=False,
    checkpoint=path,
    seed=1,
  )
  return sample_posterior(log_prob, num_draws, **{**settings, **kwargs})


def contents(path):
  return {p.name: p.read_bytes() for p in path.iterdir() if p.name != '.lock'}


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
  """The directory of a run of ten draws, and those; to be copied."""
  path = tmp_path_factory.mktemp('begun') / 'run'
  return path, draw(path).draws.numpy()


@pytest.fixture
def run(begun, tmp_path):
  """A copy of it, and the draws."""
  return shutil.copytree(begun[0], tmp_path / 'run'), begun[1]


def test_the_draws_of_a_checkpoint_are_named_and_called_unconstrained(tmp_path):
  def log_prob(shift, rate):
    return -0.5 * tf.reduce_sum(shift**2, [-1, -2]) - rate

  found = draw(
    tmp_path,
    log_prob=log_prob,
    init=dict(shift=tf.ones([8, 3, 2]), rate=tf.ones([8])),
    bijectors=dict(shift=None, rate=tfp.bijectors.Exp()),
  )
  draws, trace = tfp_diag.mcmc.load_draws(tmp_path)
  assert list(draws) == ['unconstrained.rate', 'unconstrained.shift']
  rate, shift = draws.values()
  np.testing.assert_array_equal(shift, found.draws['shift'])
  np.testing.assert_allclose(np.exp(rate), found.draws['rate'], rtol=1e-6)
  assert isinstance(shift, np.memmap) and not shift.flags.owndata
  said = str(tfp_diag.mcmc.summarize(draws, trace))
  assert 'unconstrained.shift[2, 1]' in said
  posterior = tfp_diag.mcmc.to_arviz(draws, trace)['posterior']
  assert posterior['unconstrained.rate'].shape == (8, 10)


def test_a_call_that_is_refused_harms_no_run(run):
  path, draws = run
  before = contents(path)
  with pytest.raises(ValueError, match='Pass `resume=True`'):
    draw(path, seed=2)  # Of which the warm-up is another one.
  assert contents(path) == before
  np.testing.assert_array_equal(draw(path, 12, resume=True).draws[:10], draws)
  # A run of `sample`, say.
  os.unlink(path / 'warm_up.npz')
  before = contents(path)
  with pytest.raises(ValueError, match=r'it has no warm_up\.npz'):
    draw(path, 12, resume=True, seed=2)
  assert contents(path) == before


def test_a_warm_up_of_something_else_is_refused(run):
  path, draws = run
  with pytest.raises(ValueError, match='number of coordinates: it has 2, but'):
    draw(path, 12, resume=True, init=tf.ones([8, 3]))
  # Killed between the warm-up and the first block.
  for file in path.iterdir():
    if file.name != 'warm_up.npz':
      file.unlink()
  with pytest.raises(ValueError, match='another target: at a state of it'):
    draw(path, log_prob=lambda x: 2.0 * normal(x), resume=True)
  assert set(contents(path)) == {'warm_up.npz'}
  np.testing.assert_array_equal(draw(path, resume=True).draws, draws)
  os.truncate(path / 'warm_up.npz', 300)
  with pytest.raises(
    ValueError, match=r'warm_up\.npz is damaged \(.*Pass another path, or del'
  ):
    draw(path, 12, resume=True)


def test_a_kill_while_the_warm_up_is_written(begun, tmp_path, monkeypatch):
  def die(*args, **kwargs):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(os, 'replace', die)
    with pytest.raises(KeyboardInterrupt):
      draw(tmp_path)
  assert len(contents(tmp_path)) == 1
  np.testing.assert_array_equal(draw(tmp_path).draws, begun[1])
  assert not list(tmp_path.glob('*.part'))


def test_ctrl_c_before_the_first_draws(begun, tmp_path, monkeypatch):
  def interrupted(*args):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(SamplingRun, 'make_block', interrupted)
    with pytest.raises(KeyboardInterrupt) as error:
      draw(tmp_path)
  said = ''.join(traceback.format_exception(error.value))
  assert f"It goes on with `checkpoint='{tmp_path}', resume=True`." in said
  np.testing.assert_array_equal(draw(tmp_path, resume=True).draws, begun[1])


def test_what_is_not_its_own_is_refused_before_the_warm_up(
  tmp_path, monkeypatch
):
  warm_up = {'begun': 0}

  def spy(*args, **kwargs):
    warm_up['begun'] += 1
    assert warm_up['begun'] == 1
    with pytest.raises(ValueError, match='in use by another run'):
      draw(tmp_path / 'mine')
    raise InterruptedError

  monkeypatch.setattr(sample_posterior_module, 'warm_up', spy)
  with pytest.raises(InterruptedError):
    draw(tmp_path / 'mine')
  (tmp_path / 'thesis.tex').touch()
  with pytest.raises(ValueError, match=r'something else is \(mine, thesis.tex'):
    draw(tmp_path)
  assert sorted(os.listdir(tmp_path)) == ['mine', 'thesis.tex']


def test_a_few_directions_and_a_run_that_goes_on(tmp_path):
  """Twenty coordinates with a common part, whose variance is 101."""

  def log_prob(x):
    # The inverse of 1 + 5 e eᵀ.
    total = tf.reduce_sum(x, -1)
    return -0.5 * (tf.reduce_sum(x**2, -1) - total**2 * 5.0 / 101.0)

  options = dict(
    init=tf.zeros([32, 20]),
    preconditioner='low_rank',
    num_warmup_steps=200,
    jit_compile=False,
    seed=3,
    checkpoint=tmp_path / 'run',
  )
  found = sample_posterior(log_prob, 100, **options)
  assert np.any(found.warm_up.scale.directions)
  # No direction is left that is much wider.
  assert found.warm_up.integration_time < 2.5
  # That of the sum of all; 3,000 effective draws.
  variance = found.draws.numpy().reshape(-1, 20).sum(1).var()
  np.testing.assert_allclose(variance, 20.0 * 101.0, rtol=0.15)
  again = sample_posterior(log_prob, 120, resume=True, **options)
  np.testing.assert_array_equal(again.draws[:100], found.draws)
  # Without a seed it goes on with its own.
  again = sample_posterior(
    log_prob, 120, resume=True, **(options | {'seed': None})
  )
  np.testing.assert_array_equal(again.draws[:100], found.draws)
  for other in (
    {'preconditioner': 'dense'},
    {'num_warmup_steps': 100},
    {'init': tf.zeros([8, 20])},
  ):
    with pytest.raises(ValueError, match='cannot be resumed with another'):
      sample_posterior(log_prob, 120, resume=True, **options | other)


@pytest.mark.parametrize(
  'num_chains, num_warmup_steps, sd', [(1, 2, 1.0), (1, 60, 1.0), (8, 30, 1e-3)]
)
def test_a_warm_up_of_few_draws_or_none_that_differ(
  num_chains, num_warmup_steps, sd
):
  """The first windows have few; and no chain moves to a narrow target."""
  found = sample_posterior(
    lambda x: normal(x / sd - 1.0),
    5,
    init=tf.zeros([num_chains, 600]),
    kernel='mala',
    num_warmup_steps=num_warmup_steps,
    use_curvature=False,
    num_steps_between_results=0,
    jit_compile=False,
    seed=1,
  )
  assert np.all(np.isfinite(found.draws))
  assert np.isfinite(found.warm_up.integration_time)


def test_chains_that_are_stuck_are_rescued(monkeypatch):
  """Two modes, the far one of a weight that a chain never leaves."""

  def log_prob(x):
    near = -0.5 * tf.reduce_sum(tf.square(x), -1)
    far = -50.0 - 0.5e6 * tf.reduce_sum(tf.square(x - 40.0), -1)
    return tf.reduce_logsumexp([near, far], axis=0)

  init = np.random.default_rng(0).normal(size=[24, 2])
  init[:3] = 40.0 + 1e-3 * init[:3]
  positions = []
  learned = DenseScale.learned

  def spy(self, draws, gradients):
    positions.append(draws)
    return learned(self, draws, gradients)

  monkeypatch.setattr(DenseScale, 'learned', spy)
  found = sample_posterior(
    log_prob, 200, init=tf.constant(init), jit_compile=False, seed=3
  )
  # What they drew is not learned from, in the window that finds them either.
  assert len(positions[0]) == 21 * found.warm_up.windows[0].num_steps
  assert max(np.abs(x).max() for x in positions) < 10.0
  assert sum(w.num_rescued for w in found.warm_up.windows) == 3
  assert np.abs(found.draws).max() < 10.0
  assert found.warm_up.step_size > 0.3
  # What they left was nothing.
  assert found.warm_up.abandoned is None


def test_a_narrow_mode_that_chains_were_moved_out_of_is_missed(tmp_path):
  """R-hat cannot see it: no chain is left there."""
  halves = tfd.MixtureSameFamily(
    tfd.Categorical(probs=[0.5, 0.5]),
    tfd.Normal(np.float32([-1.0, 1.0]), [0.0375, 0.3]),
  )
  init = np.random.default_rng(1).uniform(-2.0, 2.0, [64, 1])
  options = {
    'init': tf.constant(init, tf.float32),
    'jit_compile': False,
    'seed': 1,
    'checkpoint': tmp_path,
  }

  def log_prob(x):
    return halves.log_prob(x[..., 0])

  with pytest.warns(UserWarning, match='no draw is there.*moves no chain'):
    found = sample_posterior(log_prob, 300, **options)
  assert np.mean(found.draws < -0.5) < 0.01
  assert found.summary.r_hat.max() < 1.1
  np.testing.assert_allclose(found.warm_up.abandoned, -1.0, atol=0.2)
  with pytest.warns(UserWarning, match='no draw is there'):
    sample_posterior(log_prob, 400, resume=True, **options)


def test_places_far_below_all_draws_are_no_mode():
  """Chains that are far out do not move while others travel."""
  data = 1.7 * np.random.default_rng(3).normal(size=40)

  def log_prob(log_scale):
    return -0.5 * log_scale**2 + tf.reduce_sum(
      tfd.Normal(0.0, tf.exp(log_scale)[:, tf.newaxis]).log_prob(data), -1
    )

  found = sample_posterior(
    log_prob,
    100,
    init=tf.random.stateless_uniform([64], [1, 1], -2.0, 2.0, tf.float64),
    use_curvature=False,
    num_warmup_steps=200,
    jit_compile=False,
    seed=1,
  )
  assert found.warm_up.windows[0].num_rescued > 4
  assert found.warm_up.abandoned is None


def test_it_says_what_has_not_converged():
  def funnel(x):
    scale = tf.exp(1.5 * x[..., 0])
    return (
      -0.5 * (tf.square(x[..., 0]) + tf.square(x[..., 1] / scale))
      - 1.5 * x[..., 0]
    )

  init = tf.zeros([16, 2], tf.float64)
  with pytest.warns(UserWarning, match='R-hat is 1.01 or more'):
    found = sample_posterior(
      funnel, 30, init=init, num_warmup_steps=20, jit_compile=False, seed=1
    )
  assert found.summary.warnings


def test_windows_keep_no_more_than_they_may(monkeypatch):
  sizes = []
  learned = DenseScale.learned

  def spy(self, draws, gradients):
    sizes.append(draws.shape)
    return learned(self, draws, gradients)

  monkeypatch.setattr(DenseScale, 'learned', spy)
  monkeypatch.setattr(warm_up_module, '_MOST_NUMBERS', 2 * 16 * 3 * 20)
  sample_posterior(
    lambda x: -0.5 * tf.reduce_sum(tf.square(x), -1),
    10,
    init=tf.zeros([16, 3]),
    num_warmup_steps=200,
    use_curvature=False,
    jit_compile=False,
    seed=1,
  )
  assert len(sizes) > 2
  assert max(size[0] for size in sizes) <= 20 * 16


def test_a_diagonal_scale():
  sds = tf.constant([0.1, 1.0, 10.0])
  found = sample_posterior(
    lambda x: -0.5 * tf.reduce_sum(tf.square(x / sds), -1),
    200,
    init=tf.zeros([32, 3]),
    preconditioner='diagonal',
    use_curvature=False,
    jit_compile=False,
    seed=1,
  )
  np.testing.assert_allclose(found.warm_up.scale.factor, sds, rtol=0.05)
  np.testing.assert_allclose(np.std(found.draws, axis=(0, 1)), sds, rtol=0.1)


@pytest.mark.parametrize(
  ('kwargs', 'error', 'match'),
  [
    ({'kernel': 'nuts'}, ValueError, "kernel. is 'nuts'; it can be one of"),
    ({'preconditioner': 'full'}, ValueError, 'can be one of .*dense'),
    ({'target_accept_prob': 1.5}, ValueError, 'between 0 and 1'),
    ({'num_chains': 0}, ValueError, 'num_chains'),
    ({'num_warmup_steps': -1}, ValueError, 'num_warmup_steps'),
    ({'n_chains': 4}, ValueError, 'use .num_chains. instead'),
    ({'rates': 1.0}, ValueError, 'a variable of `joint_dist_or_log_prob`, wh'),
    ({'rate': 1.0}, ValueError, 'of `joint_dist_or_log_prob` is pinned'),
    (
      {'init': {'r': tf.ones([4])}},
      ValueError,
      'those of `joint_dist_or_log_prob` that',
    ),
    ({'seed': 'x'}, ValueError, 'seed'),
  ],
)
def test_refuses_arguments(kwargs, error, match):
  with pytest.raises(error, match=match):
    sample_posterior(poisson, 10, counts=_COUNTS, **kwargs)
  parts = {'a': tf.zeros([4]), 'b': tf.zeros([5])}
  with pytest.raises(ValueError, match="4 chains in 'a', and 5 in 'b'"):
    sample_posterior(lambda a, b: -a * a - b * b, 10, init=parts)
  with pytest.raises(TypeError, match=r'joint_dist_or_log_prob. must be a'):
    sample_posterior(3.0, 10)
  with pytest.raises(ValueError, match=r'whose state is not known; pass .init'):
    sample_posterior(lambda x: -(x**2), 10)
  with pytest.raises(ValueError, match='along one axis, so reshape'):
    sample_posterior(
      lambda x: -tf.reduce_sum(x**2, -1), 10, init=tf.zeros([2, 3, 4])
    )


def _of_all(x):
  return -tf.reduce_sum(x**2)


@pytest.mark.parametrize(
  ('log_prob', 'match'),
  [
    (lambda x: -(x**2), r'shape \(8, 2\), .* each of the 8 chains.*axis=-1'),
    (_of_all, r'returned .* shape \(\), but .* each of the 8 chains.*axis=-1'),
    (
      lambda x: -tf.reduce_sum(x**2, -1, keepdims=True),
      r'`joint_dist_or_log_prob` returned .* shape \(8, 1\) for an `init`',
    ),
    (
      lambda x: -tf.reduce_sum((x - tf.reduce_mean(x, 0)) ** 2, -1),
      r'^`joint_dist_or_log_prob` mixes chains at Mean .*Reduce over the last',
    ),
    (lambda x: -np.sum(np.square(x), -1), 'NumPy and .* cut gradients: use'),
  ],
  ids=['not_reduced', 'of_all', 'keepdims', 'mixes', 'numpy'],
)
def test_says_what_is_wrong_with_a_log_density(log_prob, match):
  with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter('always', UserWarning)
    with pytest.raises(ValueError, match=match) as error:
      sample_posterior(
        log_prob, 5, init=tf.ones([8, 2]), num_warmup_steps=2, jit_compile=False
      )
  # One sentence, without the words of other functions.
  assert not said
  for word in (
    'sample_shape',
    'A Hessian',
    '`xs`',
    '`fn`',
    '`target_log_prob_fn`',
  ):
    assert word not in str(error.value)


@pytest.mark.parametrize('num_warmup_steps', [0, 2])
def test_a_log_density_that_looks_at_values(num_warmup_steps):
  """In eager mode it can, and its gradient is right."""

  def log_prob(x):
    return -0.5 * tf.reduce_sum(x**2, -1) + 0.0 * float(tf.reduce_max(x))

  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    with pytest.raises(TypeError, match='needs the value of a Tens') as error:
      sample_posterior(
        log_prob,
        5,
        init=tf.ones([8, 2]),
        num_warmup_steps=num_warmup_steps,
        jit_compile=False,
      )
  assert str(error.value).startswith('`joint_dist_or_log_prob` needs')


@pytest.mark.parametrize(('count', 'is_many'), [(3, False), (4, True)])
def test_a_longer_run_comes_after_many_divergences(count, is_many):
  diverging = np.arange(2000).reshape([500, 4]) < count
  draws = np.random.default_rng(0).normal(size=[500, 4])
  way = sample_posterior_module._way_out(
    tfp_diag.mcmc.summarize(draws, {'diverging': diverging})
  )
  assert way.startswith('When no proposals diverge any more:') == is_many


def test_it_is_no_part_of_a_graph():
  draw = tf.function(lambda: sample_posterior(_of_all, 5), autograph=False)
  with pytest.raises(RuntimeError, match='`sample_posterior` runs in Python'):
    draw()


def test_it_is_public():
  assert tfp_diag.mcmc.sample_posterior is sample_posterior


def test_draws_are_worth_a_fifth_of_an_independent_one(monkeypatch):
  """One step each, in 30 coordinates: a random walk."""

  def log_prob(x):
    return -0.5 * tf.reduce_sum(x**2, -1)

  options = dict(
    init=tf.zeros([16, 30]),
    kernel='mala',
    num_warmup_steps=200,
    use_curvature=False,
    jit_compile=False,
    seed=4,
  )
  found = sample_posterior(log_prob, 200, **options)
  stride = found.num_gradients // 200
  assert stride == math.ceil(found.warm_up.autocorrelation_time / 5) > 1
  assert np.min(found.summary.ess_bulk) > 200 * 16 / 10
  every = sample_posterior(
    log_prob, 100, num_steps_between_results=0, **options
  )
  assert every.num_gradients == 100
  # The same chains, looked at more often.
  np.testing.assert_array_equal(
    every.draws[::stride], found.draws[: -(-100 // stride)]
  )
  # No more gradients than some of the longest trajectories take.
  monkeypatch.setattr(sample_posterior_module, '_MOST_TRAJECTORIES', 1)
  capped = sample_posterior(log_prob, 20, max_num_steps=1, **options)
  assert capped.num_gradients == 20


def test_a_density_without_curvature():
  """Laplace: the second derivatives are zero, but at one point."""
  scales = tf.constant([0.5, 2.0])
  found = sample_posterior(
    lambda x: -tf.reduce_sum(tf.abs(x) / scales, -1),
    300,
    init=tf.random.stateless_normal([32, 2], [1, 2]),
    num_warmup_steps=200,
    jit_compile=False,
    seed=1,
  )
  sds = np.std(found.draws, axis=(0, 1))
  np.testing.assert_allclose(sds, np.sqrt(2.0) * scales, rtol=0.15)


def test_curvature_is_not_asked_for():
  @tf.custom_gradient
  def log_prob(x):
    @tf.custom_gradient
    def slope(x):
      def second(upstream):
        raise NotImplementedError('no second derivative')

      return -x, second

    def gradient(upstream):
      return upstream[:, tf.newaxis] * slope(x)

    return -0.5 * tf.reduce_sum(x**2, -1), gradient

  options = dict(
    init=tf.ones([16, 2]), num_warmup_steps=40, jit_compile=False, seed=5
  )
  found = sample_posterior(log_prob, 20, use_curvature=False, **options)
  assert found.warm_up.num_newton_steps == 0
  assert np.std(found.draws) > 0.5


def funnel(v, x):
  scale = tf.exp(0.5 * v)[:, tf.newaxis]
  return tf.reduce_sum(tfd.Normal(0.0, scale).log_prob(x), -1) - v**2 / 18.0


def test_a_funnel_takes_the_local_curvature():
  """Its tip and its mouth: scales from exp(-4) to exp(4)."""
  init = [
    tf.random.stateless_uniform([64], [1, 1], -2.0, 2.0),
    tf.random.stateless_uniform([64, 4], [2, 1], -2.0, 2.0),
  ]
  found = sample_posterior(funnel, 60, init=init, seed=1)
  assert found.warm_up.scale.kind == 'local'
  # Five effective draws of each of the 64 chains and more.
  v = found.draws[0].numpy()
  np.testing.assert_allclose(v.mean(), 0.0, atol=0.6)
  np.testing.assert_allclose(v.std(), 3.0, atol=0.4)
  # Two passes for the diagonal, each as dear as two gradients.
  assert np.all(found.trace['n_steps'] == 5)


def test_no_other_scale_is_tried_where_one_is_asked_for(tmp_path):
  options = dict(preconditioner='local', use_curvature=True, num_warmup_steps=8)
  found = draw(tmp_path / 'run', **options)
  assert found.warm_up.scale.kind == 'local' and not found.warm_up.windows
  again = draw(tmp_path / 'run', 15, resume=True, **options)
  np.testing.assert_array_equal(again.draws[:10], found.draws)
  found = sample_posterior(
    funnel,
    20,
    init=[tf.zeros([8]), tf.zeros([8, 2])],
    preconditioner='dense',
    num_warmup_steps=40,
    jit_compile=False,
    seed=2,
  )
  assert found.warm_up.scale.kind == 'dense'


def test_a_warm_up_is_shown_on_some_lines():
  window = warm_up_module.Window(50, 0.5, 2.0, 1.0, 0.91, 3, 120)
  found = warm_up_module.WarmUp(
    state=np.zeros([64, 100]),
    scale=DenseScale(np.eye(100)),
    step_size=0.25,
    integration_time=1.5,
    damping=0.8,
    autocorrelation_time=2.0,
    windows=(window, window._replace(num_steps=100)),
    num_newton_steps=7,
    num_gradients=1234,
  )
  assert repr(found) == (
    '<WarmUp: step size 0.25, integration time 1.5, damping 0.8, dense scale, '
    '2 windows, 1,234 gradients per chain>'
  )
  first, _, header, _, *rows = str(found).splitlines()
  assert first == repr(found)
  assert header.split() == [
    *('window', 'steps', 'step', 'size', 'T', 'acceptance', 'rescued')
  ]
  assert [row.split() for row in rows] == [
    ['0', '50', '0.5', '2', '0.910', '3'],
    ['1', '100', '0.5', '2', '0.910', '3'],
  ]
  assert str(found._replace(windows=())).count('\n') == 0
  assert found._repr_html_().startswith('<pre>&lt;WarmUp: step size 0.25')


def test_steps_that_are_too_long_somewhere_get_shorter(monkeypatch):
  options = dict(
    init=tf.zeros([16, 4]),
    num_warmup_steps=200,
    use_curvature=False,
    jit_compile=False,
    seed=3,
  )

  def acceptance(**more):
    found = sample_posterior(
      lambda x: -0.5 * tf.reduce_sum(x**2, -1), 10, **options, **more
    )
    return found.warm_up.windows[-1].acceptance

  usual = acceptance()
  monkeypatch.setattr(warm_up_module, 'is_unstable', lambda _: True)
  assert acceptance() > max(usual + 0.02, 0.955)
  # What is asked for stays.
  assert acceptance(target_accept_prob=0.9) < 0.95


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'num_warmup_steps': 0, 'use_curvature': True}, 'num_warmup_steps. is 0'),
    ({'use_curvature': False}, 'use_curvature. is False, but .*local'),
  ],
)
def test_the_local_curvature_needs_derivatives_and_a_warm_up(kwargs, match):
  with pytest.raises(ValueError, match=match):
    draw(None, preconditioner='local', **kwargs)


def test_the_local_curvature_has_the_acceptance_that_is_asked_for():
  sizes = [
    draw(
      None,
      preconditioner='local',
      use_curvature=True,
      num_warmup_steps=8,
      target_accept_prob=target,
    ).warm_up.step_size
    for target in (0.3, 0.95)
  ]
  assert sizes[0] > 1.5 * sizes[1]


def test_the_warm_up_of_another_seed_is_refused(run):
  path, draws = run
  # Killed between the warm-up and the first block.
  for file in path.iterdir():
    if file.name != 'warm_up.npz':
      file.unlink()
  with pytest.raises(ValueError, match=r'another `seed`: it has \[1, 0\]'):
    draw(path, resume=True, seed=2)
  np.testing.assert_array_equal(draw(path, resume=True).draws, draws)


def test_a_number_is_no_start_of_chains():
  def log_prob(x):
    return -tf.reduce_sum(x**2, -1)

  with pytest.raises(
    ValueError, match=r'`init` has a part of shape \[\].*fails'
  ):
    sample_posterior(log_prob, 10, init=0.0)


def test_a_local_scale_needs_second_derivatives(monkeypatch):
  def without(*_):
    raise ValueError('there is no second derivative')

  monkeypatch.setattr(warm_up_module, 'newton_starts', without)

  def run(preconditioner):
    return sample_posterior(
      lambda x: -0.5 * tf.reduce_sum(x**2, -1),
      20,
      init=tf.ones([8, 2]),
      num_warmup_steps=10,
      preconditioner=preconditioner,
      jit_compile=False,
      seed=1,
    )

  with pytest.raises(ValueError, match='no second derivative'):
    run('local')
  with pytest.warns(UserWarning, match='no second derivative'):
    run('diagonal')


def few_draws(log_prob, **options):
  return sample_posterior(
    log_prob,
    20,
    init=tf.linspace(-1.0, 1.0, 16),
    num_warmup_steps=20,
    jit_compile=False,
    seed=1,
    **options,
  )


def test_a_density_that_tensorflow_differentiates_once():
  """Survival of a gamma variable, by its shape: an op without a gradient."""

  def log_prob(log_shape):
    survival = tf.math.igammac(tf.exp(log_shape)[:, tf.newaxis], [2.0, 3.0])
    return tf.reduce_sum(tf.math.log(survival), -1) - 0.5 * log_shape**2

  with pytest.warns(UserWarning, match=r'without the diagonal .* IgammaGradA'):
    few_draws(log_prob)
  with pytest.raises(
    ValueError, match=r"'local', which needs .* The log density .* IgammaGradA"
  ):
    few_draws(log_prob, preconditioner='local')


def test_second_derivatives_that_xla_cannot_compile():
  @tf.custom_gradient
  def slope(x):
    return -x, lambda dy: -dy * (1.0 + 0.0 * tf.math.special.dawsn(x))

  @tf.custom_gradient
  def log_prob(x):
    return -0.5 * x[:, 0] ** 2, lambda dy: dy[:, tf.newaxis] * slope(x)

  def newton(is_needed):
    return warm_up_module._newton(
      log_prob, tf.ones([4, 1]), True, None, is_needed
    )

  match = r'XLA cannot compile second .*Dawsn.*\. Pass `jit_compile=False`'
  with pytest.warns(UserWarning, match=f'without the diagonal .* {match}'):
    assert newton(is_needed=False) is None
  with pytest.raises(ValueError, match=match):
    newton(is_needed=True)


def test_a_scale_that_cannot_be_tried_is_not(monkeypatch):
  """Third derivatives, which only the local curvature takes."""

  @tf.custom_gradient
  def log_prob(x):
    def gradient(dy):
      return -dy * x * tf.math.igammac(tf.exp(0.01 * x), 1e-6)

    return -0.5 * x**2, gradient

  monkeypatch.setattr(warm_up_module, '_DEAR', 0.0)
  monkeypatch.setattr(warm_up_module, 'varies', lambda _: True)

  with pytest.warns(UserWarning, match='not tried .* third .* IgammaGradA'):
    found = few_draws(log_prob)
  assert found.warm_up.scale.kind == 'dense'
  with pytest.raises(ValueError, match=r"'local', which needs .* IgammaGradA"):
    few_draws(log_prob, preconditioner='local')


def test_draws_of_a_model_that_lists_its_variables_have_their_names(tmp_path):
  model = tfd.JointDistributionSequential(
    [
      tfd.Normal(0.0, 1.0),
      lambda a: tfd.Gamma(tf.exp(a), 1.0),
      lambda g, a: tfd.Normal(a, g),
    ]
  )
  found = sample_posterior(
    model,
    20,
    num_chains=8,
    num_warmup_steps=10,
    use_curvature=False,
    jit_compile=False,
    checkpoint=tmp_path,
    seed=1,
    x=1.0,
  )
  assert found.summary.names == ('a', 'g')
  assert found.summary.warnings[0].startswith('R-hat is 1.01 or more for a, g')
  assert set(tfp_diag.mcmc.to_arviz(found.draws)['posterior']) == {'a', 'g'}
  draws, _ = tfp_diag.mcmc.load_draws(tmp_path)
  assert list(draws) == ['unconstrained.a', 'unconstrained.g']
  # As the list that it was: in order, for the model, and for another process.
  a, g = found.draws
  np.testing.assert_array_equal(found.draws.g, g)
  model.experimental_pin(x=1.0).log_prob(found.draws)
  copy = pickle.loads(pickle.dumps(found.draws))
  np.testing.assert_array_equal(copy.a, a)
  tf.nest.assert_same_structure(copy, found.draws)


def test_draws_of_a_coroutine_can_be_pickled():
  @tfd.JointDistributionCoroutine
  def pair():
    a = yield tfd.JointDistributionCoroutine.Root(
      tfd.Normal(0.0, 1.0, name='a')
    )
    yield tfd.Normal(a, 1.0, name='b')

  @tfd.JointDistributionCoroutine
  def model():
    both = yield tfd.JointDistributionCoroutine.Root(pair.copy(name='both'))
    yield tfd.Normal(both.b, 1.0, name='x')

  found = sample_posterior(
    model,
    3,
    num_chains=4,
    num_warmup_steps=2,
    use_curvature=False,
    jit_compile=False,
    seed=1,
    x=1.0,
  )
  copy = pickle.loads(pickle.dumps(found))
  np.testing.assert_array_equal(copy.draws.both.b, found.draws.both.b)
  # As TFP has them.
  pinned = model.experimental_pin(x=1.0)
  tf.nest.assert_same_structure(copy.draws, pinned.sample_unpinned())
  assert pinned.unnormalized_log_prob(copy.draws).shape == [3, 4]


@pytest.mark.filterwarnings('ignore:Saw Tensor seed')
@pytest.mark.parametrize('init', [None, 'prior'])
def test_a_density_that_is_never_finite_is_named(init):
  with pytest.raises(
    ValueError, match=r"density of 'counts', which is pinned, is .* in 8 of 8"
  ):
    sample_posterior(poisson, 5, init=init, num_chains=8, counts=-_COUNTS - 1.0)


def test_chains_that_the_starts_have_lost_go_where_others_are(monkeypatch):
  """XLA may find a density finite at a point where it is not."""

  def log_prob(x):
    value = -0.5 * tf.reduce_sum((x - 3.0) ** 2, -1)
    return tf.where(x[:, 0] > 100.0, -np.inf, value)

  def lost(target_log_prob_fn, state, max_num_steps):
    del max_num_steps
    ones = tf.ones_like(state)
    far = tf.concat([tf.fill([2, 2], 200.0), state[2:]], 0)
    return NewtonStarts(far, ones, -ones, tf.constant(1))

  monkeypatch.setattr(warm_up_module, 'newton_starts', lost)
  options = dict(num_warmup_steps=100, jit_compile=False, seed=3)
  init = 3.0 + tf.random.stateless_normal([16, 2], [1, 2])
  found = sample_posterior(log_prob, 100, init=init, **options)
  assert np.max(found.draws) < 100.0
  assert np.max(found.summary.r_hat) < 1.1
  # What was given is not moved in silence.
  bad = tf.concat([tf.fill([1, 2], 300.0), init[1:]], 0)
  with pytest.raises(ValueError, match='-inf'):
    sample_posterior(log_prob, 10, init=bad, **options)


@pytest.mark.parametrize('preconditioner', ['auto', 'local'])
def test_chains_that_the_warm_up_has_lost_go_where_others_are(preconditioner):
  def log_prob(x):
    is_edge = tf.executing_eagerly() & (x > 0.8)
    return tf.where(is_edge, np.inf, -0.5 * x**2)

  found = sample_posterior(
    log_prob,
    20,
    init=tf.linspace(-2.0, 0.5, 64),
    preconditioner=preconditioner,
    num_warmup_steps=20,
    jit_compile=False,
    seed=1,
  )
  assert np.max(found.warm_up.state) <= 0.8 < np.max(found.draws)


def test_starts_do_not_go_where_no_gradient_is():
  """As where a float32 overflows in a gradient, but not in a value."""

  @tf.custom_gradient
  def log_prob(x):
    def gradient(dy):
      slope = tf.where(x > 2.0, np.float32(np.nan), 9.0 - x)
      return dy[:, tf.newaxis] * slope

    return -0.5 * tf.reduce_sum((x - 9.0) ** 2, -1), gradient

  starts = newton_starts(log_prob, tf.zeros([4, 2]), 50)
  assert 0.5 < np.min(starts.state) <= np.max(starts.state) <= 2.0
  with pytest.warns(UserWarning, match='not finite there: what lies behind'):
    sample_posterior(
      log_prob,
      20,
      init=tf.zeros([16, 2]),
      num_warmup_steps=50,
      jit_compile=False,
      seed=1,
    )


def test_no_chain_moves_where_none_can_go_on():
  def log_prob(x):
    return tf.reduce_sum(tf.math.log(x), -1)

  before = tf.ones([3, 2])
  state = warm_up_module._brought_back(log_prob, before, -before, None)
  np.testing.assert_array_equal(state, before)


def test_a_curvature_that_is_not_finite_is_no_scale():
  curvature = np.geomspace(1e-6, 1e6, 64)[:, np.newaxis]
  assert varies(curvature)
  curvature[3] = np.nan
  assert not varies(curvature)


def test_starts_at_zero_do_not_end_in_a_singularity():
  # With all effects at zero the density of their scale has no bound; nothing is
  # drawn there, and Newton's steps went there: the mean was 1e-6.
  def log_prob(log_scale, effects):
    log_scale = log_scale[..., 0]
    prior = log_scale - 0.5 * tf.exp(2.0 * log_scale)
    prior -= 20.0 * log_scale
    squares = tf.reduce_sum(effects**2, -1)
    return prior - 0.5 * squares * (1.0 + tf.exp(-2.0 * log_scale))

  found = tfp_diag.mcmc.sample_posterior(
    log_prob,
    50,
    init=[tf.zeros([32, 1]), tf.zeros([32, 20])],
    num_warmup_steps=100,
    jit_compile=False,
    seed=1,
  )
  # Without the effects, which are integrated out. This seed is within 7 %.
  scales = np.linspace(1e-4, 4.0, 4000)
  density = np.exp(-0.5 * scales**2) * (1.0 + scales**2) ** -10
  mean = np.sum(scales * density) / np.sum(density)
  np.testing.assert_allclose(np.mean(np.exp(found.draws[0])), mean, rtol=0.25)


def test_the_curvature_where_all_chains_start_is_counted():
  found = tfp_diag.mcmc.sample_posterior(
    lambda x: -0.5 * tf.reduce_sum(x**2, -1),
    20,
    kernel='malt',
    init=tf.zeros([8, 3]),
    num_warmup_steps=40,
    jit_compile=False,
    seed=1,
  )
  warm_up = found.warm_up
  assert warm_up.num_gradients == sum(
    w.num_gradients for w in warm_up.windows
  ) + 3 * (warm_up.num_newton_steps + 1)


def test_parts_without_elements():
  model = tfd.JointDistributionNamed(
    dict(a=tfd.Normal(0.0, 1.0), b=tfd.Sample(tfd.Normal(0.0, 1.0), 0))
  )
  found = sample_posterior(
    model, 10, num_warmup_steps=10, jit_compile=False, seed=1
  )
  assert found.draws['a'].shape == [10, 64]
  assert found.draws['b'].shape == [10, 64, 0]
  assert found.summary.names == ('a',)
  with pytest.raises(ValueError, match='has no coordinates'):
    sample_posterior(lambda x: tf.reduce_sum(x, -1), 5, init=tf.zeros([8, 0]))


def test_a_variable_that_others_determine():
  """Nothing of it is free; XLA ended the process."""

  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    mean = yield tfd.Normal(0.0, 1.0, name='mean')
    double = yield tfd.Deterministic(2.0 * mean, name='double')
    yield tfd.Sample(tfd.Normal(double, 1.0), 3, name='y')

  found = sample_posterior(
    model, 20, num_warmup_steps=20, seed=1, y=[1.0, 2.0, 3.0]
  )
  np.testing.assert_allclose(found.draws.double, 2.0 * found.draws.mean)


def test_an_address_is_no_directory():
  with pytest.raises(
    ValueError, match=r"`checkpoint` is 'gs://bucket/run', bu"
  ):
    draw('gs://bucket/run')


def test_the_global_seed_of_tensorflow_counts():
  """As for `tfp.mcmc.sample_chain`; without it each run is another one."""

  def draws(seed=None):
    if seed is not None:
      tf.random.set_seed(seed)
    return sample_posterior(
      normal, 4, init=tf.zeros([8, 3]), num_warmup_steps=0, jit_compile=False
    ).draws

  first = draws(3)
  assert np.all(draws() != first)
  np.testing.assert_array_equal(draws(3), first)


def test_an_init_of_another_dtype_than_the_log_density():
  mean = tf.constant(1.0)
  with pytest.raises(ValueError, match=r'`init`.*float64, and not .* float32'):
    sample_posterior(
      lambda x: -0.5 * (x - mean) ** 2, 5, init=np.zeros([8], np.float64)
    )


@pytest.mark.parametrize(
  'log_prob',
  [tf.zeros_like, lambda x: tf.where(tf.abs(x) < 1.0, 0.0, -np.inf)],
)
def test_a_log_density_without_a_gradient(log_prob):
  with pytest.raises(ValueError, match='does not depend on part 0'):
    sample_posterior(log_prob, 5, init=tf.zeros([8]))
