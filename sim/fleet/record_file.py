"""Records on disk: written in batches while a run goes on, read column by column.

A run of ten million requests has more than a gigabyte of records. Here at most one batch of them is in
memory, and reading takes that of one column.

Format: one line of JSON (`MAGIC`, names and numbers of rows of a batch), then batches; a batch holds its
columns one after the other, 8 bytes a value, in the machine's byte order; the last batch may be short. Rows
come in the order of their ends; `request_id` counts arrivals and puts them in order.
The file has its name only once it is complete: before, `.part` is added.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from replicast.sim.errors import InputError
from replicast.sim.fleet.records import INTS, TIMES, Records, Rows

MAGIC = "replicast/records/1"
FLUSH_ROWS = 65_536
_NAMES = INTS + TIMES
_VALUE = 8
_ROW = _VALUE * len(_NAMES)
_INT_NAMES = frozenset(INTS)


class RecordWriter:
    """Takes batches of `batch_rows` rows; `close` makes the file appear, `discard` leaves nothing behind."""

    def __init__(self, path: Path) -> None:
        self.batch_rows = FLUSH_ROWS
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._part.open("wb")
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror or error}",
                where=str(path),
                remedy="Choose another path for the records.",
            ) from error
        self._file.write(_head().encode())

    def write(self, rows: Rows) -> None:
        """Add a batch; only the last may be short."""
        for name in _NAMES:
            rows[name].tofile(self._file)

    def close(self) -> None:
        """All rows are written."""
        self._file.close()
        self._part.replace(self._path)

    def discard(self) -> None:
        """The run failed."""
        self._file.close()
        self._part.unlink(missing_ok=True)


class RecordFile(Mapping[str, NDArray[Any]]):
    """The columns of a file in order of arrival; each look reads one column anew."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        try:
            with self._path.open("rb") as file:
                head = file.readline(4096).decode(errors="replace")
                self._start = file.tell()
                size = file.seek(0, os.SEEK_END) - self._start
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
        if head != _head() or size % _ROW:
            raise InputError(
                "is no file of records, or of another version or machine, or cut off", where=str(path)
            )
        self.num_requests = size // _ROW

    def __getitem__(self, name: str) -> NDArray[Any]:
        column = np.empty(self.num_requests, dtype=_dtype(name))
        with self._path.open("rb") as file:
            for ids, values in self._batches(file, name):
                column[ids] = values
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    def _batches(self, file: BinaryIO, name: str) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        place = _NAMES.index(name)
        for first in range(0, self.num_requests, FLUSH_ROWS):
            rows = min(FLUSH_ROWS, self.num_requests - first)
            batch = self._start + first * _ROW
            file.seek(batch)
            ids = np.fromfile(file, np.int64, rows)
            file.seek(batch + place * rows * _VALUE)
            yield ids, np.fromfile(file, _dtype(name), rows)


def read_records(path: Path | str) -> Records:
    """The records of a file, the whole run measured; a column is read when it is asked for."""
    file = RecordFile(path)
    return Records((), file, file.num_requests, (0.0, float("inf")))


def _dtype(name: str) -> type[np.int64] | type[np.float64]:
    return np.int64 if name in _INT_NAMES else np.float64


def _head() -> str:
    head = {"format": MAGIC, "columns": _NAMES, "batch_rows": FLUSH_ROWS, "byte_order": sys.byteorder}
    return json.dumps(head) + "\n"
