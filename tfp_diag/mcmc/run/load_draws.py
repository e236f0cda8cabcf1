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
"""Reads the draws of a run, also while it goes on."""

import json
import math
import os
import typing

import numpy as np

from tfp_diag.internal import arguments
from tfp_diag.mcmc.run.checkpoint import INDEX_NAME


class LoadedDraws(typing.NamedTuple):
  """What `load_draws` finds in the checkpoint of a run.

  Attributes:
    draws: Dict from names to read-only `np.memmap`s [draws, chains...,
      event...]. The names are those of `to_arviz`: keys and fields of the
      state, or x, or x0, x1, ... Those of `sample_posterior` are unconstrained
      and called so: 'unconstrained.rate' is the logarithm of a rate, say. So
      are those of `windowed_adaptive_mala`, which are called x0, x1, ...
    trace: Dict of such, as `trace_fn` called them.

  #### Examples

  ```python
  import tensorflow as tf
  import tfp_diag

  kernel = tfp_diag.mcmc.PreconditionedMALA(lambda mu: -0.5 * mu**2, 0.9)
  tfp_diag.mcmc.sample(kernel, tf.zeros([4]), 100, checkpoint='a_run', seed=1)
  found = tfp_diag.mcmc.load_draws('a_run')
  found.draws['x'].shape  # ==> (100, 4)
  ```
  """

  draws: dict[str, np.ndarray]
  trace: dict[str, np.ndarray]


def load_draws(checkpoint: str | os.PathLike) -> LoadedDraws:
  """The draws that are in the checkpoint of a run, by their names.

  Use it to look at a run that is still going on in another process, or at one
  that has ended, without its kernel. It returns the draws that are complete at
  the time of the call, and waits for nothing.

  The directory is read as any program can: `index.json`, which is replaced as a
  whole after each block, has the entries 'num_draws', and 'draws' and 'trace',
  which map names to `.npy` files. These files may already have more draws. The
  entry 'unconstrained' says which vectors of the draws are unconstrained parts
  joined along the last axis: their names and event shapes, in their order.

  Args:
    checkpoint: Path of the directory that `sample` was given.

  Returns:
    `LoadedDraws`.

  Raises:
    FileNotFoundError: if no run has begun there.

  #### Examples

  ```python
  import tensorflow as tf
  import tfp_diag

  kernel = tfp_diag.mcmc.PreconditionedMALA(lambda mu: -0.5 * mu**2, 0.9)
  seen = []


  def look(*_):
    draws, trace = tfp_diag.mcmc.load_draws('my_run')
    tfp_diag.mcmc.to_arviz(draws, trace)
    seen.append(len(draws['x']))
    return False


  tfp_diag.mcmc.sample(
    kernel,
    tf.zeros([4]),
    100,
    block_size=50,
    checkpoint='my_run',
    stop_when=look,
  )
  seen  # ==> [50]
  len(tfp_diag.mcmc.load_draws('my_run')[0]['x'])  # ==> 100
  ```
  """
  arguments.check_path('checkpoint', checkpoint)
  path = os.fspath(checkpoint)
  try:
    with open(os.path.join(path, INDEX_NAME), encoding='utf-8') as file:
      index = json.load(file)
  except (FileNotFoundError, NotADirectoryError) as e:
    raise FileNotFoundError(
      f'`checkpoint` is {path!r}, where no run is (no {INDEX_NAME}). Pass '
      'the `checkpoint` of a call of `sample`.'
    ) from e

  def load(files):
    return {
      name: np.load(os.path.join(path, file), 'r')[: index['num_draws']]
      for name, file in files.items()
    }

  draws = load(index['draws'])
  for name, shapes in index.get('unconstrained', {}).items():
    draws |= _taken_apart(draws.pop(name), shapes)
  return LoadedDraws(draws, load(index['trace']))


def _taken_apart(vectors, shapes):
  """The parts of vectors, views, by names that say what they are."""
  parts, start = {}, 0
  for name, shape in shapes.items():
    end = start + math.prod(shape)
    part = vectors[..., start:end].reshape([*vectors.shape[:-1], *shape])
    parts[f'unconstrained.{name}'], start = part, end
  return parts
