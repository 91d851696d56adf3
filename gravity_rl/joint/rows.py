"""The packed rows of a run as a dataset: row i is a pure function of the plan, the data and the seed.

A row is what one forward takes: several samples, each as ``[prefix | clean | corrupted 1 | corrupted 2]``, with the
positions whose logits are needed and what they should predict. Loader workers build rows; how many there are changes
nothing. Stages follow one another by row number: curriculum data first, AR-only rows first, the vision warm-up first.

Shapes: L forward tokens of the row, P and R prefix and response tokens of a sample, S samples, A clean and D masked
targets, V merged image tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from gravity_rl.joint.corruption import Corruption, corrupted_streams, draw_corruption, is_target, mask_share
from gravity_rl.joint.masks import CLEAN, CORRUPTED_1, PREFIX
from gravity_rl.joint.packing import RowPlan
from gravity_rl.joint.prompts import PromptRenderer, prefix_positions

NO_GLYPH = -100
_PADDING_SAMPLE = -1


@dataclass(frozen=True)
class RowSettings:
    """What rows look like; see the settings of the same names in ``JointConfig``."""

    block_size: int
    mask_schedule: str
    random_phase: bool
    supervise_every_eos: bool
    mask_id: int
    eos_id: int
    image_token_id: int
    merge_size: int
    seed: int
    padded_tokens: int | None = None
    """pad rows to this many tokens, for kernels that are compiled for one shape"""


@dataclass(frozen=True)
class Stage:
    """Consecutive rows that are made alike.

    Attributes:
        data: the samples.
        plan: which of them share a row.
        corrupted: whether rows have corrupted streams, or train the AR path only.
        draw_offset: added to the plan's draws, so that no two stages draw the same masks.
    """

    data: Dataset
    plan: RowPlan
    corrupted: bool
    draw_offset: int


class PackedRows(TorchDataset[dict[str, Tensor]]):
    """All rows of a run, in order.

    Args:
        stages: what follows what.
        renderer: prompts and tokens.
        settings: what rows look like.
        warm_up_rows: the first rows that carry glyph targets for the vision warm-up.
    """

    def __init__(
        self, stages: Sequence[Stage], renderer: PromptRenderer, settings: RowSettings, *, warm_up_rows: int = 0
    ):
        self.stages, self.renderer, self.settings, self.warm_up_rows = stages, renderer, settings, warm_up_rows

    def __len__(self) -> int:
        return sum(len(stage.plan) for stage in self.stages)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """The tensors of row ``index``, see :func:`assemble`."""
        stage, place = self._locate(index)
        entries = stage.plan.row(place)
        rows = [stage.data[sample] for sample, _ in entries]
        prefixes, images = self.renderer.encode(rows)
        grids = images["image_grid_thw"].tolist()
        samples = []
        for row, prefix, grid, (_, draw) in zip(rows, prefixes, grids, entries, strict=True):
            response = self.renderer.response_ids(row["reference"])
            positions = prefix_positions(prefix, grid, self.settings.image_token_id, self.settings.merge_size)
            seed = _mix(self.settings.seed, stage.draw_offset + draw)
            samples.append(_sample(prefix, positions, response, stage.corrupted, seed, self.settings))
        tensors = assemble(samples, self.settings.padded_tokens) | images
        if index < self.warm_up_rows:
            tensors["glyphs"] = self._glyphs(rows)
        return tensors

    def _locate(self, index: int) -> tuple[Stage, int]:
        for stage in self.stages:
            if index < len(stage.plan):
                return stage, index
            index -= len(stage.plan)
        raise IndexError("row out of range")

    def _glyphs(self, rows: Sequence[dict[str, Any]]) -> Tensor:
        """Target (V,) of each merged image token: the token of its glyph, ``NO_GLYPH`` for one that is no token."""
        tokenizer = self.renderer.processor.tokenizer
        ids = tokenizer.convert_tokens_to_ids([glyph for row in rows for glyph in row["glyphs"]])
        return torch.tensor([NO_GLYPH if id_ is None or id_ == tokenizer.unk_token_id else id_ for id_ in ids])


@dataclass(frozen=True)
class PackedSample:
    """One sample of a row.

    Attributes:
        ids: (L,) tokens of its streams, one after the other.
        positions: (3, L) M-RoPE positions; all streams of the response have the same.
        layout: (4, L) sample (0 here), stream, position and block, see ``Layout``.
        ar: (2, A) index that predicts and token to predict, clean stream.
        diffusion: (2, D) the same for the corrupted streams.
        shares: (D,) share of masked tokens in the block that the prediction is made from.
    """

    ids: Tensor
    positions: Tensor
    layout: Tensor
    ar: Tensor
    diffusion: Tensor
    shares: Tensor


def _mix(seed: int, draw: int) -> int:
    """A seed of its own for every sample of a run (SplitMix64's finaliser)."""
    value = (seed * 0x9E3779B97F4A7C15 + draw * 0xD1B54A32D192ED03 + 1) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return (value ^ (value >> 31)) >> 1


def _sample(
    prefix: Tensor, positions: Tensor, response: list[int], corrupted: bool, seed: int, settings: RowSettings
) -> PackedSample:
    ends = settings.block_size if corrupted else 1
    clean = torch.tensor([*response, *[settings.eos_id] * ends])
    supervised = len(clean) if settings.supervise_every_eos else len(response) + 1
    if not corrupted:
        blocks = Corruption(torch.zeros(len(clean), dtype=torch.long), torch.zeros(len(clean), dtype=torch.bool))
        return pack_sample(prefix, positions, clean, blocks, [], supervised, settings.mask_id)
    corruption = draw_corruption(
        len(clean), settings.block_size, settings.mask_schedule, random_phase=settings.random_phase,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    streams = corrupted_streams(corruption)
    return pack_sample(prefix, positions, clean, corruption, streams, supervised, settings.mask_id)


def pack_sample(
    prefix: Tensor, positions: Tensor, response: Tensor, corruption: Corruption, streams: Sequence[Tensor],
    supervised: int, mask_id: int,
) -> PackedSample:  # fmt: skip
    """Lay a sample out as ``[prefix | clean | corrupted ...]``.

    Args:
        prefix: (P,) ids.
        positions: (3, P) M-RoPE positions of the prefix.
        response: (R,) ids, the appended end tokens included.
        corruption: its blocks.
        streams: mask (R,) of each corrupted stream.
        supervised: how many response tokens the AR loss counts, from the first.
        mask_id: the mask token.
    """
    start, length = len(prefix), len(response)
    index = torch.arange(length)
    predictor = torch.cat([torch.tensor([start - 1]), start + index[:-1]])  # of each response token, clean stream
    after = positions.max() + 1 + index.expand(3, -1)
    ids, layouts, diffusion, shares = [prefix, response], [_layout(PREFIX, start)], [], []
    layouts.append(_layout(CLEAN, length, corruption.block))
    for number, masked in enumerate(streams):
        ids.append(torch.where(masked, mask_id, response))
        layouts.append(_layout(CORRUPTED_1 + number, length, corruption.block))
        target = is_target(masked, corruption.block)
        own = torch.where(index == 0, start - 1, predictor + (number + 1) * length)
        diffusion.append(torch.stack([own[target], response[target]]))
        shares.append(mask_share(masked, corruption.block)[target])
    return PackedSample(
        ids=torch.cat(ids),
        positions=torch.cat([positions, *[after] * (len(streams) + 1)], dim=1),
        layout=torch.cat(layouts, dim=1),
        ar=torch.stack([predictor, response])[:, :supervised],
        diffusion=torch.cat(diffusion, dim=1) if diffusion else torch.zeros(2, 0, dtype=torch.long),
        shares=torch.cat(shares) if shares else torch.zeros(0),
    )


def _layout(stream: int, length: int, block: Tensor | None = None) -> Tensor:
    zeros = torch.zeros(length, dtype=torch.long)
    return torch.stack([zeros, zeros + stream, torch.arange(length), zeros if block is None else block])


def assemble(samples: Sequence[PackedSample], padded_tokens: int | None = None) -> dict[str, Tensor]:
    """Join samples to a row.

    Returns:
        ``input_ids`` (1, L), ``position_ids`` (3, 1, L), ``layout`` (4, L), ``ar`` (2, A), ``diffusion`` (2, D),
        ``shares`` (D,), ``samples`` () and ``forward_tokens`` (), padding not counted.

    Raises:
        ValueError: the samples are longer than ``padded_tokens``.
    """
    lengths = [len(sample.ids) for sample in samples]
    offsets = [sum(lengths[:number]) for number in range(len(samples))]
    shift = torch.tensor([[1], [0]])  # of the predicting index; the predicted token stays
    layouts, ar, diffusion = [], [], []
    for number, (sample, offset) in enumerate(zip(samples, offsets, strict=True)):
        layouts.append(sample.layout + torch.tensor([[number], [0], [0], [0]]))
        ar.append(sample.ar + offset * shift)
        diffusion.append(sample.diffusion + offset * shift)
    if padded_tokens is not None and sum(lengths) > padded_tokens:
        raise ValueError(f"a row of {sum(lengths)} forward tokens was planned for {padded_tokens}")
    padding = (padded_tokens or sum(lengths)) - sum(lengths)
    layouts.append(_layout(PREFIX, padding) + torch.tensor([[_PADDING_SAMPLE], [0], [0], [0]]))
    pad = torch.zeros(padding, dtype=torch.long)
    return {
        "input_ids": torch.cat([*(sample.ids for sample in samples), pad])[None],
        "position_ids": torch.cat([*(sample.positions for sample in samples), pad.expand(3, -1)], dim=1)[:, None],
        "layout": torch.cat(layouts, dim=1),
        "ar": torch.cat(ar, dim=1),
        "diffusion": torch.cat(diffusion, dim=1),
        "shares": torch.cat([sample.shares for sample in samples]),
        "samples": torch.tensor(len(samples)),
        "forward_tokens": torch.tensor(sum(lengths)),
    }
