"""What a checkpoint says of itself: ``resume.json``, its last-written file.

It lists every other file with size and checksum, so that a checkpoint that was cut short or has changed since is told
from a complete one without unpickling anything, and holds what transformers does not save but an exact resume needs.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gravity_rl.parsing import ConfigError

MANIFEST = "resume.json"
_FIELDS: dict[str, type] = {
    "global_step": int,
    "world_size": int,
    "settings": dict,
    "losses": list,
    "last_logged_step": int,
    "metrics": dict,
    "files": dict,
}


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
    if not isinstance(manifest, dict):
        raise ConfigError(f"{path} does not describe a checkpoint: expected a JSON object")
    for field, problem in _problems(manifest):
        raise ConfigError(f"{path}: {field}: {problem}")
    return manifest


def _problems(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields of a manifest that are not what :mod:`gravity_rl.checkpoint` writes, with what is wrong."""
    for field, kind in _FIELDS.items():
        if type(manifest.get(field)) is not kind:  # a bool is no step
            yield field, f"expected {kind.__name__}, got {manifest.get(field)!r:.60}"
            return
    if len(manifest["losses"]) != manifest["world_size"] or not _are_numbers(manifest["losses"]):
        yield "losses", f"expected {manifest['world_size']} numbers, one a process"
    for name, values in manifest["metrics"].items():
        if not isinstance(values, list) or not _are_numbers(values):
            yield f"metrics.{name}", "expected a list of numbers"
    for name, entry in manifest["files"].items():
        if not isinstance(entry, dict) or any(type(entry.get(key)) is not int for key in ("bytes", "crc32")):
            yield f"files.{name}", f"expected bytes and crc32, got {entry!r:.60}"


def _are_numbers(values: list[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)


def file_entry(path: Path) -> dict[str, int]:
    """What ``resume.json`` records of a file: its size in bytes and the CRC-32 of its content."""
    checksum = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
        return {"bytes": stream.tell(), "crc32": checksum}


def verify_checkpoint(checkpoint: Path, *, contents: bool = True) -> None:
    """Check that every file of the checkpoint is there, readable and of the recorded size.

    Args:
        checkpoint: its folder.
        contents: read the files as well and compare their checksums.

    Raises:
        ConfigError: naming the first file that is not as recorded.
    """
    if not checkpoint.is_dir():
        raise ConfigError(f"no checkpoint at {checkpoint}")
    for name, entry in read_manifest(checkpoint)["files"].items():
        path = checkpoint / name
        try:
            with path.open("rb") as stream:
                found = os.fstat(stream.fileno()).st_size
            changed = contents and found == entry["bytes"] and file_entry(path) != entry
        except OSError as error:
            raise ConfigError(f"{checkpoint} is incomplete: {name}: {error.strerror}") from error
        if found != entry["bytes"]:
            raise ConfigError(f"{checkpoint} is damaged: {name} has {found} bytes instead of {entry['bytes']}")
        if changed:
            raise ConfigError(f"{checkpoint} is damaged: the content of {name} is not what was saved")


def is_complete(checkpoint: Path) -> bool:
    """Whether :func:`verify_checkpoint` accepts the checkpoint, by the sizes of its files."""
    try:
        verify_checkpoint(checkpoint, contents=False)
    except ConfigError:
        return False
    return True
