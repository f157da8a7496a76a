"""The canonical trace: what every format becomes before it becomes Sessions.

One header line, then session, request and `session_end` lines (`docs/trace-format.md`).
The classes here hold a line each, without loss: keys they do not know stay in `extra`, and so do
known keys that the file sets to null. A known key that is absent is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

Kind = Literal["root", "subagent", "compact", "helper"]
How = Literal["prompt_growth", "cache_read", "shared_prefix", "none"]
BlockScope = Literal["global", "session_tree", "none"]
PartialBlock = Literal["dropped", "own_id"]


@dataclass(slots=True)
class Header:
    """First line: where the trace comes from and how its prefixes are named.

    Without `block_scope` ids name nothing ("none"); without `partial_block` a partial last block
    has no id ("dropped").
    """

    source: dict[str, Any] | None = None
    time_unit: str | None = "s"
    t0: str | None = None
    block_size: int | None = None
    block_scope: BlockScope | None = None
    partial_block: PartialBlock | None = None
    tokenizer: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def has_global_clock(self) -> bool:
        """Whether `arrival_s` counts from one moment in all sessions."""
        return self.t0 is not None or self.block_scope == "global"


@dataclass(slots=True)
class TraceSession:
    """One linear context: a main agent or one sub-agent."""

    session: str
    kind: Kind | None = None  # None: root without a parent, else subagent
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


class BlockPrefix(Struct, gc=False):
    """Identity by chain ids: the first `keep` ids of `base`, then runs `[first_id, n]`.

    `base` None means the previous turn of the session.
    """

    base: str | None
    keep: int
    add: list[tuple[int, int]]
    extra: dict[str, Any] | None = None


class CountPrefix(Struct, gc=False):
    """Identity by counts: the first `keep_tokens` tokens of `base` (default: the previous turn)."""

    base: str | None
    keep_tokens: int
    how: How | None = None
    extra: dict[str, Any] | None = None


class Observed(Struct, gc=False):
    """What a simulation wants to know of `obs`; `e2e_s` is no number where the file is wrong."""

    e2e_s: object = None


class TraceRequest(Struct, gc=False):
    """One LLM request of a linear context; of `obs` all is kept where all of the file is."""

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
    trigger: str | None = None
    reasoning_tokens: int | None = None
    model: str | None = None
    stream: bool | None = None
    priority: int | None = None
    prefix: BlockPrefix | CountPrefix | None = None
    obs: Observed | Mapping[str, Any] | None = None
    flags: list[str] | None = None
    extra: dict[str, Any] | None = None


@dataclass(slots=True)
class SessionEnd:
    """Closes a root session (source totals)."""

    session_end: str
    extra: dict[str, Any] = field(default_factory=dict)


Line = TraceSession | TraceRequest | SessionEnd


@dataclass(slots=True)
class CanonicalTrace:
    """A header and its lines, in file order; `places` says where each came from, once it was read."""

    header: Header
    lines: list[Line]
    places: list[str] = field(default_factory=list, compare=False, repr=False)
