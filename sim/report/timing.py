"""How long this process has run, its start-up included."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOADED = time.monotonic()


def since_process_start() -> float:
    """Seconds since the operating system started this process.

    Linux tells in field 22 of `/proc/self/stat`, to 10 ms; elsewhere the count begins when this
    module is loaded, some tens of milliseconds late.
    """
    loaded = time.monotonic() - _LOADED
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return loaded
    return age if age >= loaded else loaded
