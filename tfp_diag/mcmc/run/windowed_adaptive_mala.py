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
"""From a model to draws in one call."""

import contextlib
import functools
import math
import os
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.internal import arguments, nest
from tfp_diag.internal.arguments import as_count
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.seeds import as_seed
from tfp_diag.mcmc.adapt.diagonal_estimators import ESTIMATORS, Estimator
from tfp_diag.mcmc.adapt.diagonal_preconditioner_adaptation import (
  DiagonalPreconditionerAdaptation,
)
from tfp_diag.mcmc.adapt.fisher_adaptive_mala import FisherAdaptiveMALA
from tfp_diag.mcmc.adapt.fisher_divergence_mala import FisherDivergenceMALA
from tfp_diag.mcmc.adapt.windows import MOST_FOR_MATRIX, SHARE_FOR_SCALE
from tfp_diag.mcmc.diagnose.summarize import summarize, warn_if_not_converged
from tfp_diag.mcmc.kernels.langevin_kernel import (
  DISCRETIZATIONS,
  Discretization,
)
from tfp_diag.mcmc.kernels.local_hessian_preconditioner import (
  LocalHessianPreconditioner,
)
from tfp_diag.mcmc.kernels.noise import split_seed
from tfp_diag.mcmc.kernels.preconditioned_mala import PreconditionedMALA
from tfp_diag.mcmc.run.model_arguments import (
  as_chain_shape,
  as_num_draws,
  check_acceptance,
  check_positive,
)
from tfp_diag.mcmc.run.sample import (
  StoppedBy,
  check_run_options,
  sample_scheduled,
)
from tfp_diag.mcmc.run.sample_in_graph import sample_in_graph
from tfp_diag.mcmc.run.schedule import Schedule
from tfp_diag.mcmc.run.stop_when import StopWhen
from tfp_diag.mcmc.run.trace import shown_run
from tfp_diag.mcmc.run.unconstrained_target import (
  as_target,
  check_number_of_chains,
)

Preconditioner = (
  Estimator
  | Literal['auto', 'full_fisher_divergence', 'full_fisher']
  | LocalHessianPreconditioner
  | tf.linalg.LinearOperator
  | tf.Tensor
  | tf.Variable
  | np.ndarray
  | float
  | list
  | tuple
  | None
)

# Full matrices, from `FisherAdaptiveMALA` and `FisherDivergenceMALA`.
_FULL_FISHER = 'full_fisher'
_FULL_FISHER_DIVERGENCE = 'full_fisher_divergence'
# Steps between two checkpoints.
_BLOCK_SIZE = 100
# A matrix up to `MOST_FOR_MATRIX` coordinates.
_AUTO = 'auto'
_TRACE = 'a function of the draw, whether it adapts, and the kernel results'
# Before a full matrix is learned.
_SHARE_FOR_STEP_SIZE = 0.15


class _Pair(typing.NamedTuple):
  """What is unpacked of a `DrawsAndTrace`."""

  draws: typing.Any
  trace: typing.Any


class DrawsAndTrace(_Pair):
  """Draws and trace of `windowed_adaptive_mala`, and how the run ended.

  It unpacks as `draws, trace`. A `tf.function` that returns it returns these
  two only. There, return other fields by name, such as `found.final_state`.

  Attributes:
    draws: In the structure of the model's unpinned variables, or of `init`:
      Tensors of shape [number of draws, chain shape..., event shape...]. A
      model that lists its variables gives a namedtuple of them.
    trace: What `trace_fn` returned, with a leading axis for the draws.
    final_state: The state after the last step, in the structure and the space
      of the model: an `init` for another call.
    final_kernel_results: The kernel results after the last step: the
      `previous_kernel_results` of another call.
    stopped_by: Python `str`: 'finished', 'stop_when', 'interrupted' or 'error'.

  #### Examples

  ```python
  found = tfp_diag.mcmc.windowed_adaptive_mala(
    300,
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    init=tf.zeros([64, 3]),
    num_adaptation_steps=100,
    seed=1,
  )
  draws, trace = found
  draws.shape, found.stopped_by  # ==> ([300, 64, 3], 'finished')
  ```
  """

  final_state: typing.Any = None
  final_kernel_results: typing.Any = None
  stopped_by: StoppedBy | None = None

  def __new__(
    cls,
    draws: typing.Any,
    trace: typing.Any,
    final_state: typing.Any = None,
    final_kernel_results: typing.Any = None,
    stopped_by: StoppedBy | None = None,
  ) -> 'DrawsAndTrace':
    """Makes the pair, and attaches the rest."""
    self = super().__new__(cls, draws, trace)
    self.final_state = final_state
    self.final_kernel_results = final_kernel_results
    self.stopped_by = stopped_by
    return self

  def __repr__(self):
    """One line: how the run ended, and what there is."""
    return shown_run(self)


@not_converted
def windowed_adaptive_mala(
  n_draws: int,
  joint_dist: Any,
  *,
  n_chains: int | Sequence[int] = 64,
  num_adaptation_steps: int = 500,
  preconditioner: Preconditioner = 'auto',
  discretization: Discretization = 'euler',
  init: Literal['prior'] | Any = None,
  bijectors: Any = None,
  init_step_size: Any = None,
  target_accept_prob: float = 0.574,
  discard_tuning: bool = True,
  num_steps_between_results: int = 0,
  previous_kernel_results: Any = None,
  trace_fn: Callable | None = None,
  stop_when: StopWhen | Callable | None = None,
  progress_bar: bool | None = None,
  checkpoint: str | os.PathLike | None = None,
  resume: bool = False,
  strategy: tf.distribute.Strategy | None = None,
  jit_compile: bool = False,
  seed: Any = None,
  **pins: Any,
) -> DrawsAndTrace:
  """Adapts and samples from a model, or a log density, by preconditioned MALA.

  The state is unconstrained by the model's default bijectors. A step size for
  all chains is adapted by dual averaging. A matrix (`FisherDivergenceMALA`), or
  a scale for each of many coordinates (`DiagonalPreconditionerAdaptation`), is
  learned in windows of doubling length during the first three quarters.

  Use it with a trace function of your own, a scale that depends on the
  position, many devices, or inside a `tf.function`. In all other cases use
  `sample_posterior`: its trajectories of many steps need fewer gradients, and
  it moves chains that are stuck.

  The adaptation and the draws are one run of `mcmc.sample`; the progress bar,
  checkpoints and devices serve both. Inside a `tf.function` all steps are a
  part of that graph, so `stop_when`, `progress_bar`, `checkpoint` and
  `strategy` are refused there. Equal seeds give equal draws in both cases, up
  to rounding; in a `tf.function` with `jit_compile=True` only if `init` is a
  structure of Tensors, since starts that XLA draws are other ones.

  Args:
    n_draws: Python `int`, the number of draws of each chain after adaptation.
      With 0 the run is the adaptation alone.
    joint_dist: A `tfd.JointDistribution`, pinned or not, of scalar batch shape;
      or a Python callable, a log density of a state (`fn(x)` for a Tensor,
      `fn(*xs)` for a list, `fn(**xs)` for a dict) that returns one value per
      chain, which needs `init`.
    n_chains: Python `int` or list of `int`s, how many chains are started. With
      `init`, the leading shape of `init` counts instead.
    num_adaptation_steps: Python `int`, how many steps adapt.
    preconditioner: How the scale is estimated: 'auto', which is
      'full_fisher_divergence' up to 512 coordinates and 'fisher_divergence'
      beyond; 'fisher_divergence', 'fisher',
      'variance' or 'hessian' for a diagonal one, 'full_fisher_divergence' for
      the matrix of `FisherDivergenceMALA`, 'full_fisher' for that of
      `FisherAdaptiveMALA`; or what `PreconditionedMALA` takes, for the
      unconstrained parts, and what is then not adapted: None, a scale, a
      `tf.linalg.LinearOperator`, a list of these, or a
      `LocalHessianPreconditioner`.
    discretization: 'euler', or 'exponential', which allows larger steps the
      more the target is like a Gaussian with the covariance that was learned;
      see `PreconditionedMALA`. On a Gaussian every step is accepted, the step
      size grows without bound, and draws become independent. Not for
      'full_fisher', which learns the covariance only up to a factor, nor for a
      scale that depends on the position.
    init: Where the chains start: a structure of Tensors as the model's unpinned
      variables, with leading chain shape; or 'prior', for a model: drawn from
      it as if nothing were observed. Default: uniform on (-2, 2) in the
      unconstrained space. A chain that is not given a start, and has none of
      finite log density after 50 tries, gets that of a random other chain.
    bijectors: For a callable: structure of `init` with a `tfb.Bijector` or None
      for each part, whose `forward` maps all of Rⁿ to the support of the part.
      Default: the parts are unconstrained. A model has bijectors of its own.
    init_step_size: Positive float, where the step size starts. Default:
      $0.3 n^{-1/3}$ for $n$ coordinates, a tenth of what suits a standard
      normal [1].
    target_accept_prob: Python `float`, the acceptance rate that the step size
      aims at.
    discard_tuning: Python `bool`: whether only the draws after the adaptation
      are returned, or all of them.
    num_steps_between_results: Python `int`, how many draws to leave out between
      two that are kept.
    previous_kernel_results: The `final_kernel_results` of a call before, whose
      `final_state` is then `init`. The adaptation continues where it was, up to
      `num_adaptation_steps` in both calls together; with 0 the step size and
      the scale stay as they are. Default: the adaptation begins.
    trace_fn: Python callable `(draw, is_adapting, kernel_results)`, what to
      record at each draw: `draw` is the state in the structure and the space of
      the model, `kernel_results` a `PreconditionedMALAResults` (with a full
      matrix, of the state as one vector). Default: a dict
      with 'step_size', 'tune' (is_adapting), 'target_log_prob' (of the
      unconstrained state), 'diverging' (the energy error is beyond 500, or
      something at the proposal was not finite), 'accept_ratio' and
      'is_accepted', the names of TFP's windowed samplers, and
      'log_accept_ratio', -inf for a proposal that was not finite.
    stop_when: As for `mcmc.sample`; it sees the unconstrained draws, a list of
      arrays of shape [draws, chain shape..., event shape...].
    progress_bar: As for `mcmc.sample`.
    checkpoint: Path of a directory in which the run, with its adaptation, is
      saved after each 100 steps, as for `mcmc.sample`; its files hold the
      unconstrained draws.
    resume: Python `bool`, whether to continue a run that is in `checkpoint`.
    strategy: A `tf.distribute.MirroredStrategy`, over whose devices the chains
      are spread, as for `mcmc.sample`; they learn together. Such devices wait
      for each other in each step, without XLA.
    jit_compile: Python `bool`, whether the steps are compiled with XLA.
      Default: False, as for all functions that may be called in a
      `tf.function`, whose own `jit_compile` counts. `sample` and
      `sample_posterior` cannot be called there, and compile by default.
    seed: Python `int`, or int32 Tensor of shape [2]: equal seeds give equal
      draws. Default: a new seed in each call, or that of the checkpoint.
    **pins: What is observed, for `joint_dist.experimental_pin`.

  Returns:
    A `DrawsAndTrace`. In eager mode a `UserWarning` says if the draws after the
    adaptation cannot be trusted, and why. After Ctrl-C, what was drawn until
    the last block, with a warning.

  Raises:
    KeyboardInterrupt: after Ctrl-C before the first draw.
    Exception: what the log density, `trace_fn` or `stop_when` raise while it
      runs. What was drawn until the last block is in the checkpoint, and a
      `DrawsAndTrace` the attribute `sample_results` of the error.
    ValueError: if the model has a batch shape or a discrete variable that is
      not pinned, an argument or a pin does not fit or is not known, the log
      density or its gradient cannot be used at the start, there is a checkpoint
      that does not fit or `resume` is false, or an argument is not for a
      `tf.function`.
    TypeError: if `joint_dist` is neither a model nor callable.

  #### Examples

  ```python
  import tensorflow as tf
  import tensorflow_probability as tfp
  import tfp_diag

  tfd = tfp.distributions


  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    rate = yield tfd.Gamma(2.0, 1.0, name='rate')
    yield tfd.Sample(tfd.Poisson(rate), 5, name='counts')


  draws, trace = tfp_diag.mcmc.windowed_adaptive_mala(
    200,
    model,
    num_adaptation_steps=200,
    seed=(0, 1),
    counts=[3.0, 0.0, 1.0, 2.0, 4.0],
  )
  # The posterior is Gamma(2 + 10, 1 + 5), with mean 2.
  draws.rate.shape  # ==> [200, 64]
  abs(float(tf.reduce_mean(draws.rate)) - 2.0) < 0.1  # ==> True
  trace['is_accepted'].shape  # ==> [200, 64]
  ```

  #### References

  [1]: Gareth Roberts and Jeffrey Rosenthal (1998). Optimal scaling of discrete
       approximations to Langevin diffusions. _Journal of the Royal Statistical
       Society: Series B_ 60(1).
       https://doi.org/10.1111/1467-9868.00123
  """
  names = [_AUTO, *ESTIMATORS, _FULL_FISHER_DIVERGENCE, _FULL_FISHER]
  # What is no name is not adapted; arrays cannot be compared with one.
  adapted = preconditioner if isinstance(preconditioner, str) else None
  if adapted is not None and adapted not in names:
    raise ValueError(
      f'`preconditioner` is {preconditioner!r}, but those that adapt are '
      f'{", ".join(map(repr, names))}; others are objects, such as a '
      '`LocalHessianPreconditioner()`.'
    )
  n_draws = as_num_draws('n_draws', n_draws, 0, 'second')
  num_adaptation_steps = as_count(
    'num_adaptation_steps', num_adaptation_steps, 0
  )
  num_steps_between_results = as_count(
    'num_steps_between_results', num_steps_between_results, 0
  )
  chain_shape = as_chain_shape(n_chains)
  check_positive('init_step_size', init_step_size)
  check_acceptance('target_accept_prob', target_accept_prob)
  arguments.check_choice('discretization', discretization, DISCRETIZATIONS)
  arguments.check_flag('discard_tuning', discard_tuning)
  check_run_options(
    checkpoint, resume, False, stop_when, jit_compile, progress_bar
  )
  _check_in_graph(
    stop_when=stop_when,
    progress_bar=progress_bar,
    checkpoint=checkpoint,
    strategy=strategy,
  )
  if trace_fn is not None:
    arguments.check_callable('trace_fn', trace_fn, _TRACE)
    arguments.check_takes('trace_fn', trace_fn, [None] * 3, None, _TRACE)
  if adapted == _FULL_FISHER and discretization != 'euler':
    raise ValueError(
      f"`discretization` is {discretization!r}, but with 'full_fisher' it must "
      "be 'euler', since that matrix has no scale of its own; use "
      "`preconditioner='full_fisher_divergence'`."
    )
  seed = as_seed(seed)
  start_seed, run_seed = split_seed(tfp.random.sanitize_seed(seed), 2)
  target = as_target(
    joint_dist,
    chain_shape,
    init,
    bijectors,
    pins,
    start_seed,
    windowed_adaptive_mala,
  )
  log_prob = target.log_prob_fn(*target.start)
  target.check_start(log_prob)
  check_number_of_chains('n_chains', chain_shape, log_prob)
  if adapted == _AUTO:
    size = _num_coordinates(target.start, log_prob.shape.rank)
    is_small = size <= MOST_FOR_MATRIX
    adapted = _FULL_FISHER_DIVERGENCE if is_small else 'fisher_divergence'
    preconditioner = adapted
  if init_step_size is None:
    init_step_size = _first_step_size(target.start, log_prob.shape.rank)
  step_size = tf.convert_to_tensor(init_step_size, log_prob.dtype)
  accept_prob = tf.constant(target_accept_prob, log_prob.dtype)
  kernel = _kernel(
    target.log_prob_fn,
    step_size,
    preconditioner,
    discretization,
    num_adaptation_steps,
    accept_prob,
    is_spread=strategy is not None,
  )

  num_tuning_results = 0
  if not discard_tuning:
    num_tuning_results = -(
      -num_adaptation_steps // (num_steps_between_results + 1)
    )
  options = dict(
    previous_kernel_results=_as_this_call_adapts(
      previous_kernel_results, num_adaptation_steps, target_accept_prob
    ),
    trace_fn=trace_fn
    and _in_space_of_the_model(trace_fn, target, num_adaptation_steps),
    jit_compile=jit_compile,
  )
  schedule = Schedule(
    n_draws + num_tuning_results,
    num_adaptation_steps if discard_tuning else 0,
    num_steps_between_results,
    _BLOCK_SIZE,
  )
  if not tf.executing_eagerly():
    run = sample_in_graph(
      kernel, target.start, schedule, seed=run_seed, **options
    )
    return _found(target, run)
  given = {
    '`n_chains`': log_prob.shape.as_list(),
    '`num_adaptation_steps`': num_adaptation_steps,
    '`preconditioner`': _as_text(preconditioner),
    '`discretization`': discretization,
    '`init_step_size`': _as_text(step_size),
    '`target_accept_prob`': _as_text(accept_prob),
    '`discard_tuning`': discard_tuning,
    '`num_steps_between_results`': num_steps_between_results,
    # Without one, that of a checkpoint counts.
    **({} if seed is None else {'`seed`': np.asarray(seed).tolist()}),
  }
  try:
    run = sample_scheduled(
      kernel,
      target.start,
      schedule,
      seed=None if seed is None else run_seed,
      stop_when=stop_when,
      progress_bar=progress_bar,
      checkpoint=checkpoint,
      resume=resume,
      strategy=strategy,
      name='mcmc_sample',
      given=given,
      **options,
    )
  except (Exception, KeyboardInterrupt) as error:
    # An error that takes no attributes, or draws beyond the memory.
    with contextlib.suppress(Exception):
      error.sample_results = _found(target, error.sample_results)
    raise
  found = _found(target, run)
  if run.num_results > num_tuning_results:
    # What a function of the caller has recorded may have any meaning.
    judged = found.draws, {} if trace_fn else found.trace
    judged = tf.nest.map_structure(lambda x: x[num_tuning_results:], judged)
    warn_if_not_converged(
      summarize(*judged, chain_ndims=log_prob.shape.rank),
      'Draw more, or use `sample_posterior`, which tunes more.',
    )
  return found


def _check_in_graph(**options):
  """Refuses, within a graph, what looks at a run while it goes on."""
  if tf.executing_eagerly():
    return
  for name, value in options.items():
    if value is not None and value is not False:
      raise ValueError(
        f'`{name}` looks at a run between its steps, but inside a '
        '`tf.function` all steps are one graph. Leave it out, or call '
        '`windowed_adaptive_mala` outside of the `tf.function`.'
      )


def _as_text(given):
  """An argument as a checkpoint keeps it; of many objects the type alone."""
  if isinstance(given, (list, tuple)):
    return [_as_text(x) for x in given]
  if tf.is_tensor(given) or isinstance(given, (np.ndarray, float, int)):
    return str(np.asarray(given))
  if isinstance(given, (str, LocalHessianPreconditioner)):
    return str(given)
  return type(given).__name__


def _found(target, run):
  """A `SampleResults` in the structure and the space of the model."""
  return DrawsAndTrace(
    target.constrain(run.draws),
    tf.nest.map_structure(tf.convert_to_tensor, run.trace),
    target.constrain(run.final_state),
    run.final_kernel_results,
    run.stopped_by,
  )


def _num_coordinates(parts, chain_ndims):
  """The number of coordinates, infinite where it is not known."""
  sizes = [x.shape[chain_ndims:].num_elements() for x in parts]
  return math.inf if None in sizes else sum(sizes)


def _first_step_size(parts, chain_ndims):
  sizes = [tf.size(x[(0,) * chain_ndims]) for x in parts]
  num_coordinates = tf.cast(tf.add_n(sizes), parts[0].dtype)
  return 0.3 * num_coordinates ** (-1.0 / 3.0)


def _kernel(
  log_prob_fn,
  step_size,
  preconditioner,
  discretization,
  num_steps,
  target_accept_prob,
  is_spread,
):
  """The kernel with its adaptation; `is_spread` over several devices."""
  axis_name = 'chains' if is_spread else None
  num_scale_steps = int(SHARE_FOR_SCALE * num_steps)
  adapts = isinstance(preconditioner, str)
  if adapts and preconditioner == _FULL_FISHER:
    kernel = FisherAdaptiveMALA(
      log_prob_fn,
      step_size,
      num_adaptation_steps=num_scale_steps,
      num_step_size_steps=int(_SHARE_FOR_STEP_SIZE * num_steps),
      experimental_chain_axis_names=axis_name,
    )
  elif adapts and preconditioner == _FULL_FISHER_DIVERGENCE:
    kernel = FisherDivergenceMALA(
      log_prob_fn,
      step_size,
      num_adaptation_steps=num_scale_steps,
      discretization=discretization,
      experimental_chain_axis_names=axis_name,
    )
  else:
    kernel = PreconditionedMALA(
      log_prob_fn,
      step_size,
      None if adapts else preconditioner,
      discretization=discretization,
      experimental_chain_axis_names=axis_name,
    )
    if adapts:
      kernel = DiagonalPreconditionerAdaptation(
        kernel,
        num_adaptation_steps=num_scale_steps,
        # All other names were refused.
        estimator=typing.cast(Estimator, preconditioner),
        experimental_reduce_chain_axis_names=axis_name,
      )
  return tfp.mcmc.DualAveragingStepSizeAdaptation(
    kernel,
    num_adaptation_steps=num_steps,
    target_accept_prob=target_accept_prob,
    # Forgets the step sizes of earlier scales sooner than the default does.
    decay_rate=0.6,
    experimental_reduce_chain_axis_names=axis_name,
    reduce_fn=functools.partial(
      tfp.math.reduce_logmeanexp, experimental_allow_all_gather=is_spread
    ),
  )


def _as_this_call_adapts(results, num_adaptation_steps, target_accept_prob):
  """Kernel results of a call before, with what this call asks for.

  Dual averaging reads both from its results.
  """
  given = dict(
    num_adaptation_steps=num_adaptation_steps,
    target_accept_prob=target_accept_prob,
  )
  if not all(hasattr(getattr(results, name, None), 'dtype') for name in given):
    return results  # Refused where the structure is checked, or None.
  return results._replace(
    **{
      name: tf.cast(value, getattr(results, name).dtype)
      for name, value in given.items()
    }
  )


def _in_space_of_the_model(trace_fn, target, num_adaptation_steps):
  def trace(parts, results):
    is_adapting = results.step <= num_adaptation_steps
    given = target.constrain(parts), is_adapting, _core(results)
    return nest.call_as_caller(trace_fn, given, 'trace_fn')

  return trace


def _core(results):
  """The `PreconditionedMALAResults` inside."""
  while hasattr(results, 'inner_results'):
    results = results.inner_results
  return results
