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
"""What the samplers' benchmark has done in processes of its own.

Each job first yields whether it is ready, then an answer to each question: how
many steps to take, or which seed to start from.
"""

import time

import numpy as np

__all__ = ['JOBS', 'efficiency', 'funnel', 'low_error', 'step_time', 'zoo']


def step_time(contestant, **options):
  """Seconds of so many steps, as often as asked."""
  from benchmarks.step_contestants import STEPS

  try:
    run = STEPS[contestant](**options)
  except ImportError as e:
    yield {'status': 'missing', 'reason': str(e)}
    return
  run(2)
  count = yield {'status': 'ready'}
  while True:
    begin = time.perf_counter()
    run(count)
    count = yield {'seconds': time.perf_counter() - begin}


def efficiency(contestant, model, sizes, options):
  """Effective draws per second of a whole run, adaptation included."""
  import tfp_diag
  from benchmarks.sampler_contestants import SAMPLERS
  from benchmarks.sampler_models import make_model

  model = make_model(model)
  try:
    sample = SAMPLERS[contestant](model, sizes, **options)
  except ImportError as e:
    yield {'status': 'missing', 'reason': str(e)}
    return
  sample((0, 0))  # Compiles.
  seed = yield {
    'status': 'ready',
    'step_size': getattr(sample, 'step_size', None),
  }
  while True:
    begin, cpu_begin = time.perf_counter(), time.process_time()
    drawn = sample(tuple(seed))
    seconds = time.perf_counter() - begin
    cpu_seconds = time.process_time() - cpu_begin
    draws = drawn.draws
    if model.axes is not None:
      # What has not moved along an axis hides in coordinates that mix them.
      draws = draws @ model.axes
    sizes_of_coordinates = tfp_diag.mcmc.ess(draws)
    rhat = tfp_diag.mcmc.rhat(draws)
    least = float(np.nan_to_num(np.min(sizes_of_coordinates)))
    seed = yield {
      'seconds': seconds,
      'cpu_seconds': cpu_seconds,
      'min_ess': least,
      'min_ess_per_second': least / seconds,
      'acceptance': drawn.acceptance,
      'max_rhat': float(np.nan_to_num(np.max(rhat), nan=np.inf)),
    }


def funnel(preconditioner, sizes):
  """Mean and standard deviation of the log scale of Neal's funnel."""
  import tensorflow as tf

  import tfp_diag

  def log_prob(v, x):
    v_last = v[..., tf.newaxis]
    return -(v**2) / 18.0 - 0.5 * tf.reduce_sum(
      x**2 * tf.exp(-v_last) + v_last, axis=-1
    )

  chains = sizes['chains']
  start = [
    tf.random.stateless_normal([chains], (0, 1)),
    tf.random.stateless_normal([chains, 9], (0, 2)),
  ]
  if preconditioner == 'local Hessian':
    preconditioner = tfp_diag.mcmc.LocalHessianPreconditioner(softness=1e-4)

  @tf.function(jit_compile=True, autograph=False)
  def run(seed):
    return tfp_diag.mcmc.windowed_adaptive_mala(
      sizes['draws'],
      log_prob,
      init=start,
      num_adaptation_steps=sizes['adaptation'],
      preconditioner=preconditioner,
      seed=seed,
    )

  begin = time.perf_counter()
  draws, trace = run(tf.constant([1, 2]))
  v = draws[0].numpy()
  ess = {k: float(tfp_diag.mcmc.ess(v, kind=k)) for k in ('mean', 'sd')}
  sd = float(np.std(v))
  # The error of a standard deviation by the delta method.
  fourth = float(np.mean((v - v.mean()) ** 4))
  errors = {
    'mean': sd / np.sqrt(ess['mean']),
    'sd': np.sqrt(max(fourth - sd**4, 0.0) / ess['sd']) / (2 * sd),
  }
  yield {
    'status': 'ready',
    'mean': float(np.mean(v)),
    'sd': sd,
    'mcse_mean': float(errors['mean']),
    'mcse_sd': float(errors['sd']),
    'z_mean': float(abs(np.mean(v)) / errors['mean']),
    'z_sd': float(abs(sd - 3.0) / errors['sd']),
    'rhat': float(tfp_diag.mcmc.rhat(v)),
    'acceptance': float(tf.reduce_mean(trace['accept_ratio'])),
    'seconds': time.perf_counter() - begin,
  }


def low_error(sizes, options):
  """Steps until the squared error of E[x²] stays low, chain by chain.

  The measure of reubenharry/sampler-benchmarks: the Gaussian has 100
  independent coordinates whose variances are spaced evenly in logarithms from
  1000^-½ to 1000^½; chains start at N(0, largest variance); after adaptation,
  which is not counted, the error of a chain after t steps is the average over
  coordinates of (mean of x² - E[x²])² / Var[x²]; of these the median over
  chains is taken; what is reported is the last t at which it is above 0.01, and
  one more. A step takes one gradient.
  """
  import tensorflow as tf

  import tfp_diag

  variances = np.logspace(-1.5, 1.5, sizes['coordinates']).astype(np.float32)
  start = np.sqrt(variances[-1]) * tf.random.stateless_normal(
    [sizes['chains'], sizes['coordinates']], (0, 1)
  )

  @tf.function(jit_compile=True, autograph=False)
  def run(seed):
    return tfp_diag.mcmc.windowed_adaptive_mala(
      sizes['draws'],
      lambda x: -0.5 * tf.reduce_sum(tf.square(x) / variances, axis=-1),
      init=start,
      num_adaptation_steps=sizes['adaptation'],
      seed=seed,
      **options,
    )

  draws, trace = run(tf.constant([1, 2]))
  squares = np.square(draws.numpy().astype(np.float64))
  count = np.arange(1, len(squares) + 1)[:, np.newaxis, np.newaxis]
  errors = np.square(np.cumsum(squares, axis=0) / count - variances)
  errors = np.mean(errors / (2.0 * variances**2.0), axis=-1)
  above = np.flatnonzero(np.median(errors, axis=1) > 0.01)
  gradients = int(above[-1]) + 1 if above.size else 1
  yield {
    'status': 'ready',
    'gradients': gradients if gradients < len(errors) else float('inf'),
    'gradients_to_adapt': sizes['adaptation'],
    'final_error': float(np.median(errors[-1])),
    'acceptance': float(tf.reduce_mean(trace['accept_ratio'])),
  }


def zoo(sampler, model, sizes):
  """Figures of one run of a sampler for each seed; the first run compiles."""
  from benchmarks import zoo_figures
  from benchmarks.zoo_contestants import SAMPLERS
  from benchmarks.zoo_models import make_model
  from benchmarks.zoo_truth import truth_of

  name, model = model, make_model(model)
  try:
    sample = SAMPLERS[sampler](model, sizes)
  except ImportError as e:
    yield {'status': 'missing', 'reason': str(e)}
    return
  truth = truth_of(name)
  seed = yield {'status': 'ready', 'title': model.name, 'size': model.size}
  while True:
    begin = time.perf_counter()
    drawn = sample(tuple(seed))
    seconds = time.perf_counter() - begin
    seed = yield zoo_figures.of_run(drawn, model, truth, seconds)


JOBS = {
  'step_time': step_time,
  'efficiency': efficiency,
  'funnel': funnel,
  'low_error': low_error,
  'zoo': zoo,
}
