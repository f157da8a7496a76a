"""What every worker process of a pool does first, so that none outlives the command that it works for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def obey_parent() -> None:
    """Leave Ctrl-C to the parent, die by SIGTERM at once, and end when the parent has ended.

    A pool's own pipes do not tell that the parent was killed: sister processes hold them open.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
