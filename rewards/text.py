"""The text reward: one minus the normalised edit distance of two text forms.

`(1 - NED) * gate` with `NED = Levenshtein / max length`, after arXiv:2609.26638, Appendix E. The published profile
compares the forms of the OmniDocBench scorer, which have neither spaces nor punctuation, so it sees neither. The
robust profile compares `rewards.text_form`, which keeps both.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rewards.gate import CLOSED_GATE, degeneration_gate
from rewards.markup import normalize_text
from rewards.text_form import robust_text_form
from rewards.types import PUBLISHED, RewardConfig, Score, is_oversized, require_config, require_strings


def is_blank(text: str) -> bool:
    """True if nothing would be drawn: only whitespace, control and format characters, or nothing at all."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def compared_form(text: str, profile: str) -> str:
    """The normalised text, or the raw one where normalisation leaves nothing (the scorer's rule).

    In the robust profile a blank text has an empty form: its spaces are not those of a reference.
    """
    if profile == "robust":
        return robust_text_form(text) or ("" if is_blank(text) else text)
    return normalize_text(text) or text


_reference_form = lru_cache(maxsize=1024)(compared_form)


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
    oversized = is_oversized(prediction, reference)
    gate = CLOSED_GATE if oversized else degeneration_gate(prediction, reference, config)
    similarity = 0.0
    if gate.gate > 0.0:
        if is_blank(reference):
            similarity = float(is_blank(prediction))
        else:
            form, wanted = compared_form(prediction, config.profile), _reference_form(reference, config.profile)
            similarity = Levenshtein.normalized_similarity(form, wanted)
    return Score(similarity * gate.gate, {"similarity": similarity, **gate._asdict(), "ned": 1.0 - similarity})
