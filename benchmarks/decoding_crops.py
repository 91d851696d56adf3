"""Crops for ``decoding.py``: batches of mixed tasks, 28 responses of which some are much longer, and a group of 28.

They are rendered from the held-out split with the knobs that the shipped checkpoint was trained with. Every round has
crops of its own: with the same ones, whether a window ends a batch a round earlier would be the same luck each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor
from transformers import AutoModelForImageTextToText

from gravity_rl.data.prompts import load_prompts
from gravity_rl.joint.drafter import require_drafter
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.model import load_ocr_processor, resolve_checkpoint
from gravity_rl.synth.crops import TASKS, Crop, crop_seed, sample_crop
from gravity_rl.synth.knobs import PRESETS

POOL = 120  # crops that a round chooses from
MOST_CALLS, ROWS_A_ROUND = 9, 56  # small batches are several calls a round
GROUP, LONG_ROWS = 28, 4
MIXED, TAIL, GROUP_NAME = "mixed crops, batch {}", "28 mixed with a long tail", "groups of 28, one prompt each"


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


@dataclass(frozen=True)
class Workload:
    """What contenders read: mixed crops in batches of ``rows``, or one of the others."""

    name: str
    temperature: float
    rows: int

    def calls(self, checkpoint: Checkpoint, round_: int) -> list[tuple[dict[str, Tensor], list[str]]]:
        """Calls of a round, each with the tasks of its rows."""
        batches = self.batches(checkpoint, _crops(round_, POOL))
        return [(checkpoint.inputs(batch), [crop.task for crop in batch]) for batch in batches]

    def batches(self, checkpoint: Checkpoint, crops: Sequence[Crop]) -> list[list[Crop]]:
        """Crops of each call of a round, from its pool."""
        if self.name == GROUP_NAME:
            return [[crop] * GROUP for crop in crops[: len(TASKS)]]
        if self.name != TAIL:
            calls = min(MOST_CALLS, max(1, ROWS_A_ROUND // self.rows))
            return [list(crops[call * self.rows : (call + 1) * self.rows]) for call in range(calls)]
        tokenizer, tails = checkpoint.processor.tokenizer, ROWS_A_ROUND // GROUP
        by_length = sorted(crops, key=lambda crop: len(tokenizer(crop.reference)["input_ids"]))
        half, longest = by_length[: len(crops) // 2], by_length[-LONG_ROWS * tails :]
        short = [half[call::tails][: GROUP - LONG_ROWS] for call in range(tails)]
        return [rows + longest[LONG_ROWS * call : LONG_ROWS * (call + 1)] for call, rows in enumerate(short)]


def make_workloads(batches: Sequence[int], temperatures: Sequence[float]) -> list[Workload]:
    kinds = [(MIXED.format(rows), rows) for rows in batches] + [(TAIL, GROUP), (GROUP_NAME, GROUP)]
    return [
        Workload(name, temperature, rows)
        for temperature in temperatures
        for name, rows in kinds
        if temperature or name != GROUP_NAME  # which would be the same completion 28 times
    ]


@cache
def _crops(round_: int, count: int) -> list[Crop]:
    """The pool of a round, tasks in turn."""
    return [
        sample_crop(TASKS[index % len(TASKS)], "heldout", crop_seed(0, "heldout", index), PRESETS["tiny"])
        for index in range(round_ * count, (round_ + 1) * count)
    ]
