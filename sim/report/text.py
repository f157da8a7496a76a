"""Plain aligned tables that paste into a ticket."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = ()) -> str:
    """Columns aligned to the right (those in `left` to the left), two blanks apart, one leading blank.

    >>> print(table(["replicas", "binds"], [["1", "token budget"], ["16", "-"]], left=[1]))
     replicas  binds
            1  token budget
           16  -
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return (" " + "  ".join(padded)).rstrip()

    return "\n".join(line(row) for row in (header, *rows))


def plural(count: int, noun: str) -> str:
    """Count and noun, thousands apart.

    >>> plural(1, "session"), plural(1234, "request")
    ('1 session', '1,234 requests')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
