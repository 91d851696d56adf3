"""What exact resumption of GRPO needs beyond that of any trainer: see :mod:`gravity_rl.checkpoint`.

The buffer of completions that GRPO reuses over several optimizer steps is not saved; instead, checkpoints are
only written where it is used up. The order of the prompts is made a function of seed and epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Sampler
from trl import GRPOTrainer

from gravity_rl.checkpoint import AtomicCheckpointMixin


class CheckpointedGRPOTrainer(AtomicCheckpointMixin, GRPOTrainer):
    """A ``GRPOTrainer`` with the checkpoints of ``AtomicCheckpointMixin``."""

    @property
    def generation_is_used_up(self) -> bool:
        """Whether the next micro-batch starts with new completions, so that no buffer would be lost."""
        return self._step % (self.args.steps_per_generation * self.num_iterations) == 0

    @property
    def may_save(self) -> bool:
        return self.generation_is_used_up

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """TRL writes a card into ``output_dir`` with every checkpoint; here only for a push to the hub."""
        if self._staging is None:
            super().create_model_card(*args, **kwargs)

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return _EpochSampler(super()._get_train_sampler(dataset), lambda: int(self.state.epoch or 0))


class _EpochSampler(Sampler[int]):
    """TRL's ``RepeatSampler`` with an order that depends on seed and epoch alone.

    ``RepeatSampler`` draws one permutation per epoch from a generator that lives as long as the process: a
    run that is resumed in its third epoch would see the order of the first one again.
    """

    def __init__(self, sampler: Any, epoch: Callable[[], int]):
        self.sampler = sampler
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        if self.sampler.shuffle:
            self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(self.epoch()):
                torch.randperm(self.sampler.num_samples, generator=self.sampler.generator)
        return iter(self.sampler)
