"""Planted faults of the fast engine: each is one small change, and the random cases must catch each."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """`old` becomes `new` in `module`; both engines must then differ somewhere."""

    what: str
    module: str
    old: str
    new: str


MUTATIONS = (
    Mutation(
        "queue order: cached blocks go to the front of the evictable ones",
        "free_queue",
        "        end = self.end\n        last = end.prev\n",
        "        last = self.end\n        end = last.next\n",
    ),
    Mutation(
        "free order: what a request shares goes to the queue before its own end",
        "kv_cache",
        "        while index > old:\n            node = nodes[index]\n",
        "        for index in range(old + 1, index + 1):\n            node = nodes[index]\n",
    ),
    Mutation(
        "publishing time: a decode's block counts one token too early",
        "mixed_step",
        "self.decodes.add(state, request.num_prompt_tokens + outputs, after, leave)",
        "self.decodes.add(state, request.num_prompt_tokens + outputs + 1, after, leave)",
    ),
    Mutation(
        "look-up: the last token may be hit",
        "kv_cache",
        "limit = (num_tokens - 1) // self.block_size",
        "limit = num_tokens // self.block_size",
    ),
    Mutation(
        "crossing of the step-time sides one step late",
        "step_run",
        "gap // (second_slope - slope) + 1,",
        "gap // (second_slope - slope) + 2,",
    ),
    Mutation(
        "jump: one step too far, a request ends late",
        "mixed_step",
        "leave = after + state.num_outputs - outputs - 1",
        "leave = after + state.num_outputs - outputs",
    ),
    Mutation(
        "jump: the last chunk of a prompt is taken for a full one",
        "jumps",
        "k = (left - 1) // chunk",
        "k = left // chunk",
    ),
    Mutation(
        "block crossings off by one",
        "decodes",
        "at = clock % block_size\n        if k == 1:",
        "at = (clock + 1) % block_size\n        if k == 1:",
    ),
    Mutation(
        "cut: an arrival enters one boundary late",
        "step_run",
        "    return i\n",
        "    return i + 1\n",
    ),
    Mutation(
        "asynchronous: a seat is free as soon as the last token is in flight",
        "jump_effects",
        "if self.is_async and not state.runs_past_eos:",
        "if False and not state.runs_past_eos:",
    ),
    Mutation(
        "priority: an arrival that leads does not cut the jump",
        "request_queue",
        "return not self or _urgency_of(request) > _urgency(self[-1])",
        "return not self",
    ),
    Mutation(
        "idle hits are counted as free",
        "kv_cache",
        "if spare < hits and spare < self.num_idle(held, index, hits):",
        "if spare < 0:",
    ),
    Mutation(
        "duplicates: who made a later copy lets go of the first",
        "duplicates",
        "copy = held.copies.get((node, block), copy)",
        "pass",
    ),
    Mutation(
        "a blocked head under 0.25 is counted once a jump",
        "jump_effects",
        "self._blocked_hits, k - 1)",
        "self._blocked_hits, 0)",
    ),
    Mutation(
        "windows: copies of an entry's blocks are not looked for",
        "hybrid/spans",
        "if self.later and self._has_later(entry):",
        "if False:",
    ),
    Mutation(
        "windows: what is half taken and published again is not told apart",
        "hybrid/spans",
        "if half_taken is not None and half_taken.meets(node, low, high):",
        "if False:",
    ),
    Mutation(
        "states: one is dropped a step late",
        "hybrid/due",
        "drop_step = drops + lag - base",
        "drop_step = drops + lag - base + 1",
    ),
    Mutation(
        "rows: of blocks let go of at once, the first place goes first",
        "hybrid/block_pool",
        "for row in reversed(rows)]",
        "for row in rows]",
    ),
)
