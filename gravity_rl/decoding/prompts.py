"""The prompts of a call: checked, moved to the left edge, equal ones found, and prefilled once each.

The processor pads on the left so that prompts end together. Here every prompt is moved to the left edge instead: then
a row's cache has no holes, the padding behind it is out of sight of every later mask, and a plain causal mask serves
all rows.

Shapes: R rows of the input, D distinct prompts of one prefill, P padded prompt tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.attention import to_attention_mask
from gravity_rl.decoding.cache import RaggedCache, Visibility

_IMAGE = 1  # in mm_token_type_ids


@dataclass(frozen=True)
class Prefix:
    """D prefilled prompts: the states of all but their last tokens, and what a row starts with."""

    cache: RaggedCache
    boundary_D: Tensor  # last token of the prompt
    rope_offset_D: Tensor  # M-RoPE position of a token behind the prompt minus its place in the cache

    def only(self, line: int) -> Prefix:
        """One of the prompts, with memory of its own."""
        if len(self.boundary_D) == 1:
            return self
        device = self.boundary_D.device
        cache = RaggedCache(1, self.cache.longest, device)
        cache.write_rows(
            torch.zeros(1, dtype=torch.long, device=device), self.cache, torch.tensor([line], device=device)
        )
        cache.longest = self.cache.longest
        one = slice(line, line + 1)
        return Prefix(cache, self.boundary_D[one].clone(), self.rope_offset_D[one].clone())


class Prompts:
    """R prompts, with equal ones known.

    Args:
        inputs: ``input_ids``, ``attention_mask`` and ``mm_token_type_ids``, (R, P) each and left-padded, and for
            prompts with images ``pixel_values`` and ``image_grid_thw``.
        device: of the model.

    Raises:
        ValueError: an input is missing, or a prompt is empty, not left-padded, or ends in an image, or there are
            more or fewer images than the prompts have places for.
    """

    def __init__(self, inputs: Mapping[str, Tensor], device: torch.device):
        self._ids_RP, self._attended_RP, self._types_RP = _check(inputs, device)
        pixel_values, grid = inputs.get("pixel_values"), inputs.get("image_grid_thw")
        self._patches = None if pixel_values is None else pixel_values.to(device)
        self._grid = None if grid is None else grid.to(device)
        lengths_R = self._attended_RP.sum(1)
        self.lengths: list[int] = lengths_R.tolist()
        self._images = _image_ranges(self._types_RP, self._grid, 0 if self._patches is None else len(self._patches))
        #: first row with the same prompt, for each row
        self.first: list[int] = self._find_equal()

    def __len__(self) -> int:
        return len(self.lengths)

    def check_ids(self, vocab_size: int) -> None:
        """Check that all ids are tokens.

        Raises:
            ValueError: one is not.
        """
        outside_RP = ((self._ids_RP < 0) | (self._ids_RP >= vocab_size)) & self._attended_RP
        if outside_RP.any():
            row = int(outside_RP.any(1).nonzero()[0, 0])
            raise ValueError(f"input_ids: row {row} has ids outside of the vocabulary of {vocab_size}")

    def _find_equal(self) -> list[int]:
        """Prompts are equal if their ids and pixels are, value by value."""
        seen: dict[bytes, list[int]] = {}
        first: list[int] = []
        padded = self._ids_RP.masked_fill(~self._attended_RP, -1).cpu().numpy()
        for row in range(len(self)):
            candidates = seen.setdefault(padded[row].tobytes(), [])
            same = next((other for other in candidates if self._same_pixels(row, other)), row)
            if same == row:
                candidates.append(row)
            first.append(same)
        return first

    def _same_pixels(self, row: int, other: int) -> bool:
        if self._patches is None or self._grid is None:
            return True
        images, patches = self._images[row]
        other_images, other_patches = self._images[other]
        return torch.equal(self._grid[images], self._grid[other_images]) and torch.equal(
            self._patches[patches], self._patches[other_patches]
        )

    def prefill(self, model: GlmOcrForConditionalGeneration, rows: Sequence[int], visibility: Visibility) -> Prefix:
        """States of the prompts ``rows`` (D of them), all but their last tokens.

        Args:
            model: in eval mode.
            rows: indices into the input.
            visibility: which places a token sees.
        """
        device = self._ids_RP.device
        padded = max(self.lengths[row] for row in rows)
        rows_D = torch.tensor(rows, device=device)
        ids_DP, attended_DP, types_DP = (
            tensor[rows_D, -padded:] for tensor in (self._ids_RP, self._attended_RP, self._types_RP)
        )
        patches, grid = self._pixels(rows)
        positions_3DP, _ = model.model.get_rope_index(
            ids_DP, mm_token_type_ids=types_DP, image_grid_thw=grid, attention_mask=attended_DP.long()
        )
        lengths_D = attended_DP.sum(1)
        to_left_DP = (torch.arange(padded, device=device) + (padded - lengths_D)[:, None]) % padded
        last_D1 = (lengths_D - 1)[:, None]
        ids_DP = ids_DP.gather(1, to_left_DP)
        positions_3DP = positions_3DP.gather(2, to_left_DP.expand(3, -1, -1))

        cache = RaggedCache(len(rows), padded, device, visibility=visibility)
        cache.prefix_L.copy_(lengths_D)
        cache.reserve(padded)
        slots_DP = cache.open_window(len(rows), 0, padded)
        model(
            input_ids=ids_DP,
            attention_mask=to_attention_mask(model, cache.seen_until(slots_DP)),
            position_ids=positions_3DP,
            pixel_values=patches,
            image_grid_thw=grid,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.lengths_L = lengths_D - 1
        cache.longest = padded - 1
        return Prefix(
            cache=cache,
            boundary_D=ids_DP.gather(1, last_D1)[:, 0],
            rope_offset_D=positions_3DP[0].gather(1, last_D1)[:, 0] - cache.lengths_L,
        )

    def _pixels(self, rows: Sequence[int]) -> tuple[Tensor | None, Tensor | None]:
        """Patches and grids of the images of some rows."""
        ranges = [self._images[row] for row in rows]
        if self._patches is None or self._grid is None or all(images.start == images.stop for images, _ in ranges):
            return None, None
        return (
            torch.cat([self._patches[patches] for _, patches in ranges]),
            torch.cat([self._grid[images] for images, _ in ranges]),
        )


def _check(inputs: Mapping[str, Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, attention mask (bool) and token types, (R, P) each."""
    names = ("input_ids", "attention_mask", "mm_token_type_ids")
    missing = [name for name in names if name not in inputs]
    if missing:
        raise ValueError(f"inputs lack {', '.join(missing)}: pass all that the processor returns")
    if (inputs.get("pixel_values") is None) != (inputs.get("image_grid_thw") is None):
        raise ValueError("inputs have one of pixel_values and image_grid_thw without the other")
    videos = [name for name in ("pixel_values_videos", "video_grid_thw") if inputs.get(name) is not None]
    if videos:
        raise ValueError(f"inputs have {', '.join(videos)}, but decoding takes images only")
    ids_RP, attended_RP, types_RP = (inputs[name].to(device) for name in names)
    attended_RP = attended_RP.bool()
    if not ids_RP.shape == attended_RP.shape == types_RP.shape or ids_RP.ndim != 2 or not ids_RP.numel():
        shapes = ", ".join(f"{name} {tuple(inputs[name].shape)}" for name in names)
        raise ValueError(f"inputs: {shapes}; all of them must be (rows, tokens)")
    # one 0 → 1 step at most, and a 1 at the end: all padding is on the left
    left_padded_R = attended_RP[:, -1] & (attended_RP[:, 1:] >= attended_RP[:, :-1]).all(1)
    for row, (left_padded, ends_in_text) in enumerate(
        zip(left_padded_R.tolist(), (types_RP[:, -1] == 0).tolist(), strict=True)
    ):
        if not left_padded:
            raise ValueError(f"attention_mask: row {row} is empty or not padded on the left")
        if not ends_in_text:
            raise ValueError(f"mm_token_type_ids: the prompt of row {row} ends in an image; it has to end in text")
    return ids_RP, attended_RP, types_RP


def _image_ranges(types_RP: Tensor, grid: Tensor | None, patches: int) -> list[tuple[slice, slice]]:
    """For each row, which images and which patches are its own; a run of image tokens is one image."""
    is_image_RP = types_RP == _IMAGE
    starts_RP = is_image_RP.clone()
    starts_RP[:, 1:] &= ~is_image_RP[:, :-1]
    counts = starts_RP.sum(1).tolist()
    given = 0 if grid is None else len(grid)
    if sum(counts) != given:
        raise ValueError(f"image_grid_thw: {given} images for {sum(counts)} places in the prompts")
    patch_ends = [0] if grid is None else [0, *grid.prod(1).cumsum(0).tolist()]
    if patch_ends[-1] != patches:
        raise ValueError(f"pixel_values: {patches} patches, but image_grid_thw asks for {patch_ends[-1]}")
    ranges, at = [], 0
    for count in counts:
        ranges.append((slice(at, at + count), slice(patch_ends[at], patch_ends[at + count])))
        at += count
    return ranges
