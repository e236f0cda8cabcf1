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
"""Reductions and scans: one output for many inputs."""

import numpy as np

from tfp_diag.sparsity.flow import Flow, block_of, by_blocks, by_segments
from tfp_diag.sparsity.registry import (
  CannotSay,
  Squares,
  register_facts,
  register_rule,
)
from tfp_diag.sparsity.structure import Arrow, Pair, Structure

register_facts('Sum', 'Cumsum', squares=Squares.SAME)
register_facts('Sum', 'Mean', 'Cumsum', linear_in=((0,),))
register_facts('Sum', is_sum=True)
register_facts('Mean', 'Max', 'Min', 'NthElement', squares=Squares.ALONE)
register_facts('Max', 'Min', 'NthElement', 'TopKV2', bends=True)

# The triangle is not listed for scans that are longer than the first number,
# nor if the elements of all scans, times the length, are more than the second.
_MAX_SCAN, _MAX_SCANNED = 4000, 64_000_000


@register_rule('Sum', 'Mean', 'Max', 'Min')
def _linear_reduction(op):
  """Each output depends on the inputs of its slice; no second derivatives.

  The maximum of `[2, 3]` over its last axis is linear almost everywhere; the
  Jacobian has the form of a sum's, `[[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]`.
  """
  return Structure.linear({0: _slices(op)})


@register_rule('Prod', 'EuclideanNorm')
def _curved_reduction(op):
  """Each output is a curved function of the inputs of its slice."""
  return Structure.nonlinear({0: _slices(op)})


def _slices(op):
  shape = op.inputs[0].shape
  kept = list(shape)
  for axis in np.atleast_1d(op.inputs[1].value()):
    kept[int(axis)] = 1
  rows = int(np.prod(kept, dtype=np.int64))
  segment = np.broadcast_to(np.arange(rows).reshape(kept), shape)
  return Flow.collect(segment, rows)


@register_rule('L2Loss')
def _half_sum_of_squares(op):
  """A scalar that depends on all elements, without mixed second derivatives."""
  size = op.inputs[0].size
  each = Flow.identity(size)
  return Structure.linear(
    {0: Flow.dense(1, size)}, pairs=(Pair((0,), each, (0,), each),)
  )


@register_rule('Cumsum')
def _linear_scan(op):
  """Output i along the axis depends on the inputs up to i.

  For 3 elements the Jacobian is `[[1, 0, 0], [1, 1, 0], [1, 1, 1]]`; without
  its diagonal if the scan is exclusive, transposed if it is reversed.
  """
  return Structure.linear({0: _prefixes(op)})


@register_rule('Cumprod', 'CumulativeLogsumexp')
def _curved_scan(op):
  """A curved function of the inputs up to i."""
  return Structure.nonlinear({0: _prefixes(op)})


def _prefixes(op):
  shape = op.inputs[0].shape
  axis = int(op.inputs[1].value())
  size, length = op.inputs[0].size, shape[axis]
  places = np.moveaxis(np.arange(size).reshape(shape), axis, -1)
  # Listed, there are half as many entries as length times size.
  if length > _MAX_SCAN or length * size > _MAX_SCANNED:
    segment = np.empty(size, np.int64)
    lines = places.reshape(-1, length)
    segment[lines.reshape(-1)] = np.repeat(np.arange(len(lines)), length)
    return by_segments(segment, segment, len(lines))
  after, before = np.tril_indices(length, -1 if op.attr('exclusive') else 0)
  if op.attr('reverse'):
    after, before = length - 1 - after, length - 1 - before
  return Flow.pairs(places[..., after], places[..., before], size, size)


@register_rule('TopKV2', squares=Squares.SAME)
def _largest(op):
  """Each value is some element of its line (the last axis); linear."""
  values, _ = op.outputs
  length = op.inputs[0].shape[-1]
  lines = op.inputs[0].size // max(length, 1)
  return Structure.linear({0: by_blocks(lines, op.inputs[0].size, values.size)})


@register_rule('NthElement')
def _nth_element(op):
  """Each output is some element of its line (the last axis); linear.

  The median of 3 elements has the Jacobian `[[1, 1, 1]]`.
  """
  count = op.outputs[0].size
  line = block_of(op.inputs[0].size, count)
  return Structure.linear({0: Flow.collect(line, count)})


@register_rule('Softmax', 'LogSoftmax')
def _softmax(op):
  """Each output is a curved function of its line (the last axis)."""
  return Structure.nonlinear({0: _within_lines(op.inputs[0])})


@register_rule('SoftmaxCrossEntropyWithLogits')
def _cross_entropy(op):
  """The loss and its gradient, for each line of logits and of labels."""
  losses, backprops = op.outputs
  arrows = []
  for k in (0, 1):
    shape = op.inputs[k].shape
    places = np.arange(op.inputs[k].size).reshape(shape)
    spread = Flow.gather(
      np.broadcast_to(places, backprops.shape), op.inputs[k].size
    )
    in_lines = block_of(backprops.size, losses.size)
    summed = spread.then(Flow.collect(in_lines, losses.size))
    arrows.append(Arrow(0, (k,), summed))
    arrows.append(
      Arrow(1, (k,), summed.then(Flow.gather(in_lines, losses.size)))
    )
  return Structure(tuple(arrows), curved=(0, 1))


@register_rule('SparseSoftmaxCrossEntropyWithLogits')
def _sparse_cross_entropy(op):
  """The loss and its gradient, for each line of logits; labels are integers."""
  losses, _ = op.outputs
  logits = op.inputs[0]
  summed = Flow.collect(block_of(logits.size, losses.size), losses.size)
  return Structure(
    (Arrow(0, (0,), summed), Arrow(1, (0,), _within_lines(logits))),
    curved=(0, 1),
  )


def _within_lines(value):
  """Every element depends on its line: the last axis."""
  count = value.size // max(value.shape[-1], 1)
  return by_blocks(count, value.size, value.size)


@register_rule('LinSpace')
def _lin_space(op):
  """Every output depends on both ends."""
  if op.inputs[0].size != 1 or op.inputs[2].depends:
    raise CannotSay('ends that are not scalars')
  flow = Flow.dense(op.outputs[0].size, 1)
  return Structure.linear({0: flow, 1: flow})
