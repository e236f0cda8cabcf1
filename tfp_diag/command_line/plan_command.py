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
"""`python -m tfp_diag plan`: the structure of a function of the user."""

import json
import math

import tensorflow as tf

from tfp_diag.command_line.input_error import InputError, one_line
from tfp_diag.command_line.plan_picture import draw_plan
from tfp_diag.command_line.starting_points import starting_points
from tfp_diag.command_line.user_target import user_target
from tfp_diag.plan_diag_hessian import plan_diag_hessian
from tfp_diag.plan_diag_jacobian import plan_diag_jacobian
from tfp_diag.sparsity.samples import SampleMixingError


def plan_command(options):
  """Prints the plan of a diagonal Hessian or Jacobian, and draws its pattern.

  Args:
    options: What `parse_plan_options` returned.

  Returns:
    The exit status 0.

  Raises:
    InputError: if a file or a function does not fit, or if the function mixes
      samples.
  """
  target = user_target(options.fn, options.init, options.shape)
  plan = _plan(options, target)
  if options.save is not None:
    plan.save(options.save)
  if options.plot is not None:
    draw_plan(options.plot, plan, _part_names(target))
  if options.json:
    print(json.dumps(_as_dict(plan), indent=2))
    return 0
  print(f'{plan}\n  colors       {_what_colors_are_for(plan)}')
  if options.save is not None:
    print(f'\nPlan: {options.save}')
  if options.plot is not None:
    print(f'\nPicture: {options.plot}')
  return 0


def _plan(options, target):
  sample_shape = options.sample_shape
  fn = target.target_log_prob_fn
  make_plan = plan_diag_jacobian if options.jacobian else plan_diag_hessian
  state = f'--sample-shape {sample_shape}'
  try:
    if options.init is None or options.jacobian or len(sample_shape) != 1:
      start = target.init(math.prod(sample_shape), (0, 0))
      start = [tf.reshape(x, sample_shape + x.shape[1:]) for x in start]
    else:
      start = starting_points(target, sample_shape[0], (0, 0))
    shapes = ' and '.join(str(x.shape.as_list()) for x in start)
    state = f'a state of shape {shapes}'
    return make_plan(fn, start, sample_shape)
  except InputError:
    raise
  except SampleMixingError as e:
    number = '' if options.jacobian else ', and the sum of the log densities'
    raise InputError(
      f'{one_line(e)} Here: --sample-shape "[]" with a --shape of the batch'
      f'{number}.'
    ) from e
  except Exception as e:
    # The function is the user's, and may raise anything.
    raise InputError(
      f'{options.fn} has no plan for {state}: {one_line(e)}'
    ) from e


def _as_dict(plan):
  return {
    'kind': plan.kind,
    'num_passes': plan.num_passes,
    'num_colors': plan.num_colors,
    'num_coordinates': plan.num_coordinates,
    'event_shapes': [list(shape) for shape in plan.event_shapes],
    'nonzeros': plan.pattern.nnz,
    'mode': plan.mode,
    'schedule': plan.schedule,
    'chunk_size': plan.chunk_size,
    'fallback_ops': list(plan.pattern.fallback_ops),
    'notes': list(plan.notes),
  }


def _what_colors_are_for(plan):
  """How the colors of the picture and the passes of the plan agree."""
  if not plan.uses_terms:
    return f'{plan.num_colors:,}, with a pass for each'
  return f'{plan.num_colors:,}; {plan.how} instead of a pass for each'


def _part_names(target):
  """The names of the parts that have coordinates."""
  return list(dict.fromkeys(n.split('[')[0] for n in target.parameter_names))
