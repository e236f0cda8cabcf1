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
"""Runs in pieces are the run, and a checkpoint that does not fit is refused."""

import collections
import json
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag

START = np.array([[0.0, 0.0], [0.5, -0.5], [1.0, 2.0]], np.float32)

Results = collections.namedtuple('Results', ['target_log_prob', 'num_steps'])


class Walk(tfp.mcmc.TransitionKernel):
  """A random walk that knows a target, and takes no time to trace."""

  is_calibrated = True

  def __init__(self, precision=1.0):
    self._precision = precision

  def bootstrap_results(self, state):
    return Results(self._log_prob(state), tf.constant(0))

  def one_step(self, state, results, seed=None):
    state += tf.random.stateless_normal(state.shape, seed, dtype=state.dtype)
    return state, Results(self._log_prob(state), results.num_steps + 1)

  def _log_prob(self, state):
    return -self._precision * tf.reduce_sum(state**2, -1)


class BlindWalk(Walk):
  """The same, without the name by which a target is found."""

  def bootstrap_results(self, state):
    return (self._log_prob(state), tf.constant(0))

  def one_step(self, state, results, seed=None):
    state, results = super().one_step(state, Results(*results), seed)
    return state, tuple(results)


def sample(num_results, kernel=None, start=START, **kwargs):
  settings = dict(
    num_burnin_steps=3,
    num_steps_between_results=1,
    block_size=4,
    seed=1,
    jit_compile=False,
  )
  return tfp_diag.mcmc.sample(
    kernel or Walk(), start, num_results, **{**settings, **kwargs}
  )


def assert_same(one, other):
  tf.nest.map_structure(
    np.testing.assert_array_equal, one._asdict(), other._asdict()
  )


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'run'


def edit(path, **changes):
  """Rewrites a checkpoint with some entries replaced."""
  with np.load(path / 'checkpoint.npz') as archive:
    arrays = {**archive, **changes}
  np.savez(path / 'checkpoint.npz', **arrays)


@pytest.mark.parametrize('first', [0, 1, 5])
def test_a_run_in_pieces_is_the_run(path, first):
  for num_results, block_size in ((first, 4), (6, 3), (6, 3), (15, 100)):
    found = sample(
      num_results, block_size=block_size, checkpoint=path, resume=True
    )
    assert found.num_results == num_results
  assert_same(found, sample(15))


def test_adaptation_goes_on_where_it_was(path):
  def run(num_results, **kwargs):
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
      tfp_diag.mcmc.PreconditionedMALA(
        lambda x: -tf.reduce_sum(tf.cosh(x), -1), step_size=0.2
      ),
      num_adaptation_steps=20,
    )
    return tfp_diag.mcmc.sample(
      kernel, START, num_results, seed=2, jit_compile=False, **kwargs
    )

  run(7, checkpoint=path)
  assert_same(run(30, checkpoint=path, resume=True), run(30))


def test_the_seed_is_that_of_the_checkpoint_if_none_is_given(path):
  first = sample(4, seed=None, checkpoint=path)
  second = sample(8, seed=None, checkpoint=path, resume=True)
  np.testing.assert_array_equal(second.draws[:4], first.draws)


def test_compilation_may_change(path):
  sample(4, checkpoint=path)
  found = sample(8, checkpoint=path, resume=True, jit_compile=True)
  assert found.num_results == 8


def test_draws_stay_on_disk(path):
  found = sample(9, checkpoint=path, draws_on_disk=True)
  assert isinstance(found.draws, np.memmap)
  assert isinstance(found.trace['target_log_prob'], np.memmap)
  with pytest.raises(ValueError, match='read-only'):
    found.draws[0] = 0.0
  assert_same(found, sample(9))
  # Earlier maps stay as they are.
  longer = sample(30, checkpoint=path, draws_on_disk=True, resume=True)
  assert_same(longer, sample(30))
  assert_same(found, sample(9))


def test_the_files_are_what_numpy_reads(path):
  found = sample(9, checkpoint=path)
  assert sorted(os.listdir(path)) == [
    '.lock',
    'checkpoint.npz',
    'draws_0.npy',
    'index.json',
    'trace_0.npy',
  ]
  np.testing.assert_array_equal(np.load(path / 'draws_0.npy'), found.draws)
  trace = np.load(path / 'trace_0.npy', mmap_mode='r')
  np.testing.assert_array_equal(trace, found.trace['target_log_prob'])


def test_earlier_draws_are_not_written_again(path):
  sample(4, checkpoint=path)
  first = (path / 'draws_0.npy').stat().st_ino
  sample(400, checkpoint=path, resume=True, block_size=200)
  assert (path / 'draws_0.npy').stat().st_ino == first
  # The checkpoint does not hold them.
  draws = (path / 'draws_0.npy').stat().st_size
  assert (path / 'checkpoint.npz').stat().st_size < draws


def test_no_draws_can_stay_on_disk(path):
  found = sample(0, checkpoint=path, draws_on_disk=True)
  assert found.draws.shape == (0, 3, 2)


def test_a_checkpoint_is_not_overwritten(path):
  sample(4, checkpoint=path)
  before = (path / 'checkpoint.npz').read_bytes()
  with pytest.raises(ValueError, match=r'exists\. Pass `resume=True`'):
    sample(4, checkpoint=path)
  assert (path / 'checkpoint.npz').read_bytes() == before


@pytest.mark.parametrize('is_file', [False, True])
def test_what_else_is_there_is_not_overwritten(path, is_file):
  if is_file:
    path.write_text('thesis')
  else:
    path.mkdir()
    (path / 'draws_0.npy').write_text('thesis')
  with pytest.raises(ValueError, match='where something else is'):
    sample(4, checkpoint=path, resume=True)
  assert (path if is_file else path / 'draws_0.npy').read_text() == 'thesis'


@pytest.mark.parametrize(
  'record, name',
  [(lambda x: tf.cast(x, tf.bfloat16), 'bfloat16'), (tf.as_string, 'string')],
  ids=['bfloat16', 'string'],
)
def test_what_no_file_holds_is_refused_before_the_first_step(
  path, record, name
):
  words = f'`trace_fn` returned {name}, which the files of a `checkpoint`'
  with pytest.raises(ValueError, match=rf'{words} .* `tf\.cast\('):
    sample(4, checkpoint=path, trace_fn=lambda x, _: record(x))
  assert not path.exists()


class WalkInBfloat16(Walk):
  """Keeps its log density in half of the memory."""

  def _log_prob(self, state):
    return tf.cast(super()._log_prob(state), tf.bfloat16)


def test_kernel_results_that_no_file_holds_are_refused(path):
  options = dict(kernel=WalkInBfloat16(), trace_fn=lambda *_: ())
  with pytest.raises(ValueError, match='kernel results have bfloat16, which'):
    sample(4, checkpoint=path, **options)
  assert len(sample(4, **options).draws) == 4


@pytest.mark.parametrize('dtype', [tf.bool, tf.float16, tf.complex64])
def test_what_is_traced_keeps_its_dtype(path, dtype):
  options = dict(
    checkpoint=path, resume=True, trace_fn=lambda x, _: tf.cast(x, dtype)
  )
  first = sample(2, **options).trace
  found = sample(4, **options).trace
  assert found.dtype == first.dtype == dtype.as_numpy_dtype
  np.testing.assert_array_equal(found[:2], first)
  loaded = tfp_diag.mcmc.load_draws(path).trace
  assert [x.dtype for x in loaded.values()] == [found.dtype]


@pytest.mark.parametrize('name', ['resume', 'draws_on_disk'])
def test_some_arguments_need_a_checkpoint(name):
  with pytest.raises(ValueError, match=f'`{name}` is true, but there is no'):
    sample(4, **{name: True})


@pytest.mark.parametrize(
  'change, match',
  [
    (dict(seed=2), r'another `seed`: it has \[1, 0\].*\[2, 0\]'),
    (dict(num_burnin_steps=4), 'it has 3, but this call has 4'),
    (dict(num_steps_between_results=0), 'it has 1, .* has 0'),
    (dict(start=START[:2]), r'float32\(3, 2\).*float32\(2, 2\)'),
    (dict(start=START.astype(np.float64)), 'float32.*float64'),
    (dict(trace_fn=lambda *_: ()), 'another `trace_fn`'),
    (dict(kernel=Walk(1.01)), 'another target: at a state of it'),
    (dict(kernel=BlindWalk(), seed=2), 'another kernel: it has Results'),
    (dict(num_results=2), 'has made 10 steps, but .* asks for 6.*load_draws'),
  ],
  ids=[
    'seed',
    'burnin',
    'thinning',
    'shape',
    'dtype',
    'trace',
    'target',
    'kernel',
    'fewer',
  ],
)
def test_another_run_is_refused(path, change, match):
  sample(4, checkpoint=path)
  arguments = {'num_results': 8, 'checkpoint': path, 'resume': True, **change}
  with pytest.raises(ValueError, match=match):
    sample(**arguments)
  # And harms nothing.
  assert_same(sample(8, checkpoint=path, resume=True), sample(8))


def test_a_target_that_agrees_at_the_start_is_another_one(path):
  start = np.zeros_like(START)
  sample(4, start=start, checkpoint=path)
  with pytest.raises(ValueError, match='another target'):
    sample(8, Walk(1.01), start=start, checkpoint=path, resume=True)


def test_a_large_log_density_hides_no_other_target(path):
  def kernel(precision):
    def log_prob(x):
      return -1e5 - 0.5 * precision * tf.reduce_sum(x**2, -1)

    return tfp_diag.mcmc.PreconditionedMALA(log_prob, 0.5)

  start = 2.0 * START
  sample(4, kernel(1.0), start=start, checkpoint=path)
  arguments = dict(start=start, checkpoint=path, resume=True)
  with pytest.raises(ValueError, match='another target'):
    sample(8, kernel(2.0), **arguments)
  assert_same(
    sample(8, kernel(1.0), **arguments), sample(8, kernel(1.0), start)
  )


@pytest.mark.parametrize(
  'change',
  [
    {'step_size': 0.2},
    {'preconditioner': tf.constant([1.0, 2.0])},
    {'discretization': 'exponential'},
  ],
  ids=lambda change: next(iter(change)),
)
def test_another_setting_of_the_kernel_is_refused(path, change):
  def kernel(**change):
    arguments = dict(step_size=0.1, preconditioner=tf.constant([1.0, 1.0]))
    return tfp.mcmc.SimpleStepSizeAdaptation(
      tfp_diag.mcmc.PreconditionedMALA(
        lambda x: -tf.reduce_sum(x**2, -1), **{**arguments, **change}
      ),
      num_adaptation_steps=3,
    )

  sample(4, kernel(), checkpoint=path)
  with pytest.raises(ValueError, match='with other settings of the kernel'):
    sample(8, kernel(**change), checkpoint=path, resume=True)
  sample(8, kernel(), checkpoint=path, resume=True)


def diagonal(*values):
  return tf.linalg.LinearOperatorDiag(tf.constant(values))


def langevin(**settings):
  return tfp_diag.mcmc.PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, -1), 1.0, **settings
  )


def volatility(scale):
  return lambda x: scale * (1.0 + tf.sigmoid(x))


@pytest.mark.parametrize(
  ('before', 'now', 'match'),
  [
    (
      {'preconditioner': diagonal(1.0, 1.0)},
      {'preconditioner': diagonal(5.0, 0.1)},
      "other settings of the kernel: .*OperatorDiag', 'diag': 'float32",
    ),
    (
      {'preconditioner': tfp_diag.mcmc.LocalHessianPreconditioner(1e-3)},
      {'preconditioner': tfp_diag.mcmc.LocalHessianPreconditioner(0.3)},
      "other settings of the kernel: .*'softness': '0.001'",
    ),
    (
      {'volatility_fn': volatility(1.0)},
      {'volatility_fn': volatility(0.01)},
      r"another kernel: it has 1\.\d+ as '.*volatility.*' at one state",
    ),
  ],
  ids=['operator', 'dataclass', 'volatility'],
)
def test_another_object_or_function_of_the_kernel_is_refused(
  path, before, now, match
):
  sample(2, langevin(**before), checkpoint=path)
  with pytest.raises(ValueError, match=match):
    sample(4, langevin(**now), checkpoint=path, resume=True)
  sample(4, langevin(**before), checkpoint=path, resume=True)


def test_another_trace_of_the_same_shape_is_refused(path):
  def recorded(entry):
    return lambda _, results: {'v': entry(results), 'time': tf.timestamp()}

  steps = recorded(lambda results: 0.0 * results.target_log_prob)
  sample(2, trace_fn=steps, checkpoint=path)
  arguments = dict(checkpoint=path, resume=True)
  with pytest.raises(
    ValueError, match=r"`trace_fn`: it has -?0.0 as 'v' at one state, but"
  ):
    sample(4, trace_fn=recorded(lambda r: r.target_log_prob), **arguments)
  # The time is another one in each call.
  found = sample(4, trace_fn=steps, **arguments)
  assert len(found.trace['time']) == 4


def test_counts_of_numpy(path):
  counts = {
    'num_burnin_steps': np.int64(3),
    'num_steps_between_results': np.int32(1),
    'block_size': np.int64(5),
  }
  found = sample(np.int64(8), checkpoint=path, **counts)
  assert_same(found, sample(8, block_size=5))
  with pytest.raises(ValueError, match='`num_results` is True'):
    sample(True)


def test_chains_that_leave_the_finite_numbers_do_not_stop_a_run(path):
  kernel = tfp_diag.mcmc.UncalibratedPreconditionedLangevin(
    lambda x: -tf.reduce_sum(x**4, -1), 50.0
  )
  found = sample(30, kernel, checkpoint=path)
  assert not np.all(np.isfinite(found.draws))
  assert found.draws.shape[0] == 30


def test_a_kernel_without_a_log_density_resumes_as_well(path):
  sample(4, BlindWalk(), checkpoint=path)
  found = sample(8, BlindWalk(), checkpoint=path, resume=True)
  assert found.trace == {}
  np.testing.assert_array_equal(found.draws, sample(8).draws)


def truncate(path):
  content = path.read_bytes()
  path.write_bytes(content[: len(content) // 2])


def flip_a_bit(path):
  content = bytearray(path.read_bytes())
  content[-3] ^= 1
  path.write_bytes(content)


@pytest.mark.parametrize(
  'damage, file, match',
  [
    (truncate, 'checkpoint.npz', 'it is truncated, or not an .npz file'),
    (truncate, 'draws_0.npy', 'is shorter than'),
    (flip_a_bit, 'draws_0.npy', 'its draws or their trace were changed'),
    (flip_a_bit, 'trace_0.npy', 'its draws or their trace were changed'),
    (os.unlink, 'trace_0.npy', 'No such file'),
  ],
)
def test_damage_is_noticed(path, damage, file, match):
  sample(4, checkpoint=path)
  damage(path / file)
  with pytest.raises(ValueError, match=match) as error:
    sample(8, checkpoint=path, resume=True)
  assert 'Pass another path, or delete this one' in str(error.value)


def test_an_edited_checkpoint_is_noticed(path):
  sample(4, checkpoint=path)
  edit(path, state_0=START)
  with pytest.raises(ValueError, match='contents were changed'):
    sample(8, checkpoint=path, resume=True)


@pytest.mark.parametrize(
  'name, value, match',
  [
    ('version', 99, 'format version 99, and this version of tfp_diag reads'),
    ('format', 'other', 'written by something else'),
  ],
)
def test_another_format_is_named(path, name, value, match):
  sample(4, checkpoint=path)
  with np.load(path / 'checkpoint.npz') as archive:
    meta = json.loads(str(archive['meta']))
  edit(path, meta=np.array(json.dumps({**meta, name: value})))
  with pytest.raises(ValueError, match=match):
    sample(8, checkpoint=path, resume=True)


def test_a_pickle_is_not_opened(path):
  sample(4, checkpoint=path)
  edit(path, state_0=np.array([{'a': 1}], object))
  with pytest.raises(ValueError, match='Object arrays cannot be loaded'):
    sample(8, checkpoint=path, resume=True)
