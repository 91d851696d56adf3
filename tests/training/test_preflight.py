"""Batch arithmetic names what would work, and a dry run is one real step that leaves nothing behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravity_rl.dry_run import SCRATCH
from gravity_rl.parsing import ConfigError
from gravity_rl.preflight import check_batch_arithmetic, check_prompt_count
from gravity_rl.train import main

MakeArgv = Callable[..., list[str]]


def settings(**values: Any) -> Any:
    """The settings that the checks look at, as given."""
    defaults = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4,
        "num_iterations": 1, "steps_per_generation": None, "generation_batch_size": None, "save_steps": 2,
        "save_strategy": "steps", "max_steps": 4,
    }  # fmt: skip
    assert values.keys() <= defaults.keys()
    given = defaults | values
    return SimpleNamespace(**given, as_given=given)


def ways_out(message: str) -> list[dict[str, int]]:
    """The changes that an error message offers, each as setting → value."""
    offers = message.split("What would work")[1].split(":", 1)[1]
    return [
        {name: int(value)}
        for name, values in re.findall(r"(\w+) (\d+(?: or \d+)*)", offers)
        for value in values.split(" or ")
    ]


def refusal(config: Any, world_size: int) -> str | None:
    try:
        check_batch_arithmetic(config, world_size)
    except ConfigError as error:
        return str(error)
    return None


sizes = st.integers(min_value=1, max_value=30)


@given(sizes, sizes, st.integers(2, 30), st.integers(1, 16), st.none() | sizes)
def test_every_offered_value_works(
    per_device: int, accumulation: int, group: int, world_size: int, steps: int | None
) -> None:
    values: dict[str, Any] = {
        "per_device_train_batch_size": per_device, "gradient_accumulation_steps": accumulation,
        "num_generations": group, "steps_per_generation": steps,
    }  # fmt: skip
    # A step that takes a whole number of generations, so that only the division by groups is at stake.
    if steps is not None:
        values["gradient_accumulation_steps"] = steps
    message = refusal(settings(**values), world_size)
    total = per_device * world_size * values["gradient_accumulation_steps"]
    assert (message is None) == (total % group == 0)
    if message is None:
        return
    assert f"= {total} completions" in message
    offers = ways_out(message)
    assert {next(iter(offer)) for offer in offers} >= {"per_device_train_batch_size"}
    for offer in offers:
        if "steps_per_generation" in offer:
            offer["gradient_accumulation_steps"] = offer["steps_per_generation"]
        assert refusal(settings(**values | offer), world_size) is None, (message, offer)


@given(st.integers(1, 200), sizes, st.integers(2, 30), st.integers(1, 8))
def test_offered_generation_batches_work(total: int, per_device: int, group: int, world_size: int) -> None:
    values = {
        "generation_batch_size": total, "per_device_train_batch_size": per_device, "num_generations": group,
        "gradient_accumulation_steps": 1, "save_strategy": "no", "max_steps": -1,
    }  # fmt: skip
    message = refusal(settings(**values), world_size)
    if total % (per_device * world_size):
        assert message is not None
        for offer in ways_out(message):
            assert refusal(settings(**values | offer), world_size) is None, (message, offer)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 50), st.integers(1, 50))
def test_offered_checkpoint_intervals_work(
    steps: int, iterations: int, accumulation: int, save_steps: int, max_steps: int
) -> None:
    values: dict[str, Any] = {
        "steps_per_generation": steps, "num_iterations": iterations, "gradient_accumulation_steps": accumulation,
        "save_steps": save_steps, "max_steps": max_steps,
    }  # fmt: skip
    for _ in range(3):  # each message is about one setting: accumulation, save_steps, max_steps
        message = refusal(settings(**values), 1)
        if message is None:
            break
        offers = ways_out(message)
        assert offers
        values |= offers[-1]
    assert refusal(settings(**values), 1) is None
    micro_batches = values["max_steps"] * values["gradient_accumulation_steps"]
    assert micro_batches % (steps * iterations) == 0  # no completion is generated in vain


@pytest.mark.parametrize(
    ("changes", "world_size", "words"),
    [
        ({"num_generations": 28, "per_device_train_batch_size": 24, "gradient_accumulation_steps": 1}, 16,
         ["24 (per_device_train_batch_size) x 1 (gradient_accumulation_steps) x 16 (processes) = 384",
          "per_device_train_batch_size 21 or 28", "gradient_accumulation_steps 7", "num_generations 24 or 32"]),
        ({"generation_batch_size": 30}, 1, ["generation_batch_size 30 is not a multiple of 4",
                                            "generation_batch_size 28 or 32"]),
        ({"generation_batch_size": 8, "steps_per_generation": 2}, 1, ["set one of the two"]),
        ({"num_iterations": 2, "save_steps": 3}, 1, ["save_steps: 3 is not a multiple of 2", "save_steps 2 or 4"]),
        ({"num_iterations": 2, "save_steps": 0.25, "max_steps": 20}, 1, ["save_steps: 5", "save_steps 4 or 6"]),
        ({"num_iterations": 2, "max_steps": 5}, 1, ["max_steps: 5 is not a multiple of 2", "max_steps 4 or 6"]),
        ({"steps_per_generation": 3}, 1, ["serves 3 passes", "gradient_accumulation_steps 1 or 3"]),
        ({"num_generations": 1}, 1, ["num_generations: 1 is too small, the least is 2"]),
        ({"num_generations": None}, 1, ["num_generations is not set"]),
        ({"per_device_train_batch_size": 0}, 1, ["per_device_train_batch_size: 0 is too small"]),
    ],
)  # fmt: skip
def test_messages(changes: dict[str, Any], world_size: int, words: list[str]) -> None:
    message = refusal(settings(**changes), world_size)
    assert message is not None
    for part in words:
        assert part in message


def test_published_batch_on_sixteen_processes() -> None:
    """24 prompts x 28 completions: 42 on each of 16 processes, so that groups cross processes."""
    published = {"num_generations": 28, "save_steps": 50, "max_steps": 500}
    check_batch_arithmetic(
        settings(**published, per_device_train_batch_size=6, gradient_accumulation_steps=7), world_size=16
    )


def test_too_few_rows() -> None:
    config: Any = SimpleNamespace(generation_batch_size=8, num_generations=4)
    check_prompt_count(2, config)
    with pytest.raises(ConfigError, match=r"too few training rows: 1, but .* takes 2 prompts"):
        check_prompt_count(1, config)


def test_entry_point_explains_before_trl_does(
    make_argv: MakeArgv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(make_argv(num_generations=3)) == 2
    message = capsys.readouterr().err
    assert "per_device_train_batch_size 3 or 6" in message
    assert "num_generations 2 or 4" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["save_only_model", "ignore_data_skip", "sync_ref_model"])
def test_settings_that_would_break_resuming(name: str, make_argv: MakeArgv, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(make_argv(**{name: True})) == 2
    assert f"error: {name}: True is not supported: after resuming, " in capsys.readouterr().err


def test_dry_run_reports_and_leaves_nothing(
    make_argv: MakeArgv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Completions that serve two optimizer steps: the dry run takes both, as the checkpoint comes after."""
    argv = make_argv(dry_run=True, num_iterations=2, max_steps=100, save_steps=50, report_to="tensorboard")
    assert main(argv) == 0
    report = capsys.readouterr().out
    assert "dry run passed" in report
    assert "4 per device x 2 passes x 1 process = 8 completions a generation, 2 prompts x 4" in report
    assert "optimizer steps a generation: 2" in report
    rows = re.search(r"training rows: formula (\d+), table (\d+), text (\d+)", report)
    assert rows is not None
    assert sum(map(int, rows.groups())) == 50 * 2  # max_steps 100 in generations of two prompts for two steps
    phases = dict(re.findall(r"^    ([a-z -]+?) +(\d+\.\d\d)$", report, flags=re.MULTILINE))
    assert phases.keys() == {
        "generate", "score", "reference log-probabilities", "forward and backward", "optimizer",
        "save checkpoint",
    }  # fmt: skip
    total = re.search(r"\((\d+\.\d) in all\)", report)
    assert total is not None
    assert 0 < sum(map(float, phases.values())) <= float(total.group(1)) + 0.1
    memory = re.search(r"peak memory of a process: (\d+\.\d\d) GiB", report)
    assert memory is not None and 0.1 < float(memory.group(1)) < 100
    assert "estimate for 100 steps and 2 checkpoints" in report
    assert not (tmp_path / "run").exists()


def test_failing_dry_run_leaves_an_earlier_run_alone(
    make_argv: MakeArgv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps({"step": 1}))

    def fail(*args: Any) -> None:
        assert (tmp_path / "run" / SCRATCH).is_dir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gravity_rl.checkpoint._commit", fail)
    assert main(make_argv(dry_run=True)) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


def test_dry_run_checks_that_references_score_one(
    make_argv: MakeArgv, crops: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in crops.train.read_text().splitlines()]
    rows[1] |= {"reference": "no table at all", "image": str(crops.train.with_name(rows[1]["image"]))}
    file = crops.train.with_name("unscorable.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(make_argv(dry_run=True, train_data=file)) == 2
    assert f"{file}:2: reference: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
