"""Held-out evaluation gives the same with every engine, since all of them draw the same samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList

from gravity_rl.data import load_ocr_dataset
from gravity_rl.data.config import DataConfig
from gravity_rl.decoding import DecodeMemoryError, generate
from gravity_rl.evaluate import EvaluateConfig, evaluate, main, prompt_batches
from gravity_rl.joint.drafter import require_drafter
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.metrics import DECODINGS
from gravity_rl.model import ModelError, load_model, load_ocr_processor, resolve_checkpoint
from gravity_rl.parsing import ConfigError
from gravity_rl.reading import Method, RowNoise
from gravity_rl.run_config import ModelArguments
from gravity_rl.synth.__main__ import write_split
from gravity_rl.synth.knobs import PRESETS
from rewards import RewardConfig

FOLDER = resolve_checkpoint("shipped:tiny")
DRAFTER = require_drafter(FOLDER)
METHODS = {
    "transformers": Method("transformers", drafter=DRAFTER),
    "ar": Method("ar", drafter=DRAFTER),
    "self_spec": Method("self_spec", 8, DRAFTER),
}
Evaluate = Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Crops of the kind that the model was trained to read."""
    folder = tmp_path_factory.mktemp("held_out")
    return write_split(folder, "heldout", {"text": 2, "table": 2, "formula": 2}, 0, PRESETS["tiny"])


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    return load_model(FOLDER, ModelArguments(model_name_or_path="shipped:tiny")), load_ocr_processor(FOLDER)


@pytest.fixture(scope="module")
def dataset(held_out: Path) -> Any:
    return load_ocr_dataset(DataConfig(eval_data=[str(held_out)]), split="eval", seed=0)


@pytest.fixture(scope="module")
def run(policy: tuple[Any, Any], dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> Evaluate:
    file = tmp_path_factory.mktemp("predictions") / "predictions.parquet"

    def evaluate_held_out(method: Method, **overrides: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        settings = {"seed": 0, "batch_size": 6, "max_new_tokens": 80} | overrides
        result = evaluate(*policy, dataset, RewardConfig(), predictions_file=file, method=method, **settings)
        return result, pq.read_table(file).to_pylist()

    return evaluate_held_out


def test_all_engines_give_the_same_predictions_and_rewards(run: Evaluate) -> None:
    (stock, predictions), (plain, of_plain), (drafted, of_drafted) = (run(METHODS[name]) for name in METHODS)
    assert predictions == of_plain == of_drafted
    assert len({row["completion"] for row in predictions}) > 6
    assert "decoding" not in stock
    costs = drafted.pop("decoding")
    assert plain.pop("decoding")["rollout"] == "ar" and costs["rollout"] == "self_spec"
    assert stock == plain == drafted
    for decoding in DECODINGS:
        assert costs[decoding]["all"]["tokens_per_round"] > 1.5
        assert {"all", "text", "table", "formula"} <= costs[decoding].keys()
        assert costs[decoding]["prefills"] == 6


def test_batches_and_limits_do_not_matter_to_the_engines(run: Evaluate) -> None:
    expected = run(METHODS["transformers"], max_new_tokens=9)[1]
    assert any(row["truncated"] for row in expected)
    for name in ("ar", "self_spec"):
        assert run(METHODS[name], max_new_tokens=9, batch_size=4)[1] == expected


def test_the_noise_makes_stock_generation_draw_the_decoders_samples(policy: tuple[Any, Any], dataset: Any) -> None:
    model, processor = policy
    ends, banned = decoding_tokens(model, processor, DRAFTER.mask_id)
    rows, inputs = next(iter(prompt_batches(processor, dataset, range(6), 6, {})))
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=60, eos_token_id=ends, suppress_tokens=banned,
        pad_token_id=processor.tokenizer.pad_token_id, disable_compile=True,
    )  # fmt: skip
    noise = RowNoise(7, rows, torch.device("cpu"))
    with torch.no_grad():
        stock = model.generate(**inputs, generation_config=settings, logits_processor=LogitsProcessorList([noise]))
    out = generate(
        model, inputs, method="ar", max_new_tokens=60, eos_token_ids=ends, banned_token_ids=banned, seed=7, row_ids=rows
    )
    for ours, row in zip(out.sequences, stock[:, inputs["input_ids"].size(1) :], strict=True):
        assert ours.tolist() == row[: len(ours)].tolist()
        assert len(ours) > 1
        assert row[len(ours) :].eq(processor.tokenizer.pad_token_id).all()


def test_a_mask_token_that_is_the_end_token_is_the_drafters_fault(policy: tuple[Any, Any]) -> None:
    end = policy[1].tokenizer.eos_token_id
    with pytest.raises(ModelError, match=f"block_diffusion.json: mask_id {end} is the end token"):
        decoding_tokens(*policy, end)


def test_damaged_weights_and_too_little_memory_are_named(
    run: Evaluate, policy: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = policy[0].get_output_embeddings().weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    try:
        with pytest.raises(ModelError, match=r"crops .*: .* the weights are damaged, or training has diverged"):
            run(METHODS["ar"])
    finally:
        with torch.no_grad():
            weight.copy_(kept)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise DecodeMemoryError("lower max_live_rows")

    monkeypatch.setattr("gravity_rl.reading.generate", fail)
    with pytest.raises(ModelError, match="evaluation_batch_size: 6 crops at once are too many"):
        run(METHODS["ar"])


def test_command_line_drafts_by_default(
    held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path
) -> None:
    arguments = ["--eval_data", str(held_out), "--use_cpu", "--max_completion_length", "40", "--output_dir"]
    model = ["--model_name_or_path", "shipped:tiny"]
    assert main([*model, *arguments, str(tmp_path / "a")]) == 0
    printed = capsys.readouterr().out
    assert "self_spec, sampled: " in printed and "tokens per round" in printed
    drafted = json.loads((tmp_path / "a/evaluation.json").read_text())
    assert drafted["decoding"]["greedy"]["all"]["tokens_per_round"] > 1
    assert main([*model, "--rollout", "transformers", *arguments, str(tmp_path / "b")]) == 0
    assert json.loads((tmp_path / "b/evaluation.json").read_text()) == {k: drafted[k] for k in DECODINGS}
    capsys.readouterr()
    untrained = ["--model_name_or_path", str(tiny_checkpoint), "--rollout", "self_spec"]
    assert main([*untrained, *arguments, str(tmp_path / "c")]) == 2
    assert "has no block_diffusion.json" in capsys.readouterr().err


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="rollout: 'vllm' is unknown; choose one of transformers, ar, self_spec"):
        EvaluateConfig(rollout="vllm")
