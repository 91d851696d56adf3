"""What every reward takes and returns: the configuration and the score.

`RewardConfig` holds the profile and each constant of the rewards (arXiv:2609.26638, Appendix E, for the published
profile) under a name of its own, so that a run's configuration file says what was rewarded. `Score` is the reward
together with the components it was made of, which is what a training run logs and records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeVar

Part = float | int | bool


_T = TypeVar("_T")


def _constant(default: _T, text: str) -> _T:
    return field(default=default, metadata={"help": text})


def _per_profile(text: str) -> float:
    """A constant that is None until `RewardConfig` sets it to its profile's value."""
    return field(default=None, metadata={"help": text})  # type: ignore[return-value]


PROFILES = ("published", "robust")
_LARGEST = 1_000_000_000  # of integers
# Constants that the profiles do not share: published, robust.
_PROFILE_VALUES = {"violation_factor": (0.3, 0.6), "unclosed_factor": (0.0, 0.85)}
# Constants that only the other profile uses.
_IGNORED = {"published": ("gate_repeat_free",), "robust": ("gate_run_free", "gate_run_span")}


@dataclass(frozen=True)
class RewardConfig:
    """Which rewards, and their constants. The defaults are the published values.

    A constant that is left out (or None) takes its profile's value, so after construction every field is a number.
    To change the profile, make a new configuration: `dataclasses.replace` would carry the other profile's values over.

    Raises:
        TypeError: a value is not a number, or not an integer where an integer is declared.
        ValueError: the profile is unknown, or a value is outside its range or has no effect in the profile. The message
            names the field.
    """

    profile: str = _constant(
        "published",
        "Which rewards: `published` is the form of the paper, `robust` closes its blind spots (docs/REWARDS.md).",
    )
    teds_weight: float = _constant(0.45, "Table: weight of TEDS_s, the structure-only tree similarity. In [0, 1].")
    cell_weight: float = _constant(0.55, "Table: weight of s_cell, the similarity of the cell texts. In [0, 1].")
    row_penalty: float = _constant(0.35, "Table: largest penalty p_row for too many or too few rows. In [0, 1].")
    row_penalty_min_rows: int = _constant(
        4, "Table: p_row divides the row difference by the reference's rows, at least by this. At least 1."
    )
    loop_min_allowance: int = _constant(
        3, "Table: a row with the same cell texts may always occur this often without penalty. At least 1."
    )
    loop_extra_allowance: int = _constant(
        1, "Table: a row may occur this many times more than in the reference without penalty. At least 0."
    )
    loop_penalty_base: float = _constant(
        0.30, "Table: penalty p_loop as soon as any row is beyond its allowance. In [0, 1]."
    )
    loop_penalty_slope: float = _constant(
        0.70, "Table: p_loop grows by this times the share of rows beyond their allowance. In [0, 1]."
    )
    shape_bonus: float = _constant(
        0.05, "Table: bonus for the right number of rows, again for that of columns. In [0, 0.5]."
    )
    unparsed_weight: float = _constant(
        0.15, "Table: weight of the plain edit similarity for a prediction that holds no table. In [0, 1]."
    )
    unclosed_factor: float = _per_profile(
        "Table: factor for a prediction that does not close its table. Published 0, robust 0.85. In [0, 1]."
    )
    violation_factor: float = _per_profile(
        "Formula: factor for each check that the reference passes and the prediction fails. Published 0.3 with four "
        "checks, robust 0.6 with nine. In [0, 1]."
    )
    gate_ngram: int = _constant(
        8, "Gate: length of the n-grams, in whitespace-separated tokens (robust: in units). At least 1."
    )
    gate_min_tokens: int = _constant(
        16, "Gate: rho8 is 1 for predictions of fewer tokens than this. At least gate_ngram."
    )
    gate_run_free: int = _constant(
        20, "Gate, published: a run of one character up to this length costs nothing. In characters, at least 0."
    )
    gate_run_span: int = _constant(
        200, "Gate, published: a run so many characters longer than gate_run_free brings the gate to 0. At least 1."
    )
    gate_repeat_free: int = _constant(
        64,
        "Gate, robust: this many repeated n-grams cost nothing. They count from the third occurrence on, in both "
        "readings of the prediction together. At least 1.",
    )

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"profile must be {' or '.join(PROFILES)}: {self.profile!r}")
        for name, values in _PROFILE_VALUES.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, values[PROFILES.index(self.profile)])
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            integral = isinstance(item.default, int)
            if isinstance(value, bool) or not isinstance(value, int if integral else (int, float)):
                raise TypeError(f"{item.name} must be {'an integer' if integral else 'a number'}: {value!r}")
        for name in (
            "teds_weight",
            "cell_weight",
            "row_penalty",
            "loop_penalty_base",
            "loop_penalty_slope",
            "unparsed_weight",
            "unclosed_factor",
            "violation_factor",
        ):
            self._require(name, 0.0, 1.0)
        self._require("shape_bonus", 0.0, 0.5)
        for name in ("row_penalty_min_rows", "loop_min_allowance", "gate_ngram", "gate_run_span", "gate_repeat_free"):
            self._require(name, 1, _LARGEST)
        for name in ("loop_extra_allowance", "gate_run_free"):
            self._require(name, 0, _LARGEST)
        self._require("gate_min_tokens", self.gate_ngram, _LARGEST)
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _IGNORED[self.profile] and value != item.default:
                raise ValueError(f"{item.name} has no effect in the {self.profile} profile: {value!r}")

    def _require(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not low <= value <= high:  # also false for NaN
            limit = f"at least {low}" if high == _LARGEST and value < low else f"between {low} and {high}"
            raise ValueError(f"{name} must be {limit}: {value!r}")


PUBLISHED = RewardConfig()
ROBUST = RewardConfig(profile="robust")


@dataclass(frozen=True)
class Score:
    """One reward.

    Attributes:
        value: the reward, finite and in [0, 1].
        parts: the components that made it. A task always has the same keys; `docs/REWARDS.md` lists them.
    """

    value: float
    parts: dict[str, Part]


def require_strings(prediction: object, reference: object) -> None:
    """Raises TypeError, naming the argument, unless both are strings."""
    for name, value in (("prediction", prediction), ("reference", reference)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}")


def require_config(config: object) -> None:
    """Raises TypeError unless it is a configuration."""
    if not isinstance(config, RewardConfig):
        raise TypeError(f"config must be a RewardConfig, not {type(config).__name__}")


def is_oversized(prediction: str, reference: str) -> bool:
    """True if a prediction has over 100,000 characters and over four times as many as its reference.

    It is not worth scoring and has value 0: a completion of 8,448 tokens has about 34,000 characters, and a
    prediction four times as long as its reference has at most a quarter of the edit similarity.
    """
    return len(prediction) > max(100_000, 4 * len(reference))
