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
"""Writes the programs that XLA gets from TensorFlow, to be run elsewhere.

    python -m benchmarks.xla_programs FOLDER [--quick] [--only WORD]

A machine with a GPU and JAX needs no TensorFlow to run them, since JAX's
runtime is XLA, too: see `xla_runner`. A program is a loop as in the other
benchmarks, a function of its input and of how often it is run.
"""

import argparse
import gzip
import json
import pathlib
import types

import numpy as np
import tensorflow as tf

import tfp_diag
from benchmarks.cases import make_case
from benchmarks.tools import GRADIENT, SAMPLERS, TFP_DIAG, TOOLS, TRAJECTORIES
from benchmarks.tools.tensorflow_ways import function_of

# Batches that keep a GPU busy; those of `benchmarks.suite` are for two cores.
DIAGONALS = [
  ['gaussian_3d', [1_000_000]],
  ['gaussian', [100, 65_536]],
  ['logistic_regression', [25, 8192, 1000]],
  ['softmax', [200, 16_384]],
  ['mlp_field', [64, 64, 16_384]],
  ['classifier_weights', [8, 16, 128, 1024]],
  ['mixture', [5, 500, 1024]],
  ['cox', [20, 500, 1024]],
  ['chain', [100_000, 64]],
  ['state_space', [200, 4, 1024]],
  ['hierarchical', [200, 1000, 1024]],
  ['item_response', [400, 100, 10_000, 256]],
  ['phi4', [64, 1024]],
  ['brusselator', [32, 1024]],
]
QUICK_DIAGONALS = [
  ['gaussian', [10, 16]],
  ['softmax', [20, 16]],
  ['phi4', [8, 4]],
]
STEPS = [
  ['standard_normal', [100, chains]]
  for chains in (1000, 10_000, 100_000, 1_000_000)
]
QUICK_STEPS = [['standard_normal', [100, 64]]]
STEP_TOOLS = [
  'tfp_diag MALA',
  'TFP MALA',
  'tfp_diag MALA, volatility',
  'TFP MALA, volatility',
  'tfp_diag MALT',
  'TFP HMC',
]
# Posteriors, each for two numbers of chains.
POSTERIORS = [
  [name, [*sizes, chains]]
  for name, sizes in (
    ('logistic_regression', [25]),
    ('poisson_mixed', [5, 50, 500]),
  )
  for chains in (64, 4096)
]
QUICK_POSTERIORS = [['stochastic_volatility', [20, 64]]]
NUM_DRAWS = 500


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.xla_programs',
    description='Writes the programs that XLA gets, to be run on a GPU.',
  )
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument(
    '--quick', action='store_true', help='tiny sizes: does it all work?'
  )
  parser.add_argument(
    '--only', metavar='WORD', default='', help='programs with this in the name'
  )
  options = parser.parse_args(words)
  # Products of matrices in float32, as every case is compared in.
  tf.config.experimental.enable_tensor_float_32_execution(False)
  options.folder.mkdir(parents=True, exist_ok=True)
  index = options.folder / 'programs.json'
  versions = {'tensorflow': tf.__version__, 'tfp_diag': tfp_diag.__version__}
  found = {'versions': versions, 'programs': {}}
  for make in programs_of(options.quick):
    if options.only in make.name:
      print(make.name, flush=True)
      found['programs'][make.name] = make.about | write(options.folder, make)
      index.write_text(json.dumps(found, indent=1))


class _Program:
  def __init__(self, kind, tool, case, make):
    self.name = '_'.join(
      [kind, *tool.replace(',', '').split(), case[0], *map(str, case[1])]
    )
    self.about = {'kind': kind, 'tool': tool, 'case': case}
    self.make = make


def programs_of(quick):
  """All programs, none of them made yet."""
  for case in QUICK_DIAGONALS if quick else DIAGONALS:
    for name in (GRADIENT, TFP_DIAG):
      yield _Program('diagonal', name, case, TOOLS[name].make)
  for case in QUICK_STEPS if quick else STEPS:
    for name in STEP_TOOLS:
      tool = (SAMPLERS | TRAJECTORIES)[name]
      yield _Program('steps', name, case, tool.make)
  for case in QUICK_POSTERIORS if quick else POSTERIORS:
    yield _Program('posterior', 'tfp_diag', case, _posterior)


def write(folder, program):
  """Writes one program and, where it has one of its own, its start."""
  case = make_case(program.about['case'])
  run = program.make(case)
  x = tf.constant(getattr(run, 'start', case.start()))
  arguments = x, tf.constant(1)
  ir = run.loop.experimental_get_compiler_ir(*arguments)
  # Constants take most of it, and few different numbers.
  hlo = gzip.compress(ir(stage='hlo_serialized'))
  (folder / f'{program.name}.hlo.gz').write_bytes(hlo)
  captured = run.loop.get_concrete_function(*arguments).captured_inputs
  # What the program takes after the input and the count.
  arrays = {f'captured_{i}': a.numpy() for i, a in enumerate(captured)}
  if hasattr(run, 'start'):
    arrays['start'] = run.start
  np.savez(folder / f'{program.name}.npz', **arrays)
  return getattr(run, 'about', {})


def _posterior(case):
  """Draws with the settings of a warm-up, from where its draws were."""
  log_prob = function_of(case, 1.0)
  found = tfp_diag.mcmc.sample_posterior(
    log_prob,
    max(100, -(-case.batch // 64)),
    init=tf.zeros([64, *case.event_shape]),
    seed=1,
  )
  draws = np.reshape(found.draws, [-1, *case.event_shape])
  settings = found.warm_up
  if case.num_coordinates != draws[0].size or settings.gradients_per_step != 1:
    raise ValueError(f'{case.name} is not sampled by trajectories.')
  kernel = tfp_diag.mcmc.MetropolisAdjustedLangevinTrajectories(
    log_prob,
    settings.step_size,
    settings.integration_time,
    settings.damping,
    settings.scale.operator(tf.float32),
  )

  @tf.function(jit_compile=True, autograph=False)
  def loop(x, count):
    start = kernel.bootstrap_results(x)

    def body(k, x, results, draws, gradients):
      seed = tf.random.fold_in(tf.constant([3, 4]), k, alg='philox')
      x, results = kernel.one_step(x, results, seed=seed)
      draws = tf.tensor_scatter_nd_update(
        draws, [[k % NUM_DRAWS]], x[tf.newaxis]
      )
      return k + 1, x, results, draws, gradients + results.leapfrogs_taken

    draws = tf.zeros([NUM_DRAWS, *x.shape])
    found = tf.while_loop(
      lambda k, *_: k < count * NUM_DRAWS, body, (0, x, start, draws, 0)
    )
    return found[-2], found[-1]

  return types.SimpleNamespace(
    loop=loop,
    start=np.random.default_rng(0).permutation(draws)[: case.batch],
    about={'num_draws': NUM_DRAWS, 'warm_up': repr(settings)},
  )


if __name__ == '__main__':
  main()
