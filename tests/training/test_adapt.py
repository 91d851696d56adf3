"""Joint training from beginning to end on a very small model: what it logs, what it leaves behind, what it refuses."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from conftest import SMALL, Crops, write_crops
from run_helpers import joint_arguments
from safetensors.torch import load_file
from test_trainer_qwen import qwen_checkpoint  # noqa: F401 - a fixture
from transformers import AutoModelForImageTextToText, AutoProcessor, GlmOcrForConditionalGeneration

from gravity_rl import evaluate, train
from gravity_rl.adapt import build_trainer, main
from gravity_rl.config import RunConfig
from gravity_rl.joint import evaluate as drafted
from gravity_rl.joint.config import parse_joint_config
from gravity_rl.joint.drafter import read_block_diffusion
from gravity_rl.joint.masks import ATTENTION
from gravity_rl.joint.modeling import SHARE_BUCKETS
from gravity_rl.joint.trainer import JointTrainer
from gravity_rl.model import never_sampled_ids
from gravity_rl.recorder import RunDirectory, read_metrics
from gravity_rl.tiny import build as tiny_build

Capture = pytest.CaptureFixture[str]
Launch = Callable[..., Path]
MASK_ID = 2
LAYOUT = {"bd_size": 4, "mask_id": MASK_ID, "ar_loss_weight": 1.0, "mask_schedule": "uniform"}


def config_of(model: Path, data: Path, output_dir: Path, **settings: Any) -> RunConfig:
    return parse_joint_config(joint_arguments(model, data, output_dir, **settings))


def trainer_of(model: Path, data: Path, output_dir: Path, **settings: Any) -> JointTrainer:
    return build_trainer(config_of(model, data, output_dir, **settings), RunDirectory(output_dir))[0]


def model_inputs(row: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in row.items() if name not in ("samples", "forward_tokens")}


def training_lines(run: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run) if "loss" in line]


def drafter_file(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "block_diffusion.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, crops: Crops) -> Path:
    """The directory of a finished run of eight steps that read the held-out crops in between."""
    folder = tmp_path_factory.mktemp("adapt") / "run"
    settings = {"eval_data": crops.held_out, "max_steps": 8, "evaluation_steps": 4, "save_steps": 4, "logging_steps": 1}
    assert main(joint_arguments(tiny_checkpoint, crops.train, folder, **settings)) == 0
    return folder


@pytest.fixture
def launch(tmp_path: Path, tiny_checkpoint: Path, crops: Crops) -> Launch:
    """Run on the tiny checkpoint with one step, unless told otherwise; returns the run directory."""

    def start(**settings: Any) -> Path:
        folder = tmp_path / "run"
        argv = joint_arguments(tiny_checkpoint, crops.train, folder, **{"max_steps": 1, "logging_steps": 1} | settings)
        assert main(argv) == 0
        return folder

    return start


# --- a run on a checkpoint ---


def test_every_metric_is_logged(finished: Path) -> None:
    lines = training_lines(finished)
    assert [line["step"] for line in lines] == list(range(1, 9))
    expected = {
        "loss", "ar_loss", "diffusion_loss", "ar_accuracy", "tokens_per_second", "packing_efficiency",
        "samples_per_row", "grad_norm", "learning_rate", "vision_learning_rate",
    }  # fmt: skip
    for line in lines:
        assert expected <= set(line)
        assert all(math.isfinite(value) for value in line.values()), line
        assert line["loss"] == pytest.approx((line["ar_loss"] + line["diffusion_loss"]) / 2, rel=1e-5)
        assert 0.5 < line["packing_efficiency"] <= 1
        assert line["tokens_per_second"] > 0
        assert "glyph_loss" not in line
    names = {name for line in lines for name in line}
    assert {f"denoising_accuracy/{bucket}" for bucket in SHARE_BUCKETS} <= names
    assert lines[-1]["ar_loss"] < 0.8 * lines[0]["ar_loss"]
    assert lines[-1]["diffusion_loss"] < 0.8 * lines[0]["diffusion_loss"]


def test_held_out_crops_are_read_on_time(finished: Path) -> None:
    line, last = [line for line in read_metrics(finished) if "heldout/all/reward" in line]
    assert (line["step"], last["step"]) == (4, 8)
    assert {f"heldout/{task}/{name}" for task in ("all", "text", "table", "formula")
            for name in ("reward", "accepted_per_round", "tpf", "tokens_per_round")} <= set(line)  # fmt: skip
    names = sorted(path.name for path in (finished / "evaluation").iterdir())
    assert names == [f"step_00000{step}.{kind}" for step in (4, 8) for kind in ("json", "parquet")]
    result = json.loads((finished / "evaluation" / "step_000004.json").read_text(encoding="utf-8"))
    assert result["all"]["reward"] == line["heldout/all/reward"]
    rows = pq.read_table(finished / "evaluation" / "step_000004.parquet").to_pylist()
    assert [row["id"] for row in rows] == [f"held{index}" for index in range(6)]
    assert line["heldout/all/tpf"] == pytest.approx(
        sum(row["tokens"] for row in rows) / sum(2 * row["rounds"] for row in rows)
    )
    for row in rows:
        assert row["tokens"] <= row["accepted"] + 2 * row["rounds"]


@pytest.mark.parametrize("name", ["final", "checkpoint-4", "checkpoint-8"])
def test_output_is_a_stock_checkpoint(finished: Path, crops: Crops, name: str) -> None:
    folder = finished / name
    assert drafter_file(folder) == LAYOUT
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["GlmOcrForConditionalGeneration"]
    for file in folder.glob("*.json"):
        assert ATTENTION not in file.read_text(encoding="utf-8"), file
    model, loading = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert type(model) is GlmOcrForConditionalGeneration
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    processor = AutoProcessor.from_pretrained(folder)
    assert processor.tokenizer.convert_tokens_to_ids("<|mask|>") == MASK_ID
    content = [{"type": "image", "path": str(crops.train.parent / "train0.png")}, {"type": "text", "text": "Read."}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True,
        return_tensors="pt",
    )  # fmt: skip
    output = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert output.size(1) > inputs["input_ids"].size(1)


def test_both_evaluations_read_the_final_model_alike(finished: Path, crops: Crops, tmp_path: Path) -> None:
    """Drafting changes nothing: what AR greedy decoding reads is what the run and the drafter have read."""
    argv = ["--model_name_or_path", str(finished / "final"), "--eval_data", str(crops.held_out), "--use_cpu",
            "--max_completion_length", "12", "--output_dir", str(tmp_path)]  # fmt: skip
    assert evaluate.main(argv) == 0
    assert drafted.main([*argv, "--temperatures", "0"]) == 0
    plain = [row for row in pq.read_table(tmp_path / "predictions.parquet").to_pylist() if row["decoding"] == "greedy"]
    files = [tmp_path / "temperature_0.parquet", finished / "evaluation" / "step_000008.parquet"]
    for file in files:
        rows = pq.read_table(file).to_pylist()
        assert [(row["id"], row["completion"], row["tokens"]) for row in rows] == [
            (row["id"], row["completion"], row["length"]) for row in plain
        ]
    assert set(json.loads((tmp_path / "drafting.json").read_text())["temperature 0"]) == {
        "all", "text", "table", "formula",
    }  # fmt: skip


def test_grpo_starts_from_the_final_model(
    finished: Path, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trainer, _ = train.build_trainer(make_config(model_name_or_path=finished / "final"), RunDirectory(tmp_path))
    assert type(trainer.model) is GlmOcrForConditionalGeneration
    assert MASK_ID in never_sampled_ids(trainer.model, trainer.processing_class.tokenizer)
    trainer.save_final(tmp_path / "final")
    assert read_block_diffusion(tmp_path / "final") == read_block_diffusion(finished / "final")


def test_training_goes_on_from_a_checkpoint_with_a_drafter(finished: Path, crops: Crops, tmp_path: Path) -> None:
    """Its mask token is kept, embedding row included."""
    trainer = trainer_of(finished / "final", crops.train, tmp_path / "run", block_size=6, seed=3)
    weights = load_file(finished / "final" / "model.safetensors")
    assert trainer.drafter is not None
    assert (trainer.drafter.mask_id, trainer.drafter.bd_size) == (MASK_ID, 6)
    embedding = trainer.model.get_input_embeddings().weight
    assert embedding.equal(weights["model.language_model.embed_tokens.weight"])


# --- variants of a step ---


def test_accumulated_rows_count_alike(tiny_checkpoint: Path, crops: Crops, tmp_path: Path) -> None:
    """The gradient of a step is the mean of those of its rows, whatever their lengths."""
    trainer = trainer_of(tiny_checkpoint, crops.train, tmp_path, gradient_accumulation_steps=2, max_steps=1)
    rows = [trainer.train_dataset[index] for index in range(2)]
    assert rows[0]["input_ids"].shape != rows[1]["input_ids"].shape
    model = trainer.model
    parameter = model.lm_head.weight
    gradients = []
    for row in rows:
        model.zero_grad()
        model(**model_inputs(row))["loss"].backward()
        gradients.append(parameter.grad.clone())
    model.zero_grad()
    expected = sum(gradients) / 2
    seen: list[torch.Tensor] = []
    clip = trainer.accelerator.clip_grad_norm_

    def keep(parameters: Any, *args: Any) -> Any:
        seen.append(parameter.grad.clone())
        return clip(parameters, *args)

    trainer.accelerator.clip_grad_norm_ = keep
    trainer.train()
    torch.testing.assert_close(seen[0], expected, atol=1e-6, rtol=1e-4)


def test_gradient_checkpointing_changes_no_gradient(tiny_checkpoint: Path, crops: Crops, tmp_path: Path) -> None:
    trainer = trainer_of(tiny_checkpoint, crops.train, tmp_path)
    model = trainer.model.train()
    inputs = model_inputs(trainer.train_dataset[0])
    calls: list[int] = []
    layers = [model.model.language_model.layers[0].mlp, model.model.visual.blocks[0].mlp]
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = []
    for count in (2, 4):
        calls.clear()
        model.zero_grad()
        model(**inputs)["loss"].backward()
        assert len(calls) == count, "the second time, the backward computes every layer anew"
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        model.gradient_checkpointing_enable()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


def checkpoint_without_mask(folder: Path, *, tied: bool) -> Path:
    """An untrained model whose tokenizer has another token in the place of ``<|mask|>``."""
    processor = tiny_build.build_processor(SMALL)
    config = tiny_build.build_config(SMALL, processor.tokenizer)
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    model = GlmOcrForConditionalGeneration(config)
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text(encoding="utf-8").replace("<|mask|>", "<|other|>")
        values = json.loads(text)
        values.pop("mask_token", None)
        (folder / name).write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_without_mask_token_gets_one_and_learns_it(tied: bool, crops: Crops, tmp_path: Path) -> None:
    start = checkpoint_without_mask(tmp_path / "start", tied=tied)
    tokens = len(AutoProcessor.from_pretrained(start).tokenizer)
    run = tmp_path / "run"
    trainer = trainer_of(start, crops.train, run, max_steps=1)
    assert trainer.drafter is not None
    mask_id = trainer.drafter.mask_id
    assert mask_id == tokens, "the first spare row"
    trainer.model(**model_inputs(trainer.train_dataset[0]))["loss"].backward()
    embedding = trainer.model.get_input_embeddings().weight
    assert float(embedding.grad[mask_id].abs().max()) > 0
    assert (trainer.model.lm_head.weight is embedding) == tied
    before = embedding[mask_id].detach().clone()
    trainer.train()
    assert not before.equal(embedding[mask_id])
    trainer.save_final(run / "final")
    assert drafter_file(run / "final")["mask_id"] == mask_id
    model = AutoModelForImageTextToText.from_pretrained(run / "final")
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    assert model.get_input_embeddings().weight.equal(embedding)


def test_all_mask_schedule_trains_one_corrupted_stream(launch: Launch) -> None:
    run = launch(mask_schedule="all", random_block_phase="true")
    (line,) = training_lines(run)
    assert {name for name in line if name.startswith("denoising")} == {"denoising_accuracy/75-100"}
    assert drafter_file(run / "final")["mask_schedule"] == "all"


def test_without_ar_loss_drafting_is_refused(launch: Launch, crops: Crops, tmp_path: Path, capsys: Capture) -> None:
    run = launch(ar_loss_weight=0)
    (line,) = training_lines(run)
    assert line["loss"] == pytest.approx(line["diffusion_loss"], rel=1e-5)
    assert drafter_file(run / "final")["ar_loss_weight"] == 0
    capsys.readouterr()
    argv = ["--model_name_or_path", str(run / "final"), "--eval_data", str(crops.held_out), "--use_cpu"]
    assert drafted.main([*argv, "--output_dir", str(tmp_path / "drafted")]) == 2
    assert "ar_loss_weight is 0: its AR path was not trained" in capsys.readouterr().err
    assert not (tmp_path / "drafted").exists()


def test_an_ar_only_run_has_no_drafter(launch: Launch, crops: Crops, tmp_path: Path, capsys: Capture) -> None:
    """Its held-out crops are read all the same, with drafts that nobody trained."""
    run = launch(ar_only_steps=1, eval_data=crops.held_out, save_steps=1)
    assert (run / "evaluation" / "step_000001.json").is_file()
    assert not list(run.rglob("block_diffusion.json"))
    (line,) = training_lines(run)
    assert line["loss"] == pytest.approx(line["ar_loss"], rel=1e-5)
    assert "diffusion_loss" not in line
    capsys.readouterr()
    argv = ["--model_name_or_path", str(run / "final"), "--eval_data", str(crops.held_out), "--use_cpu"]
    assert drafted.main([*argv, "--output_dir", str(tmp_path / "drafted")]) == 2
    assert "has no block_diffusion.json" in capsys.readouterr().err


def test_an_ar_only_run_keeps_the_drafter_it_started_with(finished: Path, crops: Crops, tmp_path: Path) -> None:
    trainer = trainer_of(
        finished / "final", crops.train, tmp_path, max_steps=1, ar_only_steps=1, block_size=6, mask_schedule="all"
    )
    trainer.save_final(tmp_path / "final")
    assert drafter_file(tmp_path / "final") == LAYOUT


# --- data and checkpoints that cannot be used ---


def write_rows(folder: Path, change: Callable[[list[dict[str, Any]]], Any]) -> Path:
    folder.mkdir()
    file = write_crops(folder, "crop", 12)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    change(rows)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_unusable_samples_are_counted_and_left_out(
    tiny_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(rows: list[dict[str, Any]]) -> None:
        rows[0]["reference"] = ""
        rows[3]["reference"] = "a" * 61
        rows[6]["reference"] = "a" * 60
        rows[9]["reference"] = "b" * 61

    caplog.set_level("INFO")
    file = write_rows(tmp_path / "data", spoil)
    run = tmp_path / "run"
    config = config_of(tiny_checkpoint, file, run, max_steps=8)
    rows = build_trainer(config, RunDirectory(run))[0].train_dataset
    for line in (
        "train_data: 12 samples, 4 skipped",
        "train_data: skipping 1 samples: empty response",
        "train_data: skipping 2 samples: response over max_response_tokens (60)",
        "train_data: skipping 1 samples: longer than a row of row_tokens (150)",
    ):
        assert line in caplog.messages
    (stage,) = rows.stages
    used = {stage.data[sample]["id"] for index in range(len(rows)) for sample, _ in stage.plan.row(index)}
    assert used == {f"crop{index}" for index in range(12)} - {"crop0", "crop3", "crop6", "crop9"}


def test_nothing_usable_is_an_error(tiny_checkpoint: Path, crops: Crops, tmp_path: Path, capsys: Capture) -> None:
    argv = joint_arguments(tiny_checkpoint, crops.train, tmp_path / "run", max_response_tokens=2)
    assert main(argv) == 2
    error = capsys.readouterr().err.partition("error: ")[2]
    assert "train_data: source: no rows for the mixture" in error
    assert "12 samples skipped: response over max_response_tokens (2)" in error


def test_a_task_without_usable_samples_is_named(
    tiny_checkpoint: Path, crops: Crops, tmp_path: Path, capsys: Capture
) -> None:
    weights = {"table_weight": 1, "text_weight": 1, "formula_weight": 1}
    argv = joint_arguments(tiny_checkpoint, crops.train, tmp_path / "run", max_response_tokens=10, **weights)
    assert main(argv) == 2
    assert "no rows for the mixture: table (4 samples skipped: response over" in capsys.readouterr().err


def test_a_row_without_image_is_named(tiny_checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    file = write_rows(tmp_path / "data", lambda rows: rows[2].pop("image"))
    assert main(joint_arguments(tiny_checkpoint, file, tmp_path / "run")) == 2
    assert f"{file}:3: image: missing" in capsys.readouterr().err


def test_vision_warm_up_without_glyphs_is_refused(
    tiny_checkpoint: Path, crops: Crops, glyph_crops: Path, tmp_path: Path, capsys: Capture
) -> None:
    settings = {"vision_warmup_steps": 1, "dataloader_num_workers": 1}
    assert main(joint_arguments(tiny_checkpoint, crops.train, tmp_path / "run", **settings)) == 2
    assert "train_data: glyphs: missing" in capsys.readouterr().err
    folder = tmp_path / "data"
    shutil.copytree(glyph_crops.parent, folder)
    rows = [json.loads(line) for line in glyph_crops.read_text(encoding="utf-8").splitlines()]
    rows[4]["glyphs"] = "ab"
    file = folder / "short.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(joint_arguments(tiny_checkpoint, file, tmp_path / "run", **settings)) == 2
    assert "easy4: glyphs: the vision warm-up needs one character" in capsys.readouterr().err


def test_another_architecture_is_refused(
    qwen_checkpoint: Path,  # noqa: F811
    crops: Crops,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    assert main(joint_arguments(qwen_checkpoint, crops.train, tmp_path / "run")) == 2
    error = capsys.readouterr().err.partition("error: ")[2]
    assert "model_type is 'qwen2_5_vl', but joint training needs a GLM-OCR-class checkpoint" in error
    assert error.count("\n") == 1


def test_a_drafter_file_of_another_checkpoint_is_refused(
    tiny_checkpoint: Path, crops: Crops, tmp_path: Path, capsys: Capture
) -> None:
    start = tmp_path / "start"
    shutil.copytree(tiny_checkpoint, start)
    (start / "block_diffusion.json").write_text(json.dumps(LAYOUT | {"mask_id": 5000}), encoding="utf-8")
    assert main(joint_arguments(start, crops.train, tmp_path / "run")) == 2
    assert "mask_id 5000 is no row of the embedding" in capsys.readouterr().err


def test_flex_attention_needs_a_gpu(tiny_checkpoint: Path, crops: Crops, tmp_path: Path, capsys: Capture) -> None:
    assert main(joint_arguments(tiny_checkpoint, crops.train, tmp_path / "run", attention="flex")) == 2
    assert "attention: flex needs a GPU" in capsys.readouterr().err


def test_loader_workers_leave_signals_to_the_trainer(tiny_checkpoint: Path, crops: Crops, tmp_path: Path) -> None:
    """A terminal or a batch system signals all processes of a run; the rows of the last steps are still needed."""
    trainer = trainer_of(tiny_checkpoint, crops.train, tmp_path / "run", dataloader_num_workers=1)
    loader = trainer.get_train_dataloader()
    rows = iter(loader)
    next(rows)
    workers = multiprocessing.active_children()
    assert workers
    for worker in workers:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(worker.pid, number)
    assert len(list(rows)) == len(loader) - 1
