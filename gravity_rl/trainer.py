"""GRPO trainer for OCR: TRL's ``GRPOTrainer`` plus records of every rollout, per-task metrics and strict
rewards.

Only TRL's hooks are overridden: ``_generate_single_turn`` (has the rollout engine write the completions),
``_calculate_rewards`` (checks, records and, in the control experiment, shuffles the rewards of all ranks) and
``_generate_and_score_completions`` (adds the advantages to the records and writes them). Loss, reference model and
checkpoints are TRL's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather, gather_object
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback
from trl.models import unwrap_model_for_generation

from gravity_rl.config import OCR_REWARD, GravityConfig
from gravity_rl.drafting_metrics import DraftingLog
from gravity_rl.grpo_checkpoint import CheckpointedGRPOTrainer
from gravity_rl.joint.drafter import BlockDiffusion
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.metrics import Rollout, rollout_metrics
from gravity_rl.model import never_sampled_ids
from gravity_rl.recorder import RunDirectory
from gravity_rl.reward_functions import RecordedOCRReward, RewardError, RewardFunction
from gravity_rl.rollout import (
    Completions,
    DecodingEngine,
    Prompts,
    RolloutEngine,
    TransformersEngine,
    generation_seed,
    refuse_banned_ends,
)


class GravityTrainer(CheckpointedGRPOTrainer):
    """Thin subclass of ``GRPOTrainer`` with exact checkpoints; see the module docstring.

    Args:
        model: the policy; its checkpoint folder is also that of the frozen reference.
        reward_functions: TRL reward functions; every one must return a finite number for every completion, except
            that the OCR reward may leave completions out that its workers could not score.
        args: training settings.
        train_dataset: rows with columns prompt, image, task, reference, id and source.
        processor: image and text processor of the model.
        run: the run directory, which records rollouts and metrics.
        settings: what a resumed run must have in common with this one.
        drafter: that of the start checkpoint, which its successors keep: it changes with the shared weights.
        callbacks: further callbacks.
    """

    args: GravityConfig

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        reward_functions: Sequence[RewardFunction],
        args: GravityConfig,
        train_dataset: Dataset,
        processor: Any,
        run: RunDirectory,
        settings: dict[str, Any] | None = None,
        drafter: BlockDiffusion | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ):
        self.run = run
        self._rollouts: list[Rollout] = []
        self._completions: Completions | None = None
        self._last_generation = (-1, 0)  # optimiser steps done before it, and its number among those of its step
        generation = dict(args.generation_kwargs or {})
        banned = {*generation.get("suppress_tokens", ()), *never_sampled_ids(model, processor.tokenizer)}
        banned |= set() if drafter is None else {drafter.mask_id}
        args.generation_kwargs = {**generation, "suppress_tokens": sorted(banned)}
        super().__init__(
            model=model,
            reward_funcs=list(reward_functions),
            args=args,
            train_dataset=train_dataset,
            processing_class=processor,
            callbacks=list(callbacks),
            settings=settings,
            drafter=drafter,
        )
        self.engine = self._build_engine()
        self._drafting = DraftingLog(run, drafts=args.rollout == "self_spec")
        run.attach(self)

    def _build_engine(self) -> RolloutEngine:
        """The engine that ``rollout`` names; what is wrong with tokens is said before training.

        Raises:
            ConfigError: an end token is among those that are never chosen.
            ModelError: the checkpoint's tokens contradict each other.
        """
        decoding_tokens(self.model, self.processing_class, None if self.drafter is None else self.drafter.mask_id)
        banned = self.args.generation_kwargs["suppress_tokens"]
        refuse_banned_ends(self.eos_token_ids, banned)
        if self.args.rollout == "transformers":
            trl = super()._generate_single_turn
            return TransformersEngine(
                lambda prompts: trl(prompts.ids, prompts.images, prompts.fields, self.num_generations)[0], self.args
            )
        rows = self.model.get_input_embeddings().num_embeddings
        return DecodingEngine(
            self._live_policy,
            self.args,
            pad_token_id=self._tokenizer.pad_token_id,
            eos_token_ids=self.eos_token_ids,
            banned_token_ids=[id_ for id_ in banned if id_ < rows],
            drafter=self.drafter,
        )

    @contextmanager
    def _live_policy(self) -> Iterator[Any]:
        """The policy as TRL generates with it, in the precision of the training forward."""
        with (
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as model,
            torch.no_grad(),
            self.accelerator.autocast(),
        ):
            yield model

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        """Completions of one rank's prompts: ids and no log-probabilities, so that nothing depends on the
        engine."""
        step, count = self.state.global_step, len(prompt_ids)
        self._last_generation = (step, self._last_generation[1] + 1 if self._last_generation[0] == step else 0)
        first = self.accelerator.process_index * count
        self._completions = self.engine.generate(
            Prompts(prompt_ids, images, multimodal_fields),
            seed=generation_seed(self.args.seed, *self._last_generation),
            row_ids=range(first, first + count),
        )
        return self._completions.ids, None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Rewards of all ranks' completions by function, shape (ranks × B, F), after they were recorded.

        Raises:
            RewardError: a reward is not a finite number; the generation's rollouts are on disk by then.
        """
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if not self.model.training:
            return rewards
        self._rollouts = self._record(inputs, completions, completion_ids_list, rewards)
        self._refuse_non_finite(rewards)
        rewards[self._is_unscored(rewards)] = math.nan  # whatever the other functions say
        return self._shuffled(rewards) if self.args.shuffle_rewards else rewards

    def _record(self, inputs, completions, completion_ids_list, rewards) -> list[Rollout]:
        """One record for each completion of this generation, of all ranks, in the order of ``rewards``."""
        ocr = next((function for function in self.reward_funcs if isinstance(function, RecordedOCRReward)), None)
        parts = ocr.parts if ocr is not None else [{}] * len(inputs)
        local = [
            {
                "id": row["id"],
                "source": row["source"],
                "task": row["task"],
                "completion": completion[0]["content"],
                "reference": row["reference"],
                "parts": part,
                "length": len(ids),
                "truncated": ids[-1] not in self.eos_token_ids,
            }
            for row, completion, ids, part in zip(inputs, completions, completion_ids_list, parts, strict=True)
        ]
        names, first_prompt = self.reward_func_names, self._last_generation[1] * (len(rewards) // self.num_generations)
        totals = (rewards * self.reward_weights.to(rewards.device)).sum(dim=1).tolist()
        return [
            Rollout(
                step=self.state.global_step + 1,
                prompt_id=first_prompt + index // self.num_generations,
                reward=_finite(total),
                rewards=dict(zip(names, map(_finite, values), strict=True)),
                **record,
            )
            for index, (record, values, total) in enumerate(
                zip(gather_object(local), rewards.tolist(), totals, strict=True)
            )
        ]

    def _refuse_non_finite(self, rewards: torch.Tensor) -> None:
        is_bad = ~torch.isfinite(rewards)
        is_bad[self._is_unscored(rewards)] = False
        bad = is_bad.nonzero().tolist()
        if not bad:
            return
        path = self.run.write_rollouts(self._rollouts, self._last_generation[1])
        where = "" if self.args.dry_run else f"; the step's rollouts are in {path}"  # those of a dry run are deleted
        index, function = bad[0]
        row = self._rollouts[index]
        raise RewardError(
            f"reward function {self.reward_func_names[function]!r} returned "
            f"{rewards[index, function].item()} (None reads as nan) for row {row.id!r} of task {row.task!r}: "
            f"{len(bad)} of {rewards.numel()} rewards of step {row.step} are no finite numbers{where}"
        )

    def _is_unscored(self, rewards: torch.Tensor) -> torch.Tensor:
        """Which rows of ``rewards`` (N, F) the workers of the OCR reward could not score, as booleans (N,)."""
        if not self.args.reward_workers:
            return torch.zeros(len(rewards), dtype=torch.bool, device=rewards.device)
        return torch.isnan(rewards[:, self.reward_func_names.index(OCR_REWARD)])

    def _shuffled(self, rewards: torch.Tensor) -> torch.Tensor:
        """The rewards permuted within each group, the same way on every rank. ``rewards``: (N, F)."""
        generator = torch.Generator().manual_seed(generation_seed(self.args.seed, *self._last_generation))
        groups = rewards.view(-1, self.num_generations, rewards.size(1)).clone()
        for group in groups:
            group.copy_(group[torch.randperm(self.num_generations, generator=generator).to(group.device)])
        return groups.view_as(rewards)

    def _generate_and_score_completions(self, inputs):
        """TRL's batch; in training, also records the generation and its per-task metrics."""
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            advantages = gather(output["advantages"]).tolist()
            rollouts = [
                dataclasses.replace(rollout, advantage=advantage)
                for rollout, advantage in zip(self._rollouts, advantages, strict=True)
            ]
            self.run.write_rollouts(rollouts, self._last_generation[1])
            if self.args.reward_workers:
                unscored = sum(rollout.rewards[OCR_REWARD] is None for rollout in rollouts)
                self._metrics["train"]["rewards/unscored"].append(float(unscored))
            metrics = rollout_metrics(rollouts)
            if self._completions is not None:
                metrics |= self._drafting.metrics([row["task"] for row in inputs], self._completions)
            for name, value in metrics.items():
                self._metrics["train"][name].append(value)
        return output

    def close(self) -> None:
        """End the worker processes of the OCR reward."""
        for function in self.reward_funcs:
            if isinstance(function, RecordedOCRReward):
                function.close()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
