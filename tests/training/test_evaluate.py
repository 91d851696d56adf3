"""Held-out evaluation: a true sampler, reproducible, independent of batches, and without side effects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from gravity_rl.config import ModelArguments
from gravity_rl.data import load_ocr_dataset
from gravity_rl.data.config import DataConfig
from gravity_rl.evaluate import EvaluateConfig, evaluate, main
from gravity_rl.metrics import format_results
from gravity_rl.model import load_model, load_ocr_processor
from gravity_rl.parsing import ConfigError
from gravity_rl.reading import RowNoise
from rewards import RewardConfig, score

Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def policy(tiny_checkpoint: Path) -> tuple[Any, Any]:
    arguments = ModelArguments(model_name_or_path=str(tiny_checkpoint))
    return load_model(tiny_checkpoint, arguments), load_ocr_processor(tiny_checkpoint)


@pytest.fixture(scope="module")
def run(policy: tuple[Any, Any], crops: Any) -> Evaluate:
    dataset = load_ocr_dataset(DataConfig(eval_data=[str(crops.held_out)]), split="eval", seed=0)

    def evaluate_held_out(**overrides: Any) -> dict[str, Any]:
        settings = {"seed": 0, "batch_size": 4, "max_new_tokens": 16} | overrides
        return evaluate(*policy, dataset, RewardConfig(), **settings)

    return evaluate_held_out


def predictions(run: Evaluate, file: Path, **overrides: Any) -> list[dict[str, Any]]:
    run(predictions_file=file, **overrides)
    return pq.read_table(file).to_pylist()


def test_result_matches_the_predictions(run: Evaluate, tmp_path: Path) -> None:
    result = run(predictions_file=tmp_path / "p.parquet")
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert len(rows) == 2 * 6
    for decoding in ("sampled", "greedy"):
        of_decoding = [row for row in rows if row["decoding"] == decoding]
        assert [row["row"] for row in of_decoding] == list(range(6))
        mean = sum(row["reward"] for row in of_decoding) / 6
        assert result[decoding]["all"]["reward"] == pytest.approx(mean)
        assert result[decoding]["all"]["crops"] == 6
        assert set(result[decoding]) == {"all", "text", "table", "formula"}
        assert "teds_s" in result[decoding]["table"]
    for row in rows:
        assert row["reward"] == score(row["task"], row["completion"], row["reference"]).value
        assert json.loads(row["parts"])["gate"] <= 1
        assert row["truncated"] == (row["length"] == 16 and row["truncated"])


def test_samples_depend_on_the_seed_and_not_on_the_batch(run: Evaluate, tmp_path: Path) -> None:
    first = predictions(run, tmp_path / "a", batch_size=6)
    assert predictions(run, tmp_path / "b", batch_size=6) == first
    assert predictions(run, tmp_path / "c", batch_size=2) == first
    other = predictions(run, tmp_path / "d", batch_size=6, seed=1)
    changed = {row["decoding"] for row, before in zip(other, first, strict=True) if row != before}
    assert changed == {"sampled"}


def test_no_side_effects_on_random_state_or_training_mode(run: Evaluate, policy: tuple[Any, Any]) -> None:
    model = policy[0]
    model.train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run()
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    model.eval()


def test_noise_makes_argmax_a_sample_of_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, float("-inf")])
    draws = 20_000
    noise = RowNoise(0, range(draws), torch.device("cpu"))
    tokens = noise(torch.empty(draws, 0), logits.repeat(draws, 1)).argmax(dim=1)
    counts = Counter(tokens.tolist())
    expected = logits.softmax(dim=0)
    for token, probability in enumerate(expected.tolist()):
        deviation = (probability * (1 - probability) / draws) ** 0.5
        assert abs(counts[token] / draws - probability) <= 4 * deviation
    again = noise(torch.empty(draws, 0), logits.repeat(draws, 1)).argmax(dim=1)
    assert not torch.equal(again, tokens), "a row's next position must see fresh noise"


def test_table_of_results_has_a_line_for_each_task(run: Evaluate) -> None:
    result = run()
    lines = format_results({"before": result, "after": result}).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["formula", "table", "text", "all"]
    assert "sampled before" in lines[0] and "greedy after" in lines[0]


def test_command_line_writes_the_result(
    tiny_checkpoint: Path, crops: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--model_name_or_path", str(tiny_checkpoint), "--eval_data", str(crops.held_out), "--use_cpu",
        "--max_completion_length", "8", "--output_dir", str(tmp_path / "out"),
    ]  # fmt: skip
    assert main(arguments) == 0
    result = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert result["greedy"]["all"]["crops"] == 6
    assert "held-out reward" in capsys.readouterr().out
    assert main([*arguments, "--no_such_option", "1"]) == 2
    (tmp_path / "file").touch()
    assert main([*arguments[:-1], str(tmp_path / "file")]) == 2
    assert "cannot be made a folder" in capsys.readouterr().err
    assert main([*arguments[:2], "--use_cpu"]) == 2
    assert "eval_data names no source" in capsys.readouterr().err


@pytest.mark.parametrize(
    "values",
    [{"output_dir": ""}, {"max_completion_length": 0}, {"evaluation_batch_size": 0}, {"evaluation_seed": -1}],
)
def test_impossible_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        EvaluateConfig(**values)
