"""The pool's end of one worker: starts the process, talks to it under a time limit, ends it.

A worker is a new interpreter, not a fork, so that it shares neither threads nor a GPU with the caller, and it does
not import the caller's main module. It leads a process group of its own: Ctrl-C in the terminal does not reach it,
and what a scoring function has started ends together with it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewards.workers.process import decode, encode

# Seconds within which a worker must come up, and take an order; nothing that a sample decides.
START_LIMIT_S = 120.0
_LONGEST_POLL_S = 86_400.0  # the system takes milliseconds as a C int

_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rewards.workers.process import main; main()"

# A fork of the caller while a worker starts would keep the worker's ends of the pipes, and the start and a death
# would go unnoticed until that child ends. So forks wait. Reentrant, as a signal handler may fork in a fork.
_starting = threading.RLock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)


class PoolError(RuntimeError):
    """The workers of a pool cannot work: one does not start, or the pool is closed."""


class WorkerDied(Exception):
    """The worker has ended by itself."""


class WorkerLate(Exception):
    """The worker has not answered in time."""


def search_path() -> list[str]:
    """Where this process imports from, also when it has changed its folder."""
    entries = [entry for entry in sys.path if isinstance(entry, str)]  # some name an import hook and no folder
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # deleted: nothing can be imported from it
        return [entry for entry in entries if entry]
    return [str(folder / entry) if os.path.exists(entry or folder) else entry for entry in entries]  # noqa: PTH110 - Path's raises


class WorkerLink:
    """One worker process. Only the thread that started it may talk to it; any thread may `kill` it.

    On Linux the worker also ends together with the thread that started it.

    Args:
        setup: the constants of the rewards, and the import path of the scoring function.
        path: where the worker imports from.

    Raises:
        PoolError: the process cannot be started.
    """

    def __init__(self, setup: dict[str, Any], path: Sequence[str]) -> None:
        command = [sys.executable, "-P", "-c", _PROGRAM, json.dumps(path)]
        try:
            with _starting:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
                )
        except OSError as error:
            raise PoolError(f"a reward worker cannot be started: {error}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._commands, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._commands, False)
        self._can_write, self._can_read = _poll(self._commands, select.POLLOUT), _poll(self._answers, select.POLLIN)
        self._received = bytearray()
        self._setup = setup
        self._is_reaped = False

    def wait_until_ready(self) -> None:
        """Send the setup and wait for the worker to take it.

        Raises:
            PoolError: it does not, for example because the scoring function cannot be imported.
            WorkerDied: a signal has ended it meanwhile.
        """
        try:
            self.send(self._setup)
            kind, *details = self.receive(START_LIMIT_S)
        except WorkerLate:
            raise PoolError(f"a reward worker did not come up within {START_LIMIT_S:g} s") from None
        except WorkerDied:
            self.close()
            if (status := self._process.returncode) < 0:
                raise
            raise PoolError(f"a reward worker ended with status {status} while it started; see its output") from None
        if kind != "ready":
            raise PoolError(f"a reward worker cannot import {self._setup['scorer']!r}: {details[0]}")

    def send(self, message: Any) -> None:
        """Give the worker a message.

        Raises:
            WorkerLate, WorkerDied: it does not take it.
        """
        data = memoryview(encode(message))
        deadline = time.monotonic() + START_LIMIT_S
        while data:
            _wait(self._can_write, deadline)
            try:
                data = data[os.write(self._commands, data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise WorkerDied from None

    def receive(self, seconds: float) -> Any:
        """The next message. One that has already arrived is in time.

        Raises:
            WorkerLate, WorkerDied: none arrives within `seconds`, or at all.
        """
        deadline = time.monotonic() + seconds
        while (end := self._received.find(b"\n")) < 0:
            _wait(self._can_read, deadline)
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise WorkerDied
            self._received += data
        line = self._received[:end]
        del self._received[: end + 1]
        return decode(line)

    def has_ended(self) -> bool:
        """Whether an idle worker has died meanwhile."""
        return bool(self._can_read.poll(0))

    def kill(self) -> None:
        """End the process together with all that it has started, without waiting for it. Works from any thread."""
        if not self._is_reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """`kill`, wait until the process is gone, and let go of the pipes."""
        self.kill()
        self._is_reaped = True  # from here on its number may become another process's
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _poll(pipe: int, event: int) -> select.poll:
    poll = select.poll()
    poll.register(pipe, event)
    return poll


def _wait(poll: select.poll, deadline: float) -> None:
    seconds = math.inf
    while seconds > 0.0:
        seconds = max(0.0, deadline - time.monotonic())
        if poll.poll(math.ceil(1000 * min(seconds, _LONGEST_POLL_S))):
            return
    raise WorkerLate
