"""The library as its page shows it: the worked example is run, and answers agree with each other."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import replicast
from replicast.calibration.profile import load_profile
from replicast.library.answers import PlanAnswer
from replicast.library.functions import model_error_of
from replicast.library.reports import write_report
from replicast.sim.errors import InputError
from replicast.sim.planning.compare import compare
from replicast.traces.canonical_io import write_canonical
from replicast.traces.synth import generate
from replicast.traces.synth_fit import PRESETS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "library.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library")
    write_canonical(generate(PRESETS["weka"], 40, 7), path / "sessions.jsonl.gz")
    return path


@pytest.fixture(scope="module")
def answer(folder: Path) -> PlanAnswer:
    return replicast.plan(
        folder / "sessions.jsonl.gz", "qwen3.8-27b-h200", developers=20, slo=["ttft:p90<10s"], price=8.0,
        replications=4, with_sensitivity=False,
    )  # fmt: skip


def test_worked_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 5
    assert found.failed == 0


def test_import_is_light() -> None:
    program = "import sys, replicast; sys.exit(len({'numpy', 'simpy', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert {"simulate", "plan", "whatif", "calibrate", "check", "load_trace"} <= set(replicast.__all__)
    with pytest.raises(AttributeError):
        _ = replicast.nothing


def test_what_a_changed_case_warns_of_is_told(folder: Path) -> None:
    found = replicast.whatif(
        folder / "sessions.jsonl.gz", "qwen3.6-35b-h200-tp1", replicas=1, vary="block-size=16,2112",
        developers=2, active=1.0, replications=2, search=False,
    )  # fmt: skip
    told = [text for code, text in found.warnings if code == "config" and text.startswith("with ")]
    assert len(told) == 1
    assert told[0].startswith("with block-size=16: block_size 16 holds no state of the hybrid model")


def test_documents_and_comparison(answer: PlanAnswer) -> None:
    document = json.loads(answer.document())
    assert document["schema"] == "replicast/plan/1"
    assert document["replicas_needed"] == answer.replicas
    assert document["config"]["population"]["live_sessions"] == 12
    assert document["rows"][0]["usd_per_hour"]["value"] == 8.0
    found = compare(document, document)
    assert all(row.paired for row in found.rows)
    assert "1 sessions" not in answer.text()
    assert answer._repr_html_().startswith("<pre>")


def test_same_answer_twice_and_in_processes(folder: Path, answer: PlanAnswer) -> None:
    from replicast.sim.planning.parallel import Scale

    again = replicast.plan(
        replicast.load_trace(folder / "sessions.jsonl.gz"), load_profile("qwen3.8-27b-h200"), developers=20,
        slo=["ttft:p90<10s"], price=8.0, replications=4, with_sensitivity=False, scale=Scale(jobs=2),
    )  # fmt: skip
    assert again.document() == answer.document()


def test_report_files(answer: PlanAnswer, tmp_path: Path) -> None:
    written = write_report(answer, tmp_path, "replicast plan sessions.jsonl.gz", cliff=False)
    assert {path.name for path in written} >= {"report.html", "plan.txt", "waiting.svg", "timeline.png"}
    assert "replicast plan sessions.jsonl.gz" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_most_developers_of_two_replicas(folder: Path) -> None:
    found = replicast.max_developers(
        folder / "sessions.jsonl.gz", "qwen3.8-27b-h200", replicas=1, slo=["ttft:p90<10s"], replications=4
    )
    assert found.developers > 0
    assert json.loads(found.document())["max_developers"] == found.developers


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"developers": 0}, "developers is 0"),
        ({"slo": ["speed:p90<1s"]}, "unknown metric"),
        ({"slo": []}, "no SLO"),
        ({"model": "kimi"}, "not of kimi"),
        ({"active": 1.5}, "active share"),
        ({"replications": 1}, "no interval"),
        ({"router": "nobody"}, "router"),
        ({"box": 0}, "box"),
        ({"seed": -1}, "negative"),
        ({"price": -1.0}, "price"),
        ({"people": {"subagents": 2.0}}, "subagents"),
    ],
)
def test_bad_input(folder: Path, arguments: dict[str, object], what: str) -> None:
    given: dict[str, object] = {"developers": 5, "slo": ["ttft:p90<10s"], "replications": 4, **arguments}
    with pytest.raises(InputError, match=what):
        replicast.plan(folder / "sessions.jsonl.gz", "qwen3.8-27b-h200", with_sensitivity=False, **given)  # type: ignore[arg-type]


def test_model_error_from_a_profile() -> None:
    shipped = load_profile("qwen3.8-27b-h200")
    profile = replace(shipped, tables={})
    assert model_error_of(profile, profile.to_step_time()) is None
    names = ["memory_fixed_s", "computed_tokens", "compute_per_token_s"]
    matrix = [[0.01, 0.5, 0.002], [0.5, 9.0, 0.0], [0.002, 0.0, 0.04]]
    profile.tables["covariance"] = {
        "names": names,
        "log_matrix": matrix,
        "low": [-99, 0, -99],
        "high": [99, 9, 99],
    }
    error = model_error_of(profile, profile.to_step_time())
    assert error is not None
    assert error.names == ("memory_fixed", "compute_per_token")
    assert error.covariance == ((0.01, 0.002), (0.002, 0.04))
