"""What developers ask: sessions of turns whose prompts are runs of content.

A prompt is never a list of tokens or blocks. It is a tuple of *segments*, each naming
tokens `offset … offset + length` of an endless *stream*. Two prompts share a prefix
exactly as far as their leading segments name the same tokens of the same streams.
Streams are plain integers, minted once for a whole workload (`traces/content.py`).

A `Session` is one piece of a developer's work: the main agent and all its sub-agents.
Its turns form a graph: a turn starts when all turns it depends on are finished and
`delay_s` (tools and human) has passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

Seconds = float


class Segment(NamedTuple):
    """`length` tokens of content stream `stream`, from token `offset` on."""

    stream: int
    offset: int
    length: int


Content = tuple[Segment, ...]


def join(parts: Iterable[Segment]) -> Content:
    """Segments in order, empty ones dropped, neighbours that continue one stream merged.

    >>> join([Segment(1, 0, 5), Segment(1, 5, 3), Segment(2, 0, 0), Segment(1, 9, 1)])
    (Segment(stream=1, offset=0, length=8), Segment(stream=1, offset=9, length=1))
    """
    out: list[Segment] = []
    for part in parts:
        if part.length <= 0:
            continue
        if out:
            last = out[-1]
            if last.stream == part.stream and last.offset + last.length == part.offset:
                out[-1] = Segment(last.stream, last.offset, last.length + part.length)
                continue
        out.append(part)
    return tuple(out)


def cut(content: Content, start: int, stop: int) -> Content:
    """Tokens `start … stop` of `content`.

    >>> cut((Segment(1, 0, 5), Segment(2, 7, 5)), 3, 8)
    (Segment(stream=1, offset=3, length=2), Segment(stream=2, offset=7, length=3))
    """
    out: list[Segment] = []
    position = 0
    for segment in content:
        end = position + segment.length
        if end > start:
            low, high = max(start, position), min(stop, end)
            if low < high:
                out.append(Segment(segment.stream, segment.offset + low - position, high - low))
            if end >= stop:
                break
        position = end
    return tuple(out)


def num_tokens(content: Content) -> int:
    """Tokens in `content`."""
    return sum(segment.length for segment in content)


class Turn(NamedTuple):
    """One request of a session, as the client will send it.

    `output` names the content that the model generates: `num_output_tokens` tokens, of which
    the next turn may repeat a part in its prompt. `depends_on` are indices of earlier turns of
    the session; none means that the turn starts with the session. `delay_s` = tool and human
    time after the last of them; `tool_s` and `think_s` are its parts where known.
    `arrival_s` is the recorded arrival, used by open-loop replay only.
    """

    turn_id: str
    agent: str
    depends_on: tuple[int, ...]
    delay_s: Seconds
    prompt: Content
    output: Content
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_s: Seconds | None = None
    tool_s: Seconds | None = None
    think_s: Seconds | None = None
    trigger: str = "unknown"
    model: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """Turns of one root session and its sub-agents, every turn after those it depends on.

    `source` names the file (and line) it came from. `start_s` is its recorded start on the
    trace's global clock, or None where the trace has no global clock.
    """

    session_id: str
    turns: tuple[Turn, ...]
    start_s: Seconds | None = None
    source: str | None = None
