"""Which checkpoint a run continues from, and whether it may.

A run directory belongs to one run: starting a second one in it would interleave two sets of metrics and
rollouts, so that is refused here before any model is loaded, with a message that says what to do. Nothing is
unpickled to find out whether a checkpoint is complete: the sizes and checksums listed in its ``resume.json``
decide.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from gravity_rl.manifest import is_complete, read_manifest, verify_checkpoint
from gravity_rl.parsing import ConfigError, read_yaml
from gravity_rl.run_config import RunConfig

logger = logging.getLogger(__name__)

STAGING = ".staging"
LOCK = ".lock"
CONFIG = "config.yaml"
FINAL = "final"
_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


def checkpoint_step(path: Path) -> int | None:
    """The optimizer step in the name ``checkpoint-N``, None for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


def _named_checkpoints(output_dir: Path) -> list[Path]:
    if not output_dir.is_dir():
        return []
    found = ((checkpoint_step(path), path) for path in output_dir.iterdir() if path.is_dir())
    return [path for step, path in sorted((step, path) for step, path in found if step is not None)]


def complete_checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints of a run whose files are all there in their sizes, oldest first."""
    return [path for path in _named_checkpoints(output_dir) if is_complete(path)]


def clean_run_directory(output_dir: Path, resumed_from: Path | None = None) -> None:
    """Remove what a killed save left behind, and move damaged checkpoints out of the way.

    ``checkpoint-N`` without all its files becomes ``damaged-checkpoint-N``, and so does one later than the
    checkpoint `resumed_from`, which :func:`resolve_resume` has passed over. Nothing visible is deleted.
    """
    shutil.rmtree(output_dir / STAGING, ignore_errors=True)
    last = None if resumed_from is None else checkpoint_step(resumed_from)
    for path in _named_checkpoints(output_dir):
        passed_over = last is not None and (checkpoint_step(path) or 0) > last
        if passed_over or not is_complete(path):
            path.rename(_free_name(path.with_name(f"damaged-{path.name}")))


def _free_name(path: Path) -> Path:
    """`path`, or with ``-2``, ``-3``, ... appended to it the first that does not exist."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{count}") for count in itertools.count(2)))
    return next(name for name in names if not name.exists())


def resolve_resume(output_dir: str | Path, value: str | bool | None) -> Path | None:
    """The checkpoint that ``--resume_from_checkpoint`` means.

    Args:
        output_dir: the run directory, which need not exist.
        value: None, False or ``"false"`` for a new run; True, ``"true"`` or ``"latest"`` for the last
            undamaged checkpoint in `output_dir`, or the beginning if the run has not come to its first;
            otherwise the path of a checkpoint.

    Returns:
        Path of a checkpoint that passed :func:`verify_checkpoint`, or None for a run from the beginning;
        :func:`check_settings` or :func:`check_restart` says whether it may.

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


def _latest(output_dir: Path) -> Path | None:
    checkpoints = _named_checkpoints(output_dir)
    for checkpoint in reversed(checkpoints):
        try:
            verify_checkpoint(checkpoint)
        except ConfigError as error:
            logger.warning("passed over: %s", error)
        else:
            return checkpoint
    if not checkpoints and not (output_dir / FINAL).exists():
        return None
    damaged = "".join(f"; {path.name} is damaged" for path in checkpoints)
    raise ConfigError(
        f"--resume_from_checkpoint: no complete checkpoint in {output_dir}{damaged}. To start anew, leave "
        "the option out and choose an output_dir that does not exist yet."
    )


def _visible(output_dir: Path) -> list[str]:
    if not output_dir.is_dir():
        return []
    return sorted(path.name for path in output_dir.iterdir() if not path.name.startswith("."))


def _refuse_foreign(output_dir: Path) -> None:
    """Leave a folder alone that holds something else than a run."""
    found = _visible(output_dir)
    if found and not (output_dir / CONFIG).is_file() and not _named_checkpoints(output_dir):
        raise ConfigError(
            f"output_dir {output_dir} is not empty ({_shown(found)}) and is no run directory: choose another output_dir"
        )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _require_unused(output_dir: Path) -> None:
    """A new run needs a directory without a run in it; hidden files and an earlier dry run do not count."""
    _refuse_foreign(output_dir)
    found = _visible(output_dir)
    if not found:
        return
    has_begun = not _named_checkpoints(output_dir) and FINAL not in found
    if has_begun or complete_checkpoints(output_dir):
        advice = "Continue that run with --resume_from_checkpoint latest, or choose another output_dir."
    else:
        advice = "It has no complete checkpoint to resume from: delete it, or choose another output_dir."
    raise ConfigError(f"output_dir {output_dir} is not empty ({_shown(found)}). {advice}")


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
    listed = _differing(before, now, "in the checkpoint")
    if listed:
        raise ConfigError(
            f"{checkpoint} belongs to a run with other settings:\n{listed}\nRestore them, or start a new run "
            f"from these weights with model_name_or_path: {checkpoint} and another output_dir."
        )


def check_restart(output_dir: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to start from the beginning in the directory of a run with other settings.

    Args:
        output_dir: a directory without checkpoints, which need not exist.
        settings: as for :func:`check_settings`.

    Raises:
        ConfigError: listing every setting that differs from the directory's ``config.yaml``.
    """
    file = output_dir / CONFIG
    if not file.is_file():
        return
    earlier = read_yaml(file)
    before = json.loads(json.dumps({name: earlier[name] for name in settings if name in earlier}))
    listed = _differing(before, json.loads(json.dumps(settings)), f"in {CONFIG}")
    if listed:
        raise ConfigError(
            f"{output_dir} belongs to a run with other settings:\n{listed}\nRestore them, or choose another output_dir."
        )


def choose_checkpoint(config: RunConfig, output_dir: Path, *, is_main: bool) -> Path | None:
    """The checkpoint to continue from, None for the beginning; the main process, which holds the lock, decides.

    Raises:
        ConfigError: see :func:`resolve_resume`; or the run has other settings.
    """
    training = config.training
    chosen = [resolve_resume(output_dir, training.resume_from_checkpoint) if is_main else None]
    broadcast_object_list(chosen)
    checkpoint = chosen[0]
    if checkpoint is not None:
        check_settings(checkpoint, config.course(), training.world_size)
        if is_main:
            logger.info("continuing from %s", checkpoint)
        return checkpoint
    check_restart(output_dir, config.course())
    if training.resume_from_checkpoint and is_main:
        logger.info("no checkpoint in %s yet: the run starts from the beginning", output_dir)
    return None


def _differing(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> str:
    return "\n".join(
        f"  {name}: {before.get(name, '(unset)')!r} {where}, {now.get(name, '(unset)')!r} now"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    )


def make_output_directory(folder: Path) -> bool:
    """Create the folder, unless it exists. Returns whether it is new.

    Raises:
        ConfigError: it cannot be created, is a file, or cannot be written to.
    """
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir: cannot create the folder {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"output_dir: no permission to write into {folder}")
    return is_new


@contextmanager
def hold_run_directory(output_dir: Path, wait_seconds: float = 60.0) -> Iterator[None]:
    """Keep a second launch from writing into the same run, for instance while a stopped one still saves.

    For the main process only. The lock is advisory, is not inherited by child processes, and vanishes with
    the process that holds it.

    Raises:
        ConfigError: another process still holds the directory after `wait_seconds`; or it holds something
            else than a run, or cannot be written to.
    """
    make_output_directory(output_dir)
    _refuse_foreign(output_dir)
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
