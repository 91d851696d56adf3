"""Table HTML as the published reward reads it, with a strict fast reader for plain markup, which most completions are.

`read_table` is the one to use. `scan_table` gives the same `Table` as `parse_table(normalize_table(markup))` for markup
in which every row and cell is closed where it should be and nothing needs repair, and None for anything else. The tests
hold the two against each other on random markup.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from rewards.html.table import MAX_COLSPAN, Table, parse_table, read_span
from rewards.marks import without_mark_runs
from rewards.markup import normalize_table
from rewards.trees.subtrees import Node

# What the scorer's normalisation or the parser would change, or may read in another way.
_UNUSUAL = re.compile("[&\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_OPENING = re.compile(r'\s*<table(?: [a-z]{1,20}="[^"<>]{0,200}"){0,8}>')
_BLANK_LINES = re.compile(r"(<[^<>]*>)[ \t]*\n[ \t\n]*(?=<)")
_SECTIONS = re.compile(r"(?:\s|</?(?:thead|tbody)>)*+")
_INLINE = "</?(?:b|i|u|em|strong|sup|sub)>"
# Tag, attributes and content of a cell; or a character that is none of that.
_CELL = re.compile(
    r'<(t[dh])((?: (?:colspan|rowspan|style|class|align|width|height)="[^"<>]{0,200}"){0,8})>'
    rf"([^<]*+(?:{_INLINE}[^<]*+)*+)</\1>\s*+|(\S)"
)
_INLINE_TAG = re.compile(_INLINE)
_SPAN = re.compile(r' (colspan|rowspan)="([^"]*)"')


def read_table(markup: str) -> Table | None:
    """The first table of any markup, normalised as the scorer does; None if it has no cell."""
    return scan_table(markup) or parse_table(normalize_table(markup))


def scan_table(markup: str) -> Table | None:
    """The table of plain markup; None if it is not plain or has no cell."""
    if _UNUSUAL.search(markup):
        return None
    markup = _BLANK_LINES.sub(r"\1", markup).replace("\n", "").rstrip()
    if not (markup.isascii() or _is_normal(markup)):  # without the line breaks: a `>` may meet a combining mark
        return None
    opening = _OPENING.match(markup)
    if opening is None or not markup.endswith("</table>"):
        return None
    before, *pieces = markup[opening.end() : -len("</table>")].split("<tr>")
    rows = [_row(piece) for piece in pieces]
    if not _SECTIONS.fullmatch(before) or None in rows:
        return None
    return _table([row for row in rows if row is not None])


def _is_normal(markup: str) -> bool:
    return without_mark_runs(markup) == markup and unicodedata.is_normalized("NFKC", markup)


Cell = tuple[Node, int, str]  # leaf of the structure tree, clamped colspan, text


def _row(piece: str) -> list[Cell] | None:
    """The cells of what follows a `<tr>`, or None if it is not plain."""
    content, closing, after = piece.partition("</tr>")
    if not closing or not _SECTIONS.fullmatch(after):
        return None
    cells = []
    for _, attributes, text, junk in _CELL.findall(content):
        if junk or '="' in text:  # the normalisation deletes attributes in text as well
            return None
        if "<" in text:
            text = _INLINE_TAG.sub("", text)
            if not (text.isascii() or _is_normal(f">{text}")):  # a mark may meet what stood before a stray tag
                return None
        cells.append((*_leaf(attributes), " ".join(text.split())))
    return cells


@lru_cache(maxsize=1024)
def _leaf(attributes: str) -> tuple[Node, int]:
    spans = dict(_SPAN.findall(attributes))
    colspan = read_span(spans.get("colspan"))
    return Node(("td", colspan, read_span(spans.get("rowspan")))), min(max(colspan, 1), MAX_COLSPAN)


def _table(rows: list[list[Cell]]) -> Table | None:
    texts = tuple(text for row in rows for _, _, text in row)
    if not texts:
        return None
    return Table(
        tree=Node("table", tuple(Node("tr", tuple([leaf for leaf, _, _ in row])) for row in rows)),
        nodes=len(rows) + len(texts),
        rows=tuple(tuple([text for _, _, text in row]) for row in rows),
        columns=max(sum([columns for _, columns, _ in row]) for row in rows),
        cell_texts=texts,
    )
