"""The same engine as machine code: optional, built once, two to three times as fast.

    make fast        (the extra `fast` and a C compiler)

mypyc compiles the very files that Python runs otherwise, under a package name that carries the digest
of their text and of all that they can import (`Request`, `EngineConfig`, step times). So there is no
second source, and a build of other text is never picked up. Everything works without it; `engine_class`
takes it where it is there.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from replicast.sim.engine.macro import MacroEngine
from replicast.sim.errors import InputError

MODULES = (
    "free_queue",
    "duplicates",
    "content_tree",
    "block_pool",
    "kv_cache",
    "request_state",
    "decodes",
    "step_run",
    "scheduler",
    "jump_effects",
    "jumps",
    "mixed_step",
    "conversion",
    "settle",
    "macro",
)
INTERPRETED = ("request_queue",)  # subclasses of built-in types stay as they are
SOURCES = MODULES + INTERPRETED
HERE = Path(__file__).resolve().parent

SETUP = """
from mypyc.build import mypycify
from setuptools import setup

setup(name={name!r}, ext_modules=mypycify({arguments!r}, opt_level="3"), packages=[])
"""


def build_folder() -> Path:
    """Where builds are kept: `REPLICAST_CACHE`, or the user's cache folder."""
    given = os.environ.get("REPLICAST_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicast"


@cache
def package_name(here: Path = HERE) -> str:
    """Named by the interpreter and the text of `sim/` and `sim/engine/`: the engine can import no more."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (*sorted(here.parent.glob("*.py")), *sorted(here.glob("*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"replicast_engine_{digest.hexdigest()[:16]}"


def engine_class() -> type[MacroEngine]:
    """The compiled engine if it was built, else the one in Python. `REPLICAST_COMPILED=0`: the latter."""
    if os.environ.get("REPLICAST_COMPILED") == "0":
        return MacroEngine
    return compiled_class() or MacroEngine


def compiled_class() -> type[MacroEngine] | None:
    """The compiled engine, None if it was not built or cannot be loaded here."""
    name = package_name()
    folder = build_folder() / name
    if not (folder / name / "macro.py").is_file():
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        found: type[MacroEngine] = importlib.import_module(f"{name}.macro").MacroEngine
    except ImportError:
        return None
    return found


def copy_sources(folder: Path, name: str) -> None:
    """The engine's files as package `name` in `folder`, naming each other there."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    for module in SOURCES:
        text = (HERE / f"{module}.py").read_text()
        for other in SOURCES:
            text = text.replace(f"replicast.sim.engine.{other} ", f"{name}.{other} ")
        (folder / name / f"{module}.py").write_text(text)


def build() -> Path:
    """Compile; the folder of the result."""
    name = package_name()
    target = build_folder() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        work = Path(scratch) / "build"
        copy_sources(work, name)
        arguments = [f"{name}/{module}.py" for module in MODULES] + ["--ignore-missing-imports"]
        (work / "setup.py").write_text(SETUP.format(name=name, arguments=arguments))
        types = Path(scratch) / "types"  # of `sim` alone: the package's root names all of the project
        (types / "replicast").mkdir(parents=True)
        (types / "replicast" / "__init__.py").touch()
        (types / "replicast" / "sim").symlink_to(HERE.parent)
        done = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=work,
            env={**os.environ, "MYPYPATH": str(types)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise InputError(
                f"the engine could not be compiled: {last[0] if last else 'no message'}",
                remedy="Install mypy, setuptools and a C compiler; without, the engine runs in Python.",
            )
        work.rename(target)
    return target


if __name__ == "__main__":
    print(build())
