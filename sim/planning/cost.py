"""What tokens, tasks and developers cost at a fixed price per hour.

Two lenses on the same money (the published sweeps of agentic coding harnesses use both):

* blended, the headline: every processed token, prompt or output, costs the same,
  `$/s / (P + G)` with P prompt and G generated tokens per second;
* split: a prompt token costs `w` of an output token, `out = $/s / (G + w P)`, `in = w out`, w = 0.25.

P and G count whole prompts, cached part included, as vLLM's counters do. Price, P and G must belong
to the same thing: one replica, or the whole fleet. Excluded: failover, idle nights, cold starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from replicast.sim.errors import InputError
from replicast.sim.workload import Session

SPLIT_WEIGHT = 0.25
SECONDS_PER_HOUR = 3600.0
_MOST_DIGITS = 15  # of a task's tokens: exact as a float


class SplitPrice(NamedTuple):
    """$ per prompt token and per output token under the split lens."""

    prompt_usd_per_token: float
    output_usd_per_token: float


class Task(NamedTuple):
    """Tokens of one task: prompt tokens of all its requests, and output tokens."""

    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Both lenses at one working point; None where nothing was processed or nothing was asked."""

    usd_per_hour: float
    blended_usd_per_1m_tokens: float | None
    split_usd_per_1m_prompt_tokens: float | None
    split_usd_per_1m_output_tokens: float | None
    blended_usd_per_task: float | None
    split_usd_per_task: float | None


def blended_usd_per_token(
    usd_per_hour: float, prompt_tokens_per_s: float, output_tokens_per_s: float
) -> float:
    """$ per processed token.

    >>> f"{blended_usd_per_token(6.61, 12202.19, 145.33):.5e}"
    '1.48703e-07'
    """
    return _price(usd_per_hour) / SECONDS_PER_HOUR / (prompt_tokens_per_s + output_tokens_per_s)


def split_usd_per_token(
    usd_per_hour: float,
    prompt_tokens_per_s: float,
    output_tokens_per_s: float,
    weight: float = SPLIT_WEIGHT,
) -> SplitPrice:
    """$ per prompt and per output token, a prompt token at `weight` of an output token."""
    output = _price(usd_per_hour) / SECONDS_PER_HOUR / (output_tokens_per_s + weight * prompt_tokens_per_s)
    return SplitPrice(weight * output, output)


def blended_usd_per_task(usd_per_token: float, task: Task) -> float:
    """$ of a task under the blended lens."""
    return usd_per_token * (task.prompt_tokens + task.output_tokens)


def split_usd_per_task(price: SplitPrice, task: Task) -> float:
    """$ of a task under the split lens."""
    return price.prompt_usd_per_token * task.prompt_tokens + price.output_usd_per_token * task.output_tokens


def mean_session(sessions: Iterable[Session], max_model_len: int | None = None) -> Task | None:
    """The trace's own task: mean prompt and output tokens of a session; None without sessions.

    With `max_model_len` those requests are left out that a server refuses: they are never computed.
    """
    prompt = output = count = 0
    for session in sessions:
        count += 1
        for turn in session.turns:
            if max_model_len is None or turn.num_prompt_tokens < max_model_len:
                prompt += turn.num_prompt_tokens
                output += turn.num_output_tokens
    return Task(prompt / count, output / count) if count else None


def parse_task(text: str) -> Task:
    """`N:M` as prompt and output tokens of a task.

    >>> parse_task("1510243:30359")
    Task(prompt_tokens=1510243, output_tokens=30359)
    """
    parts = text.replace("_", "").split(":")
    if (
        len(parts) != 2
        or not all(p.isascii() and p.isdigit() and len(p) <= _MOST_DIGITS for p in parts)
        or int(parts[0]) + int(parts[1]) < 1
    ):
        raise InputError(
            f"task {text!r} is not PROMPT:OUTPUT tokens",
            remedy="Give two whole numbers, such as 1500000:30000.",
        )
    return Task(int(parts[0]), int(parts[1]))


def boxes(replicas: int, replicas_per_box: int = 1) -> int:
    """Boxes that hold `replicas`: a box begun is a box paid."""
    if replicas < 0 or replicas_per_box < 1:
        raise InputError(f"{replicas} replicas in boxes of {replicas_per_box} cannot be counted")
    return -(-replicas // replicas_per_box)


def fleet_usd_per_hour(replicas: int, usd_per_replica_hour: float, replicas_per_box: int = 1) -> float:
    """$ per hour of whole boxes, each `replicas_per_box` times a replica's price."""
    return boxes(replicas, replicas_per_box) * replicas_per_box * _price(usd_per_replica_hour)


def usd_per_developer_hour(usd_per_hour: float, developers: float) -> float:
    """$ per hour and developer."""
    if developers <= 0:
        raise InputError(f"developers is {developers}, must be more than 0")
    return _price(usd_per_hour) / developers


def cost(
    usd_per_hour: float,
    prompt_tokens_per_s: float,
    output_tokens_per_s: float,
    task: Task | None = None,
    weight: float = SPLIT_WEIGHT,
) -> Cost:
    """Both lenses, per million tokens and per task."""
    if prompt_tokens_per_s + output_tokens_per_s <= 0:
        return Cost(_price(usd_per_hour), None, None, None, None, None)
    blended = blended_usd_per_token(usd_per_hour, prompt_tokens_per_s, output_tokens_per_s)
    split = split_usd_per_token(usd_per_hour, prompt_tokens_per_s, output_tokens_per_s, weight)
    return Cost(
        usd_per_hour,
        1e6 * blended,
        1e6 * split.prompt_usd_per_token,
        1e6 * split.output_usd_per_token,
        blended_usd_per_task(blended, task) if task else None,
        split_usd_per_task(split, task) if task else None,
    )


def _price(usd_per_hour: float) -> float:
    if not 0 <= usd_per_hour < float("inf"):
        raise InputError(f"price is {usd_per_hour} $/h, must be 0 or more")
    return usd_per_hour
