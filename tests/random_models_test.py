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
"""Random models: networks, mixtures and regressions, with dense Hessians.

As `random_programs_test`, of what `random_steps` seldom make: parameters of
which most reach each result on one path. How they are put together is drawn,
and so are layers that are shared, connections past layers, scales of all or of
some, and coordinates that are parameters twice.

    pytest tests/random_models_test.py --fuzz-seed 1234
    pytest tests/random_models_test.py --fuzz-seconds 28800
"""

import contextlib
import time
import typing
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_by_copies, unmixed_diagonals
from tests.preferred_ways import prefer_sweeps
from tfp_diag.sparsity.analysis import Analysis

NUM_MODELS = 12
NUM_TESTS = 4
# As few as will do: the time goes into tracing.
MAX_COORDINATES = 14
REGIMES = ('plan', 'open_plan', 'function', 'xla', 'third')
SHARES = (0.53, 0.15, 0.1, 0.02, 0.2)
FRONTIERS = ('cheapest', 'of each term', 'joint')
ACTIVATIONS = (
  tf.tanh,
  tf.sigmoid,
  tf.math.softplus,
  tf.nn.relu,
  tf.nn.gelu,
  tf.nn.silu,
  lambda x: x * tf.sigmoid(x),
  tf.sin,
  tf.square,
  tf.identity,
)
CURVED = (
  tf.square,
  tf.exp,
  tf.sin,
  tf.math.softplus,
  lambda x: tf.math.log1p(x**2),
  lambda x: x / (1.0 + x**2),
)


class Parameters:
  """Hands out the coordinates of a point, in the order of a random program."""

  def __init__(self, x, rng):
    self.x, self.rng = x, rng
    self.used = 0

  def take(self, *shape):
    """A Tensor of a shape, per sample; some coordinates a second time."""
    size = int(np.prod(shape))
    places = self.used + np.arange(size)
    self.used += size
    if self.chance(0.15) and self.used > size:
      again = self.rng.uniform(size=size) < self.rng.choice([0.2, 1.0])
      places = np.where(again, self.rng.integers(0, self.used, size), places)
    part = self.x[:, places[0] : places[-1] + 1]
    if len(part.shape) != 2 or np.any(np.diff(places) != 1):
      part = tf.gather(self.x, places, axis=1)
    part = tf.reshape(part, [-1, *shape])
    if self.chance(0.15):
      part *= tf.exp(0.3 * self.scale(shape))
    return part

  def scale(self, shape):
    """One for all, one for each row, or one for each element."""
    of = [[1] * len(shape), [*shape[:-1], 1], shape][self.rng.integers(3)]
    size = int(np.prod(of))
    places = slice(self.used, self.used + size)
    self.used += size
    return tf.reshape(self.x[:, places], [-1, *of])

  def chance(self, p):
    return self.rng.uniform() < p

  def one_of(self, things):
    return things[self.rng.integers(len(things))]

  def constant(self, *shape):
    """Numbers of which some may be zero."""
    values = self.rng.normal(size=shape)
    if self.chance(0.2):
      values *= self.rng.uniform(size=shape) < 0.6
    return tf.constant(values)


def network(p):
  """Layers, and a curved function of the last one."""
  data, width = p.rng.integers(2, 5, 2)
  hidden = p.constant(1, data, p.rng.integers(1, 4))
  shared = None
  for _ in range(p.rng.integers(1, 4)):
    before = hidden.shape[-1]
    if p.chance(0.3):
      width = int(p.rng.integers(1, 5))
    if (
      p.chance(0.3)
      and shared is not None
      and shared.shape[1:] == (before, width)
    ):
      weights = shared
    else:
      weights = p.take(before, width)
    shared = weights if before == width else shared
    made = tf.matmul(hidden, weights)
    if p.chance(0.7):
      made += p.take(1, width)
    made = p.one_of(ACTIVATIONS)(made)
    if p.chance(0.15):
      made = standardized(made)
    if p.chance(0.3) and before == width:
      made += hidden
    hidden = made
  outputs = tf.einsum(
    'bnh,bho->bno', hidden, p.take(width, p.rng.integers(1, 4))
  )
  return losses(p, outputs)


def standardized(x):
  centered = x - tf.reduce_mean(x, -1, keepdims=True)
  variance = tf.reduce_mean(centered**2, -1, keepdims=True)
  return centered * tf.math.rsqrt(variance + 0.5)


def losses(p, outputs):
  """A number per sample, from some per row."""
  rows, columns = outputs.shape[1:]
  kind = p.rng.integers(6)
  if kind == 0 and columns > 1:
    return tf.reduce_sum(tf.reduce_logsumexp(outputs, -1), 1)
  if kind == 1 and columns > 1:
    labels = tf.one_hot(
      p.rng.integers(0, columns, rows), columns, dtype='float64'
    )
    logs = p.one_of(
      [tf.nn.log_softmax, lambda x: tf.math.log(tf.nn.softmax(x))]
    )
    return tf.reduce_sum(logs(outputs) * labels, [1, 2])
  if kind == 2 and columns > 1:
    labels = tf.constant(p.rng.integers(0, columns, rows))[tf.newaxis]
    labels = tf.tile(labels, [tf.shape(outputs)[0], 1])
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
    return tf.reduce_sum(loss, 1)
  if kind == 3:
    return tf.reduce_sum(p.one_of(CURVED)(tf.reduce_sum(outputs, 2)), 1)
  if kind == 4:
    # A product of functions of the same parameters.
    return tf.reduce_sum(outputs[:, :, 0] * tf.sin(outputs[:, :, -1]), 1)
  return tf.reduce_sum(p.one_of(CURVED)(outputs) * p.constant(columns), [1, 2])


def mixture(p):
  parts, data = p.rng.integers(2, 4), p.rng.integers(2, 6)
  logs = tf.nn.log_softmax(p.take(1, parts))
  z = p.constant(data, 1) - p.take(1, parts)
  if p.chance(0.6):
    log_scale = 0.5 * p.take(1, int(p.rng.choice([1, parts])))
    z *= tf.exp(-log_scale)
    logs -= log_scale
  kernel = p.one_of([tf.square, lambda z: 4.0 * tf.math.log1p(z**2 / 3.0)])
  return tf.reduce_sum(tf.reduce_logsumexp(logs - 0.5 * kernel(z), -1), -1)


def regression(p):
  """Slopes, effects of groups, and scales of both."""
  data = int(p.rng.integers(3, 8))
  slopes = p.take(int(p.rng.integers(1, 5)))
  linear = tf.linalg.matvec(p.constant(data, slopes.shape[1]), slopes)
  for _ in range(p.rng.integers(0, 3)):
    groups = int(p.rng.integers(2, 4))
    effects = p.take(groups)
    if p.chance(0.4):
      effects *= tf.exp(p.take(1))
    if p.chance(0.2):
      effects = tf.cumsum(effects, 1)
    picked = tf.gather(effects, p.rng.integers(0, groups, data), axis=1)
    linear = linear * picked if p.chance(0.3) else linear + picked
  return losses(p, linear[:, :, tf.newaxis])


def factors(p):
  rank = int(p.rng.integers(1, 3))
  one, other = p.take(3, rank), p.take(2, rank)
  if p.chance(0.5):
    product = tf.matmul(one, other, transpose_b=True)
  else:
    first, second = p.rng.integers(0, 3, 5), p.rng.integers(0, 2, 5)
    picked = tf.gather(one, first, axis=1) * tf.gather(other, second, axis=1)
    product = tf.reduce_sum(picked, 2, keepdims=True)
  return losses(p, product)


class Model(typing.NamedTuple):
  """What is differentiated, and how that is asked for."""

  seed: int
  size: int
  samples: int
  regime: str
  frontiers: str

  def __call__(self, x):
    return made(Parameters(x, np.random.default_rng(self.seed)))


def made(p):
  """The value of a random model."""
  kinds = [network, network, network, mixture, regression, regression, factors]
  value = p.one_of(kinds)(p)
  if p.chance(0.1):
    value += p.one_of(kinds)(p)
  if p.chance(0.4):
    value -= 0.5 * tf.reduce_sum(p.x**2, 1)
  if p.chance(0.1):
    value = tf.math.softplus(value)
  return value


def drawn(rng):
  for _ in range(100):
    seed = int(rng.integers(2**31))
    dry = Parameters(
      tf.zeros([1, 1000], tf.float64), np.random.default_rng(seed)
    )
    made(dry)
    if dry.used <= MAX_COORDINATES:
      break
  return Model(
    seed=seed,
    size=dry.used,
    samples=int(rng.integers(1, 4)),
    regime=str(rng.choice(REGIMES, p=SHARES)),
    frontiers=str(rng.choice(FRONTIERS, p=(0.3, 0.35, 0.35))),
  )


@contextlib.contextmanager
def whatever_sweeps_cost(is_joint):
  """Sweeps with one kind of frontiers."""
  with pytest.MonkeyPatch.context() as patch:
    both = Analysis.sweeps
    patch.setattr(
      Analysis, 'sweeps', lambda *args: list(both(*args))[is_joint:][:1]
    )
    prefer_sweeps(patch)
    yield


def diagonals(model, x):
  """Those asked for, and whether sweeps have made them, as far as is known."""
  if model.regime == 'third':
    found = tf.function(
      lambda x: tfp_diag.unmixed_derivatives(model, x), autograph=False
    )(x)
    return [found.second, found.third], False
  if model.regime in ('function', 'xla'):
    function = tf.function(
      lambda x: tfp_diag.diag_hessian(model, x)[2],
      autograph=False,
      jit_compile=model.regime == 'xla' or None,
    )
    return [function(x)], False
  samples = model.samples if model.regime == 'plan' else None
  spec = tf.TensorSpec([samples, model.size], tf.float64)
  plan = tfp_diag.plan_diag_hessian(model, spec)
  # Else passes would hide what is wrong.
  assert 'fault of tfp_diag' not in str(plan), plan
  return [plan(x)[2]], plan.ways[0].name == 'squared sweeps'


def check(model):
  """Raises if a diagonal is wrong; whether sweeps have made it."""
  rng = np.random.default_rng(model.seed)
  x = tf.constant(rng.normal(size=[model.samples, model.size]) / 2.0)
  if model.regime == 'third':
    wanted = unmixed_diagonals(model, x)
  else:
    wanted = [hessian_by_copies(model, x)]
  if not all(np.abs(want).max() < 1e9 for want in wanted):
    return False
  forced = (
    contextlib.nullcontext()
    if model.frontiers == 'cheapest'
    else whatever_sweeps_cost(model.frontiers == 'joint')
  )
  with warnings.catch_warnings(), forced:
    warnings.simplefilter('error', RuntimeWarning)
    found, is_swept = diagonals(model, x)
  for got, want in zip(found, wanted):
    scale = np.abs(want).max(initial=1.0)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10 * scale)
  return is_swept


@pytest.mark.parametrize('part', range(NUM_TESTS))
def test_random_models(part, fuzz):
  """Models part, part + NUM_TESTS, … of the seed."""
  start = time.monotonic()
  wrong, num_swept = [], 0
  number = part
  while True:
    model = drawn(np.random.default_rng([fuzz.seed, number, 1]))
    try:
      num_swept += check(model)
    except Exception as e:
      wrong.append(f'Model {number}: {model}\n{type(e).__name__}: {e}')
    number += NUM_TESTS
    if fuzz.seconds is None:
      if number >= NUM_MODELS:
        break
    elif time.monotonic() - start > fuzz.seconds / NUM_TESTS:
      break
  assert not wrong, (
    f'{len(wrong)} models of --fuzz-seed {fuzz.seed}:\n' + '\n\n'.join(wrong)
  )
  assert num_swept or fuzz.seconds is not None
