"""Verdicts on public sweeps of self-hosted vLLM, with the reason for which an engineer would sign each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from replicast.calibration.check import CheckResult, check_sweep
from replicast.calibration.readers.detect import read_sweep
from replicast.sim.report.check import answer, check_document, check_text


class Signed(NamedTuple):
    """A verdict, the levels left out, and (law, severity) of what fails or warns."""

    verdict: str
    left_out: tuple[str, ...]
    findings: frozenset[tuple[int, str]]
    reason: str


def signed(verdict: str, reason: str, *findings: tuple[int, str], left_out: tuple[str, ...] = ()) -> Signed:
    return Signed(verdict, left_out, frozenset(findings), reason)


VERDICTS = {
    "devstral-2-123b": signed(
        "usable", "1.4 to 2 requests a session at every level; the queue grows only where KV blocks ran out"
    ),
    "gemma-4-31b-g6e12xlarge": signed(
        "usable-with-care",
        "at c=20 rate x time per token is twice the running requests and TTFT is 29% above queue and "
        "prefill: means of few finished requests; c=10 and 15 show it weaker",
        (3, "fail"),
        (3, "warn"),
        left_out=("c=20",),
    ),
    "glm-5.2": signed(
        "usable-with-care",
        "c=1 ran one request at a time, all levels from c=5 on nearly three a session",
        (2, "warn"),
    ),
    "glm-5.3": signed("usable", "one request a session; TTFT of 8.4 s at c=1 is prefill, with no queue"),
    "glm52-200k-throughput": signed(
        "usable", "client figures of short requests; no gauge to contradict them"
    ),
    "kimi-k2.7-code-earlier": signed("usable", "2.3 to 3.2 requests a session throughout; KV full from c=7"),
    "kimi-k3": signed("usable", "about one request a session, a few sub-agents, hardly a queue"),
    "minicpm5-2b": signed("usable", "one request a session; queues where KV blocks ran out"),
    "minimax-m3": signed("usable", "one request a session, sub-agents at c=7 for a while"),
    "qwen3-coder-30b-g6e": signed("usable", "queue below prefill up to c=7; sub-agents at c=2"),
    "qwen3-coder-30b-h200-tp1": signed("usable", "c=1 ran sub-agents and is said to be no request alone"),
    "qwen3-coder-480b": signed("usable-with-care", "no c=1; all else holds", (1, "warn")),
    "qwen3.6-35b-g6e12xlarge-backedup": signed(
        "not-usable",
        "about 44 requests in the system whatever the sessions, time per token flat at 0.27 s, up to 306 "
        "prompt tokens for a generated one where tasks have 50",
        (1, "warn"),
        (2, "fail"),
        (5, "warn"),
        (9, "fail"),
    ),
    "qwen3.6-35b-g6e12xlarge": signed("usable", "sub-agents: 8.5 requests at c=1, growing to 35 at c=20"),
    "qwen3.6-35b-h200-tp1": signed("usable", "one request a session, queues below prefill"),
    "qwen3.8-27b-g6e": signed("usable-with-care", "c=1 and c=2 rest on about 3 and 6 requests", (8, "warn")),
    "qwen3.8-27b-h200-tp1-seqs128": signed("usable-with-care", "no c=1; all else holds", (1, "warn")),
    "qwen3.8-27b-h200-tp1": signed("usable", "one request a session; long outputs, short prompts"),
}


@pytest.fixture(scope="module")
def sweeps(shared_dir: Path) -> Path:
    return shared_dir / "sweeps"


def checked(path: Path, **more: object) -> CheckResult:
    return check_sweep(read_sweep(path), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(sweeps: Path, name: str) -> None:
    result, wanted = checked(sweeps / f"{name}.json"), VERDICTS[name]
    serious = frozenset((f.law, f.severity) for f in result.findings if f.severity != "note")
    labels = result.labels()
    assert (result.verdict, tuple(labels[i] for i in result.left_out), serious) == wanted[:3], wanted.reason


def test_every_sweep_has_a_verdict(sweeps: Path) -> None:
    assert {path.stem for path in sweeps.glob("*.json")} == set(VERDICTS)


def test_the_backed_up_run_fails_without_the_law_of_the_baseline(sweeps: Path) -> None:
    result = checked(sweeps / "qwen3.6-35b-g6e12xlarge-backedup.json", without=(1,))
    assert result.verdict == "not-usable"
    assert {f.law for f in result.of("fail")} == {2, 9}
    assert answer(result) == "Not usable: 6 of 6 levels fail. Do not calibrate on this sweep."


def test_the_backed_up_run_fails_in_every_subset_of_its_low_levels(sweeps: Path) -> None:
    """Three levels, as its own notes list them, are enough."""
    from dataclasses import replace

    sweep = read_sweep(sweeps / "qwen3.6-35b-g6e12xlarge-backedup.json")
    for stop in range(2, len(sweep.levels) + 1):
        assert check_sweep(replace(sweep, levels=sweep.levels[:stop])).verdict == "not-usable", stop


def test_told_that_sessions_run_one_request(sweeps: Path) -> None:
    assert checked(sweeps / "qwen3.6-35b-g6e12xlarge.json", parallel_per_session=1).verdict == "not-usable"
    assert checked(sweeps / "qwen3.6-35b-g6e12xlarge.json", parallel_per_session=13).verdict == "usable"
    assert checked(sweeps / "glm-5.3.json", parallel_per_session=1).verdict == "usable"


def test_the_twin_at_30_sessions_differs_by_its_workload(sweeps: Path) -> None:
    other = read_sweep(sweeps / "qwen3.8-27b-h200-tp1-seqs128.json")
    result = checked(sweeps / "qwen3.8-27b-h200-tp1.json", against=other)
    [found] = [f for f in result.findings if f.law == 11]
    evidence = dict(found.evidence)
    assert evidence["cause"] == "workload"
    assert (round(evidence["requests"]), round(evidence["requests_other"])) == (168, 79)  # type: ignore[arg-type]
    assert "the realised workload differs, not the engine" in found.text


def test_published_costs_are_a_fifth_too_high(sweeps: Path) -> None:
    result = checked(sweeps / "qwen3.6-35b-h200-tp1.json")
    evidence = dict(next(f for f in result.findings if f.law == 6).evidence)
    assert evidence["usd_per_1m_processed"] == pytest.approx(0.05018, rel=1e-3)
    assert evidence["usd_per_1m_processed_in_load"] == pytest.approx(0.05018 / 1.198, rel=1e-3)


def test_every_sweep_can_be_shown(sweeps: Path) -> None:
    for path in sorted(sweeps.glob("*.json")):
        result = checked(path)
        text = check_text(result)
        assert text.startswith(answer(result))
        prose = [line for line in text.splitlines() if line.startswith(("      ", " FAIL", " WARN", " Note"))]
        assert all(len(line) <= 110 for line in prose), path.name
        document = check_document(result)
        assert document["schema"] == "replicast/check/1"
        assert len(document["levels"]) == len(result.sweep.levels)  # type: ignore[arg-type]
