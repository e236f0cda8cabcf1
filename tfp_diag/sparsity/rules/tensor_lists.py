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
"""TensorLists: what `tf.scan`, `tf.map_fn` and other loops read and fill."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.registry import (
  CannotSay,
  Squares,
  register_expansion,
)
from tfp_diag.sparsity.rules.control_flow import join
from tfp_diag.sparsity.structure import Arrow, Structure
from tfp_diag.sparsity.value import ListSummary, TensorList, Value


@register_expansion('EmptyTensorList')
def _empty(walker, scope, instruction, inputs):
  """A list without items."""
  return [TensorList(())]


@register_expansion('TensorListReserve', shape_inputs=(0, 1))
def _reserve(walker, scope, instruction, inputs):
  """A list of items that are zero until they are set."""
  return [TensorList((None,) * int(inputs[1].value()))]


@register_expansion('TensorListFromTensor', shape_inputs=(1,))
def _from_tensor(walker, scope, instruction, inputs):
  """A list of the slices along the first axis."""
  tensor = inputs[0]
  if tensor.shape is None:
    raise CannotSay('a tensor whose shape is not known')
  return [TensorList((tensor, i) for i in range(tensor.shape[0]))]


@register_expansion('TensorListLength')
def _length(walker, scope, instruction, inputs):
  """The number of items."""
  length = len(inputs[0].items) if type(inputs[0]) is TensorList else None
  if isinstance(inputs[0], ListSummary):
    length = inputs[0].length
  if length is None:
    return [Value(instruction.shapes[0], instruction.dtypes[0])]
  return [Value.constant(np.int32(length))]


@register_expansion('TensorListElementShape')
def _element_shape(walker, scope, instruction, inputs):
  """The shape of an item, where some item has one."""
  for item in _list(inputs[0]).items:
    shape = _item_shape(item)
    if shape is not None:
      dtype = instruction.dtypes[0].as_numpy_dtype
      return [Value.constant(np.array(shape, dtype))]
  return [Value(instruction.shapes[0], instruction.dtypes[0])]


@register_expansion('TensorListGetItem', shape_inputs=(2,))
def _get_item(walker, scope, instruction, inputs):
  """One item; any of them where the index is not known."""
  if isinstance(inputs[0], ListSummary):
    return [_summary_item(instruction, inputs[0])]
  items = _items(inputs[0])
  try:
    index = int(inputs[1].value())
  except CannotSay:
    return [_any_item(walker, instruction, items)]
  return [_item(walker, instruction, items[index], inputs[2])]


@register_expansion('TensorListSetItem')
def _set_item(walker, scope, instruction, inputs):
  """The list with one item replaced."""
  if isinstance(inputs[0], ListSummary):
    return [_widened(walker, instruction, inputs[0], inputs[2], 0)]
  items = list(_items(inputs[0]))
  try:
    index = int(inputs[1].value())
  except CannotSay:
    summary = summarize(walker, instruction, inputs[0])
    return [_widened(walker, instruction, summary, inputs[2], 0)]
  # The list grows if the op is told to resize it.
  items += [None] * (index + 1 - len(items))
  items[index] = inputs[2]
  return [TensorList(items)]


@register_expansion('TensorListPushBack')
def _push_back(walker, scope, instruction, inputs):
  """The list with one more item."""
  if isinstance(inputs[0], ListSummary):
    return [_widened(walker, instruction, inputs[0], inputs[1], 1)]
  return [TensorList((*_items(inputs[0]), inputs[1]))]


@register_expansion('TensorListPopBack')
def _pop_back(walker, scope, instruction, inputs):
  """The list without its last item, and that item."""
  if isinstance(inputs[0], ListSummary):
    length = inputs[0].length
    shorter = ListSummary(
      None if length is None else length - 1, inputs[0].item
    )
    return [shorter, _summary_item(instruction, inputs[0], output=1)]
  *rest, last = _items(inputs[0])
  return [
    TensorList(rest),
    _item(walker, instruction, last, inputs[1], output=1),
  ]


@register_expansion('TensorListStack', shape_inputs=(1,))
def _stack(walker, scope, instruction, inputs):
  """All items along a new first axis."""
  if isinstance(inputs[0], ListSummary):
    return [_repeated(walker, instruction, inputs[0])]
  return [_joined(walker, instruction, inputs[0], stacked=True)]


def _lost_where_repeated(part, indices):
  """A function of an op: what loses derivatives if an item is there twice."""

  def lost_inputs(op):
    numbers = tf.get_static_value(op.inputs[indices])
    if numbers is None or len(np.unique(numbers)) == numbers.size:
      return ()
    return (part,)

  return lost_inputs


@register_expansion(
  'TensorListGather',
  shape_inputs=(2,),
  lost_inputs=_lost_where_repeated(0, 1),
)
def _gather(walker, scope, instruction, inputs):
  """Some items along a new first axis."""
  items = _items(inputs[0])
  chosen = TensorList(items[k] for k in _different(inputs[1]))
  return [_joined(walker, instruction, chosen, stacked=True)]


@register_expansion(
  'TensorListScatterIntoExistingList',
  lost_inputs=_lost_where_repeated(1, 2),
)
def _scatter(walker, scope, instruction, inputs):
  """The list with the slices of a tensor in place of some items."""
  items, indices = list(_items(inputs[0])), _different(inputs[2])
  items += [None] * (max(indices, default=-1) + 1 - len(items))
  for row, k in enumerate(indices):
    items[k] = (inputs[1], row)
  return [TensorList(items)]


def _different(indices):
  """The numbers of items, each of which is there only once.

  TensorFlow loses derivatives of an item that one op reads or writes twice.
  """
  numbers = np.ravel(indices.value()).tolist()
  if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
    raise CannotSay('one item more than once')
  return numbers


@register_expansion('TensorListConcatV2')
def _concat(walker, scope, instruction, inputs):
  """All items, concatenated along their first axis, and their lengths."""
  joined = _joined(walker, instruction, inputs[0], stacked=False)
  lengths = Value(instruction.shapes[1], instruction.dtypes[1])
  return [joined, lengths]


@register_expansion('TensorListResize')
def _resize(walker, scope, instruction, inputs):
  """The list, cut off or filled up with zeros."""
  items, size = _items(inputs[0]), int(inputs[1].value())
  return [TensorList((*items, *(None,) * size)[:size])]


@register_expansion('AddN', squares=Squares.SAME, adds_up=True)
def _add(walker, scope, instruction, inputs):
  """The sum of tensors, or of lists, item by item.

  The gradient of a loop adds lists of gradients.
  """
  if not any(isinstance(value, TensorList) for value in inputs):
    return [_sum(walker, instruction, inputs)]
  if any(isinstance(value, ListSummary) for value in inputs):
    summaries = [summarize(walker, instruction, _list(v)) for v in inputs]
    items = [s.item for s in summaries if s.item is not None]
    item = _sum(walker, instruction, items) if items else None
    return [ListSummary(summaries[0].length, item)]
  if len({len(_items(value)) for value in inputs}) != 1:
    raise CannotSay('lists of different lengths')
  sums = []
  for items in zip(*map(_items, inputs)):
    # Items that have not been set are zero.
    items = [
      _item(walker, instruction, i, None) for i in items if i is not None
    ]
    sums.append(_sum(walker, instruction, items) if items else None)
  return [TensorList(sums)]


def _sum(walker, instruction, values):
  if len(values) == 1:
    return values[0]
  if any(isinstance(value, TensorList) for value in values):
    raise CannotSay('a list of lists')
  # The op adds values of one shape: one may be known where another one is not.
  shapes = {value.shape for value in values} - {None}
  if len(shapes) != 1:
    raise CannotSay('a sum of values of different shapes')
  (shape,) = shapes
  dtype = values[0].dtype
  if not any(value.depends for value in values):
    return Value.computed(
      shape, dtype, lambda *tensors: sum(map(np.asarray, tensors)), values
    )
  total = Value(shape, dtype, depends=True)
  if not (dtype.is_floating or dtype.is_complex):
    raise CannotSay('a sum of something else than numbers')
  each = Flow.identity(total.rows)
  structure = Structure.linear(
    {k: each for k, value in enumerate(values) if value.depends}
  )
  walker.add_step(instruction, values, [total], structure, op=instruction.op)
  return total


def _list(value):
  if not isinstance(value, TensorList):
    raise CannotSay('a list whose content is not known')
  return value


def summarize(walker, instruction, tensor_list):
  """The `ListSummary` of a list."""
  if isinstance(tensor_list, ListSummary):
    return tensor_list
  items = tensor_list.items
  item = None
  if any(item is not None for item in items):
    item = _any_item(walker, instruction, items)
  return ListSummary(len(items), item)


def _summary_item(instruction, summary, output=0):
  if summary.item is not None:
    return summary.item
  return Value(instruction.shapes[output], instruction.dtypes[output])


def _widened(walker, instruction, summary, item, growth):
  """The list after one more item was set, or added."""
  if isinstance(item, TensorList):
    raise CannotSay('a list of lists')
  if summary.item is not None:
    item = join(walker, instruction, (summary.item, item))
  length = summary.length
  return ListSummary(None if length is None else length + growth, item)


def _repeated(walker, instruction, summary):
  """The list, stacked along a new axis: each entry can be any of the items."""
  item, shape = summary.item, instruction.shapes[0]
  if item is None or item.shape is None:
    raise CannotSay('items whose shape is not known')
  if shape is None:
    if summary.length is None:
      raise CannotSay('a list whose length is not known')
    shape = (summary.length, *item.shape)
  stacked = Value(shape, item.dtype, item.depends)
  if item.depends:
    index = np.tile(np.arange(item.rows), shape[0])
    structure = Structure.linear({0: Flow.gather(index, item.rows)})
    walker.add_step(instruction, [item], [stacked], structure)
  return stacked


def _items(value):
  if type(value) is not TensorList:
    raise CannotSay('a list whose content is not known')
  return value.items


def _item_shape(item) -> Any:
  if isinstance(item, tuple):
    return item[0].shape[1:]
  return None if item is None else item.shape


def _item(walker, instruction, item, element_shape, output=0):
  """An item as a value: slices are cut only when they are read."""
  if isinstance(item, (TensorList, Value)):
    return item
  if item is None:
    dtype = instruction.dtypes[output]
    shape = tuple(int(d) for d in np.atleast_1d(element_shape.value()))
    if any(d < 0 for d in shape):
      return Value(instruction.shapes[output], dtype)
    return Value(
      shape, dtype, compute=lambda: np.zeros(shape, dtype.as_numpy_dtype)
    )
  tensor, i = item
  shape, dtype = tensor.shape[1:], tensor.dtype
  if not tensor.depends:
    # To slice an eager Tensor would add an op to the graph that is being built.
    return Value.computed(shape, dtype, lambda t: np.asarray(t)[i], [tensor])
  value = Value(shape, dtype, depends=True)
  index = np.arange(i * value.rows, (i + 1) * value.rows)
  structure = Structure.linear({0: Flow.gather(index, tensor.rows)})
  walker.add_step(instruction, [tensor], [value], structure)
  return value


def _any_item(walker, instruction, items):
  """A value that can be any of the items."""
  values = list(
    dict.fromkeys(_whole(item) for item in items if item is not None)
  )
  if any(value.shape is None for value in values):
    raise CannotSay('items whose shape is not known')
  shapes = {_item_shape(item) for item in items if item is not None}
  if len(shapes) != 1:
    raise CannotSay('items of different shapes')
  (shape,) = shapes
  depends = any(value.depends for value in values)
  value = Value(shape, values[0].dtype, depends=depends)
  if depends:
    flows = {
      k: Flow.collect(np.arange(v.rows) % max(value.rows, 1), value.rows)
      for k, v in enumerate(values)
      if v.depends
    }
    walker.add_step(instruction, values, [value], Structure.linear(flows))
  return value


def _whole(item):
  """What holds an item: itself, or the tensor that it is a slice of."""
  return item[0] if isinstance(item, tuple) else item


def _joined(walker, instruction, tensor_list, stacked):
  """All items, stacked along a new axis or concatenated."""
  items = _items(tensor_list)
  dtype = instruction.dtypes[0]
  shape = next((s for s in map(_item_shape, items) if s is not None), None)
  if any(isinstance(item, TensorList) for item in items) or (
    shape is None and any(item is not None for item in items)
  ):
    raise CannotSay('a list of lists, or items whose shape is not known')
  if any(item is not None and _item_shape(item) != shape for item in items):
    if stacked or not all(isinstance(item, Value) for item in items):
      raise CannotSay('items of different shapes')
  if shape is None:
    return Value(instruction.shapes[0], dtype)
  starts, index, total = {}, [], 0
  for item in items:
    if item is None:
      index.append(np.full(int(np.prod(shape)), -1))
      continue
    value = _whole(item)
    if value not in starts:
      starts[value] = total
      total += value.rows
    size = int(np.prod(_item_shape(item)))
    begin = starts[value] + (item[1] * size if isinstance(item, tuple) else 0)
    index.append(np.arange(begin, begin + size))
  sources = list(starts)
  if stacked:
    shape = (len(items), *shape)
  else:
    first = sum(1 if i is None else _item_shape(i)[0] for i in items)
    shape = (first, *shape[1:])
  if not any(value.depends for value in sources):
    return _constant(items, shape, dtype, stacked)
  value = Value(shape, dtype, depends=True)
  flow = Flow.gather(np.concatenate(index), total)
  arrow = Arrow(0, tuple(range(len(sources))), flow)
  walker.add_step(instruction, sources, [value], Structure((arrow,)))
  return value


def _constant(items, shape, dtype, stacked):
  """The joined items, none of which depends on xs."""
  wholes = [_whole(item) for item in items if item is not None]
  if not stacked:
    return Value(shape, dtype)

  def compute(*tensors):
    parts, rest = [], list(tensors)
    for item in items:
      if item is None:
        parts.append(np.zeros(shape[1:], dtype.as_numpy_dtype))
        continue
      tensor = np.asarray(rest.pop(0))
      parts.append(tensor[item[1]] if isinstance(item, tuple) else tensor)
    return np.stack(parts)

  return Value.computed(shape, dtype, compute, wholes)
