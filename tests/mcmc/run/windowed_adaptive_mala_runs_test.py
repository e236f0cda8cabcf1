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
"""What `windowed_adaptive_mala` has from the driver: runs that can be watched.

Blocks have 100 steps: the first ends within the adaptation, the second after.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.diagonal import graphs
from tfp_diag.mcmc import LocalHessianPreconditioner
from tfp_diag.mcmc.run.sampling_run import SamplingRun

_ADAPTATION = 130
_SCALES = tf.constant([0.1, 10.0])


def log_prob(rate, x):
  """A Gamma(3, 2), and two normals of other scales."""
  return (
    2.0 * tf.math.log(rate)
    - 2.0 * rate
    - 0.5 * tf.reduce_sum((x / _SCALES) ** 2, -1)
  )


def start():
  rng = np.random.default_rng(0)
  return {
    'rate': tf.constant(rng.uniform(0.5, 2.0, size=[4]), tf.float32),
    'x': tf.constant(rng.normal(size=[4, 2]), tf.float32),
  }


def sample(n_draws=120, density=log_prob, **kwargs):
  settings = dict(
    init=start(),
    bijectors={'rate': tfp.bijectors.Exp(), 'x': None},
    num_adaptation_steps=_ADAPTATION,
    seed=1,
  )
  return tfp_diag.mcmc.windowed_adaptive_mala(
    n_draws, density, **{**settings, **kwargs}
  )


def assert_same(one, other):
  for a, b in (
    (one, other),
    (one.final_state, other.final_state),
    (one.final_kernel_results, other.final_kernel_results),
  ):
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)
  assert one.stopped_by == other.stopped_by


@pytest.fixture(scope='module')
def whole():
  return sample()


def test_a_pair_that_knows_the_end(whole):
  draws, trace = whole
  assert draws is whole.draws and trace is whole.trace
  assert whole.stopped_by == 'finished'
  last = tf.nest.map_structure(lambda x: x[-1], draws)
  # Bijectors of one state and of many may round differently.
  close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
  tf.nest.map_structure(close, whole.final_state, last)
  assert whole.final_kernel_results.step == 250
  copy = tf.nest.map_structure(tf.identity, whole)
  assert type(copy) is type(whole) and copy.final_state is None


def test_the_bar_counts_the_adaptation(capsys):
  sample(20, progress_bar=True)
  said = capsys.readouterr().err
  assert 'sampling: 150 of 150 steps, acceptance 0.' in said
  sample(20)
  assert 'steps' not in capsys.readouterr().err


class Killed(BaseException):
  """Nothing in the package expects this."""


def test_a_run_that_is_killed_while_it_adapts(whole, tmp_path, monkeypatch):
  path = tmp_path / 'run'
  make_block = SamplingRun.make_block

  def die_in_the_second(run):
    if run.num_steps_made:
      raise Killed
    return make_block(run)

  with monkeypatch.context() as patch:
    patch.setattr(SamplingRun, 'make_block', die_in_the_second)
    with pytest.raises(Killed):
      sample(checkpoint=path)
  with np.load(path / 'checkpoint.npz') as archive:
    assert archive['block_ends'].tolist() == [0]  # No draws yet.
  with pytest.raises(ValueError, match='Pass `resume=True`'):
    sample(checkpoint=path)
  # A shorter run than the whole: it ends right behind the adaptation.
  sample(1, checkpoint=path, resume=True)
  assert_same(sample(checkpoint=path, resume=True), whole)


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
  path = tmp_path_factory.mktemp('begun') / 'run'
  sample(2, checkpoint=path, num_adaptation_steps=20)
  return path


@pytest.mark.parametrize(
  ('other', 'said'),
  [
    ({'num_adaptation_steps': 21}, 'has 20, but this call has 21'),
    (
      {'init': tf.nest.map_structure(lambda x: x[:3], start())},
      r'has \[4\], but this call has \[3\]',
    ),
    ({'target_accept_prob': 0.7}, 'has 0.574, but this call has 0.7'),
    ({'init_step_size': 0.1}, r'has 0\.208\d*, but this call has 0.1\.'),
    ({'discretization': 'exponential'}, 'has euler, but .* has exponential'),
    ({'discard_tuning': False}, 'has True, but this call has False'),
    (
      {'preconditioner': 'fisher'},
      'has full_fisher_divergence, but this call has fisher',
    ),
    (
      {'preconditioner': LocalHessianPreconditioner()},
      r'this call has LocalHessianPreconditioner\(softness=0.01, floor=',
    ),
    ({'seed': 2}, r'has \[1, 0\], but this call has \[2, 0\]'),
  ],
)
def test_a_run_with_other_arguments_is_refused_in_their_words(
  begun, other, said
):
  [name] = {'n_chains'} if 'init' in other else other
  with pytest.raises(ValueError, match=f'another `{name}`: it .*{said}'):
    sample(
      2, checkpoint=begun, resume=True, **{'num_adaptation_steps': 20, **other}
    )


def test_a_run_without_a_seed_goes_on_with_its_own(tmp_path):
  run = dict(checkpoint=tmp_path / 'run', resume=True, seed=None)
  first = sample(2, init=None, density=_MODEL, bijectors=None, **run)
  longer = sample(4, init=None, density=_MODEL, bijectors=None, **run)
  np.testing.assert_array_equal(longer.draws[0][:2], first.draws[0])


_MODEL = tfp.distributions.JointDistributionSequential(
  [tfp.distributions.Gamma(2.0, 2.0)]
)


def test_a_run_stops_when_it_is_enough(whole):
  seen = []

  def stop_when(parts, trace):
    seen.append(([x.shape for x in parts], trace['is_accepted'].shape))
    return len(parts[0]) >= 150

  found = sample(10_000, stop_when=stop_when)
  assert found.stopped_by == 'stop_when'
  # 200 and 300 steps, 130 of them adaptation.
  assert seen == [([(n, 4), (n, 4, 2)], (n, 4)) for n in (70, 170)]
  assert found.draws['rate'].shape == [170, 4]
  np.testing.assert_array_equal(found.draws['x'][:120], whole.draws['x'])


def test_the_final_state_continues(whole):
  second = sample(
    5,
    init=whole.final_state,
    previous_kernel_results=whole.final_kernel_results,
    num_adaptation_steps=0,
    seed=2,
  )
  before, after = whole.final_kernel_results, second.final_kernel_results
  assert after.step == before.step + 5
  np.testing.assert_array_equal(
    after.inner_results.factor, before.inner_results.factor
  )
  step_size = whole.trace['step_size'][-1]
  np.testing.assert_array_equal(second.trace['step_size'], 5 * [step_size])
  assert not np.any(second.trace['tune'])
  # A chain whose first proposal is rejected is where it was.
  stays = ~second.trace['is_accepted'][0].numpy()
  assert 0 < np.sum(stays) < 4
  np.testing.assert_array_equal(
    second.draws['x'][0] == whole.final_state['x'], np.stack([stays] * 2, -1)
  )


def test_thinning(whole):
  some = sample(40, num_steps_between_results=2)
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_array_equal(a, b[::3]),
    tuple(some),
    tuple(whole),
  )
  with_tuning = sample(40, num_steps_between_results=2, discard_tuning=False)
  # Steps 0, 3, ..., of which 44 are before 130.
  np.testing.assert_array_equal(
    with_tuning.trace['tune'], 44 * [True] + 40 * [False]
  )


def test_an_adaptation_alone():
  found = sample(0, num_adaptation_steps=20)
  assert found.draws['x'].shape == [0, 4, 2]
  assert found.final_kernel_results.step == 20


@pytest.mark.parametrize('raised', [RuntimeError, KeyboardInterrupt])
def test_draws_until_an_error_or_ctrl_c_are_kept(whole, raised):
  def stop_when(*_):
    raise raised('in user code')

  if raised is RuntimeError:
    with pytest.raises(RuntimeError, match='in user code') as error:
      sample(stop_when=stop_when)
    kept = error.value.sample_results
    assert kept.stopped_by == 'error'
  else:
    with pytest.warns(UserWarning, match='interrupted after 200 of 250'):
      kept = sample(stop_when=stop_when)
    assert kept.stopped_by == 'interrupted'
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_array_equal(a, b[:70]),
    tuple(kept),
    tuple(whole),
  )


def test_ctrl_c_in_the_adaptation(monkeypatch):
  def interrupted(*args):
    raise KeyboardInterrupt

  monkeypatch.setattr(SamplingRun, 'make_block', interrupted)
  with pytest.raises(KeyboardInterrupt) as error:
    sample()
  # In the space of the model.
  kept = error.value.sample_results
  assert kept.draws['x'].shape == [0, 4, 2]
  assert kept.stopped_by == 'interrupted'


def test_the_steps_are_the_same_inside_of_a_function():
  arguments = dict(num_adaptation_steps=8, num_steps_between_results=1)

  @tf.function(autograph=False)
  def inside():
    found = sample(3, progress_bar=False, **arguments)
    return found, found.final_state, found.final_kernel_results.step

  found, final_state, step = inside()
  expected = sample(3, **arguments)
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4),
    (tuple(found), final_state),
    (tuple(expected), expected.final_state),
  )
  assert step == 8 + 5


@pytest.mark.parametrize(
  'name, value',
  [
    ('stop_when', lambda *_: True),
    ('progress_bar', True),
    ('checkpoint', 'run'),
    ('strategy', tf.distribute.get_strategy()),
  ],
)
def test_what_a_function_cannot_do_is_refused(name, value):
  @tf.function(autograph=False)
  def inside():
    return sample(3, **{name: value}).draws

  with pytest.raises(ValueError, match=f'`{name}` looks at a run .* outside'):
    inside()


def test_three_equal_calls_trace_each_and_compile_once(monkeypatch):
  compiled = []
  remember = graphs._remember

  def counted(*args):
    compiled.append(args)
    remember(*args)

  monkeypatch.setattr(graphs, '_remember', counted)
  tfp_diag.clear_cache()
  found = [sample(2, seed=0, num_adaptation_steps=4) for _ in range(3)]
  assert len(compiled) == 1
  assert_same(found[0], found[2])
  # Python runs each time: another target is another graph.
  other = sample(
    2,
    lambda rate, x: log_prob(rate, 2.0 * x),
    seed=0,
    num_adaptation_steps=4,
  )
  assert len(compiled) == 2
  assert np.all(other.draws['x'] != found[0].draws['x'])


def test_a_call_that_does_not_adapt_keeps_the_step_size():
  def log_prob(x):
    return -0.5 * tf.reduce_sum(x**2, -1)

  run = tfp_diag.mcmc.windowed_adaptive_mala
  first = run(
    0,
    log_prob,
    init=tf.zeros([4, 2]),
    num_adaptation_steps=200,
    preconditioner=None,
    discard_tuning=False,
    stop_when=lambda draws, trace: True,
    seed=1,
  )
  second = run(
    50,
    log_prob,
    init=first.final_state,
    num_adaptation_steps=0,
    preconditioner=None,
    target_accept_prob=0.8,
    previous_kernel_results=first.final_kernel_results,
    discard_tuning=False,
    seed=2,
  )
  assert len(np.unique(second.trace['step_size'])) == 1
  assert not np.any(second.trace['tune'])
  assert float(second.final_kernel_results.target_accept_prob) == np.float32(
    0.8
  )
  assert tfp_diag.mcmc.summarize(second.draws, second.trace).num_draws == 50
  with pytest.raises(TypeError, match='`previous_kernel_results` is'):
    run(
      1,
      log_prob,
      preconditioner=None,
      init=first.final_state,
      previous_kernel_results=first.final_kernel_results.inner_results,
    )
