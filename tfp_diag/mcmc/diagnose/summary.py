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
"""What draws say about each parameter, and how far to trust it."""

import typing

import numpy as np

from tfp_diag.internal.text_table import as_html, text_table

# Rows of the printed table.
_MOST_ROWS = 30


class Summary(typing.NamedTuple):
  """What `summarize` returns; `print` shows it as a table.

  The columns are float64 arrays with one entry for each parameter, in the order
  of `names`.

  Attributes:
    names: Tuple of `str`: the parts, with an index where they have axes, such
      as 'theta[1, 0]'.
    mean: Averages over draws and chains.
    sd: Standard deviations over draws and chains.
    quantiles: Array [parameter, quantile].
    probs: Tuple of `float`s, which quantiles.
    mcse_mean: Monte Carlo standard errors of `mean`.
    mcse_sd: Monte Carlo standard errors of `sd`.
    ess_bulk: Effective sample sizes of the ranks, over all chains.
    ess_tail: The smaller effective sample size of the 5 and the 95 per cent
      quantile.
    r_hat: Rank-normalized split R-hat.
    nested_r_hat: Nested R-hat, or None without superchains.
    num_draws: Python `int`, draws of each chain.
    chain_shape: Tuple of `int`s.
    acceptance_rate: Array of the shape of the chains, or None if the trace does
      not have it.
    num_not_finite: Python `int`, how many proposals were rejected because
      something was not finite there; or None if the trace does not say.
    num_divergences: Python `int`, how many others diverged, or None if the
      trace does not say.
    stuck_chains: Tuple of `int`s, or of tuples of `int`s for chains with
      several axes: those of which no draw differs from the first.
    warnings: Tuple of `str`: sentences about what makes the draws doubtful.
    notes: Tuple of `str`: sentences about numbers of the table that cannot be
      trusted, good as the draws are: errors of moments where tails are heavy.

  #### Examples

  ```python
  draws = np.random.default_rng(0).normal(size=[500, 8])
  summary = tfp_diag.mcmc.summarize({'mu': draws})
  summary.names, summary.num_draws  # ==> (('mu',), 500)
  bool(abs(summary.mean[0]) < 4.0 * summary.mcse_mean[0])  # ==> True
  ```
  """

  names: tuple
  mean: np.ndarray
  sd: np.ndarray
  quantiles: np.ndarray
  probs: tuple
  mcse_mean: np.ndarray
  mcse_sd: np.ndarray
  ess_bulk: np.ndarray
  ess_tail: np.ndarray
  r_hat: np.ndarray
  nested_r_hat: typing.Any
  num_draws: int
  chain_shape: tuple
  acceptance_rate: typing.Any
  num_not_finite: typing.Any
  num_divergences: typing.Any
  stuck_chains: tuple
  warnings: tuple
  notes: tuple = ()

  def columns(self) -> dict[str, np.ndarray]:
    """Dict from titles to columns: for a data frame, with `names` as index."""
    columns = {'mean': self.mean, 'sd': self.sd}
    for prob, column in zip(self.probs, self.quantiles.T):
      columns[f'{100 * prob:g}%'] = column
    columns |= {
      'mcse_mean': self.mcse_mean,
      'mcse_sd': self.mcse_sd,
      'ess_bulk': self.ess_bulk,
      'ess_tail': self.ess_tail,
      'r_hat': self.r_hat,
    }
    if self.nested_r_hat is not None:
      columns['nested_r_hat'] = self.nested_r_hat
    return columns

  def to_dataframe(self) -> typing.Any:
    """The columns as a `pandas.DataFrame`, one row for each parameter.

    Returns:
      `pandas.DataFrame` with `names` as its index.

    Raises:
      ImportError: if pandas is not installed.

    #### Examples

    ```python
    import numpy as np
    import tfp_diag

    draws = np.random.default_rng(0).normal(size=[100, 4, 2])
    table = tfp_diag.mcmc.summarize(draws).to_dataframe()
    list(table.index)  # ==> ['x[0]', 'x[1]']
    bool(table.loc['x[1]', 'r_hat'] < 1.1)  # ==> True
    ```
    """
    try:
      import pandas as pd
    except ImportError as e:
      raise ImportError(
        '`to_dataframe` needs pandas, which is not installed. Install it with '
        '`pip install pandas`, or take `columns()`, a dict of arrays.'
      ) from e
    return pd.DataFrame(self.columns(), index=list(self.names))

  def __repr__(self):
    """One line: how much there is, and whether all is well."""
    return (
      f'<Summary of {_counted(len(self.names), "parameter")}: '
      f'{self._size()}, {_counted(len(self.warnings), "warning")}>'
    )

  def _repr_html_(self):
    return as_html(str(self))

  def __str__(self):
    """The table, of at most 30 parameters, the sampler, and the warnings.

    A dash is what is not defined, as R-hat of a constant.
    """
    title, rows = 'parameter', range(len(self.names))
    if len(self.names) > _MOST_ROWS:
      title = (
        f'the {_MOST_ROWS} largest R-hat of {len(self.names):,} parameters'
      )
      rows = np.argsort(-np.nan_to_num(self.r_hat, nan=np.inf), kind='stable')
    columns = self.columns()
    cells = [
      [
        self.names[i],
        *(_cell(t, column[i], self.mean[i]) for t, column in columns.items()),
      ]
      for i in rows[:_MOST_ROWS]
    ]
    lines = [text_table([title, *columns], cells), '', self._sampler()]
    lines += [f'WARNING: {text}' for text in self.warnings]
    lines += [f'NOTE: {text}' for text in self.notes]
    return '\n'.join(lines)

  def _size(self):
    """How many chains of how many draws there are."""
    shape = ' x '.join(map(str, self.chain_shape)) or '1'
    chains = f'{shape} chain' if shape == '1' else f'{shape} chains'
    return f'{chains} of {_counted(self.num_draws, "draw")}'

  def _sampler(self):
    facts = [self._size()]
    if self.acceptance_rate is not None:
      rates = np.ravel(self.acceptance_rate)
      facts.append(
        f'acceptance {np.mean(rates):.3f} '
        f'({np.min(rates):.3f} to {np.max(rates):.3f})'
      )
    num_steps = self.num_draws * int(np.prod(self.chain_shape))
    if self.num_not_finite is not None:
      facts.append(
        f'{self.num_not_finite:,} proposals not finite '
        f'({self.num_not_finite / num_steps:.2%})'
      )
    if self.num_divergences is not None:
      facts.append(f'{self.num_divergences:,} divergences')
    return ', '.join(facts) + '.'


def _counted(number, what):
  return f'{number:,} {what}' if number == 1 else f'{number:,} {what}s'


def _cell(title, value, mean):
  if not np.isfinite(value):
    # Of draws that are numbers it is not defined.
    return '-' if np.isnan(value) and np.isfinite(mean) else str(value)
  if title.startswith('ess'):
    return f'{value:,.0f}'
  if title.endswith('r_hat'):
    return f'{value:.4f}'
  return f'{value:.2g}' if title.startswith('mcse') else f'{value:.4g}'
