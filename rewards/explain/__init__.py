"""`python -m rewards explain`: what one reward is made of, as lines for a terminal.

First comes the way from a perfect copy to the value, with the reward after each factor; then, for each factor that
took something, the differences behind it. Everything is computed from the parts of the score and the forms that the
reward compares. The output stays short however long the strings are.
"""

from __future__ import annotations

from rewards import RewardConfig, Score, score
from rewards.explain.formula import formula_details, formula_steps
from rewards.explain.gate import gate_cause, gate_details
from rewards.explain.steps import Step, waterfall_lines
from rewards.explain.table import table_details, table_steps
from rewards.explain.text import text_details, text_steps
from rewards.types import PUBLISHED, is_oversized

_STEPS = {"text": text_steps, "table": table_steps, "formula": formula_steps}
_DETAILS = {"text": text_details, "table": table_details, "formula": formula_details}


def explain(task: str, prediction: str, reference: str, config: RewardConfig = PUBLISHED) -> list[str]:
    """The lines that explain a reward. None holds a line break or another unprintable character.

    Args:
        task: `text`, `table` or `formula`.
        prediction: the completion, any string.
        reference: what is written in the crop.
        config: the constants; by default the published ones.

    Raises:
        TypeError, ValueError: as `rewards.score`.
    """
    scored = score(task, prediction, reference, config)
    lines = [
        f"{task}, {config.profile} profile: reward {scored.value:.4f}",
        "",
        " reward   change  cause",
        *waterfall_lines(reward_steps(task, prediction, reference, scored, config)),
    ]
    if is_oversized(prediction, reference):
        return lines
    if scored.parts["gate"] > 0.0:
        lines += _DETAILS[task](prediction, reference, scored, config)
    return lines + gate_details(task, prediction, reference, scored, config)


def reward_steps(task: str, prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[Step]:
    """The steps from a perfect copy to the value of a score, which the last step has."""
    gate = float(scored.parts["gate"])
    if is_oversized(prediction, reference):
        cause = f"not scored: {len(prediction)} characters for {len(reference)} in the reference"
        return [Step(1.0, "a perfect copy"), Step(0.0, cause)]
    if gate == 0.0:
        return [Step(1.0, "a perfect copy"), Step(0.0, f"{gate_cause(scored, config)}; nothing else is compared")]
    steps = _STEPS[task](prediction, reference, scored, config)
    return [*steps, Step(steps[-1].after * gate, gate_cause(scored, config))]
