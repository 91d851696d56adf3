"""The trainer, on a very small model: what it logs and records, how it treats rewards, what it refuses."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerState

from gravity_rl.config import RunConfig
from gravity_rl.metrics import Rollout, rollout_metrics
from gravity_rl.parsing import ConfigError
from gravity_rl.recorder import RunDirectory, read_metrics, read_rollouts
from gravity_rl.reward_functions import RewardError, checked_reward, load_reward_functions
from gravity_rl.train import build_trainer, main, train
from gravity_rl.trainer import GravityTrainer
from rewards import score

MakeConfig = Callable[..., RunConfig]


def first_letter(completions: list[Any], **columns: Any) -> list[float]:
    """A reward that differs within any group of different completions."""
    return [len(completion[0]["content"]) / 100 for completion in completions]


def nan_for_tables(completions: list[Any], task: list[str], **columns: Any) -> list[float]:
    return [math.nan if name == "table" else 0.5 for name in task]


def none_for_formulas(completions: list[Any], task: list[str], **columns: Any) -> list[float | None]:
    return [None if name == "formula" else 0.5 for name in task]


def infinite(completions: list[Any], **columns: Any) -> list[float]:
    return [math.inf] * len(completions)


def raises(completions: list[Any], **columns: Any) -> list[float]:
    raise KeyError("score")


async def raises_async(completions: list[Any], **columns: Any) -> list[float]:
    raise KeyError("score")


def one_too_few(completions: list[Any], **columns: Any) -> list[float]:
    return [0.5] * (len(completions) - 1)


def nothing(completions: list[Any], **columns: Any) -> None:
    return None


def strings(completions: list[Any], **columns: Any) -> list[str]:
    return ["0.5"] * len(completions)


def mixed(completions: list[Any], **columns: Any) -> list[Any]:
    return [True, 0.5, torch.tensor(0.25), None]


NOT_CALLABLE = 1.0


def build(config: RunConfig) -> GravityTrainer:
    return build_trainer(config, RunDirectory(Path(config.training.output_dir)))[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The directory of a finished run of two steps with a second reward function beside the OCR reward."""
    from gravity_rl.config import parse_config

    checkpoint = request.getfixturevalue("tiny_checkpoint")
    crops = request.getfixturevalue("crops")
    folder = tmp_path_factory.mktemp("finished") / "run"
    text = f"""
model_name_or_path: {checkpoint}
train_data: [{crops.train}]
eval_data: [{crops.held_out}]
output_dir: {folder}
use_cpu: true
bf16: false
optim: adamw_torch
learning_rate: 1e-3
max_steps: 2
per_device_train_batch_size: 4
gradient_accumulation_steps: 3
num_generations: 4
max_completion_length: 24
reward_functions: [ocr, "test_trainer:first_letter"]
reward_weights: [1.0, 0.5]
"""
    file = folder.parent / "run.yaml"
    file.write_text(text, encoding="utf-8")
    assert train(parse_config(["--config", str(file)])) == 0
    return folder


def test_run_directory_is_complete(finished: Path) -> None:
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    assert {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "rollouts/step_000001.parquet",
        "rollouts/step_000002.parquet",
        "evaluation/before.json",
        "evaluation/before.parquet",
        "evaluation/after.json",
        "evaluation/after.parquet",
        "checkpoint-2/model.safetensors",
        "final/model.safetensors",
        "final/processor_config.json",
        "final/tokenizer.json",
        "final/chat_template.jinja",
    } <= names
    assert any(name.startswith("tensorboard/events") for name in names)


def test_rollouts_hold_every_completion_with_its_reward(finished: Path) -> None:
    rows = read_rollouts(finished).to_pylist()
    assert len(rows) == 2 * 3 * 4
    for row in rows:
        rewards, parts = json.loads(row["rewards"]), json.loads(row["parts"])
        expected = score(row["task"], row["completion"], row["reference"])
        assert rewards["ocr"] == pytest.approx(expected.value, abs=1e-7)
        assert rewards["first_letter"] == pytest.approx(len(row["completion"]) / 100)
        assert row["reward"] == pytest.approx(rewards["ocr"] + 0.5 * rewards["first_letter"], abs=1e-6)
        assert parts == {name: float(value) for name, value in expected.parts.items()}
        assert 1 <= row["length"] <= 24
        assert row["length"] == 24 or not row["truncated"]


def test_advantages_are_standardised_within_each_group(finished: Path) -> None:
    groups: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in read_rollouts(finished).to_pylist():
        groups[row["step"], row["prompt_id"]].append(row)
    assert len(groups) == 2 * 3
    for rows in groups.values():
        assert len({row["id"] for row in rows}) == 1
        rewards = [row["reward"] for row in rows]
        mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
        for row in rows:
            assert row["advantage"] == pytest.approx((row["reward"] - mean) / (deviation + 1e-4), abs=1e-4)


def test_metrics_agree_with_the_rollouts(finished: Path) -> None:
    lines = read_metrics(finished)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        rows = [row for row in read_rollouts(finished).to_pylist() if row["step"] == line["step"]]
        assert line["reward"] == pytest.approx(statistics.fmean(row["reward"] for row in rows), abs=1e-6)
        for task in {row["task"] for row in rows}:
            of_task = [row for row in rows if row["task"] == task]
            values = [row["reward"] for row in of_task]
            assert line[f"rewards/{task}/mean"] == pytest.approx(statistics.fmean(values))
            assert line[f"rewards/{task}/std"] == pytest.approx(statistics.pstdev(values))
            truncated = statistics.fmean(row["truncated"] for row in of_task)
            assert line[f"{task}/truncated"] == pytest.approx(truncated)
            gates = [json.loads(row["parts"])["gate"] for row in of_task]
            assert line[f"{task}/gate"] == pytest.approx(statistics.fmean(gates))
            assert line[f"{task}/gated"] == statistics.fmean(gate < 1 for gate in gates)
    assert "table/teds_s" in {name for line in lines for name in line}


def test_training_changes_the_weights_and_saves_them(finished: Path, tiny_checkpoint: Path) -> None:
    from safetensors.torch import load_file

    before = load_file(tiny_checkpoint / "model.safetensors")
    after = load_file(finished / "final" / "model.safetensors")
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_task_metrics_of_a_known_set() -> None:
    def rollout(prompt_id: int, reward: float, gate: float = 1.0, truncated: bool = False) -> Rollout:
        return Rollout(
            step=1, id="a", source="s", task="table", prompt_id=prompt_id, completion="", reference="",
            reward=reward, rewards={"ocr": reward}, parts={"gate": gate, "teds_s": reward}, length=10,
            truncated=truncated,
        )  # fmt: skip

    rollouts = [rollout(0, 0.5), rollout(0, 0.5), rollout(1, 0.0, gate=0.2, truncated=True), rollout(1, 1.0)]
    assert rollout_metrics(rollouts) == {
        "rewards/table/mean": 0.5,
        "rewards/table/std": pytest.approx(math.sqrt(0.125)),
        "table/length": 10.0,
        "table/truncated": 0.25,
        "table/zero_variance_groups": 0.5,
        "table/gate": pytest.approx(0.8),
        "table/teds_s": 0.5,
        "table/gated": 0.25,
    }


def test_same_seed_gives_the_same_run(make_config: MakeConfig, tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        train(make_config(output_dir=tmp_path / name))
        runs.append(read_rollouts(tmp_path / name).to_pylist())
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("function", "value", "task"),
    [("nan_for_tables", "nan", "table"), ("none_for_formulas", "nan", "formula"), ("infinite", "inf", "")],
)
def test_reward_that_is_no_number_stops_the_run_with_the_rollouts_saved(
    make_config: MakeConfig, function: str, value: str, task: str
) -> None:
    config = make_config(reward_functions=["ocr", f"test_trainer:{function}"], max_steps=3)
    with pytest.raises(RewardError) as caught:
        train(config)
    message = str(caught.value)
    assert f"reward function '{function}' returned {value}" in message
    rows = read_rollouts(Path(config.training.output_dir)).to_pylist()
    assert len(rows) % 8 == 0
    bad = [row for row in rows if json.loads(row["rewards"])[function] is None]
    assert bad and bad[0]["advantage"] is None and bad[0]["reward"] is None
    assert f"for row {bad[0]['id']!r} of task {bad[0]['task']!r}" in message
    assert task in ("", bad[0]["task"])
    assert str(Path(config.training.output_dir) / "rollouts") in message


def call(function: Callable[..., Any]) -> list[float | None]:
    checked = checked_reward(function)
    assert checked.__name__ == function.__name__
    values = checked(completions=["a", "b", "c", "d"], trainer_state=TrainerState(global_step=6), task=["text"] * 4)
    return asyncio.run(values) if asyncio.iscoroutine(values) else values


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, f"raised KeyError in step 7 ({__file__}, line "),
        (raises_async, f"raised KeyError in step 7 ({__file__}, line "),
        (one_too_few, "returned 3 values for 4 completions in step 7"),
        (nothing, "returned NoneType instead of a list of 4 numbers in step 7"),
        (strings, "returned str '0.5' as value 0 in step 7"),
    ],
)
def test_reward_function_that_fails_is_named(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(RewardError) as caught:
        call(function)
    assert f"reward function '{function.__name__}' {message}" in str(caught.value)


def test_rewards_in_any_usual_form_become_floats() -> None:
    assert call(mixed) == [1.0, 0.5, 0.25, None]


@pytest.mark.parametrize("name", ["raises_async", "strings"])
def test_reward_function_that_fails_is_a_user_error(
    make_argv: Callable[..., list[str]], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(make_argv(reward_functions=["ocr", f"test_trainer:{name}"])) == 2
    assert f"error: reward function '{name}' r" in capsys.readouterr().err


def test_shuffled_rewards_stay_within_their_group_and_the_record_stays_true(make_config: MakeConfig) -> None:
    config = make_config(shuffle_rewards=True, reward_functions=["test_trainer:first_letter"])
    train(config)
    rows = read_rollouts(Path(config.training.output_dir)).to_pylist()
    moved = 0
    for row in rows:
        assert row["reward"] == pytest.approx(len(row["completion"]) / 100, abs=1e-6)
    for step in (1, 2):
        for prompt_id in (0, 1):
            group = [row for row in rows if (row["step"], row["prompt_id"]) == (step, prompt_id)]
            rewards = [row["reward"] for row in group]
            mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
            true = [(reward - mean) / (deviation + 1e-4) for reward in rewards]
            given = [row["advantage"] for row in group]
            assert sorted(given) == pytest.approx(sorted(true), abs=1e-4)
            moved += given != pytest.approx(true, abs=1e-4)
    assert moved > 0


def test_each_generation_of_a_step_shuffles_in_its_own_order(make_config: MakeConfig) -> None:
    trainer = build(make_config(shuffle_rewards=True))
    rewards = torch.arange(16.0)[:, None].repeat(1, 2)
    orders = []
    for generation in ((0, 0), (0, 1), (1, 0), (0, 0)):
        trainer._last_generation = generation
        shuffled = trainer._shuffled(rewards)
        assert torch.equal(shuffled[:, 0], shuffled[:, 1])
        orders.append(shuffled[:, 0].tolist())
    assert len({tuple(order) for order in orders[:3]}) == 3
    assert orders[3] == orders[0]


def test_special_tokens_are_never_sampled(make_config: MakeConfig) -> None:
    trainer = build(make_config())
    tokenizer = trainer.processing_class.tokenizer
    banned = set(trainer.generation_config.suppress_tokens)
    names = ("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|mask|>", "<|pad|>")
    assert set(tokenizer.convert_tokens_to_ids(list(names))) <= banned
    assert tokenizer.eos_token_id not in banned
    head = trainer.model.get_output_embeddings().weight
    with torch.no_grad():
        head.zero_()
        head[sorted(banned)] = 5.0 * torch.sign(torch.randn(head.size(1)))
    rows = [trainer.train_dataset[index] for index in (0, 0, 0, 0, 1, 1, 1, 1)]
    output = trainer._generate_and_score_completions(rows)
    sampled = output["completion_ids"][output["completion_mask"].bool()]
    assert not banned & set(sampled.tolist())


def test_generation_in_chunks_gives_every_prompt_its_own_images(make_config: MakeConfig) -> None:
    trainer = build(make_config())
    trainer.model.eval()
    trainer.generation_config.do_sample = False
    rows = [trainer.train_dataset[index] for index in range(4)]
    from trl.data_utils import prepare_multimodal_messages

    prompts = [prepare_multimodal_messages(row["prompt"], images=[row["image"]]) for row in rows]
    whole = trainer._generate(prompts)[1]
    assert len(set(map(tuple, whole))) > 1, "the completions have to depend on the image"
    for size in (1, 3):
        trainer.args.rollout_batch_size = size
        assert trainer._generate(prompts)[1] == whole


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("length", "neither `ocr` nor of the form package.module:name"),
        ("no_such_module:f", "cannot import 'no_such_module:f': No module named"),
        ("test_trainer:no_such_function", "cannot import 'test_trainer:no_such_function'"),
        ("test_trainer:NOT_CALLABLE", "is not callable"),
    ],
)
def test_reward_functions_that_do_not_exist(make_config: MakeConfig, path: str, message: str) -> None:
    config = make_config(reward_functions=[path])
    with pytest.raises(ConfigError) as caught:
        load_reward_functions(config.training, config.rewards)
    assert message in str(caught.value)


def test_dry_run_leaves_nothing_behind(
    make_argv: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(make_argv(dry_run=True)) == 0
    assert "dry run passed" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_user_errors_are_one_line_and_a_non_zero_exit(
    make_argv: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(make_argv(train_data=tmp_path / "missing.jsonl")) == 2
    assert "missing.jsonl" in capsys.readouterr().err
    assert main(make_argv(model_name_or_path=tmp_path)) == 2
    assert "no config.json" in capsys.readouterr().err
    assert main(make_argv(num_generations=3)) == 2
    assert capsys.readouterr().err.startswith("error: batch sizes do not divide")
    assert main(["--config", "missing.yaml"]) == 2


def test_a_second_run_in_the_same_directory_is_refused(make_config: MakeConfig) -> None:
    train(make_config(max_steps=1))
    with pytest.raises(ConfigError, match="is not empty"):
        train(make_config(max_steps=1))
