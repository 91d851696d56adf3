"""The formula reward: similarity of canonical LaTeX, times a factor for each way in which it is malformed.

`sim(canon(prediction), canon(reference)) * factor ** v * gate`. `v` counts the checks that the reference passes and
the prediction fails. The published profile (arXiv:2609.26638, Appendix E; `rewards.latex.published`) compares strings
and has four checks and a factor of 0.3; the robust one (`rewards.latex.reader`) compares tokens and has nine and 0.6.
CDM, the metric of the benchmark, is not a reward: it renders both formulas.
"""

from __future__ import annotations

from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rewards.gate import CLOSED_GATE, degeneration_gate
from rewards.latex.published import canonical, checks
from rewards.latex.reader import Formula, read_formula
from rewards.types import PUBLISHED, RewardConfig, Score, is_oversized, require_config, require_strings


def compared_form(latex: str, profile: str) -> Formula:
    """What a profile compares of a formula: characters or tokens of its canonical form, and the checks it passes."""
    if profile == "robust":
        return read_formula(latex)
    return Formula(canonical(latex), checks(latex))


@lru_cache(maxsize=1024)
def _read_reference(reference: str, profile: str) -> Formula:
    formula = compared_form(reference, profile)
    if not formula.tokens:
        raise ValueError(f"reference holds no formula: {reference[:80]!r}")
    return formula


def formula_reward(prediction: str, reference: str, config: RewardConfig = PUBLISHED) -> Score:
    """The formula reward of either profile.

    Parts: `similarity` of the canonical forms, `violations`, one boolean a check (true where the prediction
    passes it), and the gate with its terms. With gate 0 the similarity is not computed and stays 0. An oversized
    prediction is not read: it has value 0 and passes no check.

    Raises:
        TypeError: an argument is not a string.
        ValueError: the reference holds no formula (its canonical form is empty).
    """
    require_strings(prediction, reference)
    require_config(config)
    wanted = _read_reference(reference, config.profile)
    if is_oversized(prediction, reference):
        gate, formula = CLOSED_GATE, Formula("", dict.fromkeys(wanted.checks, False))
    else:
        gate, formula = degeneration_gate(prediction, reference, config), compared_form(prediction, config.profile)
    violations = sum(passes and not formula.checks[name] for name, passes in wanted.checks.items())
    similarity = 0.0
    if gate.gate > 0.0:
        similarity = Levenshtein.normalized_similarity(formula.tokens, wanted.tokens)
    value = similarity * config.violation_factor**violations * gate.gate
    return Score(value, {"similarity": similarity, **gate._asdict(), "violations": violations, **formula.checks})
