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
"""Likely mistakes that fit the types of arguments get a sentence, too."""

import collections

import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag import mcmc, sparsity

SPEC = tf.TensorSpec([2, 3])
X = tf.ones([2, 3])


def value(x):
  return tf.reduce_sum(x**2, -1)


_Run = collections.namedtuple('_Run', 'draws trace')
RUN = _Run({'x': tf.ones([4, 2])}, {})
KERNEL = mcmc.PreconditionedMALA(value, 0.1)


@pytest.mark.parametrize(
  'call, match',
  [
    (lambda: tfp_diag.diag_hessian(value, SPEC), 'which has no values'),
    (lambda: tfp_diag.diag_jacobian(SPEC, fn=tf.sin), 'which has no values'),
    (lambda: tfp_diag.hessian(value, SPEC, [2]), 'which has no values'),
    (
      lambda: tfp_diag.plan_diag_hessian(value, SPEC)(SPEC),
      'which has no values',
    ),
    (lambda: tfp_diag.plan_diag_hessian(value, [1000]), r'TensorSpec\(\[1000'),
    (lambda: sparsity.hessian_sparsity(value, 5), r'TensorSpec\(\[5\]\)'),
    (
      lambda: tfp_diag.plan_diag_hessian(value, [None, 3]),
      'a shape with open sizes is a `tf.TensorSpec',
    ),
    (lambda: tfp_diag.diag_jacobian(X, tf.sin), '`ys` is .* is a function'),
    (
      lambda: tfp_diag.diag_hessian(lambda **k: 0.0, {0: X}),
      'the names of arguments of `fn`',
    ),
    *(
      (lambda look=look: look(RUN), r'`_Run`, .* pass its `\.draws`')
      for look in (mcmc.rhat, mcmc.ess, mcmc.summarize, mcmc.to_arviz)
    ),
    (
      lambda: mcmc.sample(KERNEL, X, 5, stop_when=lambda draws: True),
      '`stop_when` takes .*the draws and the trace',
    ),
  ],
)
def test_a_likely_mistake_is_named(call, match):
  with pytest.raises(TypeError, match=match):
    call()


def test_a_name_that_is_nearly_right():
  with pytest.raises(AttributeError) as info:
    tfp_diag.diag_hessain  # noqa: B018 (it raises)
  assert (info.value.name, info.value.obj) == ('diag_hessain', tfp_diag)
