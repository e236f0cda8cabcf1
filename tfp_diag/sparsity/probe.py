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

"""Properties of single ops, found by running them.

A rule says which derivatives of an op can be nonzero. Whether an op is affine,
with one matrix for all samples, each sample in its place, needs no rule: the op
is run on a few random inputs, and the results are compared. Known constants
have their values. An input of unknown value, such as a `tf.Variable`, is filled
several times with random values that differ between samples.

What is differentiated is not the function, but what TensorFlow has for its
derivative. That of `tf.math.xlogy(x, 3.0)` is zero where `x` is; the second one
of a product of two factors is, too, or NaN beside a NaN. So the graph of the
derivative is read: it may not depend on the values of the inputs.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.evaluation import (
  array_of,
  bound_op,
  repeat_op,
  run_op,
)
from tfp_diag.sparsity.graph import attributes_of, function_names
from tfp_diag.sparsity.own_gradients import own_gradients
from tfp_diag.sparsity.registry import CannotSay, OpFailed, facts
from tfp_diag.sparsity.tape import Step
from tfp_diag.sparsity.value import Value

# A relative difference above the first bound is tested again on other inputs.
# One above the second is no rounding error, even if terms cancel.
_ROUNDING, _GROSS = 1e-12, 1e-6
# How many random inputs are tried: terms that cancel in one do not in another.
_DRAWS = 3
# How many fillings there are for inputs of unknown value.
_FILLINGS = 3


def has_fixed_matrix(
  step: Step, num_samples: int, orders: Mapping | None = None
) -> bool:
  """Whether an op is affine, with the same matrix for each sample.

  The op is run on inputs that are split into samples along their first axis,
  or axes. Then sample b of the result must be `A x_b + c_b`, with one `A` for
  all samples.

  Args:
    step: The op on the tape. By their shapes, the leading axes of its inputs
      and outputs that depend on xs are the sample dimensions.
    num_samples: Python int.
    orders: From a `Value` to the order of its axes in which those of the
      samples come first, where they do not. Default: they do.

  Returns:
    `bool`: False also where the op cannot be run.
  """
  if step.structure.curved or step.structure.pairs:
    return False
  if facts(step.op_type).bends:
    return False
  if num_samples == 1 and step.is_linear:
    return True
  return _holds(_is_affine, step, num_samples, orders or {}, 1)


def has_fixed_curvature(
  step: Step, num_samples: int = 1, orders: Mapping | None = None
) -> bool:
  """Whether the second derivatives of an op are constants.

  Args:
    step: As for `has_fixed_matrix`.
    num_samples: Python int. The constants must be the same for all samples, and
      no two samples may have mixed second derivatives.
    orders: As for `has_fixed_matrix`.

  Returns:
    `bool`: False also where the op cannot be run.
  """
  return _holds(_is_quadratic, step, num_samples, orders or {}, 2)


_KNOWN = weakref.WeakKeyDictionary()


def _holds(
  test: Callable, step: Step, num_samples: int, orders: Mapping, order: int
) -> bool:
  """Whether equations between values of the op hold; tested once per step.

  And whether TensorFlow's derivative of some order depends on no value.
  """
  known = _KNOWN.setdefault(step, {})
  key = test, num_samples, tuple(orders.items())
  if key not in known:
    known[key] = _try(test, step, num_samples, orders) and not (
      _derivative_varies(step, order)
    )
  return known[key]


def _try(test: Callable, step: Step, num_samples: int, orders: Mapping) -> bool:
  if step.op is None or step.op.op_def.is_stateful or not num_samples:
    return False
  try:
    # Overflow gives NaN, for which no equation holds.
    with np.errstate(all='ignore'):
      return all(
        _agree(test, _Samples(run, step, num_samples, orders))
        for run in _runs(step)
      )
  except (CannotSay, OpFailed):
    return False


def _derivative_varies(step: Step, order: int) -> bool:
  """Whether the derivatives of some order may depend on what is differentiated.

  Args:
    step: The op on the tape.
    order: Python int.

  Returns:
    `bool`: True also where there are none.
  """
  op = step.op
  if op is None:
    return True
  inputs = tuple(map(_Kind.of, step.inputs))
  key = op.type, attributes_of(op), inputs, order
  found = _VARIES.get(key)
  if found is None:
    try:
      found = _reads_values(op, inputs, order)
    except Exception:  # It raises again where it is differentiated.
      found = True
    if len(_VARIES) >= _MOST_VARIES:
      _VARIES.clear()
    _VARIES[key] = found
  return found


_VARIES: dict = {}
_MOST_VARIES = 10_000
# Gradients may look at constants with so few elements while they are built.
_FEW = 64


class _Kind(NamedTuple):
  """What the graph of a derivative may depend on, of an input of an op."""

  depends: bool
  dtype: Any
  shape: tuple
  content: bytes | None

  @classmethod
  def of(cls, value: Value) -> '_Kind':
    """That of a `Value`."""
    content = None
    if not value.depends and math.prod(_shape(value)) <= _FEW:
      array = _known(value, True)
      content = None if array is None else array.tobytes()
    return cls(value.depends, value.dtype, _shape(value), content)

  def tensor(self) -> tf.Tensor:
    """Such a Tensor in the graph that is being built."""
    if self.content is None:
      return tf.compat.v1.placeholder(self.dtype, self.shape)
    dtype = self.dtype.as_numpy_dtype
    is_float = self.dtype.is_floating
    array = np.frombuffer(self.content, np.float64 if is_float else dtype)
    return tf.constant(array.reshape(self.shape), self.dtype)


def _reads_values(op: tf.Operation, inputs: Sequence, order: int) -> bool:
  """`_derivative_varies`, by building the derivative in a graph of its own."""
  with tf.Graph().as_default(), own_gradients:
    tensors = [kind.tensor() for kind in inputs]
    xs = [x for x, kind in zip(tensors, inputs) if kind.depends]
    ys = repeat_op(op, tensors)
    for _ in range(order):
      ys = [y for y in ys if y is not None and y.dtype.is_floating]
      seeds = [tf.compat.v1.placeholder(y.dtype, y.shape) for y in ys]
      ys = tf.gradients(ys, xs, grad_ys=seeds) if ys else []
    ys = [tf.convert_to_tensor(y) for y in ys if y is not None]
    return _reads(ys, xs)


def _reads(ys: Sequence, xs: Sequence) -> bool:
  """Whether Tensors depend on more than the shapes of others."""
  sources, seen = {x.ref() for x in xs}, set()
  waiting = list(ys)
  while waiting:
    tensor = waiting.pop()
    if tensor.ref() in seen:
      continue
    seen.add(tensor.ref())
    if tensor.ref() in sources:
      return True
    op, known = tensor.op, facts(tensor.op.type)
    if function_names(op):
      return True
    measured = known.measured(len(op.inputs))
    waiting += [x for k, x in enumerate(op.inputs) if k not in measured]
  return False


def _agree(test: Callable, f: '_Samples') -> bool:
  """Whether the two sides of all equations are the same, up to rounding."""
  suspects = True
  for draw in range(_DRAWS):
    rng = np.random.default_rng(draw)
    x, same = f.random(rng, f.num_samples), f.random(rng, 1)
    found = False
    for gap in test(f, x, same):
      # This is also False for NaN.
      if not np.all(gap <= _GROSS):
        return False
      found = found | (gap > _ROUNDING)
    suspects = suspects & found
    if not np.any(suspects):
      return True
  return False


def _is_affine(f: '_Samples', x: list, same: list) -> Iterator:
  """Equations that say that `f(x)[b] = A x[b] + c[b]`.

  Args:
    f: `_Samples`.
    x: Random samples, one array per input.
    same: A single random sample, which is used for all.

  Yields:
    The relative error of each element in one of the equations.
  """
  zero, of_x, of_same = f([0 * v for v in x]), f(x), f(same)
  # One matrix for all samples, additive ...
  yield _gap([of_same, -zero], [of_same[:1], -zero[:1]])
  yield _gap([f([a - b for a, b in zip(x, same)]), of_same], [of_x, zero])
  for mask in f.masks():
    # ... homogeneous, and without mixing samples.
    masked = f([np.where(mask, -f.factor * v, 0) for v in x])
    yield _gap(
      [masked, np.where(mask, f.factor * of_x, 0)],
      [np.where(mask, (1 + f.factor) * zero, zero)],
    )


def _is_quadratic(f: '_Samples', x: list, same: list) -> Iterator:
  """Equations that say that `f(x)[b]` is `x[b]^T A x[b]`, up to affine terms.

  Args and what is yielded are those of `_is_affine`.
  """
  zero = f([0 * v for v in x])

  def both(arrays):
    return f(arrays), f([-v for v in arrays])

  of_x, of_same = both(x), both(same)
  terms = [*of_same, -2 * zero]
  yield _gap(terms, [term[:1] for term in terms])
  # The parallelogram law, and multiples.
  sides = [f([a + b * sign for a, b in zip(x, same)]) for sign in (1, -1)]
  yield _gap([*sides, 2 * zero], [2 * of_x[0], *of_same])
  some = 2.0**10
  yield _gap(
    [2 * f([some * v for v in x]), 2 * (some**2 - 1) * zero],
    [(some**2 + some) * of_x[0], (some**2 - some) * of_x[1]],
  )
  for mask in f.masks():
    yield _gap(
      [*both([np.where(mask, v, 0) for v in x])],
      [np.where(mask, y, zero) for y in of_x],
    )


def _gap(left: list, right: list) -> np.ndarray:
  """By how much two sums differ, relative to their terms."""
  difference = np.abs(sum(left) - sum(right))
  size = sum(np.abs(term) for term in [*left, *right])
  return difference / np.where(size == 0, 1, size)


class _Samples:
  """An op as a function of samples: arrays [sample, element] of doubles.

  Attributes:
    num_samples: `int`.
    factor: `float`: a power of two, large enough to exceed the bounds of a
      clip, for example.
  """

  def __init__(
    self, run: Callable, step: Step, num_samples: int, orders: Mapping
  ) -> None:
    self._run = run
    self._orders = orders
    self._inputs = [v for v in step.inputs if v.depends]
    self._outputs = [(k, v) for k, v in enumerate(step.outputs) if v.depends]
    self.num_samples = num_samples
    values = (*step.inputs, *step.outputs)
    # A cast to a short dtype must be exact.
    is_short = any(v.dtype.is_floating and v.dtype.size < 4 for v in values)
    self._bits, self.factor = (4, 2.0**7) if is_short else (20, 2.0**63)

  def __call__(self, samples: list) -> np.ndarray:
    feeds = []
    for array, value in zip(samples, self._inputs):
      array = np.broadcast_to(array, (self.num_samples, array.shape[1]))
      order = self._orders.get(value)
      if order is None:
        feeds.append(array.reshape(value.shape))
      else:
        array = array.reshape([value.known_shape[k] for k in order])
        feeds.append(array.transpose(np.argsort(order)))
    results = self._run(feeds)
    flat = []
    for k, value in self._outputs:
      result = array_of(results[k])
      if result.shape != value.shape or value.dtype.is_complex:
        # The shape may depend on an unknown value.
        raise CannotSay('a result of another shape, or of complex numbers')
      if value in self._orders:
        result = result.transpose(self._orders[value])
      width, rest = divmod(result.size, self.num_samples)
      if rest:
        raise CannotSay('a result that cannot be split into samples')
      flat.append(result.astype(np.float64).reshape(self.num_samples, width))
    return np.concatenate(flat, axis=1)

  def random(self, rng: np.random.Generator, num_samples: int) -> list:
    """Random odd multiples of a power of two, whose sums are exact."""
    half = 2 ** (self._bits - 1)
    return [
      (2.0 * rng.integers(-half, half, (num_samples, self._width(v))) + 1)
      / 2 ** (self._bits - 3)
      for v in self._inputs
    ]

  def masks(self) -> Iterator:
    """Yields sets of samples; any two samples are told apart by one of them."""
    sample = np.arange(self.num_samples)[:, np.newaxis]
    yield sample % 2 == 0
    for bit in range(1, (self.num_samples - 1).bit_length()):
      yield sample >> bit & 1 == 0

  def _width(self, value: Value) -> int:
    return math.prod(_shape(value)) // self.num_samples


def _runs(step: Step) -> Iterator[Callable]:
  """Yields the op as a function of the inputs that depend on xs."""
  op = step.op
  if op is None:
    raise CannotSay('a step that is no op')
  if len(step.inputs) != len(op.inputs) or any(
    v.dtype != t.dtype or v.dtype.is_complex or v.shape is None
    for v, t in zip(step.inputs, op.inputs)
  ):
    raise CannotSay('inputs that are not those of the op')
  shapes = facts(step.op_type).shape_inputs
  is_elementwise = facts(step.op_type).elementwise is not None
  known = [
    None
    if v.depends
    else _known(
      v, k in shapes or (is_elementwise and v.is_uniform) or _counts(v)
    )
    for k, v in enumerate(step.inputs)
  ]
  unknown = [
    k for k, v in enumerate(step.inputs) if not v.depends and known[k] is None
  ]

  bound = bound_op(op)

  def with_constants(constants):
    def run(feeds):
      feeds = iter(feeds)
      return run_op(
        op,
        [
          next(feeds) if v.depends else constant
          for v, constant in zip(step.inputs, constants)
        ],
        bound,
      )

    return run

  for filling in range(_FILLINGS if unknown else 1):
    constants = list(known)
    for k in unknown:
      constants[k] = _filled(step.inputs[k], filling)
    yield with_constants(constants)


def _counts(value: Value) -> bool:
  """Whether integers grow with the number of the sample, and in no other way.

  What an op does with them is the same for any number of samples.
  """
  ramp = value.ramp()
  return ramp is not None and ramp.is_exact


def _known(value: Value, even_varying: bool) -> np.ndarray | None:
  """The value of a constant, as doubles if it is floating; or None.

  None means that the value is not known, or that it is a floating constant that
  may be another one in the next call: the function closes over it, or it varies
  with the number of samples.
  """
  may_change = value.is_captured or (
    value.varies is not None and not even_varying
  )
  if not value.is_known or (value.dtype.is_floating and may_change):
    return None
  array = array_of(value.tensor(even_varying))
  if not value.dtype.is_floating:
    return array
  array = array.astype(np.float64)
  # Infinity plus x does not change with x, but its derivative is not zero.
  return np.where(np.isinf(array), np.sign(array) * _LARGE, array)


_LARGE = 12345.0


def _shape(value: Value) -> tuple:
  if value.shape is None:
    raise CannotSay('a shape that is not known')
  return value.shape


def _filled(value: Value, filling: int) -> np.ndarray:
  """A random value for an unknown input, which differs between samples."""
  rng = np.random.default_rng(filling)
  shape = _shape(value)
  size = math.prod(shape)
  # The Thue-Morse sequence does not begin with the same block twice.
  bits = np.zeros([1], np.int8)
  while bits.size < size:
    bits = np.concatenate([bits, 1 - bits])
  bits = bits[:size].reshape(shape)
  if filling == 1:
    bits = 1 - bits
  elif filling > 1:
    bits = rng.integers(0, 2, shape, np.int8)
  if value.dtype.is_bool or value.dtype.is_integer:
    return np.asarray(bits, value.dtype.as_numpy_dtype)
  if not value.dtype.is_floating:
    raise CannotSay('an unknown value of this dtype')
  numbers = np.asarray((1 - 2 * bits) * rng.uniform(1, 2, shape))
  if numbers.ndim > 1 and numbers.shape[-1] == numbers.shape[-2]:
    # A matrix may have to be inverted.
    numbers += 2 * numbers.shape[-1] * np.eye(numbers.shape[-1])
  return numbers
