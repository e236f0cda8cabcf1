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
"""Diagonals by tfp_diag, with each of its modes and schedules."""

import tensorflow as tf

import tfp_diag
from benchmarks.tools import Skipped
from benchmarks.tools.tensorflow_ways import compiled_loop, function_of

__all__ = ['diagonal', 'everything', 'without_plan']

# More passes than this are not written out: tracing would take minutes.
_MOST_UNROLLED = 64


def diagonal(case, jit_compile=True, mode='auto', schedule='auto'):
  """The diagonal alone, with a plan made beforehand."""
  plan = _plan(case)
  # Only 'auto' takes anything but the passes.
  passes = plan.num_passes if schedule == 'auto' else plan.coloring.num_colors
  if schedule == 'unrolled' and passes > _MOST_UNROLLED:
    raise Skipped(f'{passes:,} passes are not written out')
  choice = {'mode': _mode(case, mode), 'schedule': schedule, 'plan': plan}
  run = compiled_loop(
    lambda x, scale: _call(case, x, scale, **choice)[-1], jit_compile
  )
  run.about = {
    'passes': passes,
    'mode': plan.mode if mode == 'auto' else choice['mode'],
    'schedule': plan.schedule if schedule == 'auto' else schedule,
  }
  return run


def everything(case):
  """Value, gradient and diagonal, with a plan made beforehand."""
  plan = _plan(case)

  def derivative(x, scale):
    *rest, diag = _call(case, x, scale, plan=plan)
    # All that there is of the rest, at a weight that keeps it in the loop and
    # out of the check.
    for part in rest:
      ones = [1] * (x.shape.rank - part.shape.rank)
      part = tf.reshape(part, part.shape.as_list() + ones)
      diag += 1e-30 * part
    return diag

  return compiled_loop(derivative)


def without_plan(case):
  """The diagonal alone, structure found while the graph is traced."""
  return compiled_loop(lambda x, scale: _call(case, x, scale)[-1])


def _plan(case):
  x = tf.constant(case.start())
  make = {
    'hessian': tfp_diag.plan_diag_hessian,
    'jacobian': tfp_diag.plan_diag_jacobian,
  }
  return make[case.kind](function_of(case, tf.constant(1.0)), x, [case.batch])


def _call(case, x, scale, **options):
  """Value, gradient and diagonal; or field and diagonal."""
  fn = function_of(case, scale)
  if case.kind == 'hessian':
    return tfp_diag.diag_hessian(fn, x, [case.batch], **options)
  ys, diag = tfp_diag.diag_jacobian(
    x, fn=fn, sample_shape=[case.batch], **options
  )
  return ys[0] if isinstance(ys, list) else ys, diag[0]


def _mode(case, mode):
  if mode == 'auto' or case.kind == 'jacobian':
    return mode
  return f'{mode}_over_reverse'
