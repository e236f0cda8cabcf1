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
"""Draws the picture at the top of README.md and of the documentation.

`python -m benchmarks.overview_picture FILE.png`: the patterns of three models
with the colors of their coordinates, and the time of a diagonal Hessian against
the number of coordinates, for a batch of 64 samples.
"""

import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag

BATCH = 64
REPETITIONS = 50


def stochastic_volatility(h):
  """A log density of log volatilities `h`, an AR(1) process; y = 1."""
  steps = h[..., 1:] - 0.95 * h[..., :-1]
  return -0.5 * tf.reduce_sum(steps**2, -1) - 0.5 * tf.reduce_sum(
    h + tf.exp(-h), -1
  )


def lattice(x, side=12):
  """The phi-four field on a periodic lattice."""
  x = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [side, side]], 0))
  links = sum((x - tf.roll(x, 1, axis)) ** 2 for axis in (-1, -2))
  return -tf.reduce_sum(0.5 * links + 0.1 * (x**2 - 1) ** 2, [-1, -2])


def hierarchical(x, num_groups=30):
  """Two hyperparameters and the means of some groups."""
  mean, log_scale, theta = x[..., :1], x[..., 1:2], x[..., 2:]
  z = (theta - mean) * tf.exp(-log_scale)
  prior = -0.5 * tf.reduce_sum(z**2, -1) - num_groups * log_scale[..., 0]
  return prior - 0.5 * tf.reduce_sum(x**2, -1)


MODELS = {
  'stochastic volatility': (stochastic_volatility, 40),
  'lattice field': (lattice, 144),
  'hierarchical model': (hierarchical, 32),
}


def milliseconds(fn, x):
  """Median time of one evaluation inside one compiled loop."""

  @tf.function(jit_compile=True)
  def loop(x):
    return tf.while_loop(
      lambda i, _: i < REPETITIONS,
      lambda i, x: (i + 1, x + 1e-6 * fn(x)),
      (0, x),
      maximum_iterations=REPETITIONS,
    )[1]

  loop(x).numpy()
  times = []
  for _ in range(7):
    start = time.perf_counter()
    loop(x).numpy()
    times.append(time.perf_counter() - start)
  return 1e3 * np.median(times) / REPETITIONS


def gradient(x):
  return tfp.math.value_and_gradient(stochastic_volatility, x)[1]


def ours(x):
  return tfp_diag.diag_hessian(stochastic_volatility, x)[2]


def upstream(x):
  _, diag = tfp.math.diag_jacobian(
    xs=x, ys=gradient(x), fn=gradient, sample_shape=x.shape[:-1]
  )
  return diag[0]


def growth(sizes):
  """Rows of n, and milliseconds of a gradient, of ours and of upstream."""
  rows = []
  for n in sizes:
    x = tf.random.stateless_normal([BATCH, n], [0, n])
    theirs = milliseconds(upstream, x) if n <= 3000 else np.nan
    rows.append((n, milliseconds(gradient, x), milliseconds(ours, x), theirs))
    print(
      'n = {}: gradient {:.3f} ms, ours {:.3f}, upstream {:.3f}'.format(
        *rows[-1]
      )
    )
  return np.array(rows)


def draw(path, rows):
  figure = plt.figure(figsize=(12, 3.4), layout='constrained')
  axes = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.5])
  for ax, (name, (fn, n)) in zip(axes, MODELS.items()):
    pattern = tfp_diag.sparsity.hessian_sparsity(fn, tf.TensorSpec([n]))
    coloring = tfp_diag.sparsity.color_diagonal(pattern)
    pattern.spy(ax=ax, coloring=coloring)
    if ax.get_legend() is not None:
      ax.get_legend().remove()
    ax.set_title(f'{name}\n{n} coordinates, {coloring.num_colors} passes')
    ax.set(xticks=[], yticks=[], xlabel='', ylabel='')
  ax = axes[-1]
  n, unit, own, theirs = rows.T
  ax.loglog(n, theirs, 's-', color='0.5', label='tfp.math.diag_jacobian')
  ax.loglog(n, own, 'o-', color='C0', label='tfp_diag.diag_hessian')
  ax.loglog(n, unit, ':', color='k', label='one gradient')
  ax.set(xlabel='coordinates', ylabel='milliseconds')
  ax.set_title('time of a diagonal Hessian\n(stochastic volatility, XLA, CPU)')
  ax.spines[['top', 'right']].set_visible(False)
  ax.legend(frameon=False)
  figure.savefig(path, dpi=150)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('file')
  parser.add_argument('--quick', action='store_true')
  options = parser.parse_args()
  sizes = (10, 100) if options.quick else (10, 30, 100, 300, 1000, 3000, 10**5)
  draw(options.file, growth(sizes))


if __name__ == '__main__':
  main()
