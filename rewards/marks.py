"""Runs of combining marks, cut short: normalisation takes time quadratic in their length, and no script has long ones.

A run is a sequence of characters of the Unicode categories Mn, Mc and Me, which hold all that normalisation reorders.
"""

from __future__ import annotations

import re
import unicodedata

# Characters of a run that stay: as many as the Stream-Safe Text Format of Unicode (UAX #15) allows in a row.
MAX_MARKS = 30
# No mark is a word character, so nothing shorter or other than this holds a run that is too long.
_CANDIDATE = re.compile(rf"[^\w\s\x00-\x7f]{{{MAX_MARKS + 1},}}")


def without_mark_runs(text: str) -> str:
    """The text with all but the first 30 characters of each run of combining marks left out; linear in the length.

    Decomposition can make a run longer again, so apply it before and after `unicodedata.normalize`.
    """
    return text if text.isascii() else _CANDIDATE.sub(lambda run: _cut(run[0]), text)


def _cut(text: str) -> str:
    kept, run = [], 0
    for char in text:
        run = run + 1 if unicodedata.category(char)[0] == "M" else 0
        if run <= MAX_MARKS:
            kept.append(char)
    return "".join(kept)
