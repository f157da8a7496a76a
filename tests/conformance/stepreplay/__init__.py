"""Replays recorded workloads and says whether an engine makes vLLM's own steps."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the reference engine is a package of the tests
