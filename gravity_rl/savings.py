"""What self-speculation saved a run: forwards of all its rollouts, and seconds of one generation, side by side with AR.

The forwards come from the run's records: AR decoding takes as many as the longest completion of a generation is long.
The seconds are measured here, on the run's final model and held-out crops, in turns, and the completions of both
methods are compared token by token. ``make demo`` prints the result:

    saving = measure_saving(Path("runs/demo"), heldout_file)
    print(saving)
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.data.config import DataConfig
from gravity_rl.decoding import CostModel, Decoded, generate
from gravity_rl.evaluate import load_split, prompt_batches
from gravity_rl.joint.drafter import BlockDiffusion, load_glm_ocr, require_drafter
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.model import load_ocr_processor
from gravity_rl.parsing import ConfigError, read_yaml
from gravity_rl.recorder import read_metrics, read_rollouts
from gravity_rl.run_config import ModelArguments

PROMPTS, GENERATIONS = 4, 14  # as many completions as the demo writes for a step
MAX_NEW_TOKENS = 256
TURNS = 5


class SavingError(RuntimeError):
    """Self-speculation and AR decoding wrote different tokens, which they never may."""


@dataclass(frozen=True)
class Saving:
    """What was saved.

    Attributes:
        tokens: tokens of all rollouts.
        forwards, ar_forwards: of all rollouts of the run, and those that AR decoding takes for the same.
        completions: completions of the measured generation.
        seconds, ar_seconds: medians of one generation, prefill included.
    """

    tokens: int
    forwards: int
    ar_forwards: int
    completions: int
    seconds: float
    ar_seconds: float

    def __str__(self) -> str:
        return (
            f"Self-speculative rollouts: {self.forwards:,} forwards for {self.tokens:,} tokens, where AR decoding "
            f"takes {self.ar_forwards:,} ({self.ar_forwards / self.forwards:.1f} times as many).\n"
            f"{self.completions} completions of the final model: {self.seconds:.2f} s, by AR {self.ar_seconds:.2f} s "
            f"({self.ar_seconds / self.seconds:.2f} times as long), every token the same."
        )


def measure_saving(run: Path, heldout: Path) -> Saving:
    """Read the records of a finished run with ``rollout: self_spec`` on one process, and time its final model.

    Args:
        run: the run directory.
        heldout: crops in the dataset contract, at least ``PROMPTS``.

    Raises:
        SavingError: the methods disagree.
        ConfigError: a line of the run's metrics covers several generations, whose mean is all that it says.
    """
    _require_line_per_generation(run)
    lengths: dict[int, list[int]] = defaultdict(list)
    for row in read_rollouts(run).select(["step", "length"]).to_pylist():
        lengths[row["step"]].append(row["length"])
    sequences, times = _race(run / "final", heldout)
    if sequences["self_spec"] != sequences["ar"]:
        raise SavingError(f"self_spec and ar wrote different tokens with {run / 'final'}: please report this")
    return Saving(
        tokens=sum(map(sum, lengths.values())),
        forwards=round(sum(line.get("rollout/forwards", 0) for line in read_metrics(run))),
        ar_forwards=sum(map(max, lengths.values())),
        completions=PROMPTS * GENERATIONS,
        seconds=statistics.median(times["self_spec"]),
        ar_seconds=statistics.median(times["ar"]),
    )


def _require_line_per_generation(run: Path) -> None:
    training = read_yaml(run / "config.yaml")
    accumulation, total = training["gradient_accumulation_steps"], training["generation_batch_size"]
    steps = training["steps_per_generation"] or accumulation
    if total is not None:
        steps = total // training["per_device_train_batch_size"]
    if training["logging_steps"] != 1 or steps * training["num_iterations"] < accumulation:
        raise ConfigError(
            f"{run}/config.yaml: the forwards of a run can only be counted with logging_steps: 1 and at most one "
            "generation for each optimizer step"
        )


def _race(folder: Path, heldout: Path) -> tuple[dict[str, list[list[int]]], dict[str, list[float]]]:
    """The completions of both methods, and the seconds of each turn, after one to warm up."""
    processor = load_ocr_processor(folder)
    model = load_glm_ocr(folder, ModelArguments(model_name_or_path=str(folder)))
    dataset = load_split(DataConfig(eval_data=[str(heldout)]), split="eval", seed=0)
    crops = [index * len(dataset) // PROMPTS for index in range(PROMPTS)]
    rows = [crop for crop in crops for _ in range(GENERATIONS)]
    _, inputs = next(iter(prompt_batches(processor, dataset, rows, len(rows), {})))
    drafter, cost_model = require_drafter(folder), CostModel()
    sequences: dict[str, list[list[int]]] = {}
    times: dict[str, list[float]] = {"self_spec": [], "ar": []}
    for turn in range(TURNS + 1):
        for method, seconds in times.items():
            began = time.perf_counter()
            out = _decode(model, processor, inputs, method, drafter, cost_model)
            if turn:
                seconds.append(time.perf_counter() - began)
            sequences[method] = [sequence.tolist() for sequence in out.sequences]
    return sequences, times


def _decode(
    model: GlmOcrForConditionalGeneration,
    processor: Any,
    inputs: dict[str, torch.Tensor],
    method: str,
    drafter: BlockDiffusion,
    cost_model: CostModel,
) -> Decoded:
    ends, banned = decoding_tokens(model, processor, drafter.mask_id)
    return generate(
        model, inputs, method=cast(Literal["ar", "self_spec"], method), max_new_tokens=MAX_NEW_TOKENS,
        eos_token_ids=ends, banned_token_ids=banned, drafter=drafter, cost_model=cost_model,
    )  # fmt: skip
