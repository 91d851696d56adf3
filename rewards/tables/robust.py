"""The robust table reward: the published formula on what a browser would show, with nothing to gain from padding.

`docs/REWARDS.md` has each rule with the blind spot that it closes. The idea: blank cells and rows are kinds of nodes
of their own and count neither as cells to get right nor as rows and columns, so a grid without text earns nothing; a
table more than the reference has costs its share of the text; and the gate looks at the shown text too, so that markup
which nobody sees cannot break up a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rewards.gate import CLOSED_GATE
from rewards.html.elements import without_written_tags
from rewards.html.reader import read_tables
from rewards.tables.cells import cell_similarity, text_distance
from rewards.tables.document import Cell, Document, TableRows, cells_of
from rewards.tables.gate import Amounts, measure, table_gate
from rewards.tables.terms import Row, Shape, combine, compared_parts, excess_rows, repeated_row_penalty, unscored_parts
from rewards.trees.distance import Node, tree_distance
from rewards.types import Part, RewardConfig, Score, is_oversized

# Name, spans of a cell, and whether it is blank.
Label = tuple[str, bool] | tuple[str, int, int, bool]


@dataclass(frozen=True)
class Limits:
    """What of a prediction is compared, as its reference has it.

    Attributes:
        tables: number of tables that are not inside another.
        filled_tables: number of tables with text, inner ones included.
        blanks_count: blank rows and cells count as rows and columns, because the reference has no text at all.
        rows: texts of each row, without the blank ones; for a blank row an empty text for each cell.
    """

    tables: int
    filled_tables: int
    blanks_count: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class ShownTables:
    """Tables as the robust reward compares them.

    Attributes:
        tree: structure, with a root `table`, or `tables` if there are several. Labels say whether a cell or row is
            blank. The rows of an inner table are children of its cell.
        nodes: number of nodes below the root.
        blanks: how many of them are blank.
        shape: rows with text, and the largest sum of colspans of cells with text; inner tables do not count.
        rows: texts of each row with text, inner ones included; blank cells left out.
        cells: texts of all cells in reading order, blank ones included.
        texts: the same without blank ones.
        share: share of the texts that is in tables that are compared.
        limits: what a prediction of this reference may have.
    """

    tree: Node
    nodes: int
    blanks: int
    shape: Shape
    rows: tuple[Row, ...]
    cells: tuple[str, ...]
    texts: tuple[str, ...]
    share: float
    limits: Limits


@dataclass(frozen=True)
class _Reference:
    tables: ShownTables
    amounts: Amounts
    has_written_tags: bool


@lru_cache(maxsize=64)
def _read_reference(reference: str) -> _Reference:
    document = read_tables(reference)
    cells = list(document.cells())
    if not cells or not document.opened:
        raise ValueError(f"reference holds no table with a cell: {reference[:80]!r}")
    if document.opened > document.closed:
        raise ValueError(f"reference does not close its table: ...{reference[-80:]!r}")
    has_written_tags = any(without_written_tags(cell.text) != cell.text for cell in cells)
    return _Reference(show(document), measure(reference, document, 0), has_written_tags)


def robust_table_reward(prediction: str, reference: str, config: RewardConfig) -> Score:
    """`rewards.table.table_reward` for the robust profile.

    Raises:
        ValueError: the reference holds no table with a cell, or does not close it.
    """
    wanted = _read_reference(reference)
    if is_oversized(prediction, reference):
        return Score(0.0, unscored_parts(CLOSED_GATE, wanted.tables.shape, False))
    document = read_tables(prediction, keep_written_tags=wanted.has_written_tags)
    gate = table_gate(prediction, measure(prediction, document, wanted.amounts.blank_cells), wanted.amounts, config)
    closed = 0 < document.opened <= document.closed
    parts = unscored_parts(gate, wanted.tables.shape, closed)
    tables = show(document, wanted.tables.limits)
    if not any(True for _ in document.cells()):
        if document.stray_text:
            parts["similarity"] = 1.0 - text_distance(document.stray_text, " ".join(wanted.tables.texts))
        factor = gate.gate * (config.unclosed_factor if document.opened > document.closed else 1.0)
        return Score(config.unparsed_weight * parts["similarity"] * factor, parts)
    parts |= compare(tables, wanted.tables, config)
    return Score(combine(parts) * gate.gate * (1.0 if closed else config.unclosed_factor), parts)


def compare(found: ShownTables, wanted: ShownTables, config: RewardConfig) -> dict[str, Part]:
    """The parts of a comparison. Without any text, where the reference has some, nothing is right."""
    if wanted.texts and not found.texts:
        return {"parsed": True}
    excess = excess_rows(found.rows, wanted.rows, config)
    # Beside the rows of the reference, not beside those that happen to be there: these could dilute the loop.
    p_loop = repeated_row_penalty(excess, excess + wanted.shape.rows, config)
    teds_s = structure_similarity(found, wanted) * found.share
    s_cell = text_similarity(found, wanted) * found.share
    return compared_parts(teds_s, s_cell, p_loop, found.shape, wanted.shape, config)


def structure_similarity(found: ShownTables, wanted: ShownTables) -> float:
    """TEDS_s in [0, 1]. Blank nodes beyond those of the reference do not enlarge the denominator."""
    surplus = 0 if wanted.limits.blanks_count else max(0, found.blanks - wanted.blanks)
    distance = tree_distance(found.tree, wanted.tree)
    return max(0.0, 1.0 - distance / max(wanted.nodes, found.nodes - surplus))


def text_similarity(found: ShownTables, wanted: ShownTables) -> float:
    """s_cell: of the texts, or of all cells if that is less and the reference has blank ones, so that places count."""
    similarity = cell_similarity(found.texts, wanted.texts)
    if len(wanted.texts) < len(wanted.cells):
        similarity = min(similarity, cell_similarity(found.cells, wanted.cells))
    return similarity


def show(document: Document, limits: Limits | None = None) -> ShownTables:
    """Lays out the tables of a document that are compared."""
    blanks_count = limits.blanks_count if limits else not any(cell.text for cell in document.cells())
    weights = [_weight(table, blanks_count) for table in document.tables]
    compared = compared_tables(document, limits)
    layout = _Layout(blanks_count, limits, _surplus_blank_rows(compared, limits) if limits else set())
    trees = [Node("table", layout.rows_of(table, outer=True)) for table in compared]
    texts = tuple(filter(None, layout.cells))
    compared_weight = len(layout.cells if blanks_count else texts)
    return ShownTables(
        tree=trees[0] if len(trees) == 1 else Node("tables", tuple(trees)),
        nodes=layout.nodes + (len(trees) if len(trees) > 1 else 0),
        blanks=layout.blanks,
        shape=Shape(layout.outer_rows, layout.columns),
        rows=tuple(layout.rows),
        cells=tuple(layout.cells),
        texts=texts,
        share=compared_weight / max(sum(weights), 1),
        limits=limits or Limits(len(compared), layout.filled_tables, blanks_count, tuple(map(_key, _rows(compared)))),
    )


def compared_tables(document: Document, limits: Limits | None = None) -> list[TableRows]:
    """The tables of a document that are compared, in order: without limits, all that are not blank."""
    blanks_count = limits.blanks_count if limits else not any(cell.text for cell in document.cells())
    weights = [_weight(table, blanks_count) for table in document.tables]
    largest = sorted((i for i, weight in enumerate(weights) if weight), key=weights.__getitem__, reverse=True)
    return [document.tables[i] for i in sorted(largest[: limits.tables] if limits else largest)]


def _surplus_blank_rows(tables: list[TableRows], limits: Limits) -> set[int]:
    """Identities of the blank rows that a prediction has more of than its reference: the shortest at wrong places.

    Their cells are left out, so that such a row is wrong once, however many cells it has. Were the longest chosen, one
    more blank row could do away with a costly one.
    """
    if limits.blanks_count:
        return set()
    rows = list(_rows(tables))
    keys = [_key(row) for row in rows]
    wanted_blanks = sum("" in key for key in limits.rows)
    surplus = sum("" in key for key in keys) - wanted_blanks
    if surplus <= 0:
        return set()
    blocks = Levenshtein.editops(keys, limits.rows).as_matching_blocks() if wanted_blanks else ()
    right = {i for block in blocks for i in range(block.a, block.a + block.size)}
    wrong = [row for i, (row, key) in enumerate(zip(rows, keys, strict=True)) if "" in key and i not in right]
    return set(map(id, sorted(wrong, key=len)[:surplus]))


def _rows(tables: list[TableRows]) -> Iterator[list[Cell]]:
    """In reading order; those of inner tables follow the row that they are in."""
    for table in tables:
        for row in table:
            yield row
            for cell in row:
                yield from _rows(cell.tables)


def _key(row: list[Cell]) -> Row:
    texts = tuple(cell.text for cell in row if cell.text)
    return texts if texts or any(cell.tables for cell in row) else ("",) * len(row)


def _weight(table: TableRows, blanks_count: bool) -> int:
    return sum(blanks_count or bool(cell.text) for cell in cells_of(table))


class _Layout:
    """Collects rows, texts and nodes while it walks through tables."""

    def __init__(self, blanks_count: bool, limits: Limits | None, bare: set[int]) -> None:
        self.blanks_count = blanks_count
        self.most_filled = limits.filled_tables if limits else None
        self.bare = bare  # identities of rows whose cells are left out
        self.filled_tables = 0
        self.nodes = 0
        self.blanks = 0
        self.rows: list[Row] = []
        self.outer_rows = 0
        self.columns = 0
        self.cells: list[str] = []

    def rows_of(self, table: TableRows, outer: bool) -> tuple[Node, ...]:
        """A node for each row; none if the table is one too many."""
        counts = [self.blanks_count or any(cell.text for cell in row) for row in table]
        if any(counts):
            if self.filled_tables == self.most_filled:
                return ()
            self.filled_tables += 1
        rows_left = sum(counts)
        nodes = []
        for row, counted in zip(table, counts, strict=True):
            if counted:
                self.rows.append(tuple(cell.text for cell in row if cell.text))
            if outer and counted:
                self.outer_rows += 1
                columns = sum(cell.colspan for cell in row if cell.text or self.blanks_count)
                self.columns = max(self.columns, columns)
            blank = not any(cell.text for cell in row)
            cells = () if id(row) in self.bare else tuple(self.cell(cell, rows_left) for cell in row)
            rows_left -= counted
            nodes.append(self.node(("tr", blank), cells))
        return tuple(nodes)

    def cell(self, cell: Cell, rows_left: int) -> Node:
        """A cell spans at most the rows that are left; blank ones do not count, so that adding them changes no span."""
        self.cells.append(cell.text)
        rowspan = max(1, min(cell.rowspan or rows_left, rows_left))
        inner = tuple(row for table in cell.tables for row in self.rows_of(table, outer=False))
        return self.node(("td", cell.colspan, rowspan, not cell.text), inner)

    def node(self, label: Label, children: tuple[Node, ...]) -> Node:
        self.nodes += 1
        self.blanks += label[-1]
        return Node(label, children)
