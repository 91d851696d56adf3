"""Batched decoding of GLM-OCR models, plain or self-speculative, with the same output either way.

    from gravity_rl.decoding import generate
    out = generate(model, inputs, method="self_spec", mask_id=mask_id, block_size=16, eos_token_ids=[eos],
                   banned_token_ids=never_sampled_ids(model, tokenizer), max_new_tokens=512)

A sample is a pure function of the model, the prompt, the seed and the row id: neither the method, the window, the
batch nor the order of rows changes it, up to near-ties in the rounding of differently shaped matrix products (none in
practice in fp32; bf16 has them). Self-speculation needs a model that was trained to predict at mask positions; without
that it is exact as well, and slower.
"""

from __future__ import annotations

from gravity_rl.decoding.engine import MIN_TEMPERATURE, Decoded, generate
from gravity_rl.decoding.rows import ATTENTIONS
from gravity_rl.decoding.stats import DecodeStats

__all__ = ["ATTENTIONS", "MIN_TEMPERATURE", "DecodeStats", "Decoded", "generate"]
