"""`replay.py --check` runs the product's engine: faults planted there show, and only there.

Each fault stands in a copy of the package that shadows the installed one, in a process of its own. The
reference engine shares none of the changed files, so it makes the recorded steps all the same.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
FAULTS = {  # the beginning of a fault's name, and a scenario whose steps it changes
    "queue order": "17_full_prompt_hit",
    "publishing time": "17_full_prompt_hit",
    "look-up": "17_full_prompt_hit",
    "jump: one step too far": "17_full_prompt_hit",
    "block crossings": "07_preempt_fcfs",
    "asynchronous": "32_async_preempt",
    "idle hits": "07_preempt_fcfs",
    "duplicates": "17_full_prompt_hit",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows_in_the_product_only(fault: str, tmp_path: Path) -> None:
    mutations = importlib.import_module("mutations").MUTATIONS
    mutation = next(m for m in mutations if m.what.startswith(fault))
    package = tmp_path / "replicast"
    package.mkdir()
    shutil.copy(ROOT / "__init__.py", package)
    shutil.copytree(ROOT / "sim", package / "sim", ignore=shutil.ignore_patterns("__pycache__"))
    path = package / "sim" / "engine" / f"{mutation.module}.py"
    text = path.read_text()
    assert text.count(mutation.old) == 1, "the code changed: plant the fault anew"
    path.write_text(text.replace(mutation.old, mutation.new))
    assert _replay(tmp_path, FAULTS[fault], "product") != "same\n"
    assert _replay(tmp_path, FAULTS[fault], "reference") == "same\n"


def _replay(folder: Path, scenario: str, engine: str) -> str:
    command = [
        sys.executable,
        HERE / "replay.py",
        HERE / "scenarios" / f"{scenario}.scenario.json",
        *("--vllm", "0.33.0", "--engine", engine),
        *("--check", HERE / "golden-0.33.0" / f"{scenario}.steps.jsonl.gz"),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr
