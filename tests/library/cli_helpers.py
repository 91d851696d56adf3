"""Shared by the tests of the command line: sample rows, and running a command in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rewards.cli.main import main

TABLE = "<table><tr><td>Item</td><td>Qty</td></tr><tr><td>Bolt</td><td>12</td></tr></table>"
ROWS = [
    {"task": "text", "prediction": "Bolts, 13", "reference": "Bolts, 12", "id": 7, "note": {"a": [1, None, "é"]}},
    {"task": "table", "prediction": TABLE.replace("12", "13"), "reference": TABLE, "id": 8},
    {"task": "formula", "prediction": r"\frac{a}{b", "reference": r"\frac{a}{b}", "id": 9},
    {"task": "text", "prediction": "a\x00\ud800", "reference": "a\x00\ud800", "id": "\udfff"},
]
COMMAND = [sys.executable, "-m", "rewards"]


def write(path: Path, *lines: object) -> Path:
    """A file of lines, each bytes or an object to be written as JSON."""
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err
