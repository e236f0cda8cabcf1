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
"""Wrong arguments of every public name, and what is said about each.

    python -m tests.errors_table            # counts
    python -m tests.errors_table --all      # and every sentence

A refusal is clear if code of this package raises a ValueError or a TypeError
(or one of their kind) whose message names the argument and is a sentence; raw
if anything else is raised; silent if nothing is.
"""

import collections
import contextlib
import inspect
import os
import signal
import sys
import tempfile
import traceback
import typing
import warnings

import numpy as np
import scipy.sparse
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag import examples, mcmc, sparsity

ROOT = os.path.dirname(os.path.abspath(tfp_diag.__file__))
MODULES = {
  'tfp_diag': tfp_diag,
  'tfp_diag.sparsity': sparsity,
  'tfp_diag.mcmc': mcmc,
  'tfp_diag.examples': examples,
  'tfp_diag.examples.gaussian': examples.gaussian,
  'tfp_diag.examples.sp500': examples.sp500,
  'tfp_diag.examples.targets': examples.targets,
}
# What takes longer is being sampled, or differentiated.
_SECONDS = 15
_CLEAR = (
  AttributeError,
  ImportError,
  IndexError,
  LookupError,
  OSError,
  TypeError,
  ValueError,
)


class Row(typing.NamedTuple):
  """A public callable.

  Attributes:
    call: It.
    good: Function without arguments: keyword arguments that are right.
    kinds: Dict from the name of each argument to the kind of thing that it
      takes: a key of `WRONG`; with '?' in the end where None is right, too.
  """

  call: typing.Callable
  good: typing.Callable
  kinds: dict


class Found(typing.NamedTuple):
  """What became of a wrong argument."""

  name: str
  argument: str
  given: str
  verdict: str
  said: str


# What is wrong, by the kind of argument.

RAGGED = tf.ragged.constant([[1.0], [2.0, 3.0]])
NOTHING = {
  'None': None,
  'ragged': RAGGED,
  'an object': object(),
}
_NO_NUMBER = {
  **NOTHING,
  'text': 'seven',
  'a class': StopIteration,
  'empty': [],
  'not a number': float('nan'),
  'complex': 1j,
}
_NO_COUNT = {
  **_NO_NUMBER,
  'fraction': 1.5,
  'true': True,
  'negative': -1,
  'huge': 10**30,
  'a vector': [1, 2],
}
_NO_STATE = {
  **NOTHING,
  'text': 'seven',
  'words': ['a', 'b'],
  'a class': tf.Tensor,
  'empty': [],
  'an empty dict': {},
  'integers': tf.constant([1, 2]),
  'complex': tf.constant([1j, 2j]),
  'a part is None': [None],
  'unequal rows': [[1.0], [2.0, 3.0]],
  'sparse': tf.sparse.from_dense([[1.0, 0.0]]),
}
_NO_FUNCTION = {
  **NOTHING,
  'number': 7,
  'text': 'seven',
  'empty': [],
  'too many arguments': lambda a, b, c, d, e, f, g: a,
}
_RETURNS = {
  'returns None': lambda *a, **k: None,
  'returns text': lambda *a, **k: 'seven',
  'returns ragged': lambda *a, **k: RAGGED,
  'returns an object': lambda *a, **k: object(),
}
_RETURNS_A_WRONG_TENSOR = {
  **_RETURNS,
  'returns integers': lambda *a, **k: tf.cast(tf.nest.flatten(a)[0], tf.int32),
  'returns too many axes': lambda *a, **k: tf.ones([3, 1, 4, 1, 5]),
}
_NO_PATH = {
  **NOTHING,
  'number': 7.5,
  'empty': [],
  'a dict': {},
  'an empty path': '',
}
WRONG = {
  'anything': {},
  'function': _NO_FUNCTION,
  'any function': {
    k: v for k, v in _NO_FUNCTION.items() if k != 'too many arguments'
  },
  'function of a tensor': {**_NO_FUNCTION, **_RETURNS_A_WRONG_TENSOR},
  'function of tensors': {**_NO_FUNCTION, **_RETURNS},
  'scalar function': {
    **_NO_FUNCTION,
    **_RETURNS_A_WRONG_TENSOR,
    'returns a list': lambda *a, **k: [tf.nest.flatten(a)[0]] * 2,
    'returns a dict': lambda *a, **k: {'a': tf.nest.flatten(a)[0]},
  },
  'count': {**_NO_COUNT, 'zero': 0},
  'count or zero': _NO_COUNT,
  'positive': {
    **_NO_NUMBER,
    'true': True,
    'negative': -1.0,
    'zero': 0.0,
    'infinite': float('inf'),
    'a matrix of rows': [[1.0], [2.0, 3.0]],
  },
  'not negative': {
    **_NO_NUMBER,
    'true': True,
    'negative': -1.0,
    'a vector': [1.0, 2.0],
  },
  'probability': {
    **_NO_NUMBER,
    'true': True,
    'negative': -1.0,
    'zero': 0.0,
    'one': 1.0,
    'large': 7.0,
  },
  'flag': {
    **NOTHING,
    'text': 'yes',
    'number': 7,
    'empty': [],
    'a vector': [True, False],
  },
  'choice': {
    **NOTHING,
    'another': 'sideways',
    'number': 7,
    'empty': [],
    'an array': np.ones([2]),
  },
  'seed': {
    'text': 'seven',
    'fraction': 1.5,
    'true': True,
    'three': [1, 2, 3],
    'ragged': RAGGED,
    'an object': object(),
    'empty': [],
    'fractions': [0.5, 1.5],
    'a matrix': [[1, 2], [3, 4]],
    'a class': int,
    'None': None,
  },
  'state': _NO_STATE,
  # A start of chains, where half precision does not do.
  'chains': {
    **_NO_STATE,
    'half': tf.ones([2, 3], tf.float16),
  },
  'sample_shape': {
    'text': 'seven',
    'fraction': 1.5,
    'negative': [-1],
    'fractions': [2.5],
    'ragged': RAGGED,
    'an object': object(),
    'too long': [2, 3, 4, 5],
    'another': [7],
    'a dict': {'a': 2},
  },
  'shape': {
    'text': 'seven',
    'fraction': 1.5,
    'negative': [-1],
    'fractions': [2.5],
    **NOTHING,
  },
  'dtype': {
    **NOTHING,
    'text': 'seven',
    'integer': tf.int32,
    'number': 777,
  },
  'name': {'number': 7, 'empty': [], 'ragged': RAGGED, 'an object': object()},
  'text': {**NOTHING, 'number': 7, 'empty': []},
  'path': _NO_PATH,
  'file to write': {
    **_NO_PATH,
    'a folder': tempfile.gettempdir(),
    'no such folder': '/nowhere/plan.npz',
  },
  'file': {
    **_NO_PATH,
    'a folder': tempfile.gettempdir(),
    'no such file': '/nowhere/plan.npz',
    'another file': __file__,
  },
  'checkpoint': {
    **_NO_PATH,
    'a folder': tempfile.gettempdir(),
    'no such folder': '/nowhere/run',
    'a file': __file__,
  },
  'names': {'number': 7, 'an object': object(), 'numbers': [1, 2]},
  'axis name': {'number': 7, 'an object': object(), 'numbers': [1, 2]},
  'draws': {
    **NOTHING,
    'text': 'seven',
    'number': 7.0,
    'empty': [],
    'an empty dict': {},
    'words': np.array(['a', 'b']),
    'objects': np.array([None, object()]),
    'complex': np.ones([5, 2], np.complex64),
    'no axis of chains': np.ones([5]),
    'no draws': np.ones([0, 2]),
    'unequal rows': [[1.0], [2.0, 3.0]],
    'a part is None': {'a': None},
  },
  'trace': {
    'ragged': RAGGED,
    'an object': object(),
    'text': 'seven',
    'number': 7,
    'a vector': [1.0],
    'of other draws': {'is_accepted': np.ones([77, 2], bool)},
    'of words': {'is_accepted': np.array(['a'] * 5)},
    'of None': {'is_accepted': None},
  },
  'pattern': {
    **NOTHING,
    'text': 'seven',
    'number': 7,
    'a vector': [1, 2],
    'words': [['a', 'b'], ['c', 'd']],
    'of another size': np.ones([77, 77]),
    'unequal rows': [[1], [1, 2]],
    'not a number': np.full([3, 3], np.nan),
    'infinite': np.full([3, 3], np.inf),
    'sparse, not a number': scipy.sparse.csr_matrix(np.full([3, 3], np.nan)),
  },
  'colors': {
    **NOTHING,
    'text': 'seven',
    'number': 7,
    'negative': [-1, 0],
    'fractions': [0.5, 1.5],
    'of another size': list(range(77)) + [79],
    'unequal rows': [[1], [1, 2]],
  },
  'scale': {
    'text': 'seven',
    'ragged': RAGGED,
    'an object': object(),
    'negative': -1.0,
    'zero': 0.0,
    'not a number': float('nan'),
    'infinite': float('inf'),
    'of another size': tf.ones([77]),
    'a class': tf.linalg.LinearOperatorDiag,
    'a dict': {'a': 1.0},
    'empty': [],
    'complex': tf.constant(1j),
    'operator of another size': tf.linalg.LinearOperatorIdentity(77),
    'operator of another dtype': tf.linalg.LinearOperatorDiag(
      tf.ones([3], tf.float64)
    ),
  },
  'step size': {
    **_NO_NUMBER,
    'true': True,
    'negative': -1.0,
    'zero': 0.0,
    'infinite': float('inf'),
    'of another size': tf.ones([77]),
    'a dict': {'a': 1.0},
    'too many': [0.1, 0.2, 0.3, 0.4],
  },
  'kernel': {
    **NOTHING,
    'number': 7,
    'text': 'seven',
    'a class': tfp.mcmc.NoUTurnSampler,
    'a function': len,
  },
  'results': {
    **NOTHING,
    'number': 7,
    'text': 'seven',
    'a dict': {},
    'of another kernel': tfp.mcmc.HamiltonianMonteCarlo(
      lambda x: -tf.reduce_sum(x**2, -1), 0.1, 2
    ).bootstrap_results(tf.ones([2, 3])),
  },
  'key': {
    'text': 'seven',
    'fraction': 1.5,
    'an object': object(),
    'out of range': 77,
    'too many': (0, 0, 0, 0, 0),
  },
  'vector': {
    **NOTHING,
    'text': 'seven',
    'of another size': tf.ones([77]),
    'empty': [],
    'complex': tf.constant([1j] * 3),
  },
  'keyword': {},
}


def log_prob(x):
  return -0.5 * tf.reduce_sum(x**2, axis=-1)


def cube(x):
  return x**3


def state():
  return tf.constant([[1.0, 2.0, 3.0], [0.5, 1.5, 2.5]])


def plan_of(kind):
  make = {
    'jacobian': lambda: tfp_diag.plan_diag_jacobian(cube, state(), [2]),
    'hessian': lambda: tfp_diag.plan_diag_hessian(log_prob, state(), [2]),
    'gauss_newton': lambda: tfp_diag.plan_diag_gauss_newton(
      cube, state(), None, [2]
    ),
  }
  return make[kind]()


_JACOBIAN_PLAN, _HESSIAN_PLAN = plan_of('jacobian'), plan_of('hessian')
WRONG['plan of a Jacobian'] = WRONG['plan'] = {
  **NOTHING,
  'number': 7,
  'text': 'plan.npz',
  'the class': tfp_diag.Plan,
  'of a Hessian': _HESSIAN_PLAN,
  'of another size': tfp_diag.plan_diag_jacobian(cube, tf.ones([77])),
}
WRONG['plan of a Hessian'] = {
  **WRONG['plan of a Jacobian'],
  'of a Hessian': _JACOBIAN_PLAN,
}
WRONG['stop'] = {
  **WRONG['any function'],
  'the class': mcmc.StopWhen,
  'another class': dict,
}
WRONG['dataset'] = {
  **NOTHING,
  'number': 7,
  'text': 'seven',
  'empty': [],
  'of None': [None],
  'of scalars': [tf.constant(1.0)],
  'of ragged': [RAGGED],
}
WRONG['variables'] = {
  **NOTHING,
  'a tensor': tf.ones([3]),
  'number': 7,
  'text': 'seven',
  'empty': [],
}


def _model():
  return tfp.distributions.JointDistributionNamedAutoBatched(
    {
      'mean': tfp.distributions.Normal(0.0, 1.0),
      'seen': lambda mean: tfp.distributions.Normal(mean, 1.0),
    }
  )


WRONG['model'] = {
  **NOTHING,
  'number': 7,
  'text': 'seven',
  'a distribution': tfp.distributions.Normal(0.0, 1.0),
  'a class': tfp.distributions.JointDistributionNamed,
}
WRONG['log density'] = {**WRONG['model'], **WRONG['scalar function']}
WRONG['bijectors'] = {
  'number': 7,
  'text': 'seven',
  'a class': tfp.bijectors.Exp,
  'of another structure': {'a': tfp.bijectors.Exp()},
  'of matrices': tfp.bijectors.CorrelationCholesky(),
  'that no inverse belongs to': tfp.bijectors.AbsoluteValue(),
  'an object': object(),
}
WRONG['labels'] = {'number': 7, 'text': 'seven', 'an object': object()}
WRONG['names of axes'] = {
  **WRONG['labels'],
  'of another part': {'zz': ['school']},
  'too many': {'x': ['a', 'b', 'c']},
}
WRONG['keyword'] = {
  'text for numbers': ('seen', 'x'),
  'misspelled': ('num_chain', 4),
  'of TFP': ('num_leapfrog_steps', 4),
  'nonsense': ('qwertz', 4),
}
WRONG['distribution strategy'] = {
  'number': 7,
  'text': 'seven',
  'the class': tf.distribute.MirroredStrategy,
  'another': tf.distribute.get_strategy(),
}
# For a driver that makes the kernel, the strategy of one device is one.
WRONG['devices'] = {
  k: v for k, v in WRONG['distribution strategy'].items() if k != 'another'
}
WRONG['trace function'] = {
  **WRONG['any function'],
  'returns None': lambda *a: None,
  'returns an object': lambda *a: object(),
  'returns ragged': lambda *a: RAGGED,
  'too many arguments': lambda a, b, c, d, e, f, g: a,
}
WRONG['stop function'] = {
  'returns text': lambda *a: 'yes',
  'returns a number': lambda *a: 1,
  'returns several': lambda *a: [True, False],
  'returns ragged': lambda *a: RAGGED,
  'returns an object': lambda *a: object(),
}
WRONG['axes'] = {'number': 7, 'text': 'seven', 'an object': object()}
WRONG['flow'] = {**NOTHING, 'number': 7, 'the class': sparsity.Flow}
WRONG['flows'] = {
  **NOTHING,
  'number': 7,
  'a list': [1],
  'of numbers': {0: 7},
  'of text': {'a': sparsity.Flow.identity(3)},
}
WRONG['index'] = {
  **NOTHING,
  'text': 'seven',
  'fractions': [0.5],
  'too large': [77],
  'too small': [-7],
}
WRONG['op types'] = {
  'number': 7,
  'None': None,
  'empty': '',
  'an object': object(),
}
WRONG['quantiles'] = {
  **NOTHING,
  'text': 'seven',
  'number': 7,
  'too large': [7.0],
  'words': ['a'],
  'not a number': [float('nan')],
}
WRONG['chains or shape'] = {
  **{k: v for k, v in WRONG['count'].items() if k not in ('a vector', 'empty')},
  'negative sizes': [-1, 2],
}
WRONG['weights'] = {
  'text': 'seven',
  'ragged': RAGGED,
  'an object': object(),
  'of another size': tf.ones([77]),
  'complex': tf.constant([1j]),
  'two': [tf.ones([2, 3]), tf.ones([2, 3])],
  'not a number': float('nan'),
  'infinite': tf.fill([2, 3], float('-inf')),
}
WRONG['ys'] = {
  'text': 'seven',
  'ragged': RAGGED,
  'an object': object(),
}
WRONG['bytes'] = {k: v for k, v in WRONG['count'].items() if k != 'fraction'}
WRONG['order'] = {**_NO_COUNT, 'four': 4, 'one': 1}
WRONG['correlation'] = {**_NO_NUMBER, 'large': 7.0, 'true': True}
WRONG['number'] = {**_NO_NUMBER, 'infinite': float('inf'), 'true': True}
WRONG['condition number'] = {**WRONG['positive'], 'below one': 0.5}
WRONG['covariance'] = {
  **NOTHING,
  'text': 'seven',
  'number': 7.0,
  'a vector': [1.0, 2.0],
  'not symmetric': [[1.0, 0.5], [0.0, 1.0]],
  'not positive': [[-1.0, 0.0], [0.0, 1.0]],
  'not a number': [[float('nan'), 0.0], [0.0, 1.0]],
  'unequal rows': [[1.0], [2.0, 3.0]],
  'empty': np.ones([0, 0]),
  'complex': np.eye(2) * 1j,
}
WRONG['mean'] = {
  'text': 'seven',
  'ragged': RAGGED,
  'an object': object(),
  'of another size': [1.0, 2.0, 3.0],
  'not a number': [float('nan'), 0.0],
  'complex': [1j, 0.0],
}
WRONG['superchains'] = {**WRONG['count'], 'one': 1, 'no divisor': 3}
WRONG['axes of chains'] = {**_NO_COUNT, 'too many': 7}
WRONG['axes of a state'] = {**_NO_COUNT, 'too many': 5}
WRONG['R-hat'] = {**WRONG['positive'], 'below one': 0.5}
# Where an argument is not for what else is given.
WRONG['a number'] = {'three': 3}


def _bump(x):
  return 0.5 + tf.sigmoid(3.0 * x)


# Of any state: what is refused as soon as a kernel is made.
WRONG['known step size'] = {
  k: v
  for k, v in WRONG['step size'].items()
  if k not in ('of another size', 'too many')
} | {'a negative tensor': tf.constant(-1.0), 'a negative entry': [0.1, -1.0]}
WRONG['no scale'] = {
  'a word': 'local',
  'a class': tf.linalg.LinearOperatorDiag,
  'a class of ours': mcmc.LocalHessianPreconditioner,
  'a dict': {'a': 1.0},
  'a list of functions': [_bump],
  'a list of local ones': [mcmc.LocalHessianPreconditioner()],
}
WRONG['scale'] |= WRONG['no scale']
_CHANGING = {
  'a function of the position': _bump,
  'a local one': mcmc.LocalHessianPreconditioner(),
}
WRONG['constant scale'] = {**WRONG['scale'], **_CHANGING}
WRONG['no constant scale'] = {**WRONG['no scale'], **_CHANGING}
WRONG['adaptable kernel'] = {
  **WRONG['kernel'],
  'of TFP': tfp.mcmc.HamiltonianMonteCarlo(len, 0.1, 2),
  'MALA of TFP': tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(len, 0.1),
  'of trajectories': mcmc.MetropolisAdjustedLangevinTrajectories(
    len, 0.1, 0.3, 1.0
  ),
  'of a function': mcmc.PreconditionedMALA(len, 0.1, volatility_fn=_bump),
  'of a local scale': tfp.mcmc.SimpleStepSizeAdaptation(
    mcmc.PreconditionedMALA(len, 0.1, mcmc.LocalHessianPreconditioner()), 10
  ),
}
WRONG['pattern or None'] = WRONG['pattern']


# What is right.

_OF_DIAGONALS = {
  'schedule': 'choice',
  'parallel_iterations': 'count',
  'validate_args': 'flag',
  'name': 'name?',
}
_OF_PLANS = {
  'schedule': 'choice',
  'memory_limit': 'bytes?',
  'jit_compile': 'flag',
}


def _given(**arguments):
  """A function that returns them anew, Tensors from functions."""
  return lambda: {
    k: v() if k in ('xs', 'plan') and callable(v) else v
    for k, v in arguments.items()
  }


def _chains(**arguments):
  return lambda: {'target_log_prob_fn': log_prob, 'step_size': 0.1, **arguments}


def _started(make, **arguments):
  """Makes a kernel, and starts it: what a wrong argument must not survive."""

  def call(**given):
    start = given.pop('init_state', state())
    kernel = make(**given)
    return kernel.bootstrap_results(start)

  return Row(call, _chains(**arguments), {})


def _kernel_row(make, kinds, **arguments):
  return _started(make, **arguments)._replace(
    kinds={'target_log_prob_fn': 'scalar function', **kinds}
  )


_OF_LANGEVIN = {
  'step_size': 'step size',
  'preconditioner': 'scale?',
  'volatility_fn': 'function of a tensor?',
  'discretization': 'choice',
  'parallel_iterations': 'count',
  'experimental_shard_axis_names': 'axis name?',
  'experimental_chain_axis_names': 'axis name?',
  'validate_args': 'flag',
  'name': 'name?',
}


def kernels():
  """One of each class."""
  mala = mcmc.PreconditionedMALA(log_prob, 0.1)
  return {
    'PreconditionedMALA': mala,
    'UncalibratedPreconditionedLangevin': (
      mcmc.UncalibratedPreconditionedLangevin(log_prob, 0.1)
    ),
    'MetropolisAdjustedLangevinTrajectories': (
      mcmc.MetropolisAdjustedLangevinTrajectories(log_prob, 0.1, 0.3, 1.0)
    ),
    'DiagonalPreconditionerAdaptation': mcmc.DiagonalPreconditionerAdaptation(
      mala, 10
    ),
    'FisherAdaptiveMALA': mcmc.FisherAdaptiveMALA(log_prob, 0.1, 10, 2),
    'FisherDivergenceMALA': mcmc.FisherDivergenceMALA(log_prob, 0.1, 10),
  }


def _rows_of_kernels():
  rows = {}
  for name, kernel in kernels().items():
    results = kernel.bootstrap_results(state())
    rows[f'{name}.bootstrap_results'] = Row(
      kernel.bootstrap_results,
      lambda: {'init_state': state()},
      {'init_state': 'chains'},
    )
    rows[f'{name}.one_step'] = Row(
      kernel.one_step,
      lambda results=results: {
        'current_state': state(),
        'previous_kernel_results': results,
        'seed': (0, 1),
      },
      {
        'current_state': 'chains',
        'previous_kernel_results': 'results',
        'seed': 'seed?',
      },
    )
    rows[f'{name}.copy'] = Row(
      kernel.copy,
      lambda: {'name': 'copied'},
      {'override_parameter_kwargs': 'keyword'},
    )
    if name != 'DiagonalPreconditionerAdaptation':
      rows[f'{name}.copy, known'] = Row(
        kernel.copy,
        lambda: {'step_size': 0.2},
        {'step_size': 'known step size'},
      )
  mala = kernels()['PreconditionedMALA']
  trajectories = kernels()['MetropolisAdjustedLangevinTrajectories']
  rows['DiagonalPreconditionerAdaptation, made'] = Row(
    mcmc.DiagonalPreconditionerAdaptation,
    lambda: {'inner_kernel': mala, 'num_adaptation_steps': 10},
    {'inner_kernel': 'adaptable kernel'},
  )
  rows['PreconditionedMALA.copy, scale'] = Row(
    mala.copy, lambda: {'preconditioner': 0.2}, {'preconditioner': 'no scale?'}
  )
  rows['MetropolisAdjustedLangevinTrajectories.copy, scale'] = Row(
    trajectories.copy,
    lambda: {'preconditioner': 0.2},
    {'preconditioner': 'no constant scale?'},
  )
  return rows


def _saved_plan():
  path = os.path.join(tempfile.gettempdir(), f'plan_{os.getpid()}.npz')
  _JACOBIAN_PLAN.save(path)
  return path


def _over_dataset(**given):
  return tfp_diag.diag_hessian_over_dataset(**given)


_W = tf.Variable([1.0, 2.0, 3.0])


def _loss(x):
  return tf.reduce_mean(tf.linalg.matvec(x, _W) ** 2)


def _augmented(make):
  def call(time=0.5, state_log_det=None, **given):
    augmented = make(**given)
    return augmented(time, state_log_det or (state(), tf.zeros([2, 3])))

  return call


def _record(cls):
  """A result: nobody but this package makes one."""
  return Row(cls, dict, dict.fromkeys(inspect.signature(cls).parameters, ''))


def _sampled(**given):
  return mcmc.sample(
    **{
      'kernel': kernels()['PreconditionedMALA'],
      'current_state': state(),
      'num_results': 2,
      'jit_compile': False,
      'seed': 1,
      'progress_bar': False,
      **given,
    }
  )


_DRAWS = np.random.default_rng(0).normal(size=[5, 2, 3])


def rows():
  """All rows: a dict from public names to `Row`s."""
  lazy = {
    'xs': 'state',
    'sample_shape': 'sample_shape?',
    'chunk_size': 'count?',
  }
  found = {
    'diag_jacobian': Row(
      tfp_diag.diag_jacobian,
      _given(xs=state, fn=cube, sample_shape=[2]),
      {
        'xs': 'state',
        'ys': 'ys?',
        'sample_shape': 'sample_shape?',
        'fn': 'function of a tensor',
        'plan': 'plan of a Jacobian?',
        'mode': 'choice',
        **_OF_DIAGONALS,
      },
    ),
    'diag_hessian': Row(
      tfp_diag.diag_hessian,
      _given(xs=state, fn=log_prob),
      {
        'xs': 'state',
        'sample_shape': 'sample_shape?',
        'fn': 'scalar function',
        'plan': 'plan of a Hessian?',
        'mode': 'choice',
        **_OF_DIAGONALS,
      },
    ),
    'unmixed_derivatives': Row(
      tfp_diag.unmixed_derivatives,
      _given(xs=state, fn=log_prob),
      {
        'xs': 'state',
        'sample_shape': 'sample_shape?',
        'fn': 'scalar function',
        'order': 'order',
        'plan': 'plan of a Hessian?',
        **_OF_DIAGONALS,
      },
    ),
    'diag_gauss_newton': Row(
      tfp_diag.diag_gauss_newton,
      _given(xs=state, residual_fn=cube, sample_shape=[2]),
      {
        'xs': 'state',
        'sample_shape': 'sample_shape',
        'residual_fn': 'function of tensors',
        'weights': 'weights?',
        'plan': 'plan of a Hessian?',
        **_OF_DIAGONALS,
      },
    ),
    'plan_diag_jacobian': Row(
      tfp_diag.plan_diag_jacobian,
      _given(xs=state, fn=cube, sample_shape=[2]),
      {
        'xs': 'state',
        'sample_shape': 'sample_shape?',
        'fn': 'function of a tensor',
        'mode': 'choice',
        'pattern': 'pattern?',
        **_OF_PLANS,
      },
    ),
    'plan_diag_hessian': Row(
      tfp_diag.plan_diag_hessian,
      _given(xs=state, fn=log_prob, sample_shape=[2]),
      {
        'xs': 'state',
        'sample_shape': 'sample_shape?',
        'fn': 'scalar function',
        'mode': 'choice',
        'pattern': 'pattern?',
        **_OF_PLANS,
      },
    ),
    'plan_diag_gauss_newton': Row(
      tfp_diag.plan_diag_gauss_newton,
      _given(xs=state, residual_fn=cube, sample_shape=[2]),
      {
        'xs': 'state',
        'sample_shape': 'sample_shape',
        'residual_fn': 'function of tensors',
        'weights': 'weights?',
        **_OF_PLANS,
      },
    ),
    'jacobian': Row(
      tfp_diag.jacobian,
      _given(xs=state, fn=cube, sample_shape=[2]),
      {
        'xs': 'state',
        'fn': 'function of tensors',
        'sample_shape': 'sample_shape?',
        'mode': 'choice',
        'strict': 'flag',
        'chunk_size': 'count?',
        'name': 'name?',
      },
    ),
    'hessian': Row(
      tfp_diag.hessian,
      _given(xs=state, fn=log_prob, sample_shape=[2]),
      {
        'xs': 'state',
        'fn': 'scalar function',
        'sample_shape': 'sample_shape?',
        'mode': 'choice',
        'strict': 'flag',
        'chunk_size': 'count?',
        'name': 'name?',
      },
    ),
    'LazyJacobian': Row(
      lambda **given: tfp_diag.LazyJacobian(**given)[0, 0],
      _given(xs=state, fn=cube, sample_shape=[2]),
      {'fn': 'function of tensors', **lazy},
    ),
    'LazyHessian': Row(
      lambda **given: tfp_diag.LazyHessian(**given)[0, 0],
      _given(xs=state, fn=log_prob, sample_shape=[2]),
      {'fn': 'scalar function', **lazy},
    ),
    'stochastic_diag_jacobian': Row(
      tfp_diag.stochastic_diag_jacobian,
      _given(xs=state, fn=cube, sample_shape=[2], num_probes=2, seed=(0, 1)),
      {
        'xs': 'state',
        'fn': 'function of a tensor',
        'num_probes': 'count',
        'seed': 'seed?',
        'sample_shape': 'sample_shape?',
        'plan': 'plan of a Jacobian?',
        'method': 'choice',
        'tolerance': 'not negative?',
        'chunk_size': 'count',
        'name': 'name?',
      },
    ),
    'stochastic_diag_hessian': Row(
      tfp_diag.stochastic_diag_hessian,
      _given(
        xs=state, fn=log_prob, sample_shape=[2], num_probes=2, seed=(0, 1)
      ),
      {
        'xs': 'state',
        'fn': 'scalar function',
        'num_probes': 'count',
        'seed': 'seed?',
        'sample_shape': 'sample_shape?',
        'plan': 'plan of a Hessian?',
        'method': 'choice',
        'tolerance': 'not negative?',
        'chunk_size': 'count',
        'name': 'name?',
      },
    ),
    'diag_hessian_over_dataset': Row(
      tfp_diag.diag_hessian_over_dataset,
      lambda: {
        'loss_fn': _loss,
        'variables': _W,
        'dataset': [tf.ones([2, 3])],
        'method': 'stochastic',
        'num_probes': 2,
        'seed': (0, 1),
        'progress_bar': False,
      },
      {
        'loss_fn': 'scalar function',
        'variables': 'variables',
        'dataset': 'dataset',
        'reduction': 'choice',
        'progress_bar': 'flag?',
        'method': 'choice',
        'num_probes': 'count?',
        'seed': 'seed?',
        'chunk_size': 'count',
      },
    ),
    'diag_hessian_over_dataset without probes': Row(
      tfp_diag.diag_hessian_over_dataset,
      lambda: {
        'loss_fn': _loss,
        'variables': _W,
        'dataset': [tf.ones([2, 3])],
        'progress_bar': False,
      },
      {'num_probes': 'a number', 'seed': 'a number'},
    ),
    'trace_jacobian_exact, made': Row(
      tfp_diag.trace_jacobian_exact,
      lambda: {
        'ode_fn': lambda t, x: t * x**3,
        'state_shape': [2, 3],
        'dtype': tf.float32,
      },
      {
        'state_shape': 'shape',
        'dtype': 'dtype',
        'event_ndims': 'axes of a state',
      },
    ),
    'trace_jacobian_exact': Row(
      _augmented(tfp_diag.trace_jacobian_exact),
      lambda: {
        'ode_fn': lambda t, x: t * x**3,
        'state_shape': [2, 3],
        'dtype': tf.float32,
      },
      {
        'ode_fn': 'function of a tensor',
        'state_shape': 'shape',
        'dtype': 'dtype',
        'event_ndims': 'axes of a state',
      },
    ),
    'trace_jacobian_hutchinson': Row(
      _augmented(tfp_diag.trace_jacobian_hutchinson),
      lambda: {
        'ode_fn': lambda t, x: t * x**3,
        'state_shape': [2, 3],
        'dtype': tf.float32,
      },
      {
        'ode_fn': 'function of a tensor',
        'state_shape': 'shape',
        'dtype': 'dtype',
        'num_probes': 'count',
        'num_samples': 'count?',
        'seed': 'seed?',
      },
    ),
    'clear_cache': Row(tfp_diag.clear_cache, dict, {}),
    'load_plan': Row(
      tfp_diag.load_plan,
      lambda: {'path': _saved_plan()},
      {'path': 'file', 'fn': 'any function?'},
    ),
    'Plan': Row(
      tfp_diag.Plan,
      lambda: {
        'kind': 'hessian',
        'colors': [0, 0],
        'pattern': sparsity.SparsityPattern(np.eye(2)),
        'mode': 'reverse_over_reverse',
        'schedule': 'pfor',
        'chunk_size': 10,
        'sample_rank': 0,
        'event_shapes': ((2,),),
      },
      {
        'kind': 'choice',
        'colors': 'colors',
        'pattern': 'pattern',
        'mode': 'choice',
        'schedule': 'choice',
        'chunk_size': 'count',
        'sample_rank': 'count or zero',
        'event_shapes': 'axes',
        'notes': 'names',
        'fn': 'any function?',
        'jit_compile': 'flag',
        'ways': 'anything',
        'digest': 'anything',
        'num_samples': 'count',
        'is_given': 'flag',
      },
    ),
    'Plan.__call__': Row(
      _JACOBIAN_PLAN,
      lambda: {'xs': state()},
      {'xs': 'state'},
    ),
    'Plan.save': Row(
      _JACOBIAN_PLAN.save,
      lambda: {'path': _saved_plan()},
      {'path': 'file to write'},
    ),
    'SparsityPattern': Row(
      sparsity.SparsityPattern,
      lambda: {'matrix': np.eye(3)},
      {
        'matrix': 'matrix',
        'row_shapes': 'axes?',
        'column_shapes': 'axes?',
        'fallback_ops': 'names',
        'notes': 'names',
      },
    ),
    'SparsityPattern.spy': Row(
      sparsity.SparsityPattern(np.eye(3)).spy,
      dict,
      {'ax': 'figure?', 'coloring': 'coloring?'},
    ),
    'Coloring': Row(
      sparsity.Coloring, lambda: {'colors': [0, 1]}, {'colors': 'colors'}
    ),
    'color_diagonal': Row(
      sparsity.color_diagonal,
      lambda: {'pattern': np.eye(3)},
      {'pattern': 'square pattern'},
    ),
    'check_diagonal_coloring': Row(
      sparsity.check_diagonal_coloring,
      lambda: {'pattern': np.eye(3), 'colors': [0, 0, 0]},
      {'pattern': 'pattern', 'colors': 'colors'},
    ),
    'jacobian_sparsity': Row(
      sparsity.jacobian_sparsity,
      _given(xs=state, fn=cube, sample_shape=[2]),
      {
        'xs': 'state',
        'fn': 'function of tensors',
        'sample_shape': 'sample_shape?',
      },
    ),
    'hessian_sparsity': Row(
      sparsity.hessian_sparsity,
      _given(xs=state, fn=log_prob),
      {'xs': 'state', 'fn': 'scalar function', 'sample_shape': 'sample_shape?'},
    ),
    'register_rule': Row(
      lambda op_types, **known: sparsity.register_rule(op_types, **known)(
        known.pop('rule', len)
      ),
      lambda: {'op_types': 'NoSuchOp'},
      {'op_types': 'op types', 'known': 'keyword'},
    ),
    'Structure': Row(
      sparsity.Structure,
      dict,
      {'arrows': 'tuple', 'curved': 'tuple', 'pairs': 'tuple'},
    ),
    'Structure.linear': Row(
      sparsity.Structure.linear,
      lambda: {'flows': {0: sparsity.Flow.identity(3)}},
      {'flows': 'flows', 'output': 'count or zero', 'kwargs': ''},
    ),
    'Structure.nonlinear': Row(
      sparsity.Structure.nonlinear,
      lambda: {'flows': {0: sparsity.Flow.identity(3)}},
      {'flows': 'flows', 'output': 'count or zero', 'kwargs': ''},
    ),
    'Flow': Row(
      sparsity.Flow,
      lambda: {'rows': 2, 'columns': 2},
      {'rows': 'count or zero', 'columns': 'count or zero', 'stages': ''},
    ),
    'Flow.identity': Row(
      sparsity.Flow.identity, lambda: {'size': 2}, {'size': 'count or zero'}
    ),
    'Flow.gather': Row(
      sparsity.Flow.gather,
      lambda: {'index': [0, 1], 'columns': 2},
      {'index': 'index', 'columns': 'count or zero'},
    ),
    'Flow.collect': Row(
      sparsity.Flow.collect,
      lambda: {'segment': [0, 1], 'rows': 2},
      {'segment': 'index', 'rows': 'count or zero'},
    ),
    'Flow.matrix': Row(
      sparsity.Flow.matrix, lambda: {'matrix': np.eye(2)}, {'matrix': 'matrix'}
    ),
    'Flow.pairs': Row(
      sparsity.Flow.pairs,
      lambda: {'outputs': [0], 'inputs': [1], 'rows': 2, 'columns': 2},
      {
        'outputs': 'index',
        'inputs': 'index',
        'rows': 'count or zero',
        'columns': 'count or zero',
      },
    ),
    'Flow.dense': Row(
      sparsity.Flow.dense,
      lambda: {'rows': 2, 'columns': 2},
      {'rows': 'count or zero', 'columns': 'count or zero'},
    ),
    'Flow.none': Row(
      sparsity.Flow.none,
      lambda: {'rows': 2, 'columns': 2},
      {'rows': 'count or zero', 'columns': 'count or zero'},
    ),
    'Flow.then': Row(
      sparsity.Flow.identity(2).then,
      lambda: {'other': sparsity.Flow.identity(2)},
      {'other': 'flow'},
    ),
  }
  for lazily in ('LazyJacobian', 'LazyHessian'):
    fn = cube if lazily == 'LazyJacobian' else log_prob
    matrix = getattr(tfp_diag, lazily)(fn, state(), [2])
    kind = 'Jacobian' if lazily == 'LazyJacobian' else 'Hessian'
    found |= {
      f'{lazily}.__getitem__': Row(
        matrix.__getitem__, lambda: {'key': 0}, {'key': 'key'}
      ),
      f'{lazily}.matvec': Row(
        matrix.matvec, lambda: {'v': tf.ones([3])}, {'v': 'vector'}
      ),
      f'{lazily}.rmatvec': Row(
        matrix.rmatvec, lambda: {'u': tf.ones([3])}, {'u': 'vector'}
      ),
      f'{lazily}.__matmul__': Row(
        lambda v, matrix=matrix: matrix @ v,
        lambda: {'v': tf.ones([3])},
        {'v': 'one vector'},
      ),
      f'{lazily}.diag': Row(
        getattr(tfp_diag, lazily)(fn, state(), [2]).diag,
        dict,
        {'plan': f'plan of a {kind}?'},
      ),
    }
  for cls in (
    tfp_diag.DatasetDiagonal,
    tfp_diag.GaussNewtonDiagonal,
    tfp_diag.StochasticDiagonal,
    tfp_diag.UnmixedDerivatives,
    mcmc.DiagonalPreconditionerAdaptationResults,
    mcmc.DrawsAndTrace,
    mcmc.FisherAdaptiveMALAResults,
    mcmc.FisherDivergenceMALAResults,
    mcmc.LangevinTerms,
    mcmc.LoadedDraws,
    mcmc.MetropolisAdjustedLangevinTrajectoriesResults,
    mcmc.PosteriorDraws,
    mcmc.PreconditionedMALAResults,
    mcmc.SampleResults,
    mcmc.Summary,
    mcmc.UncalibratedPreconditionedLangevinResults,
    mcmc.WarmUp,
    mcmc.Window,
  ):
    found[cls.__name__] = _record(cls)
  return found | _rows_of_mcmc() | _rows_of_kernels() | _rows_of_examples()


WRONG['one vector'] = {**WRONG['vector'], 'a matrix': tf.ones([3, 2])}
WRONG['matrix'] = {
  k: v for k, v in WRONG['pattern'].items() if k != 'of another size'
}
WRONG['square pattern'] = {**WRONG['matrix'], 'not square': np.ones([2, 3])}
WRONG['figure'] = {'number': 7, 'text': 'seven', 'an object': object()}
WRONG['coloring'] = {
  'number': 7,
  'text': 'seven',
  'of another size': sparsity.Coloring(np.zeros([77], np.int32)),
}
WRONG['tuple'] = {'number': 7, 'text': 'seven', 'an object': object()}


def _rows_of_mcmc():
  langevin = _OF_LANGEVIN
  adapting = {
    'num_adaptation_steps': 'count or zero',
    'experimental_chain_axis_names': 'axis name?',
    'step_size': 'step size',
    'name': 'name?',
  }
  draws = {'draws': 'draws', 'chain_ndims': 'axes of chains'}
  of_model = {
    'joint_dist': _model(),
    'n_draws': 2,
    'n_chains': 2,
    'num_adaptation_steps': 2,
    'seen': 1.0,
    'seed': 1,
  }
  of_density = {
    'joint_dist_or_log_prob': log_prob,
    'init': state(),
    'num_draws': 2,
    'num_warmup_steps': 2,
    'jit_compile': False,
    'seed': 1,
    'progress_bar': False,
  }
  return {
    'PreconditionedMALA': _kernel_row(mcmc.PreconditionedMALA, langevin),
    'UncalibratedPreconditionedLangevin': _kernel_row(
      mcmc.UncalibratedPreconditionedLangevin,
      {**langevin, 'compute_acceptance': 'flag'},
    ),
    'MetropolisAdjustedLangevinTrajectories': _kernel_row(
      mcmc.MetropolisAdjustedLangevinTrajectories,
      {
        **{
          k: v
          for k, v in langevin.items()
          if k not in ('volatility_fn', 'discretization', 'parallel_iterations')
        },
        'preconditioner': 'constant scale?',
        'integration_time': 'positive',
        'damping': 'not negative',
        'jitter': 'share',
        'max_num_steps': 'count',
      },
      integration_time=0.3,
      damping=1.0,
    ),
    'DiagonalPreconditionerAdaptation': Row(
      lambda **given: mcmc.DiagonalPreconditionerAdaptation(
        **given
      ).bootstrap_results(state()),
      lambda: {
        'inner_kernel': kernels()['PreconditionedMALA'],
        'num_adaptation_steps': 10,
      },
      {
        'inner_kernel': 'adaptable kernel',
        'num_adaptation_steps': 'count or zero',
        'estimator': 'choice',
        'experimental_reduce_chain_axis_names': 'axis name?',
        'name': 'name?',
      },
    ),
    'FisherAdaptiveMALA': _kernel_row(
      mcmc.FisherAdaptiveMALA,
      {
        **adapting,
        'num_step_size_steps': 'count or zero',
        'damping': 'positive',
      },
      num_adaptation_steps=10,
      num_step_size_steps=2,
    ),
    'FisherDivergenceMALA': _kernel_row(
      mcmc.FisherDivergenceMALA,
      {**adapting, 'discretization': 'choice'},
      num_adaptation_steps=10,
    ),
    'LocalHessianPreconditioner': Row(
      mcmc.LocalHessianPreconditioner,
      dict,
      {'softness': 'positive', 'floor': 'not negative'},
    ),
    'StopWhen': Row(
      mcmc.StopWhen,
      lambda: {'max_rhat': 1.1, 'min_draws': 2},
      {
        'max_rhat': 'R-hat',
        'min_ess': 'positive?',
        'min_draws': 'count or zero',
        'chain_ndims': 'count or zero?',
      },
    ),
    'StopWhen, asked': Row(
      lambda **given: mcmc.StopWhen(**given)(_DRAWS),
      lambda: {'max_rhat': 1.1, 'min_draws': 2},
      {'chain_ndims': 'axes of chains?'},
    ),
    'StopWhen.__call__': Row(
      mcmc.StopWhen(max_rhat=1.1, min_draws=2),
      lambda: {'draws': _DRAWS},
      {'draws': 'draws so far', 'trace': 'trace of others?'},
    ),
    'ess': Row(
      mcmc.ess,
      lambda: {'draws': _DRAWS},
      {**draws, 'kind': 'choice'},
    ),
    'rhat': Row(mcmc.rhat, lambda: {'draws': _DRAWS}, draws),
    'nested_rhat': Row(
      mcmc.nested_rhat,
      lambda: {'draws': _DRAWS, 'num_superchains': 2},
      {**draws, 'num_superchains': 'superchains'},
    ),
    'summarize': Row(
      mcmc.summarize,
      lambda: {'draws': _DRAWS},
      {
        'draws': 'draws',
        'trace': 'trace?',
        'chain_ndims': 'axes of chains?',
        'quantiles': 'quantiles',
        'num_superchains': 'superchains?',
        'min_ess': 'not negative',
        'var_names': 'names?',
      },
    ),
    'to_arviz': Row(
      mcmc.to_arviz,
      lambda: {'draws': _DRAWS},
      {
        'draws': 'draws so far',
        'trace': 'trace?',
        'chain_ndims': 'axes of chains?',
        'var_names': 'names?',
        'coords': 'labels?',
        'dims': 'names of axes?',
        'save_warmup': 'flag',
      },
    ),
    'load_draws': Row(
      mcmc.load_draws,
      lambda: {'checkpoint': 'nowhere'},
      {'checkpoint': 'checkpoint'},
    ),
    'sample': Row(
      _sampled,
      dict,
      {
        'kernel': 'kernel',
        'current_state': 'any state',
        'num_results': 'count or zero',
        'num_burnin_steps': 'count or zero',
        'num_steps_between_results': 'count or zero',
        'block_size': 'count',
        'previous_kernel_results': 'results?',
        'trace_fn': 'trace function?',
        'seed': 'seed?',
        'progress_bar': 'flag?',
        'checkpoint': 'path?',
        'resume': 'flag',
        'draws_on_disk': 'flag',
        'stop_when': 'stop?',
        'jit_compile': 'flag',
        'strategy': 'distribution strategy?',
        'name': 'name?',
      },
    ),
    'sample, asked whether to stop': Row(
      lambda stop_when: _sampled(
        stop_when=stop_when, num_results=4, block_size=2
      ),
      lambda: {'stop_when': lambda draws, trace: False},
      {'stop_when': 'stop function'},
    ),
    'sample_posterior': Row(
      mcmc.sample_posterior,
      lambda: dict(of_density),
      {
        'joint_dist_or_log_prob': 'log density',
        'num_draws': 'count',
        'num_chains': 'count',
        'kernel': 'choice',
        'num_warmup_steps': 'count or zero',
        'preconditioner': 'choice',
        'init': 'chains of a run',
        'bijectors': 'bijectors?',
        'target_accept_prob': 'probability?',
        'max_num_steps': 'count',
        'num_steps_between_results': 'count or zero?',
        'use_curvature': 'flag',
        'stop_when': 'stop?',
        'progress_bar': 'flag?',
        'checkpoint': 'path?',
        'resume': 'flag',
        'jit_compile': 'flag',
        'seed': 'seed?',
        'observed': 'keyword',
      },
    ),
    'windowed_adaptive_mala': Row(
      mcmc.windowed_adaptive_mala,
      lambda: dict(of_model),
      {
        'n_draws': 'count or zero',
        'joint_dist': 'model',
        'n_chains': 'chains or shape',
        'num_adaptation_steps': 'count or zero',
        'preconditioner': 'scale?',
        'discretization': 'choice',
        'init': 'start?',
        'bijectors': 'bijectors?',
        'init_step_size': 'positive?',
        'target_accept_prob': 'probability',
        'discard_tuning': 'flag',
        'num_steps_between_results': 'count or zero',
        'previous_kernel_results': 'results?',
        'trace_fn': 'trace function?',
        'stop_when': 'stop?',
        'progress_bar': 'flag?',
        'checkpoint': 'path?',
        'resume': 'flag',
        'strategy': 'devices?',
        'jit_compile': 'flag',
        'seed': 'seed?',
        'pins': 'keyword',
      },
    ),
  }


WRONG['chains of a run'] = {
  **WRONG['chains'],
  'no chains': tf.ones([0, 3]),
  'a number': 0.0,
}
WRONG['start'] = {
  k: v for k, v in WRONG['chains of a run'].items() if k != 'complex'
}
WRONG['trace of others'] = {
  k: v
  for k, v in WRONG['trace'].items()
  if k not in ('of other draws', 'of words')
}
# Of a run that has just begun there are none yet.
WRONG['draws so far'] = {
  k: v for k, v in WRONG['draws'].items() if k != 'no draws'
}
WRONG['share'] = {**WRONG['not negative'], 'large': 7.0}
WRONG['any state'] = {
  k: v for k, v in WRONG['chains'].items() if k not in ('integers', 'complex')
}


def _rows_of_examples():
  gaussian = examples.gaussian
  size = {'num_dims': 'count'}
  return {
    'Target': Row(
      examples.Target,
      lambda: {
        'name': 'mine',
        'description': 'A line.',
        'target_log_prob_fn': log_prob,
        'init': len,
        'parameter_names': ('a',),
        'to_parameters': len,
      },
      {
        'name': 'text',
        'description': 'text',
        'target_log_prob_fn': 'any function',
        'init': 'any function',
        'parameter_names': 'names',
        'to_parameters': 'any function',
        'reference_mean': 'mean?',
        'reference_sd': 'mean?',
        'marginal_pdf': 'labels',
        'reference': 'text',
      },
    ),
    'gaussian.Gaussian': Row(
      gaussian.Gaussian,
      lambda: {
        'name': 'g',
        'mean': np.zeros(2),
        'structure': gaussian.isotropic(2).structure,
      },
      {'name': 'text', 'mean': 'own mean', 'structure': 'own structure'},
    ),
    'gaussian.Gaussian.log_prob': Row(
      gaussian.isotropic(3).log_prob, lambda: {'x': state()}, {'x': 'point'}
    ),
    'gaussian.Gaussian.diag_hessian': Row(
      gaussian.isotropic(3).diag_hessian, lambda: {'x': state()}, {'x': 'point'}
    ),
    'gaussian.ar1': Row(
      gaussian.ar1,
      lambda: {'num_dims': 3},
      {**size, 'coefficient': 'correlation', 'scale': 'positive'},
    ),
    'gaussian.arrowhead': Row(
      gaussian.arrowhead,
      lambda: {'num_dims': 3},
      {
        **size,
        'slope': 'number',
        'hub_scale': 'positive',
        'scale': 'positive',
      },
    ),
    'gaussian.axis_aligned': Row(
      gaussian.axis_aligned,
      lambda: {'num_dims': 3},
      {**size, 'condition_number': 'condition number'},
    ),
    'gaussian.isotropic': Row(
      gaussian.isotropic,
      lambda: {'num_dims': 3},
      {**size, 'scale': 'positive'},
    ),
    'gaussian.from_covariance': Row(
      gaussian.from_covariance,
      lambda: {'covariance': np.eye(2)},
      {'covariance': 'covariance', 'mean': 'mean?'},
    ),
    'gaussian.three_dimensional': Row(gaussian.three_dimensional, dict, {}),
    'sp500.closing_prices': Row(examples.sp500.closing_prices, dict, {}),
    'targets.get': Row(
      examples.targets.get, lambda: {'name': 'banana'}, {'name': 'choice'}
    ),
  }


WRONG['own mean'] = {
  k: v for k, v in WRONG['mean'].items() if k != 'of another size'
}
WRONG['own structure'] = {**NOTHING, 'number': 7, 'text': 'seven'}
WRONG['point'] = {
  **NOTHING,
  'text': 'seven',
  'integers': tf.constant([1, 2, 3]),
  'of another size': tf.ones([77]),
  'complex': tf.constant([1j] * 3),
}


@contextlib.contextmanager
def _at_most(seconds):
  def stop(*_):
    raise TimeoutError

  before = signal.signal(signal.SIGALRM, stop)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def check(name, row, argument, given, value):
  """Calls with one wrong argument.

  Args:
    name: Python str, the public name.
    row: `Row`.
    argument: Python str.
    given: Python str, what is wrong.
    value: What is given in place of what is right.

  Returns:
    `Found`.
  """
  arguments = row.good()
  named = argument
  if row.kinds[argument].rstrip('?') == 'keyword':
    named, value = value
    arguments[named] = value
  else:
    arguments[argument] = value
  with warnings.catch_warnings(), _at_most(_SECONDS):
    warnings.simplefilter('ignore')
    try:
      row.call(**arguments)
    except TimeoutError:
      return Found(name, argument, given, 'silent', 'It runs.')
    except Exception as error:
      verdict = 'clear' if _is_clear(error, named) else 'raw'
      said = f'{type(error).__name__}: {error}'
      return Found(name, argument, given, verdict, said)
  return Found(name, argument, given, 'silent', '')


_ALSO_CALLED = {
  'init_state': 'state',
  'current_state': 'state',
  'key': 'ndex',
  'draws': 'draws',
  'op_types': 'op type',
}


def _is_clear(error, argument):
  """Whether it is a sentence of this package about that argument."""
  text = str(error)
  last = traceback.extract_tb(error.__traceback__)[-1]
  return (
    isinstance(error, _CLEAR)
    and os.path.abspath(last.filename).startswith(ROOT)
    and (
      f'`{argument}`' in text
      or repr(argument) in text
      or _ALSO_CALLED.get(argument, f'`{argument}`') in text
    )
    and len(text) >= 30
    and not text.startswith('in user code')
  )


def cases():
  """Yields (name, row, argument, given, value)."""
  for name, row in rows().items():
    for argument, kind in row.kinds.items():
      may_be_none = kind.endswith('?')
      for given, value in WRONG[kind.rstrip('?') or 'anything'].items():
        if value is None and may_be_none:
          continue
        yield name, row, argument, given, value


def missing():
  """Public names, or arguments of them, that have no row."""
  known = rows()
  for path, module in MODULES.items():
    short = path.partition('examples.')[2]
    for public in module.__all__:
      thing = getattr(module, public)
      name = f'{short}.{public}' if short else public
      if not callable(thing) or _is_error(thing):
        continue
      for called, function in [(name, thing), *_methods(name, thing)]:
        parameters = [p for p in inspect.signature(function).parameters]
        if called not in known and (parameters or called == name):
          yield called
        elif called in known:
          kinds = known[called].kinds
          yield from (f'{called}({p})' for p in parameters if p not in kinds)


def _is_error(thing):
  return isinstance(thing, type) and issubclass(thing, Exception)


# TFP's own, or for the package itself.
_NOT_OURS = {
  'copy',
  'experimental_with_shard_axes',
  'count',
  'index',
  'evaluate',
  'draw_noise',
  'move',
  'refused',
  'whiten',
  'products',
  'check',
  'check_pattern',
  'choose_mode',
  'fitted',
  'is_of',
  'needs_analysis',
  'apply',
  'pull',
}


def _methods(name, thing):
  if not isinstance(thing, type):
    return
  for key, value in inspect.getmembers(thing, callable):
    if key.startswith('_') or key in _NOT_OURS:
      continue
    bound = inspect.signature(value).parameters
    own = [p for p in bound if p != 'self']
    if own:
      yield f'{name}.{key}', _without_self(value)


def _without_self(function):
  def call(*args, **kwargs):
    return function(*args, **kwargs)

  signature = inspect.signature(function)
  call.__signature__ = signature.replace(
    parameters=[p for k, p in signature.parameters.items() if k != 'self']
  )
  return call


def main():
  """Prints the count, and what is not clear."""
  only = [a for a in sys.argv[1:] if not a.startswith('-')]
  counts = collections.Counter()
  for case in cases():
    if only and not any(o in case[0] for o in only):
      continue
    found = check(*case)
    counts[found.verdict] += 1
    if found.verdict != 'clear' or '--all' in sys.argv:
      said = ' '.join(found.said.split())
      print(
        f'{found.verdict:6} {found.name}({found.argument}: {found.given})'
        f' {said if "--all" in sys.argv else said[:150]}'
      )
  total = sum(counts.values())
  for name in missing():
    print('no row:', name)
  print(
    f'{total} wrong arguments: {counts["clear"]} clear '
    f'({counts["clear"] / max(total, 1):.1%}), {counts["raw"]} raw, '
    f'{counts["silent"]} silent'
  )


if __name__ == '__main__':
  main()
