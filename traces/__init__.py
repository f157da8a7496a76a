"""Traces: formats in, canonical form, Sessions out."""

from replicast.traces.canonical_io import read_canonical, write_canonical
from replicast.traces.load import LoadedTrace, convert, load_trace

__all__ = ["LoadedTrace", "convert", "load_trace", "read_canonical", "write_canonical"]
