"""How long this process has run, its start-up included."""

from __future__ import annotations

import os
import time
from pathlib import Path


def _age() -> float:
    """Seconds from the start of the process to now; 0 where it cannot be told."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


_BEFORE, _LOADED = _age(), time.monotonic()


def since_process_start() -> float:
    """Seconds since the operating system started this process.

    Linux tells the start in field 22 of `/proc/self/stat`, to 10 ms; elsewhere the count begins when
    this module is loaded, some tens of milliseconds late.
    """
    return _BEFORE + time.monotonic() - _LOADED
