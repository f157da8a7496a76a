"""The per-step, per-block engine."""
