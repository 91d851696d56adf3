"""How far two sequences of cell texts are apart: s_cell of the robust profile.

The published s_cell joins the texts to one string, so it can neither tell `1`, `2` from `12` nor a long wrong cell from
many short ones. Here texts are aligned cell by cell: a pair costs the NED of its texts, a cell without a partner 1, and
the cheapest alignment counts. In long sequences equal texts are anchored first, by the Levenshtein distance of the
sequences, and the cheapest alignment between two anchors counts, so that a table takes about a millisecond.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rapidfuzz.distance import Levenshtein, Postfix, Prefix

# A cell may be paired with one that stands so many places further than the difference in length.
BAND = 16
# Most pairs of texts that are compared without anchors, and between two of them. Beyond, cells are paired in order.
MAX_PAIRS = 2_000
MAX_PAIRS_OF_A_GAP = 20_000

Texts = Sequence[str]


def text_distance(text: str, other: str) -> float:
    """NED of two texts, with or without their spaces, whichever is larger. In [0, 1].

    Without the second, spaces strewn over a wrong text would bring it closer to some references.
    """
    if text == other:
        return 0.0
    distance = Levenshtein.normalized_distance(text, other)
    if " " in text or " " in other:
        distance = max(distance, Levenshtein.normalized_distance(text.replace(" ", ""), other.replace(" ", "")))
    return distance


def cell_similarity(found: Texts, wanted: Texts) -> float:
    """1 - cost of the alignment / length of the longer sequence; 1 for two empty ones."""
    if found == wanted:
        return 1.0
    # Equal texts at both ends are paired in some cheapest alignment.
    start = Prefix.similarity(found, wanted)
    end = Postfix.similarity(found[start:], wanted[start:])
    inner, wanted_inner = found[start : len(found) - end], wanted[start : len(wanted) - end]
    if _pairs(inner, wanted_inner) <= MAX_PAIRS:
        cost = _cheapest(inner, wanted_inner)
    else:
        cost = sum(_gap_cost(*gap) for gap in _gaps(inner, wanted_inner))
    return 1.0 - cost / max(len(found), len(wanted))


def _gaps(found: Texts, wanted: Texts) -> Iterator[tuple[Texts, Texts]]:
    """What stands between cells that are equal in both sequences, in an alignment with most of them."""
    numbers: dict[str, str] = {}

    def numbered(texts: Texts) -> str:
        return "".join(numbers.setdefault(text, chr(min(len(numbers), sys.maxunicode))) for text in texts)

    blocks = Levenshtein.editops(numbered(found), numbered(wanted)).as_matching_blocks()
    start, other_start = 0, 0
    for block in blocks:
        if block.a > start or block.b > other_start:
            yield found[start : block.a], wanted[other_start : block.b]
        start, other_start = block.a + block.size, block.b + block.size


def _gap_cost(found: Texts, wanted: Texts) -> float:
    if _pairs(found, wanted) <= MAX_PAIRS_OF_A_GAP:
        return _cheapest(found, wanted)
    return abs(len(found) - len(wanted)) + sum(map(text_distance, found, wanted))


def _pairs(found: Texts, wanted: Texts) -> int:
    """How many pairs of texts are within the band."""
    shorter, longer = sorted((len(found), len(wanted)))
    return shorter * min(longer, longer - shorter + 2 * BAND + 1)


def _cheapest(found: Texts, wanted: Texts) -> float:
    """Cost of the cheapest alignment within the band."""
    if len(found) > len(wanted):
        found, wanted = wanted, found
    width, surplus = len(wanted), len(wanted) - len(found)
    above = list(map(float, range(width + 1)))
    for i, text in enumerate(found):
        low, high = max(0, i - BAND), min(width, i + surplus + BAND + 1)
        row = [float(width + i)] * (width + 1)  # outside of the band: no less than the cheapest one there
        if low == 0:
            row[0] = i + 1.0
        for j in range(low, high):
            row[j + 1] = min(above[j] + text_distance(text, wanted[j]), above[j + 1] + 1.0, row[j] + 1.0)
        above = row
    return above[width]
