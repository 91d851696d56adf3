"""The drafter of a checkpoint: what ``block_diffusion.json`` says about it, and the mask token that it needs.

A drafter adds no weights to GLM-OCR but one embedding row, that of the mask token, so what tells a checkpoint
with a drafter from one without is a small file beside the weights. This module reads, writes and demands that
file, gives a model and its tokenizer the mask token before training, and loads the one architecture that joint
training supports. Used by ``gravity_rl/adapt.py`` and wherever drafting is asked for.

Shape suffixes: V rows of the vocabulary, H hidden units, K rows that moments are taken over, N new rows.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GlmOcrForConditionalGeneration, PreTrainedModel

from gravity_rl.model import ModelError, load_model
from gravity_rl.run_config import ModelArguments

FILE = "block_diffusion.json"
MASK_TOKEN = "<|mask|>"

_GLM_OCR = "glm_ocr"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class BlockDiffusion:
    """How a checkpoint's drafter was trained: the published fields of ``block_diffusion.json``.

    Attributes:
        bd_size: block size, in tokens.
        mask_id: token id of the mask token.
        ar_loss_weight: weight of the AR loss; above 0, the AR path is trained and can verify drafts.
        mask_schedule: ``uniform`` (each block masks a share t ~ U(0,1)) or ``all`` (every token is masked). Drafting
            does not depend on it, so a file with another word in its place is read too.
    """

    bd_size: int
    mask_id: int
    ar_loss_weight: float
    mask_schedule: str


def read_block_diffusion(folder: Path) -> BlockDiffusion | None:
    """What a checkpoint says about its drafter; None if it has no ``block_diffusion.json``.

    Fields other than those of :class:`BlockDiffusion` are skipped: published files have more.

    Raises:
        ModelError: the file is no JSON object, lacks a field, or a field has a value of the wrong kind or range.
    """
    file = Path(folder) / FILE
    if not file.exists():
        return None
    fields = _read_object(file)
    return BlockDiffusion(
        bd_size=_integer(file, fields, "bd_size", least=1),
        mask_id=_integer(file, fields, "mask_id", least=0),
        ar_loss_weight=_number(file, fields, "ar_loss_weight"),
        mask_schedule=_word(file, fields, "mask_schedule"),
    )


def write_block_diffusion(folder: Path, settings: BlockDiffusion) -> None:
    """Write ``block_diffusion.json`` into a checkpoint folder, replacing one that is there."""
    text = json.dumps(asdict(settings), indent=2, allow_nan=False) + "\n"
    (Path(folder) / FILE).write_text(text, encoding="utf-8")


def require_drafter(folder: Path, vocab_size: int | None = None) -> BlockDiffusion:
    """The drafter settings of a checkpoint that is about to draft for itself.

    Args:
        folder: checkpoint folder.
        vocab_size: rows of the model's input embedding, which ``mask_id`` must lie within; None leaves that out.

    Raises:
        ModelError: the checkpoint has no drafter, an AR path that cannot verify drafts, a mask token without an
            embedding row, or a ``block_diffusion.json`` that :func:`read_block_diffusion` refuses.
    """
    settings = read_block_diffusion(folder)
    if settings is None:
        raise ModelError(
            f"{folder} has no {FILE}: it has no trained drafter; train one with gravity_rl/adapt.py, or decode with "
            "method ar"
        )
    file = Path(folder) / FILE
    if settings.ar_loss_weight <= 0:
        raise ModelError(
            f"{file}: ar_loss_weight is {settings.ar_loss_weight:g}: its AR path was not trained and cannot verify "
            "drafts; train it with gravity_rl/adapt.py and an AR loss weight above 0"
        )
    if vocab_size is not None and settings.mask_id >= vocab_size:
        raise ModelError(_no_row(str(file), settings.mask_id, vocab_size))
    return settings


def add_mask_token(model: PreTrainedModel, processor: Any, seed: int, existing: BlockDiffusion | None = None) -> int:
    """Give model and tokenizer the mask token, in place.

    Without `existing`, the token's input row is drawn anew, also when the tokenizer already names the token: nothing
    says that such a row was ever trained. Every dimension is drawn from a normal with the mean and variance of that
    dimension over the rows of the tokenizer's other tokens (GravityOCR, section 2); spare rows and the padding row,
    which hold no token's embedding, do not count. A new token takes the tokenizer's next free id, which is a spare
    row of the embedding where there is one; else the matrices grow up to that id. An untied head keeps its row at a
    spare id (generation bans the token, see :func:`gravity_rl.model.never_sampled_ids`), and a row that it grows
    by is drawn like the embedding's, from its own moments. The global random state is not touched.

    With `existing`, weights and mask id stay as they are. A tokenizer that does not name the id gets the token
    only if it would give it that very id.

    Args:
        model: with embedding and head of V rows.
        processor: its ``tokenizer`` is changed.
        seed: of the draw.
        existing: the checkpoint's own settings, if it already has a drafter.

    Returns:
        The token id of ``<|mask|>``.

    Raises:
        ModelError: tokenizer, embedding and `existing` contradict each other.
    """
    tokenizer = processor.tokenizer
    rows = model.get_input_embeddings().weight.shape[0]
    _check_rows_of_tokens(tokenizer, rows)
    if existing is not None:
        _keep_mask_token(tokenizer, existing.mask_id, rows)
        return existing.mask_id
    mask_id = _name_mask_token(tokenizer)
    if mask_id >= rows:
        _grow(model, mask_id + 1)
    new_ids = range(min(rows, mask_id), mask_id + 1)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    sampled = sorted(set(tokenizer.get_vocab().values()) - {mask_id, embedding.padding_idx})
    generator = torch.Generator().manual_seed(seed)
    _draw_rows(embedding.weight, new_ids, sampled, generator)
    if mask_id >= rows and head.weight is not embedding.weight:
        _draw_rows(head.weight, new_ids, sampled, generator)
    return mask_id


def require_glm_ocr(folder: Path) -> None:
    """Refuse another architecture, by the checkpoint's ``config.json`` alone.

    Raises:
        ModelError: the checkpoint is not of the GLM-OCR class.
    """
    file = Path(folder) / "config.json"
    if not file.exists():
        raise ModelError(f"{folder} is no model checkpoint: it has no config.json")
    found = _read_object(file).get("model_type")
    if found != _GLM_OCR:
        raise ModelError(
            f"{file}: model_type is {_shown(found)}, but joint training needs a GLM-OCR-class checkpoint: model_type "
            f"{_GLM_OCR!r}, class GlmOcrForConditionalGeneration, such as zai-org/GLM-OCR"
        )


def load_glm_ocr(
    folder: Path,
    args: ModelArguments,
    model_class: type[GlmOcrForConditionalGeneration] = GlmOcrForConditionalGeneration,
) -> Any:
    """A GLM-OCR-class model in the configured precision.

    Args:
        folder: checkpoint folder.
        args: gives precision and attention implementation.
        model_class: ``GlmOcrForConditionalGeneration`` or a subclass of it, which the result is an instance of.

    Raises:
        ModelError: the checkpoint is of another architecture (said before weights are read), or its weights are
            missing, damaged or of another shape.
    """
    require_glm_ocr(folder)
    return load_model(folder, args, model_class)


# --- the mask token ---


def _check_rows_of_tokens(tokenizer: Any, rows: int) -> None:
    """Every token but the mask token needs a row, or growing the matrices would hide a mixed-up checkpoint."""
    last = max(tokenizer.get_vocab().items(), key=lambda item: (item[0] != MASK_TOKEN, item[1]))
    if last[0] != MASK_TOKEN and last[1] >= rows:
        raise ModelError(
            f"tokenizer.json: the token {last[0]!r} has id {last[1]}, but the embedding has {rows} rows: tokenizer and "
            "weights belong to different checkpoints"
        )


def _name_mask_token(tokenizer: Any) -> int:
    """Make ``<|mask|>`` a special token of the tokenizer and return its id, which must be its alone."""
    before = tokenizer.get_vocab()
    mask_id = _add_to(tokenizer)
    twin = _token_at(before, mask_id)
    if twin not in (None, MASK_TOKEN):
        raise ModelError(
            f"tokenizer.json: a new token {MASK_TOKEN} would get id {mask_id}, which {twin!r} has: the ids have gaps; "
            f"add {MASK_TOKEN} to added_tokens with a free id"
        )
    return mask_id


def _add_to(tokenizer: Any) -> int:
    if tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})
    elif MASK_TOKEN not in tokenizer.get_vocab():
        tokenizer.add_tokens([MASK_TOKEN], special_tokens=True)
    return tokenizer.convert_tokens_to_ids(MASK_TOKEN)


def _keep_mask_token(tokenizer: Any, mask_id: int, rows: int) -> None:
    """Let the tokenizer name a trained mask token, where it can."""
    if mask_id >= rows:
        raise ModelError(_no_row(FILE, mask_id, rows))
    check_mask_id(tokenizer, mask_id)
    vocabulary = tokenizer.get_vocab()
    if vocabulary.get(MASK_TOKEN) == mask_id or (
        _token_at(vocabulary, mask_id) is None and _add_to(copy.deepcopy(tokenizer)) == mask_id
    ):
        _add_to(tokenizer)


def check_mask_id(tokenizer: Any, mask_id: int) -> None:
    """Check that the tokenizer has no other token in the place of the mask token, and no other place for it.

    Raises:
        ModelError: tokenizer and ``block_diffusion.json`` contradict each other.
    """
    vocabulary = tokenizer.get_vocab()
    named = vocabulary.get(MASK_TOKEN)
    if named not in (None, mask_id):
        raise ModelError(
            f"{FILE}: mask_id is {mask_id}, but tokenizer.json gives {MASK_TOKEN} the id {named}: the files belong to "
            "different checkpoints; correct mask_id, or remove the file to train a new drafter"
        )
    holder = _token_at(vocabulary, mask_id)
    if holder not in (None, MASK_TOKEN, tokenizer.mask_token):
        raise ModelError(
            f"{FILE}: mask_id {mask_id} is the token {holder!r} of tokenizer.json, which is no mask token; correct "
            "mask_id, or remove the file to train a new drafter"
        )


def _token_at(vocabulary: dict[str, int], token_id: int) -> str | None:
    return next((token for token, value in vocabulary.items() if value == token_id), None)


def _grow(model: PreTrainedModel, rows: int) -> None:
    """Grow embedding and head; what transformers draws for the new rows is overwritten afterwards."""
    device = model.get_input_embeddings().weight.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model.resize_token_embeddings(rows, mean_resizing=False)


def _draw_rows(weight_VH: torch.Tensor, new_ids: Sequence[int], sampled: list[int], generator: torch.Generator) -> None:
    """Overwrite rows by draws from a normal with the moments of the sampled rows, dimension by dimension."""
    with torch.no_grad():
        sample_KH = weight_VH[sampled].float().cpu()
        noise_NH = torch.randn(len(new_ids), weight_VH.shape[1], generator=generator)
        rows_NH = sample_KH.mean(dim=0) + sample_KH.std(dim=0, correction=0) * noise_NH
        weight_VH[list(new_ids)] = rows_NH.to(weight_VH)


# --- reading JSON that anyone may have written ---


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}: expected a JSON object, found {_shown(value)}")
    return value


def _integer(file: Path, fields: dict[str, Any], name: str, least: int) -> int:
    value = _field(file, fields, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ModelError(f"{file}: {name} must be a whole number of at least {least}, found {_shown(value)}")
    return value


def _number(file: Path, fields: dict[str, Any], name: str) -> float:
    value = _field(file, fields, name)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    if not isinstance(value, float) or not math.isfinite(value):
        raise ModelError(f"{file}: {name} must be a finite number, found {_shown(value)}")
    return value


def _word(file: Path, fields: dict[str, Any], name: str) -> str:
    value = _field(file, fields, name)
    if not isinstance(value, str):
        raise ModelError(f"{file}: {name} must be a string, found {_shown(value)}")
    return value


def _field(file: Path, fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise ModelError(f"{file}: {name} is missing; write the file anew, as gravity_rl/adapt.py does, or add it")
    return fields[name]


def _shown(value: Any) -> str:
    """A value in an error message, short whatever its size."""
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    text = "null" if value is None else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _no_row(file: str, mask_id: int, rows: int) -> str:
    return (
        f"{file}: mask_id {_shown(mask_id)} is no row of the embedding, which has {rows}: file and weights belong to "
        "different checkpoints"
    )
