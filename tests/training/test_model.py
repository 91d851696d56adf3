"""Loading checkpoints: precision, pixel budgets, processors without torchvision, and what is refused."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor
from transformers.utils import is_torchvision_available

from gravity_rl.config import ModelArguments
from gravity_rl.model import (
    SHIPPED_CHECKPOINTS,
    ModelError,
    load_model,
    load_ocr_processor,
    never_sampled_ids,
    refusing,
    resolve_checkpoint,
)
from gravity_rl.preflight import default_rollout
from gravity_rl.processor import GlmOcrImageProcessor, load_processor

VIDEO = {"video_processor_type": "Glm46VVideoProcessor", "patch_size": 8}


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


@pytest.fixture
def published_form(checkpoint: Path) -> Path:
    """The checkpoint in the form of the published ones: its files name the stock processor class."""
    config = json.loads((checkpoint / "processor_config.json").read_text())
    (checkpoint / "processor_config.json").unlink()
    preprocessor = config["image_processor"] | {"processor_class": "Glm46VProcessor"}
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    (checkpoint / "video_preprocessor_config.json").write_text(json.dumps(VIDEO))
    tokenizer = json.loads((checkpoint / "tokenizer_config.json").read_text())
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"processor_class": "Glm46VProcessor"}))
    return checkpoint


def grid(processor: Any, width: int, height: int) -> list[int]:
    image = Image.new("RGB", (width, height), "white")
    prompt = [{"role": "user", "content": [{"type": "image", "image": image}]}]
    return processor.apply_chat_template([prompt], tokenize=True, return_dict=True, return_tensors="pt")[
        "image_grid_thw"
    ][0].tolist()


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_weights_have_the_configured_precision(tiny_checkpoint: Path, dtype: str, expected: torch.dtype) -> None:
    model = load_model(tiny_checkpoint, ModelArguments(model_name_or_path="x", dtype=dtype))
    assert {parameter.dtype for parameter in model.parameters()} == {expected}


def test_pixel_budget_counts_the_pixels_of_the_image(tiny_checkpoint: Path) -> None:
    processor = load_ocr_processor(tiny_checkpoint, max_pixels=64 * 64, min_pixels=32 * 32)
    _, rows, columns = grid(processor, 256, 256)
    assert rows * columns * 8 * 8 == 64 * 64
    _, rows, columns = grid(processor, 16, 16)
    assert rows * columns * 8 * 8 >= 32 * 32
    unlimited = load_ocr_processor(tiny_checkpoint)
    assert grid(unlimited, 256, 256) == [1, 32, 32]


def test_registered_processor_is_what_the_stock_loader_returns(tiny_checkpoint: Path) -> None:
    assert isinstance(AutoProcessor.from_pretrained(tiny_checkpoint), GlmOcrImageProcessor)


@pytest.mark.skipif(is_torchvision_available(), reason="with torchvision the stock class is used")
def test_published_form_loads_without_torchvision_and_is_saved_in_its_own_name(
    published_form: Path, tmp_path: Path
) -> None:
    processor = load_ocr_processor(published_form)
    assert grid(processor, 64, 32) == [1, 4, 8]
    saved = tmp_path / "saved"
    processor.save_pretrained(saved)
    config = json.loads((saved / "processor_config.json").read_text())
    assert config["processor_class"] == "Glm46VProcessor"
    assert config["image_processor"]["image_processor_type"] == "Glm46VImageProcessor"
    assert json.loads((saved / "video_preprocessor_config.json").read_text()) == VIDEO
    again = load_processor(saved)
    again.save_pretrained(tmp_path / "twice")
    for file in saved.iterdir():
        assert file.read_bytes() == (tmp_path / "twice" / file.name).read_bytes()


@pytest.mark.skipif(is_torchvision_available(), reason="with torchvision the stock class is used")
def test_video_settings_inside_the_processor_configuration_survive(published_form: Path, tmp_path: Path) -> None:
    load_processor(published_form).save_pretrained(tmp_path / "new_form")
    file = tmp_path / "new_form" / "processor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"video_processor": VIDEO}))
    load_processor(tmp_path / "new_form").save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "processor_config.json").read_text())["video_processor"] == VIDEO


def test_checkpoint_without_image_processor_is_refused(checkpoint: Path) -> None:
    (checkpoint / "processor_config.json").unlink()
    with pytest.raises(ModelError, match="image processor"):
        load_ocr_processor(checkpoint)


def test_checkpoint_of_a_text_model_is_refused(checkpoint: Path) -> None:
    (checkpoint / "processor_config.json").unlink()
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    config.pop("processor_class")
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    (checkpoint / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match="image processor"):
        load_ocr_processor(checkpoint)
    with pytest.raises(ModelError, match="the model does not load"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


def test_checkpoint_without_chat_template_is_refused(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        load_ocr_processor(checkpoint)


@pytest.mark.parametrize("template", ["{% for %}", "{{ raise_exception('no images') }}", "[gMASK]<sop>"])
def test_chat_template_without_use_for_images_is_refused(checkpoint: Path, template: str) -> None:
    (checkpoint / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=r"chat template (does not render|drops the image)"):
        load_ocr_processor(checkpoint)


def test_damaged_weights_are_refused(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="the model does not load"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


def test_weights_of_another_shape_are_refused(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"]["intermediate_size"] *= 2
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="the model does not load"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


def test_missing_weights_are_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="the model does not load"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


@pytest.mark.parametrize("lost", ["model.language_model.layers.1.mlp.down_proj.weight", "lm_head.weight"])
def test_weights_of_which_some_are_missing_are_refused(checkpoint: Path, lost: str) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    del tensors[lost]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"its weights lack 1 tensors of a .*, such as {lost}"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


def test_tied_heads_and_weights_that_the_model_has_no_use_for_are_no_fault(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    tensors["model.language_model.layers.9.mlp.down_proj.weight"] = torch.zeros(2, 2)  # as of a multi-token head
    del tensors["lm_head.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (checkpoint / "config.json").write_text(json.dumps(config))
    model = load_model(checkpoint, ModelArguments(model_name_or_path="x"))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize(
    "change",
    [
        {"text_config": "x"}, {"text_config": [1]}, {"model_type": ["glm_ocr"]}, {"image_token_id": "x"},
        {"text_config": {"vocab_size": "many"}}, {"text_config": {"rope_parameters": 5}},
    ],
    ids=str,
)  # fmt: skip
def test_configuration_of_a_wrong_type_is_refused(checkpoint: Path, change: dict[str, Any]) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelError, match="the processor does not load"):
        load_ocr_processor(checkpoint)
    with pytest.raises(ModelError, match="the model does not load"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "{", "\x00"])
@pytest.mark.parametrize("name", ["config.json", "processor_config.json", "tokenizer_config.json"])
def test_files_that_are_no_json_object_are_refused(checkpoint: Path, name: str, text: str) -> None:
    (checkpoint / name).write_text(text)
    with pytest.raises(ModelError, match=r"the processor does not load|no image processor"):
        load_ocr_processor(checkpoint)


@pytest.mark.parametrize(
    "change",
    [
        {"vision_config": {"patch_size": 0}}, {"text_config": {"num_attention_heads": 0}},
        {"text_config": {"vocab_size": 10**30}},
        {"text_config": {"hidden_act": "none such"}}, {"text_config": {"rope_parameters": {"rope_type": "x"}}},
    ],
    ids=str,
)  # fmt: skip
def test_configuration_of_an_impossible_size_is_refused(checkpoint: Path, change: dict[str, dict[str, Any]]) -> None:
    file = checkpoint / "config.json"
    config = json.loads(file.read_text())
    for name, values in change.items():
        config[name] |= values
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"the model does not load|its weights lack"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


@pytest.mark.parametrize("text", ['{"model": {"type": "Nothing"}}', '{"version": 1}', "{}"])
def test_tokenizer_of_an_unknown_form_is_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="the processor does not load"):
        load_ocr_processor(checkpoint)


@pytest.mark.parametrize(
    "change", [{"patch_size": 0}, {"merge_size": 0}, {"size": {"shortest_edge": 0, "longest_edge": 0}}], ids=str
)
def test_image_processor_of_an_impossible_size_is_refused(checkpoint: Path, change: dict[str, Any]) -> None:
    file = checkpoint / "processor_config.json"
    config = json.loads(file.read_text())
    config["image_processor"] |= change
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"the processor does not load|does not render a prompt"):
        load_ocr_processor(checkpoint)


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ 'x' * 10**30 }}", "{{ messages[7].role }}"])
def test_chat_template_that_fails_is_refused(checkpoint: Path, template: str) -> None:
    (checkpoint / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match="chat template does not render"):
        load_ocr_processor(checkpoint)


@pytest.mark.parametrize("name", ["config.json", "processor_config.json", "tokenizer_config.json"])
def test_code_of_a_checkpoint_is_neither_run_nor_asked_about(
    checkpoint: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ran = checkpoint / "ran"
    (checkpoint / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    file = checkpoint / name
    classes = ("AutoConfig", "AutoModelForImageTextToText", "AutoProcessor", "AutoTokenizer", "AutoImageProcessor")
    strange = {"auto_map": dict.fromkeys(classes, "evil.Evil"), "model_type": "evil", "processor_class": "Evil"}
    file.write_text(json.dumps(json.loads(file.read_text()) | strange))
    monkeypatch.setattr("builtins.input", lambda *prompt: (asked.append(prompt), "y")[1])
    for load in (
        load_ocr_processor,
        default_rollout,
        lambda folder: load_model(folder, ModelArguments(model_name_or_path="x")),
    ):
        with suppress(ModelError):
            load(checkpoint)
    assert not asked
    assert not ran.exists()
    if name == "config.json":
        with pytest.raises(ModelError, match="the model does not load"):
            load_model(checkpoint, ModelArguments(model_name_or_path="x"))


def test_pickled_weights_are_not_read(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    torch.save(tensors, checkpoint / "pytorch_model.bin")
    with pytest.raises(ModelError, match="the model does not load"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


def test_weights_in_a_form_that_needs_another_package_are_refused(checkpoint: Path) -> None:
    file = checkpoint / "config.json"
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    file.write_text(json.dumps(json.loads(file.read_text()) | quantized))
    with pytest.raises(ModelError, match="the model does not load"):
        load_model(checkpoint, ModelArguments(model_name_or_path="x"))


def test_faults_of_other_kinds_are_not_taken_for_bad_files() -> None:
    class Fault(Exception):
        """None that a library raises for files."""

    with pytest.raises(Fault), refusing("x"):
        raise Fault
    with pytest.raises(ModelError, match=r"^x: said$"), refusing("x"):
        raise Exception("said")  # as the tokenizers library does


def test_resolution_of_names(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert resolve_checkpoint(str(tiny_checkpoint)) == tiny_checkpoint
    with pytest.raises(ModelError, match="has no revisions"):
        resolve_checkpoint(str(tiny_checkpoint), "main")
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_checkpoint(str(tmp_path))
    with pytest.raises(ModelError, match="this package ships shipped:tiny"):
        resolve_checkpoint("shipped:huge")
    with pytest.raises(ModelError, match="neither a folder nor"):
        resolve_checkpoint("not a/valid/hub name")
    assert SHIPPED_CHECKPOINTS["shipped:tiny"].name == "checkpoint"


def test_end_tokens_may_always_be_sampled(tiny_checkpoint: Path) -> None:
    model = load_model(tiny_checkpoint, ModelArguments(model_name_or_path="x"))
    tokenizer = load_ocr_processor(tiny_checkpoint).tokenizer
    tokenizer.pad_token = tokenizer.eos_token
    banned = never_sampled_ids(model, tokenizer)
    assert tokenizer.eos_token_id not in banned
    assert tokenizer.unk_token_id not in banned
    assert model.config.image_token_id in banned
