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
"""Diagonals by torch.func."""

import typing

import torch

from benchmarks.tools import STEP

__all__ = ['compiled', 'dense', 'gradient', 'jvp', 'reverse']


class TorchOps:
  """See `numpy_ops.NumpyOps`."""

  exp = staticmethod(torch.exp)
  log = staticmethod(torch.log)
  log1p = staticmethod(torch.log1p)
  tanh = staticmethod(torch.tanh)
  softplus = staticmethod(torch.nn.functional.softplus)
  lgamma = staticmethod(torch.lgamma)
  matmul = staticmethod(torch.matmul)
  stack = staticmethod(torch.stack)
  sum_axis = staticmethod(torch.sum)

  _constants: typing.ClassVar[dict] = {}

  @classmethod
  def array(cls, values):
    # Made once, outside of all transformations: a Tensor made inside of one
    # belongs to it. The array is kept, so that its address stays its own.
    address = values.__array_interface__['data'][0]
    key = address, values.shape, values.strides
    if key not in cls._constants:
      tensor = torch.tensor(values, dtype=torch.float32)
      cls._constants[key] = (values, tensor)
    return cls._constants[key][1]

  @staticmethod
  def sum(x, num_axes):
    return torch.sum(x, dim=tuple(range(-num_axes, 0)))

  @staticmethod
  def logsumexp(x):
    return torch.logsumexp(x, dim=-1)

  @staticmethod
  def cumsum(x):
    return torch.cumsum(x, dim=-1)

  @staticmethod
  def unflatten(x, shape):
    return torch.reshape(x, (*x.shape[:-1], *shape))

  @staticmethod
  def concat(parts):
    return torch.cat(parts, dim=-1)

  @staticmethod
  def take(x, indices):
    return x[..., torch.as_tensor(indices)]

  @staticmethod
  def gradient(fn, x):
    return torch.func.grad(lambda x: torch.sum(fn(x)))(x)

  @staticmethod
  def roll(x, axis, shift):
    return torch.roll(x, shift, axis)


def gradient(case):
  """One gradient, or one product with the Jacobian of a field."""

  def derivative(fn, x):
    if case.kind == 'hessian':
      return torch.func.grad(fn)(x)
    return torch.func.vjp(fn, x)[1](x)[0]

  return _loop(case, derivative)


def dense(case):
  """`hessian`, or `jacfwd`, of one sample; its diagonal; `vmap` of that."""
  make = torch.func.hessian if case.kind == 'hessian' else torch.func.jacfwd
  return _loop(case, lambda fn, x: torch.diagonal(make(fn)(x)))


def reverse(case, chunk_size=None):
  """`jacrev` of the gradient or of the field."""

  def derivative(fn, x):
    jacobian = torch.func.jacrev(_field(case, fn), chunk_size=chunk_size)
    return torch.diagonal(jacobian(x))

  return _loop(case, derivative)


def jvp(case, chunk_size=None):
  """`vmap(jvp)` over the basis vectors, one entry of each."""

  def derivative(fn, x):
    def entry(seed):
      return torch.sum(
        seed * torch.func.jvp(_field(case, fn), (x,), (seed,))[1]
      )

    basis = torch.eye(case.num_coordinates)
    return torch.func.vmap(entry, chunk_size=chunk_size)(basis)

  return _loop(case, derivative)


def compiled(case):
  """`torch.compile` of `reverse`: it refuses forward mode over slices."""
  return _loop(
    case,
    lambda fn, x: torch.diagonal(torch.func.jacrev(_field(case, fn))(x)),
    compile_it=True,
  )


def _field(case, fn):
  return torch.func.grad(fn) if case.kind == 'hessian' else fn


def _loop(case, derivative, compile_it=False):
  """`run(x, count)` for a derivative of one sample, laid flat.

  A loop of Python: it is what users of torch write.
  """

  # Makes the constants.
  case.fn(TorchOps, torch.as_tensor(case.start())[0], 1.0)

  def diagonal(x, scale):
    def fn(flat):
      y = case.fn(TorchOps, flat.reshape(case.event_shape), scale)
      return y.reshape(-1) if case.kind == 'jacobian' else y

    return derivative(fn, x)

  def evaluate(x):
    flat = x.reshape(case.batch, -1)
    scale = 1.0 + STEP * flat[0, 0]
    result = torch.func.vmap(diagonal, (0, None))(flat, scale)
    return result.reshape(x.shape)

  if compile_it:
    evaluate = torch.compile(evaluate)

  def run(x, count):
    x = y = torch.as_tensor(x)
    for _ in range(count):
      result = evaluate(y)
      y = x + STEP * result
    return result.detach().numpy()

  return run
