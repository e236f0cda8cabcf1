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
"""Tools: each computes the diagonal of a case in its own way.

A way is a function `(case) -> run`, and `run(x, count)` evaluates `count`
times, inside one compiled loop where the framework has such loops, and returns
the last result as an array. Each evaluation starts from the result of the one
before, so that none can be left out, moved out of the loop, or computed for a
part of the coordinates only. A `run` may have an attribute `about`, a dict of
what it does. A way raises `Skipped` where it has no way.

Every framework is imported by its own file alone: a process that runs one tool
does not pay for the others, and a missing one is reported as missing.
"""

import dataclasses
import importlib

__all__ = [
  'GRADIENT',
  'NUM_STEPS',
  'OWN_SAMPLER',
  'SAMPLERS',
  'STEP',
  'TFP_DIAG',
  'TOOLS',
  'TRAJECTORIES',
  'Skipped',
  'Tool',
  'step_size',
]

# What an evaluation changes of the next one's input.
STEP = 1e-6

GRADIENT = 'one gradient'
TFP_DIAG = 'tfp_diag'
OWN_SAMPLER = 'tfp_diag MALA'


def step_size(case):
  """The variance of the noise of a Langevin step, for every sampler."""
  return 1.5 * case.num_coordinates ** (-1 / 3)


class Skipped(Exception):
  """A tool that has nothing to say to a case, with the reason."""


@dataclasses.dataclass(frozen=True)
class Tool:
  """One way to a diagonal.

  Attributes:
    framework: Python str, 'tensorflow', 'jax' or 'torch': what is loaded before
      anything is measured.
    way: Python str, 'file.function' in this package.
    arguments: Dict of keyword arguments of the way.
    family: Python str: 'unit', 'own' (tfp_diag as users call it), 'choice' (one
      of its modes and schedules), or the name of who competes.
    result: 'diagonal', 'trace' of it, 'state' of a sampler, or None for what is
      not compared.
    packages: Tuple of str, what must be there beside the framework.
    holds: 'passes', 'samples' (a matrix for each sample) or 'batch' (one for
      all samples together).
  """

  framework: str
  way: str
  arguments: dict = dataclasses.field(default_factory=dict)
  family: str = 'own'
  result: str = 'diagonal'
  packages: tuple = ()
  holds: str = 'passes'

  def make(self, case):
    """The `run` of this tool on a case."""
    file, function = self.way.split('.')
    module = importlib.import_module(f'benchmarks.tools.{file}')
    return getattr(module, function)(case, **self.arguments)

  def entries(self, case):
    """How many numbers its largest array has at least."""
    n = case.num_coordinates
    return {'passes': n, 'samples': n * n, 'batch': n * n * case.batch}[
      self.holds
    ] * case.batch


def _tensorflow(way, family, *, result='diagonal', holds='passes', **arguments):
  packages = ('tensorflow_probability',) if family == 'TFP' else ()
  return Tool('tensorflow', way, arguments, family, result, packages, holds)


TOOLS = {
  GRADIENT: _tensorflow('tensorflow_ways.gradient', 'unit', result=None),
  TFP_DIAG: _tensorflow('tfp_diag_ways.diagonal', 'own'),
  'tfp_diag, value + gradient + diagonal': _tensorflow(
    'tfp_diag_ways.everything', 'own'
  ),
  'tfp_diag, no plan': _tensorflow('tfp_diag_ways.without_plan', 'own'),
  'tfp_diag, graph': _tensorflow(
    'tfp_diag_ways.diagonal', 'own', jit_compile=False
  ),
  **{
    f'tfp_diag, {mode}, {schedule}': _tensorflow(
      'tfp_diag_ways.diagonal', 'choice', mode=mode, schedule=schedule
    )
    for mode in ('forward', 'reverse')
    for schedule in ('unrolled', 'pfor', 'while_loop')
  },
  'TFP diag_jacobian, XLA': _tensorflow(
    'tensorflow_ways.tfp_diag_jacobian', 'TFP', jit_compile=True
  ),
  'TFP diag_jacobian, graph': _tensorflow(
    'tensorflow_ways.tfp_diag_jacobian', 'TFP', jit_compile=False
  ),
  'batch_jacobian, XLA': _tensorflow(
    'tensorflow_ways.batch_jacobian',
    'TensorFlow',
    holds='samples',
    jit_compile=True,
  ),
  'batch_jacobian, graph': _tensorflow(
    'tensorflow_ways.batch_jacobian',
    'TensorFlow',
    holds='samples',
    jit_compile=False,
  ),
  'tf.hessians or jacobian, XLA': _tensorflow(
    'tensorflow_ways.full_jacobian',
    'TensorFlow',
    holds='batch',
    jit_compile=True,
  ),
  'tf.hessians or jacobian, graph': _tensorflow(
    'tensorflow_ways.full_jacobian',
    'TensorFlow',
    holds='batch',
    jit_compile=False,
  ),
  'JAX, one gradient': Tool(
    'jax', 'jax_ways.gradient', family='unit', result=None
  ),
  'JAX vmap(hessian)': Tool(
    'jax', 'jax_ways.dense', family='JAX', holds='samples'
  ),
  'JAX vmap(jacrev)': Tool(
    'jax', 'jax_ways.reverse', family='JAX', holds='samples'
  ),
  'JAX vmap(jvp(grad))': Tool(
    'jax', 'jax_ways.jvp', family='JAX', holds='samples'
  ),
  'JAX map(jvp(grad))': Tool('jax', 'jax_ways.jvp_one_by_one', family='JAX'),
  'JAX jet': Tool('jax', 'jax_ways.jet', family='JAX', holds='samples'),
  'asdex': Tool(
    'jax', 'jax_ways.compressed', family='asdex', packages=('asdex',)
  ),
  'folx, the trace': Tool(
    'jax',
    'jax_ways.laplacian',
    family='folx',
    result='trace',
    packages=('folx',),
    holds='samples',
  ),
  'torch vmap(hessian)': Tool(
    'torch', 'torch_ways.dense', family='torch', holds='samples'
  ),
  'torch vmap(jacrev)': Tool(
    'torch', 'torch_ways.reverse', family='torch', holds='samples'
  ),
  'torch vmap(jacrev), chunks': Tool(
    'torch',
    'torch_ways.reverse',
    {'chunk_size': 32},
    family='torch',
    holds='samples',
  ),
  'torch vmap(jvp(grad)), chunks': Tool(
    'torch',
    'torch_ways.jvp',
    {'chunk_size': 32},
    family='torch',
    holds='samples',
  ),
  'torch compile(vmap(jacrev))': Tool(
    'torch', 'torch_ways.compiled', family='torch', holds='samples'
  ),
}


def _sampler(way, family='own', framework='tensorflow', **arguments):
  packages = {'jax': (family,), 'tensorflow': ('tensorflow_probability',)}
  return Tool(framework, way, arguments, family, 'state', packages[framework])


SAMPLERS = {
  OWN_SAMPLER: _sampler('tfp_samplers.own_mala'),
  'TFP MALA': _sampler('tfp_samplers.tfp_mala', 'TFP'),
  'TFP HMC, one leapfrog step': _sampler('tfp_samplers.tfp_hmc', 'TFP'),
  'blackjax MALA': _sampler('jax_samplers.blackjax_mala', 'blackjax', 'jax'),
  'numpyro BarkerMH': _sampler('jax_samplers.numpyro_barker', 'numpyro', 'jax'),
  'tfp_diag MALA, volatility': _sampler(
    'tfp_samplers.own_mala', with_volatility=True
  ),
  'TFP MALA, volatility': _sampler(
    'tfp_samplers.tfp_mala', 'TFP', with_volatility=True
  ),
}

# Draws by so many steps each.
NUM_STEPS = 16
TRAJECTORIES = {
  'tfp_diag MALT': _sampler('tfp_samplers.own_malt'),
  'TFP HMC': _sampler('tfp_samplers.tfp_hmc', 'TFP', num_steps=NUM_STEPS),
  'blackjax HMC': _sampler('jax_samplers.blackjax_hmc', 'blackjax', 'jax'),
}
