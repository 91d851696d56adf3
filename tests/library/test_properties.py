"""What holds for every input: identity, bounds, no crash, no stall, clear errors for a caller's mistakes."""

from __future__ import annotations

import math
import pickle
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rewards import RewardConfig, Score, formula_reward, score, table_reward, text_reward
from rewards.gate import degeneration_gate
from rewards.latex.published import canonical, tokenize
from rewards.types import PUBLISHED, ROBUST

TABLE = "<table><tr><td>Item</td><td>Qty</td></tr><tr><td>Bolt</td><td>12</td></tr></table>"
REFERENCES = {"text": "Bolts, 12 pieces", "table": TABLE, "formula": r"\frac{a}{b}=\left(x^{12}\right)"}

any_text = st.text(st.characters(exclude_categories=()), max_size=60)
html_text = st.lists(
    st.sampled_from(["<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<th colspan='2'>", "<b>", "<br>"])
    | st.sampled_from(["<!--", "-->", "<![CDATA[", "<?", "<td style=", '"', "'", ">", "<", "&", "&#", ";", "\x00"])
    | any_text,
    max_size=14,
).map("".join)
latex_text = st.lists(
    st.sampled_from([r"\frac", r"\sqrt", r"\left", r"\right", r"\begin", r"\end", "{", "}", "[", "]", "$", "&"])
    | st.sampled_from(["\\", "\\\\", "^", "_", r"\(", r"\)", "{matrix}", r"\hspace", "*", "%", "x", " "])
    | any_text,
    max_size=14,
).map("".join)
tasks = st.sampled_from(["text", "table", "formula"])


def closed_tables(cells: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    rows = st.lists(st.lists(cells, min_size=1, max_size=4), min_size=1, max_size=5)
    return rows.map(
        lambda table: (
            "<table>"
            + "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in table)
            + "</table>"
        )
    )


@settings(deadline=None, max_examples=300)
@given(tasks, any_text | html_text | latex_text)
def test_any_prediction_has_a_finite_score_in_bounds(task: str, prediction: str) -> None:
    scored = score(task, prediction, REFERENCES[task])
    assert 0.0 <= scored.value <= 1.0
    assert all(math.isfinite(part) for part in scored.parts.values())
    assert set(scored.parts) == set(score(task, REFERENCES[task], REFERENCES[task]).parts)


@settings(deadline=None, max_examples=200)
@given(tasks, any_text | html_text | latex_text, any_text | html_text | latex_text)
def test_any_reference_is_scored_or_refused_by_name(task: str, prediction: str, reference: str) -> None:
    try:
        scored = score(task, prediction, reference)
    except ValueError as error:
        assert task != "text" and str(error).startswith("reference")
    else:
        assert 0.0 <= scored.value <= 1.0


@settings(deadline=None, max_examples=150)
@given(st.one_of(any_text.map(lambda t: ("text", t)), latex_text.map(lambda t: ("formula", t))))
def test_a_copy_of_a_text_or_formula_scores_its_gate(sample: tuple[str, str]) -> None:
    task, reference = sample
    assume(task == "text" or canonical(reference))
    gate = degeneration_gate(reference).gate
    assert score(task, reference, reference).value == gate


@settings(deadline=None, max_examples=100)
@given(closed_tables(any_text.filter(lambda text: "<" not in text and "&" not in text)))
def test_a_copy_of_a_table_scores_its_gate(reference: str) -> None:
    assert table_reward(reference, reference).value == degeneration_gate(reference).gate


@settings(deadline=None, max_examples=50)
@given(closed_tables(st.sampled_from(["a", "b", "0", ""])), st.integers(1, 6))
def test_repeating_the_last_row_never_pays(reference: str, times: int) -> None:
    row = reference[reference.rindex("<tr>") : -len("</table>")]
    looped = reference[: -len("</table>")] + row * times + "</table>"
    more = reference[: -len("</table>")] + row * (times + 1) + "</table>"
    assert table_reward(more, reference).value <= table_reward(looped, reference).value < 1.0


@given(latex_text)
def test_tokens_give_the_latex_back(latex: str) -> None:
    assert "".join(tokenize(latex)) == latex


@pytest.mark.parametrize("task", ["text", "table", "formula"])
@pytest.mark.parametrize("wrong", [None, 1, b"x", ["x"]])
def test_arguments_that_are_no_strings_are_named(task: str, wrong: object) -> None:
    with pytest.raises(TypeError, match=r"^prediction must be a str"):
        score(task, wrong, REFERENCES[task])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^reference must be a str"):
        score(task, "x", wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["text", "table", "formula"])
def test_a_configuration_that_is_none_is_named(task: str) -> None:
    with pytest.raises(TypeError, match=r"^config must be a RewardConfig, not str"):
        score(task, "x", REFERENCES[task], "robust")  # type: ignore[arg-type]


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(ValueError, match=r"^task must be one of text, table, formula: 'chart'"):
        score("chart", "x", "x")


@pytest.mark.parametrize(
    ("reward", "reference"),
    [
        (table_reward, ""),
        (table_reward, "no table"),
        (table_reward, "<table></table>"),
        (table_reward, "<table><tr></tr></table>"),
        (table_reward, "<TABLE><tr><td>a</td></tr></TABLE>"),
        (table_reward, "<table><tr><td>a</td></tr>"),
        (formula_reward, ""),
        (formula_reward, r"$ \quad {} $"),
    ],
)
def test_a_reference_that_holds_nothing_is_refused(reward, reference: str) -> None:
    for _ in range(2):  # a cache must not change that
        with pytest.raises(ValueError, match=r"^reference (holds no|does not close its) "):
            reward("x", reference)


def test_task_functions_and_score_are_the_same() -> None:
    for task, reward in (("text", text_reward), ("table", table_reward), ("formula", formula_reward)):
        assert reward("<table>x", REFERENCES[task]) == score(task, "<table>x", REFERENCES[task])


def test_constants_are_used() -> None:
    config = RewardConfig(teds_weight=1.0, cell_weight=0.0, shape_bonus=0.0)
    assert table_reward(TABLE.replace("12", "99"), TABLE, config).value == 1.0
    assert formula_reward("{x", "x", RewardConfig(violation_factor=0.5)).value == 0.5
    assert text_reward("a" * 30, "a" * 30, RewardConfig(gate_run_free=0, gate_run_span=100)).value == 0.7


@pytest.mark.parametrize(
    ("settings_", "error", "message"),
    [
        ({"teds_weight": 1.5}, ValueError, "teds_weight must be between 0.0 and 1.0: 1.5"),
        ({"shape_bonus": 0.6}, ValueError, "shape_bonus must be between 0.0 and 0.5"),
        ({"violation_factor": float("nan")}, ValueError, "violation_factor must be between"),
        ({"gate_run_span": 0}, ValueError, "gate_run_span must be at least 1: 0"),
        ({"gate_min_tokens": 5}, ValueError, "gate_min_tokens must be at least 8: 5"),
        ({"gate_ngram": 2.5}, TypeError, "gate_ngram must be an integer: 2.5"),
        ({"cell_weight": "0.5"}, TypeError, "cell_weight must be a number: '0.5'"),
        ({"row_penalty_min_rows": True}, TypeError, "row_penalty_min_rows must be an integer: True"),
        ({"gate_repeat_free": 32}, ValueError, "gate_repeat_free has no effect in the published profile: 32"),
        ({"profile": "robust", "gate_run_free": 9}, ValueError, "gate_run_free has no effect in the robust profile: 9"),
    ],
)
def test_constants_out_of_range_are_refused(settings_: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        RewardConfig(**settings_)


def test_results_and_configuration_can_be_pickled() -> None:
    scored = score("table", TABLE, TABLE)
    assert pickle.loads(pickle.dumps(scored)) == scored == Score(1.0, scored.parts)
    assert pickle.loads(pickle.dumps(RewardConfig())) == RewardConfig()


LENGTH = 34_000  # characters of 8,448 tokens


def filled(unit: str, start: str = "<table>", end: str = "</table>") -> str:
    return start + unit * ((LENGTH - len(start) - len(end)) // len(unit)) + end


BIG_TABLE = "<table>" + "".join("<tr>" + f"<td>{row}</td>" * 10 + "</tr>" for row in range(40)) + "</table>"
HOSTILE = {
    "looped rows": filled("<tr><td>a b</td></tr>"),
    "rows never closed": filled("<tr><td>1"),
    "one row": filled("<td>x</td>", "<table><tr>", "</tr></table>"),
    "cells never closed": filled("<td>"),
    "rows of different spans": "<table>" + "".join(f"<tr><td colspan={i}>" for i in range(1300)) + "</table>",
    "rows of different lengths": "<table>" + "".join(f"<tr>{'<td>' * (i % 37)}" for i in range(400)) + "</table>",
    "sections": filled("<tfoot><tr><td></td></tr></tfoot>"),
    "nested tags": filled("<b>"),
    "nested tables": "<table><tr><td>" * 1500 + "</table>" * 1500,
    "nested rows": filled("<tr><b><i></i><u></u></b></tr>", end="<td></td></table>"),
    "unterminated attributes": filled('<td style="'),
    "unterminated tags": filled("<a "),
    "unterminated quotes": filled("<a b='"),
    "unterminated comments": filled("<!--"),
    "unterminated declarations": filled("<!["),
    "unterminated references": filled("&#"),
    "a huge reference": "<table><tr><td>&#" + "1" * 99 + "23456789" * 4000 + ";</td></tr></table>",
    "line breaks in a cell": filled("<br>", "<table><tr><td>", "</td></tr></table>"),
    "escaped tables": filled("&lt;table&gt;"),
    "escaped column groups": filled("&lt;colgroup&gt;"),
    "huge spans": "<table><tr><td colspan=999999999 rowspan=" + "98" * 400 + ">x</td></tr></table>",
    "spaces": " " * 1_000_000,
    "fractions": r"\frac{" * 5000,
    "deep inline math": "$" + r"\frac{" * 5000 + "$",
    "many formulas": "".join(f"$\\a_{i}$" for i in range(4000)),
    "unterminated inline math": r"\(" * 17000,
    "optional arguments": "".join(r"$\sqrt[\sqrt[\sqrt[\sqrt[" + f"{i}$" for i in range(1200)),
    "one chain of optional arguments": "$" + r"\sqrt[" * 5000 + "$",
    "nested accents": "".join("$" + r"\hat{" * 20 + f"{i}" + "}" * 20 + "$" for i in range(250)),
    "nested math": "$" + r"\(" * 8000 + r"\a$",
    "long inline math": "$" + r"\text{ab}" * 3700 + "$",
    "accents": "$" + r"\"" * 13000 + "$",
    "environments": "\\begin{" * 4800,
    "braces": "{x" * 8000 + "}" * 13000,
    "tags that do not end behind a table": "<table></table>" + "<b " * 11_300,
    "comments that do not end behind a table": "<table></table>" + "<!--" * 8_400,
    "rows of one cell and of two": filled("<tr><td>1<tr><td>2<td>"),
    "rows of all lengths": "<table>" + "".join(f"<tr>{'<td>' * (i * i % 3)}" for i in range(4_500)) + "</table>",
    "relations": r"\begin{cases}" + "=&" * 16_900 + r"\end{cases}",
    "combining marks": "<table><tr><td>a" + "\u0301" * 17_000 + "\u0323" * 16_900 + "</td></tr></table>",
    "a ligature of 18 letters": filled("\ufdfa", "<table><tr><td>", "</td></tr></table>"),
    "fractions of one character": "½⅓⅔" * 11_300,
}


@pytest.mark.parametrize("config", [PUBLISHED, ROBUST], ids=["published", "robust"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_completion_stalls_the_reward(name: str, config: RewardConfig) -> None:
    references = {"text": "Bolts", "table": BIG_TABLE, "formula": "x^2"}
    for task, reference in references.items():
        start = time.process_time()
        scored = score(task, HOSTILE[name], reference, config)
        seconds = time.process_time() - start
        assert 0.0 <= scored.value <= 0.25
        assert seconds < 3.0  # about 0.5 s at most on an idle core


@pytest.mark.parametrize("config", [PUBLISHED, ROBUST], ids=["published", "robust"])
@pytest.mark.parametrize("name", ["rows of one cell and of two", "rows of all lengths", "combining marks", "relations"])
def test_no_pair_stalls_the_reward(name: str, config: RewardConfig) -> None:
    task = "formula" if name == "relations" else "table"
    start = time.process_time()
    scored = score(task, HOSTILE[name].replace("td>1", "td>3"), HOSTILE[name], config)
    assert 0.0 <= scored.value <= 1.0
    assert time.process_time() - start < 3.0  # about 0.5 s at most on an idle core


def test_a_prediction_much_longer_than_its_reference_is_not_compared() -> None:
    words = " ".join(f"w{number}" for number in range(20_000))
    assert score("text", words, "w1 w2").value == 0.0
    assert score("text", words, words).value == 1.0


def test_tags_inside_cells_do_not_pay() -> None:
    plain = "<table><tr><td>q</td></tr></table>"
    stuffed = plain.replace("q", "q" + "<br>" * 500 + "<b></b>" * 50 + "&lt;br&gt;" * 50)
    assert table_reward(stuffed, BIG_TABLE).value <= table_reward(plain, BIG_TABLE).value
