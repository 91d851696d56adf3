"""The text of completions as training libraries give them: strings, or lists of messages.

A message is a mapping whose `content` is a string or a list of blocks with a `text` each, as in chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Completion = str | Sequence[Mapping[str, Any]]


def completion_texts(completions: Sequence[Completion]) -> list[str]:
    """The text of each completion: itself, or the text of its messages, one after the other.

    Raises:
        TypeError, ValueError: a completion is something else, or a message of it has no text. The message begins with
            `sample <index>:`, counted from 0.
    """
    texts = []
    for index, completion in enumerate(completions):
        try:
            texts.append(completion_text(completion))
        except (TypeError, ValueError) as error:
            raise type(error)(f"sample {index}: {error}") from error
    return texts


def completion_text(completion: Completion) -> str:
    """The text of one completion; see `completion_texts`, whose errors have the number of the sample."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, Sequence):
        raise TypeError(f"a completion must be a string or a list of messages, not {type(completion).__name__}")
    return "".join(_message_text(f"message {place}", message) for place, message in enumerate(completion))


def _message_text(name: str, message: object) -> str:
    if not isinstance(message, Mapping):
        raise TypeError(f"{name} of the completion must be a mapping, not {type(message).__name__}")
    if "content" not in message:
        raise ValueError(f"{name} of the completion has no content")
    content = message["content"]
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TypeError(f"content of {name} must be a string or a list of blocks, not {type(content).__name__}")
    return "".join(_block_text(f"block {place} of {name}", block) for place, block in enumerate(content))


def _block_text(name: str, block: object) -> str:
    if not isinstance(block, Mapping):
        raise TypeError(f"{name} must be a mapping, not {type(block).__name__}")
    if "text" not in block:
        raise ValueError(f"{name} has no text, its type is {block.get('type')!r}")
    text = block["text"]
    if not isinstance(text, str):
        raise TypeError(f"text of {name} must be a str, not {type(text).__name__}")
    return text
