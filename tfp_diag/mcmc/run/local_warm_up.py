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
"""The warm-up of a kernel whose scale is the local curvature."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc.adapt.scales import LocalScale
from tfp_diag.mcmc.adapt.tuning import autocorrelation_time
from tfp_diag.mcmc.kernels.preconditioned_mala import PreconditionedMALA
from tfp_diag.mcmc.run.sample import sample
from tfp_diag.plan_diag_hessian import plan_diag_hessian

# Between the chains, from a low to a high one: beyond this factor, no constant
# serves the curvatures of a coordinate.
_MOST_RATIO = 100.0
_QUANTILES = (0.05, 0.95)
_TARGET = 0.574
_FIRST_STEP_SIZE = 0.5
# Draws that tell how fast the chains forget.
_NUM_DRAWS = 100


def varies(curvature):
  """Whether curvatures change by orders of magnitude from chain to chain.

  Args:
    curvature: Array of shape [chains, d], the absolute second derivatives where
      the chains are.

  Returns:
    Python bool. False where one is not finite: it is no scale for its chain.
  """
  low, high = np.quantile(curvature, _QUANTILES, axis=0)
  is_known = np.all(np.isfinite(curvature))
  return bool(is_known and np.any(high > _MOST_RATIO * low))


def local_warm_up(
  found,
  target_log_prob_fn,
  curvature,
  num_steps,
  seed,
  jit_compile,
  target_accept_prob,
):
  """Finds the step size of `PreconditionedMALA` with the local curvature.

  Args:
    found: `WarmUp`, what was found so far.
    target_log_prob_fn: Python callable of a Tensor [chains, d].
    curvature: As for `varies`.
    num_steps: Python int, how many steps to adapt in. About as many again, 100
      at least, tell how fast the chains forget.
    seed: int32 Tensor of shape [2].
    jit_compile: Python bool.
    target_accept_prob: Python float, the acceptance that the step size aims at,
      or None for 0.574.

  Returns:
    `WarmUp` with the scale, and all that goes with it, in the place of those
    before. A step takes one gradient, and two for each pass of the diagonal of
    the Hessian.
  """
  state = tf.constant(found.state)
  # Smaller curvatures than nearly all chains see are not believed.
  scale = LocalScale(max(np.nanquantile(curvature, _QUANTILES[0]), 1e-30))
  kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
    PreconditionedMALA(
      target_log_prob_fn,
      tf.constant(_FIRST_STEP_SIZE, state.dtype),
      scale.operator(state.dtype),
    ),
    num_steps,
    target_accept_prob=target_accept_prob or _TARGET,
  )
  stride = max(num_steps // _NUM_DRAWS, 1)
  run = sample(
    kernel,
    state,
    _NUM_DRAWS,
    num_burnin_steps=num_steps,
    num_steps_between_results=stride - 1,
    progress_bar=False,
    jit_compile=jit_compile,
    seed=seed,
  )
  plan = plan_diag_hessian(
    target_log_prob_fn, tf.TensorSpec([None, state.shape[-1]], state.dtype)
  )
  each = 1 + 2 * plan.num_passes
  step_size = float(run.trace['step_size'][-1])
  return found._replace(
    state=np.asarray(run.final_state),
    scale=scale,
    step_size=step_size,
    integration_time=step_size,
    autocorrelation_time=stride * autocorrelation_time(np.asarray(run.draws)),
    gradients_per_step=each,
    num_gradients=(
      found.num_gradients + each * (num_steps + stride * _NUM_DRAWS)
    ),
  )
