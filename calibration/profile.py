"""A profile: what one server was told, how long its steps take, and where the numbers come from.

A profile is a flat TOML file, written by hand or by calibration, with three kinds kept apart: what is
*given* (`[engine]`, in vLLM's flag names), what is *fitted or assumed* (`[step_time]`, `[front_end]`),
and what was *seen* (`[ranges]`). Optional tables `[intervals]`, `[load]`, `[load_given]`, `[levels]`,
`[covariance]` and `[validation]` are carried along; `learned.py` reads them. `docs/profiles.md` describes
every key.
"""

from __future__ import annotations

import os
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, cast, get_args

from replicast.calibration.profile_tables import check_tables
from replicast.sim.config import FIELDS, EngineArgs
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd
from replicast.sim.report.files import write_text

Status = Literal["provisional", "calibrated", "uncalibrated"]
Table = dict[str, Any]

SCHEMA = "replicast/profile/1"
SHIPPED = Path(__file__).parent / "profiles"
OPTIONAL_TABLES = ("intervals", "load", "load_given", "levels", "covariance", "validation")
_LARGEST = 1e15
_WIDTH = 100
_TOP_OF_ENGINE = ("vllm_version", "device", "device_memory_gib")
_ENGINE_FIELDS = {f.name: f for f in FIELDS if f.name not in _TOP_OF_ENGINE}


class StepSeconds(NamedTuple):
    """Step-time coefficients in seconds; `StepTime` has the formula."""

    memory_fixed_s: float
    memory_per_kv_token_s: float = 0.0
    memory_per_seq_s: float = 0.0
    compute_fixed_s: float = 0.0
    compute_per_token_s: float = 0.0
    compute_per_pair_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """One server. `gpu` and `gpu_memory_gib` are one device; `engine` holds the flags given to vLLM.

    `ranges` are (low, high) of what the figures were taken from, by quantity. `tables` holds the
    optional tables as read.
    """

    name: str
    status: Status
    source: str
    date: str
    model: str
    gpu: str
    gpu_memory_gib: float
    tensor_parallel_size: int
    vllm_version: str
    engine: EngineArgs
    step_time: StepSeconds
    front_end: FrontEnd
    price_usd_per_hour: float | None = None
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tables: dict[str, Table] = field(default_factory=dict)

    def to_step_time(self) -> StepTime:
        """Coefficients as the engine takes them."""
        return StepTime.from_seconds(**self.step_time._asdict())

    def engine_args(self) -> EngineArgs:
        """Flags, device and version: the second layer of `resolve`."""
        return replace(
            self.engine,
            vllm_version=self.vllm_version,
            device=self.gpu,
            device_memory_gib=self.gpu_memory_gib,
        )


def shipped_profiles() -> tuple[str, ...]:
    """Names of the profiles that come with replicast."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def shipped_file(name: str) -> Path | None:
    """Where the shipped profile of this name lies, None if there is none; `-tp1` can be left off."""
    names = shipped_profiles()
    return next((SHIPPED / f"{known}.toml" for known in (name, f"{name}-tp1") if known in names), None)


def load_profile(name_or_path: str | os.PathLike[str]) -> Profile:
    """A shipped profile by name, of which `-tp1` can be left off, or one from a file."""
    text = os.fspath(name_or_path)
    path = shipped_file(text) or Path(text)
    if not path.is_file():
        what = f"profile {text!r} is neither a shipped profile nor a file"
        shipped = ", ".join(shipped_profiles())
        raise InputError(what, remedy=f"Shipped: {shipped}. Or give the path of a TOML file.")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML: {error}", where=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)
        ) from error
    return parse_profile(document, str(path))


def parse_profile(document: Mapping[str, Any], where: str) -> Profile:
    """A profile from a TOML document; `where` names the file in errors."""
    top = _Reader(document, where)
    schema = top.text("schema")
    if schema != SCHEMA:
        top.fail("schema", f"is {schema!r}, this version reads {SCHEMA!r}")
    status = top.text("status")
    if status not in get_args(Status):
        top.fail("status", f"is {status!r}, must be one of {', '.join(get_args(Status))}")
    steps = top.table("step_time")
    fixed = steps.seconds("memory_fixed_s")
    if fixed == 0:
        steps.fail("memory_fixed_s", "is 0: a step takes time")
    others = {name: steps.seconds(name, 0.0) for name in StepSeconds._fields[1:]}
    front = top.table("front_end", required=False)
    times = {name: front.seconds(name, 0.0) for name in ("fixed_s", "per_prompt_token_s", "delivery_s")}
    profile = Profile(
        name=top.text("name"),
        status=cast(Status, status),
        source=top.text("source"),
        date=top.text("date"),
        model=top.text("model"),
        gpu=top.text("gpu"),
        gpu_memory_gib=top.seconds("gpu_memory_gib"),
        tensor_parallel_size=top.count("tensor_parallel_size"),
        vllm_version=top.text("vllm_version"),
        engine=_engine(top.table("engine")),
        step_time=StepSeconds(fixed, **others),
        front_end=FrontEnd(**times),
        price_usd_per_hour=top.seconds("price_usd_per_hour") if "price_usd_per_hour" in document else None,
        ranges=_ranges(top.table("ranges", required=False)),
        notes=top.texts("notes"),
        tables={name: top.table(name).take_all() for name in OPTIONAL_TABLES if name in document},
    )
    for reader in (top, steps, front):
        reader.finish()
    check_tables(profile.tables, StepSeconds._fields, where)
    return profile


class _Reader:
    """One table of a profile: typed reads, and an error for keys nobody asked for."""

    def __init__(self, table: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._table, self._where, self._prefix = table, where, prefix
        self._seen: set[str] = set()

    def fail(self, key: str, what: str) -> NoReturn:
        raise InputError(f"{self._prefix}{key} {what}", where=self._where)

    def raw(self, key: str) -> Any:
        self._seen.add(key)
        if key not in self._table:
            self.fail(key, "is missing")
        return self._table[key]

    def text(self, key: str) -> str:
        value = self.raw(key)
        if not isinstance(value, str) or not value.strip():
            self.fail(key, f"is {value!r}, must be text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        if key not in self._table:
            return ()
        value = self.raw(key)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.fail(key, "must be a list of texts")
        return tuple(value)

    def count(self, key: str) -> int:
        value = self.raw(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.fail(key, f"is {value!r}, must be a whole number of 1 or more")
        return value

    def seconds(self, key: str, default: float | None = None) -> float:
        """A number that is finite and not negative, whatever its unit."""
        if default is not None and key not in self._table:
            return default
        value = self.raw(key)
        if not _is_number(value) or not 0 <= value <= _LARGEST:
            self.fail(key, f"is {value!r}, must be a finite number of 0 or more")
        return float(value)

    def table(self, key: str, required: bool = True) -> _Reader:
        value = self.raw(key) if required or key in self._table else {}
        if not isinstance(value, dict):
            self.fail(key, "must be a table")
        return _Reader(value, self._where, f"{self._prefix}{key}.")

    def take_all(self) -> Table:
        self._seen.update(self._table)
        return dict(self._table)

    def finish(self) -> None:
        for key in self._table:
            if key not in self._seen:
                self.fail(key, "is not a key of a profile")


def _engine(reader: _Reader) -> EngineArgs:
    values: Table = {}
    for name, value in reader.take_all().items():
        if name not in _ENGINE_FIELDS:
            reader.fail(name, "is not a key of a profile; it takes vLLM's flag names")
        kind, choices = _ENGINE_FIELDS[name].kind, _ENGINE_FIELDS[name].choices
        whole = isinstance(value, int) and not isinstance(value, bool)
        right = {
            "int": whole,
            "float": _is_number(value),
            "bool": isinstance(value, bool),
            "str": isinstance(value, str),
            "ints": isinstance(value, list) and all(type(v) is int for v in value),
        }[kind]
        if not right or (choices and value not in choices):
            expected = (
                f"one of {', '.join(choices)}" if choices else {"ints": "a list of int"}.get(kind, kind)
            )
            reader.fail(name, f"is {value!r}, must be {expected}")
        values[name] = tuple(value) if kind == "ints" else value
    return EngineArgs(**values)


def _ranges(reader: _Reader) -> dict[str, tuple[float, float]]:
    out: dict[str, tuple[float, float]] = {}
    for name, value in reader.take_all().items():
        if not isinstance(value, list) or len(value) != 2 or not all(map(_is_number, value)):
            reader.fail(name, "must be [low, high]")
        if not value[0] <= value[1]:
            reader.fail(name, f"is {value!r}, low must not exceed high")
        out[name] = (value[0], value[1])
    return out


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def profile_text(profile: Profile, comments: Mapping[str, str] | None = None) -> str:
    """The TOML of a profile, always the same bytes. `comments` go above the key they are named for
    (`step_time.memory_fixed_s`, `engine`); "" is the head of the file.
    """
    said = comments or {}
    p = profile
    top: Table = {
        "schema": SCHEMA,
        "name": p.name,
        "status": p.status,
        "source": p.source,
        "date": p.date,
        "model": p.model,
        "gpu": p.gpu,
        "gpu_memory_gib": p.gpu_memory_gib,
        "tensor_parallel_size": p.tensor_parallel_size,
        "vllm_version": p.vllm_version,
        "price_usd_per_hour": p.price_usd_per_hour,
        "notes": list(p.notes) or None,
    }
    front = p.front_end
    tables: dict[str, Table] = {
        "engine": {name: getattr(p.engine, name) for name in _ENGINE_FIELDS},
        "step_time": p.step_time._asdict(),
        "front_end": {
            "fixed_s": front.fixed_s,
            "per_prompt_token_s": front.per_prompt_token_s,
            "delivery_s": front.delivery_s,
        },
        "ranges": dict(p.ranges),
        **p.tables,
    }
    lines = _comment(said.get("")) + ([""] if said.get("") else [])
    lines += _pairs(top, said, "")
    for name, table in tables.items():
        if any(value is not None for value in table.values()):
            lines += ["", *_comment(said.get(name)), f"[{name}]", *_pairs(table, said, f"{name}.")]
    return "\n".join(lines) + "\n"


def write_profile(profile: Profile, path: Path, comments: Mapping[str, str] | None = None) -> None:
    """Write a profile whole or not at all."""
    if path.is_dir():
        raise InputError("is a folder", where=str(path), remedy="Name a file: --out server.toml")
    write_text(path, profile_text(profile, comments))


def _pairs(table: Table, comments: Mapping[str, str], prefix: str) -> list[str]:
    lines: list[str] = []
    for key, value in table.items():
        if value is not None:
            lines += [*_comment(comments.get(prefix + key)), f"{_key(key)} = {_value(value)}"]
    return lines


def _comment(text: str | None) -> list[str]:
    lines = [part for line in (text or "").splitlines() for part in textwrap.wrap(line, _WIDTH) or [""]]
    return [f"# {line}".rstrip() for line in lines]


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, (list, tuple)):
        items = [_value(item) for item in value]
        short = sum(map(len, items)) < _WIDTH
        return f"[{', '.join(items)}]" if short else "[\n" + "".join(f"    {i},\n" for i in items) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    return repr(value)
