"""The degeneration gate of tables in the robust profile: loops that are seen, and padding that is not.

On the raw string a comment or an inline tag here and there would break up a loop and raise the reward. So the text
that is shown passes the gate of `rewards.gate`, which no invisible markup changes. What is not shown is bounded by its
amount instead, which more of it can only raise: blank cells and rows beyond the reference's, and characters of markup.
With both gates a padded prediction is never better off than without the padding.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewards.gate import Gate, published_terms, repeats_gate
from rewards.tables.document import Cell, Document, TableRows
from rewards.types import RewardConfig

# Characters of unseen markup that cost nothing for each cell, for a style or two, and beside those.
UNSEEN_PER_CELL = 256
UNSEEN_BESIDES = 512


@dataclass(frozen=True)
class Amounts:
    """What a string of HTML shows, and how much in it is not shown.

    Attributes:
        cells: tables, rows and cells with text, written in HTML again.
        outside: text outside of cells.
        blanks: number of cells and rows without text.
        blank_cells: the cells among them.
        unseen: characters that are neither text, `<td>` nor white space.
        free: how many of these cost nothing.
    """

    cells: str
    outside: str
    blanks: int
    blank_cells: int
    unseen: int
    free: int


def measure(markup: str, document: Document, wanted_blank_cells: int) -> Amounts:
    """The amounts in a string that was read as a document.

    Args:
        markup: the string.
        document: what it was read as.
        wanted_blank_cells: how many blank cells have free markup as cells with text do: those of the reference. Further
            ones have none, so that they cannot make room for more markup; 0 for the reference itself, whose own amount
            of markup is free in any case.
    """
    texts = [cell.text for cell in document.cells()]
    shown = sum(map(_length, texts)) + _length(document.outside)
    blank_cells = texts.count("")
    with_free_markup = len(texts) - blank_cells + min(blank_cells, wanted_blank_cells)
    return Amounts(
        cells="".join(map(_table_text, document.tables)),
        outside=document.outside,
        blanks=sum(map(_blanks, document.tables)),
        blank_cells=blank_cells,
        unseen=_length(markup) - len("<td>") * len(texts) - shown,
        free=UNSEEN_BESIDES + UNSEEN_PER_CELL * with_free_markup,
    )


def table_gate(prediction: str, found: Amounts, wanted: Amounts, config: RewardConfig) -> Gate:
    """The smallest of the gates; `rho8` and `longest_run` are those of the raw prediction."""
    blanks = found.blanks - wanted.blanks
    return Gate(
        min(
            repeats_gate(found.cells, wanted.cells, config),
            repeats_gate(found.outside, wanted.outside, config),
            config.gate_repeat_free / max(config.gate_repeat_free, blanks),
            max(found.free, wanted.unseen) / max(found.free, wanted.unseen, found.unseen),
        ),
        *published_terms(prediction, config),
    )


def _length(text: str) -> int:
    return len("".join(text.split()))


def _blanks(table: TableRows) -> int:
    blanks = 0
    for row in table:
        texts = [cell.text for cell in row]
        blanks += texts.count("") + (not any(texts))
        blanks += sum(_blanks(inner) for cell in row for inner in cell.tables)
    return blanks


def _table_text(table: TableRows) -> str:
    rows = ("".join(map(_cell_text, row)) for row in table)
    return "<table>" + "".join(f"<tr>{row}" for row in rows if row)


def _cell_text(cell: Cell) -> str:
    return (f"<td>{cell.text}" if cell.text else "") + "".join(map(_table_text, cell.tables))
