"""`plan` with several profiles: which --price and which --box belong to which --profile.

Each belongs to the --profile before it; before all of them, to all. Where the order is not known (variables),
a single value is for all, and as many values as profiles are taken in order.
"""

from __future__ import annotations

import shlex
from typing import Any

import click
from replicast.commands import ASKED

NAMES = ("profile", "price", "box")


def kinds_of(options: dict[str, Any]) -> list[dict[str, Any]]:
    """One `{"profile": …, "price": …, "box": …}` a profile; what is not told is left out."""
    words = shlex.split(click.get_current_context().meta[ASKED])
    order = [name for word in words if (name := word.partition("=")[0].removeprefix("--")) in NAMES]
    if any(order.count(name) != len(options[name]) for name in NAMES):
        return [_numbered(options, i) for i in range(len(options["profile"]))]
    values = {name: iter(options[name]) for name in NAMES}
    common: dict[str, Any] = {}
    kinds: list[dict[str, Any]] = []
    told: set[str] = set()
    for name in order:
        value = next(values[name])
        if name == "profile":
            kinds.append({**common, "profile": value})
            told = set()
            continue
        if name in told:
            whose = f"--profile {kinds[-1]['profile']}" if kinds else "all profiles"
            raise click.UsageError(f"--{name} is given twice for {whose}.")
        told.add(name)
        (kinds[-1] if kinds else common)[name] = value
    return kinds


def checked(kinds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with profiles loaded, so that a wrong one is found before the first is planned for."""
    from replicast.calibration.profile import load_profile
    from replicast.sim.errors import InputError

    loaded = [{**kind, "profile": load_profile(kind["profile"])} for kind in kinds]
    names = [kind["profile"].name for kind in loaded]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"profile {name} is given twice", remedy="Rename one: `name` in its file.")
    return loaded


def _numbered(options: dict[str, Any], i: int) -> dict[str, Any]:
    kind = {"profile": options["profile"][i]}
    for name in ("price", "box"):
        given = options[name]
        if len(given) not in (0, 1, len(options["profile"])):
            raise click.UsageError(f"{len(given)} values of --{name} for {len(options['profile'])} profiles.")
        if given:
            kind[name] = given[0] if len(given) == 1 else given[i]
    return kind
