"""A varied model, packed rows of a few small samples, and the stock forwards that they are compared with.

Shapes: L tokens of a row, P and R prefix and response tokens of a sample, T = P + R, K tokens of a block, A clean and D
masked targets, H hidden size, N vocabulary size.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from conftest import SMALL
from PIL import Image
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.joint.masks import Layout
from gravity_rl.joint.modeling import JointGlmOcr, LossSettings, packed_hidden
from gravity_rl.joint.packing import RowPlan
from gravity_rl.joint.prompts import PromptRenderer
from gravity_rl.joint.rows import PackedRows, RowSettings, Stage
from gravity_rl.tiny.build import build_config, build_processor, build_tiny

BLOCK = 4
FORWARD = ("input_ids", "position_ids", "layout", "pixel_values", "image_grid_thw")
#: width and height of the image, prompt, reference
SAMPLES = [
    (48, 32, "Text Recognition:", "hello world"),
    (32, 64, "Formula Recognition:", "x^2+1"),
    (64, 48, "Table Recognition: of 3 rows", "<table><tr><td>a</td><td>b</td></tr></table>"),
]


@cache
def processor() -> Any:
    return build_processor(SMALL)


@cache
def renderer() -> PromptRenderer:
    return PromptRenderer(processor())


def mask_id() -> int:
    return processor().tokenizer.mask_token_id


def eos_id() -> int:
    return processor().tokenizer.eos_token_id


@cache
def stock_model() -> GlmOcrForConditionalGeneration:
    """An untrained model with large weights, so that what a token sees matters."""
    model, _ = build_tiny(SMALL, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    return model


@cache
def _joint_model() -> JointGlmOcr:
    model = JointGlmOcr(build_config(SMALL, processor().tokenizer))
    model.load_state_dict(stock_model().state_dict())
    return model


def joint_model(mask_kind: str = "sdpa", **settings: Any) -> JointGlmOcr:
    """A model of the joint class with the weights of :func:`stock_model` and no gradients."""
    model = copy.deepcopy(_joint_model())
    model.set_loss(LossSettings(mask_kind=mask_kind, **settings))
    return model


@cache
def sample_row(number: int) -> dict[str, Any]:
    """Dataset row of one of ``SAMPLES``."""
    width, height, prompt, reference = SAMPLES[number]
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "image": Image.fromarray(pixels),
        "reference": reference,
        "id": f"sample{number}",
    }


def row_settings(**overrides: Any) -> RowSettings:
    settings: dict[str, Any] = {
        "block_size": BLOCK,
        "mask_schedule": "uniform",
        "random_phase": False,
        "supervise_every_eos": False,
        "mask_id": mask_id(),
        "eos_id": eos_id(),
        "image_token_id": processor().tokenizer.convert_tokens_to_ids("<|image|>"),
        "merge_size": processor().image_processor.merge_size,
        "seed": 5,
    }
    return RowSettings(**settings | overrides)


def plan_of(rows: list[list[int]]) -> RowPlan:
    """A plan that packs samples as listed; draws count up."""
    samples = np.array([sample for row in rows for sample in row], np.int64)
    return RowPlan(np.cumsum([0, *map(len, rows)]), samples, np.arange(len(samples)))


def row_of(samples: list[int], *, corrupted: bool = True, draw: int = 0, **overrides: Any) -> dict[str, Tensor]:
    """The tensors of a row with some of ``SAMPLES``; the first has the draw ``draw``."""
    data: Any = [sample_row(number) for number in range(len(SAMPLES))]
    stage = Stage(data, plan_of([samples]), corrupted, draw)
    return PackedRows([stage], renderer(), row_settings(**overrides))[0]


def model_inputs(row: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the model's forward takes of a row."""
    return {name: value for name, value in row.items() if name not in ("samples", "forward_tokens")}


def hidden_of(model: JointGlmOcr, row: dict[str, Tensor]) -> Tensor:
    """Last hidden states (L, H) of a row."""
    return packed_hidden(model, **{name: row[name] for name in FORWARD})[0]


def supervised_logits(model: JointGlmOcr, row: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits (A, N) and (D, N) that the two losses of a row are made from."""
    hidden_LH = hidden_of(model, row)
    return model.lm_head(hidden_LH[row["ar"][0]]), model.lm_head(hidden_LH[row["diffusion"][0]])


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Gradient of every parameter; zeros for one that the loss does not depend on."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if gradient is None else gradient
        for (name, value), gradient in zip(named.items(), found, strict=True)
    }


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def of_sample(row: dict[str, Tensor], sample: int, stream: int, block: int | None = None) -> Tensor:
    """Indices of the row's tokens in a stream of a sample, or in one block of it."""
    layout = Layout(*row["layout"])
    chosen = (layout.sample == sample) & (layout.stream == stream)
    if block is not None:
        chosen &= layout.block == block
    return chosen.nonzero().flatten()


@dataclass(frozen=True)
class Alone:
    """A sample by itself, as the stock model takes it.

    Attributes:
        prefix: (1, P) ids.
        response: (R,) ids with the end tokens.
        images: pixel values and grid.
    """

    prefix: Tensor
    response: Tensor
    images: dict[str, Tensor]

    @classmethod
    def of(cls, number: int, block_size: int = BLOCK) -> Alone:
        row = sample_row(number)
        inputs = processor()(text=[renderer().text(row["prompt"])], images=[[row["image"]]], return_tensors="pt")
        reference = processor().tokenizer(row["reference"], add_special_tokens=False).input_ids
        images = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        return cls(inputs["input_ids"], torch.tensor([*reference, *[eos_id()] * block_size]), images)

    def types(self, count: int) -> Tensor:
        """Token types (1, P + count): 1 for image tokens."""
        ids = torch.cat([self.prefix, torch.zeros(1, count, dtype=torch.long)], dim=1)
        return (ids == stock_model().config.image_token_id).int()

    def plain_hidden(self) -> Tensor:
        """Hidden states (T, H) of a plain causal forward over prefix and response; the model places the tokens."""
        ids = torch.cat([self.prefix, self.response[None]], dim=1)
        output = stock_model().model(
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=self.types(len(self.response)),
            **self.images,
        )  # fmt: skip
        return output.last_hidden_state[0]

    def block_hidden(self, start: int, corrupted: Tensor) -> Tensor:
        """Hidden states (K, H) of one corrupted block behind the prefix and the clean tokens before it.

        Args:
            start: index in the response of the block's first token.
            corrupted: (K,) its tokens.
        """
        ids = torch.cat([self.prefix, self.response[None, :start], corrupted[None]], dim=1)
        context = ids.size(1) - len(corrupted)
        mask = torch.ones(ids.size(1), ids.size(1)).tril().bool()
        mask[context:] = True
        places, _ = stock_model().model.get_rope_index(
            self.prefix, mm_token_type_ids=self.types(0), image_grid_thw=self.images["image_grid_thw"]
        )
        after = places.max() + 1 + torch.arange(ids.size(1) - self.prefix.size(1))
        output = stock_model().model(
            input_ids=ids, attention_mask=mask[None, None],
            position_ids=torch.cat([places, after.expand(3, 1, -1)], dim=2), **self.images,
        )  # fmt: skip
        return output.last_hidden_state[0, context:]
