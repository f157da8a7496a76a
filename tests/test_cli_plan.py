"""`replicast plan`, `whatif` and `compare` on a few short sessions: words, files, exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from replicast.cli import main
from replicast.traces.canonical_io import write_canonical
from replicast.traces.synth import generate
from replicast.traces.synth_fit import PRESETS
from syrupy.assertion import SnapshotAssertion

FEW = ["--profile", "qwen3.8-27b-l40s", "--developers", "6", "--replications", "3", "--slo", "ttft:p90<60s"]
PLAN = [*FEW, "--no-sensitivity"]
WHATIF = [*FEW, "--replicas", "1", "--no-search"]


def replicast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine short sessions."""
    spec = replace(PRESETS["fresh"], turns_scale=0.1, prompt_scale=0.3, output_scale=0.1, human_gap_scale=0.1)
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl.gz"
    write_canonical(generate(spec, 9, 1), path)
    return path


@pytest.fixture(scope="module")
def saved(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plan.json."""
    out = tmp_path_factory.mktemp("plan")
    done = replicast("plan", trace, *PLAN, "--out", out, "--counts", "1,2", "--no-cliff")
    assert done.exit_code == 0, done.output
    return out


def words(text: str) -> list[str]:
    """Lines with numbers and verdicts taken out."""
    plain = re.sub(r"[-+]?\$?[\d.,:%]+|meets|fails|inconclusive", "#", text)
    return [" ".join(line.split()) for line in plain.splitlines()]


def without_timing(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    assert document.pop("timing")["wall_s"] > 0
    return document


def test_plan_says_the_answer_first(saved: Path, snapshot: SnapshotAssertion) -> None:
    lines = words((saved / "plan.txt").read_text())
    assert lines[0].startswith("Answer")
    assert [line for line in lines if line.startswith(("Answer", "replicas", "Next"))] == snapshot


def test_out_holds_a_page_figures_and_how_to_repeat_it(trace: Path, saved: Path) -> None:
    names = {path.name for path in saved.iterdir()}
    assert {"plan.txt", "plan.json", "report.html", "runs.jsonl"} <= names
    assert any(name.endswith(".svg") for name in names)
    assert f"replicast plan {trace}" in (saved / "report.html").read_text()


def test_plan_document(trace: Path, saved: Path) -> None:
    done = replicast("plan", trace, *PLAN, "--counts", "1,2", "--json", "--jobs", "2")
    again = without_timing(done.stdout)
    assert again == without_timing((saved / "plan.json").read_text())
    assert again["schema"] == "replicast/plan/1"
    assert again["exit_code"] == 0
    assert [row["replicas"] for row in again["rows"]] == [1, 2]
    assert len(again["inputs"][0]["sha256"]) == 64


def test_finished_runs_are_taken_over(trace: Path, saved: Path, tmp_path: Path) -> None:
    runs = (saved / "runs.jsonl").read_text().splitlines()
    assert len(runs) == 6
    (tmp_path / "runs.jsonl").write_text(runs[0] + "\n" + runs[1][:50])  # as an interrupted call leaves it
    command = ["plan", trace, *PLAN, "--counts", "1,2", "--no-cliff", "--out", tmp_path, "--resume"]
    assert replicast(*command).exit_code == 0
    whole, resumed = (without_timing((folder / "plan.json").read_text()) for folder in (saved, tmp_path))
    assert resumed["rows"] == whole["rows"]
    assert resumed["stopping"]["replications_run"] == 5


def test_plan_can_answer_no(trace: Path) -> None:
    never = [*PLAN[:-2], "ttft:p90<1ms", "--no-sensitivity", "--counts", "1,2", "--quiet"]
    done = replicast("plan", trace, *never)
    assert done.exit_code == 3, done.output
    assert done.stdout.startswith("Answer: none")


def test_plan_can_answer_that_it_does_not_know(trace: Path, saved: Path) -> None:
    median = json.loads((saved / "plan.json").read_text())["rows"][0]["ttft_p50_s"]["value"]
    done = replicast("plan", trace, *PLAN[:-2], f"ttft:p50<{median}s", "--no-sensitivity", "--counts", "1")
    assert done.exit_code == 4, done.output
    assert done.stdout.startswith("Answer: not clear")


def test_most_developers(trace: Path) -> None:
    asked = ["--profile", "qwen3.8-27b-l40s", "--replications", "3", "--max-developers", "--replicas", "1"]
    done = replicast("plan", trace, *asked, "--slo", "ttft:p50<0.8s", "--active", "1")
    assert done.exit_code == 0, done.output
    assert re.match(r"Answer: .*\d+ developers", done.stdout)


def test_choice_of_hardware(trace: Path) -> None:
    two = [
        "--profile",
        "qwen3.8-27b-l40s",
        "--price",
        "3",
        "--profile",
        "qwen3.8-27b-h200",
        "--price",
        "8",
        "--box",
        "8",
    ]
    done = replicast("plan", trace, *two, *PLAN[2:], "--json")
    assert done.exit_code == 0, done.output
    document = without_timing(done.stdout)
    assert document["schema"] == "replicast/hardware/1"
    cheap, dear = (document["plans"][name] for name in ("qwen3.8-27b-l40s-tp1", "qwen3.8-27b-h200-tp1"))
    assert cheap["rows"][0]["usd_per_hour"]["value"] == 3
    assert dear["rows"][0]["usd_per_hour"]["value"] == 64


def test_whatif(trace: Path, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    done = replicast("whatif", trace, *WHATIF, "--set", "prefix-cache-hit-rate=0.14", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    figures = [
        line for line in (tmp_path / "whatif.txt").read_text().splitlines() if line[:2] in (" ~", " =")
    ]
    assert [line[3:].split("  ")[0] for line in figures] == snapshot
    assert "pinned" in done.stdout
    document = without_timing((tmp_path / "whatif.json").read_text())
    assert document["schema"] == "replicast/whatif/1"
    assert document["arms"][0]["pinned_hit_rate"] == 0.14


def test_vary_has_an_arm_a_value(trace: Path) -> None:
    done = replicast("whatif", trace, *WHATIF, "--vary", "router=round-robin,random", "--json")
    assert [arm["name"] for arm in json.loads(done.stdout)["arms"]] == ["router=round-robin", "router=random"]


def test_compare(trace: Path, saved: Path, tmp_path: Path) -> None:
    done = replicast("plan", trace, *PLAN, "--counts", "1,2", "--router", "random", "--json")
    other = tmp_path / "other.json"
    other.write_text(done.stdout)
    compared = replicast("compare", saved / "plan.json", other)
    assert compared.exit_code == 0, compared.output
    assert "(paired)" in compared.stdout
    document = json.loads(replicast("compare", saved / "plan.json", other, "--json").stdout)
    assert document["schema"] == "replicast/compare/1"
    assert all(d["difference"]["value"] is not None for d in document["rows"][0]["differences"])


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["plan", *PLAN, "--slo", "speed:p90<3s"], "unknown metric", 2),
        (["plan", *PLAN, "--slo", "ttft:p90<3"], "without a unit", 2),
        (["plan", *PLAN, "--model", "gpt"], "not of gpt", 1),
        (["plan", *PLAN, "--horizon", "60"], "an hour or more", 1),
        (["plan", *PLAN, "--day-curve", "absent.csv"], "absent.csv", 1),
        (["plan", *PLAN, "--profile", "nix"], "neither a shipped profile", 1),
        (["plan", "--profile", "nix", *PLAN[2:]], "neither a shipped profile", 1),
        (["plan", *PLAN, "--max-num-seqs", "0"], "max_num_seqs", 1),
        (["plan", *PLAN, "--developers", "0"], "--developers", 2),
        (["plan", *PLAN, "--price", "nan"], "--price", 2),
        (["plan", *PLAN, "--max-developers"], "--max-developers with --replicas", 2),
        (["plan", *PLAN, "--counts", "1,5", "--max-replicas", "2"], "goes past --max-replicas", 2),
        (["plan", *PLAN, "--slo", "ttft<10s"], "not metric:quantile<limit", 2),
        (["plan", *PLAN, "--slo", "ttft:p90<10s", "--slo", "ttft:p90<9s"], "limited twice", 2),
        (["plan", *PLAN, "--resume"], "--resume needs --out", 2),
        (["plan", *PLAN, "--scheduler", "tcp://nowhere"], "--backend", 2),
        (["plan", "--profile", "qwen3.8-27b-l40s"], "--developers N", 2),
        (
            ["plan", *FEW[:2], "--max-developers", "--replicas", "1", "--counts", "1"],
            "--counts has no part",
            2,
        ),
        (["plan", *PLAN, "--price", "1", "--price", "2"], "--price is given twice", 2),
        (["plan", *PLAN, "--profile", "qwen3.8-27b-l40s"], "given twice", 1),
        (["whatif", *WHATIF], "Nothing is changed", 2),
        (["whatif", *WHATIF, "--set", "moon=3"], "cannot be set", 2),
        (["whatif", *WHATIF, "--vary", "moon=3,4"], "--vary: 'moon' cannot be set", 2),
        (["whatif", *WHATIF, "--vary", "tools-prefix=x,9"], "tools-prefix=x is not a number", 1),
        (["whatif", *WHATIF, "--set", "prefix-cache-hit-rate=1.4"], "between 0 and 1", 1),
        (["whatif", *WHATIF, "--set", "router=magic"], "magic", 1),
        (["whatif", *WHATIF, "--set", "kv-pool=-50%"], "does not start", 1),
        (["whatif", *WHATIF, "--replicas", "0", "--set", "router=random"], "--replicas", 2),
    ],
)
def test_bad_input(trace: Path, tmp_path: Path, arguments: list[str], said: str, code: int) -> None:
    name, *rest = arguments
    more = [] if "--resume" in rest else ["--out", tmp_path / "out"]
    done = replicast(name, trace, *rest, *more)
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert done.stderr.count("Error: ") == 1, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_compare_bad_files(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"schema": ')
    (tmp_path / "other.json").write_text('{"schema": "else/1"}')
    (tmp_path / "list.json").write_text("[]")
    for name in ("broken.json", "other.json", "list.json", "absent.json"):
        for pair in ((saved / "plan.json", tmp_path / name), (tmp_path / name, saved / "plan.json")):
            done = replicast("compare", *pair)
            assert done.exit_code == 1, done.output
            assert done.stderr.count("Error: ") == 1
