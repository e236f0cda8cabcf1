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
"""Draws for arviz."""

import collections.abc
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfp_diag.internal import arguments
from tfp_diag.mcmc.diagnose.sampler_statistics import draws_and_statistics
from tfp_diag.version import __version__

# The names of arviz for those of TFP; others stay.
_ARVIZ_NAMES = {'target_log_prob': 'lp', 'accept_ratio': 'acceptance_rate'}


def to_arviz(
  draws: Any,
  trace: Any = None,
  *,
  chain_ndims: int | None = None,
  var_names: Sequence[str] | None = None,
  coords: Mapping | None = None,
  dims: Mapping | None = None,
  save_warmup: bool = False,
) -> Any:
  """Converts draws and trace for arviz.

  The result is an `arviz.InferenceData` with arviz 0.x, an `xarray.DataTree`
  with arviz 1: `arviz.summary`, `arviz.plot_trace` and the others take it.

  Args:
    draws: Structure of Tensors or arrays [draw, chain..., event...], of
      `windowed_adaptive_mala`, `sample`, `load_draws` (also of a run that goes
      on) or `tfp.mcmc.sample_chain`.
    trace: What was recorded at each draw: a dict from names to Tensors [draw],
      one value for all chains, or [draw, chain..., event...]; or kernel
      results. Becomes the group 'sample_stats', where 'target_log_prob' is
      called 'lp' and 'accept_ratio' 'acceptance_rate', as in arviz; others keep
      their names. Default: None, no such group.
    chain_ndims: Python `int`, how many axes belong to the chains. Several are
      made one, row by row; with none there is one chain. Default: that of the
      trace, or 1.
    var_names: Sequence of `str`, names of the parts. Default: the keys of a
      dict, the fields of a namedtuple, else x, or x0, x1, ...; those of nested
      structures are joined with dots.
    coords: Dict from names of dimensions to the labels along them, for arviz.
    dims: Dict from names of parts to lists of the names of their event axes,
      for arviz.
    save_warmup: Python `bool`, whether the draws for which 'tune' in the trace
      is true are kept, in the groups 'warmup_posterior' and
      'warmup_sample_stats'. Otherwise they are left out.

  Returns:
    An `arviz.InferenceData` or an `xarray.DataTree`, with axes [chain, draw,
    event...].

  Raises:
    ImportError: if arviz is not installed.
    ValueError: if shapes or names do not fit.
    TypeError: if `trace` is neither a dict nor kernel results.

  #### Examples

  ```python
  import tensorflow as tf
  import tfp_diag

  draws, trace = tfp_diag.mcmc.windowed_adaptive_mala(
    50,
    lambda mu, theta: -0.5 * (mu**2 + tf.reduce_sum(theta**2, -1)),
    init={'mu': tf.zeros([4]), 'theta': tf.zeros([4, 3])},
    num_adaptation_steps=50,
    seed=(0, 1),
  )
  data = tfp_diag.mcmc.to_arviz(
    draws, trace, coords={'school': ['A', 'B', 'C']}, dims={'theta': ['school']}
  )
  data['posterior']['theta'].dims  # ==> ('chain', 'draw', 'school')
  data['sample_stats']['lp'].shape  # ==> (4, 50)
  ```
  """
  arguments.check_flag('save_warmup', save_warmup)
  for name, given in (('coords', coords), ('dims', dims)):
    if given is not None and not isinstance(given, collections.abc.Mapping):
      raise TypeError(
        f'`{name}` is {arguments.shown(given)}, but must be a dict from names '
        'to lists, or None.'
      )
  arviz = _arviz_module()
  parts, _, statistics, tune = draws_and_statistics(
    draws, trace, chain_ndims, var_names
  )
  posterior = {part.name: part.values for part in parts}
  _check_labels(coords or {}, dims or {}, posterior, statistics)
  groups = {'posterior': _chosen(posterior, ~tune)}
  if statistics:
    groups['sample_stats'] = _chosen(statistics, ~tune)
  if save_warmup and np.any(tune):
    groups |= {
      f'warmup_{name}': _chosen(group, tune)
      for name, group in (
        ('posterior', posterior),
        ('sample_stats', statistics),
      )
    }
  attributes = {
    'inference_library': 'tfp_diag',
    'inference_library_version': __version__,
  }
  return _from_groups(
    arviz,
    groups,
    coords=coords,
    dims=dims,
    save_warmup=save_warmup,
    attributes=attributes,
  )


def _check_labels(coords, dims, posterior, statistics):
  """Refuses names of parts and numbers of labels that do not fit the draws."""
  values = {_ARVIZ_NAMES.get(k, k): v for k, v in statistics.items()}
  values |= posterior
  for name, labels in dims.items():
    if name not in values:
      raise ValueError(
        f'`dims` has the name {name!r}, but `draws` has the parts '
        f'{", ".join(map(repr, posterior))}; use one of these.'
      )
    sizes = values[name].shape[2:]
    labels = arguments.as_names('dims', labels)
    if len(labels) > len(sizes):
      raise ValueError(
        f'`dims` has {len(labels)} names for {name!r}, {labels}, but its event '
        f'has {len(sizes)} axes; give one for each.'
      )
    for label, size in zip(labels, sizes):
      if label in coords and np.size(coords[label]) != size:
        raise ValueError(
          f'`coords` has {np.size(coords[label])} labels for {label!r}, but '
          f'that axis of {name!r} has the size {size}; give one for each.'
        )


def _arviz_module():
  try:
    with warnings.catch_warnings():
      # arviz 0.23 announces arviz 1; both are supported here.
      warnings.simplefilter('ignore', FutureWarning)
      import arviz
  except ImportError as e:
    raise ImportError(
      f'`to_arviz` needs arviz, which cannot be imported ({e}): pip install '
      "'tfp-diag[arviz]'"
    ) from e
  return arviz


def _chosen(values, chosen):
  """Dict of arrays [chain, chosen draw, event...] by their names in arviz."""
  return {
    _ARVIZ_NAMES.get(name, name): np.swapaxes(value[chosen], 0, 1)
    for name, value in values.items()
  }


def _from_groups(arviz, groups, attributes, **kwargs):
  """One call of `arviz.from_dict`, whose arguments changed with version 1."""
  if arviz.__version__.startswith('0.'):
    return arviz.from_dict(
      **groups, attrs=attributes, posterior_attrs=attributes, **kwargs
    )
  return arviz.from_dict(
    groups, attrs={'/': attributes, 'posterior': attributes}, **kwargs
  )
