"""The formula reward: similarity of canonical LaTeX, times a factor for each way in which it is malformed.

`sim(canon(prediction), canon(reference)) * 0.3 ** v * gate`, after arXiv:2609.26638, Appendix E. `v` counts
the checks that the reference passes and the prediction fails. CDM, the metric of the benchmark, is not a
reward: it renders both formulas.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

from rewards.gate import CLOSED_GATE, degeneration_gate
from rewards.latex import CHECKS, canonical, checks
from rewards.types import PUBLISHED, RewardConfig, Score, is_oversized, require_strings


class _Reference(NamedTuple):
    canonical: str
    checks: dict[str, bool]


@lru_cache(maxsize=1024)
def _read_reference(reference: str) -> _Reference:
    form = canonical(reference)
    if not form:
        raise ValueError(f"reference holds no formula: {reference[:80]!r}")
    return _Reference(form, checks(reference))


def formula_reward(prediction: str, reference: str, config: RewardConfig = PUBLISHED) -> Score:
    """The published formula reward.

    Parts: `similarity` of the canonical forms, `violations`, one boolean a check (true where the prediction
    passes it), and the gate with its terms. With gate 0 the similarity is not computed and stays 0.

    Raises:
        TypeError: an argument is not a string.
        ValueError: the reference holds no formula (its canonical form is empty).
    """
    require_strings(prediction, reference)
    wanted = _read_reference(reference)
    oversized = is_oversized(prediction, reference)
    gate = CLOSED_GATE if oversized else degeneration_gate(prediction, reference, config)
    passed = checks(prediction)
    violations = sum(wanted.checks[name] and not passed[name] for name in CHECKS)
    similarity = 0.0
    if gate.gate > 0.0:
        similarity = Levenshtein.normalized_similarity(canonical(prediction), wanted.canonical)
    value = similarity * config.violation_factor**violations * gate.gate
    return Score(value, {"similarity": similarity, **gate._asdict(), "violations": violations, **passed})
