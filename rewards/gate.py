"""The degeneration gate: a factor that takes the reward away from completions that loop.

It looks at the raw prediction, because normalisation removes just what loops are made of (spaces, markup,
spacing commands). The published gate is `g = min(rho8, max(0, 1 - (L_run - 20) / 200), 1)`, after
arXiv:2609.26638, Appendix E. It needs spaces to see a loop, and it marks down a correct copy of a reference that
repeats itself; the robust gate is `min(1, g(prediction) / g(reference))` with a g that needs none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import NamedTuple

from rewards.types import PUBLISHED, RewardConfig

_RUN = re.compile(r"(.)\1+", re.DOTALL)
# A tag that is not too long to be one thing, a number, or one character that is not a space.
_UNIT = re.compile(r"<(/?)[a-zA-Z][^<>]{0,64}>|\d+|\S")
# A number of more digits is compared as it is written.
_MAX_DIGITS = 9


class Gate(NamedTuple):
    """The factor in [0, 1]; the share of distinct n-grams and the longest run in characters, as published."""

    gate: float
    rho8: float
    longest_run: int


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
    tokens = prediction.split()
    rho8 = 1.0 if len(tokens) < config.gate_min_tokens else distinct_ngram_ratio(tokens, config.gate_ngram)
    run = longest_run(prediction)
    if config.profile == "robust":
        free, n = config.gate_repeat_free, config.gate_ngram
        repeats, wanted = repeated_ngrams(prediction, n), _reference_repeats(reference, n)
        return Gate(min(1.0, max(free, wanted) / max(free, repeats)), rho8, run)
    run_term = 1.0 - (run - config.gate_run_free) / config.gate_run_span
    return Gate(min(rho8, max(0.0, run_term), 1.0), rho8, run)


def repeated_ngrams(text: str, n: int) -> int:
    """How many n-grams of a text's units occurred in it before; 0 if it has no more than n units.

    With g = free / max(free, this number) a text of distinct content has g = 1 at any length, and each turn of a
    loop lowers it.
    """
    numbers: dict[Hashable, str] = {}
    symbols = "".join(numbers.setdefault(unit, chr(min(len(numbers), sys.maxunicode))) for unit in _units(text))
    count = len(symbols) - n + 1
    return count - len({symbols[start : start + n] for start in range(count)}) if count > 0 else 0


_reference_repeats = lru_cache(maxsize=1024)(repeated_ngrams)


def _units(text: str) -> Iterator[Hashable]:
    """What a loop is made of: opening tags, numbers, characters; neither spaces nor closing tags.

    A number counts as its difference from the number before, so that counting up is a loop as well.
    """
    before = 0
    for match in _UNIT.finditer(text):
        unit = match[0]
        if match[1] is not None:
            if not match[1]:
                yield unit
        elif unit.isdecimal() and len(unit) <= _MAX_DIGITS:
            number = int(unit)
            yield number - before
            before = number
        else:
            yield unit
