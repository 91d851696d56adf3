"""Crops for ``decoding.py``: batches of mixed tasks, 28 responses of which some are much longer, and a group of 28.

They are rendered from the held-out split with the knobs that the shipped checkpoint was trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import AutoModelForImageTextToText

from gravity_rl.data.prompts import load_prompts
from gravity_rl.joint.drafter import require_drafter
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.model import load_ocr_processor, resolve_checkpoint
from gravity_rl.synth.crops import TASKS, Crop, crop_seed, sample_crop
from gravity_rl.synth.knobs import PRESETS

POOL = 120  # crops to choose from
MOST_CALLS, ROWS_A_ROUND = 9, 56  # small batches are several calls a round
GROUP, LONG_ROWS = 28, 4
MIXED, TAIL, GROUP_NAME = "mixed crops, batch {}", "28 mixed with a long tail", "groups of 28, one prompt each"


@dataclass(frozen=True)
class Workload:
    """Calls that a contender makes in a round, each with the tasks of its rows."""

    name: str
    temperature: float
    calls: list[tuple[dict[str, Tensor], list[str]]]


class Checkpoint:
    """Model, processor and the tokens that decoding has to know."""

    def __init__(self, name: str, max_new_tokens: int):
        folder = resolve_checkpoint(name)
        self.processor = load_ocr_processor(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()
        self.drafter = require_drafter(folder)
        self.ends, self.banned = decoding_tokens(self.model, self.processor, self.drafter.mask_id)
        self.max_new_tokens = max_new_tokens

    def inputs(self, crops: Sequence[Crop]) -> dict[str, Tensor]:
        prompts, conversations = load_prompts(), []
        for crop in crops:
            image = {"type": "image", "image": crop.image.convert("RGB")}
            conversations.append([{"role": "user", "content": [image, {"type": "text", "text": prompts[crop.task]}]}])
        return dict(
            self.processor.apply_chat_template(
                conversations,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                processor_kwargs={"padding": True, "return_tensors": "pt"},
            )
        )


def make_workloads(checkpoint: Checkpoint, batches: Sequence[int], temperatures: Sequence[float]) -> list[Workload]:
    crops = [
        sample_crop(TASKS[index % len(TASKS)], "heldout", crop_seed(0, "heldout", index), PRESETS["tiny"])
        for index in range(POOL)
    ]
    tokenizer = checkpoint.processor.tokenizer
    by_length = sorted(crops, key=lambda crop: len(tokenizer(crop.reference)["input_ids"]))
    half = by_length[: POOL // 2]
    chosen: dict[str, list[list[Crop]]] = {}
    for size in batches:
        calls = min(MOST_CALLS, max(1, ROWS_A_ROUND // size))
        chosen[MIXED.format(size)] = [crops[call * size : (call + 1) * size] for call in range(calls)]
    tails = ROWS_A_ROUND // GROUP
    chosen[TAIL] = [
        half[call::tails][: GROUP - LONG_ROWS] + by_length[POOL - LONG_ROWS * (call + 1) : POOL - LONG_ROWS * call]
        for call in range(tails)
    ]
    chosen[GROUP_NAME] = [[crop] * GROUP for crop in crops[: len(TASKS)]]
    calls_of = {
        name: [(checkpoint.inputs(batch), [crop.task for crop in batch]) for batch in calls]
        for name, calls in chosen.items()
    }
    return [
        Workload(name, temperature, calls)
        for temperature in temperatures
        for name, calls in calls_of.items()
        if temperature or name != GROUP_NAME  # which would be the same completion 28 times
    ]
