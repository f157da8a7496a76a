"""The command line: parse, one library call, render, exit code. No logic."""

from __future__ import annotations

import click


@click.group()
def main() -> None:
    """How many vLLM instances do N developers with coding agents need?"""
