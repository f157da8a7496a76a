"""Traces: formats in, canonical form, Sessions out."""

from replicast.traces.load import LoadedTrace, load_trace

__all__ = ["LoadedTrace", "load_trace"]
