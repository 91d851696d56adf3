"""Held-out reward of a model, sampled at temperature 1 and greedy, by task.

Sampling adds Gumbel noise to the logits and takes the argmax, which draws exactly from the model's
distribution. The noise is the decoder's (``gravity_rl.decoding.noise``): it depends on the seed, the crop's position in
the dataset and the position in the completion alone, so that neither the engine nor batch size nor the number of
processes changes what is drawn (up to rounding in differently shaped matrix products), the global random state stays
untouched, and two checkpoints are compared on common random numbers.

Training runs it before the first and after the last step, with its own rollout engine. On its own, also through
``accelerate launch``:

    python -m gravity_rl.evaluate --model_name_or_path runs/grpo/final --eval_data held_out.jsonl
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from tqdm import tqdm
from transformers import GlmOcrForConditionalGeneration, PreTrainedModel
from trl.data_utils import prepare_multimodal_messages

from gravity_rl.config import check_rollout_name
from gravity_rl.data import DataError, load_ocr_dataset
from gravity_rl.data.config import DataConfig
from gravity_rl.metrics import DECODINGS, Prediction, format_results, summarise
from gravity_rl.model import ModelError, load_model, load_ocr_processor, resolve_checkpoint
from gravity_rl.parsing import ConfigError, StrictParser
from gravity_rl.preflight import check_rollout, default_rollout
from gravity_rl.reading import Cost, Method, Reader, decoding_costs, format_costs
from gravity_rl.recorder import write_json, write_table
from gravity_rl.run_config import ModelArguments
from rewards import RewardConfig, score
from rewards.adapters.trl import OCRReward


def evaluate(
    model: PreTrainedModel,
    processor: Any,
    dataset: Dataset,
    config: RewardConfig,
    *,
    seed: int,
    batch_size: int,
    max_new_tokens: int,
    predictions_file: Path | None = None,
    autocast_dtype: torch.dtype | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    method: Method | None = None,
) -> dict[str, Any]:
    """Held-out reward of `model`; every process takes a share of the rows and gets the whole result.

    Args:
        model: the unwrapped, unsharded model; its training mode is restored afterwards.
        processor: its processor.
        dataset: rows with columns prompt, image, task, reference, id, source.
        config: constants of the reward.
        seed: seed of the samples.
        batch_size: crops read together on one device.
        max_new_tokens: completion limit, in tokens.
        predictions_file: where the main process writes every prediction as Parquet.
        autocast_dtype: precision of mixed-precision inference; None runs in the precision of the weights.
        chat_template_kwargs: passed to the chat template, as in training.
        method: how crops are read; by default ``ar`` for GLM-OCR, ``transformers`` for other models.

    Returns:
        decoding (``sampled``, ``greedy``) → task or ``all`` → ``crops``, ``reward``, ``reward_std``,
        ``length``, ``truncated``, and, for a task, the mean of each reward component and ``gated``. With ``ar`` and
        ``self_spec`` also ``decoding``, see :func:`gravity_rl.reading.decoding_costs`.

    Raises:
        ModelError: the checkpoint's tokens contradict each other, its logits are not finite, or memory is too small.
    """
    state = PartialState()
    texts = dataset.select_columns(["id", "source", "task", "reference"]).with_format(None).to_list()
    order = sorted(range(len(texts)), key=lambda row: (-len(texts[row]["reference"]), row))  # similar lengths
    mine = order[state.process_index :: state.num_processes]
    if method is None:
        method = Method("ar" if isinstance(model, GlmOcrForConditionalGeneration) else "transformers")
    reader = Reader(model, processor, method, seed, max_new_tokens)
    local: list[Prediction] = []
    costs: list[Cost] = []
    was_training = model.training
    model.eval()
    autocast = torch.autocast(model.device.type, dtype=autocast_dtype, enabled=autocast_dtype is not None)
    try:
        for rows, inputs in prompt_batches(processor, dataset, mine, batch_size, dict(chat_template_kwargs or {})):
            for decoding in DECODINGS:
                crops = [texts[row] | {"row": row, "decoding": decoding} for row in rows]
                with torch.no_grad(), autocast:
                    ids, cost = reader.read(inputs.to(model.device), crops)
                local += _scored(crops, ids, processor, config, reader.end_ids)
                costs += cost
    finally:
        model.train(was_training)
    predictions = sorted(gather_object(local), key=lambda p: (DECODINGS.index(p.decoding), p.row))
    if predictions_file is not None and state.is_main_process:
        write_table(predictions_file, _as_table(predictions))
    taken = decoding_costs(method.rollout, gather_object(costs))
    return summarise(predictions) | ({"decoding": taken} if taken else {})


def prompt_batches(
    processor: Any, dataset: Dataset, rows: Sequence[int], batch_size: int, template_kwargs: dict[str, Any]
) -> Iterator[tuple[list[int], Any]]:
    """Dataset positions and model inputs of each batch."""
    starts = range(0, len(rows), batch_size)
    for start in tqdm(starts, desc="reading held-out crops", unit="batch", disable=not PartialState().is_main_process):
        batch = list(rows[start : start + batch_size])
        prompts = [
            prepare_multimodal_messages(example["prompt"], images=[example["image"]])
            for example in (dataset[row] for row in batch)
        ]
        yield (
            batch,
            processor.apply_chat_template(
                prompts,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs={"padding": True},
                **template_kwargs,
            ),
        )


def _scored(
    crops: Sequence[dict[str, Any]],
    ids: Sequence[list[int]],
    processor: Any,
    config: RewardConfig,
    end_ids: Sequence[int],
) -> list[Prediction]:
    """Predictions of a batch from the token ids of its completions."""
    completions = processor.batch_decode(list(ids), skip_special_tokens=True)
    tasks, references = ([crop[name] for crop in crops] for name in ("task", "reference"))
    scores = OCRReward(config).scores(completions, tasks, references)
    return [
        Prediction(
            completion=completion,
            reward=score.value,
            parts=dict(score.parts),
            length=len(row),
            truncated=row[-1] not in end_ids,
            **crop,
        )
        for crop, completion, score, row in zip(crops, completions, scores, ids, strict=True)
    ]


def _as_table(predictions: Sequence[Prediction]) -> pa.Table:
    return pa.Table.from_pylist([asdict(p) | {"parts": json.dumps(dict(p.parts))} for p in predictions])


def load_split(data: DataConfig, **options: Any) -> Dataset:
    """The rows of a split; see ``load_ocr_dataset`` for the options.

    Raises:
        DataError: something is wrong with the data; lists everything.
        ConfigError: a setting of the data is wrong.
    """
    try:
        return load_ocr_dataset(data, **options)
    except DataError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


@dataclass
class HeldOutConfig:
    """What all stand-alone evaluations of held-out crops can be told."""

    output_dir: str = field(
        default="runs/evaluation", metadata={"help": "Folder for evaluation.json and predictions.parquet."}
    )
    max_completion_length: int = field(default=8448, metadata={"help": "Completion limit, in tokens."})
    evaluation_batch_size: int = field(default=64, metadata={"help": "Crops read together on one device."})
    evaluation_seed: int = field(default=0, metadata={"help": "Seed of the samples."})
    bf16: bool = field(default=False, metadata={"help": "Run the forward in bfloat16 mixed precision."})
    use_cpu: bool = field(default=False, metadata={"help": "Use the CPU even where there is a GPU."})

    def __post_init__(self) -> None:
        if not self.output_dir:
            raise ConfigError("output_dir is empty: name the folder that the result is written to")
        for name, least in (("max_completion_length", 1), ("evaluation_batch_size", 1), ("evaluation_seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: {getattr(self, name)} must be at least {least}")


@dataclass
class EvaluateConfig(HeldOutConfig):
    """Settings of this evaluation."""

    rollout: str | None = field(
        default=None,
        metadata={
            "help": "Engine that reads the crops: self_spec, ar or transformers; all give the same. Default: self_spec "
            "if a GLM-OCR model has a drafter and a trained AR path, ar for others, transformers for other models."
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rollout is not None:
            check_rollout_name(self.rollout)


def make_folder(name: str) -> Path:
    """The output folder, created if missing.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir: {name} cannot be made a folder: {error.strerror}") from error
    return Path(name)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        parser = StrictParser(
            [EvaluateConfig, ModelArguments, DataConfig, RewardConfig], description="Held-out evaluation."
        )
        run, model_args, data, rewards = parser.parse(sys.argv[1:] if argv is None else argv)
        state = PartialState(cpu=run.use_cpu)
        folder = resolve_checkpoint(model_args.model_name_or_path, model_args.revision)
        rollout = run.rollout or default_rollout(folder)
        processor = load_ocr_processor(folder, min_pixels=data.min_pixels, max_pixels=data.max_pixels)
        drafter = check_rollout(rollout, folder, processor, model_args.attn_implementation)
        scorer = partial(score, config=rewards)
        dataset = load_split(data, split="eval", seed=run.evaluation_seed, check_scores=True, scorer=scorer)
        model = load_model(folder, model_args).to(state.device)
        output = make_folder(run.output_dir)
        result = evaluate(
            model,
            processor,
            dataset,
            rewards,
            seed=run.evaluation_seed,
            batch_size=run.evaluation_batch_size,
            max_new_tokens=run.max_completion_length,
            predictions_file=output / "predictions.parquet",
            autocast_dtype=torch.bfloat16 if run.bf16 else None,
            method=Method(rollout, drafter=drafter),
        )
    except (ConfigError, DataError, ModelError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if state.is_main_process:
        write_json(output / "evaluation.json", result)
        print(format_results({"": result}))
        if "decoding" in result:
            print(format_costs(result["decoding"]))
    state.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
