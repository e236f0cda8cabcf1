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
"""Where a dense Jacobian can be cut so that its diagonal is cheap.

Hold some values s of a function y = f(x) constant. Then

    J = df/dx + sum over s of C_s S_s

with `df/dx` and `C_s = df/ds` taken while (the other) s are held, and
`S_s = ds/dx`: each path is counted at the last s on it (Griewank and Walther
2008, _Evaluating Derivatives_, chapter 10). The diagonal of a product is the
sum over k of `C_s[i, k] S_s[k, i]`, which is cheap for two kinds of values:

* with few elements, as a normalizer or a mean: `C_s` has few columns, `S_s` few
  rows, and each of them is a pass;
* between two fixed linear maps, as the hidden layer of a network: for
  `s = phi(A x)` and `u = W s` the diagonal of `W diag(phi') A` is one product
  with the matrix of all `W[i, k] A[k, i]`, which is the same for all samples.
  The first map may take a function of x instead, element by element, as where a
  layer norm comes before the layer: its slopes are factors.

What is left, `df/dx`, may then have few colors. A value of the second kind may
be computed from one of the first kind, as the elements of a softmax from their
normalizer. So a path with values of the first kind on it is counted at the last
of these, and any other path at the last value of the second kind.
"""

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.traits import (
  LOCAL,
  MAX_ENTRIES,
  MIN_DENSITY,
  Facts,
  acts_by_element,
)
from tfp_diag.sparsity.value import Value

# Values with more elements than this fraction of the coordinates are not few: a
# row and a column for each would be more than half of all passes.
_MAX_FRACTION = 0.25
# One hidden layer, such as a gated one, may have this many affine inputs.
_MAX_BASES = 3


class Result(NamedTuple):
  """A value in the graph at hand: a result of an op, or a part of xs.

  Attributes:
    op: `tf.Operation`; None for a part of xs.
    number: `int`, of the result or of the part.
  """

  op: tf.Operation | None
  number: int

  def tensor(self, xs: Sequence) -> tf.Tensor:
    """The value, where `xs` are the parts."""
    results = xs if self.op is None else self.op.outputs
    return results[self.number]


@dataclasses.dataclass(frozen=True)
class Product:
  """A value s between two fixed linear maps.

  Attributes:
    held: `Result`: s, computed element by element from the bases.
    bases: `tuple` of `Result`s that are fixed affine functions of xs and of the
      starts.
    outers: `tuple` of `Result`s that are fixed affine functions of s, and from
      which ys are computed element by element.
    num_rows: `int`: how many rows of the matrices are computed, per sample.
    starts: `tuple` of pairs of the number of a part and a `Result`, which is
      computed from that part element by element; empty if these are the parts.
  """

  held: Result
  bases: tuple
  outers: tuple
  num_rows: int
  starts: tuple = ()


@dataclasses.dataclass(frozen=True)
class Cuts:
  """The values of a function that are held.

  Attributes:
    few: `tuple` of `Result`s with few elements.
    rows: `tuple` of `int`: how many elements each of these has, per sample.
    products: `tuple` of `Product`.
    held_steps: `frozenset` of the steps of the tape whose results are held.
  """

  few: tuple
  rows: tuple
  products: tuple
  held_steps: frozenset

  @property
  def num_rows(self) -> int:
    """How many elements the values with few of them have in all."""
    return sum(self.rows)

  @property
  def held(self) -> tuple:
    """All `Result`s that are held."""
    return self.few + tuple(product.held for product in self.products)


NO_CUTS = Cuts((), (), (), frozenset())


def find_cuts(facts: Facts) -> list[Cuts]:
  """Looks for sets of values to hold.

  Args:
    facts: `Facts` of the values of a function; its outputs have the shapes of
      the parts of xs.

  Returns:
    list of `Cuts`, each for the whole function. Whether one is worthwhile
    shows in the pattern that is left when its values are held.
  """
  steps = facts.walked.tape.steps
  if not steps or any(map(_is_opaque, steps)):
    return []
  whole = _Finder(facts, steps).cut([])
  hidden = whole.hidden_layers()
  few = whole.few()
  after = whole.cut(few)
  beside = whole.cut(held for held, *_ in hidden).few()
  candidates = [
    # A value with few elements may lie between a hidden layer and its outputs,
    # so layers are looked for again while such values are held.
    (beside, whole.cut(beside).hidden_layers()),
    (few, after.hidden_layers() or after.affine_outputs()),
    (few, []),
    ([], hidden),
    ([], whole.affine_outputs()),
  ]
  for held in ([], few, beside):
    if started := whole.cut(held).with_starts():
      layers = started.hidden_layers() or started.affine_outputs()
      candidates.append((held, layers))
  found = [whole.cuts(*c) for c in candidates if c[0] or c[1]]
  return list(dict.fromkeys(c for c in found if c is not None))


def find_few(facts: Facts, ops: Collection) -> Cuts:
  """The values with few elements among the results of some ops.

  Args:
    facts: `Facts` of the values of a function.
    ops: Set of `tf.Operation`.

  Returns:
    `Cuts`.
  """
  walked = facts.walked
  steps = [
    step
    for step in walked.tape.steps
    if not isinstance(step, Loop) and walked.at_hand(step.op) in ops
  ]
  if any(map(_is_opaque, steps)):
    return NO_CUTS
  finder = _Finder(facts, steps)
  made = {y for step in steps for y in step.outputs}
  few = [s for s in finder.few() if s in made]
  return finder.cuts(few, [])


def _is_opaque(step: Step | Loop) -> bool:
  """Whether a step rules out cuts: a loop, a dense op, complex numbers."""
  return (
    isinstance(step, Loop)
    or step.is_fallback
    or any(v.dtype.is_complex for v in (*step.inputs, *step.outputs))
  )


class _Finder:
  """The part of a function that is left when some values are held."""

  def __init__(
    self,
    facts: Facts,
    steps: Sequence,
    held: frozenset = frozenset(),
    starts: Mapping | None = None,
  ) -> None:
    self._facts = facts
    self._steps = steps
    self._held = held
    # What is computed from what is held alone is constant, too.
    self._fixed = set(held)
    for step in steps:
      if self._fixed.issuperset(v for v in step.inputs if v.depends):
        self._fixed.update(step.outputs)
    # Value -> the part from which it is computed element by element.
    self._starts = dict(starts or {})
    known = dict.fromkeys((*self._starts, *self._fixed), True)
    self._uniform = known if starts else None
    self._consumers = collections.defaultdict(list)
    for step in steps:
      for value in step.inputs:
        self._consumers[value].append(step)
    self._aligned = self._aligned_values()

  def cut(self, values: Iterable) -> Any:
    """The `_Finder` for what is left when some values are held."""
    values = frozenset(values)
    live, steps = set(self._facts.walked.outputs), []
    for step in reversed(self._steps):
      held = not values.isdisjoint(step.outputs)
      if not held and not live.isdisjoint(step.outputs):
        live.update(step.inputs)
        steps.append(step)
    held = values | self._held
    return _Finder(self._facts, steps[::-1], held, self._starts)

  def with_starts(self) -> Any:
    """The `_Finder` for which layers may start behind ops on elements of xs.

    None if there are no such ops, or if they are fixed affine functions of xs
    themselves.
    """
    inputs = self._facts.walked.inputs
    parts = {x: part for part, x in enumerate(inputs)}
    for step in self._steps:
      value = step.outputs[0]
      taken = [v for v in step.inputs if v.depends and v not in self._fixed]
      part = parts.get(taken[0]) if taken else None
      if (
        part is not None
        and all(parts.get(v) == part for v in taken)
        and value.shape == inputs[part].shape
        and self._acts_by_element(step)
        and self._is_single(value)
      ):
        parts[value] = part
    starts = {
      value: part
      for value, part in parts.items()
      if not self._facts.is_uniform(value)
    }
    if not starts:
      return None
    return _Finder(self._facts, self._steps, self._held, starts)

  def _is_uniform(self, value: Value) -> bool:
    """Whether it is a fixed affine function of xs and of the starts."""
    return self._facts.is_uniform(value, self._uniform)

  def _starts_of(self, values: Iterable) -> tuple:
    """What some values start from, and the part of xs that each belongs to."""
    if not self._starts:
      return ()
    inputs = self._facts.walked.inputs
    parts = {x: part for part, x in enumerate(inputs)} | self._starts
    found, waiting, seen = set(), list(values), set()
    while waiting:
      value = waiting.pop()
      if value in parts:
        found.add(value)
      elif value not in seen and value in self._facts.maker:
        seen.add(value)
        before = self._facts.maker[value].inputs
        waiting += [v for v in before if v.depends and v not in self._fixed]
    return tuple((parts[v], v) for v in self._made(found))

  def cuts(self, few: Sequence, products: Sequence) -> Cuts:
    """The `Cuts` that hold what has been found."""
    facts = self._facts
    result_of = self._result_of
    return Cuts(
      few=tuple(map(result_of, few)),
      rows=tuple(facts.width(value) for value in few),
      products=tuple(
        Product(
          held=result_of(held),
          bases=tuple(map(result_of, bases)),
          outers=tuple(map(result_of, outers)),
          num_rows=sum(
            min(facts.width(held), facts.width(x)) for x in facts.walked.inputs
          ),
          starts=tuple((part, result_of(value)) for part, value in starts),
        )
        for held, bases, outers, starts in products
      ),
      held_steps=frozenset(
        facts.maker[value] for value in (*few, *(p[0] for p in products))
      ),
    )

  def few(self) -> list:
    """The values with few elements from which larger ones are computed."""
    facts = self._facts
    most = _MAX_FRACTION * facts.walked.num_coordinates

    def is_few(value):
      return (
        value in facts.leading
        and value not in facts.walked.outputs
        and self._is_single(value)
        and facts.width(value) <= most
      )

    found = [
      value
      for step in self._steps
      for value in step.outputs
      if value.depends
      and is_few(value)
      and facts.counts[value].max(initial=0) > LOCAL
      # If all that is computed from it has few elements, too, hold that.
      and not all(
        is_few(y)
        for consumer in self._consumers[value]
        for y in consumer.outputs
        if y.depends
      )
    ]
    # The same elements may occur in several shapes.
    found = dict.fromkeys(self._origin(value, is_few) for value in found)
    if sum(facts.width(value) for value in found) > most:
      return []
    return list(found)

  def _origin(self, value: Value, is_few: Callable) -> Value:
    """The earliest value with few elements that alone determines a value."""
    facts = self._facts
    while True:
      before = [v for v in facts.maker[value].inputs if v.depends]
      if (
        len(before) != 1
        or before[0] not in facts.maker
        or not is_few(before[0])
        or facts.width(before[0]) > facts.width(value)
      ):
        return value
      (value,) = before

  def hidden_layers(self) -> list:
    """Products at values computed element by element from affine ones."""
    bases = self._bases()
    return self._products(
      (value, own)
      for value, own in bases.items()
      if any(s.outputs[0] not in bases for s in self._consumers[value])
    )

  def affine_outputs(self) -> list:
    """Products at affine values that give ys element by element."""
    made = self._aligned.keys() & self._facts.maker.keys()
    affine = set(filter(self._is_uniform, made))
    return self._products(
      (value, {value})
      for value in self._made(affine)
      if affine.isdisjoint(self._facts.maker[value].inputs)
      # A result cannot be held.
      and value not in self._facts.walked.outputs
    )

  def _products(self, candidates: Iterable) -> list:
    """Selects the products that are worthwhile.

    Args:
      candidates: pairs of a value and its bases.

    Returns:
      list of (held, bases, outers, starts), `Value`s as in `Product`; empty if
      their matrices have too many entries.
    """
    facts = self._facts
    found = {
      value: bases
      for value, bases in candidates
      if all(map(self._is_at_hand, bases))
    }
    n = facts.walked.num_coordinates
    if 2 * len(found) > n:
      return []  # Each takes two passes at least.
    # Of each one while the others are held: the fewer these are, the more paths
    # to ys there are besides. So whatever is dropped, all are looked at again.
    while True:
      outers = self._outers_of(found)
      kept = {
        value: bases
        for value, bases in found.items()
        if outers[value]
        # Derivatives stop at an op, whatever result of it is held.
        and self._used_beside(value) <= found.keys()
        and max(map(self._density, {*bases, *outers[value]})) >= MIN_DENSITY
      }
      if len(kept) == len(found):
        break
      found = kept
    entries = sum(
      len(bases) * len(outers[value]) * facts.width(value) * n
      for value, bases in found.items()
    )
    if entries > MAX_ENTRIES:
      return []
    return [
      (
        value,
        self._made(bases),
        self._made(outers[value]),
        self._starts_of(bases),
      )
      for value, bases in found.items()
    ]

  def _outers_of(self, held: Collection) -> dict:
    """The outer values of each of some values, while the others are held."""
    return {
      value: self.cut(v for v in held if v is not value)._outers(value)
      for value in held
    }

  def _made(self, values: Iterable) -> list:
    """Some values in the order in which they are computed."""
    order = (*self._facts.walked.inputs, *self._facts.maker)
    return [value for value in order if value in values]

  def _aligned_values(self) -> dict:
    """Of values whose element i affects element i of one part of ys alone.

    Returns:
      dict: value -> the number of that part.
    """
    outputs = self._facts.walked.outputs
    found = {y: part for part, y in enumerate(outputs)}
    if len(found) < len(outputs):
      return {}  # One value is two parts.
    if None in map(self._result_of, outputs):
      return {}
    if len(outputs) > 1 and any(self._consumers[y] for y in outputs):
      return {}  # A part may affect another one.
    for step in reversed(self._steps):
      for value in step.outputs:
        parts = {
          found.get(s.outputs[0]) if self._acts_by_element(s) else None
          for s in self._consumers[value]
        }
        part = parts.pop() if len(parts) == 1 else None
        if (
          part is not None
          and value not in found
          and value.shape == outputs[part].shape
          and self._is_at_hand(value)
        ):
          found[value] = part
    return found

  def _bases(self) -> dict:
    """dict: value -> the affine values that give it element by element."""
    is_uniform = self._is_uniform
    found = {}
    for step in self._steps:
      value = step.outputs[0]
      inputs = [v for v in step.inputs if v.depends and v not in self._fixed]
      if (
        not self._acts_by_element(step)
        or not self._is_single(value)
        or any(v.shape != value.shape for v in inputs)
        or is_uniform(value)
      ):
        continue
      own = set()
      for v in inputs:
        own |= {v} if is_uniform(v) else found.get(v, {None})
      if own and None not in own and len(own) <= _MAX_BASES:
        found[value] = own
    return found

  def _outers(self, value: Value) -> Any:
    """The affine functions of a value that give ys element by element.

    Those that ys are computed from element by element, and from nothing else
    (aligned ones); or, where these are not affine, all from which an aligned
    value is computed element by element, if other things are, too.

    Args:
      value: `Value`.

    Returns:
      set of `Value`; None or empty if there are none.
    """
    if not self._aligned:
      return None
    return self._frontier(value, False) or self._frontier(value, True)

  def _frontier(self, value: Value, directly: bool) -> Any:
    """As `_outers`, one kind or the other."""
    found, waiting, seen = set(), [value], set()
    while waiting:
      v = waiting.pop()
      if v in self._aligned:
        found.add(v)
        continue
      for step in self._consumers[v]:
        if directly and self._gives_aligned(v, step):
          found.add(v)
          continue
        if step in seen:
          continue
        seen.add(step)
        if not self._facts.has_fixed_matrix(step):
          return None
        waiting += [y for y in step.outputs if y.depends]
    if not found or not self._are_affine(found):
      return None
    # Without those that reach ys only through others: these are held.
    outputs = self._facts.walked.outputs
    return {
      v
      for v in found
      if not self._reached({v}, without=found).isdisjoint(outputs)
    }

  def _gives_aligned(self, value: Value, step: Step) -> bool:
    """Whether an aligned value is computed from a value element by element."""
    part = self._aligned.get(step.outputs[0])
    return (
      part is not None
      and self._acts_by_element(step)
      and value.shape == self._facts.walked.outputs[part].shape
      and self._is_single(value)
    )

  def _reached(
    self, values: Iterable, without: Collection = frozenset()
  ) -> set:
    """Some values, and all that depend on them, but not through `without`."""
    reached = set(values)
    for step in self._steps:
      if not reached.isdisjoint(step.inputs):
        reached.update(y for y in step.outputs if y not in without)
    return reached

  def _are_affine(self, values: Iterable) -> bool:
    """Whether each one is an affine function also of the ones before it."""
    reached, curved = set(values), set()
    for step in self._steps:
      if reached.isdisjoint(step.inputs):
        continue
      reached.update(step.outputs)
      is_curved = not curved.isdisjoint(step.inputs)
      if is_curved or not self._facts.has_fixed_matrix(step):
        curved.update(step.outputs)
    return values.isdisjoint(curved)

  def _density(self, value: Value) -> float:
    """The mean fraction of the coordinates that its elements depend on."""
    pairs = value.rows * self._facts.walked.num_coordinates
    return self._facts.counts[value].sum() / max(pairs, 1)

  def _result_of(self, value: Value) -> Any:
    """The `Result` that a value is; None if it is not in the graph at hand."""
    step = self._facts.maker.get(value)
    if step is None:
      inputs = self._facts.walked.inputs
      # A result may be a constant.
      return Result(None, inputs.index(value)) if value in inputs else None
    op = self._facts.walked.at_hand(step.op or step.own_gradient)
    if op is None or len(op.outputs) != len(step.outputs):
      return None
    number = step.outputs.index(value)
    # An op that adds up lists is a step for each item.
    is_it = op.outputs[number].dtype == value.dtype
    return Result(op, number) if is_it else None

  def _is_at_hand(self, value: Value) -> bool:
    """Whether it is a floating Tensor of the graph at hand."""
    return value.dtype.is_floating and self._result_of(value) is not None

  def _is_single(self, value: Value) -> bool:
    """Whether it is at hand, and the only result that is used."""
    return self._is_at_hand(value) and self._used_beside(value) <= {value}

  def _acts_by_element(self, step: Step) -> bool:
    """See `traits.acts_by_element`; of its results only the first is used."""
    first = step.outputs[0]
    return acts_by_element(step) and self._used_beside(first) <= {first}

  def _used_beside(self, value: Value) -> set:
    """What is used of the results of the op that makes a value."""
    step = self._facts.maker.get(value)
    if step is None:
      return set()
    return self._facts.used.intersection(step.outputs)
