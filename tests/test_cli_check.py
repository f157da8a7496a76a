"""`replicast check` on a small sweep: what it prints, its document, its log, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from replicast.cli import main
from syrupy.assertion import SnapshotAssertion

HEAD = (
    "concurrency,window_s,load_s,requests_finished,prompt_tokens,cached_tokens,generated_tokens,"
    "ttft_mean_s,queue_mean_s,prefill_mean_s,tpot_mean_ms,running_mean,running_peak,waiting_mean,waiting_peak,kv_usage_peak"
)
HEALTHY = (
    "1,700,600,300,3000000,2700000,30000,0.5,0.001,0.49,15,0.95,1,0,0,0.05",
    "2,700,600,500,5000000,4500000,50000,0.55,0.02,0.5,18,1.9,2,0.02,1,0.1",
    "5,700,600,1100,11000000,9900000,110000,0.6,0.05,0.5,22,4.6,5,0.1,2,0.2",
)
BACKED_UP = (
    "2,700,600,30,3000000,300000,10000,150,120,30,270,10,12,36,40,0.6",
    "5,700,600,31,3000000,300000,10000,150,120,30,270,10,12,33,41,0.5",
    "10,700,600,30,3000000,300000,10000,150,120,30,270,10,12,30,39,0.5",
)


def replicast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def sweep(folder: Path, rows: tuple[str, ...]) -> Path:
    path = folder / "sweep.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


def test_healthy(tmp_path: Path, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep(tmp_path, HEALTHY)
    done = replicast("check", "sweep.csv")
    assert done.exit_code == 0, done.output
    first, *_, last = done.stdout.splitlines()
    assert [first, last] == snapshot


def test_not_usable_exits_with_3_and_is_logged(tmp_path: Path) -> None:
    path, log = sweep(tmp_path, BACKED_UP), tmp_path / "findings.md"
    for without in ((), ("--without", "1")):
        done = replicast("check", path, "--log", log, *without)
        assert done.exit_code == 3, done.output
        assert done.stdout.startswith("Not usable: ")
    text = log.read_text()
    assert text.startswith("# Findings\n\n## 2")
    assert text.count("**Not usable: ") == 2


def test_document(tmp_path: Path) -> None:
    given = ["--given", "max_num_seqs=64", "--parallel-per-session", "1"]
    documents = []
    for _ in range(2):
        done = replicast("check", sweep(tmp_path, BACKED_UP), "--json", *given)
        assert done.exit_code == 3
        documents.append(json.loads(done.stdout, parse_constant=pytest.fail))
        assert documents[-1].pop("timing")
    document = documents[0]
    assert documents[1] == document
    assert document["schema"] == "replicast/check/1"
    assert document["verdict"] == "not-usable"
    assert document["inputs"][0]["rows"] == 3
    assert len(document["inputs"][0]["sha256"]) == 64
    assert document["config"]["given"]["max_num_seqs"] == 64
    assert [level["concurrency"] for level in document["levels"]] == [2, 5, 10]
    law = next(finding for finding in document["findings"] if finding["law"] == 2)
    assert law["evidence"]
    assert law["remedy"]


def test_keys_that_tell_nothing_are_named(tmp_path: Path) -> None:
    facts = tmp_path / "server.yaml"
    facts.write_text("max_num_seqs: 256\nmax_num_sequences: 64\n")
    done = replicast("check", sweep(tmp_path, HEALTHY), "--given", facts)
    assert done.exit_code == 0
    assert "Warning [given]" in done.stderr
    assert "passed over: max_num_sequences" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["absent.duckdb"], "absent.duckdb", 1),
        (["junk.csv"], "no format", 1),
        (["half.duckdb"], "not a DuckDB file", 1),
        (["negative.csv"], "negative.csv", 1),
        (["sweep.csv", "--given", "moon=3"], "no fact named moon", 2),
        (["sweep.csv", "--parallel-per-session", "0"], "--parallel-per-session", 2),
        (["sweep.csv", "--without", "99"], "no law 99", 2),
        ([], "SWEEP", 2),
    ],
)
def test_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep(tmp_path, HEALTHY)
    Path("junk.csv").write_text("a,b\n1,2\n")
    Path("half.duckdb").write_bytes(b"\0" * 5000)
    Path("negative.csv").write_text(f"{HEAD}\n{HEALTHY[0].replace('0.5,', '-0.5,', 1)}\n")
    done = replicast("check", *arguments, "--log", "log.md")
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert done.stderr.count("Error: ") == 1
    assert said in done.stderr
    assert not Path("log.md").exists()
