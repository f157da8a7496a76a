"""The fleet around an engine that is easy to reckon by hand: requests one by one, 1 s each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig, FrontEnd, capped_delay
from replicast.sim.fleet.records import RecordStatus
from replicast.sim.fleet.run import RunResult, binding, simulate
from replicast.sim.fleet.timeline import MAX_MARKS, Timeline
from replicast.sim.fleet.warmup import mser5
from replicast.sim.request import Request
from replicast.sim.ticks import TICKS_PER_S, Tick
from replicast.sim.workload import Segment, Session, Turn

STEP_TIME = StepTime.from_seconds(memory_fixed_s=1.0)
ENGINE = EngineConfig(num_gpu_blocks=1001, max_model_len=1000)


class OneByOne:
    """A request takes a step of 1 s: first and last token come at its end."""

    log: list[tuple[str, Tick]]

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        self.stats = EngineStats()
        self.log = []
        self.next_tick: Tick | None = None
        self.kv_cache_usage = 0.0
        self._arrived: list[Request] = []
        self._waiting: list[Request] = []
        self._running: list[Request] = []

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._arrived) + len(self._waiting)

    def submit(self, request: Request, now: Tick) -> None:
        assert request.arrival_tick == now
        self.log.append(("submit", now))
        self._arrived.append(request)

    def abort(self, request: Request, now: Tick) -> None:
        raise NotImplementedError

    def complete(self, now: Tick) -> list[Request]:
        assert now == self.next_tick
        self.log.append(("complete", now))
        finished, self._running, self.next_tick = self._running, [], None
        for request in finished:
            request.num_output_tokens = request.max_tokens
            request.first_token_tick = request.finish_tick = now
        return finished

    def settle(self, now: Tick) -> None:
        self.log.append(("settle", now))

    def begin(self, now: Tick) -> None:
        assert self.next_tick is None
        self.log.append(("begin", now))
        for request in self._arrived:
            request.queued_tick = now
        self._waiting += self._arrived
        self._arrived = []
        if self._waiting:
            request = self._waiting.pop(0)
            request.scheduled_tick, request.num_cached_tokens = now, 0
            self._running = [request]
            self.next_tick = now + TICKS_PER_S


def turn(
    name: str, *depends_on: int, delay_s: float = 0.0, prompt: int = 100, output: int = 10, **more: float
) -> Turn:
    content = (Segment(0, 0, prompt),)
    return Turn(name, "main", depends_on, delay_s, content, (Segment(1, 0, output),), prompt, output, **more)


def session(*turns: Turn, name: str = "s", start_s: float | None = None) -> Session:
    return Session(name, turns, start_s=start_s)


def run(trace: list[Session], *, engine: EngineConfig = ENGINE, seed: int = 1, **fleet: object) -> RunResult:
    settings = FleetConfig(**{"stagger_s": 0.0, **fleet})  # type: ignore[arg-type]
    return simulate(trace, engine, STEP_TIME, settings, seed=seed, engines=OneByOne)


def test_sub_agents_fork_and_join() -> None:
    family = session(
        turn("plan"),
        turn("left", 0, delay_s=1.0),
        turn("right", 0, delay_s=5.0),
        turn("join", 1, 2, delay_s=0.5),
    )
    records = run([family], replicas=2, router="round-robin").records
    assert records.arrival_s.tolist() == [0.0, 2.0, 6.0, 7.5]


def test_ttft_is_the_sum_of_its_parts_and_each_part_is_right() -> None:
    front_end = FrontEnd(fixed_s=0.25, per_prompt_token_s=0.001, delivery_s=0.125)
    two = [session(turn("a")), session(turn("b")), session(turn("c"))]
    records = run(two, front_end=front_end, sessions=3).records
    np.testing.assert_allclose(records.front_end_s, 0.35)
    np.testing.assert_allclose(records.queue_s, [0.0, 1.0, 2.0])
    np.testing.assert_allclose(records.ttft_s, [1.475, 2.475, 3.475])
    parts = (
        records.front_end_s + records.input_wait_s + records.queue_s + records.prefill_s + records.delivery_s
    )
    assert (records.ttft_s == parts).all()
    assert (records.e2e_s == records.ttft_s + records.decode_s).all()


def test_input_wait_is_the_rest_of_the_running_step() -> None:
    second = session(turn("b0"), turn("b1", 0, delay_s=0.25))
    records = run([session(turn("a"), turn("a1", 0)), second], sessions=2).records
    # a runs 0-1, b0 1-2 with a1 arriving at 1, a1 2-3; b1 arrives at 2.25, amid a1's step.
    frame = records.to_frame().set_index("turn")
    assert frame.loc["b1", "arrival_s"] == 2.25
    assert frame.loc["b1", "input_wait_s"] == 0.75
    assert frame.loc["b1", "queue_s"] == 0.0
    assert frame.loc["a1", "queue_s"] == 1.0


def test_at_one_tick_a_step_ends_then_replies_then_arrivals_then_the_next_step_begins() -> None:
    made: list[OneByOne] = []

    def spy(config: EngineConfig, step_time: StepTime) -> OneByOne:
        made.append(OneByOne(config, step_time))
        return made[-1]

    chain = session(turn("a"), turn("b", 0))
    at_one = [session(turn("x"), start_s=0.0), session(turn("y", arrival_s=1.0), start_s=1.0)]
    fleet = FleetConfig(stagger_s=0.0, loop="open")
    simulate([replace(chain, start_s=0.0), *at_one], ENGINE, STEP_TIME, fleet, seed=1, engines=spy)
    at_tick_one = [what for what, tick in made[0].log if tick == TICKS_PER_S]
    assert at_tick_one == ["complete", "submit", "submit", "begin"]


def test_a_finished_session_is_replaced_by_the_next_in_file_order() -> None:
    sessions = [session(turn(f"{i}"), turn(f"{i}'", 0), name=f"s{i}") for i in range(5)]
    result = run(sessions, sessions=1)
    assert result.records.session_index.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert result.duration_s == 10.0
    assert result.counts.sessions_finished == 5


def test_default_is_ten_live_sessions_a_replica_and_open_loop_where_starts_are_recorded() -> None:
    plain = [session(turn("a")) for _ in range(3)]
    timed = [session(turn("a", arrival_s=float(i)), start_s=float(i)) for i in range(3)]
    assert FleetConfig(replicas=2).resolved(plain).sessions == 20
    assert FleetConfig(replicas=2).resolved(plain).loop == "closed"
    assert FleetConfig().resolved(timed).loop == "open"
    assert FleetConfig(sessions=2).resolved(timed).loop == "closed"
    with pytest.raises(InputError, match="no recorded start"):
        FleetConfig(loop="open").resolved(plain)


def test_open_loop_sends_by_the_clock_and_partly_open_waits_for_replies() -> None:
    timed = [
        session(turn("a", arrival_s=5.0), turn("b", 0, delay_s=3.0, arrival_s=5.5), start_s=5.0),
        session(turn("c", arrival_s=7.0), turn("d", 0, delay_s=3.0), start_s=7.0),
    ]
    opened = run(timed, loop="open")
    assert opened.fleet.loop == "open"
    assert opened.records.arrival_s.tolist() == [0.0, 0.5, 2.0, 6.0]
    partly = run(timed, loop="partly-open")
    assert partly.records.arrival_s.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_think_cap_cuts_the_human_part_only_and_counts() -> None:
    assert capped_delay(turn("a", delay_s=900.0, tool_s=200.0, think_s=700.0), 600.0) == (800.0, True)
    assert capped_delay(turn("a", delay_s=900.0, tool_s=800.0), 600.0) == (900.0, False)
    assert capped_delay(turn("a", delay_s=900.0), 600.0) == (600.0, True)
    assert capped_delay(turn("a", delay_s=900.0), None) == (900.0, False)
    result = run([session(turn("a"), turn("b", 0, delay_s=1e6))])
    assert result.records.arrival_s.tolist() == [0.0, 601.0]
    assert result.counts.capped_delays == 1


def test_over_length_is_rejected_and_its_session_goes_on() -> None:
    long = session(turn("a"), turn("b", 0, prompt=1000), turn("c", 1), name="long")
    result = run([long], front_end=FrontEnd(fixed_s=0.5))
    assert result.records.status.tolist() == [
        RecordStatus.FINISHED,
        RecordStatus.REJECTED,
        RecordStatus.FINISHED,
    ]
    assert result.records.arrival_s.tolist() == [0.0, 1.5, 2.0]
    assert result.records.e2e_s[1] == 0.5
    assert result.counts.rejected == 1
    assert [warning.code for warning in result.warnings if warning.code == "over-length"] == ["over-length"]


def test_over_length_may_truncate_the_session_or_be_an_error() -> None:
    fork = session(
        turn("a"), turn("b", 0, prompt=1000), turn("side", 0, delay_s=9.0), turn("c", 1), name="long"
    )
    result = run([fork, session(turn("next"))], sessions=1, over_length="truncate-session")
    assert result.records.to_frame()["turn"].tolist() == ["a", "b", "next"]
    assert result.counts.sessions_truncated == 1
    assert result.counts.sessions_finished == 2
    with pytest.raises(InputError, match="turn b of session long"):
        run([fork], over_length="error")


def test_outputs_are_clipped_to_the_model_length_and_never_empty() -> None:
    result = run([session(turn("a", prompt=995, output=50), turn("b", 0, output=0))])
    assert result.records.output_tokens.tolist() == [5, 1]
    assert (result.counts.clipped_outputs, result.counts.raised_outputs) == (1, 1)


def test_what_the_pool_cannot_hold_is_refused() -> None:
    small = EngineConfig(num_gpu_blocks=11, max_model_len=1000)
    with pytest.raises(InputError, match="pool of one replica holds 160"):
        run([session(turn("a", prompt=161))], engine=small)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"replicas": 0}, "0 replicas"),
        ({"sessions": 0}, "0 live sessions"),
        ({"router": "magic"}, "router 'magic'"),
        ({"horizon_s": 0.0}, "horizon_s is 0"),
        ({"think_cap_s": float("nan")}, "think_cap_s is nan"),
        ({"front_end": FrontEnd(fixed_s=-1.0)}, "fixed_s is -1"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(settings: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        run([session(turn("a"))], **settings)


def test_an_empty_trace_a_prompt_of_nothing_and_a_cycle_are_refused() -> None:
    with pytest.raises(InputError, match="no turns"):
        run([])
    with pytest.raises(InputError, match="prompt of 0 tokens"):
        run([session(turn("a", prompt=0))])
    with pytest.raises(InputError, match="does not come before"):
        run([session(turn("a", 1), turn("b", 0))])


def test_the_horizon_cuts_and_what_is_in_flight_is_counted() -> None:
    chain = session(*(turn(f"{i}", *([i - 1] if i else [])) for i in range(9)))
    cut = run([chain], horizon_s=3.5)
    assert (cut.counts.submitted, cut.counts.finished, cut.counts.unfinished) == (4, 3, 1)
    assert cut.records.status.tolist() == [0, 0, 0, RecordStatus.UNFINISHED]
    assert np.isnan(cut.records.ttft_s[3])
    assert cut.duration_s == 3.5
    assert cut.window.end_rule == "horizon"
    assert "unfinished" in [warning.code for warning in cut.warnings]
    cooled = run([chain], horizon_s=3.5, cooldown_s=10.0)
    assert (cooled.counts.submitted, cooled.counts.finished, cooled.counts.unfinished) == (4, 4, 0)
    assert cooled.duration_s == 4.0
    assert run([chain], horizon_s=99.0).duration_s == 9.0


def test_the_window_leaves_out_the_first_generation_and_the_last() -> None:
    sessions = [session(turn(f"{i}"), name=f"s{i}") for i in range(8)]
    result = run(sessions, sessions=2)
    assert (result.window.start_s, result.window.end_s) == (2.0, 7.0)
    assert result.records.arrival_s[result.records.measured].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert not [warning for warning in result.warnings if warning.code == "window"]
    whole = run(sessions, sessions=4)
    assert (whole.window.start_s, whole.window.end_s) == (0.0, 8.0)
    assert whole.records.measured.all()
    assert [warning for warning in whole.warnings if warning.code == "window"]
    assert run(sessions, sessions=4, warmup_s=3.0).window.start_s == 3.0


def test_means_of_the_window_are_time_weighted() -> None:
    result = run([session(turn("a")), session(turn("b"))], sessions=2)
    (replica,) = result.replicas
    assert (replica.mean_running, replica.mean_waiting) == (1.0, 0.5)
    assert (replica.peak_running, replica.peak_waiting) == (1, 1)


def test_what_binds_is_read_off_the_replicas() -> None:
    assert binding(run([session(turn("a"))])).binds is None
    seats = run([session(turn("a")) for _ in range(9)], sessions=9, engine=replace(ENGINE, max_num_seqs=1))
    assert binding(seats).binds == "seats"
    assert binding(seats).seats == pytest.approx(8 / 9)


def busy_replica(engine: EngineConfig, prompt: int, output: int) -> RunResult:
    sessions = [
        Session(
            f"{s}",
            (Turn("a", "a", (), 0.0, (Segment(s, 0, prompt),), (Segment(99, 0, output),), prompt, output),),
        )
        for s in range(8)
    ]
    step_time = StepTime.from_seconds(memory_fixed_s=0.01, compute_per_token_s=1e-4)
    return simulate(sessions, engine, step_time, FleetConfig(stagger_s=0.0), seed=1)


def test_a_full_step_and_a_full_pool_are_told_apart() -> None:
    budget = EngineConfig(num_gpu_blocks=100_000, max_num_batched_tokens=512, max_model_len=8000)
    assert binding(busy_replica(budget, prompt=4000, output=5)).binds == "token_budget"
    blocks = EngineConfig(num_gpu_blocks=201, max_model_len=3200)
    assert binding(busy_replica(blocks, prompt=1500, output=100)).binds == "kv_blocks"


class CutShort(OneByOne):
    """An arrival ends the running step early, as a jump is cut."""

    def submit(self, request: Request, now: Tick) -> None:
        super().submit(request, now)
        if self.next_tick is not None:
            self.next_tick = min(self.next_tick, now + TICKS_PER_S // 10)


def test_a_wake_up_that_came_too_late_does_nothing() -> None:
    timed = [session(turn(f"{i}", arrival_s=at), start_s=at) for i, at in enumerate([0.0, 0.5, 0.55, 3.0])]
    result = simulate(timed, ENGINE, STEP_TIME, FleetConfig(), seed=1, engines=CutShort)
    # The second arrival cuts the first request's step to end at 0.6, the third cannot cut it further.
    np.testing.assert_allclose(result.records.e2e_s, [0.6, 1.1, 2.05, 1.0])


def test_the_series_is_bounded_and_its_bins_are_exact_means() -> None:
    timeline = Timeline(ENGINE)
    engine = OneByOne(ENGINE, STEP_TIME)
    rng = np.random.default_rng(3)
    now, integral = 0, 0
    for _ in range(3000):
        engine._waiting = [None] * int(rng.integers(5))  # type: ignore[list-item]
        timeline.look(now, engine)
        span = int(rng.integers(3 * TICKS_PER_S))
        integral += engine.num_waiting * span
        now += span
    timeline.advance(now)
    assert timeline.totals.waiting == integral
    series = timeline.marks.series()
    assert MAX_MARKS // 2 <= len(series) < MAX_MARKS
    width = series[0].end_s
    assert sum(point.waiting for point in series) * width == pytest.approx(integral / TICKS_PER_S, rel=0.01)


def test_mser5_finds_a_bias_at_the_start_and_none_where_there_is_none() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(size=1000)
    biased = noise + np.where(np.arange(1000) < 150, 10.0, 0.0)
    assert mser5(biased) == 150
    assert (mser5(noise) or 0) < 300
    assert mser5(noise[:99]) is None


def test_frame_has_one_row_a_request_in_order_of_arrival() -> None:
    frame = run([session(turn("a"), turn("b", 0))]).records.to_frame()
    assert frame["request_id"].tolist() == [0, 1]
    assert frame["status"].tolist() == ["finished", "finished"]
    assert frame["turn"].tolist() == ["a", "b"]
