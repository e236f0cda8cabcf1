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
"""Errors in what the user wrote: the draws are kept, and it is said where."""

import dataclasses
import shutil
import traceback

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc import PreconditionedMALA
from tfp_diag.mcmc.run import progress


class UserError(Exception):
  pass


def fail():
  raise UserError('in user code')


def fail_after(num_calls):
  """A function that fails at the call after so many."""
  counted = []

  def call():
    counted.append(None)
    return fail() if len(counted) > num_calls else np.float32(0.0)

  return call


class Walk(tfp.mcmc.TransitionKernel):
  """A random walk that looks at its target in each step."""

  is_calibrated = True

  def __init__(self, look=lambda: np.float32(0.0)):
    self._look = look

  def bootstrap_results(self, state):
    return ()

  def one_step(self, state, results, seed=None):
    zero = tf.numpy_function(self._look, [], tf.float32)
    noise = tf.random.stateless_normal(state.shape, seed)
    return state + noise + tf.ensure_shape(zero, []), ()


def sample(num_results=20, look=None, **kwargs):
  settings = dict(
    num_burnin_steps=5,
    block_size=5,
    seed=1,
    jit_compile=False,
    progress_bar=False,
    trace_fn=lambda state, _: {'twice': 2.0 * state},
  )
  return tfp_diag.mcmc.sample(
    Walk(look) if look else Walk(),
    np.zeros([2, 3], np.float32),
    num_results,
    **{**settings, **kwargs},
  )


@pytest.fixture(scope='module')
def whole():
  return sample()


def assert_same(one, other):
  tf.nest.map_structure(
    np.testing.assert_array_equal, one._asdict(), other._asdict()
  )


def in_stop_when():
  look = fail_after(1)
  return {'stop_when': lambda *_: bool(look())}


def in_target():
  return {'look': fail_after(17)}


def in_trace_fn():
  look = fail_after(18)  # The first call is no step.

  def trace_fn(state, _):
    zero = tf.numpy_function(look, [], tf.float32)
    return {'twice': 2.0 * state + tf.ensure_shape(zero, [])}

  return {'trace_fn': trace_fn}


def in_progress_bar():
  return {'progress_bar': True}


def rhat_of(read_draws, num_rows, chain_ndims):
  """What the bar shows."""
  del read_draws, chain_ndims
  return fail() if num_rows == 10 else None


@pytest.mark.parametrize('with_checkpoint', [False, True])
@pytest.mark.parametrize(
  'place', [in_stop_when, in_target, in_trace_fn, in_progress_bar]
)
def test_what_was_drawn_is_kept(
  place, with_checkpoint, whole, tmp_path, monkeypatch
):
  arguments = place()
  path = tmp_path / 'run'
  if with_checkpoint:
    arguments['checkpoint'] = path
  with monkeypatch.context() as patch:
    patch.setattr(progress, '_quick_rhat', rhat_of)
    patch.setattr(progress, '_SECONDS_BETWEEN_RHATS', 0.0)
    with pytest.raises(Exception, match='in user code') as error:
      sample(**arguments)
  # TensorFlow has its own types for what is raised in a graph.
  assert isinstance(error.value, (UserError, tf.errors.OpError))
  kept = error.value.sample_results
  assert (kept.num_results, kept.stopped_by) == (10, 'error')
  np.testing.assert_array_equal(kept.draws, whole.draws[:10])
  np.testing.assert_array_equal(kept.trace['twice'], whole.trace['twice'][:10])
  np.testing.assert_array_equal(kept.final_state, whole.draws[9])
  said = ''.join(traceback.format_exception(error.value))
  assert 'The 10 of 20 draws made until then are kept, as `sample_res' in said
  if with_checkpoint:
    assert f"It goes on with `checkpoint='{path}', resume=True`." in said
    assert isinstance(kept.draws, np.memmap)
    # With the error mended.
    assert_same(sample(checkpoint=path, resume=True), whole)
  else:
    assert 'Pass `checkpoint` to be able to resume' in said


def test_an_error_before_the_first_block_has_no_note():
  with pytest.raises(Exception, match='in user code') as error:
    sample(look=fail)
  assert not hasattr(error.value, '__notes__')
  assert error.value.sample_results.num_results == 0


def test_a_checkpoint_of_the_start_is_pointed_out(tmp_path):
  """It is there, and the next call would be refused."""
  with pytest.raises(Exception, match='in user code') as error:
    sample(look=fail, checkpoint=tmp_path / 'run')
  said = ''.join(traceback.format_exception(error.value))
  assert 'The 0 of 20 draws' in said and 'resume=True' in said


@pytest.mark.parametrize('jit_compile', [False, True])
def test_a_trace_whose_shape_changes_is_refused_in_a_sentence(jit_compile):
  def positive(state, _):
    return tf.boolean_mask(state, state > 0.0)

  with pytest.raises(ValueError, match=r'^`trace_fn` .* of another'):
    tfp_diag.mcmc.sample(
      PreconditionedMALA(lambda x: -0.5 * x**2, 0.5),
      tf.zeros([4]),
      5,
      trace_fn=positive,
      jit_compile=jit_compile,
      seed=1,
    )


def test_a_trace_of_a_shape_that_is_known_at_run_time(whole):
  def twice(state, _):
    return {'twice': tf.boolean_mask(2.0 * state, [True, True])}

  traced = tf.function(twice).get_concrete_function(tf.zeros([2, 3]), ())
  assert not traced.output_shapes['twice'].is_fully_defined()
  assert_same(sample(trace_fn=twice), whole)


def test_a_trace_of_another_shape_in_a_graph_is_refused():
  def trace_fn(state, _):
    return state if tf.executing_eagerly() else state[0]

  with pytest.raises(ValueError, match=r'^`trace_fn` .* of another'):
    sample(trace_fn=trace_fn)


def test_keys_of_a_trace_that_cannot_be_sorted():
  with pytest.raises(TypeError, match='`trace_fn` returned a dict whose keys'):
    sample(trace_fn=lambda state, _: {1: state, 'a': state})


def test_kernel_results_that_last_no_longer_than_a_graph():
  kernel = tfp.experimental.mcmc.WithReductions(
    PreconditionedMALA(lambda x: -0.5 * x**2, 0.5),
    tfp.experimental.mcmc.TracingReducer(size=5),
  )
  with pytest.raises(TypeError, match=r'have a `tf\.TensorArray`.* `trace_fn`'):
    tfp_diag.mcmc.sample(kernel, tf.zeros([4]), 5)


class OldError(UserError):
  """An exception as of Python 3.10."""

  @property
  def add_note(self):
    raise AttributeError


def test_without_notes_the_way_on_is_a_cause():
  def stop_when(*_):
    try:
      fail()
    except UserError as e:
      raise OldError('again') from e

  with pytest.raises(OldError) as error:
    sample(stop_when=stop_when)
  said = ''.join(traceback.format_exception(error.value))
  first = said.index('UserError: in user code')
  second = said.index('RuntimeError: The 5 of 20 draws')
  assert first < second < said.index('OldError: again')
  assert error.value.sample_results.num_results == 5


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
  """Takes no attributes, and no notes."""

  reason: str


def test_an_error_that_takes_nothing_is_raised_as_it_is():
  def stop_when(*_):
    raise FrozenError('frozen')

  with pytest.raises(FrozenError, match='frozen'):
    sample(stop_when=stop_when)


def test_files_that_are_gone_do_not_hide_the_error(tmp_path):
  def stop_when(*_):
    shutil.rmtree(tmp_path / 'run')
    fail()

  with pytest.raises(UserError, match='in user code') as error:
    sample(stop_when=stop_when, checkpoint=tmp_path / 'run')
  assert not hasattr(error.value, 'sample_results')


def test_draws_that_do_not_fit_into_memory_stay_on_disk(
  tmp_path, monkeypatch, whole
):
  run = tfp_diag.mcmc.run.sampling_run.SamplingRun
  read_rows = run.read_rows

  def limited(self, in_memory):
    if in_memory:
      raise MemoryError
    return read_rows(self, in_memory)

  monkeypatch.setattr(run, 'read_rows', limited)
  with pytest.raises(MemoryError) as error:
    sample(checkpoint=tmp_path / 'run')
  np.testing.assert_array_equal(error.value.sample_results.draws, whole.draws)
