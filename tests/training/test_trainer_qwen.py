"""Another vision-language model through the same entry point: a very small Qwen2.5-VL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
)
from transformers.utils import is_torchvision_available

from gravity_rl.processor import image_only
from gravity_rl.recorder import read_rollouts
from gravity_rl.tiny.build import build_tokenizer
from gravity_rl.train import main

CHAT_TEMPLATE = (
    "{%- for message in messages %}<|user|>"
    "{%- for part in message.content %}"
    "{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- else %}{{ part.text }}{%- endif %}{%- endfor %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{%- endif %}"
)


@pytest.fixture(scope="module")
def qwen_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = build_tokenizer()
    names = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_tokens(names, special_tokens=True)
    start, end, image, video = tokenizer.convert_tokens_to_ids(names)
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    image_processor = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, min_pixels=256, max_pixels=65536)
    image_only(Qwen2_5_VLProcessor)(image_processor, tokenizer, chat_template=CHAT_TEMPLATE).save_pretrained(folder)
    return folder


@pytest.mark.skipif(is_torchvision_available(), reason="the checkpoint has no video settings for the stock class")
def test_qwen_trains_through_the_same_entry_point(
    qwen_checkpoint: Path, make_argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert main(make_argv(model_name_or_path=qwen_checkpoint, max_pixels=1024, rollout_batch_size=3)) == 0
    rows = read_rollouts(tmp_path / "run").to_pylist()
    assert len(rows) == 2 * 8
    before = load_file(qwen_checkpoint / "model.safetensors")
    after = load_file(tmp_path / "run" / "final" / "model.safetensors")
    changed = {name.split(".")[0] for name in before if not before[name].equal(after[name])}
    assert changed, "the optimiser did not move any weight"
    config = json.loads((tmp_path / "run" / "final" / "processor_config.json").read_text())
    assert config["processor_class"] == "Qwen2_5_VLProcessor"
    assert config["image_processor"]["size"]["longest_edge"] == 1024
