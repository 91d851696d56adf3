"""Samples tables (header rows, empty cells, spans) and writes them as HTML."""

from __future__ import annotations

import random
from dataclasses import dataclass
from html import escape

from gravity_rl.synth import text
from gravity_rl.synth.knobs import CropKnobs
from gravity_rl.synth.split import Split, draw_from_split

_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class Cell:
    """A cell at (row, col) of the grid; spans are at least 1."""

    row: int
    col: int
    text: str
    rowspan: int = 1
    colspan: int = 1
    header: bool = False


@dataclass(frozen=True)
class Table:
    """Cells in reading order over a grid of ``rows`` x ``cols`` that they cover exactly once."""

    rows: int
    cols: int
    cells: tuple[Cell, ...]

    def html(self) -> str:
        """The table as the HTML a model should write: no attributes but spans."""
        parts = ["<table>"]
        for row in range(self.rows):
            parts.append("<tr>")
            for cell in (c for c in self.cells if c.row == row):
                tag = "th" if cell.header else "td"
                spans = f' colspan="{cell.colspan}"' if cell.colspan > 1 else ""
                spans += f' rowspan="{cell.rowspan}"' if cell.rowspan > 1 else ""
                parts.append(f"<{tag}{spans}>{escape(cell.text, quote=False)}</{tag}>")
            parts.append("</tr>")
        return "".join([*parts, "</table>"])


def cell_text(rng: random.Random, knobs: CropKnobs, numeric: bool) -> str:
    """A number in a numeric column, else a word; cut to the allowed length."""
    content = text.number(rng) if numeric else text.word(rng)
    if rng.random() < 0.03:
        content = rng.choice(["-", "n/a", "&", "<1", ">9", "+"])
    return content[: rng.randint(*knobs.cell_chars)]


def _spanning_cells(rng: random.Random, rows: int, cols: int, first_body_row: int) -> list[tuple[int, int, int, int]]:
    """One or two (row, col, rowspan, colspan) rectangles that do not overlap and leave every row a cell start."""
    spans: list[tuple[int, int, int, int]] = []
    if cols >= 3 and rng.random() < 0.6:
        width = rng.randint(2, cols - 1)
        spans.append((0, rng.randint(0, cols - width), 1, width))
    first_row = max(first_body_row, len(spans))
    if rows - first_row >= 2 and (not spans or rng.random() < 0.5):
        height = rng.randint(2, min(3, rows - first_row))
        spans.append((rng.randint(first_row, rows - height), 0, height, 1))
    return spans


def sample_table(rng: random.Random, knobs: CropKnobs, split: Split) -> Table:
    """A table in which every row has content of the given split and at least one cell of its own."""
    rows, cols = rng.randint(*knobs.rows), rng.randint(*knobs.cols)
    has_header = rng.random() < knobs.header
    numeric = [rng.random() < 0.5 and col > 0 for col in range(cols)]
    wanted = _spanning_cells(rng, rows, cols, int(has_header)) if rng.random() < knobs.spans else []
    spans = {(row, col): (height, width) for row, col, height, width in wanted}
    covered = {
        (row + i, col + j): (row, col)
        for (row, col), (height, width) in spans.items()
        for i in range(height)
        for j in range(width)
    }
    cells: list[Cell] = []
    for row in range(rows):
        header = has_header and row == 0
        columns = [col for col in range(cols) if covered.get((row, col), (row, col)) == (row, col)]

        def draw(columns: list[int] = columns, header: bool = header) -> str:
            texts = []
            for position, col in enumerate(columns):
                empty = not header and position > 0 and rng.random() < knobs.empty_cell
                texts.append("" if empty else cell_text(rng, knobs, numeric[col] and not header))
            return _SEPARATOR.join(texts)

        texts = draw_from_split(split, draw).split(_SEPARATOR)
        for col, content in zip(columns, texts, strict=True):
            height, width = spans.get((row, col), (1, 1))
            cells.append(Cell(row, col, content, height, width, header))
    return Table(rows, cols, tuple(cells))


def row_units(table: Table) -> list[str]:
    """The units of content whose split decides where the table belongs: one string a row."""
    return [_SEPARATOR.join(c.text for c in table.cells if c.row == row) for row in range(table.rows)]
