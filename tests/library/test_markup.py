"""The scorer's normalisation: against BeautifulSoup on random markup, and its rules one by one."""

from __future__ import annotations

import html
import re
import unicodedata
import warnings

import pytest
from bs4 import BeautifulSoup, XMLParsedAsHTMLWarning
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rewards.html.repair import repair
from rewards.html.table import parse_table
from rewards.markup import normalize_formula, normalize_table, normalize_text

START, END = '<html><body><table border="1" >', "</table></body></html>"

# Constructs that all versions of the standard library's parser read alike.
TAGS = [
    "table",
    "tr",
    "td",
    "th",
    "thead",
    "tbody",
    "span",
    "b",
    "sup",
    "p",
    "div",
    "colgroup",
    "caption",
    "math",
]
FRAGMENTS = [form.format(tag) for tag in [*TAGS, "i", "pre"] for form in ("<{}>", "</{}>")]
FRAGMENTS += ["<br>", "<br/>", "</br>", "<td/>", "<col/>", "<TD>", "</TR>", "<Th>"]
FRAGMENTS += [f"&{name};" for name in ("lt", "gt", "amp", "nbsp", "foo", "#65", "#x41", "#150", "notin", "fjlig")]
FRAGMENTS += ["&amp;lt;", "&lt;br&gt;", "&lt;td&gt;", "&#0;", "&#xd800;", "&#x110000;", "&copy,"]
FRAGMENTS += [
    '<td colspan="2">',
    "<td colspan=2 rowspan='3'>",
    '<td rowspan="2" colspan="2">',
    "<td style=\"a: b\" class='x'>",
    '<th align="left" colspan="2">',
    '<td a="&lt;" b=\'"\'>',
    "<td a='\"' b=\"x'y\">",
    "<td a>",
    '<td colspan="2" colspan="3">',
    '<td title="a > b">',
    '<td\n rowspan="2"\n>',
    '<math alttext="x^2"><mi>x</mi></math>',
    "<!-- c -->",
    "<!-- &lt; -->",
    "<!DOCTYPE html>",
    "<td >",
    "</td >",
    *(
        "a",
        "b c",
        " ",
        "\n",
        "\t ",
        "  ",
        '"',
        "'",
        "\u00e9",
        "\uff11",
        "$x$",
        r"\frac{1}{2}",
        "< ",
        "1<2",
        " > ",
    ),
]


def scorer_normal_form(markup: str) -> str:
    """The scorer's rules for a table, with the parser that it uses."""
    if "<table" not in markup.replace(" ", ""):
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", XMLParsedAsHTMLWarning)
        soup = BeautifulSoup(markup, "html.parser")
    for tag in soup.find_all("th"):
        tag.name = "td"
    for tag in soup.find_all("thead"):
        tag.unwrap()
    for tag in soup.find_all("math"):
        tag.replace_with(f"${tag.get('alttext', '')}$")
    for tag in soup.find_all("span"):
        tag.unwrap()
    text = unicodedata.normalize("NFKC", html.unescape(str(soup)).replace("\n", "")).strip()
    text = "".join(re.findall(r"<table\b[^>]*>(.*)</table>", text, re.DOTALL | re.IGNORECASE))
    for name in ("style", "height", "width", "align", "class"):
        text = re.sub(rf' {name}=".*?"', "", text)
    text = START + re.sub(r"\s+", " ", re.sub("</?tbody>", "", text)) + END
    for name in ("sup", "sub", "span", "div", "p"):
        text = text.replace(f"<{name}>", "").replace(f"</{name}>", "")
    return re.sub("<colgroup>.*?</colgroup>", "", text)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.sampled_from(["</table>", "", "</td></tr></table>"]))
@example(["<tr>", "<td>", "a", "<td>", "b"], "")
@example(["<math>", "<td>", "</math>", "x"], "</table>")
@example(["<thead>", "<tr>", "<th>", "a", "</thead>"], "</table>")
def test_tables_normalise_as_with_beautiful_soup(fragments: list[str], ending: str) -> None:
    markup = "<table>" + "".join(fragments) + ending
    assert normalize_table(markup) == scorer_normal_form(markup)


@pytest.mark.parametrize(
    ("markup", "inside"),
    [
        ("<table><tr><td>a<td>b</table>", "<tr><td>a<td>b</td></td></tr>"),
        ("x <table class='c'><tr></tr></table> y", "<tr></tr>"),
        ("<table><td>a</b></i></td></table>", "<td>a</td>"),
        ('<table><td>a<td style="b></table>', '<td>a<td style="b></td>'),  # unterminated: text
        ("<table><td><!-- never ends <td>x</table>", "<td><!-- never ends <td>x</td>"),
        ("<table><td>&#99999999999999999999;</td></table>", "<td>\ufffd</td>"),
        ("<table><td>a\x00b\ud800</td></table>", "<td>ab\ufffd</td>"),
        ("<table><style>td {}</style><td>a</td></table>", "<style>td {}</style><td>a</td>"),
        ("<table><td " + "a" * 3000 + ">x</td></table>", "<td " + "a" * 3000 + ">x"),  # too long for a tag
    ],
)
def test_broken_tables(markup: str, inside: str) -> None:
    assert normalize_table(markup) == START + inside + END


@pytest.mark.parametrize("markup", ["", "text", "<TABLE><tr><td>a</td></tr></TABLE>", "<tr><td>a</td></tr>"])
def test_without_a_lower_case_table_tag_there_is_no_table(markup: str) -> None:
    assert normalize_table(markup) == ""
    assert parse_table("") is None


@given(st.text(st.characters(exclude_categories=()), max_size=40))
@settings(deadline=None, max_examples=100)
def test_text_without_markup_is_left_alone(text: str) -> None:
    text = "x" + text.replace("<", "").replace("&", "")
    assert repair(text) == text


def test_rows_cells_and_columns_are_those_of_the_outer_table() -> None:
    inner = "<table><tr><td>1</td></tr><tr><td>2</td></tr></table>"
    table = parse_table(
        normalize_table(f'<table><tr><td colspan="3">a  b</td><td>{inner}</td></tr><tr><td>c</td></tr></table>')
    )
    assert table is not None
    assert table.rows == (("a b", "12"), ("c",))
    assert table.cell_texts == ("a b", "12", "c")
    assert table.columns == 4
    assert table.nodes == 5


@pytest.mark.parametrize(
    ("colspan", "columns"),
    [
        *[("2", 2), ("", 1), ("2;", 2), ("NaN", 1), ("0", 1), ("-3", 1), ("1000", 1000), ("999999999", 1000)],
        *[("9" * 1900, 1000), (" 4", 4), ("\u0663", 1)],
    ],
)
def test_colspans_are_read_leniently_and_clamped(colspan: str, columns: int) -> None:
    table = parse_table(normalize_table(f"<table><tr><td colspan='{colspan}'>a</td></tr></table>"))
    assert table is not None
    assert table.columns == columns


def test_nesting_beyond_the_depth_limit_is_not_read() -> None:
    table = parse_table(normalize_table("<table><tr><td>a</td></tr>" + "<i><td>" * 100 + "</table>"))
    assert table is not None
    assert "a" in table.cell_texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World_1!", "HelloWorld_1"),
        (r"either/that\n a\tb", "eitherhatab"),
        (r"$\alpha$ and \(\beta\)", "\u03b1and\u03b2"),
        (r"$x\_y$ R\&D", "x_yRD"),  # an escaped underscore alone is no LaTeX
        ("$5 and $6", "5and6"),
        ("$a_1\n+b_2$", "a_1b_2"),  # not on one line
        (r"\(a \( b", "ab"),
        (r"$\input{/etc/passwd}$x", "x"),
        (r"$\sqrt$", "sqrt"),
        (r"$\frac{1$", "frac1"),  # not balanced
        (r"$" + r"\hat{" * 7 + "x" + "}" * 7 + "$", "hat" * 7 + "x"),  # too deep to convert
        (r"$\alpha\in[0,1)$", "\u03b101"),
        ("\u672c\u7814\u3002", "\u672c\u7814"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert normalize_text(text) == expected


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        (r"a \leftarrow b", "aarrowb"),
        (r"\begin{matrix} a & b \end{matrix}", "a&b"),
        ("$$ X+Y $$", "x+y"),
        (r"see \[x^2 \tag{1}\] end", "x^2"),
        (r"x_{\textrm{in}}.", "x_{rm{in}}"),
        (r"\mathbf{x}\hspace{1cm}\quad y", "{x}y"),
    ],
)
def test_formulas(latex: str, expected: str) -> None:
    assert normalize_formula(latex) == expected
