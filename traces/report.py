"""What happened to each row of an import: nothing is dropped in silence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file read: its path as given, sha256, and rows read and dropped."""

    path: str
    sha256: str
    rows: int
    dropped: int


@dataclass(slots=True)
class ImportReport:
    """Counts of one import. `rows_read = rows_emitted + sum(dropped.values())` always holds."""

    format: str
    inputs: list[InputFile] = field(default_factory=list)
    rows_read: int = 0
    rows_emitted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    estimated_outputs: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    block_size: int | None = None
