"""The JSON document of a replay, schema `replicast/replay/1`.

Every measured figure is an object `{"value", "low", "high", "n"}` whose key carries its unit;
`low` and `high` are null where no range is known. Counts and configuration are plain. What is not
known is null, never NaN. `timing` is the only part that differs between two equal runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.summary import ReplayRow

REPLAY_SCHEMA = "replicast/replay/1"

# Figures of a row that are known without error or asked for.
_PLAIN = {
    "replicas",
    "live_sessions",
    "requests_submitted",
    "requests_finished",
    "requests_unfinished",
    "requests_rejected",
    "requests_measured",
    "window_start_rule",
    "window_end_rule",
    "binds",
    "blocked_share",
}


def row_object(row: ReplayRow) -> dict[str, object]:
    """One row of the table as JSON holds it."""
    out: dict[str, object] = {}
    for field in fields(row):
        value = getattr(row, field.name)
        if field.name in _PLAIN or isinstance(value, Estimate):
            out[field.name] = plain(value)
        else:
            out[field.name] = plain(Estimate(value, None, None, row.requests_measured))
    return out


def plain(value: object) -> object:
    """Dataclasses as objects, tuples as arrays, NaN and infinity as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def dumps(document: Mapping[str, object]) -> str:
    """The document as text, two blanks of indentation, one line end at the end."""
    return json.dumps(plain(document), indent=2, allow_nan=False) + "\n"
