"""The canonical trace: what every format becomes before it becomes Sessions.

One header line, then session, request and `session_end` lines (`docs/trace-format.md`).
The classes here hold a line each, without loss: keys they do not know stay in `extra`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["root", "subagent", "compact", "helper"]
How = Literal["prompt_growth", "cache_read", "shared_prefix", "none"]


@dataclass(slots=True)
class Header:
    """First line: where the trace comes from and how its prefixes are named."""

    source: dict[str, Any] = field(default_factory=dict)
    time_unit: str = "s"
    t0: str | None = None
    block_size: int | None = None
    block_scope: Literal["global", "session_tree", "none"] = "none"
    partial_block: Literal["dropped", "own_id"] = "dropped"
    tokenizer: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TraceSession:
    """One linear context: a main agent or one sub-agent."""

    session: str
    kind: Kind = "root"
    parent: str | None = None
    spawn_after: str | None = None
    spawn_s: float | None = None
    agent_type: str | None = None
    user: str | None = None
    tenant: str | None = None
    repo: str | None = None
    shared_prefix: dict[str, Any] | None = None  # {"group": str, "tokens": int}
    status: str | None = None
    duration_s: float | None = None
    models: list[str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class BlockPrefix:
    """Identity by chain ids: the first `keep` ids of `base`, then runs `[first_id, n]`."""

    base: str | None
    keep: int
    add: list[list[int]]


@dataclass(slots=True)
class CountPrefix:
    """Identity by counts: the first `keep_tokens` tokens of `base` (default: the previous turn)."""

    base: str | None
    keep_tokens: int
    how: How = "prompt_growth"


@dataclass(slots=True)
class TraceRequest:
    """One LLM request of a linear context."""

    id: str
    session: str
    turn: int
    prompt_tokens: int
    output_tokens: int
    wait_for: list[str] | None = None  # None: the previous turn
    arrival_s: float | None = None
    delay_s: float | None = None
    tool_s: float | None = None
    think_s: float | None = None
    trigger: str = "unknown"
    reasoning_tokens: int | None = None
    model: str | None = None
    stream: bool | None = None
    priority: int | None = None
    prefix: BlockPrefix | CountPrefix | None = None
    obs: Mapping[str, Any] | None = None
    flags: list[str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SessionEnd:
    """Closes a root session (source totals)."""

    session_end: str
    extra: dict[str, Any] = field(default_factory=dict)


Line = TraceSession | TraceRequest | SessionEnd


@dataclass(slots=True)
class CanonicalTrace:
    """A header and its lines, in file order."""

    header: Header
    lines: list[Line]
