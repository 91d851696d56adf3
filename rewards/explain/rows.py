"""Which row of a predicted table stands for which row of the reference, for `rewards.explain`.

The tree edit distance says how many nodes are wrong, not where. Here rows are aligned from top to bottom so that as
few nodes as possible change and, among these alignments, as little text as possible.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

from rewards.html.reader import Document
from rewards.html.table import Table
from rewards.trees.subtrees import Node

# Rows of each table that are aligned, and characters of a row that decide which rows are alike.
MAX_ROWS = 200
_ROW_CHARACTERS = 200
# Of a row's text against a node: smaller than the reciprocal of the rows, so that nodes come first.
_TEXT_WEIGHT = 1e-3


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        number: counted from 1.
        cells: label of each node below the row: for a cell `td`, its spans and, in the robust profile, `blank` or
            `filled`.
        texts: of its cells.
    """

    number: int
    cells: tuple[Hashable, ...]
    texts: tuple[str, ...]


class RowPair(NamedTuple):
    """A row of the reference and one of the prediction; None where one has no counterpart."""

    wanted: TableRow | None
    found: TableRow | None

    @property
    def nodes(self) -> int:
        """How many nodes differ."""
        if self.wanted is None or self.found is None:
            row = self.wanted or self.found
            return 1 + len(row.cells) if row else 0
        return Levenshtein.distance(self.wanted.cells, self.found.cells)


def published_rows(table: Table) -> list[TableRow]:
    """The rows that the published profile compares."""
    rows = zip(_row_nodes(table.tree), table.rows, strict=False)
    return [TableRow(number, tuple(_cells(node)), texts) for number, (node, texts) in enumerate(rows, 1)]


def robust_rows(document: Document) -> list[TableRow]:
    """The rows that the robust profile compares. Those of a table inside a cell are not listed."""
    rows = [row for table in document.tables for row in table]
    return [
        TableRow(
            number,
            tuple(("td", cell.colspan, cell.rowspan, "filled" if cell.text else "blank") for cell in row),
            tuple(cell.text for cell in row),
        )
        for number, row in enumerate(rows, 1)
    ]


def align_rows(wanted: Sequence[TableRow], found: Sequence[TableRow]) -> list[RowPair]:
    """The first `MAX_ROWS` rows of both, in order, each with its counterpart."""
    wanted, found = wanted[:MAX_ROWS], found[:MAX_ROWS]
    aligner = _Aligner(wanted, found)
    costs = aligner.costs()
    pairs = []
    i, j = len(wanted), len(found)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + aligner.replace(i - 1, j - 1):
            i, j = i - 1, j - 1
            pairs.append(RowPair(wanted[i], found[j]))
        elif i and costs[i][j] == costs[i - 1][j] + _row_cost(wanted[i - 1]):
            i -= 1
            pairs.append(RowPair(wanted[i], None))
        else:
            j -= 1
            pairs.append(RowPair(None, found[j]))
    return pairs[::-1]


class _Aligner:
    def __init__(self, wanted: Sequence[TableRow], found: Sequence[TableRow]) -> None:
        self.wanted, self.found = wanted, found
        symbols: dict[Hashable, str] = {}  # label -> one character, so that rows compare as strings
        self.wanted_keys, self.found_keys = (
            [
                ("".join(symbols.setdefault(cell, chr(len(symbols))) for cell in row.cells), _row_text(row))
                for row in rows
            ]
            for rows in (wanted, found)
        )
        self.known: dict[tuple[str, str], int] = {}

    def replace(self, i: int, j: int) -> float:
        """Cost of row j for row i."""
        (cells, text), (other_cells, other_text) = self.wanted_keys[i], self.found_keys[j]
        edits = self.known.get((cells, other_cells))
        if edits is None:
            edits = self.known[cells, other_cells] = Levenshtein.distance(cells, other_cells)
        return edits + _TEXT_WEIGHT * Levenshtein.normalized_distance(text, other_text)

    def costs(self) -> list[list[float]]:
        """Cheapest way from the first i rows of one table to the first j rows of the other."""
        rows = [[0.0]]
        for row in self.found:
            rows[0].append(rows[0][-1] + _row_cost(row))
        for i, row in enumerate(self.wanted):
            above = rows[-1]
            current = [above[0] + _row_cost(row)]
            for j, other in enumerate(self.found):
                kept = above[j] + self.replace(i, j)
                current.append(min(kept, above[j + 1] + _row_cost(row), current[-1] + _row_cost(other)))
            rows.append(current)
        return rows


def _row_cost(row: TableRow) -> float:
    return 1.0 + len(row.cells) + _TEXT_WEIGHT


def _row_text(row: TableRow) -> str:
    return " ".join(text[:_ROW_CHARACTERS] for text in row.texts[:_ROW_CHARACTERS])[:_ROW_CHARACTERS]


def _row_nodes(node: Node) -> Iterator[Node]:
    """The row nodes from top to bottom, as `Table.rows` lists them."""
    if node.label == "tr":
        yield node
    for child in node.children:
        yield from _row_nodes(child)


def _cells(node: Node) -> Iterator[Hashable]:
    """Labels of the nodes of a row without those of rows inside of it."""
    for child in node.children:
        if child.label != "tr":
            yield child.label
            yield from _cells(child)
