"""A normalised HTML table as the table reward sees it: its structure tree, its rows and its cells.

The tree is the one PubTabNet's TEDS compares in structure-only mode: a node per element from `table` down,
with cells (`td`) as leaves labelled by their spans. What lies inside a cell is text, inner tables and inline
tags included, so stuffing a cell with tags does not make the tree larger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lxml import etree

from rewards.teds import count_nodes
from rewards.trees.subtrees import Node

# Elements nested deeper than this below the table are not read. A table needs three: section, row, cell.
MAX_DEPTH = 32
# Widest cell in columns, as in the HTML standard.
MAX_COLSPAN = 1000

# The leading integer of a span attribute. Nine digits are enough to tell two spans apart.
_SPAN = re.compile(r"\s*([+-]?[0-9]{1,9})")


@dataclass(frozen=True)
class Table:
    """A parsed table.

    Attributes:
        tree: the structure tree, rooted at the table.
        nodes: number of nodes below the table: sections, rows and cells.
        rows: the cell texts of each `tr` of the outer table.
        columns: largest sum of colspans, clamped to 1...1000, over the rows; 0 without rows.
        cell_texts: the texts of all cells in reading order, those outside of any row included.
    """

    tree: Node
    nodes: int
    rows: tuple[tuple[str, ...], ...]
    columns: int
    cell_texts: tuple[str, ...]


def parse_table(normalized: str) -> Table | None:
    """The first table of a string that `normalize_table` made, or None if it has no cell."""
    if not normalized:
        return None
    parser = etree.HTMLParser(remove_comments=True, remove_pis=True, no_network=True, encoding="utf-8")
    document = etree.fromstring(normalized.encode("utf-8"), parser)
    element = document.find("body/table")
    if element is None:
        return None
    reader = _Reader()
    tree = reader.read(element, MAX_DEPTH)
    if not reader.cell_texts:
        return None
    return Table(
        tree=tree,
        nodes=count_nodes(tree) - 1,
        rows=tuple(tuple(row.texts) for row in reader.rows),
        columns=max((row.columns for row in reader.rows), default=0),
        cell_texts=tuple(reader.cell_texts),
    )


class _Row:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.columns = 0


class _Reader:
    """Walks a table element once and collects rows and cell texts on the way."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.cell_texts: list[str] = []

    def read(self, element: etree._Element, depth: int, row: _Row | None = None) -> Node:
        if element.tag == "td":
            return self._read_cell(element, row)
        if element.tag == "tr":
            row = _Row()
            self.rows.append(row)
        children = element if depth else ()
        return Node(element.tag, tuple(self.read(child, depth - 1, row) for child in children))

    def _read_cell(self, element: etree._Element, row: _Row | None) -> Node:
        colspan = read_span(element.get("colspan"))
        text = " ".join("".join(_texts(element)).split())
        self.cell_texts.append(text)
        if row is not None:
            row.texts.append(text)
            row.columns += min(max(colspan, 1), MAX_COLSPAN)
        return Node(("td", colspan, read_span(element.get("rowspan"))))


def _texts(element: etree._Element) -> Iterator[str]:
    return element.itertext()  # type: ignore[no-any-return]


def read_span(value: str | None) -> int:
    """The leading integer of a span attribute, 1 if there is none. Not clamped: the metric compares what is written."""
    match = _SPAN.match(value) if value else None
    return int(match[1]) if match else 1
