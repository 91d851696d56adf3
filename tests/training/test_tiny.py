"""The tiny model: its parts, its training, and the checkpoint that ships."""

import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, GlmOcrForConditionalGeneration

import gravity_rl.tiny
from gravity_rl.processor import GlmOcrImageProcessor
from gravity_rl.synth.crops import Crop, crop_seed, sample_crop
from gravity_rl.synth.knobs import PRESETS
from gravity_rl.synth.teacher import noisy_teacher
from gravity_rl.tiny.build import TinyShape, build_tiny

SMALL = TinyShape(
    hidden_size=32, intermediate_size=48, num_layers=1, num_heads=2, num_kv_heads=1,
    vision_hidden_size=32, vision_intermediate_size=48, vision_depth=1, vision_heads=2,
)  # fmt: skip
CHECKPOINT = Path(gravity_rl.tiny.__file__).parent / "checkpoint"


@pytest.fixture(scope="module")
def small():
    return build_tiny(SMALL)


def test_the_same_seed_builds_the_same_model():
    first, second, other = (build_tiny(SMALL, seed)[0].lm_head.weight for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_image_tokens_follow_the_grid(small):
    _, processor = small
    text = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Text Recognition:"}]}],
        tokenize=False,
        add_generation_prompt=True,
    )
    image_part = "<|begin_of_image|><|image|><|end_of_image|>"
    assert text == f"[gMASK]<sop><|user|>{image_part}Text Recognition:<|assistant|>\n"
    inputs = processor(text=[text], images=[Image.new("RGB", (96, 32))], return_tensors="pt")
    assert inputs["input_ids"].tolist()[0].count(processor.image_token_id) == 6 * 2


def test_stock_classes_load_a_saved_model(small, tmp_path):
    model, processor = small
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    assert isinstance(AutoProcessor.from_pretrained(tmp_path), GlmOcrImageProcessor)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert isinstance(loaded, GlmOcrForConditionalGeneration)
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("task", "least", "most"), [("text", 0.45, 0.65), ("table", 0.40, 0.65), ("formula", 0.30, 0.60)]
)
def test_the_noisy_teacher_makes_the_faults_it_promises(task, least, most):
    rng = random.Random(0)
    made = [sample_crop(task, "train", crop_seed(5, "train", i), PRESETS["tiny"]) for i in range(150)]
    labels = [(crop, noisy_teacher(crop, rng)) for crop in made]
    share = sum(label != crop.reference for crop, label in labels) / len(labels)
    assert least < share < most
    if task == "table":
        more_rows = [label.count("<tr>") - crop.reference.count("<tr>") for crop, label in labels]
        assert sum(not label.endswith("</table>") for _, label in labels) > 10
        assert sum(more > 0 for more in more_rows) > 10
        assert sum(more < 0 for more in more_rows) > 10


def test_the_noisy_teacher_leaves_a_single_word_alone_or_repeats_it():
    crop = Crop("text", "word", Image.new("L", (16, 16)), ("word",), ())
    labels = {noisy_teacher(crop, random.Random(seed)) for seed in range(50)}
    assert labels == {"word", "word\nword", "word\nword\nword"}


def test_the_shipped_checkpoint_is_small_and_loads_with_stock_classes():
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= 8_000_000
    assert sorted(file.name for file in CHECKPOINT.glob("model*")) == ["model.safetensors"]
    model = AutoModelForImageTextToText.from_pretrained(CHECKPOINT)
    processor = AutoProcessor.from_pretrained(CHECKPOINT)
    assert isinstance(model, GlmOcrForConditionalGeneration)
    assert model.dtype == torch.float32
    assert len(processor.tokenizer) <= model.config.text_config.vocab_size
