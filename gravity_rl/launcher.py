"""What the entry points share: how they start, and the launcher above them with a repair of one of its traps.

``accelerate launch --cpu --num_processes 2 script`` starts a single process and says nothing: its CPU path
leaves the fan-out to mpirun. The run would then use half of the intended batch.
:func:`start_missing_processes` notices and replaces the process by torch's launcher with the number of
workers that was asked for.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch
from accelerate.commands.config.config_args import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from transformers.utils.logging import disable_progress_bar

from gravity_rl.parsing import ConfigError

_ACCELERATE = ("accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate_cli.py")
_TORCH = ("torchrun", "torch.distributed.run")


def launchers() -> list[psutil.Process]:
    """The ancestors of this process that are ``accelerate launch`` or torchrun, nearest first."""
    names = _ACCELERATE + _TORCH
    return [process for process in psutil.Process().parents() if _position(process, names) is not None]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.AccessDenied, psutil.ZombieProcess, psutil.NoSuchProcess):
        return []


def _position(process: psutil.Process, names: tuple[str, ...]) -> int | None:
    """Where the program name stands in the command line: after the interpreter and its options at most."""
    for index, argument in enumerate(_command(process)[:4]):
        if Path(argument).name in names:
            return index
    return None


def start_missing_processes() -> None:
    """Replace this process by torch's launcher if ``accelerate launch`` started fewer processes than asked.

    Returns only if there is nothing to repair. To be called before anything touches an accelerator.

    Raises:
        ConfigError: several processes were asked for on a machine with fewer GPUs, or on several machines.
    """
    if torch.distributed.is_torchelastic_launched():
        return
    for process in launchers():
        position = _position(process, _ACCELERATE)
        if position is not None:
            count = missing_processes(_command(process)[position + 1 :], torch.cuda.device_count())
            if count > 1:
                _run_torch_launcher(count)


def missing_processes(command: list[str], gpus: int) -> int:
    """How many processes a single-process ``accelerate launch`` was asked for; 1 if it did what it was told.

    Args:
        command: the arguments of ``accelerate``, beginning with ``launch``, or of ``accelerate-launch``.
        gpus: GPUs of this machine.

    Raises:
        ConfigError: see :func:`start_missing_processes`.
    """
    arguments = launch_command_parser().parse_args(command[1:] if command[:1] == ["launch"] else command)
    file = arguments.config_file or (None if arguments.cpu else default_config_file)
    config = load_config_from_file(file) if file is not None and Path(file).is_file() else None
    count = arguments.num_processes or getattr(config, "num_processes", None) or 1
    machines = arguments.num_machines or getattr(config, "num_machines", None) or 1
    on_cpu = arguments.cpu or getattr(config, "use_cpu", False) or gpus == 0
    if count == 1 or arguments.mpirun_hostfile is not None:
        return 1
    if machines > 1 or not on_cpu:
        raise ConfigError(
            f"accelerate launch was asked for {count} processes on {machines} machine(s) but started only "
            f"this one: {gpus} GPU(s) here. Pass --multi_gpu with at most that many processes, or --cpu."
        )
    return count


def _run_torch_launcher(count: int) -> None:
    sys.stdout.flush()
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *sys.argv]
    os.execv(sys.executable, [sys.executable, *command])


def run_entry_point(
    run: Callable[[Sequence[str]], int], argv: Sequence[str] | None, user_errors: tuple[type[Exception], ...]
) -> int:
    """What every training entry point does around its run.

    Args:
        run: takes the command-line arguments and returns the exit status.
        argv: the arguments; None for those of this process.
        user_errors: what the user has to change: printed as one message, without a traceback.

    Returns:
        Exit status; 2 after a user error.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # the version is pinned
    disable_progress_bar()  # of transformers: loading and saving a few files
    try:
        start_missing_processes()
        return run(sys.argv[1:] if argv is None else argv)
    except user_errors as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
