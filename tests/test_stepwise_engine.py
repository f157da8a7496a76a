"""The step-by-step engine on the clock: hand sums, vLLM's timing, and laws over random workloads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.engine import StepwiseEngine
from reference.kv_cache import cdiv
from reference.output import SchedulerOutput, state_of
from reference.scheduler import Scheduler
from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.step_time import StepLoad, StepTime, row_pairs
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import TICKS_PER_MS, Tick, seconds, ticks
from replicast.sim.workload import Segment

MAX_STEPS = 5_000
CONFORMANCE = Path(__file__).parent / "conformance"
ROOFLINE = StepTime.from_seconds(
    memory_fixed_s=0.004,
    memory_per_kv_token_s=2e-8,
    memory_per_seq_s=1e-5,
    compute_fixed_s=0.002,
    compute_per_token_s=6e-5,
    compute_per_pair_s=1e-9,
)


def request(
    number: int, prompt: int, output: int, *, stream: int | None = None, eos: bool = False
) -> Request:
    content = (Segment(1000 + number if stream is None else stream, 0, prompt),)
    return Request(number, content, (Segment(5000 + number, 0, output),), prompt, output, stops_at_eos=eos)


def run(engine: StepwiseEngine, arrivals: list[tuple[Tick, Request]]) -> list[Request]:
    """Serve everything; the finished requests in order."""
    ahead = sorted(arrivals, key=lambda arrival: arrival[0])
    finished: list[Request] = []
    while ahead or engine.next_tick is not None:
        assert engine.stats.num_steps < MAX_STEPS, "it goes round in circles"
        next_arrival = ahead[0][0] if ahead else None
        now = min(tick for tick in (next_arrival, engine.next_tick) if tick is not None)
        is_due = engine.next_tick == now
        if is_due:
            finished += engine.complete(now)
        while ahead and ahead[0][0] == now:
            engine.submit(ahead.pop(0)[1], now)
        if is_due or engine.next_tick is None:
            engine.begin(now)
    return finished


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_one_request_alone_takes_the_sum_of_its_steps(async_scheduling: bool) -> None:
    config = EngineConfig(num_gpu_blocks=2001, max_num_batched_tokens=2048, async_scheduling=async_scheduling)
    alone = request(0, prompt=5000, output=20)
    engine = StepwiseEngine(config, ROOFLINE)
    run(engine, [(ticks(1.5), alone)])

    chunks = [(0, 2048), (2048, 2048), (4096, 904)]
    decodes = [(5000 + done, 1) for done in range(19)]
    lasts = [ROOFLINE.of(StepLoad(n, 1, c + n, row_pairs(c, n))) for c, n in chunks + decodes]
    assert alone.queued_tick == alone.scheduled_tick == ticks(1.5)
    assert alone.first_token_tick == ticks(1.5) + sum(lasts[:3])
    assert alone.finish_tick == ticks(1.5) + sum(lasts)
    assert engine.stats.busy_ticks == sum(lasts)
    assert engine.stats.step_token_sum == 5000 + 19


def test_an_unforeseen_eos_costs_async_scheduling_one_more_row() -> None:
    config = EngineConfig(num_gpu_blocks=101, async_scheduling=True)
    tokens = {}
    for eos in (False, True):
        engine = StepwiseEngine(config, ROOFLINE)
        run(engine, [(0, request(0, prompt=100, output=5, eos=eos))])
        tokens[eos] = engine.stats.step_token_sum
    assert tokens == {False: 104, True: 105}


def test_an_arrival_in_mid_step_waits_for_the_step_or_with_async_for_two() -> None:
    step_time = StepTime.from_seconds(memory_fixed_s=0.0, compute_fixed_s=0.012, compute_per_token_s=0.0001)
    for async_scheduling, first_token_s in ((False, 1.324), (True, 1.3361)):
        config = EngineConfig(num_gpu_blocks=2001, async_scheduling=async_scheduling)
        first, second = request(0, 12000, 4), request(1, 1000, 4)
        run(StepwiseEngine(config, step_time), [(0, first), (ticks(0.1), second)])
        assert second.queued_tick == second.scheduled_tick == ticks(0.8312)
        assert second.first_token_tick == ticks(first_token_s)


def test_requests_finish_in_the_order_of_their_output() -> None:
    config = EngineConfig(num_gpu_blocks=1001, async_scheduling=False)
    requests = [request(n, prompt=50, output=output) for n, output in enumerate((9, 3, 3, 6))]
    finished = run(StepwiseEngine(config, ROOFLINE), [(0, r) for r in requests])
    assert [r.request_id for r in finished] == [1, 2, 3, 0]


def test_the_next_turn_hits_the_whole_previous_one() -> None:
    config = EngineConfig(num_gpu_blocks=1001, async_scheduling=True)
    engine = StepwiseEngine(config, ROOFLINE)
    first = request(0, prompt=1000, output=100)
    run(engine, [(0, first)])
    turn = (*first.prompt, *first.output, Segment(9, 0, 300))
    second = Request(1, turn, (), 1400, 5)
    run(engine, [(ticks(100.0), second)])
    assert second.num_cached_tokens == (1000 + 100 - 1) // 16 * 16


def test_a_prompt_larger_than_the_pool_rests_and_does_not_spin() -> None:
    engine = StepwiseEngine(EngineConfig(num_gpu_blocks=11), ROOFLINE)
    engine.submit(request(0, prompt=1000, output=5), 0)
    engine.begin(0)
    assert engine.next_tick is None
    assert engine.num_waiting == 1


def test_a_call_that_only_preempts_is_followed_by_a_sleep() -> None:
    # Five blocks of four: the urgent request waits; the running one outgrows the pool alone.
    config = EngineConfig(
        num_gpu_blocks=6, block_size=4, async_scheduling=False, scheduling_policy="priority", max_num_seqs=1
    )
    engine = StepwiseEngine(config, ROOFLINE)
    big, small = request(0, prompt=18, output=9), request(1, prompt=4, output=2)
    big.priority = 1
    engine.submit(big, 0)
    engine.begin(0)
    engine.submit(small, 1)
    ends = []
    while engine.next_tick is not None:
        now = engine.next_tick
        ends.append(now)
        engine.complete(now)
        engine.begin(now)
    assert small.status == RequestStatus.FINISHED_LENGTH_CAPPED
    assert small.scheduled_tick == ends[2] + TICKS_PER_MS
    assert big.status == RequestStatus.PREEMPTED


def test_an_abort_frees_seat_and_blocks_at_the_next_step() -> None:
    engine = StepwiseEngine(EngineConfig(num_gpu_blocks=101, max_num_seqs=1), ROOFLINE)
    first, second, third = (request(n, prompt=100, output=50) for n in range(3))
    for one in (first, second, third):
        engine.submit(one, 0)
    engine.begin(0)
    engine.abort(first, 1)
    engine.abort(second, 1)
    finished = []
    while engine.next_tick is not None:
        now = engine.next_tick
        finished += engine.complete(now)
        engine.begin(now)
    assert finished == [third]
    assert first.status == second.status == RequestStatus.FINISHED_ABORTED
    assert engine.kv_cache_usage == 0


# Laws


@dataclass(frozen=True)
class Case:
    """A configuration and what arrives, times in ms."""

    config: EngineConfig
    requests: tuple[tuple[int, int, int, int, bool, int], ...]  # at, stream, prompt, output, eos, priority


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.sampled_from([1, 4, 16]))
    num_blocks = draw(st.integers(8, 60))
    budget = draw(st.sampled_from([16, 40, 100, 400]))
    drafts = draw(st.sampled_from([0, 0, 3]))
    # What boots: a whole context, and its lookahead, fits the pool.
    max_model_len = num_blocks * block_size
    chunked = draw(st.booleans()) or budget < max_model_len
    config = EngineConfig(
        num_gpu_blocks=num_blocks + 1,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=budget,
        max_num_seqs=draw(st.integers(1, 8)),
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 10])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        num_speculative_tokens=drafts,
        spec_accept=tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 3])),
        rules=draw(st.sampled_from(["0.25.1", "0.33.0"])),
    )
    longest = max_model_len - 1
    one = st.tuples(
        st.integers(0, 60),
        st.integers(1, 3),
        st.integers(1, longest),
        st.integers(1, 40),
        st.booleans(),
        st.integers(0, 2),
    )
    return Case(config, tuple(draw(st.lists(one, min_size=1, max_size=12))))


def arrivals_of(case: Case) -> list[tuple[Tick, Request]]:
    """No two at one tick: in vLLM, too, equally urgent requests can preempt each other for ever."""
    arrivals = []
    for number, (at, stream, prompt, output, eos, priority) in enumerate(case.requests):
        room = case.config.max_model_len - prompt
        one = request(number, prompt, min(output, room), stream=stream, eos=eos)
        one.priority = priority
        arrivals.append((at * TICKS_PER_MS + number, one))
    return arrivals


def check_blocks(scheduler: Scheduler) -> None:
    """Every block is free or held, exactly as often as it is named."""
    pool = scheduler.kv_cache.pool
    named = [0] * len(pool.ref_cnt)
    for running in scheduler.running:
        for block in state_of(running).blocks.block_ids:
            named[block] += 1
    assert named == pool.ref_cnt
    assert set(pool.free_queue) == {block for block, count in enumerate(named) if not count} - {0}
    if not scheduler.config.enable_prefix_caching:
        assert not any(pool.block_hash)


def check_step(scheduler: Scheduler, output: SchedulerOutput) -> None:
    config = scheduler.config
    assert output.total_num_scheduled_tokens <= config.max_num_batched_tokens
    assert len(scheduler.running) <= config.max_num_seqs
    check_blocks(scheduler)
    for row in output.rows:
        assert row.num_scheduled_tokens > 0
        needed = cdiv(row.num_computed_tokens + row.num_scheduled_tokens, config.block_size)
        assert len(state_of(row.request).blocks.block_ids) >= needed


class CheckedScheduler(Scheduler):
    """A scheduler that checks the laws of every step."""

    def schedule(self) -> SchedulerOutput:
        before = len(self.waiting), len(self.running)
        output = super().schedule()
        check_step(self, output)
        if not output.rows and not output.preempted and not before[1]:
            assert not before[0], "idle with work: every request fits the pool"
        return output


def serve(case: Case) -> tuple[list[tuple[Tick, Request]], list[Request], EngineStats]:
    engine = StepwiseEngine(case.config, ROOFLINE)
    engine._scheduler = CheckedScheduler(case.config, engine.stats)
    arrivals = arrivals_of(case)
    finished = run(engine, arrivals)
    assert engine.kv_cache_usage == 0
    return arrivals, finished, engine.stats


@settings(max_examples=150, deadline=None)
@given(cases())
def test_laws(case: Case) -> None:
    arrivals, finished, stats = serve(case)
    requests = [one for _, one in arrivals]
    assert sorted(one.request_id for one in finished) == [one.request_id for one in requests]
    for at, one in arrivals:
        assert one.num_output_tokens == one.max_tokens
        stopped = one.status == RequestStatus.FINISHED_STOPPED
        assert stopped == one.stops_at_eos
        stamps = [at, one.queued_tick, one.scheduled_tick, one.first_token_tick, one.finish_tick]
        assert stamps == sorted(tick for tick in stamps if tick is not None)
        assert one.num_cached_tokens is not None
        assert one.num_cached_tokens < one.num_prompt_tokens
        # Output in flight can end a preempted request before it comes back.
        never_back = one.num_preemptions - len(one.resumed_hit_tokens)
        assert 0 <= never_back <= case.config.async_scheduling
    assert stats.num_preemptions == sum(one.num_preemptions for one in requests)
    if not stats.num_preemptions and not case.config.num_speculative_tokens:
        computed = sum(one.num_tokens - 1 - (one.num_cached_tokens or 0) for one in requests)
        wasted = stats.step_token_sum - computed
        assert 0 <= wasted <= case.config.async_scheduling * sum(one.stops_at_eos for one in requests)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_same_input_same_ticks(case: Case) -> None:
    runs = [serve(case) for _ in range(2)]
    assert runs[0][2] == runs[1][2]
    ends = [[(one.request_id, one.finish_tick) for one in finished] for _, finished, _ in runs]
    assert ends[0] == ends[1]


# vLLM's own request metrics, on ticks


@pytest.mark.parametrize("version", ["0.25.1", "0.33.0"])
@pytest.mark.parametrize(
    "name",
    [
        "50_timed_sync",
        "50_timed_async",
        "51_timed_one",
        "52_timed_preempt",
        "53_timed_mid_step_sync",
        "53_timed_mid_step_async",
    ],
)
def test_request_metrics_equal_the_recorded_ones(
    name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CONFORMANCE))
    from stepreplay.compare import load_recording
    from stepreplay.scenario import load_scenario
    from stepreplay.ticked import run_on_ticks

    scenario = load_scenario(CONFORMANCE / "scenarios" / f"{name}.scenario.json", version)
    served = run_on_ticks(scenario)
    recorded = load_recording(CONFORMANCE / f"golden-{version}" / f"{name}.steps.jsonl.gz")
    for line in recorded:
        if line["kind"] != "request":
            continue
        one = served[line["id"]]
        stamps = (one.queued_tick, one.scheduled_tick, one.first_token_tick, one.finish_tick)
        queued, scheduled, first, finish = (seconds(tick) for tick in stamps)
        arrival = seconds(one.arrival_tick)
        later = one.num_output_tokens - 1
        measured = {
            "ttft": first - arrival,
            "queue_s": scheduled - queued,
            "prefill_s": first - scheduled,
            "decode_s": finish - first,
            "inference_s": finish - scheduled,
            "e2e_s": finish - arrival,
            "tpot_s": (finish - first) / later if later else 0.0,
        }
        assert measured == pytest.approx({key: line[key] for key in measured}, abs=2e-9)
        assert one.num_cached_tokens == line["hit"]
        assert one.num_preemptions == line["preemptions"]
        assert one.resumed_hit_tokens == line["resumed_hit"]
