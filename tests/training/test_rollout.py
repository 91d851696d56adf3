"""Rollout engines within a whole run: self-speculation changes how completions come about, and nothing else.

Runs of three steps, two prompts of four completions each, from the shipped checkpoint with its trained drafter, on the
CPU in fp32.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from conftest import Crops
from run_helpers import TIMINGS, arguments, start_ranks, wait_all
from safetensors.torch import load_file

from gravity_rl.config import parse_config
from gravity_rl.recorder import RunDirectory, read_metrics
from gravity_rl.rollout import Completions, Prompts
from gravity_rl.synth.__main__ import write_split
from gravity_rl.synth.knobs import PRESETS
from gravity_rl.train import build_trainer, train
from gravity_rl.trainer import GravityTrainer

COURSE = {"max_steps": 3, "save_steps": 1, "max_completion_length": 120, "learning_rate": 1e-4}
DRAFTED = {"rollout": "self_spec", "rollout_block_size": 8}
OF_THE_ENGINE = ("drafting/", "rollout/")


class Place:
    """A folder in which runs of the shipped model on the same crops take place."""

    def __init__(self, folder: Path, crops: Crops):
        self.folder, self.crops = folder, crops

    def argv(self, name: str, **settings: Any) -> list[str]:
        return arguments(Path("shipped:tiny"), self.crops.train, self.folder / name, **COURSE | settings)

    def run(self, name: str, **settings: Any) -> Path:
        """The directory of a finished run."""
        assert train(parse_config(self.argv(name, **settings))) == 0
        return self.folder / name

    def trainer(self, name: str, **settings: Any) -> GravityTrainer:
        return build_trainer(parse_config(self.argv(name, **settings)), RunDirectory(self.folder / name))[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """With crops of the kind that the model was trained to read, so that its completions have some length."""
    folder = tmp_path_factory.mktemp("rollout")
    counts = {"text": 2, "table": 2, "formula": 2}
    files = [write_split(folder, split, counts, 0, PRESETS["tiny"]) for split in ("train", "heldout")]
    return Place(folder, Crops(*files))


@pytest.fixture(scope="module")
def drafted(place: Place) -> Path:
    """A run with ``rollout: self_spec``."""
    return place.run("drafted", eval_data=place.crops.held_out, **DRAFTED)


@pytest.fixture(scope="module")
def plain(place: Place) -> Path:
    """The same run with ``rollout: ar``."""
    return place.run("plain", rollout="ar", eval_data=place.crops.held_out)


def rollouts(run: Path) -> list[dict[str, list[Any]]]:
    """Every column of every step's rollouts."""
    return [pq.read_table(file).to_pydict() for file in sorted((run / "rollouts").iterdir())]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Everything a run logs but what a clock has measured and what is about the engine."""
    return [
        {name: value for name, value in line.items() if name not in TIMINGS and not name.startswith(OF_THE_ENGINE)}
        for line in read_metrics(run)
    ]


def of_the_engine(run: Path, name: str) -> list[float]:
    return [line[name] for line in read_metrics(run)]


def test_a_run_with_self_speculation_equals_the_run_without_bit_for_bit(drafted: Path, plain: Path) -> None:
    assert rollouts(drafted) == rollouts(plain)  # completions, rewards, advantages
    assert metrics(drafted) == metrics(plain)  # loss, KL, gradient norm, entropy, ...
    for name in ("final", "checkpoint-1", "checkpoint-2"):
        weights, expected = (load_file(run / name / "model.safetensors") for run in (drafted, plain))
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[key], expected[key]) for key in expected), name
    for when in ("before", "after"):
        ours, theirs = (json.loads((run / f"evaluation/{when}.json").read_text()) for run in (drafted, plain))
        assert ours.pop("decoding")["rollout"] == "self_spec" and theirs.pop("decoding")["rollout"] == "ar"
        assert ours == theirs
    # ... and it did draft, was right, and took fewer forwards.
    accepted = [v for line in read_metrics(drafted) for k, v in line.items() if k.endswith("/acceptance")]
    assert len(accepted) >= 4 and min(accepted) > 0.3
    forwards, without = of_the_engine(drafted, "rollout/forwards"), of_the_engine(plain, "rollout/forwards")
    assert all(fewer < more for fewer, more in zip(forwards, without, strict=True))


def test_the_run_that_is_compared_learns_and_writes_more_than_one_thing(drafted: Path) -> None:
    before, after = (load_file(drafted / name / "model.safetensors") for name in ("checkpoint-1", "final"))
    assert any(not torch.equal(before[key], after[key]) for key in before)
    steps = rollouts(drafted)
    assert len({json.dumps(step["completion"]) for step in steps}) == 3
    assert len({value for step in steps for value in step["advantage"]}) > 3


def test_metrics_of_the_engine(drafted: Path, plain: Path) -> None:
    for line in read_metrics(drafted):
        tasks = {name.split("/")[1] for name in line if name.startswith("rewards/")} - {"ocr"}
        for task in tasks:
            assert line[f"drafting/{task}/tokens_per_round"] > 1
            assert 0 < line[f"drafting/{task}/accepted_share"] <= line[f"drafting/{task}/acceptance"] <= 1
            assert line[f"drafting/{task}/window"] == 8
            assert line[f"drafting/{task}/ar_share"] == 0
        assert line["rollout/prefills"] == 2  # two prompts for eight completions
        assert line["rollout/tokens_per_forward"] > 0
        assert {name for name in line if name.startswith("rollout/seconds/")} >= {"rollout/seconds/prefill"}
    for line in read_metrics(plain):
        assert {line[name] for name in line if name.endswith(("/tokens_per_round", "/ar_share"))} == {1}
        assert not [name for name in line if name.startswith("drafting/") and name.endswith("acceptance")]


def test_neither_chunks_nor_windows_change_a_run(place: Place, drafted: Path) -> None:
    run = place.run("chunks", rollout="self_spec", rollout_block_size="auto", rollout_batch_size=3)
    assert rollouts(run) == rollouts(drafted)
    assert metrics(run) == metrics(drafted)
    assert of_the_engine(run, "rollout/forwards") != of_the_engine(drafted, "rollout/forwards")


def test_a_resumed_run_draws_the_same(place: Place, drafted: Path) -> None:
    folder = place.folder / "resumed"
    shutil.copytree(drafted, folder)
    for name in ("checkpoint-2", "checkpoint-3", "final"):
        shutil.rmtree(folder / name)
    (folder / "evaluation/after.json").unlink()
    place.run("resumed", resume_from_checkpoint="latest", eval_data=place.crops.held_out, **DRAFTED)
    assert rollouts(folder) == rollouts(drafted)
    assert metrics(folder) == metrics(drafted)
    assert (folder / "final/model.safetensors").read_bytes() == (drafted / "final/model.safetensors").read_bytes()


def test_two_processes_draw_what_one_does(place: Place, drafted: Path) -> None:
    argv = place.argv("two", per_device_train_batch_size=2, **DRAFTED)
    runs = start_ranks(argv, place.folder / "two.log", 2)
    assert wait_all(runs) == [0, 0], runs[0].output() + runs[1].output()
    two, one = rollouts(place.folder / "two"), rollouts(drafted)
    assert [step["completion"] for step in two] == [step["completion"] for step in one]
    assert of_the_engine(place.folder / "two", "rollout/prefills") == [2, 2, 2]  # a prompt for each process


def test_generations_of_one_optimizer_step_differ(place: Place) -> None:
    """Two generations in each step: what is drawn follows from the step and the generation's number in it."""
    run = place.run("several", steps_per_generation=1, per_device_train_batch_size=4, max_steps=1, rollout="ar")
    first, second = rollouts(run)
    assert first["step"] == second["step"] == [1] * 4
    assert (first["prompt_id"], second["prompt_id"]) == ([0] * 4, [1] * 4)
    assert first["completion"] != second["completion"]
    assert None not in first["advantage"] + second["advantage"]
    trainer = place.trainer("seeds", rollout="ar", steps_per_generation=1)
    seeds: list[int] = []

    def record(prompts: Prompts, *, seed: int, row_ids: Any) -> Completions:
        seeds.append(seed)
        return Completions([[1] for _ in row_ids])

    trainer.engine.generate = record  # type: ignore[method-assign]
    for step in (0, 0, 1, 1, 0):
        trainer.state.global_step = step
        assert trainer._generate_single_turn([[1]], None, {}, 4) == ([[1]], None)
    assert len(set(seeds[:4])) == 4
    assert seeds[4] == seeds[0]


def test_train_mode_and_gradient_checkpointing_are_as_before(place: Place) -> None:
    trainer = place.trainer("modes", gradient_checkpointing="true", **DRAFTED)
    trainer.model.train()
    trainer.model.gradient_checkpointing_enable()
    trainer.model.model.visual.eval()
    modes = [module.training for module in trainer.model.modules()]
    rows = [trainer.train_dataset[0]] * 4
    output = trainer._generate_and_score_completions(rows)
    assert [module.training for module in trainer.model.modules()] == modes
    assert trainer.model.is_gradient_checkpointing
    assert output["completion_ids"].shape[0] == 4


def test_generation_runs_in_the_precision_of_the_training_forward(place: Place) -> None:
    (place.folder / "mixed").mkdir()
    trainer = place.trainer("mixed", rollout="self_spec", bf16="true", max_steps=1, save_strategy="no")
    seen: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    generating = False
    layer = trainer.model.model.language_model.layers[0].mlp
    layer.register_forward_hook(lambda module, args, output: seen[generating].add(output.dtype))
    generate = trainer.engine.generate

    def flagged(*args: Any, **kwargs: Any) -> Any:
        nonlocal generating
        generating = True
        try:
            return generate(*args, **kwargs)
        finally:
            generating = False

    trainer.engine.generate = flagged  # type: ignore[method-assign]
    trainer.train()
    assert seen == {True: {torch.bfloat16}, False: {torch.bfloat16}}
    assert trainer.model.dtype == torch.float32


@pytest.mark.parametrize("rollout", ["self_spec", "ar", "transformers"])
def test_special_tokens_are_banned_by_every_engine(place: Place, rollout: str) -> None:
    trainer = place.trainer(f"banned-{rollout}", rollout=rollout, max_completion_length=40)
    tokenizer = trainer.processing_class.tokenizer
    names = ("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|mask|>", "<|pad|>")
    banned = set(tokenizer.convert_tokens_to_ids(list(names)))
    assert banned <= set(trainer.args.generation_kwargs["suppress_tokens"])
    head = trainer.model.get_output_embeddings().weight
    with torch.no_grad():
        head.zero_()
        head[sorted(banned)] = 5.0 * torch.sign(torch.randn(head.size(1)))
    output = trainer._generate_and_score_completions([trainer.train_dataset[index] for index in (0, 0, 0, 0)])
    sampled = output["completion_ids"][output["completion_mask"].bool()]
    assert not banned & set(sampled.tolist())
