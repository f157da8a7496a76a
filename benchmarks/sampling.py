"""Where the time goes: the running file, looked at every 2 ms of CPU time.

A profiler that counts calls makes small functions look dear. Samples do not, and cost next to nothing.
"""

from __future__ import annotations

import signal
from collections import Counter
from types import FrameType

CACHE = ("kv_cache", "block_pool", "content_tree", "duplicates", "free_queue")
INTERVAL_S = 0.002


class Sampler:
    """Counts samples by part of the program from `start` to `stop`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def start(self) -> None:
        """Begin."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> dict[str, float]:
        """End; each part's share of the samples."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        total = self._counts.total() or 1
        return {part: number / total for part, number in self._counts.most_common()}

    def _sample(self, _: int, frame: FrameType | None) -> None:
        while frame is not None:
            part = part_of(frame.f_code.co_filename)
            if part is not None:
                self._counts[part] += 1
                return
            frame = frame.f_back
        self._counts["other"] += 1


def part_of(file: str) -> str | None:
    """The part a file belongs to; None for files that work for whoever called them."""
    if "/sim/engine/" in file:
        return "cache" if any(file.endswith(f"/{name}.py") for name in CACHE) else "engine"
    if "/sim/fleet/" in file or "/simpy/" in file:
        return "fleet"
    if "/traces/" in file:
        return "loading"
    if "/sim/planning/" in file:
        return "summary"
    if "importlib" in file:
        return "import"
    return None
