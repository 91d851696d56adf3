"""Repetitive inputs from public bug reports, with what the robust gate makes of them.

A row says whether the gate fires. The rows are the ones of the development data, which a last test checks where that
data is at hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from rewards import score
from rewards.gate import degeneration_gate
from rewards.types import ROBUST

DATA = Path(__file__).parents[3] / "shared" / "data" / "reported_cases.jsonl"


class Case(NamedTuple):
    id: str
    prediction: str
    reference: str
    fires: bool
    why: str


def rows(*lines: str) -> str:
    """Table rows, of lines in which a space separates two cells."""
    return "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line.split(" ")) + "</tr>" for line in lines)


def table(*lines: str) -> str:
    return f"<table>{rows(*lines)}</table>"


SIGN = "KEEP WALKING UNTIL\nYOU SEE THE SEA\n"
CHEMICALS = ("Benzene 1", "Toluene 5", "Xylene 9")
SIXTY_ITEMS = "\n".join(f"{number}. item" for number in range(1, 61))
SPELLINGS = "\n".join("Harbor Office" if line % 3 else "Harbour Office" for line in range(150))
ZEROS = table(*["0 0 0 0 0 0 0 0"] * 25)
DASHES = table(*[f"{number} - - - -" for number in range(200, 230)])
MARKDOWN = "| a | b | c |\n|---|---|---|\n" + "| x | yes | no |\n" * 18
YEARS = table("Year A B", *["0 0 -"] * 60, "Total 0 0")
FORM_LINES = "\n".join(["_" * 60] * 40)
CONTENTS = "\n".join(f"Chapter {number} {'. ' * 40}{9 * number}" for number in range(1, 25))
LETTERS = [f"a{number} b{number}" for number in range(60)]

CASES = [
    Case("D1-1", SIGN * 60, SIGN, True, "Two lines in turn."),
    Case("D1-2", SIGN, SIGN, False, "The sign itself."),
    Case("D2-1", "<table>" + rows("Name Date", *[" "] * 400), table("Name Date", " "), True, "Blank rows."),
    Case("D2-2", table("Name Date", *[" "] * 12), table("Name Date", *[" "] * 12), False, "A blank form."),
    Case("D3-1", "<table>" + rows(*CHEMICALS * 40), table(*CHEMICALS), True, "Three rows in turn."),
    Case("D4-1", SPELLINGS, "Harbor Office", True, "Near-equal lines."),
    Case("D5-1", "\n".join(map(str, range(1, 901))), "Menu\nSmall 14\nLarge 21", True, "Counting up."),
    Case("D5-2", SIXTY_ITEMS, SIXTY_ITEMS, False, "A numbered list that is there."),
    Case("D6-1", "A " + r"\! " * 300 + "p_j", "A p_j", True, "Spacing that the compared form does not have."),
    Case("D6-2", r"\mathbf { \Psi } " * 80, r"\mathbf{X}", True, "A group of symbols."),
    Case("D7-1", "目次 " + "곧 " * 200, "目次", True, "One syllable."),
    Case("D7-2", "大丈夫です" + "よね" * 300 + "よ", "大丈夫ですよね", True, "No spaces."),
    Case("D8-1", "```\nNo. 7 / 2024\n```\n" * 30, "No. 7 / 2024", True, "Code fences."),
    Case("D10-1", ZEROS, ZEROS, False, "A matrix of zeros that is there."),
    Case("D10-2", DASHES, DASHES, False, "A table of dashes that is there."),
    Case("D10-3", MARKDOWN, MARKDOWN, False, "Equal rows that are there."),
    Case("D11-1", YEARS, YEARS, False, "Equal rows that are there, in over 2,048 characters."),
    Case("D11-2", FORM_LINES, FORM_LINES, False, "Lines to write on that are there."),
    Case("D12-1", CONTENTS, CONTENTS, False, "Dot leaders that are there."),
    Case("D12-2", "Chapter 1 " + "." * 3000, "Chapter 1 ............ 9\nChapter 2 ............ 18", True, "Only dots."),
    Case("D14-1", "e " * 500, "", True, "A letter on a blank region."),
    Case("D15-1", "<table>" + rows(*LETTERS)[:1493], table(*LETTERS), False, "Cut off, but right as far as it goes."),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_gate(case: Case) -> None:
    gate = degeneration_gate(case.prediction, case.reference, ROBUST).gate
    if case.fires:
        assert gate < 0.2, case.why
    else:
        assert gate == 1.0, case.why


FORMULAS = ("D6-1", "D6-2")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_gate_of_the_reward(case: Case) -> None:
    task = "formula" if case.id in FORMULAS else "table" if "<table>" in case.reference else "text"
    gate = score(task, case.prediction, case.reference, ROBUST).parts["gate"]
    if case.fires:
        assert gate < 0.2, case.why
    else:
        assert gate == 1.0, case.why


def test_d11_1_has_the_full_table_reward() -> None:
    assert score("table", YEARS, YEARS, ROBUST).value == 1.0


def test_d14_1_has_no_reward() -> None:
    assert score("text", "e " * 500, "", ROBUST).value == 0.0


def test_d15_1_keeps_a_part_of_the_reward_and_is_known_as_cut_off() -> None:
    case = CASES[-1]
    scored = score("table", case.prediction, case.reference, ROBUST)
    assert 0.3 < scored.value < 0.9
    assert scored.parts["closed"] is False


@pytest.mark.skipif(not DATA.exists(), reason="the development data is not here")
def test_every_reported_row_is_here() -> None:
    reported = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    assert {row["id"]: (row["pred"], row["ref"]) for row in reported if row["kind"] == "gate"} == {
        case.id: (case.prediction, case.reference) for case in CASES
    }
