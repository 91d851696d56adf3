"""Turns dataset rows into model inputs: prompts through the checkpoint's chat template, references into tokens.

Rendering a template for every sample would cost more than the image, so each distinct prompt is rendered once. The
prefix of a sample is the rendered prompt up to where the model begins to answer, its image tokens included.

Shapes: P prefix tokens, R response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from trl.data_utils import prepare_multimodal_messages

from gravity_rl.joint.drafter import MASK_TOKEN

_PLACEHOLDER = Image.new("RGB", (28, 28))


class PromptRenderer:
    """Renders prompts and counts tokens with the processor of a checkpoint.

    Args:
        processor: the checkpoint's processor.
        template_kwargs: passed to the chat template.
    """

    def __init__(self, processor: Any, template_kwargs: Mapping[str, Any] | None = None):
        self.processor = processor
        self.template_kwargs = dict(template_kwargs or {})
        self._texts: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        tokenizer = processor.tokenizer
        special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._reserved = (special | {processor.image_token_id}) - {tokenizer.unk_token_id}

    def text(self, prompt: Sequence[Mapping[str, str]]) -> str:
        """The prompt of a row as text with one image placeholder, up to where the response begins."""
        key = repr(prompt)
        if key not in self._texts:
            messages = prepare_multimodal_messages([dict(message) for message in prompt], images=[_PLACEHOLDER])
            self._texts[key] = self.processor.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **self.template_kwargs
            )
        return self._texts[key]

    def prefix_tokens(self, prompt: Sequence[Mapping[str, str]], size: tuple[int, int]) -> int:
        """Tokens of prompt and image; ``size`` is the image's (height, width)."""
        text = self.text(prompt)
        if text not in self._counts:
            self._counts[text] = len(self.processor.tokenizer(text, add_special_tokens=False).input_ids) - 1
        return self._counts[text] + self.image_tokens(size)

    def image_tokens(self, size: tuple[int, int]) -> int:
        """Image tokens of an image of (height, width)."""
        image_processor = self.processor.image_processor
        return image_processor.get_number_of_image_patches(*size) // image_processor.merge_size**2

    def is_plain(self, reference: str, response_ids: Sequence[int]) -> bool:
        """Whether a reference spells no special token (end, mask, image, ...): tokenizers read them out of any text."""
        return MASK_TOKEN not in reference and self._reserved.isdisjoint(response_ids)

    def response_ids(self, reference: str) -> list[int]:
        """Token ids of a reference, without an end token."""
        return self.processor.tokenizer(reference, add_special_tokens=False).input_ids

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Prefixes and images of some rows.

        Args:
            rows: dataset rows with prompt and image.

        Returns:
            Ids (P,) of each prefix, and ``pixel_values`` (patches, values) and ``image_grid_thw`` (samples, 3).
        """
        inputs = self.processor(
            text=[self.text(row["prompt"]) for row in rows], images=[[row["image"]] for row in rows]
        )
        images = {name: torch.as_tensor(inputs[name]) for name in ("pixel_values", "image_grid_thw")}
        return [torch.tensor(ids) for ids in inputs["input_ids"]], images


def prefix_positions(ids: Tensor, grid: Sequence[int], image_token_id: int, merge_size: int) -> Tensor:
    """M-RoPE positions (3, P) of a prefix with one image, as ``GlmOcrModel.get_rope_index`` gives them.

    Text counts up on all three axes; image tokens have the axes time, row and column of their merged grid, and the text
    after them continues behind the largest of these.

    Args:
        ids: (P,) token ids.
        grid: the image's (time, height, width) in patches.
        image_token_id: id of the image tokens.
        merge_size: patches on a side of an image token.

    Raises:
        ValueError: the prefix has not as many image tokens as the image has, or they are not in one run.
    """
    frames, height, width = grid[0], grid[1] // merge_size, grid[2] // merge_size
    is_image = (ids == image_token_id).nonzero().flatten()
    count = frames * height * width
    if len(is_image) != count or int(is_image[-1] - is_image[0]) != count - 1:
        raise ValueError(f"the prompt has {len(is_image)} image tokens, not one run of {count}")
    start = int(is_image[0])
    image = torch.cartesian_prod(torch.arange(frames), torch.arange(height), torch.arange(width)).T.view(3, -1) + start
    after = start + max(height, width)
    tail = torch.arange(after, after + len(ids) - start - count)
    return torch.cat([torch.arange(start).expand(3, -1), image, tail.expand(3, -1)], dim=1)
