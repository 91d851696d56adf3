"""A varied model, batches of prompts and slow references for the tests of decoding."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from conftest import SMALL
from PIL import Image, ImageDraw
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding import Decoded, generate
from gravity_rl.tiny.build import EOS, SPECIAL_TOKENS, build_tiny

#: width and height of the image, and what follows the task's prompt
ROWS = [(32, 32, ""), (64, 32, "abc"), (48, 48, "x"), (32, 64, "hello there"), (80, 16, ""), (48, 32, "1 2 3 4")]


@cache
def varied_policy() -> tuple[GlmOcrForConditionalGeneration, Any]:
    """An untrained model with large weights, so that its greedy output varies, and its processor."""
    model, processor = build_tiny(SMALL, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
    return model.eval(), processor


def eos_id() -> int:
    return varied_policy()[1].tokenizer.convert_tokens_to_ids(EOS)


def mask_id() -> int:
    return varied_policy()[1].tokenizer.mask_token_id


def banned_ids() -> list[int]:
    convert = varied_policy()[1].tokenizer.convert_tokens_to_ids
    return [token for token in convert(SPECIAL_TOKENS) if token != eos_id()]


def make_inputs(rows: list[int]) -> Any:
    """Processor output for some of ``ROWS``; prompts and images differ in size, and each picture in content."""
    conversations = []
    for row in rows:
        width, height, suffix = ROWS[row]
        image = Image.new("RGB", (width, height), "white")
        ImageDraw.Draw(image).text((2, 2), f"{row}{row}", fill="black")
        content = [{"type": "image", "image": image}, {"type": "text", "text": f"Text Recognition:{suffix}"}]
        conversations.append([{"role": "user", "content": content}])
    return varied_policy()[1].apply_chat_template(
        conversations,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"padding": True, "return_tensors": "pt"},
    )


def run(rows: list[int], method: str, **overrides: Any) -> Decoded:
    """``generate`` on some of ``ROWS`` with the usual bans; the noise of a row follows its number."""
    settings: dict[str, Any] = {
        "max_new_tokens": 40,
        "eos_token_ids": [eos_id()],
        "banned_token_ids": banned_ids(),
        "mask_id": mask_id(),
        "row_ids": rows,
    }
    model = overrides.pop("model", varied_policy()[0])
    return generate(model, make_inputs(rows), method=method, **(settings | overrides))


def ids(decoded: Decoded) -> list[list[int]]:
    return [sequence.tolist() for sequence in decoded.sequences]


@cache
def plain(temperature: float, endless: bool = False) -> Decoded:
    """All of ``ROWS``, decoded one token a forward; ``endless`` up to the limit, whatever the EOS token."""
    settings = {"eos_token_ids": []} if endless else {}
    return run(list(range(len(ROWS))), "ar", temperature=temperature, **settings)


def plain_ids(temperature: float, endless: bool = False) -> list[list[int]]:
    return ids(plain(temperature, endless))


def full_forward(row: int, response: Tensor) -> Any:
    """Output of one plain causal forward over prompt and response of a single row, cache included."""
    model, _ = varied_policy()
    inputs = dict(make_inputs([row]))
    added = response[None]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], added], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(added)], 1)
    with torch.no_grad():
        return model(**inputs, use_cache=True)


def reference_logprobs(row: int, response: Tensor, temperature: float) -> Tensor:
    """(L,) log-probability of each response token, from :func:`full_forward`."""
    logits_LV = full_forward(row, response).logits[0, -len(response) - 1 : -1].float()
    return (logits_LV / (temperature or 1.0)).log_softmax(-1).gather(1, response[:, None])[:, 0]
