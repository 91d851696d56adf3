"""The tiny model: its parts, its training, and the checkpoint that ships."""

import json
import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, GlmOcrForConditionalGeneration

import gravity_rl.tiny
from gravity_rl.processor import GlmOcrImageProcessor
from gravity_rl.synth.crops import Crop, crop_seed, sample_crop
from gravity_rl.synth.draw import Glyph
from gravity_rl.synth.knobs import PRESETS
from gravity_rl.tiny.build import TinyShape, build_tiny
from gravity_rl.tiny.stream import BatchSpec, CropStream, glyph_targets
from gravity_rl.tiny.teacher import exact_teacher, noisy_teacher
from gravity_rl.tiny.train import TrainPlan, train_stages

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


def test_glyph_targets_take_the_glyph_nearest_to_the_middle():
    ids = {" ": 0, "a": 1, "b": 2, "\\neq": 3}
    glyphs = (Glyph("a", 2, 8), Glyph("b", 9, 8), Glyph("≠", 20, 24), Glyph("?", 20, 8), Glyph("a", 99, 99))
    assert glyph_targets(glyphs, 2, 2, 16, ids) == [2, 0, 0, 3]


def test_batches_supervise_exactly_the_label(small):
    _, processor = small
    spec = BatchSpec(PRESETS["tiny"], (1, 1, 1), exact_teacher, seed=0, batch_size=4, pool_batches=2)
    stream = CropStream(spec, processor)
    batches = stream.pool(0)
    assert len(batches) == 2
    for batch, again in zip(batches, stream.pool(0), strict=True):
        assert all(torch.equal(batch[name], again[name]) for name in batch)
        patches = batch["image_grid_thw"].prod(-1)
        assert len(batch["pixel_values"]) == patches.sum()
        assert len(batch["glyphs"]) == patches.sum() // 4
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            supervised = labels[labels != -100]
            assert torch.equal(supervised, ids[labels != -100])
            assert supervised[-1] == processor.tokenizer.eos_token_id
            assert processor.tokenizer.convert_tokens_to_ids("<|assistant|>") not in supervised.tolist()


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


def test_training_lowers_the_loss(tmp_path):
    model, processor = build_tiny(SMALL)
    plan = TrainPlan(easy_steps=24, full_steps=6, batch_size=8, warmup_steps=2, workers=0, log_every=6)
    train_stages(model, processor, plan, ["easy", "full"], tmp_path / "curve.jsonl")
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [row["step"] for row in curve] == [6, 12, 18, 24, 30]
    assert [row["stage"] for row in curve] == ["easy"] * 4 + ["full"]
    assert curve[3]["loss"] < curve[0]["loss"] - 0.3
    assert "glyph_loss" in curve[0]
    assert "glyph_loss" not in curve[-1]


def test_the_shipped_checkpoint_is_small_and_loads_with_stock_classes():
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= 8_000_000
    assert sorted(file.name for file in CHECKPOINT.glob("model*")) == ["model.safetensors"]
    model = AutoModelForImageTextToText.from_pretrained(CHECKPOINT)
    processor = AutoProcessor.from_pretrained(CHECKPOINT)
    assert isinstance(model, GlmOcrForConditionalGeneration)
    assert model.dtype == torch.float32
    assert len(processor.tokenizer) <= model.config.text_config.vocab_size
