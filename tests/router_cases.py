"""What routers are asked in tests."""

from __future__ import annotations

from typing import NamedTuple

from replicast.sim.workload import Content


class Asked(NamedTuple):
    """All that a router may know of a request, and no more."""

    prompt: Content
    num_prompt_tokens: int
    session_key: int
    priority: int = 0
