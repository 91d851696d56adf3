"""``block_diffusion.json``, also when it is damaged, and which architectures joint training loads."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GlmOcrForConditionalGeneration, Qwen2_5_VLConfig

from gravity_rl.joint.drafter import (
    FILE,
    BlockDiffusion,
    load_glm_ocr,
    read_block_diffusion,
    require_drafter,
    write_block_diffusion,
)
from gravity_rl.model import ModelError
from gravity_rl.run_config import ModelArguments

PUBLISHED = {
    "bd_size": 32,
    "mask_id": 59282,
    "ar_loss_weight": 1.0,
    "mask_schedule": "uniform",
    "base_model": "zai-org/GLM-OCR",
    "trained": {"steps": 40000},
}
WRITTEN = BlockDiffusion(bd_size=16, mask_id=7, ar_loss_weight=1.0, mask_schedule="all")
ARGUMENTS = ModelArguments(model_name_or_path="x", dtype="float32")


def written(folder: Path, content: object) -> Path:
    (folder / FILE).write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_published_layout_is_read_with_its_further_fields(tmp_path: Path) -> None:
    expected = BlockDiffusion(bd_size=32, mask_id=59282, ar_loss_weight=1.0, mask_schedule="uniform")
    assert read_block_diffusion(written(tmp_path, PUBLISHED)) == expected
    assert require_drafter(tmp_path, vocab_size=59392) == expected


def test_what_is_written_is_read_back_in_the_published_layout(tmp_path: Path) -> None:
    assert read_block_diffusion(tmp_path) is None
    write_block_diffusion(tmp_path, WRITTEN)
    assert read_block_diffusion(tmp_path) == WRITTEN
    assert json.loads((tmp_path / FILE).read_text()) == asdict(WRITTEN)
    assert set(asdict(WRITTEN)) <= set(PUBLISHED)


def test_whole_number_is_a_weight(tmp_path: Path) -> None:
    assert require_drafter(written(tmp_path, PUBLISHED | {"ar_loss_weight": 2})).ar_loss_weight == 2.0


def test_checkpoint_without_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no block_diffusion\.json: .* gravity_rl/adapt\.py, or decode with"):
        require_drafter(tmp_path)


@pytest.mark.parametrize("weight", [0, 0.0, -1, -0.5])
def test_checkpoint_without_ar_path_is_refused(tmp_path: Path, weight: float) -> None:
    written(tmp_path, PUBLISHED | {"ar_loss_weight": weight})
    assert read_block_diffusion(tmp_path) is not None
    with pytest.raises(ModelError, match="its AR path was not trained and cannot verify drafts"):
        require_drafter(tmp_path)


def test_mask_id_needs_a_row(tmp_path: Path) -> None:
    written(tmp_path, PUBLISHED)
    assert require_drafter(tmp_path, 59283).mask_id == 59282
    with pytest.raises(ModelError, match=r"block_diffusion\.json: mask_id 59282 is no row of the embedding"):
        require_drafter(tmp_path, 59282)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bd_size", 0), ("bd_size", -1), ("bd_size", True), ("bd_size", 32.0), ("bd_size", "32"), ("bd_size", None),
        ("mask_id", -1), ("mask_id", True), ("mask_id", 1.5), ("mask_id", [1]), ("mask_id", {"id": 1}),
        ("ar_loss_weight", True), ("ar_loss_weight", "1.0"), ("ar_loss_weight", float("nan")),
        ("ar_loss_weight", float("inf")), ("ar_loss_weight", 10**400), ("ar_loss_weight", None),
        ("mask_schedule", 1), ("mask_schedule", None), ("mask_schedule", ["uniform"]),
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind_are_refused(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(ModelError, match=rf"{FILE}: {field} must be .*, found ") as error:
        require_drafter(written(tmp_path, PUBLISHED | {field: value}))
    assert len(str(error.value)) < len(str(tmp_path)) + 250


@pytest.mark.parametrize("field", ["bd_size", "mask_id", "ar_loss_weight", "mask_schedule"])
def test_missing_field_is_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(ModelError, match=rf"{FILE}: {field} is missing"):
        require_drafter(written(tmp_path, {name: value for name, value in PUBLISHED.items() if name != field}))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"{'bd_size': 32}", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"[1]", b"null", b"NaN", b'"text"',
        b"[" * 100_000, b'{"a":' * 100_000, b'{"bd_size": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"bd_size": ' + b"9" * 5000 + b"}", b'{"bd_size": "\\ud800"}',
    ],
    ids=range(14),
)  # fmt: skip
def test_files_that_are_no_settings_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ModelError, match=FILE) as error:
        read_block_diffusion(tmp_path)
    str(error.value).encode()


def test_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        require_drafter(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["uniform", "all"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = {
    "bd_size": st.integers(-2, 64) | JSON,
    "mask_id": st.integers(-2, 200) | JSON,
    "ar_loss_weight": st.floats(-1, 2) | JSON,
    "mask_schedule": st.sampled_from(["uniform", "all"]) | JSON,
}


@settings(deadline=None)
@given(
    content=JSON | st.fixed_dictionaries(FIELDS, optional={"more": JSON}), vocab_size=st.none() | st.integers(1, 200)
)
def test_any_json_gives_usable_settings_or_the_error(
    tmp_path_factory: pytest.TempPathFactory, content: object, vocab_size: int | None
) -> None:
    folder = written(tmp_path_factory.getbasetemp(), content)
    try:
        found = require_drafter(folder, vocab_size)
    except ModelError:
        return
    assert type(found.bd_size) is int and found.bd_size >= 1
    assert type(found.mask_id) is int and 0 <= found.mask_id < (vocab_size or float("inf"))
    assert type(found.ar_loss_weight) is float and 0 < found.ar_loss_weight < float("inf")
    assert isinstance(found.mask_schedule, str)


@settings(deadline=None)
@given(content=st.binary(max_size=40))
def test_any_bytes_give_settings_or_the_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / FILE).write_bytes(content)
    with pytest.raises(ModelError, match=FILE):
        read_block_diffusion(folder)


# --- architectures ---


class Subclass(GlmOcrForConditionalGeneration):
    pass


def test_glm_ocr_loads_in_the_given_class_and_precision(tiny_checkpoint: Path) -> None:
    assert type(load_glm_ocr(tiny_checkpoint, ARGUMENTS)) is GlmOcrForConditionalGeneration
    arguments = ModelArguments(model_name_or_path="x", dtype="bfloat16", attn_implementation="eager")
    model = load_glm_ocr(tiny_checkpoint, arguments, Subclass)
    assert type(model) is Subclass
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config.text_config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (Qwen2_5_VLConfig().to_dict(), "'qwen2_5_vl'"),
        ({"model_type": "llama"}, "'llama'"),
        ({"model_type": "glm_ocr_text"}, "'glm_ocr_text'"),
        ({"model_type": ["glm_ocr"]}, "an array"),
        ({}, "null"),
    ],
)
def test_other_architectures_are_refused_before_weights_are_read(
    tmp_path: Path, config: dict[str, Any], found: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=rf"config\.json: model_type is {found}, but .* GLM-OCR-class checkpoint"):
        load_glm_ocr(tmp_path, ARGUMENTS)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"5"])
def test_configuration_that_is_no_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_glm_ocr(tmp_path, ARGUMENTS)


def test_damaged_or_missing_checkpoint_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it has no config\.json"):
        load_glm_ocr(tmp_path, ARGUMENTS)
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="the model does not load"):
        load_glm_ocr(folder, ARGUMENTS)
