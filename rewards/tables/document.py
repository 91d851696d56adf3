"""Tables as they are shown: what `rewards.html.reader` makes of a string of HTML, for the robust profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Cell:
    """A cell.

    Attributes:
        text: its own, in the form in which texts are compared; what tables inside it hold is not part of it.
        colspan: 1 ... 1000.
        rowspan: as declared; 0 is the rest of the table, as in the HTML standard.
        tables: the rows of each table inside it.
    """

    text: str
    colspan: int
    rowspan: int
    tables: list[TableRows] = field(default_factory=list)


TableRows = list[list[Cell]]


@dataclass(frozen=True)
class Document:
    """What a string of HTML shows.

    Attributes:
        tables: rows of each table that is not inside another.
        opened: number of tables that begin with a `<table>`.
        closed: how many of them end with a `</table>`.
        outside: text outside of cells.
        stray_text: the part of it that is inside tables if there is a `<table>`, else all of it.
    """

    tables: list[TableRows]
    opened: int
    closed: int
    outside: str
    stray_text: str

    def cells(self) -> Iterator[Cell]:
        """In reading order; those of inner tables follow the cell that they are in."""
        for table in self.tables:
            yield from cells_of(table)


def cells_of(table: TableRows) -> Iterator[Cell]:
    """The same for one table."""
    for row in table:
        for cell in row:
            yield cell
            for inner in cell.tables:
                yield from cells_of(inner)
