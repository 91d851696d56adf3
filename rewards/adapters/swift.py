"""The rewards as an outcome reward (ORM) for ms-swift's GRPO, in a plugin file of two lines and an import.

    from swift.rewards import orms              # plugin.py
    from rewards.adapters.swift import OCRReward
    orms["ocr_reward"] = OCRReward

    swift rlhf --rlhf_type grpo --external_plugins plugin.py --reward_funcs ocr_reward ...

The dataset needs the columns `task` and `reference`. ms-swift (4.6) looks a reward up in `orms`, constructs it with
`args` and calls it, so the class needs no base class of theirs and this module does not import them. Do not pass this
very file as a plugin: ms-swift would put its folder on the import path, where its name hides theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewards import RewardConfig
from rewards.batch import score_batch
from rewards.types import PUBLISHED, require_config


class OCRReward:
    """A picklable callable with the signature of `swift.rewards.ORM`. By default, the published rewards.

    For another configuration register `functools.partial(OCRReward, config=RewardConfig(profile="robust"))`.
    """

    def __init__(self, args: Any = None, config: RewardConfig = PUBLISHED, **settings: Any) -> None:
        """Only the configuration matters: what ms-swift passes (`args` and further settings) is ignored."""
        require_config(config)
        self.config = config

    def __call__(
        self, completions: Sequence[str], *, task: Sequence[str], reference: Sequence[str], **columns: Any
    ) -> list[float]:
        """The reward of each completion, in [0, 1]. Other columns are ignored. Raises what `score_batch` raises."""
        return [scored.value for scored in score_batch(task, completions, reference, self.config)]
