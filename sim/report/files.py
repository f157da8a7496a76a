"""Written files: whole or not at all, and a folder that is known to be usable before work starts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from replicast.sim.errors import InputError

REMEDY = "Name a folder that can be written to: --out DIR"


def check_folder(folder: Path) -> None:
    """Raise if files cannot be written to `folder`; what it had to create is removed again.

    Permission bits do not tell (root, read-only mounts), so a file is really written.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, probe = tempfile.mkstemp(dir=folder, prefix=".replicast-")
        os.close(descriptor)
        Path(probe).unlink()
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"cannot write here: {reason}", where=str(folder), remedy=REMEDY) from error
    finally:
        for path in created:
            try:
                path.rmdir()
            except OSError:
                break


def check_target(path: Path, inputs: Iterable[Path], mark: str | None = None) -> None:
    """Raise if writing to `path` would replace an input, or a file that is there and lacks `mark`.

    `mark` is a text that any file of the kind to be written holds.
    """
    if any(path.exists() and other.exists() and path.samefile(other) for other in inputs):
        raise InputError(
            "is an input of this command", where=str(path), remedy="Name another file to write to."
        )
    if mark is None or not path.is_file():
        return
    try:
        there = path.read_bytes()
    except OSError:
        return  # the write itself says what is wrong
    if there.strip() and mark.encode() not in there:
        raise InputError(
            "is there already, and is no such file as would be written",
            where=str(path),
            remedy="Name another file, or remove this one.",
        )


def write_atomically(path: Path, write: Callable[[Path], None], remedy: str = REMEDY) -> None:
    """Call `write` with a temporary name beside `path`, then rename; a failure leaves nothing behind.

    Links stay links. What is no file (a device, a pipe) is written to, never replaced.
    """
    try:
        if path.exists() and not path.is_file():
            write(path)
            return
        path = Path(os.path.realpath(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        # The suffix stays last: writers choose a format by it.
        temporary = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
        try:
            write(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except BrokenPipeError:
        raise  # who read from it has gone: no fault
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", where=str(path), remedy=remedy
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with the line ends it has, atomically; undecodable file names are escaped."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(text.encode(errors="backslashreplace"))

    write_atomically(path, write)
