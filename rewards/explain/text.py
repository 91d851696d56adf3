"""What a text reward is made of, for `rewards.explain`."""

from __future__ import annotations

from collections import Counter

from rapidfuzz.distance import Levenshtein

from rewards import RewardConfig, Score
from rewards.explain.alignment import LEGEND, difference_lines, quoted
from rewards.explain.steps import Step, counted
from rewards.text import compared_form, is_blank

# Kinds of characters that are listed as dropped.
_LISTED = 8


def text_steps(prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[Step]:
    """The steps before the gate."""
    similarity = float(scored.parts["similarity"])
    if is_blank(reference):
        cause = "blank region: a blank prediction has 1, any other 0"
    else:
        form, wanted = compared_form(prediction, config.profile), compared_form(reference, config.profile)
        edits = Levenshtein.distance(form, wanted)
        longest = max(len(form), len(wanted))
        cause = f"text: {counted(edits, 'edit')} in {counted(longest, 'character')}, NED {scored.parts['ned']:.4f}"
    return [Step(1.0, "a perfect copy"), Step(similarity, cause)]


def text_details(prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[str]:
    """The edits in context, and what the normalisation dropped."""
    lines = []
    form, wanted = compared_form(prediction, config.profile), compared_form(reference, config.profile)
    if scored.parts["similarity"] != 1.0 and not is_blank(reference):
        lines += ["", f"text as compared ({LEGEND})", *difference_lines(wanted, form)]
    elif form == wanted and prediction != reference:
        lines += ["", "The strings differ, but not in the form that is compared."]
    lines += ["", "not compared", f"  reference:  {_dropped(reference, wanted)}"]
    return [*lines, f"  prediction: {_dropped(prediction, form)}"]


def _dropped(text: str, form: str) -> str:
    """The characters that the form has fewer of, most frequent first."""
    dropped = Counter(text) - Counter(form)
    listed = [f"{count} x {_name(char)}" for char, count in dropped.most_common(_LISTED)]
    more = len(dropped) - len(listed)
    return (", ".join(listed) or "nothing") + (f", {more} other kinds" if more else "")


def _name(char: str) -> str:
    return {" ": "space", "\n": "line break", "\t": "tab"}.get(char) or quoted(char)
