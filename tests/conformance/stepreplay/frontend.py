"""The request and iteration metrics that vLLM's API server takes from the engine's outputs.

`vllm/v1/metrics/stats.py`: intervals are differences of time stamps on one clock; the token counts of an
iteration are those of requests whose first token came in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference.output import RequestOutput, SchedulerOutput
from replicast.sim.config import Rules
from replicast.sim.request import Request

from .scenario import Json

EPOCH_S = 1000.0  # the recorder's clock started there; kept so that the rounding is the same
DIGITS = 9


@dataclass(slots=True)
class Stamps:
    """Time stamps of one request."""

    arrival: float
    queued: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions_told: int = 0


class FrontEnd:
    """Stamps of all requests, and what is reported from them."""

    def __init__(self, rules: Rules) -> None:
        self._is_25 = rules == "0.25.1"
        self._stamps: dict[int, Stamps] = {}

    def arrive(self, request: Request, arrival_s: float, now_s: float) -> None:
        """The request reached the server at `arrival_s` and enters the scheduler now."""
        self._stamps[request.request_id] = Stamps(EPOCH_S + arrival_s, EPOCH_S + now_s)

    def schedule(self, output: SchedulerOutput, now_s: float) -> None:
        """Note first admissions."""
        for row in output.rows:
            stamps = self._stamps[row.request.request_id]
            if stamps.scheduled is None:
                stamps.scheduled = EPOCH_S + now_s

    def deliver(self, delivered: list[RequestOutput], now_s: float, info: dict[str, Json]) -> Json:
        """The iteration's statistics; finished requests get theirs into `info`."""
        now = EPOCH_S + now_s
        prompt = cached = preempted = 0
        ttft: list[float] = []
        itl: list[float] = []
        for one in delivered:
            request, stamps = one.request, self._stamps[one.request.request_id]
            record = info[str(request.tag)]
            if stamps.first_token is None:
                stamps.first_token = now
                stamps.num_cached_tokens = self._num_cached_tokens(request)
                prompt += request.num_prompt_tokens
                cached += stamps.num_cached_tokens
                ttft.append(round(now - stamps.arrival, DIGITS))
                record["cached"] = stamps.num_cached_tokens
            else:
                itl.append(round(now - stamps.last_token, DIGITS))
            stamps.last_token = now
            stamps.num_tokens += one.num_new_tokens
            preempted += request.num_preemptions - stamps.num_preemptions_told
            stamps.num_preemptions_told = request.num_preemptions
            if one.finished:
                record |= self._intervals(stamps, now)
        return {
            "prompt": prompt,
            "computed": prompt - cached,
            "gen": sum(one.num_new_tokens for one in delivered),
            "preempted": preempted,
            "ttft": ttft,
            "itl": itl,
        }

    def _num_cached_tokens(self, request: Request) -> int:
        """Hit tokens of the first admission; 0.25 takes the latest one before the first token."""
        if self._is_25 and request.resumed_hit_tokens:
            return request.resumed_hit_tokens[-1]
        return request.num_cached_tokens or 0

    def _intervals(self, stamps: Stamps, now: float) -> Json:
        assert stamps.scheduled is not None, "a request that delivers was scheduled"
        assert stamps.first_token is not None, "a request that finishes has a first token"
        decode = stamps.last_token - stamps.first_token
        num_later = stamps.num_tokens - 1
        intervals = {
            "ttft": stamps.first_token - stamps.arrival,
            "queue_s": stamps.scheduled - stamps.queued,
            "prefill_s": stamps.first_token - stamps.scheduled,
            "decode_s": decode,
            "inference_s": stamps.last_token - stamps.scheduled,
            "e2e_s": now - stamps.arrival,
            "tpot_s": decode / num_later if num_later > 0 else 0.0,
        }
        return {key: round(value, DIGITS) for key, value in intervals.items()}
