"""Engine and fleet as machine code: optional, built once, three times as fast.

    make fast        (the extra `fast` and a C compiler)

mypyc compiles the very files that Python runs otherwise, under a package name that carries the digest
of their text and of all that they can import (`EngineConfig`, step times). So there is no second source,
and a build of other text is never picked up. Everything works without it; `simulate` takes it where it
is there, and gives the same bytes.

Classes of the build are not those of the same name in Python. So what goes in (sessions, configurations)
and what comes out (records, results) is of classes that are not compiled, and only `simulate` chooses.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from replicast.sim.engine.interface import Engine
from replicast.sim.errors import InputError
from replicast.sim.request import Request

if TYPE_CHECKING:
    from replicast.sim.engine.macro import MacroEngine

# Named below `replicast.sim`; of one another they import the compiled ones.
MODULES = (
    "request",
    "engine.stats",
    "engine.interface",
    "engine.free_queue",
    "engine.duplicates",
    "engine.content_tree",
    "engine.block_pool",
    "engine.kv_cache",
    "engine.request_state",
    "engine.decodes",
    "engine.step_run",
    "engine.scheduler",
    "engine.jump_effects",
    "engine.jumps",
    "engine.mixed_step",
    "engine.conversion",
    "engine.settle",
    "engine.macro",
    "engine.hybrid.block_pool",
    "engine.hybrid.spans",
    "engine.hybrid.groups.blocks",
    "engine.hybrid.groups.full",
    "engine.hybrid.groups.window",
    "engine.hybrid.groups.mamba",
    "engine.hybrid.groups.lookup",
    "engine.hybrid.state",
    "engine.hybrid.kv_cache",
    "engine.hybrid.chunks",
    "engine.hybrid.scheduler",
    "engine.hybrid.due",
    "engine.hybrid.step_list",
    "engine.hybrid.conversion",
    "engine.hybrid.pool_effects",
    "engine.hybrid.engine",
    "fleet.delays",
    "fleet.checks",
    "fleet.source",
    "fleet.flight",
    "fleet.events",
    "fleet.timeline",
    "fleet.replica",
    "fleet.routers",
    "fleet.prefix_router",
    "fleet.recorder",
    "fleet.dispatch",
    "fleet.clients",
    "fleet.assembly",
)
# Left in Python, and yet importing the compiled ones: subclasses of built-in types, what is rare.
INTERPRETED = ("engine.request_queue", "engine.factory", "fleet.lifecycle")
SOURCES = MODULES + INTERPRETED
FLAGS = ["--ignore-missing-imports", "--follow-imports=silent"]
ROOT = "replicast.sim"
SCRATCH = "unfinished_replicast_sim_"
SIM = Path(__file__).resolve().parents[1]

# mypyc multiplies as machine words what is below 2**30, and all else as objects. Ticks are larger.
MULTIPLY = """
#if __has_include("CPy.h")
#include "CPy.h"

static inline CPyTagged multiply_words(CPyTagged left, CPyTagged right) {
    Py_ssize_t product;
    if (CPyTagged_CheckShort(left) && CPyTagged_CheckShort(right)
        && !__builtin_mul_overflow((Py_ssize_t)left, CPyTagged_ShortAsSsize_t(right), &product))
        return (CPyTagged)product;
    return CPyTagged_Multiply_(left, right);
}
#define CPyTagged_Multiply multiply_words
#endif
"""

SETUP = """
from mypyc.build import mypycify
from setuptools import setup

extensions = mypycify({arguments!r}, opt_level="3")
extensions[0].extra_compile_args += ["-include", "multiply.h"]  # one list for all of them
setup(name={name!r}, ext_modules=extensions, packages=[])
"""


def build_folder() -> Path:
    """Where builds are kept: `REPLICAST_CACHE`, or the user's cache folder."""
    given = os.environ.get("REPLICAST_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicast"


@cache
def package_name(sim: Path = SIM) -> str:
    """Named by the interpreter and the text of `sim/`, its engine and its fleet: they can import no more."""
    digest = hashlib.sha256(sys.version.encode())
    texts = [*sim.glob("*.py"), *(sim / "engine").rglob("*.py"), *(sim / "fleet").rglob("*.py")]
    for path in sorted(texts):
        digest.update(str(path.relative_to(sim)).encode() + b"\0" + path.read_bytes())
    return f"replicast_sim_{digest.hexdigest()[:16]}"


def module(name: str) -> ModuleType:
    """A module of `SOURCES`, compiled if it was built and `REPLICAST_COMPILED` is not 0."""
    if os.environ.get("REPLICAST_COMPILED") != "0" and (found := compiled_module(name)) is not None:
        return found
    return importlib.import_module(f"{ROOT}.{name}")


def compiled_module(name: str) -> ModuleType | None:
    """A module of `SOURCES`, None if it was not built or cannot be loaded here."""
    package = package_name()
    folder = build_folder() / package
    if not (folder / package / file_of(name)).is_file():
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        return importlib.import_module(f"{package}.{name}")
    except ImportError:
        return None


def compiled_class() -> type[MacroEngine] | None:
    """The compiled engine, None if it was not built or cannot be loaded here."""
    found = compiled_module("engine.macro")
    return None if found is None else found.MacroEngine


def request_class(engine: Engine) -> type[Request]:
    """What `engine` takes: compiled ones have a class of their own."""
    for base in type(engine).__mro__:
        found: type[Request] | None = vars(sys.modules[base.__module__]).get("Request")
        if found is not None:
            return found
    return Request


def file_of(module: str) -> str:
    """Where a module's text lies below `sim/`, and below the package of the build."""
    return module.replace(".", "/") + ".py"


def copy_sources(folder: Path, name: str) -> None:
    """The files of `SOURCES` as package `name` in `folder`, naming each other there."""
    own = re.compile(rf"\b{re.escape(ROOT)}(?=\.(?:{'|'.join(map(re.escape, SOURCES))}) )")
    for source in SOURCES:
        path = folder / name / file_of(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.parents:
            if package == folder:
                break
            (package / "__init__.py").touch()
        path.write_text(own.sub(name, (SIM / file_of(source)).read_text()))


def build() -> Path:
    """Compile; the folder of the result.

    Builds take turns, under a lock that ends with its process. So what lies about when it is one's turn was
    left by a build that was killed.
    """
    import fcntl

    name = package_name()
    folder = build_folder()
    target = folder / name
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{SCRATCH}*"):
            # A compiler that outlived its build may still write there.
            shutil.rmtree(left, ignore_errors=True)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
                compile_in(Path(scratch), name).rename(target)
    return target


def compile_in(scratch: Path, name: str) -> Path:
    """The folder below `scratch` that holds the compiled package `name`."""
    work = scratch / "build"
    copy_sources(work, name)
    arguments = [f"{name}/{file_of(module)}" for module in MODULES] + FLAGS
    (work / "setup.py").write_text(SETUP.format(name=name, arguments=arguments))
    (work / "multiply.h").write_text(MULTIPLY)
    types = scratch / "types"  # of `sim` alone: the package's root names all of the project
    (types / "replicast").mkdir(parents=True)
    (types / "replicast" / "__init__.py").touch()
    (types / "replicast" / "sim").symlink_to(SIM)
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
    if package_name.__wrapped__() != name:
        raise InputError("the engine's text was changed meanwhile", remedy="Compile it again.")
    return work


if __name__ == "__main__":
    try:
        print(build())
    except (InputError, OSError) as error:
        sys.exit(f"Error: {error}")
