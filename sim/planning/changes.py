"""The grammar of `--set name=value`: what may be changed, absolutely or by a factor.

A value is absolute (`16384`), a change (`+50%`, `-20%`) or a factor (`x2`). A variant is a sequence of
such changes, in order; as text it is its own name, so runs of the same variant are known to be the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from replicast.sim.config import FIELDS
from replicast.sim.errors import InputError

ENGINE_NAMES = {field.name.replace("_", "-"): field for field in FIELDS}
PINNED = "prefix-cache-hit-rate"
# name -> (kind, meaning); kinds: number (absolute or relative), share (0 to 1), text.
OTHER_NAMES: dict[str, tuple[str, str]] = {
    PINNED: ("share", "hit rate of every request's first admission, pinned"),
    "kv-pool": ("number", "KV pool of a replica, in tokens"),
    "router": ("text", "how requests are spread over replicas"),
    "replicas": ("number", "replicas"),
    "compute-time": ("relative", "seconds of the compute side of a step (prefill)"),
    "memory-time": ("relative", "seconds of the memory side of a step (decode)"),
    "developers": ("number", "developers"),
    "active": ("share", "share of developers with a live session"),
    "sessions-each": ("number", "live sessions of an active developer"),
    "subagents": ("share", "share of the trace's sub-agents that is kept"),
    "tool-gap": ("relative", "time that tools take"),
    "human-gap": ("relative", "time that humans take"),
    "requests-per-hour": ("number", "requests of a live session in an hour without queueing"),
    "tools-prefix": ("number", "first tokens of every prompt that are the same for all; nothing else is"),
    "broken-prefix": ("share", "share of requests whose prompt begins with something of its own"),
    "output-tokens": ("relative", "tokens of every reply"),
}
LOAD_NAMES = (
    "developers",
    "active",
    "sessions-each",
    "subagents",
    "tool-gap",
    "human-gap",
    "requests-per-hour",
    "tools-prefix",
    "broken-prefix",
    "output-tokens",
)

_RELATIVE = re.compile(r"([+-][0-9.]+)%|x([0-9.eE+-]+)")


class Change(NamedTuple):
    """One `name=value`."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    def number(self, base: float | None = None) -> float:
        """The value; relative to `base` where it is a change or a factor."""
        found = _RELATIVE.fullmatch(self.value)
        try:
            if found is None:
                number = float(self.value)
            else:
                factor = 1 + float(found[1]) / 100 if found[1] else float(found[2])
                if base is None:
                    raise self.bad("is relative to a value that is not known")
                number = base * factor
        except ValueError:
            raise self.bad("is not a number, a change such as +50%, or a factor such as x2") from None
        if not math.isfinite(number):
            raise self.bad("is not finite")
        return number

    def bad(self, what: str, remedy: str | None = None) -> InputError:
        """An error about this change, which `--set` or `--vary` may have named."""
        return InputError(f"{self.name}={self.value} {what}", remedy=remedy)


Variant = tuple[Change, ...]


def parse_change(text: str, flag: str = "--set") -> Change:
    """One change, its name checked; errors say that `flag` named it.

    >>> parse_change("max-num-batched-tokens=16384"), parse_change("kv_pool = +50%").number(200.0)
    (Change(name='max-num-batched-tokens', value='16384'), 300.0)
    """
    name, equals, value = text.partition("=")
    name, value = name.strip().lower().removeprefix("--").replace("_", "-"), value.strip()
    if not equals or not value:
        raise InputError(f"{text!r} is not name=value", where=flag, remedy="Such as kv-pool=+50%.")
    if name not in ENGINE_NAMES and name not in OTHER_NAMES:
        from difflib import get_close_matches

        known = [*OTHER_NAMES, *ENGINE_NAMES]
        near = get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
        raise InputError(f"{name!r} cannot be set", where=flag, remedy=hint)
    return Change(name, value)


def parse_variant(texts: Sequence[str]) -> Variant:
    """Several changes, each name once."""
    changes = tuple(parse_change(text) for text in texts)
    names = [change.name for change in changes]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is set twice", where="--set")
    return changes


def parse_vary(text: str) -> tuple[Change, ...]:
    """`name=a,b,c`: one change a value, in the order given.

    >>> [str(change) for change in parse_vary("prefix-cache-hit-rate=0,0.14")]
    ['prefix-cache-hit-rate=0', 'prefix-cache-hit-rate=0.14']
    """
    first = parse_change(text, "--vary")
    values = [value.strip() for value in first.value.split(",") if value.strip()]
    if not values:
        raise first.bad("names no value")
    if len(values) != len(dict.fromkeys(values)):
        raise first.bad("names a value twice")
    return tuple(Change(first.name, value) for value in values)


def label(variant: Variant) -> str:
    """A variant as one word group."""
    return " ".join(map(str, variant)) or "as it is"
