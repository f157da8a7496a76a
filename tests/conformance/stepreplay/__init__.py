"""Replays recorded workloads and says whether an engine makes vLLM's own steps."""
