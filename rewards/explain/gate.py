"""Why the degeneration gate marks a prediction down, for `rewards.explain`."""

from __future__ import annotations

import re
from collections import Counter

from rewards import RewardConfig, Score
from rewards.explain.alignment import quoted
from rewards.formula import compared_form, shown_formula
from rewards.gate import Shown, repeated_ngrams
from rewards.html.reader import read_tables
from rewards.tables.gate import measure
from rewards.text import shown_text


def gate_cause(scored: Score, config: RewardConfig) -> str:
    """The gate as a factor, with its terms."""
    if config.profile == "robust":
        return f"gate: x {scored.parts['gate']:.4f}"
    return f"gate: x {scored.parts['gate']:.4f}, rho8 {scored.parts['rho8']:.4f}, run {scored.parts['longest_run']}"


def gate_details(task: str, prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[str]:
    """What repeats; nothing where the gate is 1."""
    if scored.parts["gate"] == 1.0:
        return []
    if config.profile == "published":
        return ["", "gate", *_ngrams(prediction, scored, config), *_run(prediction, scored, config)]
    if task == "table":
        terms = _table_terms(prediction, reference, config)
    else:
        terms = _shown_terms(_shown(task, prediction), _shown(task, reference), config)
    return ["", "gate", *(f"  {text}: x {factor:.4f}" for text, factor in terms if factor < 1.0)]


def _repeats(what: str, prediction: str, reference: str, config: RewardConfig) -> tuple[str, float]:
    n, free = config.gate_ngram, config.gate_repeat_free
    found, wanted = repeated_ngrams(prediction, n), repeated_ngrams(reference, n)
    text = f"{what}: {found} repetitions of {n}-grams for {wanted} in the reference, {free} are free"
    return text, min(1.0, max(free, wanted) / max(free, found))


def _shown(task: str, string: str) -> Shown:
    return shown_text(string) if task == "text" else shown_formula(string, compared_form(string, "robust"))


def _shown_terms(found: Shown, wanted: Shown, config: RewardConfig) -> list[tuple[str, float]]:
    """The terms of `rewards.gate.shown_gate`, of which the smaller counts."""
    allowed = max(found.free, wanted.unseen)
    unseen = f"unseen: weight {found.unseen} for {wanted.unseen} in the reference, {found.free} is free"
    return [
        _repeats("as shown", found.text, wanted.text, config),
        (unseen, allowed / max(allowed, found.unseen)),
    ]


def _table_terms(prediction: str, reference: str, config: RewardConfig) -> list[tuple[str, float]]:
    """The terms of `rewards.tables.gate.table_gate`, of which the smallest counts."""
    wanted = measure(reference, read_tables(reference), 0)
    found = measure(prediction, read_tables(prediction), wanted.blank_cells)
    free = config.gate_repeat_free
    allowed = max(found.free, wanted.unseen)
    return [
        _repeats("cells", found.cells, wanted.cells, config),
        _repeats("text outside of cells", found.outside, wanted.outside, config),
        (
            f"{found.blanks} blank cells and rows for {wanted.blanks} in the reference, {free} more are free",
            free / max(free, found.blanks - wanted.blanks),
        ),
        (
            f"{found.unseen} characters of markup for {wanted.unseen} in the reference, {found.free} are free",
            allowed / max(allowed, found.unseen),
        ),
    ]


def _ngrams(prediction: str, scored: Score, config: RewardConfig) -> list[str]:
    if scored.parts["rho8"] == 1.0:
        return []
    n = config.gate_ngram
    tokens = prediction.split()
    grams = Counter(zip(*(tokens[start:] for start in range(n)), strict=False))
    gram, count = grams.most_common(1)[0]
    return [
        f"  rho8: {len(grams)} distinct of {grams.total()} {n}-grams of words; most frequent, {count} times:",
        f"    {quoted(' '.join(gram), 90)}",
    ]


def _run(prediction: str, scored: Score, config: RewardConfig) -> list[str]:
    length = int(scored.parts["longest_run"])
    if length <= config.gate_run_free:
        return []
    run = max(re.finditer(r"(.)\1*", prediction, re.DOTALL), key=lambda match: match.end() - match.start())
    factor = max(0.0, 1.0 - (length - config.gate_run_free) / config.gate_run_span)
    return [f"  longest run: {length} times {quoted(run[1])} from character {run.start() + 1}: x {factor:.4f}"]
