"""Stuffing never pays: what no reader would see, and what is no content, cannot raise the reward of a wrong table.

A prediction is rendered once as it is and once with additions: inline tags, empty cells and rows, line breaks,
comments, escaped markup, hidden text, repeated tables, or chatter around the table. Under the robust profile the second
never has the higher reward, for any reference without blank cells (where a reference has blank cells, an empty cell may
be what is missing). The published formula pays for some of these; which ones is tested too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import RewardConfig, table_reward

PUBLISHED = RewardConfig()
ROBUST = RewardConfig(profile="robust")

WORDS = [
    "Item",
    "Qty",
    "Bolt",
    "12",
    "0",
    "1.5",
    "kg",
    "a",
    "ab",
    "br",
    "b",
    "x y",
    "p &lt; 0.05",
    "R&amp;D",
    "µm",
    "-",
]
ANSWER = "Item"
Row = list[tuple[str, str]]  # attributes and content of each cell

spans = st.sampled_from([""] * 6 + [' colspan="2"', " rowspan=2", ' rowspan="0"', ' colspan="3"', " rowspan='9'"])
words = st.sampled_from(WORDS)


def rows(content: st.SearchStrategy[str]) -> st.SearchStrategy[list[Row]]:
    row = st.lists(st.tuples(spans, content), min_size=1, max_size=4)
    return st.lists(row, min_size=1, max_size=5)


@dataclass
class Table:
    """A prediction: its rows, and what is added before and behind each of its parts."""

    rows: list[Row]
    before: str = ""
    behind: str = ""
    inserted: dict[tuple[int, ...], str] = field(default_factory=dict)  # before a row, or a row and a cell

    def html(self) -> str:
        lines = [self._added(i) + self._row(i, row) for i, row in enumerate(self.rows)]
        return f"{self.before}<table>{''.join(lines)}{self._added(len(self.rows))}</table>{self.behind}"

    def _row(self, i: int, row: Row) -> str:
        cells = (f"{self._added(i, j)}<td{spans}>{content}</td>" for j, (spans, content) in enumerate(row))
        return f"<tr>{''.join(cells)}{self._added(i, len(row))}</tr>"

    def _added(self, *where: int) -> str:
        return self.inserted.get(where, "")


def in_cells(table: Table, stuff: Callable[[str], str], numbers: set[int]) -> Table:
    """Stuffs the contents of cells, counted in reading order."""
    number = iter(range(1000))
    changed = [[(a, stuff(text) if next(number) in numbers else text) for a, text in row] for row in table.rows]
    return replace(table, rows=changed)


@st.composite
def wrong_tables(draw: st.DrawFn, reference: list[Row]) -> Table:
    """A table of its own, or the reference with rows and cells missing, doubled, changed or blank."""
    if draw(st.booleans()):
        return Table(draw(rows(words | st.just(""))))
    changed: list[Row] = []
    for row in reference:
        change = draw(st.integers(0, 9))
        if change > 1:
            contents = st.sampled_from([None] * 4 + ["", "x", "Itm"])
            changed += [[(a, text if (new := draw(contents)) is None else new) for a, text in row]] * (
                1 + (change == 9)
            )
    return Table(changed or [[("", "x")]])


INLINE = ["<b></b>", "<i>", "</sup>", "<span class='n'></span>", "<font color=red></font>", "<a href='x'></a>", "<wbr>"]
WRAPPED = ["b", "i", "sup", "span", "u", "strong", "code", "em"]
COMMENTS = ["<!-- note -->", f"<!--<td>{ANSWER}</td>-->", "<!---->", "<?php x ?>", "<![CDATA[x]]>", f"<!{ANSWER}>"]
ESCAPED = [
    "&lt;br&gt;",
    "&lt;td&gt;&lt;/td&gt;",
    "&#60;b&#62;",
    "&lt;span class=x&gt;",
    "&amp;lt;br&amp;gt;",
    "&LT;tr>",
]
HIDDEN = [
    '<span style="display:none">{}</span>',
    "<div hidden>{}</div>",
    "<p style='color: red; visibility : hidden'>{}</p>",
    '<b style="font-size:0px">{}</b>',
    '<i style="opacity:0.0">{}</i>',
    "<script>{}</script>",
    "<style>{}</style>",
    "<template><td>{}</td></template>",
    "<noscript>{}</noscript>",
    "<span hidden><span>{}</span>{}</span>",
    "<table hidden><tr><td>{}</td></tr></table>",
    "<svg><text>{}</text></svg>",
    "<img alt='{}' title='{}'>",
    "<input type=hidden value={}>",
]
EMPTY_CELLS = [
    "<td></td>",
    "<td> </td>",
    "<td>&nbsp;</td>",
    "<th></th>",
    "<td><br></td>",
    "<td colspan=3></td>",
    "<td>",
]
EMPTY_ROWS = [
    "<tr></tr>",
    "<tr><td></td></tr>",
    "<tr><td></td><td></td></tr>",
    "<tr><td> </td></tr>",
    "<tr hidden></tr>",
]
BETWEEN_ROWS = [
    "<table></table>",
    "<table>",
    "</table>",
    "</table></table>x",
    "</table><p>x</p>",
    "<table hidden></table>",
    "<table><tr></tr></table>",
    "<table><tr><td></td></tr></table>" * 3,
    "<table><tr><td></td><td></td></tr>",
]
CHATTER = [
    "Here is the table:\n",
    "```html\n",
    "```",
    "Item Qty Bolt 12",
    "</table>",
    "p &lt; 0.05",
    "<br>",
    "<p>x</p>",
]


def cells_chosen(draw: st.DrawFn) -> set[int]:
    return draw(st.sets(st.integers(0, 12), min_size=1, max_size=6))


def stuffed_cells(pieces: list[str]) -> Callable[[st.DrawFn, Table], Table]:
    def add(draw: st.DrawFn, table: Table) -> Table:
        piece = draw(st.sampled_from(pieces)).replace("{}", draw(words)) * draw(st.integers(1, 3))
        behind = draw(st.booleans())
        return in_cells(table, lambda text: text + piece if behind else piece + text, cells_chosen(draw))

    return add


def split_cells(pieces: list[str]) -> Callable[[st.DrawFn, Table], Table]:
    """Inside the text."""

    def add(draw: st.DrawFn, table: Table) -> Table:
        piece = draw(st.sampled_from(pieces))
        return in_cells(
            table, lambda text: piece.join([text[:1], text[1:]]) if "&" not in text else text, cells_chosen(draw)
        )

    return add


def wrapped_cells(draw: st.DrawFn, table: Table) -> Table:
    tag = draw(st.sampled_from(WRAPPED))
    return in_cells(table, lambda text: f"<{tag}>{text}</{tag}>", cells_chosen(draw))


def empty_cells(draw: st.DrawFn, table: Table) -> Table:
    row = draw(st.integers(0, len(table.rows) - 1))
    place = row, draw(st.integers(0, len(table.rows[row])))
    return replace(table, inserted={place: draw(st.sampled_from(EMPTY_CELLS)) * draw(st.integers(1, 4))})


def empty_rows(draw: st.DrawFn, table: Table) -> Table:
    place = (draw(st.integers(0, len(table.rows))),)
    return replace(table, inserted={place: draw(st.sampled_from(EMPTY_ROWS)) * draw(st.integers(1, 4))})


def repeated_table(draw: st.DrawFn, table: Table) -> Table:
    copy = table.html() * draw(st.integers(1, 3))
    return replace(table, behind=copy) if draw(st.booleans()) else replace(table, before=copy)


def empty_table(draw: st.DrawFn, table: Table) -> Table:
    copy = draw(st.sampled_from(["<table></table>", "<table><tr><td></td></tr></table>"])) * draw(st.integers(1, 3))
    return replace(table, behind=copy) if draw(st.booleans()) else replace(table, before=copy)


def tables_between_rows(draw: st.DrawFn, table: Table) -> Table:
    """A table between two rows, or the end of the table there, does not take the rows behind it away."""
    return replace(table, inserted={(draw(st.integers(0, len(table.rows))),): draw(st.sampled_from(BETWEEN_ROWS))})


def chatter(draw: st.DrawFn, table: Table) -> Table:
    text = draw(st.sampled_from(CHATTER))
    return replace(table, behind=text) if draw(st.booleans()) else replace(table, before=text)


KINDS = {
    "inline tags": stuffed_cells(INLINE),
    "inline tags inside the text": split_cells(INLINE),
    "inline tags around the text": wrapped_cells,
    "line breaks": stuffed_cells(["<br>", "<br/>", "<hr>", "<p></p>"]),
    "comments": stuffed_cells(COMMENTS),
    "comments inside the text": split_cells(COMMENTS),
    "escaped markup": stuffed_cells(ESCAPED),
    "hidden text": stuffed_cells(HIDDEN),
    "empty cells": empty_cells,
    "empty rows": empty_rows,
    "repeated tables": repeated_table,
    "empty tables": empty_table,
    "tables between rows": tables_between_rows,
    "chatter": chatter,
}

# The published formula pays for some of the others, see below.
PUBLISHED_KINDS = [
    "inline tags",
    "inline tags inside the text",
    "inline tags around the text",
    "line breaks",
    "comments",
    "comments inside the text",
    "repeated tables",
    "chatter",
]


@st.composite
def stuffing(draw: st.DrawFn, kind: str) -> tuple[str, str, str]:
    """A reference, a prediction and the stuffed prediction."""
    reference = draw(rows(words))
    table = draw(wrong_tables(reference))
    return Table(reference).html(), table.html(), KINDS[kind](draw, table).html()


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_stuffing_never_pays(kind: str, data: st.DataObject) -> None:
    reference, plain, stuffed = data.draw(stuffing(kind))
    assert table_reward(stuffed, reference, ROBUST).value <= table_reward(plain, reference, ROBUST).value + 1e-12


@pytest.mark.parametrize("kind", PUBLISHED_KINDS)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_what_never_pays_under_the_published_formula(kind: str, data: st.DataObject) -> None:
    reference, plain, stuffed = data.draw(stuffing(kind))
    assert table_reward(stuffed, reference).value <= table_reward(plain, reference).value + 1e-12


def table(*rows: str) -> str:
    return Table([[("", cell) for cell in row.split("|")] for row in rows]).html()


# Name: the reference, a wrong prediction, and the same with an addition.
PAID = {
    "an empty cell that repairs the structure": (table("a|b"), table("x"), table("x|")),
    "an empty row that repairs the structure": (table("a", "b"), table("x"), table("x", "")),
    "an empty cell that makes a repeated row another": (
        table(*(f"{row}|b" for row in range(9))),
        table(*["a|b"] * 9),
        table(*("a|b" + "|" * row for row in range(9))),
    ),
    "an empty table before the table": (table("a"), table("|"), table("") + table("|")),
    "escaped cells": (table("a|b"), table("x"), table("x&lt;/td&gt;&lt;td&gt;")),
    "markup escaped twice": (table("b"), table("x"), table("x&amp;lt;br&amp;gt;")),
    "hidden text": (table("a"), table("x"), table("x<b hidden>a</b>")),
    "text in a script": (table("a"), table("x"), table("x<script>a</script>")),
    "the alternative text of nothing": (table("a"), table("x"), table('x<math alttext="a"></math>')),
    "an end tag in a comment": (
        table("a"),
        "<table><tr><td>a</td></tr>",
        "<table><tr><td>a</td></tr><!-- </table> -->",
    ),
    "tags that break up a loop": (
        table("c"),
        table("a b " * 40),
        table("".join(f"a<i {number}></i> b " for number in range(40))),
    ),
}


@pytest.mark.parametrize("name", PAID)
def test_what_the_published_formula_pays_for(name: str) -> None:
    reference, plain, stuffed = PAID[name]
    assert table_reward(stuffed, reference).value > table_reward(plain, reference).value
    assert table_reward(stuffed, reference, ROBUST).value <= table_reward(plain, reference, ROBUST).value


def test_a_table_repeated_inside_a_cell_does_not_pay() -> None:
    reference, plain = table("a", "b", "c", "d"), table("a", "b")
    stuffed = plain.replace("b", f"b{plain}")
    assert table_reward(stuffed, reference, ROBUST).value < table_reward(plain, reference, ROBUST).value


@pytest.mark.parametrize(
    "piece", ["<b id={}></b>", "<!-- {} -->", "<i hidden>{}</i>", "<script>{}</script>", "<td></td>"]
)
def test_nothing_unseen_breaks_up_a_loop(piece: str) -> None:
    reference, rows = table("Item|Qty", "Bolt|12"), ["alpha 7", "beta", "gamma"] * 60
    plain, stuffed = table(*rows), table(*(row + piece.format(number) for number, row in enumerate(rows)))
    assert table_reward(plain, reference, ROBUST).parts["gate"] < 0.5
    assert table_reward(stuffed, reference, ROBUST).value <= table_reward(plain, reference, ROBUST).value


@pytest.mark.parametrize("between", BETWEEN_ROWS)
def test_wrong_rows_behind_a_table_or_its_end_count(between: str) -> None:
    reference, wrong = table("a"), table("a", "0")
    plain = table_reward(wrong, reference, ROBUST).value
    assert plain < 0.5
    assert table_reward(wrong.replace("</tr><tr>", f"</tr>{between}<tr>"), reference, ROBUST).value <= plain


def test_wrong_rows_beside_the_table_count() -> None:
    reference = table("a", "b")
    for beside in ("{0}<tr><td>0</td></tr>", "<tr><td>0</td></tr>{0}", "{0}</table><td>0", "<td>0{0}"):
        assert table_reward(beside.format(reference), reference, ROBUST).value < 0.8, beside


def test_markup_has_no_room_in_blank_cells_that_the_reference_lacks() -> None:
    breaks = "<br/>" * 2000
    for reference in (table("Item|Qty", "Bolt|12"), table("Item|", "Bolt|12")):
        values = [
            table_reward(table(f"q{breaks}{'|' * more}"), reference, ROBUST).parts["gate"] for more in (0, 1, 2, 9, 60)
        ]
        assert values[0] < 0.08 and max(values) < 0.11
        assert values[1:] == sorted(values[1:], reverse=True)
