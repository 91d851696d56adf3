"""Loads the policy and its processor from a checkpoint folder, a hub name or the package's own tiny model.

Hub checkpoints are resolved to one local snapshot first, so that policy, frozen reference and processor come
from the same revision. Used by ``gravity_rl.train`` and ``gravity_rl.evaluate``; code from a checkpoint is
never executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, StrictDataclassError
from jinja2 import TemplateError
from PIL import Image
from safetensors import SafetensorError
from transformers import AutoModelForImageTextToText, PreTrainedModel, ProcessorMixin

from gravity_rl.processor import load_processor
from gravity_rl.run_config import ModelArguments

_SHIPPED = Path(__file__).resolve().parent / "tiny"
#: Name → folder: an AR model, the same with a drafter, and the demo's start, with a drafter and its teacher's faults.
SHIPPED_CHECKPOINTS = {
    "shipped:tiny-ar": _SHIPPED / "ar",
    "shipped:tiny-reader": _SHIPPED / "reader",
    "shipped:tiny": _SHIPPED / "checkpoint",
}

#: What libraries raise for files of a checkpoint that are missing, no JSON, or hold values of a wrong type or size.
_BAD_FILES = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, ImportError,
              RuntimeError, StrictDataclassError, SafetensorError, TemplateError)  # fmt: skip

_SNAPSHOT_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
# Image processors whose `size` counts each pixel once per temporal slot of a patch; others count it once.
_TEMPORAL_BUDGET = ("Glm46VImageProcessor", "Glm4vImageProcessor")
# Placeholders that the model replaces by image or video features, and the noise token of block diffusion.
_NEVER_SAMPLED = ("image_token", "video_token", "image_start_token", "image_end_token", "video_start_token",
                  "video_end_token", "vision_start_token", "vision_end_token")  # fmt: skip


class ModelError(ValueError):
    """A model checkpoint cannot be found, or lacks something that OCR training needs."""


@contextmanager
def refusing(failure: str) -> Iterator[None]:
    """Turn what libraries raise for bad files into a ``ModelError`` that begins with ``failure``."""
    try:
        yield
    except Exception as error:
        # The tokenizers library raises plain Exceptions.
        if isinstance(error, ModelError) or not (isinstance(error, _BAD_FILES) or type(error) is Exception):
            raise
        raise ModelError(f"{failure}: {error}") from error


def resolve_checkpoint(name: str, revision: str | None = None) -> Path:
    """The local folder of a checkpoint.

    Args:
        name: a folder, a hub name, or one of ``SHIPPED_CHECKPOINTS``.
        revision: branch, tag or commit of a hub checkpoint.

    Raises:
        ModelError: there is no such checkpoint, or a revision is given for one that has none.
    """
    folder = SHIPPED_CHECKPOINTS.get(name, Path(name))
    if name.startswith("shipped:") and name not in SHIPPED_CHECKPOINTS:
        raise ModelError(f"{name}: unknown; this package ships {', '.join(SHIPPED_CHECKPOINTS)}")
    if folder.is_dir():
        if revision is not None:
            raise ModelError(f"revision {revision!r} is set, but {name} is a folder and has no revisions")
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder} is no model checkpoint: it has no config.json")
        return folder
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_SNAPSHOT_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"{name} is neither a folder nor a checkpoint the hub offers: {error}") from error


def load_ocr_processor(folder: Path, *, min_pixels: int | None = None, max_pixels: int | None = None) -> Any:
    """The processor of a checkpoint, left-padding, with a pixel budget.

    Args:
        folder: checkpoint folder.
        min_pixels: images with fewer pixels (height × width) are scaled up; None keeps the checkpoint's
            setting.
        max_pixels: images with more pixels are scaled down; None keeps the checkpoint's setting.

    Raises:
        ModelError: the checkpoint has no image processor or no working chat template, or the image processor
            has no pixel budget to set.
    """
    with refusing(f"{folder}: the processor does not load"):
        processor = load_processor(folder)
    if not isinstance(processor, ProcessorMixin) or getattr(processor, "image_processor", None) is None:
        raise ModelError(
            f"{folder} has no image processor (processor_config.json or preprocessor_config.json): this is a "
            "text-only checkpoint, or its processor files were not copied"
        )
    if not processor.chat_template:
        raise ModelError(f"{folder} has no chat template (chat_template.jinja), so prompts cannot be rendered")
    _check_chat_template(folder, processor)
    processor.tokenizer.padding_side = "left"
    if min_pixels is not None or max_pixels is not None:
        _set_pixel_budget(processor.image_processor, min_pixels, max_pixels)
    return processor


def _check_chat_template(folder: Path, processor: Any) -> None:
    """Render a prompt of one image, which must reach the model as image tokens."""
    content = [{"type": "image", "image": Image.new("RGB", (224, 224))}, {"type": "text", "text": "Read."}]
    with refusing(f"{folder}: the chat template does not render a prompt with an image"):
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True
        )
    if processor.image_token_id not in inputs["input_ids"][0]:
        raise ModelError(f"{folder}: the chat template drops the image of a prompt: it emits no image token")


def _set_pixel_budget(image_processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
    kind = type(image_processor).__name__
    size = dict(image_processor.size or {})
    if not {"shortest_edge", "longest_edge"} <= {key for key, value in size.items() if value}:
        raise ModelError(f"{kind} has no pixel budget: leave min_pixels and max_pixels unset")
    slots = image_processor.temporal_patch_size if kind.startswith(_TEMPORAL_BUDGET) else 1
    if min_pixels is not None:
        size["shortest_edge"] = min_pixels * slots
    if max_pixels is not None:
        size["longest_edge"] = max_pixels * slots
    image_processor.size = type(image_processor.size)(**size)


def load_model(folder: Path, args: ModelArguments, model_class: Any = AutoModelForImageTextToText) -> PreTrainedModel:
    """The policy in the configured precision, as an instance of the class that ``model_class`` loads.

    Raises:
        ModelError: weights are missing (all, or those of some layers), damaged or of another shape, or the
            architecture does not read images.
    """
    dtype = args.dtype if args.dtype == "auto" else getattr(torch, args.dtype)
    kwargs: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True}  # else it asks, and unpickles
    if args.attn_implementation is not None:
        kwargs["attn_implementation"] = args.attn_implementation
    with refusing(f"{folder}: the model does not load"):
        model, loading = model_class.from_pretrained(folder, dtype=dtype, output_loading_info=True, **kwargs)
    missing = sorted(loading["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise ModelError(
            f"{folder}: its weights lack {len(missing)} tensors of a {type(model).__name__}, such as {missing[0]}"
        )
    return model


def never_sampled_ids(model: PreTrainedModel, tokenizer: Any) -> list[int]:
    """Token ids that generation must not emit, sorted.

    A sampled image or video placeholder makes the training forward fail, because it has no features behind
    it; the mask token means nothing outside of diffusion; padding in mid-sequence would be taken for the end.
    The trainer's log-probabilities are those of the full vocabulary: the model gives these tokens almost no
    mass.
    """
    ids = _as_ids(tokenizer.pad_token_id) | _as_ids(tokenizer.mask_token_id)
    ids |= _as_ids(tokenizer.convert_tokens_to_ids("<|mask|>"))
    for name in _NEVER_SAMPLED:
        ids |= _as_ids(getattr(model.config, f"{name}_id", None))
    ends = _as_ids(model.generation_config.eos_token_id) | _as_ids(tokenizer.eos_token_id)
    return sorted(ids - ends - _as_ids(tokenizer.unk_token_id))


def _as_ids(value: int | Iterable[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)
