"""replicast: how many vLLM instances N developers with coding agents need, what they wait and pay.

The library's functions load when they are first used, so that `import replicast` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from replicast.library import load_trace as load_trace
    from replicast.library import max_developers as max_developers
    from replicast.library import plan as plan
    from replicast.library import simulate as simulate
    from replicast.library import whatif as whatif
    from replicast.library.sweeps import calibrate as calibrate
    from replicast.library.sweeps import check as check

_WHERE = {
    "simulate": ("replicast.library", "simulate"),
    "plan": ("replicast.library", "plan"),
    "max_developers": ("replicast.library", "max_developers"),
    "whatif": ("replicast.library", "whatif"),
    "load_trace": ("replicast.library", "load_trace"),
    "calibrate": ("replicast.library.sweeps", "calibrate"),
    "check": ("replicast.library.sweeps", "check"),
}
__all__ = ["__version__", *sorted(_WHERE)]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'replicast' has no attribute {name!r}")
    module, function = _WHERE[name]
    return getattr(import_module(module), function)
