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
"""NumPy inside a function: what leaves TensorFlow cannot be differentiated.

In a graph TensorFlow itself refuses it. An eager call does the same, instead of
taking what NumPy made for a constant.
"""

import math

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import draw, same

N = 18
SAMPLES = 2


def method(x):
  return tf.sin(x) * x.numpy()


def universal_function(x):
  return x + tf.constant(np.exp(x))


def as_an_array(x):
  return tf.convert_to_tensor(np.asarray(x) ** 2) + x


def array_of_a_part(x):
  return x**2 * np.array(x[:, :1])


def numpy_matrix_product(x):
  return tf.sin(x) + np.dot(x, np.eye(N))


def method_of_an_array(x):
  return x - np.mean(x, axis=1, keepdims=True)


def special_function(x):
  return tf.cos(x) * scipy.special.erf(x)


def number_of_python(x):
  return x * float(tf.reduce_sum(x[0]))


def number_of_math(x):
  return x * math.exp(x[0, 0])


def list_of_numbers(x):
  return tf.constant(x.numpy().tolist()) * x


def inside_a_tf_function(x):
  inner = tf.function(lambda z: z * 2.0, autograph=False)
  return inner(x) + np.sin(inner(x))


def of_something_made(x):
  hidden = tf.tanh(x) ** 2
  return tf.sin(x) * np.asarray(hidden)


def compared(x):
  return tf.where(np.greater(x, 0.0), tf.sin(x), np.square(x))


FUNCTIONS = (
  method,
  universal_function,
  as_an_array,
  array_of_a_part,
  numpy_matrix_product,
  method_of_an_array,
  special_function,
  number_of_python,
  number_of_math,
  list_of_numbers,
  inside_a_tf_function,
  of_something_made,
  compared,
)
# What TensorFlow raises where a graph meets NumPy, and a ValueError.
REFUSED = (ValueError, TypeError, NotImplementedError, AttributeError)


def refuses():
  return pytest.raises(REFUSED, match='NumPy')


# A product with a matrix is of one size.
OF_ANY_SIZE = [fn for fn in FUNCTIONS if fn is not numpy_matrix_product]


@pytest.mark.parametrize(
  ('fn', 'n'),
  [(fn, N) for fn in FUNCTIONS] + [(fn, 3) for fn in OF_ANY_SIZE],
)
def test_an_eager_jacobian_refuses(n, fn):
  with refuses():
    tfp_diag.diag_jacobian(draw(SAMPLES, n), sample_shape=[SAMPLES], fn=fn)


@pytest.mark.parametrize('fn', FUNCTIONS[:6], ids=lambda f: f.__name__)
def test_an_eager_hessian_refuses(fn):
  with refuses():
    tfp_diag.diag_hessian(
      lambda x: tf.reduce_sum(fn(x) ** 2, axis=-1), draw(SAMPLES, N)
    )


@pytest.mark.parametrize('fn', FUNCTIONS[:6], ids=lambda f: f.__name__)
def test_a_plan_refuses(fn):
  with refuses():
    tfp_diag.plan_diag_jacobian(fn, draw(SAMPLES, N), sample_shape=[SAMPLES])


@pytest.mark.parametrize('fn', FUNCTIONS[:3], ids=lambda f: f.__name__)
def test_with_a_plan_of_another_function(fn):
  x = draw(SAMPLES, N)
  plan = tfp_diag.plan_diag_jacobian(
    lambda x: tf.cumsum(x, axis=1) ** 2, x, sample_shape=[SAMPLES]
  )
  with refuses():
    tfp_diag.diag_jacobian(x, fn=fn, plan=plan)


def test_numpy_on_what_is_no_argument():
  """Shapes, indices and data are NumPy's own business."""
  data = np.linspace(0.5, 1.5, N)

  def fn(x):
    weights = np.exp(data) / np.sum(np.shape(x))
    order = np.argsort(-data)
    return tf.sin(x) * weights * tf.gather(x, order, axis=1)

  x = draw(SAMPLES, N)
  v, w = x.numpy(), np.exp(data) / (SAMPLES + N)
  diag = tfp_diag.diag_jacobian(x, sample_shape=[SAMPLES], fn=fn)[1][0]
  own = np.argsort(-data) == np.arange(N)
  same(diag, w * (np.cos(v) * v[:, ::-1] + np.sin(v) * own))


def test_numpy_on_a_tensor_in_the_closure():
  scale = tf.constant(np.linspace(1.0, 2.0, N))
  x = draw(SAMPLES, N)
  diag = tfp_diag.diag_jacobian(
    x, sample_shape=[SAMPLES], fn=lambda x: tf.sin(x) * np.square(scale)
  )[1][0]
  same(diag, np.cos(x) * np.square(scale))
