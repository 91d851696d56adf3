"""The tokens and settings of a checkpoint that training and decoding rely on, checked before the first step.

A checkpoint's files can contradict each other. Here that is said at once, by file and field; otherwise it would come up
in the first row, or when held-out crops are read after hours of training.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from gravity_rl.model import ModelError, never_sampled_ids


def require_trainable(model: PreTrainedModel, processor: Any) -> None:
    """Check what packed rows need.

    Raises:
        ModelError: there is no end token, model and processor disagree about the image token, or attention has dropout.
    """
    if processor.tokenizer.eos_token_id is None:
        raise ModelError("tokenizer_config.json: eos_token is missing, but responses end with it; add it")
    if model.config.image_token_id != processor.image_token_id:
        raise ModelError(
            f"config.json: image_token_id is {model.config.image_token_id}, but tokenizer.json gives "
            f"{processor.image_token} the id {processor.image_token_id}: the files belong to different checkpoints"
        )
    dropout = model.config.text_config.attention_dropout
    if dropout:
        raise ModelError(f"config.json: attention_dropout is {dropout}, which packed rows do not support; set it to 0")


def end_ids(model: PreTrainedModel, processor: Any) -> list[int]:
    """Ids that end a completion: the tokenizer's and all that the checkpoint declares, as in TRL's trainer."""
    return sorted({processor.tokenizer.eos_token_id, *_declared_ends(model)})


def _declared_ends(model: PreTrainedModel) -> list[Any]:
    declared = model.generation_config.eos_token_id
    return declared if isinstance(declared, list) else [] if declared is None else [declared]


def decoding_tokens(model: PreTrainedModel, processor: Any, mask_id: int | None) -> tuple[list[int], list[int]]:
    """Ids that end a completion, and ids that are never chosen.

    Args:
        model: gives the vocabulary, and ids that its generation configuration declares.
        processor: its ``tokenizer`` gives the others.
        mask_id: the mask token, which is never chosen; None for a checkpoint without a drafter.

    Raises:
        ModelError: the checkpoint lacks an end or padding token, or declares an end token that is none.
    """
    for name in ("eos_token", "pad_token"):
        if getattr(processor.tokenizer, name) is None:
            raise ModelError(f"tokenizer_config.json: {name} is missing, but reading crops needs it; add it")
    if mask_id == processor.tokenizer.eos_token_id:
        raise ModelError(f"block_diffusion.json: mask_id {mask_id} is the end token; correct it")
    rows = model.get_input_embeddings().num_embeddings
    for id_ in _declared_ends(model):
        if not isinstance(id_, int) or not 0 <= id_ < rows or id_ == mask_id:
            what = "the mask token" if id_ == mask_id else f"no token of a vocabulary of {rows}"
            raise ModelError(f"generation_config.json: eos_token_id {id_!r} is {what}; correct it")
    banned = {*never_sampled_ids(model, processor.tokenizer), *([] if mask_id is None else [mask_id])}
    return end_ids(model, processor), sorted(id_ for id_ in banned if id_ < rows)
