"""One self-contained page: no script, no network, figures inside; prints well and opens anywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from string import Template
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
figure { display: inline-block; width: 30rem; max-width: 100%; margin: 0 0 1rem; vertical-align: top; }
figure svg { width: 100%; height: auto; } figcaption { color: #555; font-size: .9rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
th { border-bottom: 1px solid #999; font-weight: 600; } td.text, th.text { text-align: left; }
tr.answer { font-weight: 600; background: #eef6f2; }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; white-space: pre-wrap; } .warning { color: #8a3b00; }
@media print { body { margin: 0; max-width: none; } h2, figure, table { break-inside: avoid; } pre { border: 1px solid #ccc; } }
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")  # noqa: E501


class Picture(NamedTuple):
    """A figure, and what it shows in a sentence."""

    figure: Figure
    caption: str


class Table(NamedTuple):
    """A table; `left` are columns of text, `marked` the row of the answer."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = ()
    marked: int | None = None


class Section(NamedTuple):
    """A heading, and under it pictures, tables, a list, and text as it was printed."""

    heading: str
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    items: Sequence[str] = ()
    warnings: Sequence[str] = ()
    printed: str | None = None


def page(title: str, sections: Sequence[Section]) -> str:
    """The page as text; same input, same bytes."""
    number = 0
    parts: list[str] = []
    for section in sections:
        if not any(section[1:]):
            continue
        parts.append(f"<h2>{escape(section.heading)}</h2>")
        for picture in section.pictures:
            number += 1
            svg = svg_of(picture.figure, f"f{number}-", picture.caption)
            parts.append(f"<figure>{svg}<figcaption>{escape(picture.caption)}</figcaption></figure>")
        parts += [_table(table) for table in section.tables]
        if section.items:
            parts.append("<ul>" + "".join(f"<li>{escape(item)}</li>" for item in section.items) + "</ul>")
        if section.warnings:
            items = "".join(f"<li>{escape(item)}</li>" for item in section.warnings)
            parts.append(f'<ul class="warning">{items}</ul>')
        if section.printed:
            parts.append(f"<pre>{escape(section.printed)}</pre>")
    return _PAGE.substitute(title=escape(title), body="\n".join(parts))


def svg_of(figure: Figure, prefix: str, label: str) -> str:
    """The figure as an element of a page; `prefix` keeps its ids apart from those of other figures."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.hashsalt": "replicast", "svg.fonttype": "none"}):
        figure.savefig(
            out, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None}
        )
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def _table(table: Table) -> str:
    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="text"' if column in table.left else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", i, text) for i, text in enumerate(table.header))
    body = []
    for number, row in enumerate(table.rows):
        mark = ' class="answer"' if number == table.marked else ""
        body.append(f"<tr{mark}>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(body)}</table></div>'
