"""Text inputs from public bug reports of OCR scorers, with what the robust profile makes of them.

Where a report leaves the result open, the reason says what was decided. The rows are the ones of the development data,
which a last test checks where that data is at hand.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from rewards import score, text_reward
from rewards.types import ROBUST

DATA = Path(__file__).parents[3] / "shared" / "data" / "reported_cases.jsonl"


class Case(NamedTuple):
    """The reward must lie in [low, high], and come within the CPU time, in seconds."""

    id: str
    prediction: str
    reference: str
    low: float
    high: float
    why: str
    seconds: float = 1.0


IDENTIFIER = "ID 550e8400-e29b-41d4-a716-446655440000"
BELOW_1 = 0.999
CASES = [
    Case("A13-1", "caf\ud800", "café", 0.7, 0.9, "A lone surrogate is one wrong character of four."),
    Case("B15-1", "> " * 60 + "x $$\n\n$$", "x", 0.0, 0.1, "Nothing is matched against nested quotes.", 0.3),
    Case("B15-2", "* " * 400 + "\n", "---", 0.0, 0.1, "Nor against rules and lists.", 0.3),
    Case("B15-3", "Total:" + "\u00a0" * 20_000 + "x", "Total: x", 1.0, 1.0, "White space of any length is one space."),
    Case("C1-1", " \n\t ", "", 1.0, 1.0, "Both are blank."),
    Case("C1-2", "x", "", 0.0, 0.0, "Text on a blank region is made up."),
    Case("C2-1", "", "image/gif", 0.0, 0.0, "Nothing was read."),
    Case("C3-1", "the quick brown fox " * 100, "ab", 0.0, 0.05, "Two characters of 2,000, and a loop."),
    Case("C4-1", "ab", "abc", 2 / 3, 2 / 3, "NED divides by the longer length, not by the sum of both."),
    Case("C4-2", "kitten", "sitting", 4 / 7, 4 / 7, "Three edits over seven."),
    Case("C5-1", "area 5 m2", "area 5 m²", 0.5, BELOW_1, "Superscripts are not folded: they change the meaning."),
    Case("C5-2", "step 1", "step ①", 0.5, BELOW_1, "Nor are circled digits."),
    Case("C5-3", "ſuch", "such", 0.5, BELOW_1, "Nor is the long s: it is another letter in print."),
    Case("C6-1", "Total：１２，３００", "Total:12,300", 1.0, 1.0, "Full width is folded."),
    Case("C6-2", "A\u3000B", "A B", 1.0, 1.0, "The ideographic space is a space."),
    Case("C7-1", "a\u0308rger", "ärger", 1.0, 1.0, "Canonical composition."),
    Case("C7-2", "office", "o\ufb03ce", 1.0, 1.0, "Policy: ligatures are folded, for they are a matter of the font."),
    Case("C8-1", "\ufefb", "لا", 1.0, 1.0, "Arabic presentation forms are folded."),
    Case("C8-2", "\u200fسلام\u200e", "سلام", 1.0, 1.0, "Direction marks are invisible."),
    Case("C9-1", "1.5", "15", 0.0, BELOW_1, "The decimal point counts."),
    Case("C9-2", "-5", "5", 0.0, BELOW_1, "The sign counts."),
    Case("C10-1", "ab" * 25_000, "cd" * 25_000, 0.0, 0.0, "No character in common.", 1.5),
    Case("C12-1", "co\u00adoperate now", "cooperate\u00a0now", 1.0, 1.0, "The soft hyphen is invisible."),
    Case("C13-1", "你 好\n世界", "你好世界", 1.0, 1.0, "Chinese has no spaces between words."),
    Case("C13-2", "the  quick\n\nfox", "the quick fox", 1.0, 1.0, "Line breaks are spaces."),
    Case("C14-1", "", "African wild dog", 0.0, 0.0, "Nothing was read."),
    Case("C14-2", "wolf or dog or fox or cat", "dog", 0.0, 0.2, "The right word among others is no answer."),
    Case("C15-1", r"snake\_case and 5\*3", "snake_case and 5*3", 1.0, 1.0, "Policy: Markdown escapes are resolved."),
    Case("D9-1", "Alpha beta gamma delta. " * 2, "Alpha beta gamma delta. ", 0.45, 0.55, "Twice is no loop yet."),
    Case("D12-3", "Chapter 1 ···· 9", "Chapter 1 ............ 9", 1.0, 1.0, "Dot leaders have no length."),
    Case("D13-1", IDENTIFIER, IDENTIFIER, 1.0, 1.0, "An exact copy; no gate."),
    Case("D14-2", "", "", 1.0, 1.0, "Both are blank."),
]
SYMMETRIC = ("C5-1", "C5-2", "C5-3", "C6-1", "C6-2", "C7-1", "C7-2", "C8-1", "C8-2", "C12-1", "C13-1", "C15-1", "D12-3")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_reward(case: Case) -> None:
    text_reward("warm", "up", ROBUST)
    start = time.process_time()
    scored = score("text", case.prediction, case.reference, ROBUST)
    seconds = time.process_time() - start
    assert case.low - 1e-12 <= scored.value <= case.high + 1e-12, case.why
    assert seconds < case.seconds


@pytest.mark.parametrize("case", [case for case in CASES if case.id in SYMMETRIC], ids=lambda case: case.id)
def test_reward_is_the_same_both_ways_round(case: Case) -> None:
    assert text_reward(case.reference, case.prediction, ROBUST).value == pytest.approx(
        text_reward(case.prediction, case.reference, ROBUST).value, abs=1e-12
    )


def test_a13_1_can_be_written_as_utf8() -> None:
    scored = text_reward("caf\ud800", "café", ROBUST)
    json.dumps({"prediction": "caf\ud800", "value": scored.value, **scored.parts}).encode("utf-8")


def test_c11_1_a_missing_reference_is_named() -> None:
    with pytest.raises(TypeError, match=r"^reference must be a str, not NoneType"):
        score("text", "a", None, ROBUST)  # type: ignore[arg-type]


def test_d13_1_identifiers_pass_the_gate() -> None:
    assert text_reward(IDENTIFIER, IDENTIFIER, ROBUST).parts["gate"] == 1.0


@pytest.mark.skipif(not DATA.exists(), reason="the development data is not here")
def test_every_reported_row_is_here() -> None:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    reported = {row["id"]: (row["pred"], row["ref"]) for row in rows if row["kind"] == "text"}
    assert reported.pop("C11-1") == ("a", None)
    assert reported == {case.id: (case.prediction, case.reference) for case in CASES}
