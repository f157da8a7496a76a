"""replicast: how many vLLM instances N developers with coding agents need, what they wait and pay."""

__version__ = "0.1.0"
