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
"""Counts of steps and rows against a walk through all steps."""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from tfp_diag.mcmc.run.schedule import Schedule

schedules = st.builds(
  Schedule,
  num_results=st.integers(0, 30),
  num_burnin_steps=st.integers(0, 30),
  num_steps_between_results=st.integers(0, 6),
  block_size=st.integers(1, 20),
)


def kept_steps(schedule):
  """The numbers of the steps whose state is kept, one by one."""
  step = schedule.num_burnin_steps
  for _ in range(schedule.num_results):
    yield step
    step += 1 + schedule.num_steps_between_results


@hypothesis.settings(deadline=None)
@hypothesis.given(schedule=schedules)
def test_rows_are_the_steps_that_are_kept(schedule):
  kept = list(kept_steps(schedule))
  last = kept[-1] + 1 if kept else schedule.num_burnin_steps
  assert schedule.num_steps == last
  for step in range(last + 1):
    assert schedule.num_rows(step) == sum(k < step for k in kept)


@hypothesis.settings(deadline=None)
@hypothesis.given(schedule=schedules)
def test_blocks_cover_the_run_and_fit_into_their_rows(schedule):
  step = 0
  while step < schedule.num_steps:
    end = schedule.block_end(step)
    assert step < end <= schedule.num_steps
    assert end % schedule.block_size == 0 or end == schedule.num_steps
    # The step before `end` writes to the row of the next result.
    rows = [
      schedule.num_rows(s) - schedule.num_rows(step) for s in range(step, end)
    ]
    assert max(rows) < schedule.rows_per_block
    step = end


def test_draws_are_judged_as_they_grow():
  schedule = Schedule(10_000, 95, 0, 10)
  asked = [s for s in range(10_096) if schedule.is_time_to_judge(s)]
  assert asked[:5] == [100, 110, 120, 130, 140]
  counts = [schedule.num_rows(step) for step in asked]
  # Every block at first, later by a twentieth and up to a block more.
  assert all(b <= 1.06 * a + 10 for a, b in itertools.pairwise(counts))
  assert all(step % 10 == 0 for step in asked)
  assert len(asked) < 120
  assert counts[-1] > 9_500


def test_a_block_has_no_more_rows_than_the_run_has_results():
  assert Schedule(10, 5, 0, block_size=10**9).rows_per_block == 10
  assert Schedule(10, 5, 2, block_size=10**9).rows_per_block == 10
  assert Schedule(0, 5, 0, block_size=10**9).rows_per_block == 1
  assert Schedule(0, 0, 0, block_size=10**9).rows_per_block == 1


@pytest.mark.parametrize(
  'name, value',
  [
    ('num_results', -1),
    ('num_results', 2.5),
    ('num_burnin_steps', -3),
    ('num_steps_between_results', -1),
    ('block_size', 0),
    ('block_size', None),
  ],
)
def test_what_cannot_be_counted_is_refused(name, value):
  counts = dict(
    num_results=1, num_burnin_steps=0, num_steps_between_results=0, block_size=1
  )
  with pytest.raises(ValueError, match=f'`{name}` is {value}'):
    Schedule(**{**counts, name: value})


def test_more_steps_than_an_int32_counts_are_refused():
  with pytest.raises(ValueError, match='at most 2,147,483,647'):
    Schedule(2**31 + 2, 0, 0, 1)
  with pytest.raises(ValueError, match='3,221,225,470 steps'):
    Schedule(2**30, 0, 2, 1)
