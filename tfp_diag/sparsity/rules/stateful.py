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
"""Ops with side effects or random results, and derivatives that are lost.

Reading a variable is not among them: a function is expected to read its present
value.
"""

from tfp_diag.sparsity.registry import register_facts

register_facts(
  *"""
  AssignAddVariableOp AssignSubVariableOp AssignVariableOp Multinomial
  ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 RandomShuffle
  RandomStandardNormal RandomUniform RandomUniformInt ResourceScatterAdd
  ResourceScatterUpdate StatefulRandomBinomial TruncatedNormal
  """.split(),
  is_pure=False,
)
register_facts(
  'StatelessMultinomial',
  'StatelessParameterizedTruncatedNormal',
  'StatelessRandomBinomial',
  'StatelessRandomGammaV2',
  'StatelessRandomGammaV3',
  'StatelessRandomGetAlg',
  'StatelessRandomGetKeyCounter',
  'StatelessRandomGetKeyCounterAlg',
  'StatelessRandomNormal',
  'StatelessRandomNormalV2',
  'StatelessRandomPoisson',
  'StatelessRandomUniform',
  'StatelessRandomUniformFullInt',
  'StatelessRandomUniformFullIntV2',
  'StatelessRandomUniformInt',
  'StatelessRandomUniformIntV2',
  'StatelessRandomUniformV2',
  'StatelessSampleDistortedBoundingBox',
  'StatelessShuffle',
  'StatelessTruncatedNormal',
  'StatelessTruncatedNormalV2',
  is_same_everywhere=False,
)
register_facts('EagerPyFunc', is_pure=False, num_derivatives=1)
register_facts('PyFunc', is_pure=False, num_derivatives=0)
register_facts('PyFuncStateless', num_derivatives=0)
# Linear in the first input, but registered as not differentiable.
register_facts(
  *"""
  FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVarsGradient
  FakeQuantWithMinMaxVarsPerChannelGradient ResizeBilinearGrad SparseAddGrad
  """.split(),
  lost_inputs=lambda op: (0,),
)
# Differentiable, but TensorFlow says that they are not, or has no derivative by
# these inputs.
register_facts(
  *('ExtractGlimpse', 'HSVToRGB', 'Polygamma', 'RandomCrop', 'RandomShuffle'),
  'Zeta',
  lost_inputs=lambda op: (0,),
)
register_facts('Betainc', 'LinSpace', lost_inputs=lambda op: (0, 1))
register_facts(
  'ParameterizedTruncatedNormal', lost_inputs=lambda op: (1, 2, 3, 4)
)
register_facts('OneHot', lost_inputs=lambda op: (2, 3))
# What fills the places that nothing else does.
register_facts(
  *('PadV2', 'MatrixDiagPartV2', 'MatrixDiagPartV3'),
  lost_inputs=lambda op: (2,),
)
register_facts('MatrixDiagV2', 'MatrixDiagV3', lost_inputs=lambda op: (4,))
register_facts('ImageProjectiveTransformV2', lost_inputs=lambda op: (1,))
register_facts('ImageProjectiveTransformV3', lost_inputs=lambda op: (1, 3))
register_facts('ScaleAndTranslate', lost_inputs=lambda op: (2, 3))
# The mean and the variance that are given.
register_facts(
  *('FusedBatchNorm', 'FusedBatchNormV2', 'FusedBatchNormV3'),
  lost_inputs=lambda op: () if op.get_attr('is_training') else (3, 4),
)
register_facts(
  'Range',
  lost_inputs=lambda op: (0, 2) if op.outputs[0].dtype.is_floating else (),
)
register_facts(
  'SparseConcat',
  lost_inputs=lambda op: range(op.get_attr('N'), 2 * op.get_attr('N')),
)
register_facts(
  *('RandomStandardNormal', 'RandomUniform'),
  *('StatelessRandomNormalV2', 'StatelessRandomUniformV2'),
  shape_inputs=(0,),
)
