"""Number formats of weights and caches, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Precision = Literal["bf16", "fp8", "fp4"]
BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
