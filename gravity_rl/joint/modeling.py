"""The joint forward: one pass of the model over a packed row, and the two losses of it.

``JointGlmOcr`` is the stock class with a second meaning of ``forward``: given a packed row it returns the joint loss,
given anything else it behaves as the stock class does, so that the same object trains, decodes and saves. The vision
tower runs once for a sample, and logits are computed at supervised positions only.

Shapes: L tokens of the row, H hidden size, A clean and D masked targets, N vocabulary size, V merged image tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.joint.masks import ATTENTION, Layout, packed_mask
from gravity_rl.joint.rows import NO_GLYPH

#: Blocks by the share of masked tokens, for the denoising accuracy: up to a quarter, a half, three quarters, all.
SHARE_BUCKETS = ("0-25", "25-50", "50-75", "75-100")


@dataclass(frozen=True)
class LossSettings:
    """How the losses of a row are combined.

    Attributes:
        ar_loss_weight: weight of the AR loss; 1 as published.
        diffusion_loss_weight: weight of the diffusion loss (λ).
        mask_kind: form of the attention mask, see ``gravity_rl.joint.masks``.
        blank_id: token of a square without a glyph, and the weight of such squares in the vision warm-up.
    """

    ar_loss_weight: float = 1.0
    diffusion_loss_weight: float = 1.0
    mask_kind: str = "sdpa"
    blank_id: int | None = None
    blank_weight: float = 0.2


class JointGlmOcr(GlmOcrForConditionalGeneration):
    """GLM-OCR whose forward also takes packed rows; :meth:`set_loss` has to be called before the first."""

    loss_settings: LossSettings

    def set_loss(self, settings: LossSettings) -> None:
        """Choose losses and attention; the text tower then attends over packed rows."""
        self.loss_settings = settings
        self.model.language_model.config._attn_implementation = ATTENTION

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Give the text tower the stock attention for as long as the context lasts."""
        config = self.model.language_model.config
        before, config._attn_implementation = config._attn_implementation, "sdpa"
        try:
            yield
        finally:
            config._attn_implementation = before

    def forward(self, *args: Any, layout: Tensor | None = None, **kwargs: Any) -> Any:
        """With ``layout``: the losses of a packed row, see :func:`joint_losses`. Without: the stock forward."""
        if layout is None:
            return super().forward(*args, **kwargs)
        return joint_losses(self, layout=layout, **kwargs)


# The name that save_pretrained writes into config.json: the checkpoint is one of the stock class.
JointGlmOcr.__name__ = GlmOcrForConditionalGeneration.__name__


def packed_hidden(
    model: JointGlmOcr, *, input_ids: Tensor, position_ids: Tensor, layout: Tensor, pixel_values: Tensor,
    image_grid_thw: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Last hidden states of a packed row.

    Args:
        model: the model.
        input_ids: (1, L).
        position_ids: (3, 1, L) M-RoPE positions.
        layout: (4, L), see ``Layout``.
        pixel_values: (patches, values) of all images of the row, in the order of the samples.
        image_grid_thw: (samples, 3).

    Returns:
        Hidden states (L, H) after the final norm, and image features (V, H).

    Raises:
        ValueError: the images and the image tokens of the row do not match.
    """
    core, text = model.model, model.model.language_model
    is_image = input_ids == model.config.image_token_id
    expected = int(image_grid_thw.prod(-1).sum()) // core.visual.spatial_merge_size**2
    if not expected or int(is_image.sum()) != expected:
        raise ValueError(f"a row with {int(is_image.sum())} image tokens has images for {expected}")
    image_VH = torch.cat(list(core.get_image_features(pixel_values, image_grid_thw).pooler_output))
    embeds_1LH = model.get_input_embeddings()(input_ids)
    embeds_1LH = embeds_1LH.masked_scatter(is_image[..., None], image_VH.to(embeds_1LH.dtype))
    mask = packed_mask(model.loss_settings.mask_kind, Layout(*layout))
    rotary = text.rotary_emb(embeds_1LH, position_ids=position_ids)
    hidden_1LH = embeds_1LH
    for layer in text.layers:
        hidden_1LH = layer(hidden_1LH, attention_mask=mask, position_embeddings=rotary)
    return text.norm(hidden_1LH)[0], image_VH


def joint_losses(
    model: JointGlmOcr, *, ar: Tensor, diffusion: Tensor, shares: Tensor, glyphs: Tensor | None = None,
    **row: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """The joint loss of a packed row (paper section 2): ``(w · L_AR + λ · L_diff) / (w + λ)``.

    ``L_AR`` and ``L_diff`` are means over the clean and the masked targets of the row. A row without corrupted streams
    has the AR loss alone. With glyphs the vision warm-up loss is added.

    Args:
        ar: (2, A) index that predicts, and token to predict, of the clean stream.
        diffusion: (2, D) the same of the corrupted streams.
        shares: (D,) share of masked tokens in the block of each.
        glyphs: (V,) token of the glyph in each square of the images, see :func:`glyph_loss`.
        row: the other tensors of ``gravity_rl.joint.rows.assemble`` and the images.

    Returns:
        ``loss`` with gradient; and for logging, without: sums ``ar_loss``, ``ar_correct``, ``diffusion_loss``,
        ``denoised`` and ``masked`` by share bucket, and counts.
    """
    settings = model.loss_settings
    names = ("input_ids", "position_ids", "layout", "pixel_values", "image_grid_thw")
    hidden_LH, image_VH = packed_hidden(model, **{name: row[name] for name in names})
    index = torch.cat([ar[0], diffusion[0]])
    logits_TN = model.lm_head(hidden_LH[index])
    targets_T = torch.cat([ar[1], diffusion[1]])
    losses_T = F.cross_entropy(logits_TN.float(), targets_T, reduction="none")
    right_T = (logits_TN.argmax(-1) == targets_T).detach()
    ar_T, diffusion_T = losses_T.split([ar.size(1), diffusion.size(1)])
    weight, factor = (settings.ar_loss_weight, settings.diffusion_loss_weight) if diffusion.size(1) else (1.0, 0.0)
    loss = weight * ar_T.mean() / (weight + factor)
    if factor:
        loss = loss + factor * diffusion_T.mean() / (weight + factor)
    bucket_D = (shares * len(SHARE_BUCKETS)).ceil().long().clamp(1, len(SHARE_BUCKETS)) - 1
    zeros = torch.zeros(len(SHARE_BUCKETS), device=loss.device)
    outputs = {
        "ar_loss": ar_T.detach().sum(),
        "ar_correct": right_T[: ar.size(1)].sum(),
        "diffusion_loss": diffusion_T.detach().sum(),
        "denoised": zeros.index_add(0, bucket_D, right_T[ar.size(1) :].float()),
        "masked": zeros.index_add(0, bucket_D, torch.ones_like(shares)),
    }
    if glyphs is not None:
        vision = glyph_loss(image_VH, model.lm_head.weight, glyphs, settings.blank_id, settings.blank_weight)
        outputs["glyph_loss"] = vision.detach()
        loss = loss + vision
    return {"loss": loss} | outputs


def glyph_loss(
    image_VH: Tensor, head_NH: Tensor, glyphs_V: Tensor, blank_id: int | None, blank_weight: float
) -> Tensor:
    """Vision warm-up: cross-entropy of naming, from each image token alone, the glyph in its square.

    Features are normalised and read by the model's own output layer. Squares without a glyph are the majority and count
    ``blank_weight``, or the tower learns to say "empty"; squares whose glyph is no token do not count.
    """
    logits_VN = F.layer_norm(image_VH, image_VH.shape[-1:]) @ head_NH.T.to(image_VH.dtype)
    loss_V = F.cross_entropy(logits_VN.float(), glyphs_V, reduction="none", ignore_index=NO_GLYPH)
    weight_V = torch.where(glyphs_V == blank_id, blank_weight, 1.0) * (glyphs_V != NO_GLYPH)
    return (loss_V * weight_V).sum() / weight_V.sum().clamp_min(1e-6)
