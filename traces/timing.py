"""When turns arrived, and how long after what they waited for they start.

A delay is `delay_s`, or `tool_s` plus `think_s`, or what the recorded arrivals leave of the time
after the last reply, or 0 and counted. Arrivals are as recorded but for two clocks that are known
to be coarse: whole seconds of kv-cache-tester traces are refined by reply and gap of the turn
before, and stamps on a wider grid are spread over its step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from replicast.traces.canonical import Header, Observed, TraceRequest
from replicast.traces.content import Node
from replicast.traces.report import ImportReport

_ROUNDED = re.compile(r"clock_rounded_(\d{1,3})s")
_LONGEST_S = 1e9
_NUMBER = (int, float)


def arrivals_of(
    tree: Sequence[Node], header: Header, jitter: np.random.Generator | None, report: ImportReport
) -> list[float | None]:
    """Arrivals of a session; one whose stamps lie on a grid starts anywhere in its grid step."""
    recorded = [node.request.arrival_s for node in tree]
    if (header.source or {}).get("format") == "weka_trace":
        return _refined(tree, recorded)
    step_s = _grid_step_s(tree[0].request)
    if step_s is None or jitter is None:
        return recorded
    moved_s = float(jitter.uniform(0.0, step_s))
    report.flags["arrival_spread"] += len(tree)
    return [None if stamp is None else stamp + moved_s for stamp in recorded]


def delay_of(
    node: Node, tree: Sequence[Node], arrivals: Sequence[float | None], report: ImportReport
) -> float:
    """The delay of a request that does not state it."""
    request = node.request
    if request.tool_s is not None or request.think_s is not None:
        return (request.tool_s or 0.0) + (request.think_s or 0.0)
    arrival_s = arrivals[node.index]
    if not node.waits_for:
        start_s = next((arrival for arrival in arrivals if arrival is not None), None)
        return 0.0 if arrival_s is None or start_s is None else max(0.0, arrival_s - start_s)
    ends = [
        arrival + e2e_s(tree[index].request)
        for index in node.waits_for
        if (arrival := arrivals[index]) is not None
    ]
    if arrival_s is not None and ends:
        return max(0.0, arrival_s - max(ends))
    report.flags["delay_unknown"] += 1
    return 0.0


def e2e_s(request: TraceRequest) -> float:
    """Recorded time from arrival to last token; 0 where it is not known."""
    obs = request.obs
    if obs is None:
        return 0.0
    value = obs.e2e_s if isinstance(obs, Observed) else obs.get("e2e_s")
    return float(value) if isinstance(value, _NUMBER) and 0 < value <= _LONGEST_S else 0.0


def _refined(tree: Sequence[Node], recorded: Sequence[float | None]) -> list[float | None]:
    out: list[float | None] = []
    for node, stamp in zip(tree, recorded, strict=True):
        request = node.request
        if stamp is not None and request.turn and request.delay_s is not None:
            before = node.context.nodes[request.turn - 1]
            start_s, reply_s = out[before.index], e2e_s(before.request)
            if start_s is not None and reply_s:
                stamp = min(max(start_s + reply_s + request.delay_s, stamp - 0.5), stamp + 0.5)
        out.append(stamp)
    return out


def _grid_step_s(request: TraceRequest) -> float | None:
    for flag in request.flags or ():
        found = _ROUNDED.fullmatch(flag)
        if found is not None:
            return float(found[1])
    return None
