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
"""A server that loads one framework, and forks a process for each job.

    python -m benchmarks.worker FRAMEWORK

A job is a line of JSON on standard input, with a socket beside it; the process
that does it answers on that socket, in lines of JSON. So each cell has a
process of its own, whose memory is its own, and none waits for an import.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time

import numpy as np

from benchmarks import sampler_jobs
from benchmarks.cases import make_case
from benchmarks.tools import SAMPLERS, TOOLS, Skipped

__all__ = ['plan_model', 'race', 'structure']

# Of the largest entry of what is compared, in float32.
TOLERANCE = 1e-4
# Of a sampler, before its state is looked at.
_CHECKED_STEPS = 100

PRELOADED = {
  'tensorflow': ('tensorflow', 'tensorflow_probability', 'tfp_diag'),
  # Not what starts JAX on import: its threads would not be there after a fork.
  'jax': ('jax', 'asdex', 'folx'),
  'torch': ('torch', 'torch.func'),
}


def race(case, tool):
  """One tool: checked, then timed as often as asked.

  Yields:
    First whether it is ready and right; then, for each number of evaluations
    sent, the seconds they took.
  """
  tool = (TOOLS | SAMPLERS)[tool]
  case = make_case(case)
  try:
    for package in (tool.framework, *tool.packages):
      importlib.import_module(package)
  except ImportError as e:
    yield {'status': 'missing', 'reason': str(e)}
    return
  _warm_up(tool.framework)
  x = case.start()
  expected = case.diagonal(x.astype(np.float64))
  if tool.result == 'trace':
    expected = expected.reshape(case.batch, -1).sum(axis=1)
  before = _peak_gib()
  begin = time.perf_counter()
  try:
    run = tool.make(case)
  except Skipped as e:
    yield {'status': 'skipped', 'reason': str(e)}
    return
  planned = time.perf_counter()
  result = run(x, 1)
  ready = time.perf_counter()
  answer = {
    'status': 'ready',
    'plan_s': planned - begin,
    'first_call_s': ready - planned,
    'seconds_until_ready': ready - begin,
    'relative_error': None,
    **getattr(run, 'about', {}),
  }
  if tool.result == 'state':
    wrong = _not_in_equilibrium(x, run(x, _CHECKED_STEPS))
  elif tool.result is not None:
    error = np.max(np.abs(result - expected)) / np.max(np.abs(expected))
    answer['relative_error'] = float(error) if np.isfinite(error) else None
    wrong = None if error < TOLERANCE else f'relative error {error:.2g}'
  else:
    wrong = None
  if wrong:
    answer |= {'status': 'wrong', 'reason': wrong}
  count = yield answer
  while count:
    begin = time.perf_counter()
    run(x, count)
    seconds = time.perf_counter() - begin
    count = yield {
      'seconds': seconds,
      'memory_gib': max(0.0, _peak_gib() - before),
    }


def _not_in_equilibrium(x, y):
  """Why `y` is no draw from a standard normal, which `x` is; or None."""
  if not np.all(np.isfinite(y)) or np.mean(x == y) > 0.9:
    return 'the chains do not move'
  # One in 10^8 right samplers is called wrong.
  distance = abs(np.mean(y.astype(np.float64) ** 2) - 1)
  sigmas = distance / np.sqrt(2 / y.size)
  return f'variance off by {sigmas:.1f} sigma' if sigmas > 5.7 else None


def _warm_up(framework):
  """Starts the threads and the compiler of a framework."""
  if framework == 'tensorflow':
    import tensorflow as tf

    tf.function(lambda x: x + 1, jit_compile=True)(tf.zeros([])).numpy()
  elif framework == 'jax':
    import jax

    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
  elif framework == 'torch':
    import torch

    torch.func.grad(torch.sin)(torch.zeros(())).numpy()


def structure(case, tool='tfp_diag'):
  """Detection and coloring: seconds, and peak memory of the process."""
  case = make_case(case)
  before = _peak_gib()
  find = {'tfp_diag': _own_structure, 'asdex': _asdex_structure}[tool]
  try:
    found = find(case)
  except ImportError as e:
    yield {'status': 'missing', 'reason': str(e)}
    return
  yield {
    'status': 'ready',
    **found,
    'peak_gib': _peak_gib(),
    'peak_gib_before': before,
  }


def _own_structure(case):
  import tensorflow as tf

  import tfp_diag
  from benchmarks.tools import tensorflow_ways

  # The start of TensorFlow itself is none of a plan's business.
  fn = tensorflow_ways.function_of(case, 1.0)
  x = tf.TensorSpec([case.batch, *case.event_shape])
  begin = time.perf_counter()
  pattern = tfp_diag.sparsity.hessian_sparsity(fn, x, [case.batch])
  detected = time.perf_counter()
  coloring = tfp_diag.sparsity.color_diagonal(pattern)
  return {
    'detection_s': detected - begin,
    'coloring_s': time.perf_counter() - detected,
    'passes': coloring.num_colors,
    'nonzeros': pattern.nnz,
  }


def _asdex_structure(case):
  import asdex
  import jax.numpy as jnp

  from benchmarks.tools import jax_ways

  fn = jax_ways.flat_function(case, 1.0)
  x = jnp.zeros([case.num_coordinates])
  begin = time.perf_counter()
  pattern = asdex.hessian_sparsity(fn, x)
  detected = time.perf_counter()
  coloring = asdex.hessian_coloring_from_sparsity(pattern)
  return {
    'detection_s': detected - begin,
    'coloring_s': time.perf_counter() - detected,
    'passes': int(coloring.num_colors),
    'nonzeros': int(pattern.nnz),
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


JOBS = {
  'race': race,
  'structure': structure,
  'plan_model': plan_model,
  **sampler_jobs.JOBS,
}


def main():
  framework = sys.argv[1]
  for package in PRELOADED[framework]:
    # Reported by the jobs that need it.
    with contextlib.suppress(ImportError):
      importlib.import_module(package)
  signal.signal(signal.SIGCHLD, signal.SIG_IGN)
  control = socket.socket(fileno=os.dup(0))
  # What a framework prints is none of the answers.
  os.dup2(2, 1)
  control.sendall(b'ready\n')
  while True:
    message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 2)
    if not message:
      return
    process = os.fork()
    if process == 0:
      control.close()
      _answer(json.loads(message), *descriptors)
    for descriptor in descriptors:
      os.close(descriptor)
    control.sendall(b'%d\n' % process)


def _answer(job, answers, errors):
  """Does one job, and ends the process."""
  os.dup2(errors, 1)
  os.dup2(errors, 2)
  status = 1
  try:
    with socket.socket(fileno=answers) as connection:
      stream = connection.makefile('rw', buffering=1)
      steps = JOBS[job['job']](**job['arguments'])
      print(json.dumps(next(steps)), file=stream)
      for line in stream:
        print(json.dumps(steps.send(json.loads(line))), file=stream)
    status = 0
  except StopIteration:
    status = 0
  except BaseException:
    import traceback

    traceback.print_exc()
  finally:
    sys.stderr.flush()
    os._exit(status)


if __name__ == '__main__':
  main()
