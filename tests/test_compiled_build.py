"""What can go wrong while the engine is compiled: one message, and no half of a build is ever taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from replicast.sim.engine import compiled
from replicast.sim.errors import InputError

Run = Callable[..., subprocess.CompletedProcess[str]]


def compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, meanwhile: Callable[[], object]) -> None:
    """A compiler that does nothing, while something happens."""

    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        meanwhile()
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setenv("REPLICAST_CACHE", str(folder))
    monkeypatch.setattr("replicast.sim.engine.compiled.subprocess.run", run)


def entries(folder: Path) -> set[str]:
    """What a cache holds beside the lock."""
    return {path.name for path in folder.iterdir()} - {"build.lock"}


def test_of_two_builds_at_once_one_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_by: list[int] = []

    def slow() -> None:
        compiled_by.append(threading.get_ident())
        time.sleep(0.2)

    compiler(monkeypatch, tmp_path, slow)
    with ThreadPoolExecutor(2) as pool:
        built = {pool.submit(compiled.build) for _ in range(2)}
    assert {one.result() for one in built} == {tmp_path / compiled.package_name()}
    assert len(compiled_by) == 1
    assert entries(tmp_path) == {compiled.package_name()}


def test_what_a_killed_build_left_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "tmpabc"  # a cache may be set up anywhere
    theirs.mkdir()
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal\n"
        "from replicast.sim.engine import compiled\n"
        "compiled.compile_in = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "compiled.build()\n"
    )
    killed = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "REPLICAST_CACHE": str(tmp_path)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert any(name.startswith(compiled.SCRATCH) for name in entries(tmp_path))
    compiler(monkeypatch, tmp_path, lambda: None)
    compiled.build()
    assert entries(tmp_path) == {compiled.package_name(), "tmpabc", "killed.py"}


def test_text_changed_while_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = compiled.package_name()

    def edit() -> None:
        monkeypatch.setattr("replicast.sim.engine.compiled.sys.version", "another")

    compiler(monkeypatch, tmp_path, edit)
    with pytest.raises(InputError, match="changed meanwhile"):
        compiled.build()
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("broken", ["folder", "compiler"])
def test_one_message_where_it_cannot_be_compiled(broken: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if broken == "folder":
        cache.touch()
    else:
        (tmp_path / "mypyc").mkdir()
        (tmp_path / "mypyc" / "__init__.py").write_text("raise ImportError('no mypyc')")
    done = subprocess.run(
        [sys.executable, "-m", "replicast.sim.engine.compiled"],
        env={**os.environ, "REPLICAST_CACHE": str(cache), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not cache.is_dir() or not entries(cache)
