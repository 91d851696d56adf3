"""The degeneration gate: a factor that takes the reward away from completions that loop.

The published gate looks at the raw prediction, because normalisation removes just what loops are made of (spaces,
markup, spacing commands). It is `g = min(rho8, max(0, 1 - (L_run - 20) / 200), 1)`, after arXiv:2609.26638,
Appendix E. It needs spaces to see a loop, and it marks down a correct copy of a reference that repeats itself.

The robust gate is `min(1, g(prediction) / g(reference))` with `g = 64 / max(64, repeats)`, where `repeats` is how many
8-grams of a text's units occurred twice before, counted in each of two readings. The units are opening tags, numbers,
dot leaders and single characters, without spaces; the first reading takes a number as its step from the number
before, the second takes every number for the same and a tag by its name alone. The rewards apply it to what is
shown, which is spelled alike however it was typed, and bound what is not shown by its amount (`Shown`).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import NamedTuple

from rewards.text_form import LEADER_DOTS
from rewards.types import PUBLISHED, RewardConfig

_RUN = re.compile(r"(.)\1+", re.DOTALL)
_DOT = f"[{LEADER_DOTS}]"
# A tag or a number that is not too long to be one thing, the label of a list item, a run of dots, or one character that
# is no space.
_UNIT = re.compile(
    r"<(?P<slash>/?)(?P<tag>[a-zA-Z][^\s<>/]{0,15}+)[^<>]{0,112}>"
    r"|(?<!\d)(?P<number>\d{1,18})(?!\d)|(?<!\w)(?P<label>[a-zA-Z]{1,4})(?=[.)])"
    rf"|(?P<dots>{_DOT}(?:\s*+{_DOT})*+)|\S"
)
# A dot leader of three to this many dots is one unit, as its length does not matter.
_MAX_LEADER = 100
_LEADER = "..."
# What every number and label is in the second reading.
_ANY_NUMBER = "number"


class Gate(NamedTuple):
    """The factor in [0, 1]; the share of distinct n-grams and the longest run in characters, as published."""

    gate: float
    rho8: float
    longest_run: int


class Shown(NamedTuple):
    """What a string shows, how much in it is not shown, and how much of that costs nothing.

    The amounts are weighted characters of a text or tokens of a formula.
    """

    text: str
    unseen: int
    free: int


# Of a prediction that is not scored at all.
CLOSED_GATE = Gate(0.0, 0.0, 0)


def distinct_ngram_ratio(tokens: list[str], n: int) -> float:
    """Distinct n-grams divided by all n-grams, in (0, 1]. Needs at least n tokens."""
    grams = list(zip(*(tokens[start:] for start in range(n)), strict=False))
    return len(set(grams)) / len(grams)


def longest_run(text: str) -> int:
    """Length in characters of the longest run of one character; 0 for an empty text."""
    return max((run.end() - run.start() for run in _RUN.finditer(text)), default=min(len(text), 1))


def degeneration_gate(prediction: str, reference: str = "", config: RewardConfig = PUBLISHED) -> Gate:
    """The gate of a raw prediction. An empty prediction has gate 1: it does not loop.

    The published profile does not look at the reference.
    """
    rho8, run = published_terms(prediction, config)
    if config.profile == "robust":
        return Gate(repeats_gate(prediction, reference, config), rho8, run)
    run_term = 1.0 - (run - config.gate_run_free) / config.gate_run_span
    return Gate(min(rho8, max(0.0, run_term), 1.0), rho8, run)


def shown_gate(prediction: str, found: Shown, wanted: Shown, config: RewardConfig) -> Gate:
    """The robust gate of what a raw prediction shows: the smaller one of that of its text and that of the unseen rest.

    As much may be unseen as is free, or as is unseen in the reference. More lowers the gate in proportion.
    """
    allowed = max(found.free, wanted.unseen)
    gate = min(repeats_gate(found.text, wanted.text, config), allowed / max(allowed, found.unseen))
    return Gate(gate, *published_terms(prediction, config))


def repeats_gate(text: str, reference: str, config: RewardConfig) -> float:
    """The robust gate of a text, from what repeats in it and in the reference's. In (0, 1]."""
    if text == reference:
        return 1.0
    free, n = config.gate_repeat_free, config.gate_ngram
    return min(1.0, max(free, _reference_repeats(reference, n)) / max(free, repeated_ngrams(text, n)))


def published_terms(text: str, config: RewardConfig) -> tuple[float, int]:
    """rho8 and the longest run in characters."""
    tokens = text.split()
    enough = len(tokens) >= config.gate_min_tokens
    return distinct_ngram_ratio(tokens, config.gate_ngram) if enough else 1.0, longest_run(text)


def repeated_ngrams(text: str, n: int) -> int:
    """How many n-grams of a text's units occurred twice before, in both readings together.

    A text that is written twice has none, so g = free / max(free, this number) is 1 for a text of distinct content
    at any length, and each further turn of a loop lowers it.
    """
    symbols = _Symbols()
    as_written, shapes = [], []
    for unit, shape in _units(text):
        as_written.append(symbols[unit])
        shapes.append(symbols[shape])
    repeats = _third_ngrams("".join(as_written), n)
    return repeats + (repeats if shapes == as_written else _third_ngrams("".join(shapes), n))


_reference_repeats = lru_cache(maxsize=1024)(repeated_ngrams)


class _Symbols(dict[Hashable, str]):
    """One character for each unit, so that an n-gram is a string."""

    def __missing__(self, unit: Hashable) -> str:
        symbol = self[unit] = chr(min(len(self), sys.maxunicode))
        return symbol


def _third_ngrams(text: str, n: int) -> int:
    counts = Counter([text[start : start + n] for start in range(len(text) - n + 1)])
    return sum(count - 2 for count in counts.values() if count > 2)


def _units(text: str) -> Iterator[tuple[Hashable, str]]:
    """Each unit of a text in the two readings: as written, numbers as steps, and by shape.

    A closing tag is a unit only where it closes nothing.
    """
    before = 0
    opened: Counter[str] = Counter()
    for match in _UNIT.finditer(text):
        unit, kind = match[0], match.lastgroup
        if kind is None:
            yield unit, unit
        elif kind == "number":
            number = int(unit)
            yield number - before, _ANY_NUMBER
            before = number
        elif kind == "label":
            yield unit, _ANY_NUMBER
        elif kind == "dots":
            dots = "".join(unit.split())
            for each in (_LEADER,) if 3 <= len(dots) <= _MAX_LEADER else dots:
                yield each, each
        else:
            name = match["slash"] + match["tag"].lower()
            if name[0] != "/":
                opened[name] += 1
            elif opened[name[1:]]:
                opened[name[1:]] -= 1
                continue
            yield unit, f"<{name}"
