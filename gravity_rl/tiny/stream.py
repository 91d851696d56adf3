"""An endless, deterministic stream of training batches of rendered crops for the tiny model.

Crops are drawn in pools, sorted by length and cut into batches of similar size, so that little is padded. A pool is
a pure function of (stage settings, seed, pool number); the number of loader workers decides how pools interleave.

Shapes: B crops, L padded tokens, P vision patches of the whole batch, V merged image tokens of the whole batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gravity_rl.processor import GlmOcrImageProcessor
from gravity_rl.synth.crops import Crop, crop_seed, sample_crop
from gravity_rl.synth.draw import Glyph
from gravity_rl.synth.knobs import CropKnobs
from gravity_rl.tiny.build import PROMPT_TOKENS

PROMPTS = dict(zip(("text", "table", "formula"), PROMPT_TOKENS, strict=True))
#: Glyphs that stand for a command token. Computer Modern gives its other symbols codes of its own, most of which are
#: no token (and then no target) and a few those of letters: the warm-up loss lives with them.
GLYPH_COMMANDS = {"≠": "\\neq"}


@dataclass(frozen=True)
class BatchSpec:
    """What a stage of training draws.

    ``teacher`` maps a crop and a random source to the label that the model learns: the reference itself, or a noisy
    transcription of it.
    """

    knobs: CropKnobs
    task_weights: tuple[float, float, float]
    teacher: Callable[[Crop, random.Random], str]
    seed: int
    batch_size: int = 32
    pool_batches: int = 6


def glyph_targets(glyphs: tuple[Glyph, ...], columns: int, rows: int, side: int, ids: dict[str, int]) -> list[int]:
    """Token id of the glyph drawn in each ``side`` x ``side`` square, row by row; a space where there is none.

    Of several glyphs with their centres in one square, the one nearest to the square's centre counts.
    """
    nearest: dict[int, tuple[float, int]] = {}
    for glyph in glyphs:
        column, row = int(glyph.x // side), int(glyph.y // side)
        token = ids.get(GLYPH_COMMANDS.get(glyph.char, glyph.char))
        if token is None or not (0 <= column < columns and 0 <= row < rows):
            continue
        distance = abs(glyph.x - (column + 0.5) * side) + abs(glyph.y - (row + 0.5) * side)
        square = row * columns + column
        if square not in nearest or distance < nearest[square][0]:
            nearest[square] = (distance, token)
    return [nearest[square][1] if square in nearest else ids[" "] for square in range(columns * rows)]


class CropStream(IterableDataset[dict[str, torch.Tensor]]):
    """Yields batches for ever; worker w of n makes the pools w, w + n, w + 2n, …"""

    def __init__(self, spec: BatchSpec, processor: GlmOcrImageProcessor):
        self.spec, self.processor = spec, processor
        self.ids: dict[str, int] = processor.tokenizer.get_vocab()

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        info = get_worker_info()
        pool, stride = (info.id, info.num_workers) if info else (0, 1)
        while True:
            yield from self.pool(pool)
            pool += stride

    def pool(self, number: int) -> list[dict[str, torch.Tensor]]:
        """The batches of one pool, in shuffled order."""
        spec = self.spec
        rng = random.Random(crop_seed(spec.seed, "train", number))
        crops = []
        for _ in range(spec.batch_size * spec.pool_batches):
            task = rng.choices(list(PROMPTS), spec.task_weights)[0]
            crop = sample_crop(task, "train", rng.getrandbits(63), spec.knobs)
            crops.append((crop, spec.teacher(crop, rng)))
        crops.sort(key=lambda pair: pair[0].image.width * pair[0].image.height / 256 + len(pair[1]))
        batches = [crops[i : i + spec.batch_size] for i in range(0, len(crops), spec.batch_size)]
        rng.shuffle(batches)
        return [self.collate(batch) for batch in batches]

    def collate(self, batch: list[tuple[Crop, str]]) -> dict[str, torch.Tensor]:
        """Processor inputs (right-padded), ``labels`` (B, L) with -100 where unsupervised, ``glyphs`` (V,)."""
        tokenizer, side = self.processor.tokenizer, 16
        prompts = [
            self.processor.apply_chat_template(
                [
                    {
                        "role": "user",
                        "content": [{"type": "image"}, {"type": "text", "text": PROMPTS[crop.task]}],
                    }
                ],
                tokenize=False,
                add_generation_prompt=True,
            )
            for crop, _ in batch
        ]
        images = [[crop.image.convert("RGB")] for crop, _ in batch]
        texts = [prompt + label + tokenizer.eos_token for prompt, (_, label) in zip(prompts, batch, strict=True)]
        inputs: dict[str, Any] = self.processor(
            text=texts, images=images, padding=True, padding_side="right", return_tensors="pt"
        )
        labels = torch.full_like(inputs["input_ids"], -100)
        for row, (_, label) in enumerate(batch):
            supervised = len(tokenizer(label).input_ids) + 1
            end = int(inputs["attention_mask"][row].sum())
            labels[row, end - supervised : end] = inputs["input_ids"][row, end - supervised : end]
        targets: list[int] = []
        for (crop, _), (_, height, width) in zip(batch, inputs["image_grid_thw"].tolist(), strict=True):
            targets += glyph_targets(crop.glyphs, width // 2, height // 2, side, self.ids)
        return {**inputs, "labels": labels, "glyphs": torch.tensor(targets)}


def batches(spec: BatchSpec, processor: GlmOcrImageProcessor, workers: int) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of the stream, drawn by ``workers`` processes (0: in this one)."""
    loader = DataLoader(
        CropStream(spec, processor), batch_size=None, num_workers=workers,
        prefetch_factor=8 if workers else None, multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
    return iter(loader)
