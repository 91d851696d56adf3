"""What a call reserves at most, known beforehand, and the error that says which setting to lower.

Keys and values grow with the longest row, up to the limit that is counted here; nothing else grows.

Shapes: L slots, C places of a slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import GlmOcrConfig

from gravity_rl.decoding.sampling import CHUNK

PROMPTS_PER_PREFILL = 16
#: Bytes a score while tokens are chosen: copies in fp32; with filters also indices, probabilities and their sums.
_PLAIN_BYTES, _FILTERED_BYTES = 16, 52
_GIB = 1 << 30
_CPU_MESSAGES = ("can't allocate memory", "not enough memory")  # of torch's allocator, which has no error of its own


class DecodeMemoryError(RuntimeError):
    """Decoding ran out of memory."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that decoding reserves if every row reaches its limit, besides the model and a forward's activations.

    Attributes:
        slots: L, rows decoded at once.
        places: C, prompt, response and window of a row.
        keys_values: of all layers, with one layer twice, as while it grows.
        prompts: states of prompts on their way into the slots.
        noise: of the positions of a round.
        logits: of one forward.
        sampling: what choosing tokens holds at once.
        responses: ids and log-probabilities of all rows, waiting ones included.
    """

    slots: int
    places: int
    keys_values: int
    prompts: int
    noise: int
    logits: int
    sampling: int
    responses: int

    @property
    def total(self) -> int:
        """The sum, in bytes."""
        return self.keys_values + self.prompts + self.noise + self.logits + self.sampling + self.responses

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {_gib(size)}"
            for name, size in (
                ("keys and values", self.keys_values),
                ("prompts", self.prompts),
                ("noise", self.noise),
                ("logits", self.logits),
                ("sampling", self.sampling),
                ("responses", self.responses),
            )
        )
        return f"{self.slots} rows at once of up to {self.places} tokens take up to {_gib(self.total)} ({parts})"


def plan_memory(
    config: GlmOcrConfig,
    dtype: torch.dtype,
    *,
    rows: int,
    slots: int,
    longest_prompt: int,
    max_new_tokens: int,
    max_block: int,
    sampled: bool,
    filtered: bool = False,
) -> MemoryPlan:
    """The plan of a call.

    Args:
        config: of the model.
        dtype: of its weights.
        rows: completions to write in all.
        slots: L.
        longest_prompt: in tokens, image tokens included.
        max_new_tokens: limit of a response.
        max_block: tokens drafted in a round at most; 0 for AR decoding.
        sampled: whether noise is drawn.
        filtered: whether top-p, top-k or min-p are on, which sort and sum.
    """
    text = config.text_config
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token = 2 * text.num_key_value_heads * head_size * dtype.itemsize  # of one layer
    places = longest_prompt + max_new_tokens + max_block + 1
    scores = slots * (max_block + 1) * text.vocab_size
    return MemoryPlan(
        slots=slots,
        places=places,
        keys_values=slots * places * (token * text.num_hidden_layers + token // 2),
        prompts=(min(slots, PROMPTS_PER_PREFILL) + 1) * longest_prompt * token * text.num_hidden_layers,
        noise=4 * slots * noise_width(max_block, text.vocab_size) * text.vocab_size if sampled else 0,
        logits=scores * dtype.itemsize,
        sampling=min(scores, max(CHUNK, text.vocab_size)) * (_FILTERED_BYTES if filtered else _PLAIN_BYTES),
        responses=12 * (rows + 1) * (max_new_tokens + max_block + 2),
    )


def noise_width(max_block: int, vocab_size: int) -> int:
    """Positions of a row whose noise is kept: a round looks at two more than it drafts."""
    return max(max_block + 2, noise_ahead(vocab_size))


def noise_ahead(vocab_size: int) -> int:
    """Positions whose noise is computed together if any is missing: more where calls cost more than values."""
    return min(max(8192 // vocab_size, 8), 32)


@contextmanager
def naming_the_knob(plan: MemoryPlan) -> Iterator[None]:
    """Turn running out of memory into an error that says what to lower.

    Raises:
        DecodeMemoryError: in place of torch's errors.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if not isinstance(error, torch.OutOfMemoryError) and not any(text in str(error) for text in _CPU_MESSAGES):
            raise
        raise DecodeMemoryError(
            f"out of memory while decoding: {plan}, besides the model: lower max_live_rows, which is {plan.slots}, "
            "max_new_tokens or block_size"
        ) from error


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
