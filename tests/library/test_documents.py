"""What docs/REWARDS.md lists is what the code has: aliases, signs, constants, parts."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from rewards import RewardConfig, score
from rewards.latex.lexer import UNICODE
from rewards.latex.tables import ALIASES
from rewards.types import ROBUST

TEXT = (Path(__file__).parents[2] / "docs" / "REWARDS.md").read_text(encoding="utf-8")


def test_every_alias_and_sign_is_listed() -> None:
    assert [name for name in ALIASES if f"`{name}`" not in TEXT and f"`` {name} ``" not in TEXT] == []
    assert [sign for sign in UNICODE if sign not in TEXT] == []


def test_every_constant_is_listed_with_its_default() -> None:
    for item in fields(RewardConfig):
        default = getattr(RewardConfig(), item.name)
        row = next(line for line in TEXT.splitlines() if line.startswith("|") and f"`{item.name}`" in line)
        assert f"{default:.2f}" in row or f" {default:g}" in row if isinstance(default, float) else str(default) in row


def test_every_part_is_listed() -> None:
    table = "<table><tr><td>a</td></tr></table>"
    for task, reference in (("text", "a"), ("table", table), ("formula", "a")):
        assert [part for part in score(task, reference, reference, ROBUST).parts if f"`{part}`" not in TEXT] == []
