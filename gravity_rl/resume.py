"""Which checkpoint a run continues from, and whether it may.

A run directory belongs to one run: starting a second one in it would interleave two sets of metrics and
rollouts, so that is refused here before any model is loaded, with a message that says what to do. Nothing is
unpickled to find out whether a checkpoint is complete: the sizes listed in its ``resume.json`` decide.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from gravity_rl.parsing import ConfigError

STAGING = ".staging"
MANIFEST = "resume.json"
LOCK = ".lock"
_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


def checkpoint_step(path: Path) -> int | None:
    """The optimizer step in the name ``checkpoint-N``, None for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The contents of a checkpoint's ``resume.json``.

    Raises:
        ConfigError: it is missing, unreadable, or not what this package writes.
    """
    path = checkpoint / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{checkpoint} is no complete checkpoint of this package: no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ConfigError(f"{path} does not list the files of a checkpoint")
    return manifest


def verify_checkpoint(checkpoint: Path) -> None:
    """Check that every file of the checkpoint is there, readable and of the recorded size.

    Raises:
        ConfigError: naming the first file that is not.
    """
    if not checkpoint.is_dir():
        raise ConfigError(f"no checkpoint at {checkpoint}")
    for name, size in read_manifest(checkpoint)["files"].items():
        path = checkpoint / name
        try:
            with path.open("rb") as stream:
                found = os.fstat(stream.fileno()).st_size
        except OSError as error:
            raise ConfigError(f"{checkpoint} is incomplete: {name}: {error.strerror}") from error
        if found != size:
            raise ConfigError(f"{checkpoint} is damaged: {name} has {found} bytes instead of {size}")


def is_complete(checkpoint: Path) -> bool:
    """Whether :func:`verify_checkpoint` accepts the checkpoint."""
    try:
        verify_checkpoint(checkpoint)
    except ConfigError:
        return False
    return True


def _named_checkpoints(output_dir: Path) -> list[Path]:
    if not output_dir.is_dir():
        return []
    found = ((checkpoint_step(path), path) for path in output_dir.iterdir() if path.is_dir())
    return [path for step, path in sorted((step, path) for step, path in found if step is not None)]


def complete_checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints of a run that can be resumed from, oldest first."""
    return [path for path in _named_checkpoints(output_dir) if is_complete(path)]


def clean_run_directory(output_dir: Path) -> None:
    """Remove what a killed save left behind, and move damaged checkpoints out of the way.

    ``checkpoint-N`` without all its files becomes ``damaged-checkpoint-N``; nothing visible is deleted.
    """
    shutil.rmtree(output_dir / STAGING, ignore_errors=True)
    for path in _named_checkpoints(output_dir):
        if not is_complete(path):
            path.rename(path.with_name(f"damaged-{path.name}"))


def resolve_resume(output_dir: str | Path, value: str | bool | None) -> Path | None:
    """The checkpoint that ``--resume_from_checkpoint`` means.

    Args:
        output_dir: the run directory, which need not exist.
        value: None, False or ``"false"`` for a new run; True, ``"true"`` or ``"latest"`` for the last
            complete checkpoint in `output_dir`; otherwise the path of a checkpoint.

    Returns:
        Path of a checkpoint that passed :func:`verify_checkpoint`, or None for a new run.

    Raises:
        ConfigError: there is no such checkpoint, or it is damaged; or `output_dir` holds an earlier run that
            would be mixed with the new one, or checkpoints later than the one to resume from.
    """
    output_dir = Path(output_dir)
    if value is None or str(value).lower() == "false":
        _require_unused(output_dir)
        return None
    if str(value).lower() in ("true", "latest"):
        return _latest(output_dir)
    checkpoint = Path(str(value))
    verify_checkpoint(checkpoint)
    _require_last(output_dir, checkpoint)
    return checkpoint


def _latest(output_dir: Path) -> Path:
    complete = complete_checkpoints(output_dir)
    if complete:
        return complete[-1]
    damaged = "".join(f"; {path.name} is damaged" for path in _named_checkpoints(output_dir))
    raise ConfigError(
        f"--resume_from_checkpoint: no complete checkpoint in {output_dir}{damaged}. To start anew, leave "
        "the option out and choose an output_dir that does not exist yet."
    )


def _require_unused(output_dir: Path) -> None:
    """A new run needs a directory without a run in it; hidden files and an earlier dry run do not count."""
    if not output_dir.is_dir():
        return
    found = sorted(path.name for path in output_dir.iterdir() if not path.name.startswith("."))
    if not found:
        return
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    if complete_checkpoints(output_dir):
        advice = "Continue that run with --resume_from_checkpoint latest, or choose another output_dir."
    else:
        advice = "It has no complete checkpoint to resume from: delete it, or choose another output_dir."
    raise ConfigError(f"output_dir {output_dir} is not empty ({shown}). {advice}")


def _require_last(output_dir: Path, checkpoint: Path) -> None:
    """Going back in a run would leave its later checkpoints to be mistaken for the new continuation."""
    if checkpoint.resolve().parent != output_dir.resolve():
        _require_unused(output_dir)
        return
    step = read_manifest(checkpoint)["global_step"]
    later = [path.name for path in _named_checkpoints(output_dir) if (checkpoint_step(path) or 0) > step]
    if later:
        raise ConfigError(
            f"{output_dir} has checkpoints later than {checkpoint.name}: {', '.join(later)}. Resume from the "
            f"latest, or move them away first, or continue from {checkpoint.name} in another output_dir."
        )


def check_settings(checkpoint: Path, settings: Mapping[str, Any], world_size: int) -> None:
    """Refuse to continue a run under settings that would have given another run.

    Args:
        checkpoint: a complete checkpoint.
        settings: what decides the course of the run that is about to start, JSON types only.
        world_size: its number of processes, which decides the batch and the random numbers.

    Raises:
        ConfigError: listing every setting that differs.
    """
    manifest = read_manifest(checkpoint)
    before = manifest["settings"] | {"processes": manifest["world_size"]}
    now = json.loads(json.dumps(settings)) | {"processes": world_size}
    differing = [
        f"  {name}: {before.get(name, '(unset)')!r} in the checkpoint, {now.get(name, '(unset)')!r} now"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if differing:
        listed = "\n".join(differing)
        raise ConfigError(
            f"{checkpoint} belongs to a run with other settings:\n{listed}\nRestore them, or start a new run "
            f"from these weights with model_name_or_path: {checkpoint} and another output_dir."
        )


@contextmanager
def hold_run_directory(output_dir: Path, wait_seconds: float = 60.0) -> Iterator[None]:
    """Keep a second launch from writing into the same run, for instance while a stopped one still saves.

    For the main process only. The lock is advisory, is not inherited by child processes, and vanishes with
    the process that holds it.

    Raises:
        ConfigError: another process still holds the directory after `wait_seconds`.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    with (output_dir / LOCK).open("a+", encoding="utf-8") as stream:
        deadline = time.monotonic() + wait_seconds
        while not _try_lock(stream.fileno()):
            if time.monotonic() > deadline:
                stream.seek(0)
                owner = stream.read().strip()
                raise ConfigError(f"{output_dir} is in use by process {owner}: wait for it, or stop it")
            time.sleep(0.5)
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
