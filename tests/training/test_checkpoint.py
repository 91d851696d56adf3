"""Atomic checkpoints and the choice of the one to resume from."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback
from trl import GRPOConfig

from gravity_rl.checkpoint import CheckpointError
from gravity_rl.grpo_checkpoint import CheckpointedGRPOTrainer
from gravity_rl.manifest import file_entry
from gravity_rl.parsing import ConfigError
from gravity_rl.resume import check_restart, check_settings, clean_run_directory, hold_run_directory, resolve_resume


def distinct_characters(completions: list[Any], **columns: Any) -> list[float]:
    return [len(set(completion[0]["content"])) / 10 for completion in completions]


class AtStepEnd(TrainerCallback):
    """Calls a function at the end of one step, before the checkpoint of that step."""

    def __init__(self, step: int, function: Callable[[], Any]):
        self.step, self.function = step, function

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.function()


def make_trainer(model: Path, output_dir: Path, *callbacks: TrainerCallback, **settings: Any) -> Any:
    prompt = [{"role": "user", "content": "Text Recognition:"}]
    rows = [{"prompt": prompt, "image": Image.new("RGB", (32, 32), (i * 60,) * 3)} for i in range(4)]
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "num_generations": 2,
        "max_completion_length": 4, "max_steps": 4, "save_steps": 1, "learning_rate": 1e-3, "use_cpu": True,
        "bf16": False, "report_to": "none", "gradient_checkpointing": False,
    }  # fmt: skip
    return CheckpointedGRPOTrainer(
        model=str(model),
        reward_funcs=distinct_characters,
        args=GRPOConfig(output_dir=str(output_dir), **(defaults | settings)),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoProcessor.from_pretrained(model),
        callbacks=list(callbacks),
        settings={"learning_rate": 1e-3},
    )


def names(output_dir: Path) -> list[str]:
    return sorted(path.name for path in output_dir.iterdir())


def load(folder: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder).state_dict()


def test_rotation_keeps_the_newest_and_nothing_else(tiny_checkpoint: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_checkpoint, tmp_path, save_total_limit=2)
    trainer.train()
    assert names(tmp_path) == [".staging", "checkpoint-3", "checkpoint-4"]
    assert not any((tmp_path / ".staging").iterdir())
    for name, weight in load(tmp_path / "checkpoint-4").items():
        assert torch.equal(weight, trainer.model.state_dict()[name])


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writes beyond `size` bytes of one file fail, as they do on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# The first fails in safetensors (weights), the second in torch.save (optimizer state, twice their size).
@pytest.mark.parametrize("share", [0.5, 1.5])
def test_disk_full_while_saving(share: float, tiny_checkpoint: Path, tmp_path: Path) -> None:
    size = int((tiny_checkpoint / "model.safetensors").stat().st_size * share)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))

    trainer = make_trainer(tiny_checkpoint, tmp_path, AtStepEnd(2, fill_disk))
    try:
        with pytest.raises(CheckpointError) as failure:
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    message = str(failure.value)
    assert f"could not write {tmp_path / 'checkpoint-2'}: " in message
    assert f"{tmp_path / 'checkpoint-1'} is intact" in message
    assert names(tmp_path) == [".staging", "checkpoint-1"]
    assert not any((tmp_path / ".staging").iterdir())
    load(tmp_path / "checkpoint-1")
    checkpoint = resolve_resume(tmp_path, "latest")
    assert checkpoint == tmp_path / "checkpoint-1"
    make_trainer(tiny_checkpoint, tmp_path).train(resume_from_checkpoint=str(checkpoint))
    assert "checkpoint-4" in names(tmp_path)


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_disk_full_while_completing(
    function: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayed allocation reports a full disk only when files are flushed."""

    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trainer = make_trainer(tiny_checkpoint, tmp_path, max_steps=1)
    monkeypatch.setattr(*{"fsync": (os, "fsync"), "rename": (Path, "rename")}[function], fail)
    with pytest.raises(CheckpointError, match=r"No space left on device.*no earlier checkpoint"):
        trainer.train()
    assert names(tmp_path) == [".staging"]


def test_final_model_replaces_the_old_one_only_when_complete(tiny_checkpoint: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_checkpoint, tmp_path)
    final = tmp_path / "final"
    trainer.save_final(final)
    before = (final / "model.safetensors").read_bytes()
    with torch.no_grad():
        trainer.model.lm_head.weight.add_(1.0)
    with file_size_limit(100_000), pytest.raises(CheckpointError, match="could not write"):
        trainer.save_final(final)
    assert (final / "model.safetensors").read_bytes() == before
    trainer.save_final(final)
    assert torch.equal(load(final)["lm_head.weight"], trainer.model.lm_head.weight)
    assert AutoProcessor.from_pretrained(final).image_processor is not None
    assert names(tmp_path) == [".staging", "final"]


def test_signal_waits_until_the_generation_is_used_up(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """With num_iterations 2, completions serve two steps; a checkpoint after the first would lose them."""
    callback = AtStepEnd(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    trainer = make_trainer(tiny_checkpoint, tmp_path, callback, num_iterations=2, max_steps=6, save_steps=6)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    trainer.train()
    assert trainer.stop_on_signal.stopped_by == signal.SIGTERM
    assert names(tmp_path) == [".staging", "checkpoint-4"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers

    resumed = make_trainer(tiny_checkpoint, tmp_path, num_iterations=2, max_steps=6, save_steps=6)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.stop_on_signal.stopped_by is None
    whole = make_trainer(tiny_checkpoint, tmp_path / "whole", num_iterations=2, max_steps=6, save_steps=6)
    whole.train()
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_checkpoint_within_a_generation_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_checkpoint, tmp_path, num_iterations=2)
    with pytest.raises(RuntimeError, match="checkpoint of step 1 would not hold all"):
        trainer.train()


def test_second_interrupt_stops_at_once(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        trainer.stop_on_signal._received_at -= 10.0  # as if ten seconds had passed
        os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer(tiny_checkpoint, tmp_path, AtStepEnd(2, interrupt_twice))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert names(tmp_path) == [".staging", "checkpoint-1"]


def test_forked_worker_dies_of_sigterm(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A worker forked during training inherits the handler and must not survive its own SIGTERM."""
    statuses = []
    read_end, write_end = os.pipe()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os.write(write_end, b"!")
            time.sleep(60)
            os._exit(0)
        os.read(read_end, 1)  # a signal during the fork itself would be lost
        os.kill(child, signal.SIGTERM)
        statuses.append(os.waitpid(child, 0)[1])

    trainer = make_trainer(tiny_checkpoint, tmp_path, AtStepEnd(1, fork), max_steps=2)
    trainer.train()
    assert [os.WTERMSIG(status) for status in statuses] == [signal.SIGTERM]
    assert trainer.stop_on_signal.stopped_by is None


def test_signal_at_the_last_step_is_no_interruption(tiny_checkpoint: Path, tmp_path: Path) -> None:
    callback = AtStepEnd(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    trainer = make_trainer(tiny_checkpoint, tmp_path, callback, max_steps=2)
    trainer.train()
    assert trainer.stop_on_signal.stopped_by is None


def test_finished_run_is_not_trained_further(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Step 3 of 3, in the middle of an epoch of four: what a kill during the last evaluation leaves."""
    make_trainer(tiny_checkpoint, tmp_path, max_steps=3).train()
    resumed = make_trainer(tiny_checkpoint, tmp_path, max_steps=3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == 3
    for name, weight in load(tmp_path / "checkpoint-3").items():
        assert torch.equal(weight, resumed.model.state_dict()[name])


# --- choosing a checkpoint ---


def fake_checkpoint(output_dir: Path, step: int, settings: dict[str, Any] | None = None) -> Path:
    folder = output_dir / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"x" * 10)
    manifest = {
        "global_step": step, "world_size": 2, "settings": settings or {}, "losses": [0.5, 0.0], "last_logged_step": 0,
        "metrics": {"reward": [0.5]}, "files": {"weights": file_entry(folder / "weights")},
    }  # fmt: skip
    (folder / "resume.json").write_text(json.dumps(manifest))
    return folder


def test_latest_is_the_last_by_number(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        fake_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    for value in ("latest", "true", True):
        assert resolve_resume(tmp_path, value) == tmp_path / "checkpoint-10"
    assert resolve_resume(tmp_path, str(tmp_path / "checkpoint-10")) == tmp_path / "checkpoint-10"


def cut(folder: Path) -> None:
    (folder / "weights").write_bytes(b"x" * 9)


def zero(folder: Path) -> None:
    (folder / "weights").write_bytes(b"\0" * 10)


def remove(folder: Path) -> None:
    (folder / "weights").unlink()


def unlist(folder: Path) -> None:
    (folder / "resume.json").unlink()


def garble(folder: Path) -> None:
    (folder / "resume.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "checkpoint-4 is damaged: weights has 9 bytes instead of 10"),
        (zero, "checkpoint-4 is damaged: the content of weights is not what was saved"),
        (remove, "checkpoint-4 is incomplete: weights: No such file"),
        (unlist, "checkpoint-4 is no complete checkpoint"),
        (garble, "resume.json cannot be read"),
    ],
)
def test_damaged_checkpoint(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    fake_checkpoint(tmp_path, 2)
    damage(fake_checkpoint(tmp_path, 4))
    assert resolve_resume(tmp_path, "latest") == tmp_path / "checkpoint-2"
    with pytest.raises(ConfigError, match=message):
        resolve_resume(tmp_path, str(tmp_path / "checkpoint-4"))
    clean_run_directory(tmp_path, tmp_path / "checkpoint-2")
    assert names(tmp_path) == ["checkpoint-2", "damaged-checkpoint-4"]
    damage(fake_checkpoint(tmp_path, 4))
    clean_run_directory(tmp_path, tmp_path / "checkpoint-2")
    assert names(tmp_path) == ["checkpoint-2", "damaged-checkpoint-4", "damaged-checkpoint-4-2"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("global_step", "4"),
        ("world_size", True),
        ("settings", None),
        ("losses", [0.5]),
        ("losses", ["a", 0.0]),
        ("last_logged_step", 1.5),
        ("metrics", []),
        ("metrics", {"reward": 0.5}),
        ("files", {"weights": 10}),
    ],
)
def test_manifest_of_wrong_types(field: str, value: Any, tmp_path: Path) -> None:
    file = fake_checkpoint(tmp_path, 4) / "resume.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(ConfigError, match=rf"resume\.json: {field}.*: expected"):
        resolve_resume(tmp_path, str(file.parent))


def test_latest_before_the_first_checkpoint_is_the_beginning(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        assert resolve_resume(folder, "latest") is None
        check_restart(folder, {"seed": 1})
    (tmp_path / "config.yaml").write_text("seed: 1\nbetas: [1, 2]\nsave_steps: 5\n")
    assert resolve_resume(tmp_path, "latest") is None
    check_restart(tmp_path, {"seed": 1, "betas": (1, 2)})
    with pytest.raises(ConfigError, match=r"seed: 1 in config\.yaml, 2 now"):
        check_restart(tmp_path, {"seed": 2, "betas": (1, 2)})
    with pytest.raises(ConfigError, match="--resume_from_checkpoint latest"):
        resolve_resume(tmp_path, None)
    (tmp_path / "final").mkdir()
    with pytest.raises(ConfigError, match="no complete checkpoint in"):
        resolve_resume(tmp_path, "latest")


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint at"):
        resolve_resume(tmp_path, str(tmp_path / "checkpoint-7"))
    unlist(fake_checkpoint(tmp_path, 4))
    with pytest.raises(ConfigError, match="checkpoint-4 is damaged"):
        resolve_resume(tmp_path, "latest")


def test_new_run_needs_an_unused_directory(tmp_path: Path) -> None:
    assert resolve_resume(tmp_path / "missing", None) is None
    (tmp_path / ".lock").touch()
    assert resolve_resume(tmp_path, False) is None
    unlist(fake_checkpoint(tmp_path, 2))
    with pytest.raises(ConfigError, match=r"not empty \(checkpoint-2\).*delete it, or choose another"):
        resolve_resume(tmp_path, None)
    checkpoint = fake_checkpoint(tmp_path / "other", 2)
    with pytest.raises(ConfigError, match="not empty"):
        resolve_resume(tmp_path, str(checkpoint))
    assert resolve_resume(tmp_path / "missing", str(checkpoint)) == checkpoint


def test_differing_settings_are_listed(tmp_path: Path) -> None:
    checkpoint = fake_checkpoint(tmp_path, 2, {"seed": 1, "beta": 0.5, "betas": [1, 2], "gone": None})
    check_settings(checkpoint, {"seed": 1, "beta": 0.5, "betas": (1, 2), "gone": None}, world_size=2)
    with pytest.raises(ConfigError) as failure:
        check_settings(checkpoint, {"seed": 2, "beta": 0.5, "betas": (1, 2), "new": "x"}, world_size=1)
    assert "seed: 1 in the checkpoint, 2 now" in str(failure.value)
    assert "new: '(unset)' in the checkpoint, 'x' now" in str(failure.value)
    assert "processes: 2 in the checkpoint, 1 now" in str(failure.value)
    assert "beta" not in str(failure.value)


def test_run_directory_is_held_by_one_process(tmp_path: Path) -> None:
    with hold_run_directory(tmp_path / "run"):
        child = os.fork()
        if child == 0:  # a record lock does not exclude the process that holds it
            try:
                with hold_run_directory(tmp_path / "run", wait_seconds=0.0):
                    os._exit(0)
            except ConfigError as error:
                os._exit(7 if f"in use by process {os.getppid()}" in str(error) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with hold_run_directory(tmp_path / "run", wait_seconds=0.0):
        assert names(tmp_path / "run") == [".lock"]


def test_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for value in (None, str(fake_checkpoint(tmp_path / "run", 2))):
        with pytest.raises(ConfigError, match=r"no run directory: choose another output_dir$"):
            resolve_resume(tmp_path, value)
    with pytest.raises(ConfigError, match="no run directory"), hold_run_directory(tmp_path):
        pass
    assert names(tmp_path) == ["run", "thesis.tex"]
