"""The published settings of joint training, value by value, and every way to set something without effect."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import TrainingArguments

from gravity_rl.adapt import main
from gravity_rl.joint.config import UNUSED, parse_joint_config
from gravity_rl.parsing import ConfigError
from gravity_rl.resources import resource_dir
from gravity_rl.run_config import RunConfig
from rewards import RewardConfig

CONFIGS = resource_dir("configs")
RUNS = sorted(CONFIGS.glob("adapt_*.yaml"))
FULL = CONFIGS / "adapt_16xh100.yaml"
PUBLISHED: dict[str, Any] = {
    "max_steps": 40_000,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "weight_decay": 0.0,
    "learning_rate": 2e-5,
    "vision_learning_rate": 2e-6,
    "warmup_steps": 500,
    "lr_scheduler_type": "linear",
    "bf16": True,
    "max_grad_norm": 1.0,
    "row_tokens": 10_240,
    "max_response_tokens": 3_072,
    "gradient_accumulation_steps": 4,
    "block_size": 32,
    "ar_loss_weight": 1.0,
    "diffusion_loss_weight": 1.0,
    "mask_schedule": "uniform",
    "random_block_phase": False,
    "supervise_every_eos": False,
}
MODEL = ["--model_name_or_path", "x", "--use_cpu"]


def load(path: Path) -> RunConfig:
    return parse_joint_config(["--config", str(path), "--use_cpu"])


def refused(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_joint_config([*MODEL, *argv])
    return str(caught.value)


def test_published_values() -> None:
    config = load(FULL)
    assert {name: config.training.as_given[name] for name in PUBLISHED} == PUBLISHED
    assert config.training.as_given["optim"] == "adamw_torch_fused"
    assert config.data.weights == {"text": 0.60, "table": 0.20, "formula": 0.20}
    assert config.model.model_name_or_path == "zai-org/GLM-OCR"
    assert config.rewards == RewardConfig()
    assert (config.training.ar_only_steps, config.training.curriculum_steps, config.training.vision_warmup_steps) == (
        0, 0, 0,
    )  # fmt: skip


def test_published_values_are_the_defaults() -> None:
    training = parse_joint_config(MODEL).training
    assert {name: training.as_given[name] for name in PUBLISHED} == PUBLISHED


def test_lines_marked_as_published_are_those_of_the_list_above() -> None:
    marked = {line.split(":")[0] for line in FULL.read_text(encoding="utf-8").splitlines() if "# published" in line}
    elsewhere = {"model_name_or_path", "train_data", "text_weight", "table_weight", "formula_weight", "optim"}
    assert marked == set(PUBLISHED) | elsewhere


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_yaml_loads(path: Path) -> None:
    config = load(path)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    given = {name: value for section in config.as_dict().values() for name, value in section.items()}
    for name, value in values.items():
        assert given[name] == value or name == "report_to", name
    assert config.data.train_data


def test_yamls_of_every_size_are_there() -> None:
    assert {path.stem for path in RUNS} >= {"adapt_16xh100", "adapt_tiny_cpu", "adapt_tiny_nothing"}


def test_the_smaller_run_says_where_it_differs() -> None:
    text = (CONFIGS / "adapt_tiny_cpu.yaml").read_text(encoding="utf-8")
    values, published = yaml.safe_load(text), yaml.safe_load(FULL.read_text(encoding="utf-8"))
    lines = {line.split(":")[0]: line for line in text.splitlines()}
    for name in PUBLISHED:
        line = lines[name]
        if values[name] != published[name]:
            assert "#" in line, f"{line!r} differs from the published run and does not say how"
        else:
            assert "->" not in line, line


def test_written_configuration_reads_back_as_the_same(tmp_path: Path) -> None:
    config = load(CONFIGS / "adapt_tiny_nothing.yaml")
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml(), encoding="utf-8")
    assert parse_joint_config(["--config", str(file)]).as_dict() == config.as_dict()
    assert not set(UNUSED) & set(config.as_dict()["training"])


def test_unused_settings_exist_in_transformers() -> None:
    assert set(UNUSED) <= {field.name for field in dataclasses.fields(TrainingArguments)}


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("per_device_train_batch_size", "2", "gradient_accumulation_steps"),
        ("eval_strategy", "steps", "evaluation_steps"),
        ("num_train_epochs", "1", "no effect"),
        ("load_best_model_at_end", "true", "held-out"),
        ("dataloader_in_order", "false", "seed"),
        ("torch_compile", "true", "FlexAttention"),
        ("fsdp", "full_shard", "ZeRO-2"),
        ("mixture_size", "100", "as long as the run"),
        ("attn_implementation", "sdpa", "set attention"),
        ("activation_checkpointing_kwargs", '{"use_reentrant": false}', "activation_checkpointing"),
        ("gradient_checkpointing", "true", "activation_checkpointing"),
    ],
)
def test_settings_without_effect_are_refused(name: str, value: str, advice: str) -> None:
    message = refused(f"--{name}", value)
    assert name in message
    assert advice in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", "0"),
        ("max_steps", "-1"),
        ("block_size", "0"),
        ("row_tokens", "96"),
        ("max_response_tokens", "0"),
        ("gradient_accumulation_steps", "0"),
        ("learning_rate", "nan"),
        ("vision_learning_rate", "-1"),
        ("ar_loss_weight", "-0.5"),
        ("diffusion_loss_weight", "inf"),
        ("mask_schedule", "cosine"),
        ("attention", "eager"),
        ("blank_glyph_weight", "0"),
        ("evaluation_steps", "-1"),
        ("evaluation_block_size", "0"),
        ("seed", "-1"),
        ("output_dir", ""),
        ("ar_only_steps", "40001"),
        ("vision_warmup_steps", "40001"),
        ("curriculum_data", "easy.jsonl"),
        ("curriculum_steps", "5"),
        ("block_size", "wide"),
    ],
)
def test_bad_values_are_refused(name: str, value: str) -> None:
    assert name in refused(f"--{name}", value)


def test_nothing_to_train() -> None:
    assert "nothing to train" in refused("--ar_loss_weight", "0", "--diffusion_loss_weight", "0")


def test_an_error_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model_name_or_path: x\nuse_cpu: true\nblok_size: 16\n", encoding="utf-8")
    for argv in (["--config", str(file)], [*MODEL, "--block_size", "16", "--per_device_train_batch_size", "2"]):
        assert main(argv) == 2
        output = capsys.readouterr()
        assert output.err.startswith("error: ")
        assert output.err.count("\n") == 1
    assert main(["--config", str(file)]) == 2
    assert "unknown setting 'blok_size'; did you mean 'block_size'?" in capsys.readouterr().err
    assert main(["--use_cpu"]) == 2
    assert "model_name_or_path is not set" in capsys.readouterr().err


def test_help_lists_what_has_an_effect(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "--row_tokens" in text
    assert "--eval_strategy" not in text
