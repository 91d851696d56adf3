"""Trains the tiny model from nothing, in the three stages that made it learn within minutes on two cores.

1. ``easy``: single short lines, one- and two-row tables, one-term formulas. A vision warm-up loss asks every image
   token for the glyph drawn in its square, by the model's own output layer. Without it the model stays blind.
2. ``full``: the whole ``tiny`` preset, the warm-up loss kept for the first part.
3. ``noisy``: labels of the noisy teacher, whose faults the model picks up.

Stages one and two share one cosine schedule. Run ``python -m gravity_rl.tiny``.

Shapes: B crops, L tokens, V merged image tokens of the batch, H hidden size, S supervised tokens, N vocabulary size.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.processor import GlmOcrImageProcessor
from gravity_rl.synth.knobs import PRESETS
from gravity_rl.tiny.stream import BatchSpec, batches
from gravity_rl.tiny.teacher import exact_teacher, noisy_teacher

TASK_WEIGHTS = (0.34, 0.36, 0.30)


@dataclass(frozen=True)
class TrainPlan:
    """Length and optimisation of the training; the defaults made the shipped checkpoint."""

    easy_steps: int = 2000
    full_steps: int = 4500
    noisy_steps: int = 600
    batch_size: int = 16
    learning_rate: float = 2e-3
    noisy_learning_rate: float = 3e-4
    warmup_steps: int = 200
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    max_grad_norm: float = 1.0
    glyph_loss_share: float = 0.8
    """share of the first two stages in which the vision warm-up loss is on"""
    blank_weight: float = 0.2
    """weight of a square without a glyph in the vision warm-up loss"""
    seed: int = 0
    workers: int = 1
    log_every: int = 100


def stage_spec(name: str, plan: TrainPlan) -> BatchSpec:
    """What the batches of a stage hold."""
    knobs = PRESETS["tiny"]
    if name == "easy":
        knobs = replace(knobs, lines=(1, 1), line_chars=(3, 8), rows=(1, 2), cols=(2, 2), formula_terms=1)
    teacher = noisy_teacher if name == "noisy" else exact_teacher
    seed = 1000 * plan.seed + ("easy", "full", "noisy").index(name)
    return BatchSpec(knobs, TASK_WEIGHTS, teacher, seed, plan.batch_size)


def glyph_loss(image_VH: Tensor, lm_head_NH: Tensor, glyphs_V: Tensor, blank_id: int, blank_weight: float) -> Tensor:
    """Cross-entropy of reading, from each image token alone, the glyph in its square."""
    logits_VN = F.layer_norm(image_VH, image_VH.shape[-1:]) @ lm_head_NH.T
    weight_V = torch.where(glyphs_V == blank_id, blank_weight, 1.0)
    loss_V = F.cross_entropy(logits_VN, glyphs_V, reduction="none")
    return (loss_V * weight_V).sum() / weight_V.sum()


def reading_loss(
    model: GlmOcrForConditionalGeneration,
    batch: dict[str, Tensor],
    plan: TrainPlan,
    blank_id: int,
    warm_up: bool,
) -> tuple[Tensor, dict[str, float]]:
    """Next-token loss on the labels, plus the vision warm-up loss; and both as numbers."""
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "glyphs")}
    outputs = model.model(**inputs, use_cache=False)
    targets_BL = batch["labels"][:, 1:]
    supervised_BL = targets_BL != -100
    logits_SN = model.lm_head(outputs.last_hidden_state[:, :-1][supervised_BL])
    targets_S = targets_BL[supervised_BL]
    loss = F.cross_entropy(logits_SN, targets_S)
    numbers = {"loss": loss.item(), "accuracy": (logits_SN.argmax(-1) == targets_S).float().mean().item()}
    if warm_up:
        image_VH = torch.cat(list(outputs.image_outputs.pooler_output))
        vision = glyph_loss(image_VH, model.lm_head.weight, batch["glyphs"], blank_id, plan.blank_weight)
        numbers["glyph_loss"] = vision.item()
        loss = loss + vision
    return loss, numbers


def train_stages(
    model: GlmOcrForConditionalGeneration, processor: GlmOcrImageProcessor, plan: TrainPlan, stages: list[str],
    curve_path: Path,
) -> None:  # fmt: skip
    """Trains in place through ``stages`` (with one schedule) and appends the learning curve as JSON lines."""
    steps = {"easy": plan.easy_steps, "full": plan.full_steps, "noisy": plan.noisy_steps}
    total = sum(steps[stage] for stage in stages)
    peak = plan.noisy_learning_rate if stages == ["noisy"] else plan.learning_rate
    warm_up_until = 0 if stages == ["noisy"] else int(total * plan.glyph_loss_share)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peak, betas=plan.betas, weight_decay=plan.weight_decay, fused=True
    )
    blank_id = processor.tokenizer.convert_tokens_to_ids(" ")
    model.train()
    step, started, sums = 0, time.monotonic(), defaultdict[str, float](float)
    with tqdm(total=total, desc="+".join(stages), unit="step") as bar, curve_path.open("a") as curve:
        for stage in stages:
            stream = batches(stage_spec(stage, plan), processor, plan.workers)
            for _ in range(steps[stage]):
                rate = min(1.0, (step + 1) / plan.warmup_steps) * (0.515 + 0.485 * math.cos(math.pi * step / total))
                for group in optimizer.param_groups:
                    group["lr"] = peak * rate
                loss, numbers = reading_loss(model, next(stream), plan, blank_id, step < warm_up_until)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), plan.max_grad_norm)
                optimizer.step()
                step += 1
                for name, value in numbers.items():
                    sums[name] += value
                if step % plan.log_every == 0 or step == total:
                    count = step % plan.log_every or plan.log_every
                    means = {name: round(value / count, 4) for name, value in sums.items()}
                    row = {
                        "stage": stage,
                        "step": step,
                        **means,
                        "seconds": round(time.monotonic() - started),
                    }
                    curve.write(json.dumps(row) + "\n")
                    curve.flush()
                    bar.set_postfix(means)
                    sums.clear()
                bar.update()
    model.eval()
