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
"""Chains over two processes, as they would be over two machines.

The program starts two workers that talk to each other on this machine's
loopback, samples 12 chains over both, and compares them with those of one
process.

#### Examples

```sh
python -m tfp_diag.examples.two_workers
```

#### Several machines

`tf.distribute.MirroredStrategy` reaches as far as the devices of one machine:
one process, one replica of the kernel per device. Over several machines there
is one process on each, `tf.distribute.MultiWorkerMirroredStrategy` in all of
them, and the environment variable TF_CONFIG, which says to each where all of
them listen and which one it is. All run the same program. The kernels do not
notice: they are told by `experimental_chain_axis_names` that the chains are
spread, and draw the noise of the chains that their replica has.

What works, on either strategy:

* Steps that exchange nothing: a plain kernel, or one that does not adapt any
  more. The loop over the steps can be inside of the replica, in a `tf.function`
  and compiled by XLA. Chains are, bit for bit, those of one process.
* Steps that adapt to the chains of all replicas
  (`experimental_reduce_chain_axis_names`). The loop over the steps must be
  outside of `strategy.run`, in one `tf.function` without XLA. What is learned
  is the same on all replicas, bit for bit, and that of one process up to
  rounding, as sums are added up in another order.

What does not:

* Replicas cannot exchange anything inside of a loop, branch or `tf.function` of
  the replica, nor in a function that XLA compiles for a CPU: TensorFlow raises
  an error about `merge_call`.
* A strategy of several workers must be made before TensorFlow runs an op, and
  no worker can leave or join later. If one dies, the others wait for it, and
  then fail; start all of them again from what was saved.
"""

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.examples import gaussian
from tfp_diag.mcmc import DiagonalPreconditionerAdaptation, PreconditionedMALA

__all__ = ['main']

_NUM_CHAINS = 12
_NUM_STEPS = 40
_SEED = (1, 2)
_SECONDS = 300


def main():
  """Starts the workers, draws the same chains alone, and compares."""
  with tempfile.TemporaryDirectory() as folder:
    workers = _start_workers(folder)
    try:
      alone = _draw(tf.distribute.OneDeviceStrategy('/cpu:0'))
      said = [worker.communicate(timeout=_SECONDS)[0] for worker in workers]
    finally:
      for worker in workers:
        worker.kill()
    for worker, output in zip(workers, said):
      if worker.returncode != 0:
        raise RuntimeError(f'A worker failed. It said: {output[-4000:]}')
    halves = [
      dict(np.load(_file(folder, index))) for index in range(len(workers))
    ]
  for name, what in (
    ('plain', 'draws without adaptation'),
    ('adapted', 'draws with adaptation pooled over the workers'),
  ):
    both = np.concatenate([half[name] for half in halves])
    error = np.max(np.abs(both - alone[name]))
    print(f'{what}: {both.shape}, largest difference {error:.1e}')
  scales = [half['scale'] for half in halves]
  print(
    'scales of the workers differ by', np.max(np.abs(scales[0] - scales[1]))
  )
  print('scale learned:', np.round(scales[0], 2))


def _start_workers(folder):
  """Two processes of this module, which know of each other by TF_CONFIG."""
  # Free now: a moment later, somebody else might take them.
  sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
  addresses = [f'127.0.0.1:{s.getsockname()[1]}' for s in sockets]
  for s in sockets:
    s.close()
  workers = []
  for index in range(2):
    config = {
      'cluster': {'worker': addresses},
      'task': {'type': 'worker', 'index': index},
    }
    environment = dict(
      os.environ,
      TF_CONFIG=json.dumps(config),
      # The workers would otherwise fight for one GPU.
      CUDA_VISIBLE_DEVICES='-1',
    )
    workers.append(
      subprocess.Popen(
        [sys.executable, '-m', __spec__.name, folder, str(index)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
      )
    )
  return workers


def _work(folder, index):
  # Before anything else: it starts the server of this worker.
  strategy = tf.distribute.MultiWorkerMirroredStrategy()
  np.savez(_file(folder, index), **_draw(strategy))


def _file(folder, index):
  return pathlib.Path(folder) / f'{index}.npz'


def _draw(strategy):
  """The chains of the replicas in this process, plain and adapted."""
  target = gaussian.three_dimensional()
  kernel = PreconditionedMALA(
    target.log_prob, 0.3, experimental_chain_axis_names='chains'
  )
  state = _spread(strategy)
  plain = strategy.run(
    tf.function(functools.partial(_sample, kernel), jit_compile=True), (state,)
  )
  adapted, scale = _adapt(strategy, kernel, state)
  return {
    'plain': _local(strategy, plain),
    'adapted': _local(strategy, adapted),
    'scale': strategy.experimental_local_results(scale)[0].numpy(),
  }


def _spread(strategy):
  """Where the chains start, each replica with its equal share."""
  start = np.random.default_rng(0).normal(size=[_NUM_CHAINS, 3])
  shares = np.split(start.astype(np.float32), strategy.num_replicas_in_sync)
  spread = strategy.experimental_distribute_values_from_function(
    lambda context: tf.constant(shares[context.replica_id_in_sync_group])
  )
  local = strategy.experimental_local_results(spread)
  # Of a single replica, `strategy.run` returns plain Tensors, and so the loop
  # has to start with one.
  return local[0] if len(local) == 1 else spread


def _local(strategy, values):
  return np.concatenate(
    [v.numpy() for v in strategy.experimental_local_results(values)]
  )


def _seed(step):
  # The same for all replicas: they take different parts of one draw.
  return tf.random.fold_in(_SEED, step, alg='philox')


def _sample(kernel, state):
  """Nothing is exchanged: the loop is inside of the replica."""
  results = kernel.bootstrap_results(state)

  def step(i, state, results):
    return i + 1, *kernel.one_step(state, results, seed=_seed(i))

  return tf.while_loop(lambda i, *_: i < _NUM_STEPS, step, (0, state, results))[
    1
  ]


def _adapt(strategy, kernel, state):
  """Moments and acceptance are exchanged: the loop is around the strategy."""
  kernel = tfp.mcmc.SimpleStepSizeAdaptation(
    DiagonalPreconditionerAdaptation(
      kernel, _NUM_STEPS, experimental_reduce_chain_axis_names='chains'
    ),
    _NUM_STEPS,
    target_accept_prob=0.574,
    # TFP has to be told that it may gather.
    reduce_fn=functools.partial(
      tfp.math.reduce_logmeanexp, experimental_allow_all_gather=True
    ),
    experimental_reduce_chain_axis_names='chains',
  )

  @tf.function(autograph=False)
  def run(state):
    results = strategy.run(kernel.bootstrap_results, (state,))

    def step(i, state, results):
      return i + 1, *strategy.run(
        kernel.one_step, (state, results), {'seed': _seed(i)}
      )

    return tf.while_loop(
      lambda i, *_: i < _NUM_STEPS, step, (0, state, results)
    )[1:]

  state, results = run(state)
  inner = results.inner_results.inner_results
  return state, inner.accepted_results.preconditioner[0]


if __name__ == '__main__':
  if len(sys.argv) > 1:
    _work(*sys.argv[1:])
  else:
    main()
