"""What the load of a measured level was: lengths of its requests, how many lived at a time, tool time.

Counted where the source has counts (DuckDB, Prometheus, clients). A performance summary lacks the number of
requests; then, in this order:

1. context of a running request = KV usage x pool / running, the shared prefix counted once by the cache;
   prompt = context - half an output, requests = prompt tokens / prompt;
2. Little on the waiting queue, where it is long: requests = waiting x window / queue time;
3. a prompt of 60,000 tokens (median of 28 task windows), named as a guess.

Requests alive = (running + waiting) x window / load: sessions times the agents that each runs side by side,
less the share of time in tools.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from replicast.calibration.growth import USUAL, Endings, Growth, learn_growth
from replicast.calibration.physics import handling_s
from replicast.calibration.server import ServerFacts, seconds_of_load
from replicast.calibration.sweep import SweepLevel
from replicast.calibration.workload import COMPUTED_SPREAD, OUTPUT_SPREAD, LevelLoad
from replicast.sim.fleet.config import FrontEnd

Source = Literal["counted", "kv", "waiting", "guess"]

SHARED_TOKENS = 12_000.0  # system prompt and tools that all sessions share
TYPICAL_PROMPT = 60_000.0
TYPICAL_OUTPUT = 600.0
IDLE_SLACK = 0.03  # 5.03 alive are five streams
LONGEST_MEAN = 0.95  # of max_model_len
MOST_REQUESTS = 2_000  # of a level are simulated


class Habits(NamedTuple):
    """What the sessions of a harness have in common at all levels, beside their mean lengths."""

    shared_tokens: float = SHARED_TOKENS
    endings: Endings = USUAL
    output_spread: float = OUTPUT_SPREAD
    computed_spread: float = COMPUTED_SPREAD


USUAL_HABITS = Habits()
NO_FRONT_END = FrontEnd()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Measured or estimated means per request of one level; `computed` is None where it was not counted."""

    prompt: float
    output: float
    computed: float | None
    requests: float
    alive: float
    source: Source
    held_share: float = 0.0  # of the KV pool, per running request, where the gauges tell
    running: float = 0.0  # of those alive, while load lasts; 0 where no gauge tells

    @property
    def streams(self) -> int:
        """Whole requests alive at a time."""
        return max(math.ceil(self.alive - IDLE_SLACK), 1)

    @property
    def turns(self) -> float:
        """Requests of a stream within the level."""
        return max(self.requests / self.streams, 1.0)


def lengths_of(level: SweepLevel, facts: ServerFacts) -> Lengths:
    """Lengths and requests alive of a measured level."""
    load_s, window_s = seconds_of_load(level)
    alive = _alive(level, load_s, window_s)
    prompt_tokens, generated = (
        _total(level.prompt_tokens, level.prompt_tokens_per_s, window_s),
        _total(level.generated_tokens, level.output_tokens_per_s, window_s),
    )
    count = _requests(level)
    source: Source = "counted"
    if told := _told_prompt(level, prompt_tokens):
        prompt = told
    else:
        prompt, source = _estimated(level, facts, prompt_tokens, generated, window_s)
    prompt = min(max(prompt, 32.0), LONGEST_MEAN * facts.config.max_model_len)
    requests = count or (prompt_tokens / prompt if prompt_tokens else None) or 50.0
    output = generated / requests if generated else TYPICAL_OUTPUT
    if not prompt_tokens and level.output_per_request and level.output_per_request.mean:
        output = level.output_per_request.mean
    computed = level.computed_tokens
    if computed is not None:
        computed = max(computed / requests, 1.0)
    elif level.hit_rate is not None:
        computed = max(prompt * (1 - level.hit_rate), 1.0)
    running = level.running.mean or 0.0 if level.running else 0.0
    return Lengths(
        prompt, max(output, 2.0), computed, max(requests, 1.0), alive, source, _held(level),
        running * window_s / load_s,
    )  # fmt: skip


def too_long(level: SweepLevel, facts: ServerFacts) -> str | None:
    """What to say of a level whose counts make its mean prompt longer than the server accepts."""
    _, window_s = seconds_of_load(level)
    told = _told_prompt(level, _total(level.prompt_tokens, level.prompt_tokens_per_s, window_s)) or 0.0
    longest = facts.config.max_model_len
    if told <= longest:
        return None
    return (
        f"level {level.concurrency or level.name}: {told:,.0f} prompt tokens a request are more than "
        f"max_model_len ({longest:,}); {LONGEST_MEAN * longest:,.0f} are taken"
    )


def _requests(level: SweepLevel) -> float | None:
    return level.first_tokens or (level.ttft.count if level.ttft else None) or level.requests_finished


def _told_prompt(level: SweepLevel, prompt_tokens: float | None) -> float | None:
    """Mean prompt where requests or their lengths are counted."""
    count = _requests(level)
    if count and prompt_tokens:
        return prompt_tokens / count
    return level.prompt_per_request.mean if level.prompt_per_request else None


def load_of(
    level: SweepLevel,
    lengths: Lengths,
    growth: Growth,
    *,
    computed_tokens: float,
    first_tokens: float | None = None,
    habits: Habits = USUAL_HABITS,
    front_end: FrontEnd = NO_FRONT_END,
) -> LevelLoad:
    """The load to simulate; `lengths` are its means."""
    load_s, window_s = seconds_of_load(level)
    concurrency = level.concurrency or max(round(lengths.alive), 1)
    own = own_growth(growth)
    if first_tokens is not None:
        own = own.starting(first_tokens)
    return load_for(concurrency, load_s, window_s, lengths, own, computed_tokens, habits, front_end)


def own_growth(growth: Growth) -> Growth:
    """The curve of what other sessions do not share."""
    own = max(growth.first_tokens - SHARED_TOKENS, 0.3 * growth.first_tokens)
    return growth._replace(first_tokens=own)


def load_for(
    concurrency: int,
    load_s: float,
    window_s: float,
    lengths: Lengths,
    growth: Growth,
    computed_tokens: float,
    habits: Habits = USUAL_HABITS,
    front_end: FrontEnd = NO_FRONT_END,
) -> LevelLoad:
    """The load of `concurrency` sessions with these lengths; `growth` is that of the part not shared.

    Requests in the front end are in no gauge: what is left of the time in which a stream neither runs nor
    waits is its tools'. Of a very long level a part is simulated: rates and means are those of the whole.
    """
    part = min(MOST_REQUESTS / lengths.requests, 1.0)
    load_s, window_s = part * load_s, part * window_s
    lengths = replace(lengths, requests=part * lengths.requests)
    handled_s = handling_s(front_end, lengths.prompt)
    idle = max(lengths.streams - lengths.alive, 0.0) * load_s
    shared = min(habits.shared_tokens, 0.5 * lengths.prompt)
    own = growth.scaled(lengths.turns, lengths.prompt - shared, habits.endings)
    return LevelLoad(
        concurrency=concurrency,
        streams=lengths.streams,
        prompt_tokens=shared + own.first_tokens + own.gained_tokens,
        output_tokens=lengths.output,
        computed_tokens=min(computed_tokens, lengths.prompt - shared),
        first_tokens=own.first_tokens,
        shared_tokens=shared,
        tool_s=min(max(idle / lengths.requests - handled_s, 0.0), 60.0),
        endings=habits.endings,
        load_s=load_s,
        window_s=window_s,
        expected_requests=max(lengths.requests, float(lengths.streams)),
        output_spread=habits.output_spread,
        computed_spread=habits.computed_spread,
    )


def growth_of(levels: Sequence[Lengths]) -> Growth:
    """How prompts of these levels grow."""
    return learn_growth([(level.turns, level.prompt) for level in levels])


def with_context(lengths: Lengths, shared_tokens: float, pool_scale: float) -> Lengths:
    """What prompts that rest on the KV gauge are with another shared prefix or pool.

    The gauge holds the shared prefix once: all but one of the running requests have it beside what it tells.
    """
    if lengths.source != "kv":
        return lengths
    unseen = 1 - 1 / max(lengths.running or lengths.alive, 1.0)
    context = max(lengths.prompt - SHARED_TOKENS * unseen, 0.1 * lengths.prompt)
    prompt = pool_scale * context + shared_tokens * unseen
    longer = prompt / lengths.prompt
    return replace(lengths, prompt=prompt, output=lengths.output * longer, requests=lengths.requests / longer)


def scaled(lengths: Lengths, prompt: float, output: float) -> Lengths:
    """The same with prompt and output multiplied: what the generator must be asked for to obtain them.

    Of a total that is known, longer prompts are fewer; requests that were counted stay as many.
    """
    requests = lengths.requests if lengths.source == "counted" else max(lengths.requests / prompt, 1.0)
    return replace(lengths, prompt=lengths.prompt * prompt, output=lengths.output * output, requests=requests)


def _alive(level: SweepLevel, load_s: float, window_s: float) -> float:
    running = level.running.mean if level.running else None
    waiting = level.waiting.mean if level.waiting else None
    if running is None:
        return float(level.concurrency or 1)
    return max((running + (waiting or 0.0)) * window_s / load_s, 0.05)


def _held(level: SweepLevel) -> float:
    running = level.running.mean if level.running else None
    usage = level.kv_usage.mean if level.kv_usage else None
    return usage / running if running and usage else 0.0


def _estimated(
    level: SweepLevel,
    facts: ServerFacts,
    prompt_tokens: float | None,
    generated: float | None,
    window_s: float,
) -> tuple[float, Source]:
    running = level.running.mean if level.running else None
    usage = level.kv_usage.mean if level.kv_usage else None
    if running and usage:
        while_running = max(running, 1e-9)
        load_s, _ = seconds_of_load(level)
        shared = max(running * window_s / load_s - 1.0, 0.0) * load_s / window_s * SHARED_TOKENS
        context = facts.context(usage / while_running) + shared / while_running
        ratio = generated / prompt_tokens if prompt_tokens and generated else 0.01
        return context / (1 + ratio / 2), "kv"
    waiting = level.waiting.mean if level.waiting else None
    queue = level.queue.mean if level.queue else None
    if prompt_tokens and waiting and queue and waiting * window_s > 30:
        return prompt_tokens / (waiting * window_s / queue), "waiting"
    return TYPICAL_PROMPT, "guess"


def _total(tokens: float | None, rate: float | None, window_s: float) -> float | None:
    return tokens if tokens is not None else rate * window_s if rate is not None else None
