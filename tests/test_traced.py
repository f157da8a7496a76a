"""Replayed traces: levels run the trace's own sessions, sub-agents and all; only the server is fitted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from replicast.calibration.calibrate import calibrate
from replicast.calibration.harness import observe, run_level, simulated_level
from replicast.calibration.lengths import lengths_of
from replicast.calibration.model import ENGINE, Point
from replicast.calibration.noise import on_lengths, realisation_noise
from replicast.calibration.recovery import Bed, random_bed
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Sweep
from replicast.calibration.trace_load import TraceLoad
from replicast.calibration.traced import TracedModel, TraceSessions
from replicast.calibration.workload import LevelLoad, draw_sessions
from replicast.sim.workload import Segment, Session, Turn

BED = random_bed(11, (1, 2, 6), load_s=200.0)
LOAD = BED.loads[-1]


def agents_at_once(number: int) -> Session:
    """Three contexts side by side, each of twelve requests that compute 400 tokens."""
    turns: list[Turn] = []
    for call in range(12):
        for agent in range(3):
            own = 10 * number + agent + 1
            prompt = (Segment(9_000_001, 0, 4_000), Segment(own, 0, 2_000 + 400 * call))
            turns.append(
                Turn(
                    f"{agent}.{call}", f"agent{agent}", (len(turns) - 3,) if call else (), 0.0, prompt,
                    (Segment(own + 5_000_000, 500 * call, 60),), 6_000 + 400 * call, 60,
                )
            )  # fmt: skip
    return Session(f"s{number}", tuple(turns))


AGENTS = [agents_at_once(number) for number in range(40)]


def swept(bed: Bed, sessions: TraceSessions, seed: int) -> Sweep:
    """The sweep of a server whose levels ran these sessions."""
    levels = tuple(simulated_level(load, bed.server, seed, sessions.draw) for load in bed.loads)
    return Sweep("bed", "bed", levels, model=bed.given.model, given=bed.given)


def test_no_session_comes_twice_before_all_were_there() -> None:
    trace = TraceSessions.of(AGENTS, shares=True)
    load = replace(LOAD, expected_requests=36 * 90 / 1.5)
    drawn = trace.draw(load, 1, 100_000)
    names = [session.session_id for session in drawn]
    assert len(set(names)) == len(names) > 80
    shapes = Counter(name.split("~")[0] for name in names)
    assert set(shapes.values()) <= {2, 3}
    assert names == [session.session_id for session in trace.draw(load, 1, 100_000)]
    assert names != [session.session_id for session in trace.draw(load, 2, 100_000)]
    # A second copy shares what sessions share, and nothing else.
    streams = [{part.stream for turn in s.turns for part in turn.prompt} for s in drawn]
    assert set.intersection(*streams) == {9_000_001}
    assert sum(len(own) - 1 for own in streams) == len(set.union(*streams)) - 1


def test_identities_within_sessions_share_what_the_load_says() -> None:
    trace = TraceSessions.of(AGENTS, shares=False)
    for session in trace.draw(replace(LOAD, shared_tokens=3_000.0), 1, 100_000):
        assert all(turn.prompt[0] == Segment(0, 0, 3_000) for turn in session.turns)
        assert sum(part.length for part in session.turns[-1].prompt) == session.turns[-1].num_prompt_tokens


def test_nobody_types_in_a_sweep() -> None:
    first, *others = AGENTS[0].turns
    gaps = [turn._replace(delay_s=7.0) for turn in others]
    gaps[0] = gaps[0]._replace(trigger="user")
    gaps[1] = gaps[1]._replace(trigger="tool")
    gaps[2] = gaps[2]._replace(trigger="tool", tool_s=2.0)
    (session,) = TraceSessions.of([replace(AGENTS[0], turns=(first, *gaps))], shares=True).sessions
    assert [turn.delay_s for turn in session.turns[1:5]] == [0.0, 7.0, 2.0, 7.0]


def test_sub_agents_are_alive_beside_their_session() -> None:
    trace = TraceSessions.of(AGENTS, shares=True)
    load = replace(BED.loads[0], tool_s=0.0)
    run = run_level(load, BED.server, 3, trace.draw)
    assert load.streams == 1
    assert run.replicas[0].peak_running == 3
    assert observe(run, load).running_mean > 1.5 * load.load_s / load.window_s


def test_a_server_is_found_again_from_replayed_sessions() -> None:
    """Two halves of one trace: one was run, the other is told."""
    sessions = draw_sessions(LOAD, 1, 131_072)
    trace = TraceLoad.of(sessions[1::2], "half.jsonl")
    bed = replace(BED, loads=tuple(replace(load, tool_s=0.0) for load in BED.loads))
    sweep = swept(bed, TraceSessions.of(sessions[::2], shares=True), 5)
    found = calibrate(sweep, given=bed.given, trace=trace, loo=True, force=True)
    intervals = {it.name: it for it in found.uncertainty.intervals}
    assert set(intervals) == set(ENGINE)
    for name in ("memory_fixed_s", "compute_per_token_s"):
        assert intervals[name].low <= bed.truth[name] <= intervals[name].high
    assert intervals["memory_fixed_s"].value == pytest.approx(bed.truth["memory_fixed_s"], rel=0.1)
    assert not [text for text in found.warnings if "trace of this load" in text]
    # Levels are predicted by their lengths, as where there is no trace.
    assert not any(isinstance(model, TracedModel) for model in found.fitted.models)
    assert found.held_out is not None
    assert {row.level for row in found.held_out.rows} == {1, 2, 6}


def test_prompts_that_the_sweep_does_not_tell_are_not_compared() -> None:
    sweep = swept(BED, TraceSessions.of(AGENTS, shares=True), 5)
    level = replace(
        sweep.levels[0], first_tokens=None, requests_finished=None, ttft=None, prompt_per_request=None,
        kv_usage=None,
    )  # fmt: skip
    facts = server_facts(sweep, BED.given)
    assert lengths_of(level, facts).source == "guess"
    told, guessed = (
        TracedModel(it, facts, 2.0, sessions=TraceSessions.of(AGENTS, shares=True))
        for it in (sweep.levels[0], level)
    )
    point = Point(BED.steps._asdict())
    seen = [on_lengths(model.simulate(point, (1, 2)), model, ("tpot_mean_s",)) for model in (told, guessed)]
    assert np.all(seen[0].lengths[:, 0] != 0)
    assert np.all(seen[1].lengths[:, 0] == 0)


def test_alone_a_session_tells_the_time_per_token_far_better_than_in_company() -> None:
    loads: list[LevelLoad] = [BED.loads[0], BED.loads[-1]]
    bed = replace(BED, loads=tuple(loads))
    trace = TraceSessions.of(draw_sessions(loads[1], 1, 131_072), shares=True)
    sweep = swept(bed, trace, 5)
    facts = server_facts(sweep, bed.given)
    models = [TracedModel(level, facts, 2.0, sessions=trace) for level in sweep.levels]
    noise = realisation_noise(models, Point(bed.steps._asdict()))
    alone, among = noise.sds[:, 0].tolist()
    assert alone < 0.01
    assert among > 5 * alone
    assert np.array_equal(noise.weighed, noise.sds)  # replayed sessions differ as real ones do
