"""Bytes in and out: plain or gzip by content, damage named, written files whole or absent."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from replicast.sim.errors import InputError
from replicast.sim.report.files import write_atomically

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PIECE = 2**17


class FileBytes(NamedTuple):
    """A file's content, unpacked; `damaged` where its gzip stream broke off and was salvaged."""

    path: Path
    data: bytes
    sha256: str
    damaged: bool

    @property
    def name(self) -> str:
        """The file's name; bytes of it that are no UTF-8 are escaped, so that it can be written."""
        return encodable(self.path.name)


def encodable(name: str) -> str:
    """A file's name as text that UTF-8 can hold."""
    return name.encode(errors="backslashreplace").decode()


def read_file(path: Path, *, salvage: bool = False) -> FileBytes:
    """The file, unpacked where it is gzip; `salvage` keeps what a broken gzip stream still gives."""
    try:
        if path.is_fifo() and not str(path).startswith(("/dev/", "/proc/")):  # the shell's <(…) is fine
            raise OSError(0, "it is a named pipe, and who waits for it may wait for ever")
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            where=str(path),
            remedy="Check the path and its permissions.",
        ) from error
    digest = hashlib.sha256(raw).hexdigest()
    damaged = False
    if raw.startswith(GZIP_MAGIC):
        try:
            raw = _unpacked(raw)
        except (EOFError, OSError, zlib.error) as error:
            if not salvage:
                line = _salvage(raw).count(b"\n") + 1
                raise InputError(
                    f"the gzip stream is truncated or damaged in line {line}",
                    where=f"{path}:{line}",
                    remedy="Fetch the file again, or pass --skip-bad-rows to use the rows before the damage.",
                ) from error
            raw, damaged = _salvage(raw), True
    return FileBytes(path, raw.removeprefix(BYTE_ORDER_MARK), digest, damaged)


def _unpacked(raw: bytes) -> bytes:
    """As `gzip.decompress`, which needs twice the memory."""
    out = io.BytesIO()
    with gzip.open(io.BytesIO(raw)) as file:
        shutil.copyfileobj(file, out, _PIECE)
    return out.getvalue()


def _salvage(raw: bytes) -> bytes:
    """The bytes of a broken gzip stream up to the damage."""
    out: list[bytes] = []
    unpacker = zlib.decompressobj(wbits=31)
    for start in range(0, len(raw), 4096):
        try:
            out.append(unpacker.decompress(raw[start : start + 4096]))
        except zlib.error:
            break
    return b"".join(out)


def numbered_lines(file: FileBytes) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
    for number, line in enumerate(io.BytesIO(file.data), 1):
        if not line.isspace():
            yield number, line


def write_file(path: Path, data: bytes) -> None:
    """Write `data`, whole or not at all; gzip with a fixed time stamp where `path` ends in `.gz`."""
    if path.suffix == ".gz":
        data = gzip.compress(data, compresslevel=6, mtime=0)

    def write(to: Path) -> None:
        to.write_bytes(data)

    write_atomically(path, write, remedy="Choose another output path.")
