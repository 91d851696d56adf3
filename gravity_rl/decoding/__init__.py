"""Batched decoding of GLM-OCR models, plain or self-speculative, with the same output either way.

    out = generate(model, inputs, method="self_spec", max_new_tokens=512, eos_token_ids=ends, banned_token_ids=banned)

``docs/DECODE_PATHS.md`` has a complete script, and compares the paths.

A sample is a pure function of the model, the prompt, the seed and the row id: neither the method, the window, the
batch nor the order of rows changes it, up to near-ties in the rounding of differently shaped matrix products (none in
practice in fp32; bf16 has them). Self-speculation needs a model that was trained to predict at mask positions; without
that it is exact as well, and slower.
"""

from __future__ import annotations

from gravity_rl.decoding.attention import ATTENTIONS
from gravity_rl.decoding.cost import CostModel
from gravity_rl.decoding.engine import MIN_TEMPERATURE, Decoded, generate
from gravity_rl.decoding.memory import DecodeMemoryError, MemoryPlan, plan_memory
from gravity_rl.decoding.stats import BatchStats, DecodeStats
from gravity_rl.decoding.window import WindowChoice

__all__ = [
    "ATTENTIONS",
    "MIN_TEMPERATURE",
    "BatchStats",
    "CostModel",
    "DecodeMemoryError",
    "DecodeStats",
    "Decoded",
    "MemoryPlan",
    "WindowChoice",
    "generate",
    "plan_memory",
]
