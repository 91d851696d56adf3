"""Why the degeneration gate marks a prediction down, for `rewards.explain`."""

from __future__ import annotations

import re
from collections import Counter

from rewards import RewardConfig, Score
from rewards.explain.alignment import quoted
from rewards.gate import repeated_ngrams
from rewards.html.reader import read_tables
from rewards.tables.gate import measure


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
        terms = [_repeats("as written", prediction, reference, config)]
    return ["", "gate", *(f"  {text}: x {factor:.4f}" for text, factor in terms if factor < 1.0)]


def _repeats(what: str, prediction: str, reference: str, config: RewardConfig) -> tuple[str, float]:
    n, free = config.gate_ngram, config.gate_repeat_free
    found, wanted = repeated_ngrams(prediction, n), repeated_ngrams(reference, n)
    text = f"{what}: {found} repetitions of {n}-grams for {wanted} in the reference, {free} are free"
    return text, min(1.0, max(free, wanted) / max(free, found))


def _table_terms(prediction: str, reference: str, config: RewardConfig) -> list[tuple[str, float]]:
    """The terms of `rewards.tables.gate.table_gate`, of which the smallest counts."""
    found, wanted = (measure(markup, read_tables(markup)) for markup in (prediction, reference))
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
