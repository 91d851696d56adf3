"""The metrics of OmniDocBench, for evaluation: edit distances of text, formulas and tables, TEDS, and Overall.

A metric answers how good a model is, a reward what it should learn. The two are kept apart because they differ on
purpose: a metric must equal the official value, blind spots and all, while a reward must not pay for what only fools
the metric. `docs/REWARDS.md` lists the differences. The values are those of the public OmniDocBench v1.5 code, whose
TEDS is PubTabNet's (Zhong et al., 2020). CDM renders formulas with LaTeX and is not computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

from rewards.markup import normalize_formula, normalize_table, normalize_text
from rewards.metrics.tables import Alphabet, Label, read_table
from rewards.trees.distance import tree_distance
from rewards.trees.weighted import weighted_tree_distance
from rewards.types import require_strings

_WRAPPED = "<html><body>{}</body></html>"


class EditDistance(NamedTuple):
    """The edit distance of one pair of strings.

    Attributes:
        edits: Levenshtein distance, in characters.
        length: length of the longer string, in characters. At least 1.
    """

    edits: int
    length: int

    @property
    def ned(self) -> float:
        """Normalised edit distance, `edits / length`, in [0, 1]. 0 is a perfect copy."""
        return self.edits / self.length


def text_edit_distance(prediction: str, reference: str) -> EditDistance | None:
    """The official text edit distance: of the normalised strings, which have neither spaces nor punctuation.

    A string of which normalisation leaves nothing is compared as it was.

    Returns:
        None for two empty strings: the benchmark gives such a pair no score.

    Raises:
        TypeError: an argument is not a string.
    """
    return _edit_distance(prediction, reference, normalize_text)


def formula_edit_distance(prediction: str, reference: str) -> EditDistance | None:
    """The official edit distance of two LaTeX formulas; normalisation, None and errors as for texts.

    It compares strings: `x^2` for `x^{2}` costs two edits, and `\\leftarrow` for `\\rightarrow` none.
    """
    return _edit_distance(prediction, reference, normalize_formula)


def table_edit_distance(prediction: str, reference: str) -> EditDistance | None:
    """The official edit distance of two tables in HTML, tags included; None and errors as for texts."""
    return _edit_distance(prediction, reference, normalize_table)


def _edit_distance(prediction: str, reference: str, normalize: Callable[[str], str]) -> EditDistance | None:
    require_strings(prediction, reference)
    prediction, reference = normalize(prediction) or prediction, normalize(reference) or reference
    length = max(len(prediction), len(reference))
    return EditDistance(Levenshtein.distance(prediction, reference), length) if length else None


def mean_over_pages(pages: Iterable[Iterable[EditDistance | None]]) -> float | None:
    """The benchmark's average: for each page its edits divided by its lengths, then the mean over pages.

    Args:
        pages: for each page the distances of its samples, None where a pair has no score.

    Returns:
        A number in [0, 1]. None if no page has a score; a page without one is left out.
    """
    ratios = []
    for page in pages:
        scored = [distance for distance in page if distance is not None]
        if scored:
            ratios.append(sum(distance.edits for distance in scored) / sum(distance.length for distance in scored))
    return sum(ratios) / len(ratios) if ratios else None


def teds(prediction: str, reference: str, *, structure_only: bool = False) -> float:
    """TEDS of two tables in HTML, as OmniDocBench reports it: `1 - d / n` on the normalised tables.

    d is the tree edit distance. Insertions and deletions cost 1; so does a renaming if tags or spans differ, else, for
    cells, it costs the normalised edit distance of their contents (0 if structure_only). n is the larger number of
    elements below the table, inline tags inside cells included.

    Returns:
        At most 1. Not clipped, so it may be negative. 0 if one of the strings holds no table. Where the official code
        raises: 1 for two tables without an element below them; a span that is no number is read up to where it stops
        being one (`2;` is 2), or else as 1; what lxml cannot parse holds no table.
        Elements nested deeper than 32 below the table are not compared. Two very large tables (`MAX_CELLS` in
        `rewards.trees.weighted` and `rewards.trees.distance`) get a value that may be too low, never too high.

    Raises:
        TypeError: an argument is not a string.
    """
    require_strings(prediction, reference)
    return _teds(normalize_table(prediction) or prediction, normalize_table(reference) or reference, structure_only)


def teds_pubtabnet(prediction: str, reference: str, *, structure_only: bool = False) -> float:
    """TEDS as PubTabNet defines it: of the tables as they were written, without normalisation. Otherwise as `teds`."""
    require_strings(prediction, reference)
    return _teds(_WRAPPED.format(prediction), _WRAPPED.format(reference), structure_only)


def _teds(prediction: str, reference: str, structure_only: bool) -> float:
    """TEDS of two HTML documents."""
    alphabet = None if structure_only else Alphabet()
    table, wanted = read_table(prediction, alphabet), read_table(reference, alphabet)
    if table is None or wanted is None:
        return 0.0
    elements = max(table.elements, wanted.elements)
    if table.tree == wanted.tree:  # also if there are no elements
        return 1.0
    if structure_only:
        return 1.0 - tree_distance(table.tree, wanted.tree) / elements
    return 1.0 - weighted_tree_distance(table.tree, wanted.tree, _rename) / elements


def _rename(label: Label, other: Label) -> float:
    if label[:3] != other[:3]:
        return 1.0
    return Levenshtein.normalized_distance(label.content, other.content)


def overall(text_edit: float, teds: float, cdm: float) -> float:
    """The benchmark's Overall in percent: `((1 - text_edit) * 100 + TEDS * 100 + CDM * 100) / 3`.

    Args:
        text_edit: text edit distance as `mean_over_pages` gives it, in [0, 1].
        teds: mean TEDS over all tables, a fraction of 1.
        cdm: mean CDM over all formulas, a fraction of 1. From the benchmark's own code, which renders the formulas.

    Raises:
        ValueError: a value is not finite or above 1, as percentages are. The message names it.
    """
    for name, value in (("text_edit", text_edit), ("teds", teds), ("cdm", cdm)):
        if not (math.isfinite(value) and value <= 1.0):
            raise ValueError(f"{name} must be a fraction of at most 1: {value!r}")
    return ((1.0 - text_edit) * 100.0 + teds * 100.0 + cdm * 100.0) / 3.0
