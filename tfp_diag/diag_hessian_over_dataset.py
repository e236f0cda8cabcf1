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
"""The diagonal of the Hessian of a loss over a whole data set."""

from collections.abc import Callable, Iterable, Sized
from typing import Any, Literal, NamedTuple

import tensorflow as tf
import tqdm

from tfp_diag.diagonal.evaluate import run_diagonal
from tfp_diag.diagonal.probes import Seed
from tfp_diag.diagonal.request import Request
from tfp_diag.internal import arguments, batching, nest
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.internal.seeds import some_seed
from tfp_diag.stochastic_diagonal import estimate_diagonal

__all__ = ['DatasetDiagonal', 'diag_hessian_over_dataset']


Method = Literal['exact', 'stochastic']
Reduction = Literal['mean', 'sum']


# Of an estimate, unless another number is given.
_NUM_PROBES = 10


class DatasetDiagonal(NamedTuple):
  """The diagonal of a Hessian, accumulated over batches.

  Attributes:
    diag: Structure of the variables, of their shapes and dtypes.
    standard_error: Structure of the variables; zeros under `method='exact'`. It
      is the error from the probes, not from the choice of the data.
    num_passes: Python int, how many passes all batches took together.
    num_examples: Python int, how many examples all batches had together.

  #### Examples

  ```python
  w = tf.Variable([1.0, 2.0])
  batches = [tf.constant([[1.0, 0.0]]), tf.constant([[1.0, 3.0]])]
  found = tfp_diag.diag_hessian_over_dataset(
    lambda x: tf.reduce_mean(tf.linalg.matvec(x, w) ** 2),
    w,
    batches,
    progress_bar=False,
  )
  found.diag  # 2 mean(x^2)  ==> [2., 9.]
  found.num_examples  # ==> 2
  ```
  """

  diag: Any
  standard_error: Any
  num_passes: int
  num_examples: int


def diag_hessian_over_dataset(
  loss_fn: Callable,
  variables: Any,
  dataset: Iterable,
  *,
  reduction: Reduction = 'mean',
  progress_bar: bool | None = None,
  method: Method = 'exact',
  num_probes: int | None = None,
  seed: Seed = None,
  chunk_size: int = 10,
) -> DatasetDiagonal:
  """Computes the diagonal of the Hessian of a loss over a data set.

  Batches are weighted by their sizes, so the result does not depend on how the
  data are batched, even if the last batch is smaller. This is right for losses
  in which examples do not influence each other. It is not right for batch
  normalization during training.

  Args:
    loss_fn: Python callable, called with the components of a batch:
      `loss_fn(x)`, `loss_fn(x, y)` for a tuple, `loss_fn(x=..., y=...)` for a
      dict. Returns the scalar loss of the batch, computed from `variables`.
    variables: `tf.Variable`, or a structure of them, with respect to which
      `loss_fn` is differentiated, like `model.trainable_variables`.
    dataset: `tf.data.Dataset` of batches, or another iterable of them: Tensors
      or structures of Tensors, the first dimension counts examples.
    reduction: What `loss_fn` does with the examples of a batch, and so what the
      result is: 'mean' or 'sum'.
    progress_bar: Python bool, whether to show one on the standard error stream.
      Default: on a terminal only.
    method: 'exact', at most as many passes for each batch as there are weights,
      and often few, see `tfp_diag.diag_hessian`; or 'stochastic', as many as
      `num_probes`, new probes for each batch.
    num_probes: Python int, under 'stochastic' only. Default: 10.
    seed: An integer, or two of them, or None for another one each time; under
      'stochastic' only.
    chunk_size: Python int, how many passes are vectorized together. Memory
      grows with it. What `parallel_iterations` is for `tfp_diag.diag_hessian`.

  Returns:
    `DatasetDiagonal`, a namedtuple
    `(diag, standard_error, num_passes, num_examples)`. A variable that the loss
    does not depend on has zeros; a `UserWarning` names it.

  Raises:
    ValueError: if there are no data, `loss_fn` does not return a scalar, or an
      argument does not fit.
    TypeError: if `variables` are not all Variables.

  #### Examples

  ```python
  w = tf.Variable([1.0, 2.0])
  x = tf.constant([[1.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
  data = tf.data.Dataset.from_tensor_slices(x).batch(2)  # Two, and then one.
  result = diag_hessian_over_dataset(
    lambda x: tf.reduce_mean(tf.linalg.matvec(x, w) ** 2),
    w,
    data,
    progress_bar=False,
  )
  result.diag  # 2 mean(x^2)
  # ==> [3.3333333, 5.3333333]
  result.num_examples
  # ==> 3
  ```
  """
  arguments.check_callable('loss_fn', loss_fn)
  arguments.check_choice('reduction', reduction, ('mean', 'sum'))
  arguments.check_choice('method', method, ('exact', 'stochastic'))
  chunk_size = arguments.check_chunk('chunk_size', chunk_size)
  if num_probes is not None:
    arguments.as_count('num_probes', num_probes, 1, 'how many probes are used')
  if method == 'stochastic':
    seed = some_seed(seed)
  else:
    for option, value in (('num_probes', num_probes), ('seed', seed)):
      if value is not None:
        raise ValueError(
          f"`{option}` is {arguments.shown(value)}, but `method='exact'` has "
          "no probes. Leave it out, or pass `method='stochastic'`."
        )
  arguments.check_flag(
    'progress_bar', progress_bar, 'to show it on a terminal only'
  )
  parts = batching.convert_parts(nest.flatten(variables), 'variables')
  if (
    not isinstance(dataset, Iterable)
    or tf.is_tensor(dataset)
    or isinstance(dataset, (str, tf.RaggedTensor))
    # The rows of an array are no batches.
    or hasattr(dataset, '__array__')
  ):
    raise TypeError(
      f'`dataset` is {arguments.shown(dataset)}; it is a `tf.data.Dataset` of '
      'batches, or another iterable of them, such as a list.'
    )
  if isinstance(dataset, tf.data.Dataset) and not tf.executing_eagerly():
    raise ValueError(
      '`dataset` is a `tf.data.Dataset`, but a graph is being built, in which '
      'its batches cannot be counted. Call `diag_hessian_over_dataset` outside '
      'of `tf.function`; it compiles what it computes.'
    )
  if not all(isinstance(p, tf.Variable) for p in parts):
    raise TypeError(
      '`variables` has a part that is not a `tf.Variable`. For Tensors use '
      '`tfp_diag.diag_hessian`, which takes a function of them.'
    )
  # In half precision a sum stands still where it is large.
  totals = [tf.zeros_like(p, tf.float64) for p in parts]
  squares = [tf.zeros_like(p, tf.float64) for p in parts]
  num_passes = num_examples = 0
  batches = tqdm.tqdm(
    dataset,
    total=_length(dataset),
    desc='diagonal of the Hessian',
    unit='batch',
    # None: off where there is no terminal.
    disable=None if progress_bar is None else not progress_bar,
  )
  for number, components in enumerate(batches):
    # As Tensors they are inputs of one graph; arrays would be constants of it.
    batch = tf.nest.map_structure(
      lambda x: arguments.as_tensor('A batch of `dataset`', x), components
    )
    size = _num_examples(batch)
    weight = size if reduction == 'mean' else 1
    diag, error, passes = _of_batch(
      loss_fn,
      parts,
      batch,
      _NUM_PROBES if num_probes is None else num_probes,
      _seed_of(seed, number),
      chunk_size,
    )
    diag, error = ([tf.cast(v, tf.float64) for v in vs] for vs in (diag, error))
    totals = [t + weight * d for t, d in zip(totals, diag)]
    squares = [s + (weight * e) ** 2 for s, e in zip(squares, error)]
    num_passes += int(passes)
    num_examples += size
  if not num_examples:
    raise ValueError(
      '`dataset` has no examples. An iterator that was used before is spent; '
      'pass the data set itself.'
    )
  scale = 1 / num_examples if reduction == 'mean' else 1
  diag = [tf.cast(scale * t, p.dtype) for t, p in zip(totals, parts)]
  error = [tf.cast(scale * tf.sqrt(s), p.dtype) for s, p in zip(squares, parts)]
  return DatasetDiagonal(
    nest.pack_as(variables, diag),
    nest.pack_as(variables, error),
    num_passes,
    num_examples,
  )


def _length(dataset: Iterable) -> int | None:
  """The number of batches, or None where it is not known."""
  if isinstance(dataset, tf.data.Dataset):
    length = int(dataset.cardinality())
    return length if length >= 0 else None
  return len(dataset) if isinstance(dataset, Sized) else None


def _num_examples(batch: Any) -> int:
  # A scalar stands for no example.
  shapes: list[Any] = [t.shape for t in tf.nest.flatten(batch) if t.shape.rank]
  sizes = [int(shape[0]) for shape in shapes]
  if not sizes:
    raise ValueError(
      f'A batch of `dataset` is {batch!r}, which has no first dimension that '
      'counts examples. Batch the data: `dataset.batch(32)`.'
    )
  if len(set(sizes)) > 1:
    raise ValueError(
      f'The first dimensions of the components of a batch of `dataset` are '
      f'{sizes}; they count examples, and must be the same. What is not one of '
      'the data belongs into `loss_fn`.'
    )
  return sizes[0]


def _seed_of(seed: Seed, number: int) -> Any:
  """Another seed for each batch; None if no seed was given."""
  if seed is None:
    return None
  return tf.random.experimental.stateless_fold_in(seed, number)


def _of_batch(
  loss_fn: Callable,
  parts: list,
  batch: Any,
  num_probes: int,
  seed: Any,
  chunk_size: int,
) -> tuple[list, list, Any]:
  """The diagonal for one batch, its standard error, the number of passes.

  Args:
    loss_fn: Python callable of the components of a batch.
    parts: List of `tf.Variable`s.
    batch: Structure of Tensors.
    num_probes: Python int, how many probes an estimate takes.
    seed: int Tensor of shape [2] for an estimate; None for the exact diagonal.
    chunk_size: Python int, how many passes are vectorized together.

  Returns:
    Two lists of Tensors shaped as `parts`, and a Python int or scalar Tensor.
    The standard error of the exact diagonal is zero.
  """
  nest.check_takes('loss_fn', loss_fn, batch, 'the components of a batch')

  def loss():
    value = batching.checked_value(
      nest.call_traceable(loss_fn, batch, 'loss_fn'), 'loss_fn'
    )
    if value.shape.rank != 0 or not value.dtype.is_floating:
      raise ValueError(
        f'`loss_fn` returned {value}; a scalar is needed, in a floating dtype: '
        'the mean or the sum over the examples of the batch.'
      )
    return value

  problem = _LossProblem(loss, parts, ())
  if seed is None:
    found = run_diagonal(problem, Request(chunk_size=chunk_size))
    zeros = [tf.zeros_like(d) for d in found.diag]
    return found.diag, zeros, found.num_passes
  return estimate_diagonal(
    problem, num_probes, seed, None, 'hutchinson', None, chunk_size
  )


class _LossProblem(HessianProblem):
  """A loss of one batch, called by the name that its argument has here."""

  fn_name = 'loss_fn'
