"""How many forward tokens each sample takes, from the image header and the reference, before any image is decoded.

Packing needs the lengths of the whole dataset. A sample that cannot be trained on (no response, a response over the
cap, longer than a row, special tokens in its text) has length 0 and is counted by reason; nothing is dropped without a
word.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset, Image
from PIL import Image as PILImage
from tqdm import tqdm

from gravity_rl.data.contract import DataError, Problem
from gravity_rl.joint.corruption import MASK_SCHEDULES
from gravity_rl.joint.prompts import PromptRenderer

_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)  # EXIF tag, and its values that swap width and height


@dataclass(frozen=True)
class RowBudget:
    """What a sample may take.

    Attributes:
        row_tokens: forward tokens of a row; the prefix counts once, the response once for each stream.
        max_response_tokens: longest response, in tokens of the reference.
        block_size: end tokens appended to every response (B).
        mask_schedule: decides the number of corrupted streams.
    """

    row_tokens: int
    max_response_tokens: int
    block_size: int
    mask_schedule: str

    def joint_tokens(self, prefix: int, response: int) -> int:
        """Forward tokens of a sample with its corrupted streams."""
        streams = 3 if self.mask_schedule == MASK_SCHEDULES[0] else 2
        return prefix + streams * (response + self.block_size)

    def ar_tokens(self, prefix: int, response: int) -> int:
        """Forward tokens of a sample in the AR-only stage, which needs one end token."""
        return prefix + response + 1


@dataclass(frozen=True)
class SampleLengths:
    """Lengths of the samples of a dataset, in tokens.

    Attributes:
        prefix: prompt and image tokens of each sample.
        image: image tokens of each sample.
        response: tokens of each reference, without end tokens.
        skipped: reason → number of samples that cannot be trained on.
        usable: whether each sample can.
    """

    prefix: list[int]
    image: list[int]
    response: list[int]
    usable: list[bool]
    skipped: dict[str, int]


def image_size(storage: dict[str, Any]) -> tuple[int, int]:
    """(height, width) of an image in the storage of ``datasets.Image``, as it will be decoded."""
    with PILImage.open(storage["path"] if storage["bytes"] is None else BytesIO(storage["bytes"])) as image:
        width, height = image.size
        is_turned = image.getexif().get(_ORIENTATION) in _TURNED and image.format != "TIFF"  # Pillow has turned those
        return (width, height) if is_turned else (height, width)


def measure(dataset: Dataset, renderer: PromptRenderer, budget: RowBudget, *, threads: int) -> SampleLengths:
    """Lengths of all samples of a dataset; every process measures a share of them.

    Args:
        dataset: rows with columns prompt, image, reference.
        renderer: counts the tokens of a prompt and of its image.
        budget: what a sample may take.
        threads: threads that read image headers.
    """
    state = PartialState()
    # The images as they are stored: the dataset's own transform would decode them.
    stored = dataset.with_format(None).cast_column("image", Image(decode=False))
    mine = range(state.process_index, len(stored), state.num_processes)

    def measure_row(index: int) -> tuple[int, int, int, int, str]:
        row = stored[index]
        size = image_size(row["image"])
        prefix, image = renderer.prefix_tokens(row["prompt"], size), renderer.image_tokens(size)
        response = renderer.response_ids(row["reference"])
        flaw = "" if renderer.is_plain(row["reference"], response) else "reference with a special token in its text"
        return index, prefix, image, len(response), flaw

    with ThreadPoolExecutor(threads) as pool:
        progress = tqdm(pool.map(measure_row, mine), desc="measuring samples", total=len(mine), unit="sample",
                        disable=not state.is_main_process)  # fmt: skip
        measured = sorted(gather_object(list(progress)))
    _, prefix, image, response, flaws = (list(column) for column in zip(*measured, strict=True))
    reasons = [flaw or _reason(p, r, budget) for flaw, p, r in zip(flaws, prefix, response, strict=True)]
    skipped = Counter(reason for reason in reasons if reason)
    return SampleLengths(prefix, image, response, [not reason for reason in reasons], dict(skipped))


def check_glyphs(source: str, dataset: Dataset, lengths: SampleLengths) -> None:
    """Check that every usable sample has a glyph for each image token, for the vision warm-up.

    Raises:
        DataError: listing the samples that do not.
    """
    if "glyphs" not in dataset.column_names:
        message = "missing: vision_warmup_steps needs it, see docs/DATA.md"
        raise DataError([Problem(source, None, "glyphs", message)])
    message = "the vision warm-up needs one character for each image token"
    stored = dataset.with_format(None)  # the dataset's own transform would decode every image
    rows = zip(stored["id"][:], stored["glyphs"][:], lengths.image, lengths.usable, strict=True)
    problems = [
        Problem(id_, None, "glyphs", message, f"{len(glyphs or '')} characters, {count} image tokens")
        for id_, glyphs, count, usable in rows
        if usable and len(glyphs or "") != count
    ]
    if problems:
        raise DataError(problems)


def _reason(prefix: int, response: int, budget: RowBudget) -> str:
    """Why a sample of these lengths cannot be trained on; empty if it can."""
    if not response:
        return "empty response"
    if response > budget.max_response_tokens:
        return f"response over max_response_tokens ({budget.max_response_tokens})"
    if budget.joint_tokens(prefix, response) > budget.row_tokens:
        return f"longer than a row of row_tokens ({budget.row_tokens})"
    return ""
