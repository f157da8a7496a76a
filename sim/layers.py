"""Where the value of a setting comes from: flags over profile over defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicast.sim.config import EngineArgs
from replicast.sim.errors import InputError


class Layers:
    """Flags over profile over defaults, remembering where each value came from."""

    def __init__(self, flags: EngineArgs, profile: EngineArgs) -> None:
        self.flags, self.profile = flags, profile
        self._layers = (("flag", flags), ("profile", profile))
        self.origins: dict[str, str] = {}

    def given(self, name: str) -> tuple[str, object] | None:
        for origin, layer in self._layers:
            value = getattr(layer, name)
            if value is not None:
                return origin, value
        return None

    def take(self, name: str, default: object, why: str = "vLLM's own") -> Any:
        """The value of `name`; its origin is noted."""
        found = self.given(name)
        self.origins[name] = found[0] if found else f"default ({why})"
        return found[1] if found else default

    def pool(self, blocks_of: Callable[[int], int], unit: str) -> int:
        """Blocks of the KV pool; tokens and blocks of the same layer contradict each other."""
        for origin, layer in self._layers:
            blocks, tokens = layer.num_gpu_blocks, layer.kv_cache_tokens
            if blocks is not None and tokens is not None:
                raise InputError(
                    f"num_gpu_blocks ({blocks}) and kv_cache_tokens ({tokens}) both name the KV pool",
                    remedy="Give one of them.",
                )
            if blocks is not None:
                self.origins["num_gpu_blocks"] = origin
                return blocks
            if tokens is not None:
                at_least("kv_cache_tokens", tokens, 1)
                self.origins["num_gpu_blocks"] = f"{origin} ({tokens:,} tokens in {unit})"
                return blocks_of(tokens)
        raise InputError(
            "the size of the KV pool is not known",
            remedy="Give --num-gpu-blocks, or --kv-cache-tokens with the boot log's 'GPU KV cache size'.",
        )


def at_least(name: str, value: object, least: int, why: str = "") -> int:
    """`value`, which must be a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}, must be a whole number")
    if value < least:
        raise InputError(f"{name} is {value}, must be {least} or more" + (f" ({why})" if why else ""))
    return value
