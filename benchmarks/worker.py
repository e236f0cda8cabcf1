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
"""What runs in a process of its own: one contestant on one case.

    python -m benchmarks.worker JOB '{"case": ["chain", [1000]], ...}'

Answers are lines of JSON on standard output.
"""

import json
import os
import resource
import sys
import time

import numpy as np

from benchmarks import cases, peers

__all__ = ['make_case', 'plan_model', 'race', 'structure']

# Of the largest entry of the diagonal, in float32.
TOLERANCE = 1e-4


def make_case(description):
  """A case from `[name, arguments]`."""
  name, arguments = description
  return getattr(cases, name)(*arguments)


def race(case, peer):
  """One contestant: checked, then timed as often as asked.

  Yields:
    First whether it is ready and right; then, for each number of evaluations
    sent, the seconds they took.
  """
  case = make_case(case)
  begin = time.perf_counter()
  try:
    run = peers.PEERS[peer](case)
  except ImportError as e:
    yield {'status': 'missing', 'reason': str(e)}
    return
  x = case.start()
  result = run(x, 1)
  ready = time.perf_counter() - begin
  expected = case.diagonal(x.astype(np.float64))
  error = np.max(np.abs(result - expected)) / np.max(np.abs(expected))
  is_diagonal = peer != peers.GRADIENT
  right = not is_diagonal or bool(error < TOLERANCE)
  count = yield {
    'status': 'ready' if right else 'wrong',
    'seconds_until_ready': ready,
    'relative_error': float(error) if is_diagonal else None,
  }
  while count:
    begin = time.perf_counter()
    run(x, count)
    count = yield {'seconds': time.perf_counter() - begin}


def structure(case):
  """Detection and coloring: seconds, and peak memory of the process."""
  import tensorflow as tf

  import tfp_diag

  case = make_case(case)
  # The start of TensorFlow itself is none of a plan's business.
  log_prob = peers._tensorflow_log_prob(case)
  x = tf.TensorSpec([case.batch, *case.event_shape])
  before = _peak_gib()
  begin = time.perf_counter()
  pattern = tfp_diag.sparsity.hessian_sparsity(log_prob, x, [case.batch])
  detected = time.perf_counter()
  coloring = tfp_diag.sparsity.color_diagonal(pattern)
  colored = time.perf_counter()
  yield {
    'detection_s': detected - begin,
    'coloring_s': colored - detected,
    'peak_gib': _peak_gib(),
    'peak_gib_before': before,
    'passes': coloring.num_colors,
    'nonzeros': pattern.nnz,
  }


def plan_model(num_effects):
  """Seconds until a plan for a model of TFP, the first of the process."""
  import tensorflow as tf
  import tensorflow_probability as tfp

  import tfp_diag

  tfd = tfp.distributions
  rng = np.random.default_rng(3)
  group = rng.integers(0, num_effects, 5 * num_effects)
  y = rng.standard_normal(group.size).astype(np.float32)

  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    mean = yield tfd.Normal(0.0, 5.0, name='mean')
    log_scale = yield tfd.Normal(0.0, 1.0, name='log_scale')
    effect = yield tfd.Sample(
      tfd.Normal(mean, tf.exp(log_scale)), num_effects, name='effect'
    )
    yield tfd.Normal(tf.gather(effect, group, axis=-1), 1.0, name='y')

  pinned = model.experimental_pin(y=y)
  state = [tf.zeros([4]), tf.zeros([4]), tf.zeros([4, num_effects])]
  # A user has called the log density before.
  pinned.unnormalized_log_prob(*state)
  seconds, cpu_seconds = [], []
  for _ in range(3):
    begin, cpu_begin = time.perf_counter(), time.process_time()
    plan = tfp_diag.plan_diag_hessian(
      lambda *parts: pinned.unnormalized_log_prob(*parts), state
    )
    seconds.append(time.perf_counter() - begin)
    cpu_seconds.append(time.process_time() - cpu_begin)
  yield {
    'first_s': seconds[0],
    'later_s': min(seconds[1:]),
    # What it would have taken on a machine with nothing else to do.
    'first_cpu_s': cpu_seconds[0],
    'later_cpu_s': min(cpu_seconds[1:]),
    'passes': plan.num_passes,
    'coordinates': plan.num_coordinates,
    'plan': str(plan),
  }


def _peak_gib():
  kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return kib / (2**30 if sys.platform == 'darwin' else 2**20)


JOBS = {'race': race, 'structure': structure, 'plan_model': plan_model}


def main():
  # What a framework prints must not end up between the answers.
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)
  job = JOBS[sys.argv[1]](**json.loads(sys.argv[2]))
  print(json.dumps(next(job)), file=answers)
  for line in sys.stdin:
    try:
      print(json.dumps(job.send(json.loads(line))), file=answers)
    except StopIteration:
      return


if __name__ == '__main__':
  main()
