"""The formula reward: similarity of canonical LaTeX, times a factor for each way in which it is malformed.

`sim(canon(prediction), canon(reference)) * factor ** v * gate`. `v` counts the checks that the reference passes and
the prediction fails. The published profile (arXiv:2609.26638, Appendix E; `rewards.latex.published`) compares strings
and has four checks and a factor of 0.3; the robust one (`rewards.latex.reader`) compares tokens and has nine and 0.6.
CDM, the metric of the benchmark, is not a reward: it renders both formulas.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rewards.gate import CLOSED_GATE, Gate, Shown, degeneration_gate, shown_gate
from rewards.latex.published import canonical, checks
from rewards.latex.reader import Formula, read_formula
from rewards.latex.tables import SPACING, TOKEN
from rewards.types import PUBLISHED, RewardConfig, Score, is_oversized, require_config, require_strings

# What an unseen token weighs: one of structure (a brace, a font, a style), a spacing command, a comment's character.
STRUCTURE_WEIGHT, SPACING_WEIGHT, COMMENT_WEIGHT = 1, 8, 4
# The weight that is free for each canonical token, and so many more of these.
UNSEEN_PER_TOKEN, UNSEEN_TOKENS = 8, 4
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*+\{[^{}\\]{1,64}\}")


def compared_form(latex: str, profile: str) -> Formula:
    """What a profile compares of a formula: characters or tokens of its canonical form, and the checks it passes."""
    if profile == "robust":
        return read_formula(latex)
    return Formula(canonical(latex), checks(latex))


def shown_formula(latex: str, formula: Formula) -> Shown:
    """What the robust gate sees of a formula that was read: its canonical tokens, and the weight of all others.

    White space weighs nothing, and `\\begin{name}` as much as a brace.
    """
    structure = spacing = comments = 0
    for token in TOKEN.findall(_ENVIRONMENT.sub("{", latex)):
        if token[0] == "%":
            comments += len("".join(token.split()))
        elif token in SPACING:
            spacing += 1
        else:
            structure += not token.isspace()
    structure = max(0, structure - len(formula.tokens))
    return Shown(
        "".join(formula.tokens).replace("<", "< "),  # so that no relation looks like a tag
        STRUCTURE_WEIGHT * structure + SPACING_WEIGHT * spacing + COMMENT_WEIGHT * comments,
        UNSEEN_PER_TOKEN * (UNSEEN_TOKENS + len(formula.tokens)),
    )


@lru_cache(maxsize=1024)
def _read_reference(reference: str, profile: str) -> tuple[Formula, Shown]:
    formula = compared_form(reference, profile)
    if not formula.tokens:
        raise ValueError(f"reference holds no formula: {reference[:80]!r}")
    return formula, shown_formula(reference, formula)


def _gate(prediction: str, formula: Formula, wanted: Shown, config: RewardConfig) -> Gate:
    if config.profile == "robust":
        return shown_gate(prediction, shown_formula(prediction, formula), wanted, config)
    return degeneration_gate(prediction, config=config)


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
    wanted, wanted_shown = _read_reference(reference, config.profile)
    if is_oversized(prediction, reference):
        gate, formula = CLOSED_GATE, Formula("", dict.fromkeys(wanted.checks, False))
    else:
        formula = compared_form(prediction, config.profile)
        gate = _gate(prediction, formula, wanted_shown, config)
    violations = sum(passes and not formula.checks[name] for name, passes in wanted.checks.items())
    similarity = 0.0
    if gate.gate > 0.0:
        similarity = Levenshtein.normalized_similarity(formula.tokens, wanted.tokens)
    value = similarity * config.violation_factor**violations * gate.gate
    return Score(value, {"similarity": similarity, **gate._asdict(), "violations": violations, **formula.checks})
