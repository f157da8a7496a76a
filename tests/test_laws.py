"""Laws that hold on every run, whatever the sessions, engine and fleet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine, EngineStats
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig, FrontEnd
from replicast.sim.fleet.records import Records, RecordStatus
from replicast.sim.fleet.run import RunResult, simulate
from replicast.sim.request import Request
from replicast.sim.ticks import Tick
from replicast.sim.workload import Segment, Session, Turn, join

delays = st.sampled_from([0.0, 0.001, 0.25, 3.0])


@st.composite
def trace(draw: st.DrawFn) -> list[Session]:
    """Sessions whose turns hang on any earlier turns, and share a system prompt and their own past."""
    sessions = []
    for s in range(draw(st.integers(2, 8))):
        turns: list[Turn] = []
        for t in range(draw(st.integers(1, 5))):
            before = draw(st.sets(st.integers(0, t - 1), max_size=2)) if t else set()
            own = draw(st.integers(1, 60))
            output = draw(st.integers(0, 30))
            prompt = join([Segment(0, 0, draw(st.integers(0, 40))), Segment(2 * s + 1, 0, own)])
            turns.append(
                Turn(
                    turn_id=f"{s}.{t}",
                    agent=f"{s}",
                    depends_on=tuple(sorted(before)),
                    delay_s=draw(delays) if before else 0.0,
                    prompt=prompt,
                    output=(Segment(2 * s + 1, own, max(output, 1)),),
                    num_prompt_tokens=sum(segment.length for segment in prompt),
                    num_output_tokens=output,
                    arrival_s=float(s + t),
                )
            )
        sessions.append(Session(f"{s}", tuple(turns), start_s=float(s)))
    return sessions


engines = st.builds(
    EngineConfig,
    num_gpu_blocks=st.integers(26, 60),
    block_size=st.just(4),
    max_num_batched_tokens=st.sampled_from([8, 32, 512]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    max_model_len=st.sampled_from([60, 100]),
    async_scheduling=st.booleans(),
    enable_prefix_caching=st.booleans(),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
)
fleets = st.builds(
    FleetConfig,
    replicas=st.integers(1, 3),
    router=st.sampled_from(["round-robin", "random", "least-loaded", "session-affinity", "prefix-aware"]),
    loop=st.sampled_from(["closed", "partly-open", "open"]),
    sessions=st.integers(1, 4),
    horizon_s=st.sampled_from([None, None, 0.3, 1.0, 3.2]),
    cooldown_s=st.sampled_from([0.0, 0.5]),
    over_length=st.sampled_from(["reject", "truncate-session"]),
    stops_at_eos=st.booleans(),
    front_end=st.sampled_from([FrontEnd(), FrontEnd(0.01, 1e-5, 0.002)]),
)
STEP_TIME = StepTime.from_seconds(
    memory_fixed_s=0.03, memory_per_kv_token_s=1e-6, compute_per_token_s=1e-3, compute_per_pair_s=1e-7
)


class Watched:
    """An engine that is asked after each call whether it is idle while it has work."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        self._engine: Engine = make_engine(config, step_time)
        self.stats: EngineStats = self._engine.stats

    @property
    def next_tick(self) -> Tick | None:
        return self._engine.next_tick

    @property
    def num_running(self) -> int:
        return self._engine.num_running

    @property
    def num_waiting(self) -> int:
        return self._engine.num_waiting

    @property
    def kv_cache_usage(self) -> float:
        return self._engine.kv_cache_usage

    def submit(self, request: Request, now: Tick) -> None:
        assert self.next_tick is None or self.next_tick >= now, "a wake-up was missed"
        self._engine.submit(request, now)

    def abort(self, request: Request, now: Tick) -> None:
        self._engine.abort(request, now)

    def complete(self, now: Tick) -> list[Request]:
        assert self.next_tick == now
        return self._engine.complete(now)

    def settle(self, now: Tick) -> None:
        self._engine.settle(now)

    def begin(self, now: Tick) -> None:
        self._engine.begin(now)
        work = self.num_running + self.num_waiting
        assert not work or self.next_tick is not None, "idle with work waiting"


def run(sessions: list[Session], engine: EngineConfig, fleet: FleetConfig, seed: int = 3) -> RunResult:
    if fleet.loop != "closed":
        fleet = replace(fleet, sessions=None)
    return simulate(sessions, engine, STEP_TIME, fleet, seed=seed, engines=Watched)


@settings(max_examples=60, deadline=None)
@given(trace(), engines, fleets)
def test_every_request_ends_once_and_none_is_lost(
    sessions: list[Session], engine: EngineConfig, fleet: FleetConfig
) -> None:
    result = run(sessions, engine, fleet)
    counts, records = result.counts, result.records
    assert counts.submitted == counts.finished + counts.rejected + counts.unfinished == len(records)
    assert np.bincount(records.status, minlength=3)[:3].tolist() == [
        counts.finished,
        counts.rejected,
        counts.unfinished,
    ]
    sent = list(zip(records.session_index.tolist(), records.turn_index.tolist(), strict=True))
    assert len(set(sent)) == len(sent)
    if fleet.horizon_s is None and fleet.over_length == "reject":
        assert counts.submitted == counts.turns
        assert counts.unfinished == 0
        assert counts.sessions_finished == counts.sessions_started == counts.sessions
    finished = records.finished
    wanted = [max(sessions[s].turns[t].num_output_tokens, 1) for s, t in sent]
    room = engine.max_model_len - records.prompt_tokens
    assert (records.output_tokens == np.minimum(wanted, room))[finished].all()


@settings(max_examples=60, deadline=None)
@given(trace(), engines, fleets)
def test_time_runs_forward_and_what_did_not_happen_has_no_time(
    sessions: list[Session], engine: EngineConfig, fleet: FleetConfig
) -> None:
    records = run(sessions, engine, fleet).records
    assert (np.diff(records.arrival_s) >= 0).all()
    for part in (
        records.front_end_s,
        records.input_wait_s,
        records.queue_s,
        records.prefill_s,
        records.decode_s,
    ):
        assert (np.isnan(part) | (part >= 0)).all()
    assert not np.isnan(records.e2e_s[records.finished]).any()
    assert np.isnan(records.ttft_s[records.status == RecordStatus.REJECTED]).all()
    assert (records.cached_tokens < records.prompt_tokens).all()


@settings(max_examples=60, deadline=None)
@given(trace(), engines, fleets)
def test_next_turn_starts_exactly_after_its_replies_and_delay(
    sessions: list[Session], engine: EngineConfig, fleet: FleetConfig
) -> None:
    records = run(sessions, engine, replace(fleet, loop="closed")).records
    sent = list(zip(records.session_index.tolist(), records.turn_index.tolist(), strict=True))
    replied_s = dict(zip(sent, (records.arrival_s + records.e2e_s).tolist(), strict=True))
    for (s, t), arrival_s in zip(sent, records.arrival_s.tolist(), strict=True):
        turn = sessions[s].turns[t]
        if turn.depends_on:
            due_s = max(replied_s[s, before] for before in turn.depends_on) + turn.delay_s
            assert abs(arrival_s - due_s) < 1e-9


@settings(max_examples=60, deadline=None)
@given(trace(), engines, fleets)
def test_littles_law(sessions: list[Session], engine: EngineConfig, fleet: FleetConfig) -> None:
    """Time integral of the number in the engines = sum of times in the engines."""
    result = run(sessions, engine, replace(fleet, horizon_s=None))
    span_s = result.window.end_s - result.window.start_s
    if span_s != result.duration_s:
        return
    number = sum(replica.mean_running + replica.mean_waiting for replica in result.replicas)
    finished = result.records.finished
    records = result.records
    inside_s = (records.e2e_s - records.front_end_s - records.delivery_s)[finished].sum()
    assert np.isclose(number * span_s, inside_s, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(trace(), engines, fleets)
def test_same_seed_same_bytes(sessions: list[Session], engine: EngineConfig, fleet: FleetConfig) -> None:
    first, second = (run(sessions, engine, fleet).records for _ in range(2))
    assert columns(first) == columns(second)


def columns(records: Records) -> str:
    return records.to_frame().to_csv()
