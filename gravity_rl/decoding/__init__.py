"""Batched decoding of GLM-OCR models, plain or self-speculative, with the same output either way.

    folder = resolve_checkpoint("shipped:tiny-reader")                  # gravity_rl.model
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), load_ocr_processor(folder)
    inputs = processor.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True,
                                           return_tensors="pt", processor_kwargs={"padding": True})
    out = generate(model, inputs, method="self_spec", eos_token_ids=[processor.tokenizer.eos_token_id],
                   banned_token_ids=never_sampled_ids(model, processor.tokenizer), max_new_tokens=512)
    processor.batch_decode(out.sequences, skip_special_tokens=True)

A sample is a pure function of the model, the prompt, the seed and the row id: neither the method, the window, the
batch nor the order of rows changes it, up to near-ties in the rounding of differently shaped matrix products (none in
practice in fp32; bf16 has them). Self-speculation needs a model that was trained to predict at mask positions; without
that it is exact as well, and slower. ``docs/DECODE_PATHS.md`` compares the paths.
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
