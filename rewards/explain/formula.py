"""What a formula reward is made of, for `rewards.explain`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rewards import RewardConfig, Score
from rewards.explain.alignment import LEGEND, difference_lines, visible
from rewards.explain.steps import Step, counted
from rewards.formula import compared_form
from rewards.latex.published import tokenize


def formula_steps(prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[Step]:
    """The steps before the gate."""
    form, wanted, unit = _forms(prediction, reference, config)
    value = float(scored.parts["similarity"])
    edits = Levenshtein.distance(form, wanted)
    cause = f"canonical form: {counted(edits, 'edit')} in {counted(max(len(form), len(wanted)), unit)}"
    steps = [Step(1.0, "a perfect copy"), Step(value, cause)]
    for name in _violated(scored, reference, config):
        value *= config.violation_factor
        steps.append(Step(value, f"fails the check {name}: x {config.violation_factor:g}"))
    return steps


def formula_details(prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[str]:
    """The canonical forms where they differ, and why checks fail."""
    form, wanted, unit = _forms(prediction, reference, config)
    lines = []
    if form != wanted:
        separator = " " if unit == "token" else ""
        lines += ["", f"canonical forms ({LEGEND})", *difference_lines(wanted, form, separator=separator)]
    elif prediction != reference:
        lines += ["", "The strings differ, but not in the canonical form."]
    failed = _violated(scored, reference, config)
    if failed:
        lines += ["", "failed checks that the reference passes"]
        lines += [f"  {name}: {_REASONS[name](prediction)}" for name in failed]
    return lines


_read = lru_cache(maxsize=8)(compared_form)


def _forms(prediction: str, reference: str, config: RewardConfig) -> tuple[Sequence[str], Sequence[str], str]:
    """What is compared, prediction first, and what its elements are called."""
    unit = "token" if config.profile == "robust" else "character"
    return _read(prediction, config.profile).tokens, _read(reference, config.profile).tokens, unit


def _violated(scored: Score, reference: str, config: RewardConfig) -> list[str]:
    """Names of the checks that the reference passes and the prediction fails."""
    passed = _read(reference, config.profile).checks
    return [name for name, passes in passed.items() if passes and not scored.parts[name]]


def _paired(opening: str, closing: str) -> Callable[[str], str]:
    def reason(latex: str) -> str:
        tokens = tokenize(latex)
        opened, closed = tokens.count(opening), tokens.count(closing)
        if opened == closed:
            return f"{opened} {opening} and {closed} {closing}, but not in pairs"
        return f"{opened} {opening} and {closed} {closing}"

    return reason


def _environments(latex: str) -> str:
    opened, closed = Counter(_BEGIN.findall(latex)), Counter(_END.findall(latex))
    only_opened, only_closed = (visible(", ".join(names), 60) for names in (opened - closed, closed - opened))
    if not only_opened and not only_closed:
        return "environments overlap, or a name is missing"
    reasons = (("not closed", only_opened), ("not opened", only_closed))
    return "; ".join(f"{reason}: {names}" for reason, names in reasons if names)


_BEGIN = re.compile(r"\\begin[ ]?\{([^{}]{0,60})\}")
_END = re.compile(r"\\end[ ]?\{([^{}]{0,60})\}")
_REASONS: dict[str, Callable[[str], str]] = {
    "left_right": _paired(r"\left", r"\right"),
    "braces": _paired("{", "}"),
    "environments": _environments,
    "dollars": lambda latex: f"{tokenize(latex).count('$')} unescaped $",
    "trailing_backslash": lambda latex: "ends with a backslash that begins no command",
    "ampersand": lambda latex: "& outside of an environment with columns",
    "arguments": lambda latex: "a command lacks an argument",
    "double_scripts": lambda latex: "two _ or two ^ on the same symbol",
    "display": lambda latex: r"\[ \] or \( \) do not pair up",
}
