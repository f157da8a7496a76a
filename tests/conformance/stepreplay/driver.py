"""Runs a scenario in vLLM's loop, and writes each step in the recorded form.

The loop of `vllm/v1/engine/core.py`: take in what has arrived, schedule, launch; with async
scheduling a second step before the first is waited for; then update from the oldest step in
flight. Steps are numbered by schedule() calls, which are the arrival clock too; where nothing
is left to do the number jumps to the next arrival. With a `clock` a step lasts
`base_s + per_token_s x tokens` on a GPU that does one step at a time, and a call that could
schedule nothing is followed by 1 ms of sleep.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from reference.output import RequestOutput, ScheduledRow, SchedulerOutput
from replicast.sim.config import EngineConfig
from replicast.sim.errors import InputError
from replicast.sim.request import Request, RequestStatus
from replicast.sim.workload import Content, cut, join, num_tokens

from .adapters import SteppedEngine
from .frontend import FrontEnd
from .lines import header, request_line
from .scenario import Json, RequestSpec, Scenario

MAX_LISTED_WAITING = 64
STUCK_CALLS = 3
SLEEP_S = 0.001


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that was launched; `end_s` only with a clock."""

    step: int
    output: SchedulerOutput
    end_s: float


class Driver:
    """One run of one scenario."""

    def __init__(self, scenario: Scenario, make: Callable[[EngineConfig], SteppedEngine]) -> None:
        self.scenario = scenario
        self.config = scenario.config
        self.engine = make(scenario.config)
        self.lines: list[Json] = []
        self.info: dict[str, Json] = {}
        self.requests: dict[str, Request] = {}
        self.front_end = FrontEnd(self.config.rules) if scenario.clock else None
        self.now_s = 0.0
        self._gpu_free_s = 0.0
        self._step = 0
        self._in_flight: deque[InFlight] = deque()  # oldest first
        self._specs = {spec.id: spec for spec in scenario.requests}
        self._live: dict[str, Request] = {}
        self._by_step: defaultdict[int, list[RequestSpec]] = defaultdict(list)
        self._by_time: list[tuple[float, int, RequestSpec]] = []
        self._children: defaultdict[str, list[RequestSpec]] = defaultdict(list)
        self._aborts: defaultdict[int, list[str]] = defaultdict(list)
        self._last_stats = (0, 0, 0, 0, 0)
        arrival_times = sorted({spec.arrival_time for spec in scenario.requests})
        self._arrival_rank = {time: rank for rank, time in enumerate(arrival_times)}
        self._id_rank = {name: rank for rank, name in enumerate(sorted(self._specs))}
        for spec in scenario.requests:
            self._plan_arrival(spec)
            if spec.abort_step is not None:
                self._aborts[spec.abort_step].append(spec.id)
        self._by_time.sort()

    def _plan_arrival(self, spec: RequestSpec) -> None:
        if spec.after is not None:
            self._children[spec.after].append(spec)
        elif self.scenario.clock and spec.arrival_s is not None:
            self._by_time.append((spec.arrival_s, spec.index, spec))
        else:
            self._by_step[spec.arrival_step].append(spec)

    # The loop

    def run(self) -> list[Json]:
        """All lines of the recording."""
        self.lines.append(header(self.scenario))
        depth = 2 if self.config.async_scheduling else 1
        num_calls = num_stuck = 0
        aborted: list[str] = []
        while True:
            if not self._has_work and not self._in_flight and not self._jump_to_next_arrival():
                break
            arrived = self._take_arrivals()
            aborted += self._take_aborts()
            line: Json | None = None
            if self._has_work:
                if num_calls >= self.scenario.max_steps:
                    self.lines.append({"kind": "stopped", "why": "max_steps", "step": self._step})
                    break
                num_untold = self.engine.num_untold
                line = self._schedule(arrived, aborted)
                aborted = []
                num_calls += 1
                may_change = self._arrivals_ahead or len(self._in_flight) > 1 or num_untold > 0
                num_stuck = 0 if line["tokens"] or may_change else num_stuck + 1
                if len(self._in_flight) < depth and (line["tokens"] or self._has_work):
                    self._close(line, None, [], None)
                    self._step += 1
                    continue
            elif not self._in_flight:
                self._step += 1
                continue
            self._update(line)
            if num_stuck >= STUCK_CALLS:
                self.lines.append(self._stopped())
                break
            self._step += 1
        self._append_ends()
        return self.lines

    @property
    def _has_work(self) -> bool:
        engine = self.engine
        return bool(engine.running) or bool(engine.waiting) or engine.num_untold > 0

    @property
    def _arrivals_ahead(self) -> bool:
        return bool(self._by_step) or bool(self._by_time)

    def _jump_to_next_arrival(self) -> bool:
        if self._by_time:
            self.now_s = max(self.now_s, self._by_time[0][0])
        elif self._by_step:
            self._step = max(self._step, min(self._by_step))
        else:
            return False
        return True

    def _take_arrivals(self) -> list[str]:
        arrived: list[str] = []
        while self._by_time and self._by_time[0][0] <= self.now_s:
            at, _, spec = self._by_time.pop(0)
            arrived += self._arrive(spec, at)
        for step in sorted(step for step in self._by_step if step <= self._step):
            for spec in self._by_step.pop(step):
                arrived += self._arrive(spec, self.now_s)
        return arrived

    def _arrive(self, spec: RequestSpec, at: float) -> list[str]:
        prompt = self._prompt_of(spec)
        num_prompt_tokens = num_tokens(prompt)
        self.info[spec.id] = request_line(spec, num_prompt_tokens, self._step)
        limit = self.config.max_model_len
        request = self._request(spec, prompt, num_prompt_tokens)
        self.requests[spec.id] = request
        if num_prompt_tokens >= limit and not spec.bypass_length_check:
            self.info[spec.id]["reason"] = "rejected: prompt >= max_model_len"
            self.lines.append(
                {
                    "kind": "rejected",
                    "id": spec.id,
                    "step": self._step,
                    "prompt": num_prompt_tokens,
                    "max_model_len": limit,
                }
            )
            self._release_children(spec.id, self._step - 1)
            return []
        if self.front_end:
            self.front_end.arrive(request, at, self.now_s)
            self.info[spec.id]["arrival_s"] = at
        self._live[spec.id] = request
        self.engine.add_request(request)
        return [spec.id]

    def _prompt_of(self, spec: RequestSpec) -> Content:
        if spec.prompt_from is None:
            return spec.prompt
        source = self.requests.get(spec.prompt_from)
        if source is None:
            raise InputError(f"request {spec.id!r} continues {spec.prompt_from!r}, which arrives later")
        length = source.num_tokens if spec.keep_output else source.num_prompt_tokens
        inherited = cut(join((*source.prompt, *source.output)), 0, max(length - spec.trim, 0))
        return join((*inherited, *spec.prompt))

    def _request(self, spec: RequestSpec, prompt: Content, num_prompt_tokens: int) -> Request:
        """The front end cuts `max_tokens` to the room left."""
        room = max(self.config.max_model_len - num_prompt_tokens, 1)
        stops_at_eos = spec.stops_at is not None and spec.stops_at <= room
        return Request(
            request_id=self._id_rank[spec.id],
            prompt=prompt,
            output=spec.output,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=min(spec.stops_at or spec.output_len, room),
            stops_at_eos=stops_at_eos,
            priority=spec.priority,
            arrival_tick=self._arrival_rank[spec.arrival_time],
            tag=spec.id,
        )

    def _take_aborts(self) -> list[str]:
        aborted = []
        for step in sorted(step for step in self._aborts if step <= self._step):
            for name in self._aborts.pop(step):
                if name in self._live:
                    self.engine.abort(self._live[name])
                    self._done(name, self._step - 1, "abort")
                    aborted.append(name)
        return aborted

    # One step

    def _schedule(self, arrived: list[str], aborted: list[str]) -> Json:
        output = self.engine.schedule()
        if self.front_end:
            self.front_end.schedule(output, self.now_s)
        rows = [self._row(row) for row in output.rows]
        preempted = [name_of(request) for request in output.preempted]
        for name in preempted:
            self.info[name]["preemptions"] += 1
            self.info[name]["preempted_at"].append(self._step)
        line: Json = {"kind": "step", "step": self._step}
        if arrived:
            line["arrived"] = arrived
        if aborted:
            line["aborted"] = aborted
        waiting = [name_of(request) for request in self.engine.waiting]
        line |= {
            "sched": rows,
            "tokens": output.total_num_scheduled_tokens,
            "preempted": preempted,
            "running": [name_of(request) for request in self.engine.running],
            "waiting": waiting if len(waiting) <= MAX_LISTED_WAITING else len(waiting),
            "free": self.engine.num_free_blocks,
            "usage": round(self.engine.usage, 9),
        }
        if self.config.num_speculative_tokens:
            line["k_spec"] = self.config.num_speculative_tokens
        self._add_blocks(line)
        self._launch(line, output)
        return line

    def _add_blocks(self, line: Json) -> None:
        if self.scenario.detail == "counts":
            return
        line["blocks"] = {name_of(r): self.engine.block_ids(r) for r in self.engine.running}
        if self.scenario.detail == "full":
            line["freeq"] = self.engine.free_queue()
            line["cached"] = self.engine.cached_blocks()

    def _launch(self, line: Json, output: SchedulerOutput) -> None:
        end_s = self.now_s
        if self.scenario.clock:
            if line["tokens"]:
                clock = self.scenario.clock
                end_s = max(self.now_s, self._gpu_free_s) + clock.base_s + clock.per_token_s * line["tokens"]
                self._gpu_free_s = end_s
            line["t0"] = round(self.now_s, 9)
        self._in_flight.append(InFlight(self._step, output, end_s))

    def _row(self, row: ScheduledRow) -> Json:
        num_prompt_tokens = row.request.num_prompt_tokens
        kind = "decode"
        if row.num_computed_tokens < num_prompt_tokens:
            kind = "prefill"
        elif row.num_computed_tokens < row.num_tokens - 1:
            kind = "recompute"
        out: Json = {
            "id": name_of(row.request),
            "n": row.num_scheduled_tokens,
            "c": row.num_computed_tokens,
            "p": num_prompt_tokens,
            "t": row.num_tokens,
            "kind": kind,
            "sample": row.num_sampled_tokens > 0,
        }
        info = self.info[out["id"]]
        if row.admitted:
            out["admit"] = row.admitted
            out["hit"] = row.num_computed_tokens
        if row.admitted == "new":
            info["first_sched"] = self._step
            info["hit"] = row.num_computed_tokens
        elif row.admitted == "resumed":
            info["resumed_at"].append(self._step)
            info["resumed_hit"].append(row.num_computed_tokens)
        if row.num_draft_tokens:
            out["drafts"] = row.num_draft_tokens
        return out

    def _update(self, line: Json | None) -> None:
        """Wait for the oldest step in flight, and deliver its output."""
        flight = self._in_flight.popleft()
        if line is None:
            line = {"kind": "drain", "step": self._step}
        if self.scenario.clock:
            self.now_s = max(self.now_s, flight.end_s)
            if not flight.output.rows and self._has_work and not self._in_flight:
                self.now_s += SLEEP_S
            line["t1"] = round(self.now_s, 9)
        delivered = self.engine.update(flight.output)
        if self.front_end and delivered:
            line["iter"] = self.front_end.deliver(delivered, self.now_s, self.info)
        for one in delivered:
            name = name_of(one.request)
            if self.info[name]["first_token"] is None:
                self.info[name]["first_token"] = flight.step
            if one.finished:
                stopped = one.request.status == RequestStatus.FINISHED_STOPPED
                self._done(name, self._step, "stop" if stopped else "length")
        self._close(line, flight.step, delivered, self._stats())

    def _close(self, line: Json, of: int | None, delivered: list[RequestOutput], stats: Json | None) -> None:
        line["update_of"] = of
        line["finished"] = [name_of(one.request) for one in delivered if one.finished]
        emitted = {name_of(one.request): one.num_new_tokens for one in delivered if one.num_new_tokens != 1}
        if emitted:
            line["emitted"] = emitted
        if stats is not None:
            line["stats"] = stats
        line["free_end"] = self.engine.num_free_blocks
        self.lines.append(line)

    def _stats(self) -> Json:
        s = self.engine.stats
        totals = (
            s.prefix_cache_queries,
            s.prefix_cache_hits,
            s.prefix_cache_requests,
            s.preempted_queries,
            s.preempted_hits,
        )
        queries, hits, requests, preempted_queries, preempted_hits = (
            new - old for new, old in zip(totals, self._last_stats, strict=True)
        )
        self._last_stats = totals
        return {
            "run": len(self.engine.running),
            "wait": len(self.engine.waiting),
            "skip": 0,
            "usage": round(self.engine.usage, 9),
            "q": queries,
            "h": hits,
            "nreq": requests,
            "pq": preempted_queries,
            "ph": preempted_hits,
        }

    def _done(self, name: str, step: int, reason: str) -> None:
        self.info[name]["finished"] = step
        self.info[name]["reason"] = reason
        del self._live[name]
        self._release_children(name, step)

    def _release_children(self, name: str, step: int) -> None:
        for child in self._children.pop(name, []):
            if self.scenario.clock:
                self._by_time.append((self.now_s + child.delay_s, child.index, child))
                self._by_time.sort()
            else:
                self._by_step[step + 1 + child.delay_steps].append(child)

    # First and last lines

    def _stopped(self) -> Json:
        return {
            "kind": "stopped",
            "step": self._step,
            "why": "no progress possible: nothing scheduled for 3 calls, nothing running, nothing to arrive",
            "waiting": [name_of(request) for request in self.engine.waiting],
        }

    def _append_ends(self) -> None:
        steps = [line for line in self.lines if line["kind"] == "step"]
        stats = [line["stats"] for line in self.lines if "stats" in line]
        for name in self._specs:
            missing = {"kind": "request", "id": name, "reason": "never arrived"}
            self.lines.append(self.info.get(name, missing))
        self.lines.append(
            {
                "kind": "total",
                "steps": len(steps),
                "tokens": sum(line["tokens"] for line in steps),
                "preemptions": sum(len(line["preempted"]) for line in steps),
                **{key: sum(entry[key] for entry in stats) for key in ("q", "h", "pq", "ph")},
                "finished": sum(info["finished"] is not None for info in self.info.values()),
            }
        )


def name_of(request: Request) -> str:
    """The scenario's id of a request."""
    return str(request.tag)
