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
"""The posteriors of the zoo are the same for all frameworks."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import sampler_models, zoo_models
from tfp_diag.mcmc.run.unconstrained_target import target_of_model

SIZES = {
  'banana': 2,
  'funnel': 10,
  'eight_schools': 10,
  'eight_schools_centered': 10,
  'logistic_regression': 25,
  'hierarchical_logistic_regression': 26,
  'brownian_motion': 32,
  'sparse_logistic_regression': 52,
  'poisson_mixed_model': 53,
  'cox_process': 66,
  'hierarchical_model': 86,
  'gaussian_rotated': 100,
  'stochastic_volatility': 103,
  'item_response': 501,
}


def test_all_are_there():
  assert set(SIZES) == set(zoo_models.ZOO)


@pytest.mark.parametrize(
  'make',
  [*zoo_models.ZOO.values(), sampler_models.gaussian_aligned],
  ids=[*zoo_models.ZOO, 'gaussian_aligned'],
)
def test_what_tfp_samples_is_the_log_density(make, request):
  """In the unconstrained space, where the samplers are."""
  model = make()
  name = request.node.callspec.id
  assert model.size == SIZES.get(name, model.size)
  target = target_of_model(model.joint, model.pins, None, [4], (1, 2))
  sizes = [x.shape[1:].num_elements() for x in target.start]
  assert sum(sizes) == model.size
  x = np.random.default_rng(3).uniform(-1.0, 1.0, [4, model.size])
  parts = [
    tf.constant(values.reshape(start.shape), tf.float32)
    for values, start in zip(
      np.split(x, np.cumsum(sizes)[:-1], 1), target.start
    )
  ]
  of_vectors = np.array([model.log_prob(np, row) for row in x])
  np.testing.assert_allclose(
    np.diff(target.log_prob_fn(*parts)),
    np.diff(of_vectors),
    atol=2e-5 * np.max(np.abs(of_vectors)) + 1e-4,
  )
  constrained = x
  if model.constrained is not None:
    constrained = [model.constrained(np, row) for row in x]
  of_tfp = tf.nest.flatten(target.constrain(parts))
  of_tfp = np.concatenate([p.numpy().reshape(4, -1) for p in of_tfp], axis=1)
  np.testing.assert_allclose(of_tfp, constrained, rtol=1e-4)
