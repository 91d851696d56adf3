"""Held-out crops read by a checkpoint that drafts for itself: reward, accepted drafts and tokens per forward, by task.

Greedy decoding commits the verifier's own predictions, so the reward at temperature 0 is that of AR greedy decoding.
Joint training runs this every ``evaluation_steps``; on its own:

    python -m gravity_rl.joint.evaluate --model_name_or_path shipped:tiny-reader --eval_data heldout.jsonl
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset

from gravity_rl.data import DataError
from gravity_rl.data.config import DataConfig
from gravity_rl.decoding import ATTENTIONS, MIN_TEMPERATURE, DecodeMemoryError, generate
from gravity_rl.evaluate import HeldOutConfig, load_split, make_folder, prompt_batches
from gravity_rl.joint.drafter import BlockDiffusion, check_mask_id, load_glm_ocr, require_drafter
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.model import ModelError, load_ocr_processor, resolve_checkpoint
from gravity_rl.parsing import ConfigError, StrictParser
from gravity_rl.recorder import write_json, write_table
from gravity_rl.run_config import ModelArguments
from rewards import RewardConfig, score
from rewards.adapters.trl import OCRReward


@dataclass(frozen=True)
class DraftedCrop:
    """A held-out crop as the model read it.

    Attributes:
        row, id, task, reference: the crop.
        completion, reward: what was read, and its reward.
        tokens: committed tokens, the end token included.
        rounds: rounds of drafting and verifying, two forwards each.
        accepted: accepted drafts of all rounds.
        truncated: whether the limit cut the completion.
    """

    row: int
    id: str
    task: str
    reference: str
    completion: str
    reward: float
    tokens: int
    rounds: int
    accepted: int
    truncated: bool


@dataclass
class Decoding:
    """How held-out crops are read."""

    drafter: BlockDiffusion
    block_size: int
    batch_size: int
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    autocast_dtype: torch.dtype | None = None


def read_crops(
    model: Any, processor: Any, dataset: Dataset, config: RewardConfig, decoding: Decoding
) -> list[DraftedCrop]:
    """Read all crops by self-speculation; every process takes a share and gets the whole result.

    Args:
        model: the unwrapped, unsharded model; its training mode is restored afterwards.
        processor: its processor.
        dataset: rows with columns prompt, image, task, reference, id, source.
        config: constants of the reward.
        decoding: how to decode.

    Raises:
        ModelError: the checkpoint's tokens contradict each other, its logits are not finite, or memory is too small.
    """
    state = PartialState()
    texts = dataset.select_columns(["id", "task", "reference"]).with_format(None).to_list()
    order = sorted(range(len(texts)), key=lambda row: (-len(texts[row]["reference"]), row))  # similar lengths
    local: list[DraftedCrop] = []
    ends, banned = decoding_tokens(model, processor, decoding.drafter.mask_id)
    autocast = torch.autocast(
        model.device.type, dtype=decoding.autocast_dtype, enabled=decoding.autocast_dtype is not None
    )
    mine = order[state.process_index :: state.num_processes]
    for rows, inputs in prompt_batches(processor, dataset, mine, decoding.batch_size, {}):
        try:
            with autocast:
                output = generate(
                    model, inputs.to(model.device), method="self_spec", block_size=decoding.block_size,
                    drafter=decoding.drafter, temperature=decoding.temperature, seed=decoding.seed, row_ids=rows,
                    max_new_tokens=decoding.max_new_tokens, eos_token_ids=ends, banned_token_ids=banned,
                )  # fmt: skip
        except DecodeMemoryError as error:
            raise ModelError(f"evaluation_batch_size: {len(rows)} crops at once are too many: {error}") from error
        except FloatingPointError as error:
            ids = ", ".join(texts[row]["id"] for row in rows)
            raise ModelError(f"crops {ids}: {error}: the weights are damaged, or training has diverged") from error
        crops = [texts[row] for row in rows]
        completions = processor.batch_decode([ids.tolist() for ids in output.sequences], skip_special_tokens=True)
        scores = OCRReward(config).scores(
            completions, *([crop[name] for crop in crops] for name in ("task", "reference"))
        )
        for index, (row, crop, completion) in enumerate(zip(rows, crops, completions, strict=True)):
            ids, counts = output.sequences[index].tolist(), output.row_stats[index]
            local.append(
                DraftedCrop(
                    row=row,
                    completion=completion,
                    reward=scores[index].value,
                    tokens=len(ids),
                    rounds=counts.rounds,
                    accepted=counts.accepted_drafts,
                    truncated=ids[-1] not in ends,
                    **crop,
                )
            )
    return sorted(gather_object(local), key=lambda crop: crop.row)


def summarise(crops: Sequence[DraftedCrop]) -> dict[str, dict[str, float]]:
    """Task or ``all`` → number of crops, and means: reward, tokens and accepted drafts a round, TPF, length, truncated.

    Rounds are counted over the task's crops together; TPF counts the two forwards of each round, without prefill.
    """
    groups = {"all": list(crops)} | {
        task: [c for c in crops if c.task == task] for task in sorted({c.task for c in crops})
    }
    return {name: _means(group) for name, group in groups.items()}


def _means(crops: Sequence[DraftedCrop]) -> dict[str, float]:
    tokens, rounds = sum(crop.tokens for crop in crops), sum(crop.rounds for crop in crops)
    return {
        "crops": len(crops),
        "reward": sum(crop.reward for crop in crops) / len(crops),
        "tokens_per_round": tokens / rounds,
        "accepted_per_round": sum(crop.accepted for crop in crops) / rounds,
        "tpf": tokens / (2 * rounds),
        "length": tokens / len(crops),
        "truncated": sum(crop.truncated for crop in crops) / len(crops),
    }


def write_crops(file: Path, crops: Sequence[DraftedCrop]) -> None:
    """Write every crop as Parquet."""
    write_table(file, pa.Table.from_pylist([asdict(crop) for crop in crops]))


@dataclass
class DraftEvaluation(HeldOutConfig):
    """Settings of the stand-alone evaluation, besides those of ``gravity_rl.evaluate``."""

    output_dir: str = field(default="runs/drafting", metadata={"help": "Folder for drafting.json and the predictions."})
    block_size: int | None = field(
        default=None, metadata={"help": "Drafted tokens of a round. Default: the checkpoint's block size."}
    )
    temperatures: list[float] = field(
        default_factory=lambda: [0.0, 1.0], metadata={"help": "Temperatures to read at; 0 is greedy."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size is not None and self.block_size < 1:
            raise ConfigError(f"block_size: {self.block_size} must be at least 1")
        if not self.temperatures or not all(v == 0 or MIN_TEMPERATURE <= v < 100 for v in self.temperatures):
            raise ConfigError(f"temperatures: {self.temperatures} must be 0 or between {MIN_TEMPERATURE} and 100 each")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        parser = StrictParser(
            [DraftEvaluation, ModelArguments, DataConfig, RewardConfig], description="Held-out crops, drafted."
        )
        run, model_args, data, rewards = parser.parse(sys.argv[1:] if argv is None else argv)
        state = PartialState(cpu=run.use_cpu)
        folder = resolve_checkpoint(model_args.model_name_or_path, model_args.revision)
        drafter = require_drafter(folder)
        if model_args.attn_implementation not in (None, *ATTENTIONS):
            raise ConfigError(
                f"attn_implementation: {model_args.attn_implementation!r} does not take the masks of drafting; "
                f"choose one of {', '.join(ATTENTIONS)}"
            )
        processor = load_ocr_processor(folder, min_pixels=data.min_pixels, max_pixels=data.max_pixels)
        check_mask_id(processor.tokenizer, drafter.mask_id)
        scorer = partial(score, config=rewards)
        dataset = load_split(data, split="eval", seed=run.evaluation_seed, check_scores=True, scorer=scorer)
        model = load_glm_ocr(folder, model_args).to(state.device)
        require_drafter(folder, model.get_input_embeddings().num_embeddings)
        output = make_folder(run.output_dir)
        results = {}
        for temperature in run.temperatures:
            decoding = Decoding(
                drafter, run.block_size or drafter.bd_size, run.evaluation_batch_size,
                run.max_completion_length, temperature, run.evaluation_seed, torch.bfloat16 if run.bf16 else None,
            )  # fmt: skip
            crops = read_crops(model, processor, dataset, rewards, decoding)
            results[f"temperature {temperature:g}"] = summarise(crops)
            if state.is_main_process:
                write_crops(output / f"temperature_{temperature:g}.parquet", crops)
    except (ConfigError, DataError, ModelError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if state.is_main_process:
        write_json(output / "drafting.json", results)
        print(format_table(results))
    state.destroy_process_group()
    return 0


def format_table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """A table of the results, a line for each decoding and task."""
    names = ("crops", "reward", "tokens_per_round", "accepted_per_round", "tpf", "length", "truncated")
    lines = [f"{'':24}" + "".join(f"{name:>20}" for name in names)]
    for decoding, tasks in results.items():
        for task, values in tasks.items():
            cells = "".join(f"{values[name]:>20.3f}" if name != "crops" else f"{values[name]:>20}" for name in names)
            lines.append(f"{decoding + ' ' + task:24}" + cells)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
