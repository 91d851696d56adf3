"""`import rewards` is light: neither torch nor numpy, and little time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rewards.adapters

PROBE = """
import sys, time
start = time.process_time()
import rewards
seconds = time.process_time() - start
scored = rewards.score("table", "<table><tr><td>a</td></tr></table>", "<table><tr><td>a</td></tr></table>")
import rewards.adapters.lists, rewards.adapters.swift, rewards.adapters.trl, rewards.adapters.verl
import rewards.batch, rewards.metrics, rewards.workers
rewards.score("formula", "x", "x", rewards.RewardConfig(profile="robust"))
heavy = [name for name in ("torch", "numpy", "numba", "transformers", "trl", "bs4", "apted") if name in sys.modules]
print(scored.value, heavy, seconds < 0.3)
"""


def test_import_is_light() -> None:
    command = [sys.executable, "-c", PROBE]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout.split("\n")[0] == "1.0 [] True"


def test_adapters_are_thin() -> None:
    for path in Path(rewards.adapters.__file__).parent.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80, path.name
