"""K like steps equal their sum, and an arrival finds its boundary: against stepping one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.engine.step_run import like_steps
from replicast.sim.engine.step_time import StepLoad, StepTime, row_pairs

side = st.one_of(st.integers(0, 30), st.integers(0, 10**14))
lines = st.tuples(side, side, side, side)


def one_by_one(line: tuple[int, int, int, int], k: int) -> list[int]:
    memory, memory_slope, compute, compute_slope = line
    return [max(memory + i * memory_slope, compute + i * compute_slope, 1) for i in range(k)]


@given(lines, st.integers(0, 60))
def test_like_steps_equal_their_sum(line: tuple[int, int, int, int], k: int) -> None:
    run = like_steps(*line)
    steps = one_by_one(line, k)
    assert run.ticks(k) == sum(steps)
    if k:
        assert run.last(k) == steps[-1]


@given(lines, st.integers(0, 59), st.integers(-1, 1), st.integers(0, 10**15))
def test_the_boundary_found_is_the_first_at_or_after(
    line: tuple[int, int, int, int], k: int, off: int, far: int
) -> None:
    run = like_steps(*line)
    for elapsed in (run.ticks(k) + off, far):
        i = run.steps_until(elapsed)
        assert run.ticks(i) >= elapsed
        assert i == 0 or run.ticks(i - 1) < elapsed


@given(st.integers(0, 500), st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_pairs_of_a_prompt_do_not_depend_on_its_chunks(c: int, chunks: list[int]) -> None:
    pieces, start = 0, c
    for n in chunks:
        pieces += row_pairs(start, n)
        start += n
    assert pieces == row_pairs(c, sum(chunks))


def test_the_slower_side_sets_the_pace() -> None:
    step_time = StepTime(100, 2, 10, 50, 3, 1)
    load = StepLoad(num_tokens=8, num_seqs=2, kv_tokens=40, attention_pairs=60)
    assert step_time.memory(load) == 100 + 80 + 20
    assert step_time.compute(load) == 50 + 24 + 60
    assert step_time.of(load) == 200
    assert StepTime(0, 0, 0, 0, 0, 0).of(load) == 1
