"""The evaluation metrics: known values, TEDS against apted, and what holds for any strings."""

from __future__ import annotations

import math
import time

import apted
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lxml import html
from rapidfuzz.distance import Levenshtein

from rewards.markup import normalize_table
from rewards.metrics import (
    EditDistance,
    formula_edit_distance,
    mean_over_pages,
    overall,
    table_edit_distance,
    teds,
    teds_pubtabnet,
    text_edit_distance,
)
from rewards.trees.distance import Node

SAME = 1e-9  # sums of fractions in another order

# The slow reference: apted on the elements of lxml, contents as lists of tokens.


class Costs(apted.Config):
    def __init__(self, rename) -> None:
        self.rename = rename

    def children(self, node: Node) -> list[Node]:
        return list(node.children)


def cell_tokens(element) -> list[str]:
    tokens = list(element.text or "")
    for child in element:
        tokens += [f"<{child.tag}>", *cell_tokens(child)]
        tokens += [] if child.tag == "unk" else [f"</{child.tag}>"]
        tokens += [] if child.tag == "td" else list(child.tail or "")
    return tokens


def element_tree(element) -> Node:
    return Node(element, () if element.tag == "td" else tuple(map(element_tree, element)))


def slow_teds(document: str, other: str, structure_only: bool) -> float:
    """PubTabNet's TEDS of two documents that hold a table, written down from its definition."""
    parser = html.HTMLParser(remove_comments=True, encoding="utf-8")
    table, wanted = (html.fromstring(text, parser=parser).find("body/table") for text in (document, other))

    def rename(node: Node, other: Node) -> float:
        pair = (node.label, other.label)
        one, two = ((e.tag, int(e.get("colspan", 1)), int(e.get("rowspan", 1))) for e in pair)
        if "td" not in (one[0], two[0]):
            return float(one[0] != two[0])
        if one != two:
            return 1.0
        contents = [[] if structure_only else cell_tokens(element) for element in pair]
        longest = max(map(len, contents))
        return Levenshtein.distance(*contents) / longest if longest else 0.0

    elements = max(len(table.xpath(".//*")), len(wanted.xpath(".//*")))
    assume(elements)  # else it divides by zero
    trees = element_tree(table), element_tree(wanted)
    return 1.0 - apted.APTED(*trees, Costs(rename)).compute_edit_distance() / elements


contents = st.lists(
    st.sampled_from(["a", "b", "12", "<b>a</b>", "<i>b</i>c", "<br>", "é", "x<sup>2</sup>", "<unk>?", "<!--c-->"]),
    max_size=3,
)
spans = st.sampled_from([""] * 5 + [' colspan="2"', ' rowspan="2"', ' colspan="1"'])
cells = st.builds("<td{}>{}</td>".format, spans, contents.map("".join))
rows = st.lists(cells, max_size=4).map(lambda row: f"<tr>{''.join(row)}</tr>")
sections = st.builds(
    "<{0}>{1}</{0}>".format, st.sampled_from(["thead", "tbody", "tfoot"]), st.lists(rows, max_size=2).map("".join)
)
caption = st.sampled_from(["<caption>t<b>u</b></caption>", "<colgroup class='c'><col></colgroup>"])
tables = st.lists(rows | rows | rows | sections | caption, min_size=1, max_size=6).map(
    lambda parts: f"<table>{''.join(parts)}</table>"
)

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
fragments = [
    *(
        "<table>",
        "</table>",
        "<tr>",
        "</tr>",
        "<td>",
        "</td>",
        "<td colspan=''>",
        "<td rowspan=x>",
        "<th>",
        "<b>",
        "</b>",
    ),
    *(
        "<table><tr><td>a</td></tr></table>",
        "<!--",
        "-->",
        "<![CDATA[",
        "<?pi",
        "<html>",
        "<body>",
        "<!doctype",
        "<TABLE>",
    ),
    *(
        "<unk>",
        "<br>",
        "<style>",
        "<td style=",
        '"',
        "&#",
        "&amp;lt;",
        "\x00",
        "\ud800",
        "$",
        r"\frac",
        r"\(",
        "{",
        "}",
        " ",
    ),
]
any_markup = st.lists(st.sampled_from(fragments) | any_text, max_size=12).map("".join)
any_string = any_text | any_markup


@settings(deadline=None, max_examples=100)
@given(tables, tables, st.booleans())
def test_teds_of_random_tables_is_the_slow_one(prediction: str, reference: str, structure_only: bool) -> None:
    documents = [f"<html><body>{table}</body></html>" for table in (prediction, reference)]
    expected = slow_teds(*documents, structure_only)
    assert teds_pubtabnet(prediction, reference, structure_only=structure_only) == pytest.approx(expected, abs=SAME)
    expected = slow_teds(normalize_table(prediction), normalize_table(reference), structure_only)
    assert teds(prediction, reference, structure_only=structure_only) == pytest.approx(expected, abs=SAME)


def row(*contents: str) -> str:
    return "<tr>" + "".join(f"<td>{content}</td>" for content in contents) + "</tr>"


@pytest.mark.parametrize(
    ("prediction", "reference", "full", "structure"),
    [
        (row("ab", "cd"), row("ab", "cd"), 1.0, 1.0),
        (row("ab", "cx"), row("ab", "cd"), 1 - 0.5 / 3, 1.0),  # 1 of 2 characters, 3 elements
        (row("ab"), row("ab", "cd"), 1 - 1 / 3, 1 - 1 / 3),
        (row("ab") * 2, row("ab"), 1 - 2 / 4, 1 - 2 / 4),
        ("<tr><td colspan=2>ab</td></tr>", row("ab"), 0.5, 0.5),
        (row("<b>ab</b>"), row("ab"), 1 - (2 / 4) / 3, 1.0),  # two tags in four tokens; the tag is an element
        (row("ab" + "<br>" * 8), row("ab", "cd", "ef"), 1 - (2 + 16 / 18) / 10, 1 - 2 / 10),
        ("<tr></tr>", row("ab"), 0.5, 0.5),
        ("", row("ab"), 0.0, 0.0),
        # Where the official code raises.
        ("", "", 1.0, 1.0),
        ("<tr><td colspan=''>ab</td></tr>", row("ab"), 1.0, 1.0),
        ("<tr><td colspan='2;' rowspan='x'>ab</td></tr>", "<tr><td colspan=2>ab</td></tr>", 1.0, 1.0),
    ],
)
def test_known_teds(prediction: str, reference: str, full: float, structure: float) -> None:
    pair = f"<table>{prediction}</table>", f"<table>{reference}</table>"
    for metric in (teds, teds_pubtabnet):
        assert metric(*pair) == pytest.approx(full)
        assert metric(*pair, structure_only=True) == pytest.approx(structure)


def test_teds_may_be_negative() -> None:
    chain = "<table>" + "<i>" * 6 + "</i>" * 6 + "</table>"
    wide = '<table><tr><td colspan="2">a</td><td colspan="3">b</td><td colspan="4">c</td></tr></table>'
    assert teds(chain, wide) < 0
    assert teds(chain, wide, structure_only=True) < 0


@pytest.mark.parametrize(
    "nothing", ["", "text", "<tr><td>a</td></tr>", "<TABLE><tr><td>a</td></tr></TABLE>", "<!doctype>"]
)
def test_without_a_table_teds_is_zero(nothing: str) -> None:
    table = f"<table>{row('a')}</table>"
    assert teds(nothing, table) == teds(table, nothing) == teds(nothing, nothing) == 0.0


def test_a_whole_document_without_a_lower_case_table_tag_is_scored_as_it_stands() -> None:
    assert teds(f"<html><body><TABLE>{row('a')}</TABLE></body></html>", f"<table>{row('a')}</table>") == 1.0


@pytest.mark.parametrize(
    ("metric", "prediction", "reference", "expected"),
    [
        (text_edit_distance, "Helo, World", "Hello World", (1, 10)),
        (text_edit_distance, "", "abc", (3, 3)),
        (text_edit_distance, "", "", None),
        (text_edit_distance, "...", "---", (3, 3)),  # nothing is left of both: as they were
        (text_edit_distance, "...", "abc", (3, 3)),
        (text_edit_distance, " ", "", (1, 1)),
        (formula_edit_distance, "x^2", "$x^{2}$", (2, 5)),
        (formula_edit_distance, r"\leftarrow", r"\rightarrow", (0, 5)),
        (formula_edit_distance, "", "", None),
        (formula_edit_distance, "$$", "x", (2, 2)),
        (table_edit_distance, "abc", "ab", (1, 3)),
        (table_edit_distance, "", "", None),
    ],
)
def test_known_edit_distances(metric, prediction: str, reference: str, expected: tuple[int, int] | None) -> None:
    found = metric(prediction, reference)
    assert found == expected
    if found is not None:
        assert found.ned == found.edits / found.length


def test_pages_are_averaged_after_their_samples_are_summed() -> None:
    first = [EditDistance(1, 2), None, EditDistance(0, 8)]
    second = [EditDistance(1, 2)]
    assert mean_over_pages([first, second]) == pytest.approx((1 / 10 + 1 / 2) / 2)
    assert mean_over_pages([first, [None], [], second]) == mean_over_pages([first, second])
    assert mean_over_pages([[None], []]) is None
    assert mean_over_pages([]) is None


def test_overall_is_a_percentage_of_three_fractions() -> None:
    assert overall(0.0, 1.0, 1.0) == 100.0
    assert overall(0.1, 0.8, 0.6) == pytest.approx((90 + 80 + 60) / 3)
    assert overall(0.5, -0.2, 0.0) == pytest.approx((50 - 20) / 3)
    for name in ("text_edit", "teds", "cdm"):
        for wrong in (90.0, math.nan, -math.inf):
            with pytest.raises(ValueError, match=f"^{name} must be a fraction"):
                overall(**{"text_edit": 0.0, "teds": 0.0, "cdm": 0.0, name: wrong})


@pytest.mark.parametrize(
    "metric", [text_edit_distance, formula_edit_distance, table_edit_distance, teds, teds_pubtabnet]
)
def test_arguments_that_are_no_strings_are_named(metric) -> None:
    with pytest.raises(TypeError, match=r"^prediction must be a str, not NoneType$"):
        metric(None, "a")
    with pytest.raises(TypeError, match=r"^reference must be a str, not bytes$"):
        metric("a", b"a")


@settings(deadline=None, max_examples=100)
@given(any_string, any_string)
def test_edit_distances_of_any_strings(prediction: str, reference: str) -> None:
    for metric in (text_edit_distance, formula_edit_distance, table_edit_distance):
        found = metric(prediction, reference)
        assert found == metric(reference, prediction)
        assert (found is None) == (prediction == reference == "")
        assert found is None or 0 <= found.edits <= found.length
        copied = metric(reference, reference)
        assert copied is None if reference == "" else copied is not None and copied.edits == 0


@settings(deadline=None, max_examples=100)
@given(any_string, any_string, st.booleans())
@example("<html><head><table></table></head></html>", "<table></table>", False)
@example("<table>" + "<i><table>" * 5000, "<table>" + "<i><tr>" * 4000 + "</table>", False)
@example("<table><tr>" + "<td><td>" * 3000, "<table><tr><td>" + "<b>" * 3000 + "a</table>", False)
@example("<html><body><TABLE>\x00<tr><td>\ud800", "<table><tr><td>\ud800</td></tr></table>", False)
def test_teds_of_any_strings(prediction: str, reference: str, structure_only: bool) -> None:
    for metric in (teds, teds_pubtabnet):
        found = metric(prediction, reference, structure_only=structure_only)
        assert math.isfinite(found) and found <= 1.0
        assert found == pytest.approx(metric(reference, prediction, structure_only=structure_only), abs=SAME)
        if structure_only:
            assert found >= metric(prediction, reference) - SAME
        assert metric(reference, reference) in (0.0, 1.0)


@settings(deadline=None, max_examples=50)
@given(tables)
def test_a_copy_is_perfect(table: str) -> None:
    assert teds(table, table) == teds(table, table, structure_only=True) == teds_pubtabnet(table, table) == 1.0
    found = table_edit_distance(table, table)
    assert found is not None and found.ned == 0.0


def grid(rows: int, columns: int, step: int) -> str:
    """A table all of whose cells differ, from each other and from those of a grid with another step."""
    contents = (str(pow(step, index + 20, 999_999_937)) for index in range(rows * columns))
    return f"<table>{''.join(row(*(next(contents) for _ in range(columns))) for _ in range(rows))}</table>"


def test_forty_by_ten_cells_that_all_differ_take_well_under_a_second() -> None:
    prediction, reference = grid(40, 10, 7), grid(40, 10, 11)
    assert min(_seconds(prediction, reference) for _ in range(3)) < 1.2


def test_thousands_of_elements_are_compared_in_bounded_time() -> None:
    prediction, reference = grid(3000, 2, 7), grid(2, 3000, 11)
    assert _seconds(prediction, reference) < 60


def _seconds(prediction: str, reference: str) -> float:
    start = time.process_time()
    teds(prediction, reference)
    return time.process_time() - start
