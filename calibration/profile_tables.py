"""The tables that a calibration adds to a profile, checked when it is read: a slip of the pen in one must not
come out as a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from replicast.sim.errors import InputError

REMEDY = "Calibrate again, or take the table out."
SIGNED = ("computed_slope",)  # all else is a positive quantity
WIDEST_SPREAD = 5.0  # of log-normal tokens
MOST = {"output_spread": WIDEST_SPREAD, "computed_spread": WIDEST_SPREAD, "failed_sessions": 1.0}
POSITIVE = ("load_s", "prompt_tokens", "output_tokens", "requests", "alive")
LARGEST = 1e15
WIDEST_SD = 10.0  # of a logarithm
ROUNDED = 1e-3  # of the largest variance: what four digits of a matrix may miss of being one


def check_tables(tables: Mapping[str, Mapping[str, Any]], steps: Sequence[str], where: str) -> None:
    """Raise `InputError` where a number is none, out of bounds, or tables do not fit each other.

    `steps` are the names of step-time coefficients, which a covariance may be of, too.
    """
    for name, value in tables.get("load", {}).items():
        high = MOST.get(name, LARGEST)
        low = -LARGEST if name in SIGNED else 0.0
        _number(value, f"load.{name}", where, low=low, high=high, open=name not in (*SIGNED, *MOST))
    if "load_given" in tables:
        names = tables["load_given"].get("latents")
        known = list(tables.get("load", {}))
        if not isinstance(names, list) or any(name not in known for name in names):
            _fail("load_given.latents", "must be a list of keys of [load]", where)
    for name, row in tables.get("levels", {}).items():
        _level(row, f"levels.{name}", where)
    for name, row in tables.get("intervals", {}).items():
        _interval(row, f"intervals.{name}", where)
    if "covariance" in tables:
        _covariance(tables["covariance"], {*steps, *tables.get("load", {})}, where)


def _level(row: object, name: str, where: str) -> None:
    table = _table(row, name, where)
    sessions = table.get("concurrency")
    if not isinstance(sessions, int) or isinstance(sessions, bool) or sessions < 1:
        _fail(f"{name}.concurrency", f"is {sessions!r}, must be a whole number of 1 or more", where)
    for key in POSITIVE:
        _number(table.get(key), f"{name}.{key}", where, open=True)
    _number(table.get("held_share"), f"{name}.held_share", where, high=1.0)
    for key in ("measured", "residuals"):
        for metric, value in _table(table.get(key), f"{name}.{key}", where).items():
            _number(value, f"{name}.{key}.{metric}", where, low=0.0 if key == "measured" else -LARGEST)


def _interval(row: object, name: str, where: str) -> None:
    table = _table(row, name, where)
    low, value, high = (
        _number(table.get(key), f"{name}.{key}", where, low=-LARGEST) for key in ("low", "value", "high")
    )
    if not low <= value <= high:
        _fail(name, f"is {value:g} outside {low:g} to {high:g}", where)
    if low < 0 and name.removeprefix("intervals.") not in SIGNED:
        _fail(f"{name}.low", f"is {low:g}, must not be negative", where)


def _covariance(table: Mapping[str, Any], known: set[str], where: str) -> None:
    names = table.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        _fail("covariance.names", "must be a list of parameters", where)
    if unknown := [name for name in names if name not in known]:
        _fail("covariance.names", f"has {unknown[0]}, which neither step_time nor load states", where)
    rows: Any = table.get("log_matrix")
    widths = [len(row) if isinstance(row, list) else -1 for row in rows] if isinstance(rows, list) else [-1]
    if widths != [len(names)] * len(names):
        _fail("covariance.log_matrix", f"must have {len(names)} rows and columns, one a name", where)
    for row in rows:
        for value in row:
            _number(value, "covariance.log_matrix", where, low=-LARGEST)
    for key in ("low", "high"):
        if key in table and (not isinstance(table[key], list) or len(table[key]) != len(names)):
            _fail(f"covariance.{key}", f"must have {len(names)} numbers, one a name", where)
    matrix = np.array(rows, dtype=float).reshape(len(names), len(names))
    if not len(names):
        return
    variances = np.diag(matrix)
    least = float(np.linalg.eigvalsh((matrix + matrix.T) / 2).min())
    if variances.min() < 0 or least < -ROUNDED * max(float(variances.max()), 1e-12):
        _fail("covariance.log_matrix", "is no covariance: some combination has a negative variance", where)
    if float(variances.max()) > WIDEST_SD**2:
        _fail("covariance.log_matrix", f"has a standard deviation above {WIDEST_SD:g} of a logarithm", where)


def _table(value: object, name: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _fail(name, "must be a table", where)
    return value


def _number(
    value: object, name: str, where: str, *, low: float = 0.0, high: float = LARGEST, open: bool = False
) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        _fail(name, f"is {value!r}, must be a finite number", where)
    if not low <= value <= high or (open and value == low):
        _fail(
            name,
            f"is {value:g}, must be {'above' if open else 'at least'} {low:g} and at most {high:g}",
            where,
        )
    return float(value)


def _fail(name: str, what: str, where: str) -> NoReturn:
    raise InputError(f"{name} {what}", where=where, remedy=REMEDY)
