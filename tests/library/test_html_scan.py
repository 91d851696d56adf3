"""The strict reader of plain tables against the scorer's normalisation and parser, on random markup."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.html.scan import scan_table
from rewards.html.table import parse_table
from rewards.markup import normalize_table

SPACES = st.sampled_from(["", "", "", " ", "\n", " \n\t", "\n\n", "\t"])
SECTIONS = st.sampled_from(["", "", "", "<thead>", "</thead>", "<tbody>", "</tbody>"])
# fmt: off
SPANS = st.sampled_from(
    [' colspan="2"', ' rowspan="3"', ' colspan="0"', ' colspan=""', ' rowspan="-1"', ' colspan="2;"']
)
OTHERS = st.sampled_from(
    [' colspan="1001"', ' style="a: b"', ' class="colspan"', ' width="\n"', ' colspan="\u0663"', ""]
)
TEXT = st.sampled_from(
    [
        "a",
        "b c",
        "",
        " ",
        "\n",
        " \n ",
        "1.5",
        "p > 0",
        '"',
        "'",
        "é",
        "±",
        "中",
        "\u2028",
        "\u200b",
        "\\n",
        "$x$",
        "\u06cf",
    ]
) | st.sampled_from(["<b>", "</b>", "<i>", "</i>", "<sup>", "</sup>", "<em>", "</strong>"])
# fmt: on
CELLS = st.builds(
    lambda tag, attributes, pieces, space: f"<{tag}{''.join(attributes)}>{''.join(pieces)}</{tag}>{space}",
    st.sampled_from(["td", "td", "th"]),
    st.lists(SPANS | OTHERS, max_size=3),
    st.lists(TEXT, max_size=4),
    SPACES,
)
ROWS = st.builds(
    lambda section, space, cells: f"{section}{space}<tr>{space}{''.join(cells)}</tr>{space}",
    SECTIONS,
    SPACES,
    st.lists(CELLS, max_size=4),
)
MARKUP = st.builds(
    lambda opening, rows, section, space: f"{space}{opening}{''.join(rows)}{section}</table>{space}",
    st.sampled_from(["<table>", "<table>", '<table border="1">', '<table a="b" style="c">']),
    st.lists(ROWS, max_size=4),
    SECTIONS,
    SPACES,
)
# fmt: off
ODD = [
    '="',
    ' style="x" y',
    "x²",
    "ﬁ",
    "\xa0",
    "́",
    "̸",
    "\x0b",
    "\x7f",
    "\x00",
    "�",
    "\ufffe",
    "&amp;",
    "<",
    "&lt;b&gt;",
    "<br>",
    "<td>",
    "</td>",
    "</th>",
    "<math>",
    "</tr>",
    "<span>",
    "<tr>",
    "<table>",
    "</table>",
    "x",
    ">",
    " colspan=2",
    " colspan='2'",
    " a",
    '"',
    "/",
    "<!--",
    "<tfoot>",
    "</tfoot>",
    "<tbody>",
    '<tr class="a">',
    "T",
]
# fmt: on
MUTATIONS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.sampled_from(["", *ODD])), max_size=2)


def mutate(markup: str, mutations: list[tuple[int, int, str]]) -> str:
    """The markup with up to three characters replaced by something odd, at each of some places."""
    for place, length, piece in mutations:
        start = place % (len(markup) + 1)
        markup = markup[:start] + piece + markup[start + length :]
    return markup


@settings(deadline=None, max_examples=800)
@given(MARKUP, MUTATIONS)
def test_what_the_strict_reader_accepts_it_reads_as_the_parser_does(markup: str, mutations) -> None:
    markup = mutate(markup, mutations)
    scanned = scan_table(markup)
    assert scanned is None or scanned == parse_table(normalize_table(markup))


@settings(deadline=None, max_examples=200)
@given(MARKUP)
def test_plain_markup_is_accepted(markup: str) -> None:
    scanned = scan_table(markup)
    assert scanned == parse_table(normalize_table(markup))
    assert scanned is not None or "<td" not in markup


PLAIN = [
    "<table><tr><td>> \n</b>a</td></tr></table>",
    "<table><tr><td>a</td><th>b</th></tr></table>",
    '\n<table border="1">\n <thead>\n<tr>\n<th colspan="2">a <b>b</b>\nc</th>\n</tr></thead><tbody></tbody></table>\n',
    "<table><tr></tr><tr><td> a  b\n</td><td></td></tr></table>",
    '<table><tr><td rowspan="0" colspan="x">a<sup>2</sup></td></tr></tbody></table>',
    "<table><tr><td>a > b ± \u4e2d</td></tr></table>",
]


@pytest.mark.parametrize("markup", PLAIN)
def test_plain_tables_are_accepted(markup: str) -> None:
    scanned = scan_table(markup)
    assert scanned is not None
    assert scanned == parse_table(normalize_table(markup))


@pytest.mark.parametrize(
    "markup",
    [
        "",
        "<table></table>",
        "<table><tr></tr></table>",
        "<table><tr><td>a</table>",
        "<table><tr><td>a</td></tr>",
        "<table><td>a</td></table>",
        "<table><tr><td>&amp;</td></tr></table>",
        "<table><tr><td>ﬁ</td></tr></table>",
        "<table><tr><td><table></table></td></tr></table>",
        "<table><tr><td>a</th></tr></table>",
        '<table><tr><td style="' + "x" * 3000 + '">a</td></tr></table>',
        "<table><tr><td>a</td></tr></table> and",
        "<table><tr><td>\n\u0338</td></tr></table>",
        "<table><tr><td>a</b>\u0301</td></tr></table>",
        "<table><tr><td></b>\u0338</td></tr></table>",
    ],
)
def test_anything_else_is_left_to_the_parser(markup: str) -> None:
    assert scan_table(markup) is None
