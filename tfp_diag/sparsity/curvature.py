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
"""Which second derivatives of a function cost less than a pass each.

The Hessian of a function that a graph computes is a sum over its curved ops,
the ones that are not linear (Griewank and Walther 2008, _Evaluating
Derivatives_, section 7): an op `v = phi(a, b, ...)` adds

    sum over pairs of arguments (a, b):  J_a^T diag(w_ab) J_b

with `J_a` the Jacobian of an argument with respect to xs, and `w_ab` the second
derivative of `phi`, times the derivative of the result with respect to `v`. Two
kinds of ops make a Hessian dense, and yet their diagonals are cheap:

* an op whose arguments are fixed linear maps A of xs, the same for all samples,
  such as the linear predictor of a regression. Then the diagonal of
  `A^T diag(w) A` is one product with the squared matrix. An op that is linear
  in each of two arguments, a product of matrices, need not be elementwise: of
  the columns of A and B it makes the matrix that takes its place;
* an op that has an argument b with few elements per sample, such as the sum in
  a normalizer. Then the rows of `J_b` are a few reverse passes.

The other curved ops may need few colors. If they do not, the curvature along
each coordinate, `sum of w_ab (J_a e_i) (J_b e_i)`, still takes only the
tangents of the arguments, and no product with the whole Hessian. Of a fixed
linear map of xs, a base, the tangents are the columns of its matrix, and the
same for all samples.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Sequence

from tfp_diag.sparsity import probe, registry
from tfp_diag.sparsity.paths import kind_of_squares
from tfp_diag.sparsity.registry import Squares
from tfp_diag.sparsity.structure import Structure
from tfp_diag.sparsity.tape import Loop, Step, Tape
from tfp_diag.sparsity.traits import (
  LOCAL,
  MAX_ENTRIES,
  MIN_DENSITY,
  Facts,
)
from tfp_diag.sparsity.walk import Walked

# An argument with at most this many elements per sample counts as `few`.
_MAX_ROWS = 4


@dataclasses.dataclass(frozen=True)
class CurvedOps:
  """How each curved op of a function is treated.

  The ops are `tf.Operation`s of the graph at hand.

  Attributes:
    fixed: `tuple` of (op, left, right, axes, same). `left` and `right` are the
      numbers of two arguments of the op that are fixed linear maps of xs;
      `axes` are the places of the samples' axes in these and in the result;
      `same` tells whether the weight is the same for all samples, as in a
      quadratic form.
    few: `tuple` of (op, left, right, rows): the numbers of two arguments, of
      which `right` has few elements, `rows` per sample.
    rest: `tuple` of (op, arguments) for all other curved ops: the numbers of
      the arguments that depend on xs.
    samples_lead: `bool`: whether the leading axes of all arguments are the
      sample dimensions.
    cheap_steps: `frozenset` of the steps of the tape that are not in `rest`.
    share_of_rest: `float`: which fraction of the elements that the curved ops
      compute are those of `rest`.
    bases: `tuple` of `tf.Tensor`s of the graph at hand, dense fixed linear maps
      of xs, from which the arguments of `rest` are computed.
    bases_of_all: likewise, for the arguments of all curved ops.
  """

  fixed: tuple
  few: tuple
  rest: tuple
  samples_lead: bool
  cheap_steps: frozenset
  share_of_rest: float
  bases: tuple
  bases_of_all: tuple

  @property
  def number(self) -> int:
    """How many there are."""
    return len({op for op, *_ in self.fixed + self.few + self.rest})

  @property
  def num_rows(self) -> int:
    """How many elements the `right` arguments of `few` have in all."""
    return sum(rows for *_, rows in self.few)

  def all_as_rest(self) -> 'CurvedOps':
    """The same ops, all of them in `rest`."""
    used = {}
    for k, *pair in (term[:3] for term in self.fixed + self.few):
      used.setdefault(k, set()).update(pair)
    more = tuple((k, tuple(sorted(which))) for k, which in used.items())
    return dataclasses.replace(
      self,
      fixed=(),
      few=(),
      rest=self.rest + more,
      cheap_steps=frozenset(),
      share_of_rest=1.0,
      bases=self.bases_of_all,
    )


def find_curved_ops(
  facts: Facts, steps: Collection | None = None
) -> CurvedOps | None:
  """Sorts the curved ops of a function into `fixed`, `few` and `rest`.

  Args:
    facts: `Facts` of the values of a function with second derivatives.
    steps: the curved ops that count, or None for all.

  Returns:
    `CurvedOps`; None if there are no curved ops, or one that cannot be treated
    by itself.
  """
  walked = facts.walked
  curved = [
    step
    for step in walked.tape.steps
    if _is_curved(step) and (steps is None or step in steps)
  ]
  if not curved or not _can_be_taken_apart(curved, walked):
    return None
  leading, counts = facts.leading, facts.counts
  same = _same_weights(facts)
  fixed, few, rest, cheap = [], [], [], set()
  entries = 0
  for step in curved:
    op = walked.at_hand(step.op)
    used = tuple(i for i, value in enumerate(step.inputs) if value.depends)
    pairs = registry.elementwise_pairs(step.op_type, used)
    size = step.outputs[0].size // walked.num_samples
    n = walked.num_coordinates
    most = max(counts[y].max(initial=0) for y in step.outputs if y.depends)
    if most <= min(LOCAL, n - 1):
      rest.append((op, used))
    elif (
      pairs is None
      and entries + size * n <= MAX_ENTRIES
      and any(_is_full(step, i, counts, n) for i in used)
      and _is_fixed_product(step, used, facts)
    ):
      fixed.append((op, *used, _axes(step, used, facts), same[step]))
      entries += size * n
      cheap.add(step)
    elif pairs is None:
      rest.append((op, used))
    elif (
      entries + size * n <= MAX_ENTRIES
      and any(_is_full(step, i, counts, n) for i in {*sum(pairs, ())})
      and all(_is_uniform(step, i, facts) for i in {*sum(pairs, ())})
    ):
      fixed += [
        (op, *pair, _axes(step, pair, facts), same[step]) for pair in pairs
      ]
      entries += size * n
      cheap.add(step)
    else:
      turned = [_fewer_last(step, pair) for pair in pairs]
      rows = [step.inputs[b].size // walked.num_samples for _, b in turned]
      lead = all(step.inputs[b] in leading for _, b in turned)
      if max(rows) > _MAX_ROWS or not lead:
        rest.append((op, used))
      else:
        few += [(op, *pair, count) for pair, count in zip(turned, rows)]
        cheap.add(step)
  return CurvedOps(
    fixed=tuple(fixed),
    few=tuple(few),
    rest=tuple(rest),
    samples_lead=all(
      v in leading for step in curved for v in step.inputs if v.depends
    ),
    cheap_steps=frozenset(cheap),
    share_of_rest=1 - _num_elements(cheap) / max(_num_elements(curved), 1),
    bases=_bases_of([s for s in curved if s not in cheap], facts),
    bases_of_all=_bases_of(curved, facts),
  )


def _bases_of(steps: Iterable, facts: Facts) -> tuple:
  """The last dense fixed linear maps of xs on the paths to some steps."""
  walked = facts.walked
  n, entries = walked.num_coordinates, 0
  found, seen = [], set()
  waiting = [value for step in steps for value in step.inputs if value.depends]
  while waiting:
    value = waiting.pop()
    step = facts.maker.get(value)
    if value in seen or step is None:
      continue
    seen.add(value)
    op = walked.at_hand(step.op)
    # None where the shape is not known.
    size = (value.size or 0) // walked.num_samples
    if (
      op is not None
      and len(step.outputs) == 1
      and size
      and facts.counts[value].mean() >= MIN_DENSITY * n
      and entries + size * n <= MAX_ENTRIES
      and facts.is_uniform(value)
    ):
      found.append(op.outputs[0])
      entries += size * n
    else:
      waiting += [v for v in step.inputs if v.depends]
  return tuple(found)


def _num_elements(steps: Iterable) -> int:
  return sum(y.size for step in steps for y in step.outputs)


def is_quadratic_form(facts: Facts) -> bool:
  """Whether the Hessian is a constant, the same for all samples.

  Args:
    facts: `Facts` of the values of a function with second derivatives.

  Returns:
    `bool`.
  """
  steps = facts.walked.tape.steps
  curved = [step for step in steps if _is_curved(step)]
  if any(isinstance(step, Loop) or step.is_fallback for step in steps):
    return False
  if not curved or not _can_be_taken_apart(curved, facts.walked):
    return False
  # Small ops first: if the test fails for one, large ones need not be run.
  curved.sort(key=lambda step: max(y.rows for y in step.outputs))
  if not all(facts.has_fixed_curvature(step) for step in curved):
    return False
  return all(_same_weights(facts).values()) and all(
    facts.uniform_axis(value) is not None
    for step in curved
    for value in step.inputs
    if value.depends
  )


def has_own_gradient_alone(facts: Facts) -> bool:
  """Whether only custom gradients may have second derivatives that change.

  It is False if a custom gradient is known to work element by element. That is
  the gradient of a function such as softplus, whose second derivative changes.

  Args:
    facts: `Facts` of the values of a function with second derivatives.

  Returns:
    `bool`.
  """
  steps = facts.walked.tape.steps
  if any(isinstance(step, Loop) or step.is_fallback for step in steps):
    return False
  curved = [step for step in steps if _is_curved(step)]
  own = [step for step in curved if _ends_custom_gradient(step)]
  return bool(own) and all(
    step.own_gradient is None
    if _ends_custom_gradient(step)
    else facts.has_fixed_curvature(step)
    for step in curved
  )


def _ends_custom_gradient(step: Step) -> bool:
  return registry.facts(step.op_type).ends_custom_gradient


def _can_be_taken_apart(curved: Sequence, walked: Walked) -> bool:
  """Whether each curved op has a rule, and is one op of the graph at hand.

  False also if there are loops or complex numbers.
  """
  ops = []
  for step in curved:
    if isinstance(step, Loop) or step.is_fallback:
      return False
    if any(v.dtype.is_complex for v in (*step.inputs, *step.outputs)):
      return False
    ops.append(walked.at_hand(step.op))
  loops = any(isinstance(step, Loop) for step in walked.tape.steps)
  return not loops and None not in ops and len(set(ops)) == len(ops)


def has_curved_sums(walked: Walked) -> bool:
  """Whether a sum over many elements, or the like, goes into a curved op.

  A normalizer is an example. This test is cheap, so it is made before others.
  """
  few = set()
  for step in walked.tape.steps:
    if isinstance(step, Loop):
      return False
    inputs = [value for value in step.inputs if value.depends]
    if _is_curved(step) and not few.isdisjoint(inputs):
      return True
    if not _is_piece(step):
      few.update(
        y
        for y in step.outputs
        if y.rows <= _MAX_ROWS * walked.num_samples
        and any(v in few or v.rows > y.rows for v in inputs)
      )
  return False


def has_curved_slices(tape: Tape) -> bool:
  """Whether overlapping slices go into ops whose curvature is not constant.

  The steps of a chain, `x[1:] - x[:-1]`, are an example. Each pass adds the
  curvature in two places. If the passes are written out one by one, XLA
  computes it anew for each pass and place; vectorized passes share it.
  """
  if any(
    isinstance(step, Loop)
    or step.is_fallback
    or not registry.facts(step.op_type).vectorizes
    for step in tape.steps
  ):
    return False
  sources = collections.Counter(
    step.inputs[0] for step in tape.steps if _is_large_piece(step)
  )
  pieces = set()
  for step in tape.steps:
    if not (_is_large_piece(step) and sources[step.inputs[0]] > 1):
      if pieces.isdisjoint(step.inputs):
        continue
      if _is_curved(step) and not probe.has_fixed_curvature(step):
        return True
    pieces.update(step.outputs)
  return False


def _is_piece(step: Step | Loop) -> bool:
  """Whether an op only selects some of the elements of its inputs."""
  return all(
    arrow.flow.is_selection and arrow.flow.rows < arrow.flow.columns
    for arrow in step.structure.arrows
  )


def _is_large_piece(step: Step | Loop) -> bool:
  """Whether an op is a slice that cuts off less than half of its input."""
  if not registry.facts(step.op_type).is_slice:
    return False
  before, after = step.inputs[0].rows, step.outputs[0].rows
  return before / 2 < after < before


def without(tape: Tape, steps: Collection) -> Tape:
  """The tape as if some ops were linear; loops stay as they are."""
  return Tape(
    dataclasses.replace(step, structure=Structure(step.structure.arrows))
    if step in steps and not isinstance(step, Loop)
    else step
    for step in tape.steps
  )


def _is_curved(step: Step | Loop) -> bool:
  if isinstance(step, Loop):
    return any(_is_curved(inner) for inner in step.body.steps)
  return bool(step.structure.curved or step.structure.pairs)


def _is_uniform(step: Step, argument: int, facts: Facts) -> bool:
  """Whether an argument is a fixed linear map, of the shape of the result."""
  value, result = step.inputs[argument], step.outputs[0]
  axis = facts.sample_axis(result)
  return (
    value.shape == result.shape
    and axis is not None
    and facts.uniform_axis(value) == axis
  )


def _axes(step: Step, pair: Sequence, facts: Facts) -> tuple:
  values = [step.inputs[k] for k in pair] + [step.outputs[0]]
  return tuple(map(facts.sample_axis, values))


def _is_fixed_product(step: Step, used: Sequence, facts: Facts) -> bool:
  """Whether an op multiplies two fixed linear maps, in the same way for all."""
  kinds = {kind_of_squares(step, k, facts.walked) for k in used}
  return (
    len(used) == 2
    and kinds == {Squares.OPERANDS}
    and all(facts.uniform_axis(step.inputs[k]) is not None for k in used)
    and facts.has_fixed_curvature(step)
  )


def _is_full(step: Step, argument: int, counts: dict, n: int) -> bool:
  count = counts[step.inputs[argument]]
  return bool(count.size) and count.mean() >= MIN_DENSITY * n


def _fewer_last(step: Step, pair: tuple) -> tuple[int, int]:
  a, b = pair
  return (b, a) if step.inputs[a].size < step.inputs[b].size else (a, b)


def _same_weights(facts: Facts) -> dict:
  """Which curved ops have weights that are the same for all samples.

  Returns:
    dict: step -> bool. True if the op has constant second derivatives, and the
    ops between it and the result are linear, with one matrix for all samples.
  """
  # Only steps after a curved one are tested for that: it takes long.
  steps, bent, after = facts.walked.tape.steps, set(), set()
  for step in steps:
    if not bent.isdisjoint(step.inputs):
      after.add(step)
    if step in after or _is_curved(step):
      bent.update(step.outputs)
  varies, found = set(), {}
  for step in reversed(steps):
    own = not any(y in varies for y in step.outputs)
    if _is_curved(step):
      found[step] = own and facts.has_fixed_curvature(step)
      own = False
    elif own:
      own = step in after and facts.has_fixed_matrix(step)
    if not own:
      varies.update(value for value in step.inputs if value.depends)
  return found
