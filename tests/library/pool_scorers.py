"""Scoring functions that test_workers.py has pools run: the prediction says what happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from rewards import RewardConfig, Score

_calls = 0


def obey(task: str, prediction: str, reference: str, config: RewardConfig) -> Score:
    """Do what the prediction says. Parts: the worker's process, and how many samples it has begun."""
    global _calls
    _calls += 1
    verb, _, argument = prediction.partition(" ")
    match verb:
        case "sleep":
            time.sleep(float(argument))
        case "hang":
            _announce(argument, os.getpid())
            re.match("(a+)+$", "a" * 64 + "b")  # C code that keeps the interpreter's lock for years
        case "begin":
            _announce(argument, os.getpid())
            time.sleep(3.0)
        case "spawn":
            _announce(argument, subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
            time.sleep(600)
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "die-once":
            if not Path(argument).exists():
                Path(argument).touch()
                os._exit(1)
        case "print":
            print("a line of text", flush=True)
            os.system("echo and another one")
        case "raise":
            raise {"TypeError": TypeError, "ValueError": ValueError, "KeyError": KeyError}[argument]("no good")
        case "memory":
            raise MemoryError
        case "recursion":
            return obey(task, prediction, reference, config)
        case "none":
            return None  # type: ignore[return-value]
        case "parts":
            return Score(1.0, {"set": {1}})  # type: ignore[dict-item]
    return Score(config.teds_weight, {"pid": os.getpid(), "calls": _calls})


def _announce(file: str, pid: int) -> None:
    temporary = Path(f"{file}.{os.getpid()}.tmp")
    temporary.write_text(str(pid), encoding="ascii")
    temporary.replace(file)
