"""Describes where a run takes place: package versions, source revision, hardware and command line."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("gravity-rl", "torch", "transformers", "trl", "accelerate", "datasets", "tokenizers",
             "bitsandbytes", "numpy", "pyarrow", "pillow", "rapidfuzz", "lxml")  # fmt: skip


def describe_environment() -> dict[str, Any]:
    """Versions (None: not installed), git revision (None: not a checkout), hardware, command line."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "git": _git_revision(Path(__file__).resolve().parent),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "command": _without_secrets(sys.argv),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_revision(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that holds the package, and whether its files differ from that commit."""
    if not (folder.parent / ".git").exists():
        return None
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {
            "commit": commit,
            "modified": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.CalledProcessError):  # no git program, or no commit yet
        return None


def _git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, timeout=30
    )
    return result.stdout.strip()


def _without_secrets(command: list[str]) -> list[str]:
    """The command line with the value of every ``--...token`` option blanked."""
    shown: list[str] = []
    hide = False
    for argument in command:
        name, separator, _ = argument.partition("=")
        secret = name.startswith("--") and name.replace("-", "_").endswith("_token")
        shown.append("***" if hide else f"{name}=***" if secret and separator else argument)
        hide = secret and not separator
    return shown
