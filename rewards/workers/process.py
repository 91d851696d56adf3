"""The program of one worker of `rewards.workers.RewardPool`: it scores what it is sent until the pool is gone.

It talks to the pool in lines of JSON through its standard input and output. First comes the setup, answered by
`ready` or `failed`; then chunks of samples with the same reference, each answered by `start` and one `score` or
`error` a sample. What the scoring function prints goes to standard error. Only `rewards.workers.link` starts it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from rewards.types import RewardConfig, Score

BUILT_IN = "rewards:score"
Scorer = Callable[[str, str, str, RewardConfig], Score]

# The first tables that differ load and compile the tree distance, which takes seconds with the `fast` extra.
_WARM_UP = (
    ("text", "a", "b"),
    ("formula", "a", "b"),
    (
        "table",
        "<table><tr><td>a</td><td>b</td></tr><tfoot><tr><td>c</td></tr></tfoot></table>",
        "<table><tfoot><tr><td colspan='2'>a</td></tr><tr><td>b</td></tr></tfoot><tr><td>c</td><td>d</td></tr></table>",
    ),
)
_PR_SET_PDEATHSIG = 1
_encoder = json.JSONEncoder(ensure_ascii=False)  # json.dumps would make one for each message


def encode(message: Any) -> bytes:
    """A message as one line. Any string survives, lone surrogates included.

    Raises:
        TypeError: it holds something that JSON does not.
    """
    return _encoder.encode(message).encode("utf-8", "surrogatepass") + b"\n"


def decode(line: bytes | bytearray) -> Any:
    """The message in a line that `encode` has made."""
    return json.loads(line.decode("utf-8", "surrogatepass"))


def main() -> None:
    """Serve the pool at the other end of standard input and output; never returns."""
    commands, results = _take_pipes()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    _end_with_pool(commands, inbox)
    try:
        _serve(inbox, results)
    except BrokenPipeError:  # the pool is gone
        os._exit(0)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the pool, out of reach of what the scoring function reads and prints."""
    commands, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing if sys.stderr is None else 2, 1)
    return commands, results


def _end_with_pool(commands: BinaryIO, inbox: queue.SimpleQueue[bytes]) -> None:
    """Have this process end as soon as the pool's does, in whatever way, and for no other signal than SIGKILL.

    A thread reads the commands and notices their end even in the middle of a sample, but not while C code keeps the
    interpreter's lock; there, Linux ends the process.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the pool decides; ignored signals would pass on to children
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_read_all, args=(commands, inbox), daemon=True).start()


def _read_all(commands: BinaryIO, inbox: queue.SimpleQueue[bytes]) -> None:
    try:
        for line in commands:
            inbox.put(line)
    finally:
        os.killpg(os.getpid(), signal.SIGKILL)  # also what the scoring function has started


def _serve(inbox: queue.SimpleQueue[bytes], results: BinaryIO) -> None:
    setup = decode(inbox.get())
    try:
        config = RewardConfig(**setup["config"])
        scorer = _import_scorer(setup["scorer"])
    except Exception as error:  # a user's module may raise anything; the pool reports it
        results.write(encode(["failed", f"{type(error).__name__}: {error}"]))
        return
    if setup["scorer"] == BUILT_IN:
        for sample in _WARM_UP:
            scorer(*sample, config)
    results.write(encode(["ready"]))
    while True:
        task, reference, predictions = decode(inbox.get())
        results.write(encode(["start"]))
        for prediction in predictions:
            results.write(_answer(scorer, (task, prediction, reference), config))


def _import_scorer(path: str) -> Scorer:
    module, _, name = path.partition(":")
    scorer: Scorer = getattr(importlib.import_module(module), name)
    return scorer


def _answer(scorer: Scorer, sample: tuple[str, str, str], config: RewardConfig) -> bytes:
    try:
        scored = scorer(*sample, config)
        if not isinstance(scored, Score):
            raise TypeError(f"the scoring function returned {type(scored).__name__} instead of rewards.Score")
        for name, number in {"value": scored.value, **scored.parts}.items():
            if not isinstance(number, int | float) or not math.isfinite(number):
                raise TypeError(f"the scoring function returned {number!r:.80} as {name}, which is no finite number")
        return encode(["score", scored.value, scored.parts])
    except MemoryError:  # the next sample would run out of it as well; a death, which is tried again
        os._exit(1)
    except Exception as error:  # carried to the caller, who gets it raised
        kind = next((base.__name__ for base in (TypeError, ValueError) if isinstance(error, base)), None)
        message = str(error) if kind else f"{type(error).__name__}: {error}"
        return encode(["error", kind, message, traceback.format_exc()])
