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
"""The ops of a function in order, and the dependencies found from them."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.dependency import Dependency
from tfp_diag.sparsity.flow import Flow, block_of, by_segments
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.registry import Squares, facts
from tfp_diag.sparsity.second_order import SecondOrder
from tfp_diag.sparsity.structure import Arrow, Structure
from tfp_diag.sparsity.value import Value, places


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
  """One op that depends on xs.

  Attributes:
    op_type: `str`.
    op_name: `str`.
    inputs: `tuple` of `Value`.
    outputs: `tuple` of `Value`.
    structure: `Structure`.
    is_fallback: `bool`: whether the op is taken as dense, for lack of a rule.
    op: `tf.Operation`, if the inputs and outputs are its own; else None.
    own_gradient: `tf.Operation` with a custom gradient, whose outputs these
      are, if that gradient is known to be elementwise: the cotangent of the
      first output, times a slope for each input that has an arrow. Else None.
    has_linear_gradient: `bool`: False if the op has a custom gradient that is
      not known to be linear in the cotangents. Only linear ones are matrices,
      which can be transposed and written as products.
    cancelled: bool array of the event shape of a difference: the elements whose
      derivatives cancel; or None.
    uncancelled: `Structure` with these; None if there are none.
    copies: `frozenset` of `Value`: the copies that are subtracted there, and
      those that they are copied from. Derivatives by the value that all of them
      are copies of cancel, and not those by one of them.
  """

  op_type: str
  op_name: str
  inputs: tuple[Value, ...]
  outputs: tuple[Value, ...]
  structure: Structure
  is_fallback: bool = False
  op: tf.Operation | None = None
  own_gradient: tf.Operation | None = None
  has_linear_gradient: bool = True
  cancelled: np.ndarray | None = None
  uncancelled: Structure | None = None
  copies: frozenset[Value] = frozenset()

  def holding(self, values: Collection[Value]) -> 'Step':
    """The op where some values are constant: then less may cancel."""
    if self.uncancelled is None or self.copies.isdisjoint(values):
      return self
    return dataclasses.replace(
      self, structure=self.uncancelled, cancelled=None, uncancelled=None
    )

  @property
  def label(self) -> str:
    """How messages name the op."""
    return f'{self.op_type} (op {self.op_name!r})'

  @property
  def is_linear(self) -> bool:
    """Whether it is known to be linear in all inputs that depend on xs."""
    varying = tuple(k for k, value in enumerate(self.inputs) if value.depends)
    values = [*self.outputs, *(self.inputs[k] for k in varying)]
    if self.is_fallback or not all(v.dtype.is_floating for v in values):
      return False
    known = facts(self.op_type)
    return (
      varying in known.linear_in
      or known.squares is Squares.SAME
      or set(varying) <= set(known.moved(len(self.inputs)))
    )

  def forward(self, dependencies: dict, groups: Groups) -> None:
    """Adds the dependencies of the outputs to those of the inputs."""
    result = {}
    for arrow in self.structure.arrows:
      output = self.outputs[arrow.output]
      if not output.depends:
        continue
      flow = arrow.flow
      if self.is_fallback and groups.apart:
        flow = self._sample_by_sample(arrow, groups.num_coordinates)
      before = self._joined(arrow.inputs, dependencies)
      after = flow.apply(before, groups.settle)
      known = result.get(output)
      result[output] = after if known is None else known.union(after)
    for output in self.outputs:
      if output.depends:
        dependencies[output] = result.get(output, Dependency.empty(output.rows))

  def backward(self, alive: dict) -> None:
    """Marks the elements of inputs that elements in `alive` depend on."""
    for arrow in self.structure.arrows:
      mask = alive.get(self.outputs[arrow.output])
      if mask is None or not mask.any():
        continue
      pulled = arrow.flow.pull(mask)
      for value, place in places(self.inputs[k] for k in arrow.inputs):
        _mark(alive, value, pulled[place])

  def interact(
    self,
    dependencies: dict,
    alive: dict,
    second_order: SecondOrder,
  ) -> None:
    """Adds the pairs of coordinates by which the op has second derivatives."""
    masks = [alive.get(output) for output in self.outputs]
    if all(mask is None or not mask.any() for mask in masks):
      return
    for k in self.structure.curved:
      if masks[k] is not None:
        rows = dependencies[self.outputs[k]].where(masks[k])
        second_order.add(rows, rows)
    for pair in self.structure.pairs:
      sides = []
      for inputs, flow in pair.sides:
        if not any(self.inputs[i].depends for i in inputs):
          break
        before = self._joined(inputs, dependencies)
        sides.append(flow.apply(before, second_order.groups.settle))
      else:
        if pair.output is not None:
          if masks[pair.output] is None:
            continue
          sides = [side.where(masks[pair.output]) for side in sides]
        second_order.add(*sides)

  def _joined(self, inputs: Sequence, dependencies: dict) -> Dependency:
    parts = []
    for k in inputs:
      value = self.inputs[k]
      known = dependencies.get(value) if value.depends else None
      parts.append(Dependency.empty(value.rows) if known is None else known)
    return Dependency.concat(parts)

  def _sample_by_sample(self, arrow: Arrow, num_samples: int) -> Flow:
    """The flow of an op without a rule, as if it works on each sample alone.

    Whether such an op mixes samples is not known. If it were taken to do so,
    every function with such an op would be reported. So the search for an op
    that mixes samples assumes that it does not.
    """
    output = self.outputs[arrow.output]
    inputs = [self.inputs[k] for k in arrow.inputs]
    for value in [output, *inputs]:
      batched = value.shape and value.shape[0] == num_samples
      if not batched and (value.depends or value is output):
        return arrow.flow
    segment = [
      block_of(v.rows, num_samples) if v.depends else np.full(v.rows, -1)
      for v in inputs
    ]
    index = block_of(output.rows, num_samples)
    return by_segments(np.concatenate(segment), index, num_samples)


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
  """A loop whose number of iterations is not known, or large.

  Attributes:
    carried: `tuple` of (initial, variable, next, result), all `Value`s: a loop
      variable before the loop, at the start of an iteration, at the end of it,
      and after the loop.
    body: `Tape`: one iteration.
  """

  carried: tuple[tuple[Value, Value, Value, Value], ...]
  body: 'Tape'

  @property
  def inputs(self) -> tuple[Value, ...]:
    """All values that the loop reads, from outside or inside."""
    read = [v for initial, _, nxt, _ in self.carried for v in (initial, nxt)]
    return (*read, *(v for step in self.body.steps for v in step.inputs))

  @property
  def outputs(self) -> tuple[Value, ...]:
    """All values that the loop computes, after it and within it."""
    made = [
      v for _, variable, _, result in self.carried for v in (variable, result)
    ]
    return (*made, *(v for step in self.body.steps for v in step.outputs))

  def forward(self, dependencies: dict, groups: Groups) -> None:
    """Iterates until no dependency is new: there are finitely many."""
    carried = [c for c in self.carried if c[1].depends]
    for initial, variable, _, _ in carried:
      dependencies[variable] = _get(initial, variable.rows, dependencies)
    turns = 0
    while True:
      self.body.forward(dependencies, groups)
      changed = False
      for _, variable, nxt, _ in carried:
        old = dependencies[variable]
        new = old.union(_get(nxt, variable.rows, dependencies))
        if turns >= _MAX_TURNS:
          new = Flow.dense(new.rows, new.rows).apply(new, groups.settle)
        # Expanded: new groups in each iteration hide that nothing changed.
        before, after = groups.expand(old), groups.expand(new)
        if before.union(after).entries > before.entries:
          dependencies[variable] = new
          changed = True
      if not changed:
        break
      turns += 1
    for _, variable, _, result in carried:
      dependencies[result] = dependencies[variable]

  def backward(self, alive: dict) -> None:
    """Marks the elements that matter in any iteration."""
    carried = [c for c in self.carried if c[1].depends]
    for _, variable, _, result in carried:
      mask = alive.get(result)
      alive[variable] = (
        np.zeros(variable.rows, bool) if mask is None else mask.copy()
      )
    while True:
      for _, variable, nxt, _ in carried:
        _mark(alive, nxt, alive[variable])
      before = [alive[variable].sum() for _, variable, _, _ in carried]
      self.body.backward(alive)
      if before == [alive[variable].sum() for _, variable, _, _ in carried]:
        break
    for initial, variable, _, _ in carried:
      _mark(alive, initial, alive[variable])

  def interact(
    self,
    dependencies: dict,
    alive: dict,
    second_order: SecondOrder,
  ) -> None:
    """As `Step.interact`, for all iterations."""
    for step in self.body.steps:
      step.forward(dependencies, second_order.groups)
      step.interact(dependencies, alive, second_order)


# After this many iterations each element of a loop variable is taken to depend
# on all that any of its elements depends on, so that long chains end early.
_MAX_TURNS = 32


def _mark(alive: dict, value: Value, mask: np.ndarray) -> None:
  """Marks some elements of a value, if it depends on xs."""
  if value.depends:
    known = alive.get(value)
    alive[value] = mask if known is None else known | mask


def _get(value: Value, rows: int, dependencies: dict) -> Dependency:
  if value.depends:
    return dependencies[value]
  return Dependency.empty(rows)


class Tape:
  """The ops of a function that depend on xs, in the order of their execution.

  Attributes:
    steps: list of `Step` and `Loop`.
  """

  def __init__(self, steps: Iterable = ()) -> None:
    self.steps = list(steps)

  @property
  def has_fallback(self) -> bool:
    """Whether an op was taken as dense because it has no rule."""
    return any(
      step.body.has_fallback if isinstance(step, Loop) else step.is_fallback
      for step in self.steps
    )

  @property
  def has_linear_gradients(self) -> bool:
    """Whether all gradients are known to be linear in the cotangents."""
    return all(
      step.body.has_linear_gradients
      if isinstance(step, Loop)
      else step.has_linear_gradient
      and not (step.is_fallback and facts(step.op_type).ends_custom_gradient)
      for step in self.steps
    )

  def forward(self, dependencies: dict, groups: Groups) -> None:
    """Adds the dependencies of all values of the tape to a dict."""
    for step in self.steps:
      step.forward(dependencies, groups)

  def backward(self, alive: dict) -> None:
    """Adds to a dict which elements the elements in it depend on."""
    for step in reversed(self.steps):
      step.backward(alive)

  def alive(self, outputs: Sequence) -> dict:
    """From each `Value` to a bool array: which elements some outputs need."""
    alive = {value: np.ones(value.rows, bool) for value in outputs}
    self.backward(alive)
    return alive

  def run(
    self,
    dependencies: dict,
    wanted: Sequence,
    groups: Groups,
    alive: dict | None = None,
    second_order: SecondOrder | None = None,
    counts: dict | None = None,
  ) -> dict:
    """Goes over the tape once, and drops dependencies that are used up.

    Args:
      dependencies: dict from `Value` to `Dependency`: those of xs. It is
        changed.
      wanted: list of `Value`: those whose dependencies are kept.
      groups: `Groups`.
      alive: dict from `Value` to bool array: the elements that matter; needed
        with `second_order`.
      second_order: `SecondOrder` to fill, or None.
      counts: dict to fill, or None: from `Value` to int array, on how many
        columns each of its elements depends.

    Returns:
      dict from `Value` to `Dependency` for the wanted values that depend on xs.
    """
    last_use = {}
    for place, step in enumerate(self.steps):
      for value in (*step.inputs, *step.outputs):
        last_use[value] = place
    last = set(wanted)
    done = [[] for _ in range(len(self.steps))]
    for value, place in last_use.items():
      done[place].append(value)
    for place, step in enumerate(self.steps):
      step.forward(dependencies, groups)
      if second_order is not None:
        step.interact(dependencies, alive, second_order)
      for value in done[place]:
        dependency = dependencies.get(value)
        if counts is not None and dependency is not None:
          counts[value] = groups.counts(dependency)
        if value not in last:
          dependencies.pop(value, None)
    return dependencies


def all_steps(tape: Tape) -> Iterator[Step]:
  """Yields the steps, and those of the bodies of loops."""
  for step in tape.steps:
    if isinstance(step, Loop):
      yield from all_steps(step.body)
    else:
      yield step


def without_fallbacks(tape: Tape) -> Tape:
  """The tape as if ops that were taken as dense returned constants."""
  return Tape(
    dataclasses.replace(step, body=without_fallbacks(step.body))
    if isinstance(step, Loop)
    else dataclasses.replace(step, structure=Structure())
    if step.is_fallback
    else step
    for step in tape.steps
  )


def on_themselves(values: Sequence[Value]) -> tuple[dict, Groups]:
  """Dependencies of some values, with a column for each element; the columns.

  Args:
    values: list of `Value`.

  Returns:
    seeds: dict from `Value` to `Dependency`.
    groups: `Groups`.
  """
  seeds = {v: Dependency.identity(v.rows, p.start) for v, p in places(values)}
  return seeds, Groups(sum(v.rows for v in values))
