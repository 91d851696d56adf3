"""Checkpoints that are either complete or absent, holding all that a run needs to continue bit for bit.

The stock trainer writes into ``checkpoint-N`` file by file, so that a kill or a full disk leaves half a
checkpoint under the name of a whole one. Here every rank writes into ``.staging/checkpoint-N``; once all are
done, the files are flushed, listed with size and checksum in ``resume.json``, and the folder is renamed.
:mod:`gravity_rl.resume` reads that list to choose a checkpoint.

``resume.json`` also holds what the stock checkpoint lacks for exact resumption: the metrics and losses
gathered since the last log line. A trainer whose state is at some steps more than a checkpoint holds says so
by ``may_save``; :mod:`gravity_rl.grpo_checkpoint` does.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from gravity_rl.interrupt import StopOnSignalCallback, start_shielded
from gravity_rl.joint.drafter import BlockDiffusion, write_block_diffusion
from gravity_rl.manifest import MANIFEST, file_entry, read_manifest
from gravity_rl.resume import STAGING, clean_run_directory, complete_checkpoints

# What a full disk raises: Python an OSError, torch.save a RuntimeError, safetensors its own error.
WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)


class CheckpointError(RuntimeError):
    """A checkpoint or the final model could not be written. What was complete before still is."""


class AtomicCheckpointMixin(Trainer):
    """A ``Trainer`` with atomic checkpoints, exact resumption and a clean stop on SIGTERM and SIGINT.

    A subclass gathers metrics in ``_metrics["train"]``, name to values since the last log line, the same on
    every rank, and empties it when it logs them (TRL's convention). Combined with another trainer class, this
    one comes first: ``class T(AtomicCheckpointMixin, GRPOTrainer)``.

    Args:
        settings: what a checkpoint records as the settings of its run, JSON types only;
            :func:`gravity_rl.resume.check_settings` compares them at resumption.
        drafter: written into every checkpoint and the final model; None if the model has no drafter.
        args, kwargs: see ``Trainer``, or the trainer class behind this one.
    """

    _metrics: dict[str, dict[str, list[float]]]

    def __init__(
        self,
        *args: Any,
        settings: dict[str, Any] | None = None,
        drafter: BlockDiffusion | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.drafter = drafter
        self.settings = settings or {}
        self._staging: Path | None = None
        self.stop_on_signal = StopOnSignalCallback(self)
        self.add_callback(self.stop_on_signal)
        self._accumulators = _AccumulatorCallback(self)
        self.add_callback(self._accumulators)

    @property
    def may_save(self) -> bool:
        """Whether a checkpoint written now would hold all that the next step needs."""
        return True

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """Train until ``max_steps``, or until a signal stops the run (see ``stop_on_signal.stopped_by``).

        Args:
            resume_from_checkpoint: path of a complete checkpoint, as :func:`gravity_rl.resume.resolve_resume`
                returns it.

        Raises:
            CheckpointError: a checkpoint could not be written.
        """
        checkpoint = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        if self.args.should_save:
            clean_run_directory(Path(self.args.output_dir), checkpoint)
        self.accelerator.wait_for_everyone()
        self._accumulators.checkpoint = checkpoint
        with self.stop_on_signal.listening():
            output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
            self.accelerator.wait_for_everyone()  # a launcher terminates the others when the first one exits
        return output

    def save_final(self, path: Path) -> None:
        """Write model and processor to `path`, replacing what is there only when the new files are complete.

        Raises:
            CheckpointError: the files could not be written; a previous `path` is unchanged.
        """
        self._publish(path, lambda staging: self.save_model(str(staging), _internal_call=True))

    # --- overridden hooks of the stock trainer ---

    def get_train_dataloader(self) -> DataLoader:
        """The stock loader, whose worker processes leave signals to this one."""
        loader = super().get_train_dataloader()
        wrapped = getattr(loader, "base_dataloader", loader)  # accelerate wraps the loader that starts the workers
        wrapped.worker_init_fn = partial(start_shielded, wrapped.worker_init_fn)
        return loader

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # resumed at the end: the stock loop would go on
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.drafter is not None and self.args.should_save:  # every process comes here
            write_block_diffusion(Path(output_dir or self.args.output_dir), self.drafter)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._staging is None else str(self._staging)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._staging is None:  # else the upload would read a folder that is about to be renamed
            super()._push_from_checkpoint(checkpoint_folder)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        if not self.may_save:
            raise RuntimeError(f"a checkpoint of step {self.state.global_step} would not hold all of the run's state")
        final = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        losses = self.accelerator.gather(self._tr_loss.reshape(1)).tolist()  # (world_size,)

        def write(staging: Path) -> None:
            self._staging = staging.parent
            try:
                super(AtomicCheckpointMixin, self)._save_checkpoint(model, trial)
            finally:
                self._staging = None

        def seal(staging: Path) -> None:
            manifest = {
                "global_step": self.state.global_step,
                "world_size": self.accelerator.num_processes,
                "settings": self.settings,
                "losses": losses,
                "last_logged_step": self._globalstep_last_logged,
                "metrics": self._metrics["train"],
                "files": {str(path.relative_to(staging)): file_entry(path) for path in _files(staging)},
            }
            (staging / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")

        self._publish(final, write, seal)
        if self.args.should_save:
            self._rotate()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(final))

    # --- writing ---

    def _publish(self, final: Path, write: Callable[[Path], None], seal: Callable[[Path], None] | None = None) -> None:
        """Make `final` out of what all ranks `write` into a staging folder and the main rank then seals."""
        staging = final.parent / STAGING / final.name

        def commit() -> None:
            if self.args.should_save:
                if seal is not None:
                    seal(staging)
                _commit(staging, final)

        published = False
        try:
            self._on_all_ranks(final, lambda: write(staging))
            self._on_all_ranks(final, commit)
            published = True
        finally:
            if not published:
                shutil.rmtree(staging, ignore_errors=True)

    def _on_all_ranks(self, final: Path, action: Callable[[], None]) -> None:
        """Run `action`; unless it succeeds on every rank, raise on every rank."""
        error: Exception | None = None
        try:
            action()
        except WRITE_ERRORS as caught:
            error = caught
        failed = torch.tensor([int(error is not None)], device=self.accelerator.device)
        ranks = self.accelerator.gather(failed).nonzero().flatten().tolist()
        if ranks:
            raise CheckpointError(self._failure(final, error, ranks)) from error

    def _failure(self, final: Path, error: Exception | None, ranks: list[int]) -> str:
        reason = f"{type(error).__name__}: {error}" if error else f"rank {ranks[0]} failed, see its message"
        message = f"could not write {final}: {reason}. Nothing that was saved before has been touched"
        intact = complete_checkpoints(Path(self.args.output_dir))
        if not intact:
            return f"{message}; there is no earlier checkpoint."
        return f"{message}: {intact[-1]} is intact; continue with --resume_from_checkpoint latest."

    def _rotate(self) -> None:
        """Remove the oldest complete checkpoints beyond ``save_total_limit``, never the last one."""
        limit = self.args.save_total_limit
        if limit is None or limit < 1:
            return
        output_dir = Path(self.args.output_dir)
        for path in complete_checkpoints(output_dir)[:-limit]:
            shutil.rmtree(_move_aside(path, output_dir / STAGING))


class _AccumulatorCallback(TrainerCallback):
    """Gives a resumed run the metrics and losses that its checkpoint had gathered since the last log line."""

    def __init__(self, trainer: AtomicCheckpointMixin):
        self.trainer = trainer
        self.checkpoint: Path | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.checkpoint is None:
            return
        manifest = read_manifest(self.checkpoint)
        trainer = self.trainer
        trainer._tr_loss.fill_(manifest["losses"][trainer.accelerator.process_index])
        trainer._globalstep_last_logged = manifest["last_logged_step"]
        for name, values in manifest["metrics"].items():
            trainer._metrics["train"][name] = values
        # The restored state carries the old run's logging, saving and evaluation intervals.
        state.compute_steps(args, state.max_steps)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _commit(staging: Path, final: Path) -> None:
    """Flush `staging` to disk and give it the name `final`."""
    for path in [*_files(staging), *(path for path in staging.rglob("*") if path.is_dir()), staging]:
        _fsync(path)
    replaced = _move_aside(final, staging.parent) if final.exists() else None
    staging.rename(final)
    _fsync(final.parent)
    if replaced is not None:
        shutil.rmtree(replaced)


def _move_aside(folder: Path, staging_root: Path) -> Path:
    """Take `folder` out of sight before it is deleted, so that no kill leaves half of it under its name."""
    doomed = staging_root / f"old-{folder.name}"
    staging_root.mkdir(exist_ok=True)
    shutil.rmtree(doomed, ignore_errors=True)
    return folder.rename(doomed)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
