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

Hold some values s of a function y = f(x) fixed. Then

    J = df/dx + sum over s of C_s S_s

with `df/dx` and `C_s = df/ds` taken while (the other) s are held, and
`S_s = ds/dx` (Griewank and Walther 2008, _Evaluating Derivatives_, chapter 10).
The diagonal of a product is the sum over k of `C_s[i, k] S_s[k, i]`, which is
cheap for two kinds of values:

* with few elements, as a normalizer or a mean: `C_s` has few columns, `S_s` few
  rows, and each of them is a pass;
* between two fixed linear maps, as the hidden layer of a network: for
  `s = phi(A x)` and `u = W s` the diagonal of `W diag(phi') A` is one product
  with the matrix of all `W[i, k] A[k, i]`, which is the same for all samples.

What is left, `df/dx`, may then have few colors.
"""

import collections
import dataclasses

from tfp_diag.sparsity import registry
from tfp_diag.sparsity.recognition import numbered_ops, signature
from tfp_diag.sparsity.tape import Tape
from tfp_diag.sparsity.traits import (
  LOCAL,
  MAX_ENTRIES,
  MIN_DENSITY,
  coordinate_counts,
  has_fixed_matrix,
  leading_values,
  uniform_values,
)

__all__ = ['Cuts', 'Product', 'cut_tape', 'find_cuts']

# Values with more elements than this fraction of the coordinates are not few: a
# row and a column for each would be more than half of all passes.
_MAX_FRACTION = 0.25
# So many affine functions may meet in one hidden layer, as in a gated one.
_MAX_BASES = 3


@dataclasses.dataclass(frozen=True)
class Product:
  """A value s between two fixed linear maps.

  The numbers are those of ops by `Cuts.signature`; each has one result.

  Attributes:
    held: `int`: the op that makes s, element by element from its bases.
    bases: `tuple` of `int`: the ops that make them, fixed affine functions of
      xs; -1 stands for xs itself.
    outers: `tuple` of `int`: the ops whose results are fixed affine functions
      of s, and from which ys follow element by element.
    width: `int`: the number of elements of s per sample.
  """

  held: int
  bases: tuple
  outers: tuple
  width: int


@dataclasses.dataclass(frozen=True)
class Cuts:
  """The values of a function that are held.

  Attributes:
    signature: `tuple` of `str`: the ops of the function; see
      `recognition.signature`.
    few: `tuple` of `int`: the ops, by their place there, that make values of
      few elements.
    num_rows: `int`: how many elements these have in all, per sample.
    products: `tuple` of `Product`.
    is_expanded: `bool`: whether the numbers go on with the ops that
      `expansion.expand` adds.
  """

  signature: tuple
  few: tuple
  num_rows: int
  products: tuple
  is_expanded: bool = False

  @classmethod
  def from_meta(cls, meta):
    """What `dataclasses.asdict` made `meta` of; raises if it was nothing."""
    found = cls(
      signature=tuple(meta['signature']),
      few=tuple(map(int, meta['few'])),
      num_rows=int(meta['num_rows']),
      is_expanded=bool(meta['is_expanded']),
      products=tuple(
        Product(
          held=int(product['held']),
          bases=tuple(map(int, product['bases'])),
          outers=tuple(map(int, product['outers'])),
          width=int(product['width']),
        )
        for product in meta['products']
      ),
    )
    numbers = [*found.held]
    for product in found.products:
      numbers += [*product.outers, *(b for b in product.bases if b != -1)]
    if not all(0 <= k < len(found.signature) for k in numbers):
      raise ValueError('`split` names an op that is not there')
    return found

  @property
  def held(self):
    """The numbers of all ops whose results are held."""
    return self.few + tuple(product.held for product in self.products)


def find_cuts(tape, traced, outputs):
  """Looks for sets of values to hold.

  Args:
    tape: `Tape` of the function.
    traced: `detect.Traced`.
    outputs: list of `Value`, one per part of xs, of its shape.

  Returns:
    list of `Cuts`, each a way to cut the whole function. Whether one pays is
    seen from the pattern that it leaves.
  """
  numbered = numbered_ops(tape, traced)
  if numbered is None or not tape.steps:
    return []
  facts = _Facts(tape, traced, outputs, *numbered)
  whole = _Finder(facts, tape.steps).cut([])
  hidden = whole.hidden_layers()
  few = whole.few()
  after = whole.cut(few)
  beside = whole.cut(p.held for p in hidden).few()
  candidates = [
    # What is held besides may lie between a layer and what it goes to.
    (beside, whole.cut(beside).hidden_layers()),
    (few, after.hidden_layers() or after.affine_outputs()),
    (few, []),
    ([], whole.affine_outputs()),
  ]
  found = [whole.cuts(*c) for c in candidates if c[0] or c[1]]
  return list(dict.fromkeys(found))


def cut_tape(tape, op_names):
  """The tape as if what some ops make were constant."""
  result = Tape()
  result.steps = [step for step in tape.steps if step.op_name not in op_names]
  return result


class _Facts:
  """What holds for the values of the whole function."""

  def __init__(self, tape, traced, outputs, ops, number):
    self.traced = traced
    self.outputs = outputs
    self.ops = ops
    self.number = number
    self.counts = coordinate_counts(tape, traced)
    self.leading = leading_values(tape, traced)
    self.uniform = uniform_values(tape, traced)
    self.maker = {y: step for step in tape.steps for y in step.outputs}

  def number_of(self, value):
    """The op that makes a value; -1 for xs."""
    step = self.maker.get(value)
    return -1 if step is None else self.number[step.op_name]

  def width(self, value):
    """The number of elements per sample."""
    return value.rows // self.traced.num_samples

  def density(self, value):
    """On which fraction of the coordinates its elements depend."""
    pairs = value.rows * self.traced.num_coordinates
    return self.counts[value].sum() / max(pairs, 1)

  def is_single(self, value):
    """Whether it holds floating numbers, and is all that its op makes."""
    step = self.maker.get(value)
    return value.dtype.is_floating and (step is None or len(step.outputs) == 1)

  def has_fixed_matrix(self, step):
    """See `traits.has_fixed_matrix`."""
    return has_fixed_matrix(step, self.traced)


class _Finder:
  """The part of a function that is left when some values are held."""

  def __init__(self, facts, steps):
    self._facts = facts
    self._steps = steps
    self._consumers = collections.defaultdict(list)
    for step in steps:
      for value in step.inputs:
        self._consumers[value].append(step)
    self._aligned = self._aligned_values()

  def cut(self, numbers):
    """What is left when the results of some ops are held."""
    numbers = set(numbers)
    live, steps = set(self._facts.outputs), []
    for step in reversed(self._steps):
      held = self._facts.number[step.op_name] in numbers
      if not held and not live.isdisjoint(step.outputs):
        live.update(step.inputs)
        steps.append(step)
    return _Finder(self._facts, steps[::-1])

  def cuts(self, few, products):
    """The `Cuts` that hold what has been found."""
    facts = self._facts
    widths = {facts.number_of(y): facts.width(y) for y in facts.maker}
    return Cuts(
      signature=signature(facts.ops, facts.traced.arguments, widths),
      few=tuple(few),
      num_rows=sum(widths[k] for k in few),
      products=tuple(products),
    )

  def few(self):
    """The numbers of ops whose values are few, and become many again."""
    facts = self._facts
    most = _MAX_FRACTION * facts.traced.num_coordinates

    def is_few(value):
      return (
        value in facts.leading
        and value not in facts.outputs
        and facts.is_single(value)
        and facts.width(value) <= most
      )

    found = [
      value
      for step in self._steps
      for value in step.outputs
      if value.depends
      and is_few(value)
      and facts.counts[value].max(initial=0) > LOCAL
      # What follows it, and is few as well, is held in its place.
      and not all(
        is_few(y)
        for consumer in self._consumers[value]
        for y in consumer.outputs
        if y.depends
      )
    ]
    # A value may come in several shapes.
    found = dict.fromkeys(self._origin(value, is_few) for value in found)
    if sum(facts.width(value) for value in found) > most:
      return []
    return [facts.number_of(value) for value in found]

  def _origin(self, value, is_few):
    """The first few value that a few value is a function of alone."""
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

  def hidden_layers(self):
    """`Product`s at values that are made element by element of affine ones."""
    bases = self._bases()
    return self._products(
      (value, own)
      for value, own in bases.items()
      if any(s.outputs[0] not in bases for s in self._consumers[value])
    )

  def affine_outputs(self):
    """`Product`s at affine values from which ys follow element by element."""
    affine = self._aligned & self._facts.uniform & self._facts.maker.keys()
    return self._products(
      (value, {value})
      for value in sorted(affine, key=self._facts.number_of)
      if affine.isdisjoint(self._facts.maker[value].inputs)
      # A result cannot be held.
      and value not in self._facts.outputs
    )

  def _products(self, candidates):
    """The `Product`s among pairs of a value and its bases."""
    facts = self._facts
    n = facts.traced.num_coordinates
    found, entries = [], 0
    for value, bases in candidates:
      fullest = max(facts.density(base) for base in bases)
      if fullest < MIN_DENSITY or not all(map(facts.is_single, bases)):
        continue
      outers = self._outers(value)
      if outers:
        width = facts.width(value)
        entries += len(bases) * len(outers) * width * n
        found.append(
          Product(
            held=facts.number_of(value),
            bases=tuple(sorted(map(facts.number_of, bases))),
            outers=tuple(sorted(map(facts.number_of, outers))),
            width=width,
          )
        )
    return found if entries <= MAX_ENTRIES else []

  def _aligned_values(self):
    """The values of which element i matters for element i of ys alone."""
    facts = self._facts
    if len(facts.outputs) != 1 or len(facts.traced.inputs) != 1:
      return set()
    (output,) = facts.outputs
    found = {output}
    for step in reversed(self._steps):
      for value in step.outputs:
        consumers = self._consumers[value]
        if (
          consumers
          and value is not output
          and value.shape == output.shape
          and facts.is_single(value)
          and all(
            registry.facts(s.op_type).elementwise and s.outputs[0] in found
            for s in consumers
          )
        ):
          found.add(value)
    return found

  def _bases(self):
    """dict: value -> the affine values it is made of, element by element."""
    uniform = self._facts.uniform
    found = {}
    for step in self._steps:
      value = step.outputs[0]
      inputs = [v for v in step.inputs if v.depends]
      if (
        value in uniform
        or not registry.facts(step.op_type).elementwise
        or not self._facts.is_single(value)
        or any(v.shape != value.shape for v in inputs)
      ):
        continue
      own = set()
      for v in inputs:
        own |= {v} if v in uniform else found.get(v, {None})
      if None not in own and len(own) <= _MAX_BASES:
        found[value] = own
    return found

  def _outers(self, value):
    """The aligned values that are affine functions of one, or None."""
    found, waiting, seen = set(), [value], set()
    while waiting:
      v = waiting.pop()
      if v in self._aligned:
        found.add(v)
        continue
      for step in self._consumers[v]:
        if step in seen:
          continue
        seen.add(step)
        if not self._facts.has_fixed_matrix(step):
          return None
        waiting += [y for y in step.outputs if y.depends]
    return found if self._are_affine(found) else None

  def _are_affine(self, values):
    """Whether each is an affine function also of those of them before it."""
    reached, curved = set(values), set()
    for step in self._steps:
      if reached.isdisjoint(step.inputs):
        continue
      reached.update(step.outputs)
      is_curved = not curved.isdisjoint(step.inputs)
      if is_curved or not self._facts.has_fixed_matrix(step):
        curved.update(step.outputs)
    return values.isdisjoint(curved)
