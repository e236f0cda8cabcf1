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
"""Means and standard deviations that the draws of the zoo should have.

    python -m benchmarks.zoo_truth [--model NAME] [--json FILE]

Some are closed forms, or integrals of one or two dimensions. The others are
averages of a long run of NUTS, numpyro's, made here and kept in
`zoo_truth.json` with their errors; R-hat and the least effective sample size of
that run stand beside them.
"""

import argparse
import json
import pathlib
import sys
import typing

import numpy as np
import tqdm

from benchmarks.results import Results
from benchmarks.sampler_contestants import numpyro_nuts
from benchmarks.sampler_models import BROWNIAN_MOTION_SEEN, gaussian_variances
from benchmarks.truth_cases import brownian_motion_moments
from benchmarks.zoo_models import ZOO, make_model
from tfp_diag import mcmc

__all__ = ['CLOSED_FORMS', 'Moments', 'normal_effects_moments', 'truth_of']

FILE = pathlib.Path(__file__).with_name('zoo_truth.json')
SIZES = {'chains': 8, 'draws': 5000, 'adaptation': 2000}


class Moments(typing.NamedTuple):
  """What is known of the variables, in one vector, and how well.

  Attributes:
    mean: Array [coordinate].
    sd: Array [coordinate], NaN where draws of it say too little.
    mean_error: Array [coordinate] or 0, standard error of `mean`.
    sd_error: Array [coordinate] or 0, standard error of `sd`.
  """

  mean: np.ndarray
  sd: np.ndarray
  mean_error: typing.Any = 0.0
  sd_error: typing.Any = 0.0


def truth_of(name, file=FILE):
  """The `Moments` of a model of the zoo, along its axes; None if unknown."""
  if name in CLOSED_FORMS:
    return CLOSED_FORMS[name]()
  if not file.exists():
    return None
  found = json.loads(file.read_text(encoding='utf-8')).get('moments', {})
  if name not in found:
    return None
  return Moments(*[np.array(found[name][key]) for key in Moments._fields])


def normal_effects_moments(
  effects, errors, mean_scale, log_sd_prior, centered=False, num_nodes=20_000
):
  """Posterior moments of `sampler_models.normal_effects`, by quadrature.

  Given the spread everything is normal, so that one integral is left.

  Args:
    effects: As there.
    errors: As there.
    mean_scale: As there.
    log_sd_prior: As there.
    centered: As there.
    num_nodes: Python int.

  Returns:
    A `Moments`.
  """
  effects, errors2 = np.float64(effects), np.float64(errors) ** 2
  # Beyond the ends there is less than 1e-22 of the prior.
  score = np.linspace(-10.0, 10.0, num_nodes)
  log_sd = log_sd_prior[0] + log_sd_prior[1] * score
  variance = np.exp(2.0 * log_sd)[:, np.newaxis]
  precisions = 1.0 / (variance + errors2)
  precision = mean_scale**-2.0 + np.sum(precisions, axis=1)
  center = np.sum(precisions * effects, axis=1) / precision
  log_weight = 0.5 * (
    np.sum(np.log(precisions) - precisions * effects**2, axis=1)
    - np.log(precision)
    + precision * center**2
    - score**2
  )
  weight = np.exp(log_weight - np.max(log_weight))
  weight /= np.sum(weight)
  # How much of what was seen of an effect is not error.
  share = variance * precisions
  center, spread = center[:, np.newaxis], 1.0 / precision[:, np.newaxis]
  if centered:
    values = share * effects + (1.0 - share) * center
    variances = share * errors2 + (1.0 - share) ** 2 * spread
  else:
    to_standard = share / np.sqrt(variance)
    values = to_standard * (effects - center)
    variances = 1.0 - share + to_standard**2 * spread
  of_log_sd = log_sd[:, np.newaxis]
  first = np.concatenate([center, of_log_sd, values], axis=1)
  within = np.concatenate([spread, 0.0 * of_log_sd, variances], axis=1)
  mean = weight @ first
  return Moments(mean, np.sqrt(weight @ ((first - mean) ** 2 + within)))


def _of_normal_effects(name):
  return normal_effects_moments(**make_model(name).arguments)


def _banana():
  return Moments(
    np.zeros(2), np.array([10.0, np.sqrt(1.0 + 2 * 0.03**2 * 1e4)])
  )


def _funnel():
  # The squares of the others have hardly a variance.
  return Moments(np.zeros(10), np.r_[3.0, np.full(9, np.nan)])


def _brownian_motion():
  observed = np.full(30, np.nan)
  pins = make_model('brownian_motion').pins
  observed[BROWNIAN_MOTION_SEEN] = pins['observed_locs']
  moments = brownian_motion_moments(observed)
  # There the noise of the observations comes last.
  return Moments(*[np.r_[x[:1], x[-1:], x[1:-1]] for x in moments])


def _gaussian_rotated():
  variances, _ = gaussian_variances(100)
  return Moments(np.zeros(100), np.sqrt(variances))


CLOSED_FORMS = {
  'banana': _banana,
  'funnel': _funnel,
  'eight_schools': lambda: _of_normal_effects('eight_schools'),
  'eight_schools_centered': lambda: _of_normal_effects(
    'eight_schools_centered'
  ),
  'hierarchical_model': lambda: _of_normal_effects('hierarchical_model'),
  'brownian_motion': _brownian_motion,
  'gaussian_rotated': _gaussian_rotated,
}


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.zoo_truth',
    description='Long runs of NUTS, for what has no closed form.',
  )
  parser.add_argument(
    '--model',
    metavar='NAME',
    action='append',
    choices=[name for name in ZOO if name not in CLOSED_FORMS],
    help='one of %(choices)s; may be repeated',
  )
  parser.add_argument('--json', metavar='FILE', default=str(FILE))
  options = parser.parse_args(words)
  results = Results(options.json)
  names = options.model or [name for name in ZOO if name not in CLOSED_FORMS]
  for name in tqdm.tqdm(names, disable=None, unit='model'):
    drawn = numpyro_nuts(make_model(name), SIZES)((31, 0))
    summary = mcmc.summarize(drawn.draws)
    results.data.setdefault('moments', {})[name] = {
      'mean': _rounded(summary.mean),
      'sd': _rounded(summary.sd),
      'mean_error': _rounded(summary.mcse_mean),
      'sd_error': _rounded(summary.mcse_sd),
      'r_hat': float(np.max(summary.r_hat)),
      'min_ess': float(np.min(summary.ess_bulk)),
      'sizes': SIZES,
    }
    results.write()
    tqdm.tqdm.write(
      f'{name}: R-hat {np.max(summary.r_hat):.4f}, least effective sample size '
      f'{np.min(summary.ess_bulk):.0f}'
    )
  return 0


def _rounded(values):
  """Six digits: the errors are larger."""
  return [float(f'{x:.6g}') for x in values]


if __name__ == '__main__':
  sys.exit(main())
