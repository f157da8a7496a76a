"""What the command line calls and a notebook can: traces and profiles in, answers out.

`functions.py` asks, `answers.py` are the results, `reports.py` writes them as files.
"""

from replicast.library.functions import (
    choose_hardware,
    load_trace,
    max_developers,
    plan,
    simulate,
    whatif,
)

__all__ = ["choose_hardware", "load_trace", "max_developers", "plan", "simulate", "whatif"]
