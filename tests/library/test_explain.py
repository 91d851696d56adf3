"""`rewards.explain`: the steps lead to the value, the differences are shown, and no string breaks it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import RewardConfig, score
from rewards.explain import explain, reward_steps
from rewards.explain.alignment import difference_lines, visible
from rewards.explain.rows import align_rows, published_rows
from rewards.html.table import parse_table
from rewards.markup import normalize_table
from rewards.trees.distance import tree_distance
from rewards.types import PUBLISHED, ROBUST

TABLE = "<table><tr><td>Item</td><td>Qty</td></tr><tr><td>Bolt</td><td>12</td></tr></table>"
REFERENCES = {"text": "Bolts, 12 pieces", "table": TABLE, "formula": r"\frac{a}{b}=\left(x^{12}\right)"}
LOOP = " ".join(["the same line again and again, for ever"] * 60)

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
pieces = st.lists(
    st.sampled_from(["<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<th colspan='2'>", "<tfoot>", "<br>"])
    | st.sampled_from([r"\frac", r"\left", r"\right", r"\begin{matrix}", r"\end{matrix}", "{", "}", "$", "&", "\\"])
    | st.sampled_from(["a", "12", "漢字", "é", "\n", "\x00", "\ud800", "\u202e", "Bolt ", "a" * 30])
    | any_text,
    max_size=16,
).map("".join)
tables = st.lists(
    st.lists(st.sampled_from(["a", "Bolt", "12", ""]), min_size=1, max_size=4), min_size=1, max_size=5
).map(
    lambda rows: (
        "<table>" + "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows) + "</table>"
    )
)
configs = st.sampled_from([PUBLISHED, ROBUST, RewardConfig(teds_weight=1.0, cell_weight=1.0, unclosed_factor=0.5)])


def text_of(task: str, prediction: str, reference: str, config: RewardConfig = PUBLISHED) -> str:
    return "\n".join(explain(task, prediction, reference, config))


def check(task: str, prediction: str, reference: str, config: RewardConfig) -> None:
    scored = score(task, prediction, reference, config)
    steps = reward_steps(task, prediction, reference, scored, config)
    assert steps[-1].after == pytest.approx(scored.value, abs=1e-12)
    lines = explain(task, prediction, reference, config)
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    assert len(lines) < 120


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(["text", "table", "formula"]), pieces, configs)
def test_the_steps_lead_to_the_value_whatever_the_prediction(task: str, prediction: str, config: RewardConfig) -> None:
    check(task, prediction, REFERENCES[task], config)


@settings(deadline=None, max_examples=100)
@given(tables, tables, pieces, configs)
def test_the_steps_lead_to_the_value_of_a_table(wanted: str, found: str, junk: str, config: RewardConfig) -> None:
    check("table", found, wanted, config)
    check("table", found.replace("Bolt", junk), wanted, config)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["text", "formula"]), pieces, pieces, configs)
def test_any_reference_is_explained_or_refused(
    task: str, prediction: str, reference: str, config: RewardConfig
) -> None:
    try:
        score(task, prediction, reference, config)
    except ValueError as error:
        with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
            explain(task, prediction, reference, config)
    else:
        check(task, prediction, reference, config)


@pytest.mark.parametrize("config", [PUBLISHED, ROBUST], ids=["published", "robust"])
@pytest.mark.parametrize(
    "prediction",
    [
        "x" * 200_000,
        LOOP,
        "<table>" + "<tr><td>0</td></tr>" * 1500 + "</table>",
        "<table>" + "".join(f"<tr>{f'<td>{row}</td>' * (row % 9)}</tr>" for row in range(500)) + "</table>",
        "<table><tr>" + "<td>x</td>" * 3000 + "</tr></table>",
        "\\" + "a" * 20_000,
        "{" * 20_000,
        r"\begin{a}" * 3000,
        "".join(chr(0x4E00 + i % 9000) for i in range(20_000)),
    ],
    ids=["oversized", "loop", "looped rows", "many rows", "one row", "command", "braces", "environments", "characters"],
)
def test_huge_predictions_have_short_explanations(prediction: str, config: RewardConfig) -> None:
    for task, reference in REFERENCES.items():
        check(task, prediction, reference, config)


def test_a_copy_has_no_differences() -> None:
    for task, reference in REFERENCES.items():
        shown = text_of(task, reference, reference)
        assert "reward 1.0000" in shown
        assert "->" not in shown and "^" not in shown.replace("x^12", "")


def test_text_edits_and_what_is_not_compared() -> None:
    lines = explain("text", "Bolts 13 pieces!", "Bolts, 12 pieces")
    assert lines[0] == "text, published profile: reward 0.9231"
    assert "   0.9231  -0.0769  text: 1 edit in 13 characters, NED 0.0769" in lines
    reference, prediction, marks = lines[lines.index("reference     Bolts12pieces") :][:3]
    assert prediction == "prediction    Bolts13pieces"
    assert marks.index("^") == reference.index("2") and marks.strip() == "^"
    assert "  reference:  2 x space, 1 x ','" in lines
    assert "  prediction: 2 x space, 1 x '!'" in lines


def test_text_that_differs_only_in_what_is_not_compared() -> None:
    assert "The strings differ, but not in the form that is compared." in explain("text", "1.5", "15")


def test_a_blank_region_is_named() -> None:
    assert "blank region" in text_of("text", "noise", " ")


def test_published_rows_and_cells_are_named() -> None:
    wanted = (
        "<table><tr><td>Item</td><td>Qty</td></tr><tr><td>Bolt</td><td>12</td></tr>"
        "<tr><td>Screw</td><td>4</td></tr><tr><td>Nut</td><td>77</td></tr></table>"
    )
    found = (
        "<table><tr><td>Item</td><td>Qty</td></tr><tr><td colspan='2'>Bolt</td></tr>"
        "<tr><td>Nut</td><td>71</td></tr></table>"
    )
    shown = text_of("table", found, wanted)
    assert "structure: TEDS_s 0.5833, 5 edits in 12 nodes" in shown
    assert "  row 2: 2 edits: cell 1 colspan 1 -> 2, cell 2 missing" in shown
    assert "  row 3 is missing: 3 edits: Screw | 4" in shown
    assert "  row 4, cell 2: '77' -> '71' (1 edit)" in shown
    assert "number of rows: 3 for 4 (p_row 0.0875)" in shown
    assert "bonus 0.05: rows 3 for 4, columns 2" in shown


def test_blank_cells_are_explained() -> None:
    blank = "<table><tr><td></td></tr></table>"
    wider = "<table><tr><td></td><td></td></tr></table>"
    for config in (PUBLISHED, ROBUST):
        check("table", wider, blank, config)
    assert "  row 1: 1 edit: cell 1 blank -> filled" in explain(
        "table", blank.replace("</td>", "a</td>"), blank, ROBUST
    )


def test_an_extra_row_is_named() -> None:
    found = TABLE.replace("</table>", "<tr><td>Nut</td><td>7</td></tr></table>")
    assert "  row 3 of the prediction is extra: 3 edits: Nut | 7" in explain("table", found, TABLE)


def test_a_repeated_row_is_named() -> None:
    found = TABLE.replace("</table>", "<tr><td>Bolt</td><td>12</td></tr>" * 5 + "</table>")
    shown = text_of("table", found, TABLE)
    assert "rows that repeat\n  6 times, 3 allowed: Bolt | 12" in shown


def test_a_difference_deep_in_a_long_cell_is_seen() -> None:
    long_cell = "word " * 100
    found = TABLE.replace("Bolt", long_cell + "wrong")
    assert "wrong" in text_of("table", found, TABLE.replace("Bolt", long_cell + "right"))


@pytest.mark.parametrize(
    ("prediction", "cause"),
    [
        ("<table><tr><td>a", "opens 1 table and closes 0"),
        ("no table", "no table with a cell: x 0.15"),
        ("x" * 300, "nothing else is compared"),
        ("x" * 200_000, "not scored: 200000 characters"),
    ],
)
def test_tables_that_are_not_compared(prediction: str, cause: str) -> None:
    assert cause in text_of("table", prediction, TABLE)


def test_formula_forms_and_failed_checks() -> None:
    shown = text_of("formula", r"\frac{a}{c}=\left(x^{12}", REFERENCES["formula"])
    assert "fails the check left_right: x 0.3" in shown
    assert "  left_right: 1 \\left and 0 \\right" in shown
    assert "braces" not in shown
    assert "canonical form: 2 edits in 14 characters" in shown


@pytest.mark.parametrize(
    ("prediction", "reason"),
    [
        ("x}{", "braces: 1 { and 1 }, but not in pairs"),
        (r"x\begin{matrix}", "environments: not closed: matrix"),
        (r"x\end{cases}", "environments: not opened: cases"),
        (r"\begin{a}\begin{b}\end{a}\end{b}", "environments: environments overlap"),
        ("$x", "dollars: 1 unescaped $"),
    ],
)
def test_reasons_of_failed_checks(prediction: str, reason: str) -> None:
    assert reason in text_of("formula", prediction, "x")


def test_the_gate_is_explained() -> None:
    assert "rho8: 8 distinct of 473 8-grams of words; most frequent, 60 times:" in text_of("text", LOOP, LOOP)
    assert "longest run: 60 times '.' from character 3: x 0.8000" in text_of("text", "ab" + "." * 60, "ab")


@pytest.mark.parametrize(
    ("task", "prediction", "term"),
    [
        ("text", "ab " * 300, "as shown: "),
        ("formula", "x+" * 300, "as shown: "),
        ("table", TABLE.replace("</table>", "<tr><td>Nut<!-- hidden --></td></tr>" * 200 + "</table>"), "cells: "),
        ("table", "the same line " * 200 + TABLE, "text outside of cells: "),
        ("table", TABLE.replace("</table>", "<tr>" + "<td>" * 200 + "</table>"), "201 blank cells and rows for 0"),
        ("table", TABLE.replace("Bolt", "Bolt" + "<!-- hidden -->" * 200), " characters of markup for "),
    ],
)
def test_the_robust_gate_is_explained(task: str, prediction: str, term: str) -> None:
    gate = score(task, prediction, REFERENCES[task], ROBUST).parts["gate"]
    lines = explain(task, prediction, REFERENCES[task], ROBUST)
    terms = lines[lines.index("gate") + 1 :]
    assert any(term in line and line.endswith(f": x {gate:.4f}") for line in terms)


def test_differences_are_marked_in_place() -> None:
    assert difference_lines("abc", "abc") == []
    assert difference_lines("abcd", "axc") == ["reference     abcd", "prediction    axc", "               ^ -"]
    assert difference_lines(["x", r"\le", "y"], ["x", r"\leq", "y", "z"], separator=" ") == [
        r"reference     x \le  y",
        r"prediction    x \leq y z",
        r"                ^^^^   +",
    ]


def test_wide_characters_keep_the_marks_aligned() -> None:
    reference, prediction, marks = difference_lines("漢字ab", "漢子ab")
    assert (reference, prediction) == ("reference     漢字ab", "prediction    漢子ab")
    assert marks == " " * 16 + "^^"


def test_many_differences_are_counted() -> None:
    wanted = "".join(f"{'x' * 50}{digit}" for digit in "0123456789" * 2)
    lines = difference_lines(wanted, re.sub("[0-9]", "?", wanted))
    assert lines[-1] == "... and 14 more places" and len(lines) == 6 * 4


def test_only_printable_characters_are_shown() -> None:
    assert visible("a\n\x00\ud800\u202e") == r"a\n<0000><D800><202E>"
    assert len(visible("x" * 99)) <= 32


@settings(deadline=None, max_examples=100)
@given(tables, tables)
def test_aligned_rows_cost_at_least_the_tree_distance(first: str, second: str) -> None:
    wanted, found = (parse_table(normalize_table(markup)) for markup in (first, second))
    assert wanted is not None and found is not None
    pairs = align_rows(published_rows(wanted), published_rows(found))
    assert sum(pair.nodes for pair in pairs) >= tree_distance(wanted.tree, found.tree)
    assert [pair.wanted.number for pair in pairs if pair.wanted] == list(range(1, len(wanted.rows) + 1))
    assert [pair.found.number for pair in pairs if pair.found] == list(range(1, len(found.rows) + 1))
