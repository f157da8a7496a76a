"""`--model` where it names facts about a model: one that is known, or a config.json with its parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from replicast.commands.options import Number

if TYPE_CHECKING:
    from replicast.calibration.facts import Model

F = TypeVar("F", bound=Callable[..., Any])


def parameters_of_model(command: F) -> F:
    """What a config.json does not tell."""
    for option in (
        click.option(
            "--active", type=Number(above=0), help="With a config.json: parameters that a token uses."
        ),
        click.option(
            "--parameters", type=Number(above=0), help="With a config.json: parameters, such as 35e9."
        ),
    ):
        command = option(command)
    return command


def is_config(model: str | None) -> bool:
    """Whether `--model` names a file."""
    return model is not None and (model.endswith(".json") or Path(model).is_file())


def from_config(model: str, options: dict[str, Any]) -> Model:
    """Facts of a config.json."""
    from replicast.calibration.facts import model_from_config

    if options["parameters"] is None:
        raise click.UsageError("--parameters is needed beside a config.json, which does not tell them.")
    if (options["active"] or 0.0) > options["parameters"]:
        raise click.UsageError("--active is above --parameters: a token uses some or all of them.")
    return model_from_config(Path(model), options["parameters"], options["active"])


def facts_of_model(model: str, options: dict[str, Any]) -> Model:
    """Facts of a file or of a known model."""
    from replicast.calibration.facts import MODELS, find_model
    from replicast.sim.errors import InputError

    if is_config(model):
        return from_config(model, options)
    if options["parameters"] is not None or options["active"] is not None:
        raise click.UsageError(
            "--parameters and --active belong to a config.json; --model names a known model."
        )
    found = find_model(model)
    if found is None:
        raise InputError(
            f"no facts about a model {model!r}",
            where="--model",
            remedy=f"Give its config.json and --parameters, or one of {', '.join(MODELS)}.",
        )
    return found
