"""Runs of the real entry points in processes of their own.

Importing torch, transformers and TRL takes longer than such a run. A fork server therefore imports them once;
every run is a fork of it: a process that can be killed, not a thread or a mock.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["gravity_rl.train", "gravity_rl.adapt"])
# Entry point -> its module and its trainer.
ENTRIES = {
    "train": ("gravity_rl.train", "gravity_rl.trainer", "GravityTrainer"),
    "adapt": ("gravity_rl.adapt", "gravity_rl.joint.trainer", "JointTrainer"),
}

TIMEOUT = 300.0  # seconds; a run takes a few, but the machine may be busy
TIMINGS = ("step_time", "tokens_per_second")
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 24,
    "max_steps": 6,
    "save_steps": 2,
    "learning_rate": 1e-3,
    "optim": "adamw_torch",
    "bf16": "false",
    "use_cpu": "true",
    "report_to": "none",
    "mask_truncated_completions": "false",
}


def arguments(model: Path, data: Path, output_dir: Path, **settings: Any) -> list[str]:
    """Command-line arguments of a run of six steps, 2 prompts x 4 completions each."""
    values = {"model_name_or_path": model, "train_data": data, "output_dir": output_dir} | SETTINGS | settings
    return [argument for name, value in values.items() for argument in (f"--{name}", str(value))]


JOINT_SETTINGS: dict[str, Any] = {
    "max_steps": 6,
    "gradient_accumulation_steps": 1,
    "row_tokens": 150,
    "max_response_tokens": 60,
    "block_size": 4,
    "learning_rate": 1e-2,
    "vision_learning_rate": 1e-2,
    "warmup_steps": 0,
    "optim": "adamw_torch",
    "bf16": "false",
    "use_cpu": "true",
    "report_to": "none",
    "evaluation_max_new_tokens": 12,
}


def joint_arguments(model: Path, data: Path, output_dir: Path, **settings: Any) -> list[str]:
    """Command-line arguments of a joint training of six steps, one row of about three samples each."""
    values = {"model_name_or_path": model, "train_data": data, "output_dir": output_dir} | JOINT_SETTINGS | settings
    return [argument for name, value in values.items() for argument in (f"--{name}", str(value))]


Event = tuple[str, int, signal.Signals | OSError]


class Run:
    """One launch of an entry point in a forked process.

    Args:
        argv: command-line arguments.
        log: file for what the process prints.
        event: ``(method, step, what)``: when the process enters the method of the trainer with that
            many optimizer steps done, it sends itself the signal `what`, or raises the error `what`. Method
            ``_commit`` means the moment before a finished checkpoint gets its name.
        rank: environment of one of several processes, see `start_ranks`.
        scripted: completions follow from step and position in the global batch, not from the model.
        entry: one of ``ENTRIES``.
    """

    def __init__(
        self,
        argv: list[str],
        log: Path,
        *,
        event: Event | None = None,
        rank: dict[str, str] | None = None,
        scripted: bool = False,
        entry: str = "train",
    ):
        self.log = log
        self.process = CONTEXT.Process(target=_run, args=(argv, str(log), event, rank or {}, scripted, entry))
        self.process.start()

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Exit status; the negative signal number if a signal ended the process."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"still running after {timeout} s:\n{self.output()}")
        return self.process.exitcode

    def output(self) -> str:
        """Everything that launches with this log have printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def start_ranks(
    argv: list[str],
    log: Path,
    count: int,
    *,
    events: dict[int, Event] | None = None,
    scripted: bool = False,
    entry: str = "train",
) -> list[Run]:
    """The processes of one distributed run, with the environment that torch's launcher gives them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    return [
        Run(
            argv,
            log.with_suffix(f".{rank}.log"),
            event=(events or {}).get(rank),
            scripted=scripted,
            entry=entry,
            rank=common | {"MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]


def wait_all(runs: list[Run]) -> list[int]:
    """Exit statuses of the processes of one distributed run; none of them outlives a timeout."""
    try:
        return [run.wait() for run in runs]
    finally:
        for run in runs:
            run.process.kill()


def _run(argv: list[str], log: str, event: Event | None, rank: dict[str, str], scripted: bool, entry: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(rank)
    import torch

    torch.set_num_threads(1)
    entry_module, trainer_module, trainer_name = ENTRIES[entry]
    trainer = getattr(importlib.import_module(trainer_module), trainer_name)
    if event is not None:
        _plan(trainer, *event)
    if scripted:
        _script_completions()
    _print_weights_at_the_end(trainer)
    sys.exit(importlib.import_module(entry_module).main(argv))


def _print_weights_at_the_end(trainer: Any) -> None:
    """Have this process print a hash of its own copy of the weights after training."""
    save_final = trainer.save_final

    def print_and_save(self: Any, path: Path) -> None:
        digest = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        ranks = f"rank {self.args.process_index} of {self.args.world_size}"
        print(f"weights of {ranks}: {digest.hexdigest()}", flush=True)
        save_final(self, path)

    trainer.save_final = print_and_save


def _script_completions() -> None:
    from gravity_rl.trainer import GravityTrainer

    def scripted(self: GravityTrainer, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        first = self.args.process_index * len(prompt_ids)
        completions = []
        for index in range(first, first + len(prompt_ids)):
            source = random.Random(f"{self.state.global_step}/{index}")
            words = source.choice(["word", "<table><tr><td>", "x^{"]) + str(source.randrange(100))
            ids = self._tokenizer(words, add_special_tokens=False)["input_ids"]
            completions.append([*ids, self._tokenizer.eos_token_id])
        return completions, None

    GravityTrainer._generate_single_turn = scripted  # type: ignore[method-assign]


def _plan(trainer: Any, method: str, step: int, what: signal.Signals | OSError) -> None:
    from gravity_rl import checkpoint

    def happen() -> None:
        if isinstance(what, OSError):
            raise what
        os.kill(os.getpid(), what)

    if method == "_commit":
        commit = checkpoint._commit

        def commit_or_die(staging: Path, final: Path) -> None:
            if final.name == f"checkpoint-{step}":
                happen()
            commit(staging, final)

        checkpoint._commit = commit_or_die
        return
    original = getattr(trainer, method)

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step:
            happen()
        return original(self, *args, **kwargs)

    setattr(trainer, method, interrupted)


def metrics_without_timings(run: Path) -> list[dict[str, Any]]:
    """Lines of ``metrics.jsonl``, without what a clock has measured."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = (json.loads(line) for line in lines)
    return [{name: value for name, value in record.items() if name not in TIMINGS} for record in records]
