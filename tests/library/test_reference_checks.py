"""What `python -m rewards check` finds in a reference, and what it lets pass."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import RewardConfig
from rewards.cli.references import check_reference

TABLE = "<table><tr><td>Item</td><td>Qty</td></tr><tr><td>Bolt</td><td>12</td></tr></table>"

CHECKED = [
    (False, "formula", "x\nabla y", "lost backslash: U+000A before 'abla' at character 2, probably \\nabla"),
    (False, "formula", "\tau+1", "lost backslash: U+0009 before 'au' at character 1, probably \\tau"),
    (False, "formula", "\x0crac{a}{b}", "lost backslash: U+000C before 'rac' at character 1, probably \\frac"),
    (False, "formula", "\x08eta_1", "lost backslash: U+0008 before 'eta' at character 1, probably \\beta"),
    (False, "formula", "\rho", "lost backslash: U+000D before 'ho' at character 1, probably \\rho"),
    (False, "text", "an angle $\x07lpha$", "lost backslash: U+0007 before 'lpha' at character 11, probably \\alpha"),
    (False, "formula", "a\x00b", "control character: U+0000 at character 2"),
    (False, "text", "a\x1bb", "control character: U+001B at character 2"),
    (False, "text", "caf\x85", "control character: U+0085 at character 4"),
    (False, "text", "a\ufffdb", "replacement character: U+FFFD at character 2: read with a wrong encoding"),
    (False, "text", "a\ud800", "lone surrogate: U+D800 at character 2"),
    (False, "text", "b" + "a1" * 20, "longer than the limit: 41 characters, limit 40"),
    (False, "text", " \u200b", "blank text: only a blank prediction is right"),
    (False, "text", "." * 40, "gate marks down a correct copy: reward 0.9000; rho8 1.000, longest run 40"),
    (True, "table", "<table><tr><td>a", "refused by the reward: does not close its table: ...'<table><tr><td>a'"),
    (True, "table", "| a | b |", "refused by the reward: holds no table with a cell: '| a | b |'"),
    (True, "formula", "{ }", "refused by the reward: holds no formula: '{ }'"),
    (False, "table", "```<table><td>a</table>", "code fence: ``` at character 1"),
    (False, "table", "Look: <table><td>a</table>", "text around the table: 'Look:'"),
    (False, "table", "<table><td>a</table> Done", "text around the table: 'Done'"),
    (False, "table", "<table><td>a</table></table>", "unbalanced table tags: opens 1, closes 2"),
    (
        False,
        "table",
        "<table><td>a</table><table></table>",
        "more than one table: 2 opening tags; the published reward reads the",
    ),
    (False, "formula", "$$x$$", "formula delimiters: begins with $"),
    (False, "formula", r"\begin{equation} x \end{equation}", r"formula delimiters: begins with \begin{equation}"),
    (False, "formula", "{x", "malformed formula: fails braces"),
]


@pytest.mark.parametrize(("is_error", "task", "reference", "expected"), CHECKED)
def test_what_a_check_finds(is_error: bool, task: str, reference: str, expected: str) -> None:
    findings = check_reference(task, reference, RewardConfig(), max_length=40)
    assert len(findings) == 1
    assert f"{findings[0].kind}: {findings[0].detail}".startswith(expected)
    assert findings[0].is_error == is_error


@pytest.mark.parametrize(
    ("task", "reference"),
    [
        ("text", "A line\nbeautiful lines\n\ttabs and angles"),
        ("text", "Prices: $5 or $6\r\nnext"),
        ("text", "line\nabla"),
        ("formula", "\textra"),
        ("table", "<html><body>\n<table><tr><td>a</td></tr></table>\n</body></html>"),
        ("table", TABLE),
        ("formula", "a &= b \\\\\nc &= d"),
        ("formula", "x\nu + \n\\alpha"),
        ("formula", r"\frac{a}{b}"),
    ],
)
def test_what_a_check_lets_pass(task: str, reference: str) -> None:
    reference = reference.replace("a &= b \\\\\nc &= d", "\\begin{aligned}a &= b \\\\\nc &= d\\end{aligned}")
    for profile in ("published", "robust"):
        assert check_reference(task, reference, RewardConfig(profile=profile), max_length=1000) == []


def test_a_reference_below_1_for_another_reason_is_an_error() -> None:
    config = RewardConfig(teds_weight=0.1)
    (finding,) = check_reference("table", TABLE, config, max_length=1000)
    assert finding.is_error and finding.kind == "does not score 1 against itself"


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["text", "table", "formula"]),
    st.lists(
        st.sampled_from(["<table>", "</table>", "<td>a", "```", "$", "{", "\n", "\t", "\x0c", "abla", "\ud800", "<"])
        | st.text(st.characters(exclude_categories=()), max_size=20),
        max_size=12,
    ).map("".join),
    st.sampled_from(["published", "robust"]),
)
def test_any_reference_can_be_checked(task: str, reference: str, profile: str) -> None:
    findings = check_reference(task, reference, RewardConfig(profile=profile), max_length=30)
    assert len({finding.kind for finding in findings}) == len(findings)
    assert all(finding.detail.isprintable() for finding in findings)
    assert any(finding.is_error for finding in findings) or task != "table" or "<table" in reference.replace(" ", "")
