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
"""Runs the programs of `xla_programs`, beside JAX's own ways, on any device.

    python -m benchmarks.xla_runner FOLDER [--json FILE] [--seconds S]
      [--kind KIND] [--without WORD]

It needs JAX and numpyro, no TensorFlow. Every result is checked before it is
timed: diagonals against closed forms, draws against their mean square. Rows are
printed, and written, as they come.
"""

import argparse
import gzip
import json
import pathlib
import time

import jax
import numpy as np
from jax._src.lib import _jax
from jaxlib import xla_client
from numpyro.diagnostics import effective_sample_size

from benchmarks.cases import make_case
from benchmarks.tools import GRADIENT, SAMPLERS, TOOLS, TRAJECTORIES, Skipped
from benchmarks.tools.jax_ways import JaxOps

# The ways of JAX that were the fastest ones of a case on a CPU, or nearly.
PEERS = {
  'diagonal': [
    'JAX, one gradient',
    'JAX vmap(hessian)',
    'JAX vmap(jvp(grad))',
    'JAX map(jvp(grad))',
    'asdex',
  ],
  'steps': ['blackjax MALA', 'blackjax HMC'],
}
# More numbers than this at once do not fit.
_MOST_NUMBERS = 2**32
# What is timed takes at least so long.
_LEAST_SECONDS = 0.2
# Of the largest entry of what is compared.
_TOLERANCE = 1e-4


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.xla_runner',
    description='Runs exported programs beside the ways of JAX.',
  )
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('--json', type=pathlib.Path, metavar='FILE')
  parser.add_argument(
    '--seconds', type=float, default=1e9, help='nothing is begun after these'
  )
  parser.add_argument(
    '--kind', action='append', choices=['diagonal', 'steps', 'posterior']
  )
  parser.add_argument('--without', action='append', default=[], metavar='TOOL')
  options = parser.parse_args(words)
  # As the programs were made.
  jax.config.update('jax_default_matmul_precision', 'highest')
  begin = time.monotonic()
  index = json.loads((options.folder / 'programs.json').read_text())
  device = jax.devices()[0]
  found = {
    'device': device.device_kind,
    'versions': index['versions'] | {'jax': jax.__version__},
    'rows': [],
  }
  for about, make in jobs(options.folder, index['programs']):
    if options.kind and about['kind'] not in options.kind:
      continue
    if about['tool'] in options.without:
      continue
    late = time.monotonic() - begin > options.seconds
    row = about | ({'status': 'no time left'} if late else _row(about, make))
    found['rows'].append(row)
    print(
      about['kind'],
      about['tool'],
      about['case'],
      {k: row[k] for k in row if k not in about},
      flush=True,
    )
    if options.json:
      options.json.write_text(json.dumps(found, indent=1))


def jobs(folder, programs):
  """What is to be run: pairs of what it is, and `case -> run`."""
  cases = {}
  for name, about in programs.items():
    key = about['kind'], json.dumps(about['case'])
    cases.setdefault(key, []).append((name, about))
  for (kind, case), members in cases.items():
    for name, about in members:
      yield about, lambda case, name=name: _program(folder / name)
    for name in PEERS.get(kind, []):
      about = {'kind': kind, 'tool': name, 'case': json.loads(case)}
      tool = (TOOLS | SAMPLERS | TRAJECTORIES)[name]
      yield about, lambda case, tool=tool: _peer(case, tool)
    if kind == 'posterior':
      about = {'kind': kind, 'tool': 'numpyro NUTS', 'case': json.loads(case)}
      start = folder / f'{members[0][0]}.npz'
      yield about, lambda case, start=start: _nuts(case, np.load(start))


def _row(about, make):
  case = make_case(about['case'])
  begin = time.perf_counter()
  try:
    run = make(case)
    x = jax.device_put(getattr(run, 'start', case.start()))
    result = run(x, 1)
    ready = time.perf_counter() - begin
    if about['kind'] == 'posterior':
      return {'status': 'ready', **_effective(run, x, result)}
    row = {'ready_s': ready} | _check(about, case, x, result)
    return row | {'seconds': _seconds(run, x)}
  except (Skipped, ImportError) as e:
    return {'status': 'skipped', 'reason': str(e)}
  except Exception as e:
    # Out of memory, for example: the other rows are worth having.
    return {'status': type(e).__name__, 'reason': str(e)[:200]}


def _check(about, case, x, result):
  if about['kind'] == 'steps':
    mean_square = float(np.mean(np.square(result, dtype=np.float64)))
    # One in 10^8 right samplers is called wrong.
    is_right = abs(mean_square - 1) < 5.7 * np.sqrt(2 / result.size)
    return {
      'status': 'ready' if is_right else 'wrong',
      'mean_square': mean_square,
    }
  if about['tool'] in (GRADIENT, 'JAX, one gradient'):
    return {'status': 'ready'}
  # Of a few samples: closed forms take their time.
  num = min(case.batch, 64)
  small = make_case(
    [
      about['case'][0],
      [num if a == case.batch else a for a in about['case'][1]],
    ]
  )
  if small.batch != num:
    small, num = case, case.batch
  expected = small.diagonal(np.asarray(x, np.float64)[:num])
  result = np.reshape(result, [case.batch, -1])[:num]
  expected = np.reshape(expected, [num, -1])
  error = float(np.max(np.abs(result - expected)) / np.max(np.abs(expected)))
  status = 'ready' if error < _TOLERANCE else 'wrong'
  return {'status': status, 'relative_error': error}


def _seconds(run, x):
  """Of one evaluation, the least of three; the way there and back is left out.

  That way takes a quarter of a second for a hundred million numbers.
  """
  once = min(_timed(run, x, 1) for _ in range(3))
  if once > 5:
    return once
  count, more = 1, 0.0
  while more < _LEAST_SECONDS and count < 10**6:
    growth = 1.3 * _LEAST_SECONDS / more if more > 0.0 else 30
    count = int(count * min(max(growth, 2), 30)) + 1
    more = _timed(run, x, count) - once
  more = min(more, *(_timed(run, x, count) - once for _ in range(2)))
  return more / (count - 1)


def _timed(run, x, count):
  begin = time.perf_counter()
  run(x, count)
  return time.perf_counter() - begin


def _program(path):
  """`run(x, count)` of a program of TensorFlow."""
  hlo = gzip.decompress(path.with_suffix('.hlo.gz').read_bytes())
  computation = xla_client.XlaComputation(hlo)
  module = _jax.mlir.xla_computation_to_mlir_module(computation)
  device = jax.devices()[0]
  executable = device.client.compile_and_load(
    module, xla_client.DeviceList((device,)), xla_client.CompileOptions()
  )
  arrays = np.load(path.with_suffix('.npz'))
  captured = [a for n, a in arrays.items() if n.startswith('captured')]
  captured = [jax.device_put(a) for a in captured]

  def run(x, count):
    inputs = [jax.device_put(x), jax.device_put(np.int32(count)), *captured]
    found = executable.execute_sharded(inputs)
    found = found.disassemble_into_single_device_arrays()
    found = [np.asarray(a[0]) for a in found]
    return found[0] if len(found) == 1 else found

  if 'start' in arrays:
    run.start = arrays['start']
  return run


def _peer(case, tool):
  if tool.entries(case) > _MOST_NUMBERS:
    raise Skipped(f'{tool.entries(case):.1e} numbers')
  return tool.make(case)


def _nuts(case, arrays):
  """numpyro's NUTS, all chains at once, after its warm-up."""
  import jax.numpy as jnp
  import numpyro

  num_draws, start = 500, jnp.asarray(arrays['start'])
  mcmc = numpyro.infer.MCMC(
    numpyro.infer.NUTS(potential_fn=lambda x: -case.fn(JaxOps, x, 1.0)),
    num_warmup=500,
    num_samples=num_draws,
    num_chains=case.batch,
    chain_method='vectorized',
    progress_bar=False,
  )
  mcmc.warmup(jax.random.key(0), init_params=start)

  def run(x, count):
    del x
    steps = 0
    for _ in range(count):
      mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=['num_steps'])
      # It is the slowest chain that all wait for.
      steps += int(np.sum(np.max(mcmc.get_extra_fields(True)['num_steps'], 0)))
    return np.swapaxes(mcmc.get_samples(True), 0, 1), steps

  run.start = arrays['start']
  return run


def _effective(run, x, result):
  """Seconds and gradients for an effective draw of each chain."""
  seconds = min(_timed(run, x, 1) for _ in range(2))
  draws, gradients = result
  draws = np.reshape(draws, [*draws.shape[:2], -1])
  ess = np.min(effective_sample_size(draws.swapaxes(0, 1)))
  return {
    'draws_s': seconds,
    'least_ess': float(ess),
    'seconds_per_effective_draw': seconds / float(ess),
    'gradients_of_a_chain': int(gradients),
    'moments': [
      float(np.mean(draws.mean((0, 1)))),
      float(np.mean(draws.std((0, 1)))),
    ],
  }


if __name__ == '__main__':
  main()
