"""Processors that need no video processor, and therefore no torchvision.

OCR crops are images, but the stock processors of GLM-OCR (``Glm46VProcessor``) and of most other
vision-language models insist on a video processor, whose classes fail to import without torchvision.
:func:`load_processor` loads the stock class where torchvision is installed and its image half elsewhere.
Checkpoints built by this package name :class:`GlmOcrImageProcessor`; importing the module registers it, after
which the stock ``AutoProcessor.from_pretrained`` returns it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from transformers import AutoProcessor, GlmOcrConfig
from transformers.models.auto.processing_auto import processor_class_from_name
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.processing_utils import ProcessorMixin
from transformers.utils import is_torchvision_available

_CONFIG_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_VIDEO_FILES = ("video_preprocessor_config.json", "preprocessor_config.json")


class GlmOcrImageProcessor(Glm46VProcessor):
    """Image + text processor for GLM-OCR checkpoints.

    ``<|image|>`` in the text is expanded to ``grid_thw.prod() / merge_size**2`` placeholder tokens, as the
    model expects; videos are not supported.
    """

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None):
        self.image_token = "<|image|>"
        self.video_token = "<|video|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        self.video_start_id = tokenizer.convert_tokens_to_ids("<|begin_of_video|>")
        self.video_end_id = tokenizer.convert_tokens_to_ids("<|end_of_video|>")
        # Glm46VProcessor.__init__ insists on a video processor: go past it to the mixin.
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


# Without exist_ok the registration of a config that transformers ships is dropped without a word.
AutoProcessor.register(GlmOcrConfig, GlmOcrImageProcessor, exist_ok=True)


class _WithoutVideo(ProcessorMixin):
    """Stands between a stock processor and ``ProcessorMixin`` and keeps the video processor from the
    latter."""

    def __init__(self, image_processor: Any, tokenizer: Any, video_processor: None, chat_template: str | None = None):
        super().__init__(image_processor, tokenizer, chat_template=chat_template)


def image_only(stock: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """The image half of a stock processor class.

    Instances load and save checkpoints of the stock class: what they save names the stock class and still
    holds the video settings of the checkpoint that they came from, so that stock tools load it.
    """

    class ImageHalf(stock, _WithoutVideo):  # type: ignore[valid-type, misc]
        def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None):
            super().__init__(image_processor, tokenizer, None, chat_template=chat_template)
            self._video_files: dict[str, bytes] = {}
            self._video_settings: dict[str, Any] | None = None

        @classmethod
        def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> Any:
            folder = Path(pretrained_model_name_or_path)
            processor = super().from_pretrained(folder, **kwargs)
            processor._video_files = {
                name: (folder / name).read_bytes() for name in _VIDEO_FILES if (folder / name).is_file()
            }
            processor._video_settings = _read_json(folder / "processor_config.json").get("video_processor")
            return processor

        def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
            saved = super().save_pretrained(save_directory, *args, **kwargs)
            folder = Path(save_directory)
            for name, content in self._video_files.items():
                (folder / name).write_bytes(content)
            if self._video_settings is not None:
                config = _read_json(folder / "processor_config.json") | {"video_processor": self._video_settings}
                text = json.dumps(config, indent=2, sort_keys=True) + "\n"
                (folder / "processor_config.json").write_text(text, encoding="utf-8")
            return saved

    ImageHalf.__name__ = stock.__name__  # the name that save_pretrained writes into the checkpoint
    return ImageHalf


def load_processor(folder: str | os.PathLike[str]) -> Any:
    """The processor of a checkpoint folder; without torchvision, the image half of its stock class.

    Returns:
        What ``AutoProcessor`` returns for the folder: a processor, or a bare tokenizer if the checkpoint has
        no image processor.
    """
    if not is_torchvision_available():
        stock = _named_class(Path(folder))
        if stock is not None and "video_processor" in stock.get_attributes():
            return image_only(stock).from_pretrained(folder, trust_remote_code=False)
    return AutoProcessor.from_pretrained(folder, trust_remote_code=False)


def _named_class(folder: Path) -> type[ProcessorMixin] | None:
    """The processor class that a checkpoint names in the first of its configuration files that names one."""
    for file in _CONFIG_FILES:
        name = _read_json(folder / file).get("processor_class")
        if name is not None:
            return processor_class_from_name(name)
    return None


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
