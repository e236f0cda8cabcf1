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
"""Run-time checks of what a caller promised; all of `validate_args`.

The diagonal is recomputed with other seeds. A pass of several coordinates, or
of several samples, is exact as long as they do not interact. Random signs keep
an exact result as it is and change a wrong one with probability 1/2 or more,
each time they are drawn. XLA has no assertions and drops them.
"""

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.linear_map import Evaluation, Linear, LinearMap
from tfp_diag.internal import batching
from tfp_diag.internal.batching import SampleShape

# A wrong result goes unseen with a probability of at most 2^-10.
_NUM_DRAWS = 10
# Where a pass is not linear in the signs, as those of third order, a draw shows
# a wrong result with a probability of 1/4 or more.
_MORE_DRAWS = 24
# How many roundings of a term may be left of a sum.
_ROUNDINGS = 64


@contextlib.contextmanager
def plain_errors() -> Iterator:
  """Raises a broken promise as its sentence, without TensorFlow's trace."""
  try:
    yield
  except tf.errors.InvalidArgumentError as e:
    sentence = re.search(
      r'\[([^][]*(\(Seen in part \d+\.\)|part \d+ of `xs`\.))\]', e.message
    )
    if sentence is None:
      raise
    raise tf.errors.InvalidArgumentError(
      e.node_def, e.op, sentence.group(1)
    ) from None


def check_sample_shape(xs: Sequence, sample_shape: SampleShape) -> None:
  """Asserts that `sample_shape` leads every part.

  Args:
    xs: List of Tensors.
    sample_shape: As in `batching.sample_sizes`.
  """
  rank = batching.sample_rank(sample_shape)
  if not rank or xs[0].shape.rank < rank:
    return
  sizes: Any = sample_shape
  if isinstance(sample_shape, (list, tuple, tf.TensorShape)):
    # A size that is None may be any, as long as the parts share it.
    first = tf.shape(xs[0])
    sizes = [
      first[i] if size is None else tf.cast(size, tf.int32)
      for i, size in enumerate(sample_shape)
    ]
  given = tf.reshape(tf.cast(sizes, tf.int32), [-1])
  for i, x in enumerate(xs):
    tf.debugging.assert_equal(
      tf.shape(x)[:rank],
      given,
      message=f'`sample_shape` does not lead the shape of part {i} of `xs`.',
    )


def check(
  diag: Sequence,
  derivative: Linear,
  decision: Any,
  xs: Sequence,
  rank: int,
  plan: Any = None,
) -> None:
  """Asserts that other seeds give the same diagonal.

  Args:
    diag: List of Tensors, the diagonal; several, one after the other.
    derivative: What it comes from in reverse mode, a `LinearMap` or `Linear`.
    decision: `Decision` that was followed.
    xs: List of Tensors, the parts.
    rank: Python int, the number of sample dimensions.
    plan: `Plan` that was followed, or None.
  """
  colors = decision.colors_of(xs, rank)
  num_diagonals = len(diag) // len(xs)
  uses_terms = decision.terms is not None
  num_draws = _NUM_DRAWS
  if num_diagonals > 1 or not decision.is_linear:
    num_draws = _MORE_DRAWS
  precision = decision.evaluation.precision
  derivatives: dict[str, Linear] = {'reverse': derivative}
  if decision.mode == 'forward':
    assert isinstance(derivative, LinearMap)
    derivatives['forward'] = derivative.transposed()

  def again(mode, signs):
    found = sweep.diagonal(
      derivatives[mode],
      colors.with_signs(signs),
      xs,
      'auto' if uses_terms else decision.schedule,
      decision.chunk_size,
      decision.evaluation.loop_type,
      num_diagonals,
    )
    if not decision.is_linear:
      # Of what had no seed there is nothing to compare.
      here = itertools.cycle(sign != 0 for sign in signs)
      found = [tf.where(m, r, d) for m, r, d in zip(here, found, diag)]
    return [(f, 0.0) for f in found]

  def random_signs(shape, dtype, draw, stream):
    """Signs; where passes are not linear in seeds, ones and zeros."""
    signs = _random_signs(shape, dtype, draw, stream)
    return signs if decision.is_linear else tf.nn.relu(signs)

  def coordinate_signs(draw):
    return [
      random_signs(tf.shape(x)[rank:], x.dtype, draw, i)
      for i, x in enumerate(xs)
    ]

  def sample_signs(draw):
    """One sign per sample, the same in every part."""
    signs = []
    for x in xs:
      sign = random_signs(tf.shape(x)[:rank], x.dtype, draw, len(xs))
      signs.append(batching.with_axes(sign, x.shape.rank - rank))
    return signs

  mode = 'forward' if 'forward' in derivatives else 'reverse'
  assert_agreement = functools.partial(
    _assert_agreement, diag, len(xs), num_draws, precision
  )
  if uses_terms:
    assert_agreement(
      lambda draw: _at_random_coordinates(
        derivative, diag, xs, rank, draw, precision
      ),
      'The way that was found to be cheaper than passes '
      f'({decision.terms.how}) disagrees with them. If it does so in float64, '
      'too, this is a fault of tfp_diag, not of yours. Pass '
      "`schedule='pfor'` to run the passes.",
    )
  elif decision.colors is not None:
    assert_agreement(
      lambda draw: again(mode, coordinate_signs(draw)),
      _WRONG_COLORS if plan is None else _WRONG_PLAN,
    )
  if rank:
    assert_agreement(
      lambda draw: again(mode, sample_signs(draw)),
      'Samples are taken for independent, but `fn` mixes them, so the diagonal '
      'is wrong. Make `fn` work on each sample alone, or treat everything as '
      'event: `sample_shape=()`, with one scalar for a Hessian.',
    )
  if mode == 'forward':
    assert_agreement(
      lambda draw: again('reverse', coordinate_signs(draw)),
      'Forward and reverse mode disagree: some op of `fn` has a gradient that '
      "is not linear in its cotangent. Pass `mode='reverse'`, or mend it.",
    )


def deviation_at_one(
  diag: Sequence, derivative: Linear, evaluation: Evaluation, rank: int
) -> list:
  """How far a diagonal is off at a random coordinate of each sample.

  Args:
    diag: List of Tensors, the diagonal; several, one after the other.
    derivative: What it comes from in reverse mode, a `LinearMap` or `Linear`.
    evaluation: `Evaluation` of the function.
    rank: Python int, the number of sample dimensions.

  Returns:
    List of scalar Tensors, one for each Tensor of `diag`: the largest
    difference, divided by the largest entry. If the function computes in a less
    precise dtype than that of its parts, the number is scaled down, so that
    `is_small` can compare it with the tolerance of its own dtype.
  """
  found = [
    _deviation(d, *each)
    for d, each in zip(
      diag,
      _at_random_coordinates(
        derivative, diag, evaluation.xs, rank, 0, evaluation.precision
      ),
    )
  ]
  least = tolerance(evaluation.precision)
  return [d * min(1.0, tolerance(d.dtype) / least) for d in found]


def is_small(deviations: Sequence) -> bool:
  """Whether rounding explains all deviations, scalar Tensors with values."""
  return all(float(d) <= tolerance(d.dtype) for d in deviations)


_WRONG_PLAN = (
  'The colors of `plan` do not fit `fn`: coordinates that share a pass '
  'influence each other, so the diagonal is wrong. Was the plan made for '
  'another function, or from a pattern that lacks entries? Plan again.'
)
_WRONG_COLORS = (
  'Coordinates that share a pass influence each other, so the diagonal is '
  'wrong: the rule for some op of `fn` lacks entries. If it is not one of '
  'yours, this is a fault of tfp_diag. Pass a plan made with a `pattern=` of '
  'your own.'
)


def _at_random_coordinates(
  derivative: Linear,
  diag: Sequence,
  xs: Sequence,
  rank: int,
  draw: Any,
  precision: tf.DType,
) -> list:
  """The diagonal, with one coordinate of each sample by an ordinary pass.

  Args:
    derivative: What it comes from in reverse mode, a `LinearMap` or `Linear`.
    diag: List of Tensors, the diagonal; several, one after the other.
    xs: List of Tensors, the parts.
    rank: Python int, the number of sample dimensions.
    draw: Python int or scalar int32 Tensor; each number chooses other
      coordinates.
    precision: The least precise dtype that the function computes in.

  Returns:
    List of pairs, a Tensor shaped as that of `diag`, and its `floor`, as
    `_deviation` takes them.
  """
  parts = list(range(len(xs)))
  sizes = [tf.reduce_prod(tf.shape(x)[rank:]) for x in xs]
  total = tf.add_n(sizes)
  which = tf.random.stateless_uniform(
    tf.shape(xs[0])[:rank],
    tf.stack([draw, 1000]),
    0,
    tf.maximum(total, 1),
    tf.int32,
  )
  masks, start = [], 0
  for x, size in zip(xs, sizes):
    event = tf.shape(x)[rank:]
    place = tf.reshape(tf.range(start, start + size), event)
    here = batching.with_axes(which, x.shape.rank - rank)
    masks.append(tf.equal(place, here))
    start += size
  seeds = [tf.cast(mask, x.dtype) for mask, x in zip(masks, xs)]
  results = derivative.apply(parts, seeds)
  results = [
    tf.zeros_like(d) if r is None else r for d, r in zip(diag, results)
  ]
  others = [
    tf.where(mask, r, d)
    for mask, d, r in zip(itertools.cycle(masks), diag, results)
  ]
  # An entry may be what is left where terms cancel. How large these were, the
  # other entries of its row tell.
  # Half precision has so few digits that it would hide everything.
  share = min(_ROUNDINGS * tolerance(precision), tolerance(precision) ** 0.5)
  floors = []
  for k in range(0, len(results), len(xs)):
    rows = results[k : k + len(xs)]
    floor = share * tf.reduce_max([_largest(r) for r in rows])
    floors += [tf.cast(floor, r.dtype) for r in rows]
  return list(zip(others, floors))


def _largest(x: tf.Tensor) -> tf.Tensor:
  """The largest magnitude that is finite, as float64; zero if there is none."""
  finite = tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))
  return tf.maximum(tf.reduce_max(tf.cast(tf.abs(finite), tf.float64)), 0.0)


def _random_signs(
  shape: Any, dtype: tf.DType, draw: Any, stream: int
) -> tf.Tensor:
  bits = tf.random.stateless_uniform(
    shape, tf.stack([draw, stream]), 0, 2, tf.int32
  )
  return tf.cast(2 * bits - 1, dtype)


def _assert_agreement(
  diag: Sequence,
  num_parts: int,
  num_draws: int,
  precision: tf.DType,
  again: Callable,
  message: str,
) -> None:
  """Asserts that further draws give `diag`, part by part."""

  def one_draw(draw, deviations):
    return draw + 1, [
      tf.maximum(deviation, _deviation(d, *other))
      for deviation, d, other in zip(deviations, diag, again(draw))
    ]

  _, deviations = tf.while_loop(
    lambda draw, _: draw < num_draws,
    one_draw,
    (0, [tf.zeros([], d.dtype) for d in diag]),
    maximum_iterations=num_draws,
  )
  for i, deviation in enumerate(deviations):
    part = i % num_parts
    tf.debugging.assert_less_equal(
      deviation,
      tf.constant(
        max(tolerance(deviation.dtype), tolerance(precision)), deviation.dtype
      ),
      message=f'{message} (Seen in part {part}.)',
    )


def tolerance(dtype: tf.DType) -> float:
  """The relative difference that rounding may make: the root of epsilon."""
  return {'float64': 2.0**-26, 'float32': 2.0**-11.5}.get(dtype.name, 2.0**-3.5)


def _deviation(diag: tf.Tensor, other: tf.Tensor, floor: Any) -> tf.Tensor:
  """The largest difference, in units of the largest entry.

  Args:
    diag: Tensor.
    other: Tensor of its shape.
    floor: Scalar Tensor or number, the least unit.

  Returns:
    Scalar Tensor.
  """
  scale = tf.cast(tf.maximum(_largest(diag), _largest(other)), diag.dtype)
  scale = tf.maximum(scale, floor)
  difference = tf.abs(other - diag) / tf.where(
    scale > 0, scale, tf.ones_like(scale)
  )
  # What is not finite is so for every seed, and says nothing of structure;
  # unless it is finite otherwise, as where squares overflow.
  finite = tf.math.is_finite(difference)
  difference = tf.where(finite, difference, tf.zeros_like(difference))
  is_lost = tf.math.is_finite(other) & ~tf.math.is_finite(diag)
  difference = tf.where(
    is_lost, tf.fill(tf.shape(diag), diag.dtype.max), difference
  )
  # An empty part has no largest entry.
  return tf.reduce_max(
    tf.concat([tf.reshape(difference, [-1]), tf.zeros([1], diag.dtype)], 0)
  )
