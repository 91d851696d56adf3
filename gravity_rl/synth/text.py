"""Samples text lines: pronounceable words, numbers, codes and punctuation."""

from __future__ import annotations

import random
import string

from gravity_rl.synth.knobs import CropKnobs
from gravity_rl.synth.split import Split, draw_from_split

_ONSETS = [
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "w",
    "z",
    "st",
    "tr",
    "qu",
]
_VOWELS = ["a", "e", "i", "o", "u", "y", "ea", "ou"]
_CODAS = ["", "", "", "n", "r", "s", "t", "l", "m", "ck", "x"]


def word(rng: random.Random) -> str:
    """One to three syllables, sometimes capitalised."""
    syllables = rng.choices([1, 2, 3], [0.45, 0.45, 0.1])[0]
    letters = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
    return letters.capitalize() if rng.random() < 0.15 else letters


def number(rng: random.Random) -> str:
    """An integer, a decimal, a percentage or a year-like range."""
    kind = rng.random()
    if kind < 0.45:
        return str(rng.randint(0, 10 ** rng.randint(1, 4) - 1))
    if kind < 0.75:
        return f"{rng.randint(0, 99)}.{rng.randint(0, 99):02d}"
    if kind < 0.9:
        return f"{rng.randint(0, 100)}%"
    return f"{rng.randint(1, 9)}-{rng.randint(10, 99)}"


def token(rng: random.Random) -> str:
    """A word, a number, or a code of letters and digits, with punctuation now and then."""
    kind = rng.random()
    if kind < 0.68:
        base = word(rng)
    elif kind < 0.9:
        base = number(rng)
    else:
        base = "".join(rng.choice(string.ascii_uppercase + string.digits) for _ in range(rng.randint(2, 4)))
    mark = rng.random()
    if mark < 0.12:
        return base + rng.choice(",.;:")
    if mark < 0.15:
        return f"({base})"
    return base


def line(rng: random.Random, min_chars: int, max_chars: int) -> str:
    """Tokens joined by single spaces, between ``min_chars`` and ``max_chars`` characters long."""
    target = rng.randint(min_chars, max_chars)
    text = token(rng)[:max_chars]
    while len(text) < target:
        following = token(rng)
        if len(text) + 1 + len(following) > max_chars:
            break
        text += " " + following
    return text


def sample_text(rng: random.Random, knobs: CropKnobs, split: Split) -> list[str]:
    """The lines of a text crop, each of the given split."""
    count = rng.randint(*knobs.lines)
    return [draw_from_split(split, lambda: line(rng, *knobs.line_chars)) for _ in range(count)]
