"""The two profiles side by side: each blind spot of the published form, with the values that docs/REWARDS.md states."""

from __future__ import annotations

import pytest

from rewards import RewardConfig, score
from rewards.types import PUBLISHED, ROBUST

TABLE = "<table><tr><td>Item</td><td>Qty</td></tr><tr><td>Bolt</td><td>12</td></tr></table>"
EMPTY = "<table><tr><td></td><td></td></tr><tr><td></td><td></td></tr></table>"
ZEROS = "<table>" + ("<tr>" + "<td>0</td> " * 8 + "</tr>") * 12 + "</table>"


def row(*texts: str) -> str:
    return "<table><tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr></table>"


@pytest.mark.parametrize(
    ("task", "prediction", "reference", "published", "robust"),
    [
        ("text", "1.5", "15", 1.0, 2 / 3),
        ("text", "and/to", "ando", 1.0, 2 / 3),
        ("text", "$x^12$", "$x^{12}$", 1.0, 2 / 3),
        ("text", "Total：１２", "Total:12", 5 / 7, 1.0),
        ("formula", "x^12", "x^{12}", 1.0, 0.6),
        ("formula", r"a\le b", r"a\leq b", 5 / 6, 1.0),
        ("formula", r"\alpha x", r"\alphax", 1.0, 0.0),
        ("formula", "x_{a}_{b}", "x_{ab}", 0.8, 0.375),
        ("table", EMPTY, TABLE, 0.598, 0.0),
        ("table", TABLE + TABLE, TABLE, 1.0, 0.55),
        ("table", row(row("a")), row("a"), 1.0, 0.502),
        ("table", row("x<b hidden>a</b>"), row("a"), 0.753, 0.505),
        ("table", row("A", "7", "7", "7", "7"), row("A", "", "", "7", ""), 0.835, 0.473),
        ("table", TABLE.removesuffix("</table>"), TABLE, 0.0, 0.85),
        ("table", ZEROS, ZEROS, 1 / 9, 1.0),
    ],
)
def test_blind_spots(task: str, prediction: str, reference: str, published: float, robust: float) -> None:
    assert score(task, prediction, reference, PUBLISHED).value == pytest.approx(published, abs=5e-4)
    assert score(task, prediction, reference, ROBUST).value == pytest.approx(robust, abs=5e-4)


@pytest.mark.parametrize("loop", ["ab" * 500, "\n".join(map(str, range(1, 1000)))])
def test_loops_that_the_published_gate_does_not_see(loop: str) -> None:
    assert score("text", loop, "Menu", PUBLISHED).parts["gate"] == 1.0
    assert score("text", loop, "Menu", ROBUST).parts["gate"] < 0.04


def test_two_constants_follow_the_profile() -> None:
    assert (PUBLISHED.violation_factor, PUBLISHED.unclosed_factor) == (0.3, 0.0)
    assert (ROBUST.violation_factor, ROBUST.unclosed_factor) == (0.6, 0.85)
    assert RewardConfig(profile="robust", violation_factor=0.3).violation_factor == 0.3
    assert score("table", "<table><tr><td>a", row("a"), RewardConfig(unclosed_factor=0.5)).value == 0.5


def test_an_unknown_profile_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^profile must be published or robust: 'strict'"):
        RewardConfig(profile="strict")
