"""A trace of the same load: what it tells is what it was made of, and is no longer fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from replicast.calibration.calibrate import calibrate
from replicast.calibration.learned import facts_of
from replicast.calibration.model import ENGINE, parameters
from replicast.calibration.profile import load_profile, write_profile
from replicast.calibration.recovery import random_bed, simulated_sweep
from replicast.calibration.server import server_facts
from replicast.calibration.trace_load import LEAST_SPREAD, TraceLoad, load_latents, with_trace
from replicast.calibration.workload import draw_sessions
from replicast.sim.errors import InputError
from replicast.sim.workload import Segment, Session, Turn


def turn(*prompt: Segment, output: Segment, after: int | None = None) -> Turn:
    return Turn(
        "t", "main", () if after is None else (after,), 0.0, prompt, (output,),
        sum(segment.length for segment in prompt), output.length,
    )  # fmt: skip


def test_replies_are_not_new_in_the_next_prompt() -> None:
    sessions = [
        Session(
            f"s{i}",
            (
                turn(Segment(1, 0, 500), Segment(10 + i, 0, 300), output=Segment(100 + i, 0, 40)),
                turn(
                    Segment(1, 0, 500), Segment(10 + i, 0, 300), Segment(100 + i, 0, 40),
                    Segment(200 + i, 0, 60), output=Segment(300 + i, 0, 40), after=0,
                ),
            ),
        )
        for i in range(25)
    ]  # fmt: skip
    told = load_latents(sessions, "trace")
    assert told["shared_tokens"] == 500
    assert told["first_tokens"] == 300
    assert told["computed_tokens"] == 60
    assert told["computed_spread"] == told["output_spread"] == LEAST_SPREAD
    assert told["calls_per_session"] == 2
    assert told["failed_sessions"] == 0


def test_a_short_trace_is_refused() -> None:
    one = Session("s", (turn(Segment(1, 0, 500), output=Segment(2, 0, 40)),))
    with pytest.raises(InputError, match="too few to tell the load"):
        load_latents([one] * 100, "trace.jsonl")


def test_sessions_tell_what_they_were_drawn_with() -> None:
    load = random_bed(5, (20,)).loads[0]
    told = load_latents(draw_sessions(load, 1, 200_000), "trace")
    # A prompt computes no more than it holds, which cuts the longest of log-normal lengths.
    assert 0.8 * load.computed_tokens < told["computed_tokens"] <= load.computed_tokens
    assert told["first_tokens"] == pytest.approx(load.first_tokens, rel=0.1)
    assert told["shared_tokens"] == pytest.approx(load.shared_tokens, rel=0.01)
    assert told["output_spread"] == pytest.approx(load.output_spread, rel=0.05)
    assert told["computed_spread"] == pytest.approx(load.computed_spread, rel=0.15)


def test_what_a_trace_tells_is_given(tmp_path: Path) -> None:
    """Only the server is fitted, and the profile keeps what was given."""
    bed = random_bed(6, (1, 4), load_s=120.0)
    load = bed.loads[1]
    trace = TraceLoad.of(draw_sessions(load, 1, 200_000), "trace.jsonl")
    told = trace.latents
    found = calibrate(
        simulated_sweep(bed, 1),
        given=bed.given,
        trace=replace(trace, notes=("3 rows dropped",)),
        loo=False,
        force=True,
    )
    assert {interval.name for interval in found.uncertainty.intervals} == set(ENGINE)
    stored = found.profile.tables["load"]
    assert stored["first_tokens"] == pytest.approx(told["first_tokens"], rel=1e-3)
    assert stored["failed_sessions"] == pytest.approx(told["failed_sessions"], rel=1e-3)
    text = found.report_text()
    assert "Given by the trace: computed_spread" in text
    assert "Note: 3 rows dropped" in text
    assert not any("trace of this load" in said for said in found.warnings)
    # Computed tokens are counted, which beats the trace; the profile says what was given and fits no more.
    assert "computed_tokens" not in stored
    path = tmp_path / "server.toml"
    write_profile(found.profile, path)
    facts = facts_of(load_profile(path))
    assert facts.load_source == "trace.jsonl"
    assert {p.name for p in parameters(found.sweep.levels, facts)} == set(ENGINE)


def test_a_trace_of_another_load_is_told() -> None:
    bed = random_bed(6, (1, 4), load_s=120.0)
    longer = replace(bed.loads[1], prompt_tokens=2.5 * bed.loads[1].prompt_tokens)
    found = calibrate(
        simulated_sweep(bed, 1),
        given=bed.given,
        trace=TraceLoad.of(draw_sessions(longer, 1, 200_000), "trace.jsonl"),
        loo=False,
        force=True,
    )
    said = [text for text in found.warnings if "trace of this load" in text]
    assert said
    assert said[0].startswith("prompts of the replayed trace are ")


def test_sessions_that_the_server_does_not_take_are_told() -> None:
    bed = random_bed(6, (1, 4), load_s=120.0)
    facts = server_facts(simulated_sweep(bed, 1), bed.given)
    trace = TraceLoad.of(draw_sessions(bed.loads[1], 1, 200_000), "trace.jsonl")
    prompts = [[turn.num_prompt_tokens for turn in s.turns] for s in trace.sessions.sessions]
    middle = sorted(max(lengths) for lengths in prompts)[len(prompts) // 2]
    assert not any("end there" in note for note in with_trace(facts, trace, counted=True).notes)
    short = replace(facts, config=replace(facts.config, max_model_len=middle))
    ended = sum(max(lengths) >= middle for lengths in prompts)
    text = f"{ended} of {len(prompts)} sessions replayed reach max_model_len ({middle:,}) and end there"
    assert text in with_trace(short, trace, counted=True).notes
    none = replace(facts, config=replace(facts.config, max_model_len=min(lengths[0] for lengths in prompts)))
    with pytest.raises(InputError, match="every session of the trace begins with"):
        with_trace(none, trace, counted=True)


def test_identities_within_a_session_do_not_tell_what_is_shared() -> None:
    load = random_bed(5, (20,)).loads[0]
    sessions = [
        replace(
            session,
            turns=tuple(
                turn._replace(
                    prompt=tuple(part._replace(stream=part.stream + 1000 * i) for part in turn.prompt)
                )
                for turn in session.turns
            ),
        )
        for i, session in enumerate(draw_sessions(load, 1, 200_000))
    ]
    told = load_latents(sessions, "trace")
    assert "shared_tokens" not in told
    assert told["first_tokens"] == pytest.approx(load.first_tokens, rel=0.1)
