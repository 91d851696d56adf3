"""Runs the prompts of a batch through the model and hands over its rows, ready to be written.

Processors pad on the left so that prompts end together. Here every prompt is moved to the left edge instead: then a
row's cache has no holes, the padding behind it is out of sight of every later mask, and a plain causal mask serves
all rows.

Shapes: N rows, P padded prompt tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.cache import RaggedCache
from gravity_rl.decoding.rows import LiveRows, to_attention_mask


def prefill(
    model: GlmOcrForConditionalGeneration, inputs: Mapping[str, Tensor], row_ids_N: Tensor, room: int
) -> LiveRows:
    """Fill the cache with the prompts, all but their last tokens.

    Args:
        model: in eval mode.
        inputs: ``input_ids``, ``attention_mask`` and ``mm_token_type_ids``, (N, P) each and left-padded, and for
            prompts with images ``pixel_values`` and ``image_grid_thw``.
        row_ids_N: (N,) int64.
        room: cache slots to reserve behind the prompts.

    Raises:
        ValueError: an input is missing, or a prompt is empty, not left-padded, or ends in an image.
    """
    device = row_ids_N.device
    ids_NP, attended_NP, types_NP = _check(inputs, device)
    pixel_values = inputs.get("pixel_values")
    grid = inputs.get("image_grid_thw")
    positions_3NP, _ = model.model.get_rope_index(
        ids_NP,
        mm_token_type_ids=types_NP,
        image_grid_thw=None if grid is None else grid.to(device),
        attention_mask=attended_NP.long(),
    )
    num_rows, padded = ids_NP.shape
    lengths_N = attended_NP.sum(1)
    to_left_NP = (torch.arange(padded, device=device) + (padded - lengths_N)[:, None]) % padded
    last_N1 = (lengths_N - 1)[:, None]
    ids_NP = ids_NP.gather(1, to_left_NP)
    positions_3NP = positions_3NP.gather(2, to_left_NP.expand(3, -1, -1))

    cache = RaggedCache(num_rows, padded + room, device)
    slots_NP = cache.open_window(0, padded)
    model(
        input_ids=ids_NP,
        attention_mask=to_attention_mask(model, cache.seen_until(slots_NP[:1])),  # the same for every row
        position_ids=positions_3NP,
        pixel_values=None if pixel_values is None else pixel_values.to(device),
        image_grid_thw=None if grid is None else grid.to(device),
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    cache.lengths_N = lengths_N - 1
    cache.longest = padded - 1
    return LiveRows(
        cache=cache,
        boundary_N=ids_NP.gather(1, last_N1)[:, 0],
        rope_offset_N=positions_3NP[0].gather(1, last_N1)[:, 0] - cache.lengths_N,
        written_N=torch.zeros_like(lengths_N),
        row_ids_N=row_ids_N,
        index_N=torch.arange(num_rows, device=device),
    )


def _check(inputs: Mapping[str, Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, attention mask (bool) and token types, (N, P) each."""
    names = ("input_ids", "attention_mask", "mm_token_type_ids")
    missing = [name for name in names if name not in inputs]
    if missing:
        raise ValueError(f"inputs lack {', '.join(missing)}: pass all that the processor returns")
    if (inputs.get("pixel_values") is None) != (inputs.get("image_grid_thw") is None):
        raise ValueError("inputs have one of pixel_values and image_grid_thw without the other")
    ids_NP, attended_NP, types_NP = (inputs[name].to(device) for name in names)
    attended_NP = attended_NP.bool()
    # one 0 → 1 step at most, and a 1 at the end: all padding is on the left
    left_padded_N = attended_NP[:, -1] & (attended_NP[:, 1:] >= attended_NP[:, :-1]).all(1)
    for row, (left_padded, ends_in_text) in enumerate(
        zip(left_padded_N.tolist(), (types_NP[:, -1] == 0).tolist(), strict=True)
    ):
        if not left_padded:
            raise ValueError(f"attention_mask: row {row} is empty or not padded on the left")
        if not ends_in_text:
            raise ValueError(f"mm_token_type_ids: the prompt of row {row} ends in an image; it has to end in text")
    return ids_NP, attended_NP, types_NP
