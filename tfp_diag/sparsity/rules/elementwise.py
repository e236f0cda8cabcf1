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

One line per class of ops: a letter per argument, and after commas the pairs of
arguments with a mixed second derivative. The letters:

  z  the first derivative vanishes,
  l  linear: the second derivative vanishes (almost everywhere),
  c  curved.

Arguments are broadcast against each other, as in NumPy.
"""

import numpy as np

from tfp_diag.sparsity.flow import broadcast, to_some
from tfp_diag.sparsity.registry import (
  CannotSay,
  elementwise_pairs,
  register_facts,
  register_rule,
)
from tfp_diag.sparsity.structure import Arrow, Pair, Structure

_OPS = {
  # Of one argument.
  'z': 'Bitcast Ceil Floor Rint Round Sign StopGradient',
  'l': 'Abs Cast Conj DebugGradientIdentity Imag LeakyRelu Neg Real Relu Relu6',
  'c': """
    Acos Acosh Angle Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1
    BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0
    BesselY1 ComplexAbs Cos Cosh Dawsn Digamma Elu Erf Erfc Erfinv Exp Expint
    Expm1 FresnelCos FresnelSin Inv Lgamma Log Log1p Ndtri Reciprocal Rsqrt Selu
    Sigmoid Sin Sinh Softplus Softsign Spence Sqrt Square Tan Tanh
  """,
  # Of two; the gradients of unary ops are functions of a value and a cotangent.
  'zz': 'FloorDiv TruncateDiv',
  'lz': 'LeakyReluGrad NextAfter Relu6Grad ReluGrad',
  'll': 'Add AddV2 Complex FloorMod Maximum Minimum Mod Sub TruncateMod',
  'll,01': 'EluGrad Mul MulNoNan SeluGrad',
  'lc,01': """
    Div DivNoNan RealDiv SoftplusGrad SoftsignGrad Xdivy Xlog1py Xlogy
  """,
  'cl,01': 'InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad',
  'cc,01': """
    Atan2 Igamma Igammac IgammaGradA Polygamma Pow SquaredDifference Zeta
  """,
  # Of three.
  'zll': 'SelectV2',
  'lll': 'ClipByValue',
  'ccc,01,02,12': 'Betainc',
}

_QUOTIENTS = ('Div', 'DivNoNan', 'RealDiv')

TABLE = {op: classes for classes, ops in _OPS.items() for op in ops.split()}


def _elementwise(op):
  """Element e of the output depends on element e of each argument.

  For `Mul` of `[2, 1]` and `[3]` the output is `[2, 3]`; its Jacobian with
  respect to the second argument has the rows 0, 1, 2, 0, 1, 2 of an identity.
  """
  (output,) = op.outputs
  flows = {}
  for k, letter in enumerate(TABLE[op.type].split(',')[0]):
    if (letter != 'z' or op.by_value) and op.inputs[k].depends:
      flows[k] = broadcast(op.inputs[k].shape, output.shape)
  if op.type == 'SelectV2':
    flows = _selected(op, flows)
  elif op.type in ('Mul', 'MulNoNan'):
    flows = {k: _masked(op.inputs[1 - k], f, output) for k, f in flows.items()}
  elif op.type in _QUOTIENTS and 1 in flows:
    flows[1] = _masked(op.inputs[0], flows[1], output)
  pairs = tuple(
    Pair((i,), flows[i], (j,), flows[j], output=0)
    for i, j in elementwise_pairs(op.type, flows) or ()
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
    selected[k] = to_some(flow, condition if k == 1 else ~condition)
  return selected


def _masked(factor, flow, output):
  """Where the other factor is zero for all xs, so is each derivative by one."""
  if not factor.zeros_may_be_read():
    return flow
  nonzero = factor.nonzero()
  if nonzero.all():
    return flow
  return to_some(flow, np.broadcast_to(nonzero, output.shape).reshape(-1))


# NumPy computes these ops on integers and bools, which is faster. They are
# mostly the counters of loops. The dtypes of the results are those of the ops.
for _op_type, _function in {
  'Add': np.add,
  'AddV2': np.add,
  'Equal': np.equal,
  'Greater': np.greater,
  'GreaterEqual': np.greater_equal,
  'Less': np.less,
  'LessEqual': np.less_equal,
  'LogicalAnd': np.logical_and,
  'LogicalNot': np.logical_not,
  'LogicalOr': np.logical_or,
  'Maximum': np.maximum,
  'Minimum': np.minimum,
  'Mul': np.multiply,
  'NotEqual': np.not_equal,
  'Sub': np.subtract,
}.items():
  register_facts(_op_type, on_integers=_function)
