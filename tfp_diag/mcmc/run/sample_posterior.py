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
"""Draws from a posterior, with one call."""

import contextlib
import functools
import json
import math
import os
import pathlib
import typing
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.internal.arguments import as_count
from tfp_diag.internal.seeds import some_seed
from tfp_diag.mcmc.adapt.scales import SCALES
from tfp_diag.mcmc.diagnose.convergence_warnings import (
  IS_UNREACHED,
  are_many_faults,
  unreached,
)
from tfp_diag.mcmc.diagnose.summarize import summarize, warn_if_not_converged
from tfp_diag.mcmc.diagnose.summary import Summary
from tfp_diag.mcmc.kernels.noise import split_seed
from tfp_diag.mcmc.kernels.vector_layout import VectorLayout
from tfp_diag.mcmc.run.block import SamplingBlock
from tfp_diag.mcmc.run.checkpoint import (
  WARM_UP_NAME,
  another_run,
  check_may_resume,
  check_target,
  is_begun,
  locked_directory,
  refusal,
  replacing,
  unreadable,
)
from tfp_diag.mcmc.run.model_arguments import as_num_draws, check_acceptance
from tfp_diag.mcmc.run.sample import (
  StoppedBy,
  check_run_options,
  sample_scheduled,
)
from tfp_diag.mcmc.run.schedule import Schedule
from tfp_diag.mcmc.run.stop_when import StopWhen
from tfp_diag.mcmc.run.trace import part_names
from tfp_diag.mcmc.run.trajectory_block import (
  WithoutGradients,
  num_steps_of_blocks,
)
from tfp_diag.mcmc.run.unconstrained_target import (
  as_target,
  check_number_of_chains,
)
from tfp_diag.mcmc.run.warm_up import (
  WarmUp,
  Window,
  gradients_per_draw,
  kernel_of,
  warm_up,
)

_KERNELS = ('auto', 'malt', 'mala')
_PRECONDITIONERS = ('auto', *SCALES)
# Of what is kept of a warm-up.
_VERSION = 3
# What share of an independent draw each draw should be.
_SHARE_OF_DRAW = 0.2
# How many of the longest trajectories a draw may cost.
_MOST_TRAJECTORIES = 8


class PosteriorDraws(typing.NamedTuple):
  """What `sample_posterior` returns.

  Attributes:
    draws: In the structure of the model's unpinned variables, or of `init`:
      Tensors of shape [draws, chains, event shape...]. A
      model that lists its variables gives a namedtuple of them.
    trace: Dict of arrays with leading axes [draws] or [draws, chains]:
      'target_log_prob' (of the unconstrained state), 'is_accepted',
      'accept_ratio', 'log_accept_ratio', 'diverging', 'step_size' and
      'n_steps', the gradients that the draw took.
    summary: `Summary` of the draws, with its warnings; None if Ctrl-C came
      while it was computed.
    warm_up: `WarmUp`: the settings that were found, and how.
    num_gradients: Python int: how many gradients of the log density each chain
      has taken for the draws, those of the trajectories between them estimated
      from 'n_steps'.
    num_gradients_warmup: Python int: how many before, a diagonal of the Hessian
      counted as two.
    stopped_by: Python str: 'finished', 'stop_when' or 'interrupted'.

  #### Examples

  ```python
  found = tfp_diag.mcmc.sample_posterior(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    100,
    init=tf.zeros([64, 2]),
    num_warmup_steps=20,
    preconditioner='diagonal',
    use_curvature=False,
    jit_compile=False,
    seed=1,
  )
  found.draws.shape  # ==> [100, 64, 2]
  found.summary.names  # ==> ('x[0]', 'x[1]')
  found.stopped_by  # ==> 'finished'
  ```
  """

  draws: typing.Any
  trace: dict[str, typing.Any]
  # It is None only after Ctrl-C at its end: nobody is to look for that first.
  summary: Summary | typing.Any
  warm_up: WarmUp
  num_gradients: int
  num_gradients_warmup: int
  stopped_by: StoppedBy

  def __repr__(self):
    """One line; `print(found.summary)` has the numbers."""
    return f'<PosteriorDraws {self.stopped_by}: {self.summary!r}>'

  def _repr_html_(self):
    return None if self.summary is None else self.summary._repr_html_()


def sample_posterior(
  joint_dist_or_log_prob: Any,
  num_draws: int,
  *,
  num_chains: int = 64,
  kernel: Literal['auto', 'malt', 'mala'] = 'auto',
  num_warmup_steps: int = 400,
  preconditioner: Literal[
    'auto', 'dense', 'low_rank', 'diagonal', 'local'
  ] = 'auto',
  init: Literal['prior'] | Any = None,
  bijectors: Any = None,
  use_curvature: bool = True,
  target_accept_prob: float | None = None,
  max_num_steps: int = 128,
  num_steps_between_results: int | None = None,
  stop_when: StopWhen | Callable | None = None,
  progress_bar: bool | None = None,
  checkpoint: str | os.PathLike | None = None,
  resume: bool = False,
  jit_compile: bool = True,
  seed: Any = None,
  **observed: Any,
) -> PosteriorDraws:
  """Draws from the posterior of a model by Langevin trajectories.

  A warm-up finds all settings. Chains start uniformly on (-2, 2) in the
  unconstrained space. With the exact diagonal of the Hessian they move to where
  the posterior is. Then they sample in windows of doubling length. At the end
  of each window a preconditioner is learned from all chains; the correlations
  that it leaves give the length of a trajectory and its damping. Chains that
  are stuck are moved to the places of others, and their draws are left out.
  After the warm-up all settings are fixed, and `mcmc.sample` makes the draws.

  Use it for a posterior with a gradient and up to some thousands of
  coordinates, on a machine that computes many chains at once. From fewer than
  about ten chains the warm-up learns little. For funnels, write the model
  without centering, or pass `preconditioner='local'`; 'auto' tries that, too.

  Args:
    joint_dist_or_log_prob: A `tfd.JointDistribution`, pinned or not, of scalar
      batch shape; or a Python callable, a log density of a state (`fn(x)` for a
      Tensor, `fn(*xs)` for a list, `fn(**xs)` for a dict) that returns one
      value per chain, which needs `init`.
    num_draws: Python `int`, how many draws each chain keeps.
    num_chains: Python `int`. With `init`, its leading axis counts instead.
    kernel: 'malt' for `MetropolisAdjustedLangevinTrajectories`; 'mala' for
      trajectories of one step, `PreconditionedMALA`; 'auto' for 'malt', unless
      the preconditioner is, or is found to be better, 'local'.
    num_warmup_steps: Python `int`, how many trajectories the warm-up has.
    preconditioner: 'dense' for a matrix of all coordinates, 'diagonal' for a
      standard deviation of each, 'low_rank' for those and up to 32 directions
      along which they are not enough; 'local' for `LocalHessianPreconditioner`,
      for which `num_warmup_steps` are five steps each; 'auto' for 'dense' up to
      512 coordinates and 'low_rank' beyond, and with `kernel='auto'` for
      'local' where curvatures change by orders of magnitude from chain to chain
      and the warm-up finds that its draws cost fewer gradients.
    init: Where the chains start: a structure of Tensors as the model's unpinned
      variables, with a leading axis for the chains; or 'prior', for a model:
      `num_chains` draws from it as if nothing were observed. Default: uniform
      on (-2, 2) in the unconstrained space. A chain that is not given a start,
      and has none of finite log density after 50 tries, gets that of a random
      other chain. Where all chains have the same number, `use_curvature` first
      spreads them by the local curvature.
    bijectors: For a callable: structure of `init` with a `tfb.Bijector` or None
      for each part, whose `forward` maps all of Rⁿ to the support of the part.
      Default: the parts are unconstrained. A model has bijectors of its own.
    use_curvature: Python `bool`, whether the warm-up begins with the exact
      diagonal of the Hessian. Without it, the warm-up needs more steps. Pass
      False for log densities whose second derivatives cost too much or do not
      exist.
    target_accept_prob: Python `float`, the acceptance rate that the step size
      aims at. Default: 0.9, or 0.97 if the warm-up finds that steps are too
      long in some places; for 'mala', and with 'local', 0.574.
    max_num_steps: Python `int`, the largest number of steps of a trajectory.
      With 'mala' and 'local', whose trajectories have one step, it bounds only
      `num_steps_between_results`. With 1, 'malt' makes steps of MALA, too, and
      aims at the same acceptance.
    num_steps_between_results: Python `int`, how many trajectories to leave out
      between two draws that are kept. Default: so many that each draw is worth
      a fifth of an independent one, estimated at the end of the warm-up, but
      not more than 8 `max_num_steps` gradients; 0 if no more is needed.
    stop_when: As for `mcmc.sample`; it sees the unconstrained draws, an array
      of shape [draws, chains, coordinates].
    progress_bar: As for `mcmc.sample`.
    checkpoint: Path of a directory in which the run is saved, as for
      `mcmc.sample`, together with what the warm-up has found. The draws in it
      are those of the unconstrained parts, as their names say.
    resume: Python `bool`, whether to continue a run that is in `checkpoint`.
      With `seed=None` it continues with its own seed.
    jit_compile: Python `bool`, whether XLA compiles the steps.
    seed: Python `int`, or int32 Tensor of shape [2]: equal seeds give equal
      draws. Default: a new seed in each call, or that of the checkpoint.
    **observed: What is observed, for `joint_dist.experimental_pin`.

  Returns:
    A `PosteriorDraws`. A `UserWarning` says if its draws cannot be trusted, and
    why. After Ctrl-C, what was drawn until the last block, with a warning.

  Raises:
    KeyboardInterrupt: after Ctrl-C in the warm-up, or before the first draw.
    ValueError: if the model has a batch shape, an argument does not fit, or the
      log density or its gradient cannot be used at the start.
    TypeError: if `joint_dist_or_log_prob` is neither a model nor callable.
    RuntimeError: if called inside a `tf.function`.

  #### Examples

  ```python
  import numpy as np
  import tensorflow_probability as tfp
  import tfp_diag

  tfd = tfp.distributions


  @tfd.JointDistributionCoroutineAutoBatched
  def schools():
    mean = yield tfd.Normal(0.0, 10.0, name='mean')
    log_scale = yield tfd.Normal(5.0, 1.0, name='log_scale')
    effects = yield tfd.Sample(tfd.Normal(0.0, 1.0), 8, name='effects')
    errors = np.float32([15, 10, 16, 11, 9, 11, 10, 18])
    yield tfd.Normal(
      mean[..., None] + np.e ** log_scale[..., None] * effects,
      errors,
      name='observed',
    )


  found = tfp_diag.mcmc.sample_posterior(
    schools,
    500,
    seed=1,
    observed=np.float32([28, 8, -3, 7, -1, 1, 18, 12]),
  )
  found.draws.effects.shape  # ==> [500, 64, 8]
  float(np.max(found.summary.r_hat)) < 1.02  # ==> True
  found.warm_up.step_size > 0.1  # ==> True
  ```

  #### References

  [1]: Lionel Riou-Durand and Jure Vogrinc (2022). Metropolis Adjusted Langevin
       Trajectories: a robust alternative to Hamiltonian Monte Carlo.
       https://doi.org/10.48550/arXiv.2202.13230

  [2]: Lionel Riou-Durand, Pavel Sountsov, Jure Vogrinc, Charles Margossian and
       Sam Power (2023). Adaptive tuning for Metropolis Adjusted Langevin
       Trajectories. _AISTATS_.
       https://doi.org/10.48550/arXiv.2210.12200

  [3]: Adrian Seyboldt, Eliot Carlson and Bob Carpenter (2026). Preconditioning
       Hamiltonian Monte Carlo by minimizing Fisher divergence.
       https://doi.org/10.48550/arXiv.2603.18845
  """
  if not tf.executing_eagerly():
    raise RuntimeError(
      '`sample_posterior` runs in Python, block by block, and cannot be part '
      'of a `tf.function`; use `windowed_adaptive_mala` there.'
    )
  arguments.check_choice('kernel', kernel, _KERNELS)
  arguments.check_choice('preconditioner', preconditioner, _PRECONDITIONERS)
  if kernel == 'malt' and preconditioner == 'local':
    raise ValueError(
      "`preconditioner` is 'local', which depends on the position, but "
      "`kernel='malt'` takes a constant one. Use `kernel='mala'`."
    )
  arguments.check_flag('use_curvature', use_curvature)
  check_run_options(
    checkpoint, resume, False, stop_when, jit_compile, progress_bar
  )
  num_draws = as_num_draws('num_draws', num_draws, 1, 'first')
  num_warmup_steps = as_count('num_warmup_steps', num_warmup_steps, 0)
  if preconditioner == 'local' and not (use_curvature and num_warmup_steps):
    given = (
      '`num_warmup_steps` is 0' if use_curvature else '`use_curvature` is False'
    )
    raise ValueError(
      f"{given}, but `preconditioner='local'` needs second derivatives and a "
      'warm-up that finds its step size. Use another `preconditioner`, such as '
      "'diagonal'."
    )
  max_num_steps = as_count('max_num_steps', max_num_steps, 1)
  longest = 1 if kernel == 'mala' else max_num_steps
  if num_steps_between_results is not None:
    num_steps_between_results = as_count(
      'num_steps_between_results', num_steps_between_results, 0
    )
  chain_shape = [as_count('num_chains', num_chains, 1)]
  if target_accept_prob is not None:
    check_acceptance('target_accept_prob', target_accept_prob)
    target_accept_prob = float(target_accept_prob)
  run_seed = some_seed(seed)
  start_seed, warmup_seed, draws_seed = split_seed(run_seed, 3)
  if not hasattr(joint_dist_or_log_prob, 'event_shape'):
    # Of a model more is known.
    _check_same_chains(init)
  target = as_target(
    joint_dist_or_log_prob,
    chain_shape,
    init,
    bijectors,
    observed,
    start_seed,
    sample_posterior,
  )
  start = target.start
  log_prob = target.log_prob_fn(*start)
  target.check_start(log_prob)
  _check_one_axis(log_prob, start, target.model is not None)
  check_number_of_chains('num_chains', chain_shape, log_prob)
  layout = VectorLayout(start, 1)
  if not layout.size:
    raise ValueError(
      'The state has no coordinates: all parts to sample, those of `init` or '
      'of the variables that are not pinned, have shapes without elements.'
    )
  log_prob_fn = layout.of_vector(target.log_prob_fn)
  state = layout.join(start)

  # Once: its digest is kept with it.
  log_prob_graph = target.graph

  settings = {
    'version of the format': _VERSION,
    '`num_chains`': state.shape.as_list()[0],
    'number of coordinates': layout.size,
    'dtype': state.dtype.name,
    '`kernel`': kernel,
    '`preconditioner`': preconditioner,
    '`num_warmup_steps`': num_warmup_steps,
    '`use_curvature`': use_curvature,
    '`target_accept_prob`': target_accept_prob,
    '`max_num_steps`': max_num_steps,
    '`seed`': np.asarray(run_seed).tolist(),
  }

  def log_prob_at(position):
    return np.asarray(log_prob_fn(tf.constant(position, state.dtype)))

  with contextlib.ExitStack() as held:
    found = None
    if checkpoint is not None:
      # Before anything is computed, and until what was found is written.
      held.enter_context(locked_directory(checkpoint))
      check_may_resume(checkpoint, resume)
      if resume:
        # Without a seed, that of the checkpoint counts.
        compared = {
          k: v for k, v in settings.items() if seed is not None or k != '`seed`'
        }
        found = _kept_warm_up(checkpoint, compared, log_prob_at)
    if found is None:
      found = warm_up(
        log_prob_fn,
        state,
        num_warmup_steps,
        seed=warmup_seed,
        preconditioner=preconditioner,
        target_accept_prob=target_accept_prob,
        max_num_steps=longest,
        use_curvature=use_curvature,
        tries_local=kernel == 'auto' and preconditioner == 'auto',
        jit_compile=jit_compile,
        log_prob_graph=log_prob_graph,
      )
      if checkpoint is not None:
        _keep_warm_up(found, checkpoint, settings, log_prob_at(found.state))
  if num_steps_between_results is None:
    num_steps_between_results = _num_steps_between(found, max_num_steps)
  make_block = SamplingBlock
  if found.scale.kind != 'local':
    make_block = functools.partial(WithoutGradients, log_prob_graph)
  run = sample_scheduled(
    kernel_of(found, log_prob_fn, state.dtype, longest),
    tf.constant(found.state, state.dtype),
    Schedule(
      num_draws, 0, num_steps_between_results, num_steps_of_blocks(state)
    ),
    previous_kernel_results=None,
    trace_fn=None,
    seed=None if seed is None and resume else draws_seed,
    stop_when=stop_when,
    progress_bar=progress_bar,
    checkpoint=checkpoint,
    resume=resume,
    jit_compile=jit_compile,
    name='mcmc_trajectories',
    unconstrained=checkpoint and {'x': _parts(target)},
    make_block=make_block,
  )
  stride = num_steps_between_results + 1
  if 'n_steps' not in run.trace:
    run.trace['n_steps'] = np.full(
      run.num_results, found.gradients_per_step, np.int32
    )
  draws = target.constrain(layout.split(run.draws))
  stopped_by = run.stopped_by
  try:
    summary = summarize(draws, run.trace)
    left = unreached(found.abandoned, run.draws)
    summary = summary._replace(warnings=(*summary.warnings, *left))
    warn_if_not_converged(summary, _way_out(summary))
  except KeyboardInterrupt:
    # What was drawn is not lost to what comes after.
    summary, stopped_by = None, 'interrupted'
  return PosteriorDraws(
    draws=draws,
    trace=run.trace,
    summary=summary,
    warm_up=found,
    num_gradients=int(stride * run.trace['n_steps'].sum()),
    num_gradients_warmup=found.num_gradients,
    stopped_by=stopped_by,
  )


def _parts(target):
  """The names and event shapes of the unconstrained parts, in their order."""
  names = part_names(target.constrain(target.start))
  if len(names) != len(target.start):
    # A bijector that joins parts, or takes them apart.
    names = [f'x{i}' for i in range(len(target.start))]
  return {n: x.shape[1:].as_list() for n, x in zip(names, target.start)}


def _way_out(summary):
  """A sentence: what to try if draws have not converged."""
  if any(IS_UNREACHED in warning for warning in summary.warnings):
    return (
      'A longer run gains nothing there: compare with '
      '`windowed_adaptive_mala`, which moves no chain, or temper '
      '(`tfp.mcmc.ReplicaExchangeMC`).'
    )
  num_steps = summary.num_draws * int(np.prod(summary.chain_shape))
  if are_many_faults(summary.num_divergences, num_steps):
    return (
      'When no proposals diverge any more: draw more, or warm up for longer '
      '(`num_warmup_steps`).'
    )
  return 'Draw more, or warm up for longer (`num_warmup_steps`).'


def _check_same_chains(init):
  """Refuses parts of different numbers of chains, their first axis."""
  parts = [] if isinstance(init, str) else tf.nest.flatten(init)
  # What is no array is refused elsewhere.
  known = [
    (name, int(x.shape[0]))
    for name, x in zip(part_names(init), parts)
    if (tf.is_tensor(x) or isinstance(x, np.ndarray))
    and tf.TensorShape(x.shape).rank
    and x.shape[0] is not None
  ]
  for name, count in known:
    first, expected = known[0]
    if count != expected:
      raise ValueError(
        f'`init` has {expected} chains in {first!r}, and {count} in {name!r}; '
        'chains are the first axis of every part.'
      )


def _check_one_axis(log_prob, start, is_model):
  """Refuses chains along several axes, and a density that is not of each."""
  if log_prob.shape.rank == 1:
    return
  if is_model:
    raise ValueError(
      f'`init` has chains of the shape {log_prob.shape}, but here they must be '
      'along one axis; reshape it.'
    )
  chains = f'{start[0].shape[0]} chains' if start[0].shape.rank else 'chains'
  raise ValueError(
    f'`joint_dist_or_log_prob` returned a log density of shape '
    f'{log_prob.shape}, but must return one value for each of the {chains}, '
    'which are the first axis of `init`. Reduce over the last axes, as '
    '`tf.reduce_sum(..., axis=-1)` does; chains must be along one axis, so '
    'reshape `init` if they are along several.'
  )


def _num_steps_between(found, max_num_steps):
  """How many trajectories to leave out between two draws."""
  stride = math.ceil(_SHARE_OF_DRAW * found.autocorrelation_time)
  # Of a draw over that of a trajectory.
  each = gradients_per_draw(found) / found.autocorrelation_time
  most = int(_MOST_TRAJECTORIES * max_num_steps / each)
  return max(min(stride, most), 1) - 1


def _keep_warm_up(found, checkpoint, settings, log_prob):
  """Writes what was found beside a checkpoint, as a whole or not at all."""
  others = found._replace(state=None, scale=found.scale.kind, abandoned=None)
  with replacing(os.path.join(checkpoint, WARM_UP_NAME)) as file:
    np.savez(
      file,
      state=found.state,
      log_prob=log_prob,
      **{f'scale_{k}': v for k, v in found.scale.arrays().items()},
      **({} if found.abandoned is None else {'abandoned': found.abandoned}),
      # What is no array.
      others=np.array(json.dumps(others._asdict())),
      settings=np.array(json.dumps(settings)),
    )


def _kept_warm_up(checkpoint, settings, log_prob_at):
  """What an earlier process has found with these settings, or None."""
  path = pathlib.Path(checkpoint) / WARM_UP_NAME
  if not path.exists():
    if is_begun(checkpoint):
      raise refusal(
        checkpoint,
        f'cannot be resumed: it has no {WARM_UP_NAME}, so that it is of '
        'another function, or that file was deleted. Pass another path, or '
        'put the file back',
      )
    return None
  try:
    with np.load(path, allow_pickle=False) as archive:
      kept = {name: archive[name] for name in archive.files}
    began_with = json.loads(str(kept['settings']))
  except Exception as e:
    # A damaged archive raises errors of many types in several libraries.
    why = str(e) or type(e).__name__
    raise unreadable(
      checkpoint, f'its {WARM_UP_NAME} is damaged ({why})'
    ) from e
  for name, given in settings.items():
    # Earlier versions kept no seed.
    before = began_with.get(name, given if name == '`seed`' else None)
    if before != given:
      raise another_run(checkpoint, name, before, given)
  check_target(checkpoint, log_prob_at(kept['state']), kept['log_prob'])
  scale = {
    k.removeprefix('scale_'): kept[k] for k in kept if k.startswith('scale_')
  }
  found = WarmUp(**json.loads(str(kept['others'])))
  return found._replace(
    state=kept['state'],
    scale=SCALES[found.scale](**scale),
    windows=tuple(Window(*window) for window in found.windows),
    abandoned=kept.get('abandoned'),
  )
