"""Life of a request, one enum for requests in Python and compiled ones alike."""

from __future__ import annotations

from enum import IntEnum


class RequestStatus(IntEnum):
    """Life of a request, in vLLM's words."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3  # EOS or a stop id
    FINISHED_LENGTH_CAPPED = 4  # max_tokens or max_model_len
    FINISHED_ABORTED = 5
