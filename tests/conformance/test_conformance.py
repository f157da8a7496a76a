"""Our steps equal those of vLLM's own scheduler, for both recorded versions and through both engines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import get_args

import pytest
import replay
from replicast.sim.config import Rules
from stepreplay.adapters import ENGINES
from stepreplay.compare import first_difference, load_recording
from stepreplay.driver import Driver
from stepreplay.product import Product
from stepreplay.scenario import load_scenario

HERE = Path(__file__).parent
VERSIONS: tuple[Rules, ...] = get_args(Rules)


def recorded_pairs() -> list[object]:
    """(scenario, recording, version, engine)."""
    pairs: list[object] = []
    for folder, scenarios in (
        (HERE, HERE / "scenarios"),
        *((HERE / name,) * 2 for name in ("extra", "hybrid")),
    ):
        for version in VERSIONS:
            for steps in sorted((folder / f"golden-{version}").glob("*.steps.jsonl.gz")):
                name = steps.name.removesuffix(".steps.jsonl.gz")
                scenario = scenarios / f"{name}.scenario.json"
                pairs += [
                    pytest.param(scenario, steps, version, engine, id=f"{name}-{version}-{engine}")
                    for engine in ENGINES
                ]
    return pairs


@pytest.mark.parametrize(("scenario", "steps", "version", "engine"), recorded_pairs())
def test_steps_equal_the_recorded_ones(scenario: Path, steps: Path, version: Rules, engine: str) -> None:
    lines = Driver(load_scenario(scenario, version), ENGINES[engine]).run()
    assert first_difference(lines, load_recording(steps)) is None


def test_all_recordings_are_here() -> None:
    assert len(list((HERE / "scenarios").glob("*.json"))) == 51
    for version in VERSIONS:
        assert len(list((HERE / f"golden-{version}").glob("*.gz"))) == 51


SCENARIO = HERE / "scenarios" / "12_head_of_line.scenario.json"
STEPS = HERE / "golden-0.33.0" / "12_head_of_line.steps.jsonl.gz"


def test_replay_prints_the_recorded_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(SCENARIO), "--vllm", "0.33.0"]) == 0
    assert capsys.readouterr().out == gzip.decompress(STEPS.read_bytes()).decode()


def test_replay_names_the_first_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(SCENARIO), "--vllm", "0.33.0", "--check", str(STEPS)]) == 0
    assert capsys.readouterr().out == "same\n"
    lines = load_recording(STEPS)
    lines[3]["free"] += 1
    other = tmp_path / "steps.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert replay.main([str(SCENARIO), "--vllm", "0.33.0", "--check", str(other)]) == 1
    assert capsys.readouterr().out.startswith("line 4 (step 2), free:")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "no list `requests`"),
        ('{"requests": [{"id": "a"}]}', "output_len"),
        ('{"requests": [], "config": {"kv_groups": [{"type": "half"}]}}', "the type 'half'"),
        ('{"requests": [], "config": {"kv_groups": [{"type": "swa"}]}}', "window"),
        (
            '{"requests": [], "config": {"scheduler_extra": {"max_num_active_seqs": 2}}}',
            "max_num_active_seqs",
        ),
        ('{"requests": [], "config": {"block_size": 0}}', "block_size"),
        ('{"requests": [{"id": "a", "output_len": 1.5}]}', "output_len"),
        ('{"requests": [{"id": "a", "output_len": 1, "prompt_from": "a"}]}', "arrives later"),
    ],
)
def test_unusable_scenarios_are_refused_in_words(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.scenario.json"
    path.write_text(text)
    assert replay.main([str(path), "--vllm", "0.25.1"]) == 2
    assert says in capsys.readouterr().err


def test_other_versions_are_named_the_rules_they_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(SCENARIO), "--vllm", "0.20"]) == 2
    assert "say --vllm 0.25.1" in capsys.readouterr().err
    assert replay.main([str(SCENARIO), "--vllm", "newest"]) == 2
    assert "is not a vLLM version" in capsys.readouterr().err


def test_the_products_engine_jumps() -> None:
    """A replay by single steps only would prove nothing of the jumps."""
    name = "14_multiturn_bs16.scenario.json"
    driver = Driver(load_scenario(HERE / "scenarios" / name, "0.33.0"), Product)
    num_steps = sum(line["kind"] == "step" for line in driver.run())
    assert isinstance(driver.engine, Product)
    assert driver.engine.num_handed_out > num_steps / 2
    assert driver.engine.engine.num_single_steps == 0


def test_unusable_recordings_are_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "steps.jsonl.gz"
    cut.write_bytes(STEPS.read_bytes()[:-30])
    assert replay.main([str(SCENARIO), "--vllm", "0.33.0", "--check", str(cut)]) == 2
    assert replay.main([str(SCENARIO), "--vllm", "0.25.1", "--check", str(STEPS)]) == 2
    assert "was recorded with vLLM 0.33.0" in capsys.readouterr().err
