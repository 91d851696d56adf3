"""The text reward: one minus the normalised edit distance of two text forms.

`(1 - NED) * gate` with `NED = Levenshtein / max length`, after arXiv:2609.26638, Appendix E. The published profile
compares the forms of the OmniDocBench scorer, which have neither spaces nor punctuation, so it sees neither. The
robust profile compares `rewards.text_form`, which keeps both.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rewards.gate import CLOSED_GATE, Gate, Shown, degeneration_gate, shown_gate
from rewards.markup import normalize_text
from rewards.text_form import drawn_text, invisible_count, laid_out
from rewards.types import PUBLISHED, RewardConfig, Score, is_oversized, require_config, require_strings

# What an invisible character weighs; a character of markup that the form does not have weighs 1.
INVISIBLE_WEIGHT = 8
# The weight that is free for each character that is drawn, and so many more of these.
UNSEEN_PER_CHARACTER, UNSEEN_CHARACTERS = 20, 4


def is_blank(text: str) -> bool:
    """True if nothing would be drawn: only whitespace, control and format characters, or nothing at all."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def compared_form(text: str, profile: str) -> str:
    """The normalised text, or the raw one where normalisation leaves nothing (the scorer's rule).

    In the robust profile a blank text has an empty form: its spaces are not those of a reference.
    """
    return _read(text, profile)[0]


def shown_text(text: str) -> Shown:
    """What the robust gate sees of a text: all that is drawn, dot leaders in full, and the weight of what is not."""
    return _read(text, "robust")[1]


def _read(text: str, profile: str) -> tuple[str, Shown]:
    """The form of a text, and what of it is shown."""
    if profile != "robust":
        return normalize_text(text) or text, _NOTHING
    drawn = drawn_text(text)
    invisible, length = invisible_count(text), _length(drawn)
    markup = max(0, _length(text) - invisible - length)
    shown = Shown(
        drawn,
        INVISIBLE_WEIGHT * invisible + markup,
        UNSEEN_PER_CHARACTER * (UNSEEN_CHARACTERS + length),
    )
    return laid_out(drawn) or ("" if is_blank(text) else text), shown


_NOTHING = Shown("", 0, 0)
_read_reference = lru_cache(maxsize=1024)(_read)


def _length(text: str) -> int:
    return len("".join(text.split()))


def _gate(prediction: str, found: Shown, wanted: Shown, config: RewardConfig) -> Gate:
    if config.profile == "robust":
        return shown_gate(prediction, found, wanted, config)
    return degeneration_gate(prediction, config=config)


def text_reward(prediction: str, reference: str, config: RewardConfig = PUBLISHED) -> Score:
    """The text reward of a profile.

    A blank reference is a blank region: a blank prediction has similarity 1, any other 0.

    Parts: `similarity` = 1 - `ned`, and the gate with its terms. With gate 0 the distance is not computed and
    `ned` is 1.

    Raises:
        TypeError: an argument is not a string.
    """
    require_strings(prediction, reference)
    require_config(config)
    gate, similarity = CLOSED_GATE, 0.0
    if not is_oversized(prediction, reference):
        form, shown = _read(prediction, config.profile)
        wanted, wanted_shown = _read_reference(reference, config.profile)
        gate = _gate(prediction, shown, wanted_shown, config)
        if gate.gate > 0.0:
            blank = is_blank(reference)
            similarity = float(is_blank(prediction)) if blank else Levenshtein.normalized_similarity(form, wanted)
    return Score(similarity * gate.gate, {"similarity": similarity, **gate._asdict(), "ned": 1.0 - similarity})
