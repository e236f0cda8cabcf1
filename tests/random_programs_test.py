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
"""Random programs: every diagonal is that of the dense derivative.

A program is a list of steps, drawn anew in each run. The oracle runs it
eagerly in float64 and takes one gradient per row, with nothing of this package.
How the diagonal is asked for is drawn, too: eagerly, in a `tf.function`, under
XLA, with a plan, or with a plan for any number of samples. Some programs close
over their own arguments, get one Tensor as two parts, or see state of Python
that changes before they are called again.

The seed stands at the top of the report:

    pytest tests/random_programs_test.py --fuzz-seed 1234      # the same again
    pytest tests/random_programs_test.py --fuzz-seconds 28800  # for a night
"""

import collections
import dataclasses
import re
import time
import typing
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.conftest import FUZZ_SEED
from tests.random_steps import (
  BINARY,
  LAYERS,
  MAX_SIZE,
  NOT_COMPILED,
  OF_THE_WORLD,
  QUADRATIC,
  UNARY,
  World,
  branches,
  call,
  map_fn,
  recompute,
  resized,
  scan,
  while_loop,
)
from tfp_diag.sparsity import walk

NUM_PROGRAMS = 200
NUM_TESTS = 8
# Eager calls look for structure from 16 coordinates on.
MAX_COORDINATES = 17
# What a step makes grows at most like this power of what the program is given.
MAX_DEGREE = 3
# Many of the steps come from these, which are few; few from those with graphs
# of their own, which take long to trace.
FREQUENT = (*LAYERS, *OF_THE_WORLD)
NESTED = (scan, while_loop, map_fn, branches, call, recompute)
REGIMES = ('eager', 'function', 'xla', 'plan', 'open_plan')
SHARES = (0.45, 0.25, 0.03, 0.12, 0.15)


class Step(typing.NamedTuple):
  """One step: what makes a value, and of which."""

  make: typing.Callable
  first: int
  second: int
  seed: int
  takes: str
  is_quadratic: bool

  @property
  def is_called(self):
    """Whether it is made within a `tf.function` that is called."""
    return self.seed % 3 == 0


@dataclasses.dataclass(frozen=True)
class Program:
  """What is differentiated, and how that is asked for."""

  kind: str
  regime: str
  steps: tuple
  sizes: tuple
  samples: int
  aliased: bool
  changes: bool
  schedule: str
  seed: int

  def __str__(self):
    steps = ', '.join(
      f'{s.make.__name__}({s.first}, {s.second}, {s.seed})'
      f'{" in a tf.function" * s.is_called}'
      for s in self.steps
    )
    aliased = ', one Tensor for all' if self.aliased else ''
    changes = ', state changes' if self.changes else ''
    return (
      f'{self.kind}, {self.regime}, {self.schedule}, {self.samples} samples '
      f'of sizes {self.sizes}{aliased}{changes}: {steps}'
    )

  @property
  def parts(self):
    rng = np.random.default_rng(self.seed)
    parts = [
      tf.constant(rng.normal(size=[self.samples, d])) for d in self.sizes
    ]
    return parts[:1] * len(parts) if self.aliased else parts

  def in_world(self, world):
    """The function: one y for each part, or one number for each sample."""
    make = {'jacobian': jacobian_program, 'hessian': hessian_program}
    return make[self.kind](self.steps, world, self.seed)


def jacobian_program(steps, world, seed):
  """One y for each part, made of the last values."""

  def fn(*parts):
    last = run(steps, parts, world)
    return [
      resized(last[-1 - i % len(last)], x.shape[1]) for i, x in enumerate(parts)
    ]

  return fn


def hessian_program(steps, world, seed):
  """A weighted sum of the last values; some weights are zero."""

  def fn(*parts):
    last = run(steps, parts, world)[-3:]
    rng = np.random.default_rng(seed)
    return tf.add_n(
      [tf.reduce_sum(x * rng.integers(-1, 3, x.shape[1]), axis=1) for x in last]
    )

  return fn


def drawn(rng):
  """A `Program`."""
  kind = ('jacobian', 'hessian')[rng.integers(2)]
  regime = str(rng.choice(REGIMES, p=SHARES))
  left_out = NOT_COMPILED if regime == 'xla' else ()
  if kind == 'hessian':
    # TensorFlow cannot differentiate what is recomputed twice.
    left_out = (*left_out, recompute)
  others = [
    s for s in UNARY + BINARY if s not in (*FREQUENT, *NESTED, *left_out)
  ]
  among = (FREQUENT, others, NESTED)
  kinds = [[s for s in group if s not in left_out] for group in among]
  steps = []
  for _ in range(rng.integers(1, 5)):
    # XLA compiles none of the last kind.
    kind_of_step = kinds[rng.choice(3, p=[0.4, 0.55, 0.05])] or others
    step = kind_of_step[rng.integers(len(kind_of_step))]
    takes = 'one'
    if step in BINARY or step in OF_THE_WORLD:
      takes = 'two' if step in BINARY else 'the world'
    places = (int(k) for k in rng.integers(0, [4, 6, 2**16]))
    steps.append(Step(step, *places, takes, step in QUADRATIC))
  # Loops are traced fastest; only 'auto' takes shortcuts, as through layers.
  has_layer = any(step.make in LAYERS for step in steps)
  is_auto = rng.uniform() < (0.6 if has_layer else 0.2)
  schedule = 'auto' if is_auto else 'while_loop'
  number = int(rng.choice([1, 2, 3], p=[0.6, 0.3, 0.1]))
  aliased = number > 1 and rng.uniform() < 0.3
  sizes = rng.integers(1, MAX_COORDINATES // number + 1, number)
  return Program(
    kind=kind,
    regime=regime,
    steps=tuple(steps),
    sizes=tuple(int(d) for d in (sizes[:1].repeat(number), sizes)[not aliased]),
    samples=int(rng.choice([1, 2, 3, 5, 29], p=[0.1, 0.2, 0.2, 0.2, 0.3])),
    aliased=bool(aliased),
    schedule=schedule,
    changes=regime == 'eager' and rng.uniform() < 0.3,
    seed=int(rng.integers(2**16)),
  )


def called(make):
  """The same step as a `tf.function`."""

  def step(x, *rest):
    # What is not a Tensor is closed over.
    tensors = [t for t in rest if tf.is_tensor(t)]
    others = rest[len(tensors) :]
    function = tf.function(lambda *x: make(*x, *others), autograph=False)
    return function(x, *tensors)

  return step


def run(steps, parts, world):
  """The values that a program makes, those it is given first."""
  values = [(tf.convert_to_tensor(x), 1) for x in parts]
  for step in steps:
    rng = np.random.default_rng(step.seed)
    # Small numbers name the latest values, so that programs become deep.
    (x, degree), (y, other) = (
      values[-1 - k % len(values)] for k in (step.first, step.second)
    )
    if step.is_quadratic:
      # Polynomials of a high degree would overflow.
      if degree + other > MAX_DEGREE:
        x, y, degree, other = tf.tanh(x), tf.tanh(y), 1, 1
      degree = max(degree + other, 2 * degree)
    make = step.make
    if step.is_called:
      make = called(make)
    if step.takes == 'two':
      result = make(x, resized(y, x.shape[1]), rng)
      degree = max(degree, other)
    elif step.takes == 'the world':
      result = make(x, rng, world)
    else:
      result = make(x, rng)
    values.append((result[:, :MAX_SIZE], degree))
  return [x for x, _ in values]


def diagonals(program, xs, world):
  """The diagonal, as it is asked for, and the plan if there is one."""
  schedule = program.schedule
  samples = [program.samples]
  if program.regime in ('eager', 'function', 'xla'):

    def diag_of(*parts):
      # In a graph the world holds the arguments of the graph.
      here = World.__new__(World)
      here.__dict__.update(vars(world), tensors=parts)
      fn = program.in_world(here)
      if program.kind == 'jacobian':
        _, diag = tfp_diag.diag_jacobian(
          list(parts), fn=fn, sample_shape=samples, schedule=schedule
        )
      else:
        _, _, diag = tfp_diag.diag_hessian(fn, list(parts), schedule=schedule)
      return diag

    if program.regime == 'eager':
      return diag_of(*xs), None
    jit_compile = program.regime == 'xla' or None
    # One argument for each Tensor, however often it is a part.
    once = xs[:1] if program.aliased else xs
    function = tf.function(
      lambda *once: diag_of(*(once * len(xs) if program.aliased else once)),
      autograph=False,
      jit_compile=jit_compile,
    )
    return function(*once), None
  fn = program.in_world(world)
  if program.regime == 'open_plan':
    samples = [None]
  specs = [tf.TensorSpec([*samples, d], tf.float64) for d in program.sizes]
  if program.kind == 'jacobian':
    plan = tfp_diag.plan_diag_jacobian(
      fn, specs, sample_shape=samples, schedule=schedule
    )
    return plan(xs)[1], plan
  plan = tfp_diag.plan_diag_hessian(fn, specs, schedule=schedule)
  return plan(xs)[2], plan


def rows(tape, ys, xs):
  """Dense derivative by one sample: [samples, outputs, inputs]."""
  dense = []
  for y in ys:
    for i in range(y.shape[1]):
      gradient = tape.gradient(
        y, xs, tf.one_hot([i] * y.shape[0], y.shape[1], dtype=y.dtype)
      )
      dense.append(
        tf.concat(
          [
            tf.zeros_like(x) if g is None else tf.convert_to_tensor(g)
            for g, x in zip(gradient, xs)
          ],
          axis=1,
        ).numpy()
      )
  return np.stack(dense, axis=1)


def dense_derivative(program, parts, world):
  # Copies: what the world holds, and a part given twice, are held apart.
  xs = [tf.constant(x.numpy()) for x in parts]
  fn = program.in_world(world)
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(xs)
    if program.kind == 'jacobian':
      ys = fn(*xs)
    else:
      with tf.GradientTape() as inner:
        inner.watch(xs)
        value = fn(*xs)
      ys = inner.gradient(
        value, xs, unconnected_gradients=tf.UnconnectedGradients.ZERO
      )
      ys = [tf.convert_to_tensor(g) for g in ys]
  return rows(outer, ys, xs)


def check(program):
  """Raises if a diagonal or a pattern is wrong; whether there was one."""
  parts = program.parts
  # A plan's world holds other Tensors than those it is given; one for any
  # number of samples has the same for all of them.
  rows = slice(1 if program.regime == 'open_plan' else None)
  held = [tf.constant(x.numpy()[rows]) for x in parts]
  world = World(held, program.seed)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    for change in range(2 if program.changes else 1):
      if change:
        world.change(program.seed + 1)
      dense = dense_derivative(program, parts, world)
      # A program that divides by what underflowed says nothing.
      if not np.isfinite(dense).all() or np.abs(dense).max() > 1e9:
        return False
      try:
        diag, plan = diagonals(program, parts, world)
      except ValueError as e:
        # It may refuse what is computed from the number of samples.
        if program.regime == 'open_plan' and re.search(
          'number of samples', str(e)
        ):
          return False
        raise
      compare(diag, plan, dense)
  return True


def compare(diag, plan, dense):
  """The pattern holds every nonzero, and the diagonal is right."""
  if plan is not None:
    seen = (dense != 0).any(axis=0)
    missing = np.argwhere(seen & ~plan.pattern.matrix.toarray())
    assert not missing.size, f'not in the pattern: {missing[:5].tolist()}'
  got = np.concatenate([d.numpy() for d in diag], axis=1)
  want = np.diagonal(dense, axis1=1, axis2=2)
  scale = np.abs(dense).max(initial=1.0)
  np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10 * scale)


@pytest.fixture(autouse=True)
def fixture_all_batches_are_large(monkeypatch):
  """So that few samples stand for many wherever they can."""
  monkeypatch.setattr(walk, '_FEW_ELEMENTS', 0)


def test_the_programs_have_all_steps_in_all_regimes():
  programs = [
    drawn(np.random.default_rng([FUZZ_SEED, number]))
    for number in range(NUM_PROGRAMS)
  ]
  found = {step.make for program in programs for step in program.steps}
  assert found == {*UNARY, *BINARY}
  ways = collections.Counter((p.kind, p.regime) for p in programs)
  assert len(ways) == 2 * len(REGIMES) and min(ways.values()) > 1


@pytest.mark.parametrize('part', range(NUM_TESTS))
def test_random_programs(part, fuzz):
  """Programs part, part + NUM_TESTS, … of the seed."""
  start = time.monotonic()
  wrong, said = [], 0
  number = part
  while True:
    program = drawn(np.random.default_rng([fuzz.seed, number]))
    try:
      said += check(program)
    except Exception as e:
      wrong.append(f'Program {number}: {program}\n{type(e).__name__}: {e}')
    number += NUM_TESTS
    if fuzz.seconds is None:
      if number >= NUM_PROGRAMS:
        break
    elif time.monotonic() - start > fuzz.seconds / NUM_TESTS:
      break
  assert not wrong, (
    f'{len(wrong)} programs of --fuzz-seed {fuzz.seed}:\n' + '\n\n'.join(wrong)
  )
  assert said or fuzz.seconds is not None
