"""A varied model, batches of prompts and slow references for the tests of decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from conftest import SMALL
from PIL import Image, ImageDraw
from torch import Tensor
from transformers import AutoModelForImageTextToText, GlmOcrForConditionalGeneration

from gravity_rl.decoding import Decoded, engine, generate
from gravity_rl.decoding.window import WindowChoice
from gravity_rl.joint.drafter import BlockDiffusion
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.model import load_ocr_processor, resolve_checkpoint
from gravity_rl.synth.crops import sample_crop
from gravity_rl.synth.knobs import PRESETS
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


def drafter(block_size: int = 8, mask: int | None = None) -> BlockDiffusion:
    """Settings of a drafter that was trained on blocks of this size."""
    return BlockDiffusion(block_size, mask_id() if mask is None else mask, ar_loss_weight=1.0, mask_schedule="uniform")


def banned_ids() -> list[int]:
    convert = varied_policy()[1].tokenizer.convert_tokens_to_ids
    return [token for token in convert(SPECIAL_TOKENS) if token != eos_id()]


def make_inputs(rows: Sequence[int]) -> dict[str, Tensor]:
    """Processor output for some of ``ROWS``; prompts and images differ in size, and each picture in content."""
    return {name: tensor.clone() for name, tensor in _make_inputs(tuple(rows)).items()}


@cache
def _make_inputs(rows: tuple[int, ...]) -> Any:
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


def run(rows: Sequence[int], method: str, **overrides: Any) -> Decoded:
    """``generate`` on some of ``ROWS`` with the usual bans; the noise of a row follows its number."""
    settings: dict[str, Any] = {
        "max_new_tokens": 40,
        "eos_token_ids": [eos_id()],
        "banned_token_ids": banned_ids(),
        "drafter": drafter(),
        "block_size": 4,
        "row_ids": rows,
    }
    model = overrides.pop("model", varied_policy()[0])
    return generate(model, make_inputs(rows), method=method, **(settings | overrides))


def ids(decoded: Decoded) -> list[list[int]]:
    return [sequence.tolist() for sequence in decoded.sequences]


@cache
def plain(temperature: float, endless: bool = False) -> Decoded:
    """All of ``ROWS``, decoded one token a forward; ``endless`` up to the limit, whatever the EOS token."""
    settings: dict[str, Any] = {"eos_token_ids": []} if endless else {}
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


@cache
def reader() -> tuple[GlmOcrForConditionalGeneration, Any]:
    """The shipped model that reads, with a trained drafter, and its processor."""
    folder = resolve_checkpoint("shipped:tiny-reader")
    return AutoModelForImageTextToText.from_pretrained(folder).eval(), load_ocr_processor(folder)


@cache
def _crop(row: int) -> Any:
    return sample_crop(("formula", "text", "table")[row % 3], "heldout", 100 + row, PRESETS["tiny"])


def reader_inputs(crops: Sequence[int]) -> dict[str, Tensor]:
    """Processor output for synthetic crops, named by number; the three tasks take turns."""
    return {name: tensor.clone() for name, tensor in _reader_inputs(tuple(crops)).items()}


@cache
def _reader_inputs(crops: tuple[int, ...]) -> Any:
    tasks = {"formula": "Formula", "text": "Text", "table": "Table"}
    return reader()[1].apply_chat_template(
        [
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "image": _crop(crop).image},
                        {"type": "text", "text": f"{tasks[_crop(crop).task]} Recognition:"},
                    ],
                }
            ]
            for crop in crops
        ],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"padding": True, "return_tensors": "pt"},
    )


def read(crops: Sequence[int], method: str, **overrides: Any) -> Decoded:
    """``generate`` with the shipped model, up to 32 tokens; the noise of a row follows its place by default."""
    model, processor = reader()
    ends, banned = decoding_tokens(model, processor, processor.tokenizer.mask_token_id)
    settings: dict[str, Any] = {"max_new_tokens": 32, "eos_token_ids": ends, "banned_token_ids": banned}
    return generate(model, reader_inputs(crops), method=method, **(settings | overrides))


class WindowsOfTheTest:
    """A window policy that follows any rule; what it was told is kept.

    Args:
        rule: ``(round, live rows) -> window``.
    """

    def __init__(self, rule: Callable[[int, int], int]):
        self._rule = rule
        self.chosen: list[tuple[int, int]] = []  # window and live rows of each round
        self.observed: list[tuple[int, int, float, list[int]]] = []

    def choose(self, live_rows: int) -> int:
        self.chosen.append((self._rule(len(self.chosen), live_rows), live_rows))
        return self.chosen[-1][0]

    def observe(
        self, block_size: int, live_rows: int, seconds: float, accepted: Sequence[int], ended: Sequence[bool] = ()
    ) -> None:
        self.observed.append((block_size, live_rows, seconds, list(accepted)))

    @property
    def choices(self) -> list[WindowChoice]:
        return [WindowChoice(at, 1, live, window, "fixed") for at, (window, live) in enumerate(self.chosen)]


def use_windows(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[[int, int], int], largest: int, mask: int | None = None
) -> WindowsOfTheTest:
    """Have ``generate`` follow a rule of the test in the choice of windows."""
    policy = WindowsOfTheTest(rule)
    drafting = (policy, mask_id() if mask is None else mask, largest)
    monkeypatch.setattr(engine, "_drafting", lambda *args: drafting)
    return policy


def chi_square_p(counts: Tensor, probabilities: Tensor, least: float = 10.0) -> float:
    """Chance that counts drawn with these probabilities are as far from them; cells that expect little are joined."""
    expected = counts.sum() * probabilities.double() / probabilities.double().sum()
    large = expected >= least
    observed = torch.cat([counts[large].double(), counts[~large].double().sum()[None]])
    expected = torch.cat([expected[large], expected[~large].sum()[None]])
    cells = expected > 0
    assert not observed[~cells].any(), "an impossible outcome was drawn"
    statistic = ((observed - expected)[cells] ** 2 / expected[cells]).sum()
    return upper_tail(float(statistic), int(cells.sum()) - 1)


def two_sample_p(first: Tensor, second: Tensor, least: float = 10.0) -> float:
    """Chance that counts of two samples of one distribution differ as much; cells with few counts are joined."""
    both = torch.stack([first, second]).double()
    large = both.sum(0) >= 2 * least
    both = torch.cat([both[:, large], both[:, ~large].sum(1, keepdim=True)], 1)
    both = both[:, both.sum(0) > 0]
    expected = both.sum(1, keepdim=True) * both.sum(0) / both.sum()
    return upper_tail(float(((both - expected) ** 2 / expected).sum()), both.shape[1] - 1)


def upper_tail(statistic: float, freedom: int) -> float:
    """P(chi-square with so many degrees of freedom >= statistic)."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.double)
    return float(torch.special.gammaincc(half[0], half[1]))
