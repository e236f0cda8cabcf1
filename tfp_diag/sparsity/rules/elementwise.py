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
"""Ops that work element by element, by which of their derivatives vanish.

One line per op type: a letter per argument, and after commas the pairs of
arguments with a mixed second derivative. The letters:

  z  the first derivative vanishes,
  l  linear: the second derivative vanishes (almost everywhere),
  c  curved.

Arguments are broadcast against each other, as in NumPy.
"""

import functools

import numpy as np

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.registry import (
  CannotSay,
  register_facts,
  register_rule,
)
from tfp_diag.sparsity.structure import Arrow, Pair, Structure

TABLE = {
  # Unary, zero derivative.
  'Ceil': 'z',
  'Floor': 'z',
  'Rint': 'z',
  'Round': 'z',
  'Sign': 'z',
  'StopGradient': 'z',
  # Unary, linear.
  'Abs': 'l',
  'Bitcast': 'z',
  'Cast': 'l',
  'Conj': 'l',
  'DebugGradientIdentity': 'l',
  'Imag': 'l',
  'LeakyRelu': 'l',
  'Neg': 'l',
  'Real': 'l',
  'Relu': 'l',
  'Relu6': 'l',
  # Unary, curved.
  'Acos': 'c',
  'Acosh': 'c',
  'Angle': 'c',
  'Asin': 'c',
  'Asinh': 'c',
  'Atan': 'c',
  'Atanh': 'c',
  'BesselI0': 'c',
  'BesselI0e': 'c',
  'BesselI1': 'c',
  'BesselI1e': 'c',
  'BesselJ0': 'c',
  'BesselJ1': 'c',
  'BesselK0': 'c',
  'BesselK0e': 'c',
  'BesselK1': 'c',
  'BesselK1e': 'c',
  'BesselY0': 'c',
  'BesselY1': 'c',
  'ComplexAbs': 'c',
  'Cos': 'c',
  'Cosh': 'c',
  'Dawsn': 'c',
  'Digamma': 'c',
  'Elu': 'c',
  'Erf': 'c',
  'Erfc': 'c',
  'Erfinv': 'c',
  'Exp': 'c',
  'Expint': 'c',
  'Expm1': 'c',
  'FresnelCos': 'c',
  'FresnelSin': 'c',
  'Inv': 'c',
  'Lgamma': 'c',
  'Log': 'c',
  'Log1p': 'c',
  'Ndtri': 'c',
  'Reciprocal': 'c',
  'Rsqrt': 'c',
  'Selu': 'c',
  'Sigmoid': 'c',
  'Sin': 'c',
  'Sinh': 'c',
  'Softplus': 'c',
  'Softsign': 'c',
  'Spence': 'c',
  'Sqrt': 'c',
  'Square': 'c',
  'Tan': 'c',
  'Tanh': 'c',
  # Binary.
  'Add': 'll',
  'AddV2': 'll',
  'Atan2': 'cc,01',
  'Complex': 'll',
  'Div': 'lc,01',
  'DivNoNan': 'lc,01',
  'FloorDiv': 'zz',
  'FloorMod': 'll',
  'Igamma': 'cc,01',
  'Igammac': 'cc,01',
  'IgammaGradA': 'cc,01',
  'Maximum': 'll',
  'Minimum': 'll',
  'Mod': 'll',
  'Mul': 'll,01',
  'MulNoNan': 'll,01',
  'NextAfter': 'lz',
  'Polygamma': 'cc,01',
  'Pow': 'cc,01',
  'RealDiv': 'lc,01',
  'SquaredDifference': 'cc,01',
  'Sub': 'll',
  'TruncateDiv': 'zz',
  'TruncateMod': 'll',
  'Xdivy': 'lc,01',
  'Xlog1py': 'lc,01',
  'Xlogy': 'lc,01',
  'Zeta': 'cc,01',
  # Ternary.
  'Betainc': 'ccc,01,02,12',
  'ClipByValue': 'lll',
  'SelectV2': 'zll',
  # The gradients of unary ops: functions of a value and of a cotangent.
  'EluGrad': 'll,01',
  'InvGrad': 'cl,01',
  'LeakyReluGrad': 'lz',
  'ReciprocalGrad': 'cl,01',
  'Relu6Grad': 'lz',
  'ReluGrad': 'lz',
  'RsqrtGrad': 'cl,01',
  'SeluGrad': 'll,01',
  'SigmoidGrad': 'cl,01',
  'SoftplusGrad': 'lc,01',
  'SoftsignGrad': 'lc,01',
  'SqrtGrad': 'cl,01',
  'TanhGrad': 'cl,01',
}


def _elementwise(op):
  """Element e of the output depends on element e of each argument.

  For `Mul` of `[2, 1]` and `[3]` the output is `[2, 3]`; its Jacobian with
  respect to the second argument has the rows 0, 1, 2, 0, 1, 2 of an identity.
  """
  classes, *crosses = TABLE[op.type].split(',')
  (output,) = op.outputs
  flows = {}
  for k, letter in enumerate(classes):
    if (letter != 'z' or op.by_value) and op.inputs[k].depends:
      flows[k] = _broadcast(op.inputs[k].shape, output.shape)
  if op.type == 'SelectV2':
    flows = _selected(op, flows)
  elif op.type in ('Mul', 'MulNoNan') and len(flows) == 1:
    flows = {k: _masked(op.inputs[1 - k], f, output) for k, f in flows.items()}
  meets = [(k, k) for k, letter in enumerate(classes) if letter == 'c']
  meets += [tuple(map(int, cross)) for cross in crosses]
  pairs = tuple(
    Pair((i,), flows[i], (j,), flows[j], output=0)
    for i, j in meets
    if i in flows and j in flows
  )
  arrows = tuple(Arrow(0, (k,), flow) for k, flow in flows.items())
  if len(flows) == 1 and pairs:
    return Structure(arrows, curved=(0,))
  return Structure(arrows, pairs=pairs)


for _op_type, _classes in TABLE.items():
  register_rule(_op_type, elementwise=_classes)(_elementwise)
register_facts('Cast', 'SelectV2', is_for_any_dtype=True)
# Their derivatives are functions of the same kind, like those of `Exp`.
register_facts('Cos', 'Cosh', 'Exp', 'Sin', 'Sinh', orders_in_range=3)

register_facts(
  *('Abs', 'ClipByValue', 'FloorMod', 'LeakyRelu', 'Maximum', 'Minimum', 'Mod'),
  *('Relu', 'Relu6', 'TruncateMod'),
  bends=True,
)

for _op_types, _selects in {
  ('Maximum', 'Minimum'): (0, 1),
  ('ClipByValue',): (0, 1, 2),
  ('SelectV2',): (1, 2),
  ('DivNoNan', 'MulNoNan'): (0,),
}.items():
  register_facts(*_op_types, selects=_selects)

for _op_types, _linear_in in {
  ('Cast', 'Neg'): ((0,),),
  ('Add', 'AddV2', 'Sub'): ((0, 1),),
  ('Mul', 'MulNoNan'): ((0,), (1,)),
  ('Div', 'DivNoNan', 'RealDiv', 'Xdivy', 'Xlog1py', 'Xlogy'): ((0,),),
  ('SelectV2',): ((1, 2),),
  ('LeakyReluGrad', 'Relu6Grad', 'ReluGrad'): ((0,),),
  ('EluGrad', 'SeluGrad', 'SoftplusGrad', 'SoftsignGrad'): ((0,),),
  ('InvGrad', 'ReciprocalGrad', 'RsqrtGrad', 'SqrtGrad'): ((1,),),
  ('SigmoidGrad', 'TanhGrad'): ((1,),),
}.items():
  register_facts(*_op_types, linear_in=_linear_in)


# TensorFlow's gradients would add the ops of both arguments, and of shapes.
register_facts('Add', 'AddV2', 'Cast', factor=lambda op, k: 1.0)
register_facts('Sub', factor=lambda op, k: (1.0, -1.0)[k])
register_facts('Sub', 'SquaredDifference', is_difference=True)
register_facts('Neg', factor=lambda op, k: -1.0)
register_facts('Mul', factor=lambda op, k: op.inputs[1 - k])


def _selected(op, flows):
  """If the condition is constant, each element comes from one argument."""
  try:
    condition = op.inputs[0].value()
  except CannotSay:
    return flows
  condition = np.broadcast_to(condition, op.outputs[0].shape).reshape(-1)
  selected = {}
  for k, flow in flows.items():
    selected[k] = _kept(flow, condition if k == 1 else ~condition)
  return selected


def _masked(factor, flow, output):
  """Where a constant factor is zero, so is each derivative of a product."""
  if not factor.zeros_may_be_read():
    return flow
  nonzero = factor.nonzero()
  if nonzero.all():
    return flow
  return _kept(flow, np.broadcast_to(nonzero, output.shape).reshape(-1))


def _kept(flow, is_kept):
  """The flow to some elements, and none to the others."""
  index = np.where(is_kept, np.arange(flow.rows), -1)
  return flow.then(Flow.gather(index, flow.rows))


def _broadcast(shape, output_shape):
  """Which element of an argument each element of the output reads."""
  if shape == output_shape:
    return Flow.identity(int(np.prod(shape, dtype=np.int64)))
  return _broadcast_differently(shape, output_shape)


@functools.lru_cache(256)
def _broadcast_differently(shape, output_shape):
  size = int(np.prod(shape, dtype=np.int64))
  places = np.arange(size).reshape(shape)
  return Flow.gather(np.broadcast_to(places, output_shape), size)
