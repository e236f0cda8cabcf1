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
"""Calls that are repeated say nothing: no log line, no warning of retracing."""

import logging
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests import errors_table
from tfp_diag.mcmc.run.unconstrained_target import as_target

tfd = tfp.distributions

# These sample, and are slow; TensorFlow warns from the fifth trace on.
_FEWER = ('sample_posterior', 'windowed_adaptive_mala')
_ROWS = {
  name: row
  for name, row in errors_table.rows().items()
  # Records, and what there is once: a rule, a run, a picture.
  if row.good() and name not in ('load_draws', 'register_rule')
}
_ROWS['sample'] = errors_table.rows()['sample']


class _Kept(logging.Handler):
  def __init__(self):
    super().__init__()
    self.lines = []

  def emit(self, record):
    self.lines.append(record.getMessage())


def _said(call, times):
  kept = _Kept()
  tf.get_logger().addHandler(kept)
  try:
    for _ in range(times):
      call()
  finally:
    tf.get_logger().removeHandler(kept)
  return kept.lines


@pytest.mark.parametrize('name', list(_ROWS))
def test_ten_calls_say_nothing(name, capfd):
  row = _ROWS[name]
  capfd.readouterr()
  with warnings.catch_warnings():
    # What draws say about themselves, so few of them.
    warnings.simplefilter('ignore', UserWarning)
    lines = _said(lambda: row.call(**row.good()), 6 if name in _FEWER else 10)
  assert lines == []
  assert capfd.readouterr().out == ''


def test_ten_plans_say_nothing():
  x = tf.ones([3])

  def plan_and_call():
    tfp_diag.plan_diag_hessian(lambda x: tf.reduce_sum(x**3), x)(x)

  assert _said(plan_and_call, 10) == []


def test_a_model_that_vectorizes_itself_says_nothing():
  """In the start, the log density and the way back to its space."""

  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    rate = yield tfd.Gamma(2.0, 1.0, name='rate')
    yield tfd.Sample(tfd.Poisson(rate), 2, name='counts')

  target = as_target(
    model,
    [3],
    None,
    None,
    {'counts': [3.0, 1.0]},
    (1, 2),
    tfp_diag.mcmc.windowed_adaptive_mala,
  )
  draws = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape([4, 3])
  assert _said(lambda: target.constrain([draws]), 10) == []
  np.testing.assert_allclose(
    target.constrain([draws]).rate, np.log1p(np.exp(draws)), rtol=1e-5
  )


def test_a_warning_of_retracing_is_seen():
  def retrace():
    tf.function(lambda x: x)(tf.constant(1.0))

  assert any('retracing' in line for line in _said(retrace, 10))
