"""A run stops cleanly: on SIGTERM or Ctrl-C it finishes the step, writes a checkpoint and exits.

A signal to any one rank stops all of them at the same step. ``accelerate launch`` with one process does not
pass signals on and leaves its child running when it is killed; the child notices and acts as on SIGTERM. The
exit status is the shell's convention, 128 + signal number: 143 for SIGTERM, 130 for SIGINT.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil
import torch
from transformers import TrainerCallback

from gravity_rl.launcher import launchers

if TYPE_CHECKING:
    from gravity_rl.checkpoint import AtomicCheckpointMixin

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SECOND_INTERRUPT_SECONDS = 2.0


class StopOnSignalCallback(TrainerCallback):
    """Turns SIGTERM and SIGINT into a checkpoint and a stop at the next step where one is possible.

    A second SIGINT, at least two seconds after the first, interrupts at once and saves nothing (launchers
    repeat the Ctrl-C that the terminal has already delivered, hence the pause).

    Attributes:
        stopped_by: the signal that ended training before ``max_steps``, else None.
    """

    def __init__(self, trainer: AtomicCheckpointMixin):
        self.trainer = trainer
        self.stopped_by: signal.Signals | None = None
        self._received: signal.Signals | None = None
        self._received_at = 0.0
        self._launchers: list[psutil.Process] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals for as long as the context lasts."""
        self.stopped_by = self._received = None
        self._launchers = launchers()
        if threading.current_thread() is not threading.main_thread():  # only that one can handle signals
            yield
            return
        owner = os.getpid()

        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # inherited by a forked worker, which has nothing to save
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self._receive(signal.Signals(number))

        previous = {number: signal.signal(number, handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _receive(self, number: signal.Signals) -> None:
        now = time.monotonic()
        again = self._received is not None and now - self._received_at > SECOND_INTERRUPT_SECONDS
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is None:
            self._received, self._received_at = number, now
            # A plain write: print may be what the signal has interrupted.
            os.write(2, f"\n{number.name}: the run stops with a checkpoint once this step is done\n".encode())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = self._agreed()
        if not number or state.global_step >= state.max_steps or not self.trainer.may_save:
            return
        self.stopped_by = signal.Signals(number)
        control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stopped_by is not None and state.is_world_process_zero:
            logger.warning(
                "%s: stopped after step %d of %d; continue with --resume_from_checkpoint latest",
                self.stopped_by.name,
                state.global_step,
                state.max_steps,
            )

    def _agreed(self) -> int:
        """The signal that any rank has received, the same on all ranks; 0 for none."""
        if self._received is None and any(not _is_alive(process) for process in self._launchers):
            self._receive(signal.SIGTERM)
        number = torch.tensor([self._received or 0], device=self.trainer.accelerator.device)
        return int(self.trainer.accelerator.gather(number).max())


def start_shielded(initialise: Callable[[int], None] | None, worker_id: int) -> None:
    """Initialise a loader worker that ignores the signals which stop a run.

    A terminal, ``timeout`` and batch systems signal all processes of a run. A worker that dies of it would end the run
    with an error before its checkpoint; workers end with the loader, or when their parent is gone.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if initialise is not None:
        initialise(worker_id)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
