"""Which format a file has, by its content; names and suffixes decide nothing."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from replicast.traces.files import FileBytes, numbered_lines

Format = Literal["canonical", "weka", "claude-code", "mooncake"]
FORMATS: tuple[Format, ...] = ("canonical", "weka", "claude-code", "mooncake")

_LINES_LOOKED_AT = 50
_CLAUDE_KINDS = frozenset(
    {
        "user", "assistant", "system", "progress", "attachment", "ai-title", "mode", "summary",
        "queue-operation", "file-history-snapshot",
    }
)  # fmt: skip
_KEYS: tuple[tuple[bytes, Format], ...] = (
    (b'"canon"', "canonical"),
    (b'"hash_id_scope"', "weka"),
    (b'"requests"', "weka"),
    (b'"input_length"', "mooncake"),
)
_decode = msgspec.json.Decoder().decode


def detect(file: FileBytes) -> Format | None:
    """The format of `file`, or None where no reader knows it."""
    first = b""
    for looked, (_, text) in enumerate(numbered_lines(file)):
        first = first or text
        row = _object(text) if looked < _LINES_LOOKED_AT else None
        found = _of_row(row) if row is not None else None
        if found is not None:
            return found
        if looked == _LINES_LOOKED_AT or (looked == 0 and text.strip() in (b"{", b"[")):
            break
    row = _object(file.data)  # perhaps one object over many lines
    if row is not None:
        return _of_row(row)
    if first.lstrip().startswith(b"{"):  # broken, but its reader can say where
        return next((name for key, name in _KEYS if key in file.data[:100_000]), None)
    return None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        row = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _of_row(row: dict[str, Any]) -> Format | None:
    if "canon" in row or ("session" in row and ("turn" in row or "kind" in row)):
        return "canonical"
    if "requests" in row and ("hash_id_scope" in row or "block_size" in row):
        return "weka"
    if "input_length" in row and ("timestamp" in row or "hash_ids" in row or "delay" in row):
        return "mooncake"
    if row.get("type") in _CLAUDE_KINDS and ("sessionId" in row or "message" in row or "uuid" in row):
        return "claude-code"
    if row.get("type") in ("file-history-snapshot", "summary") and ("messageId" in row or "leafUuid" in row):
        return "claude-code"
    return None
