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
"""`validate_args=True` finds that the pattern of a plan is wrong.

The functions take their matrix as an argument, so that one graph serves many
matrices. A wrong plan is the right one for a pattern that lacks one entry, in
one triangle, of the true one: the smallest mistake there is, and the one that
the signs see with the smallest probability. Of 100 of these at least 99 have to
be found. All draws are fixed, so that the test says the same each time.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.sparsity import SparsityPattern, color_diagonal

pytestmark = pytest.mark.usefixtures('without_sweeps')

SIZES = (5, 13)
NUM_MATRICES = 50  # Of each size: 100 in all.


def plan_for(kind, matrix, sample_rank=1):
  """A plan for a pattern that the caller knows, and is believed."""
  n = matrix.shape[0]
  template = {
    'jacobian': tfp_diag.plan_diag_jacobian(
      tf.sin, tf.TensorSpec([2] * sample_rank + [n]), [2] * sample_rank
    ),
    'hessian': tfp_diag.plan_diag_hessian(
      lambda x: tf.reduce_sum(x**2, axis=-1),
      tf.TensorSpec([2] * sample_rank + [n]),
    ),
  }[kind]
  pattern = SparsityPattern(matrix)
  return dataclasses.replace(
    template,
    pattern=pattern,
    colors=color_diagonal(pattern).colors,
    ways=(),
    is_given=True,
  )


def checked(kind, plan, mode):
  """(x, matrix) -> diagonal, with the checks."""

  @tf.function
  def run(x, matrix):
    if kind == 'jacobian':
      return tfp_diag.diag_jacobian(
        x,
        fn=lambda x: tf.sin(tf.linalg.matvec(matrix, x)),
        plan=plan,
        mode=mode,
        validate_args=True,
      )[1][0]
    symmetric = matrix + tf.linalg.matrix_transpose(matrix)
    return tfp_diag.diag_hessian(
      lambda x: tf.reduce_sum(x * tf.linalg.matvec(symmetric, x), axis=-1),
      x,
      plan=plan,
      mode=mode,
      validate_args=True,
    )[2]

  return run


def diagonal(kind, x, matrix):
  if kind == 'jacobian':
    return np.cos(x @ matrix.T) * np.diag(matrix)
  return np.broadcast_to(4 * np.diag(matrix), x.shape)


def random_matrix(rng, allowed):
  """Random entries where they are allowed, a full diagonal."""
  n = allowed.shape[0]
  return rng.normal(size=[n, n]) * (allowed | np.eye(n, dtype=bool))


CASES = [
  ('jacobian', 'forward'),
  ('jacobian', 'reverse'),
  ('hessian', 'forward_over_reverse'),
  ('hessian', 'reverse_over_reverse'),
]


@pytest.mark.parametrize('kind, mode', CASES)
def test_wrong_patterns_are_found_and_right_ones_are_not(kind, mode):
  found = missed = 0
  for n in SIZES:
    rng = np.random.default_rng(n)
    pattern = rng.uniform(size=[n, n]) < 2 / n
    plan = plan_for(kind, pattern)
    same = np.equal.outer(plan.colors, plan.colors) & ~np.eye(n, dtype=bool)
    conflicts = np.argwhere(same)
    run = checked(kind, plan, mode)
    for _ in range(NUM_MATRICES):
      x = rng.normal(size=[3, n])
      right = random_matrix(rng, pattern)
      np.testing.assert_allclose(
        run(x, right), diagonal(kind, x, right), rtol=1e-10, atol=1e-12
      )
      wrong = right.copy()
      i, j = conflicts[rng.integers(len(conflicts))]
      wrong[i, j] = rng.normal()
      try:
        run(x, wrong)
        missed += 1
      except tf.errors.InvalidArgumentError as e:
        assert 'colors of `plan` do not fit `fn`' in e.message
        found += 1
  assert found + missed == 100
  assert found >= 99


def test_without_the_checks_a_wrong_pattern_gives_wrong_numbers():
  """What the checks are for: nothing else would be seen."""
  plan = plan_for('jacobian', np.eye(4))
  assert plan.num_passes == 1
  matrix = np.eye(4) + np.eye(4, k=1)
  x = np.random.default_rng(0).normal(size=[3, 4])

  def fn(x):
    return tf.linalg.matvec(matrix, x)

  diag = tfp_diag.diag_jacobian(x, fn=fn, plan=plan)[1][0]
  assert np.abs(diag - np.ones([3, 4])).max() > 0.5
  with pytest.raises(tf.errors.InvalidArgumentError, match='Plan again'):
    tfp_diag.diag_jacobian(x, fn=fn, plan=plan, validate_args=True)


@pytest.mark.parametrize(
  'schedule, dtype',
  [
    ('unrolled', 'float32'),
    ('pfor', 'float64'),
    ('while_loop', 'float32'),
  ],
)
def test_plans_that_were_detected_pass_the_checks(schedule, dtype):
  def fn(x):
    chain = tf.cosh(x[..., 1:] - 0.9 * x[..., :-1])
    return tf.reduce_sum(chain, axis=-1) * 1e3

  x = tf.constant(np.random.default_rng(0).normal(size=[5, 40]), dtype)
  plan = tfp_diag.plan_diag_hessian(fn, x, schedule=schedule)
  checked = tfp_diag.diag_hessian(fn, x, plan=plan, validate_args=True)[2]
  implicit = tfp_diag.diag_hessian(fn, x, validate_args=True)[2]
  c = 1e3 * np.cosh(x[:, 1:] - 0.9 * x[:, :-1])
  want = np.zeros(x.shape)
  want[:, 1:] += c
  want[:, :-1] += 0.81 * c
  for diag in (checked, implicit):
    np.testing.assert_allclose(diag, want, rtol=1e-4)


@pytest.mark.parametrize('validate_args', (False, True))
def test_a_plan_for_another_function_is_found(validate_args):
  x = np.random.default_rng(0).normal(size=[3, 20])
  plan = tfp_diag.plan_diag_jacobian(tf.sin, x, sample_shape=[3])

  def fn(x):
    return tf.cumsum(x, axis=-1) * x

  with pytest.raises(ValueError, match='another function'):
    tfp_diag.diag_jacobian(
      x, sample_shape=[3], fn=fn, plan=plan, validate_args=validate_args
    )
