"""Speed and memory of a joint training step over a packed row, against the naive way with the same samples and masks.

    python benchmarks/joint_step.py [--presets tiny standard] [--rounds 7] [--threads 1]

The naive way runs the stock model three times: causally over [prefix | clean], and with a dense mask over
[prefix | clean | corrupted s] for each corrupted stream s, so that prefix and vision tower are computed three times. It
comes in five forms: samples one by one or all samples of the row as one padded batch; logits at all positions, as the
stock model returns them, or at supervised positions only; a backward pass after each forward, or one over their sum.
All give the loss and the gradients of the packed row, which is checked first. Each round takes another row, and all
ways take it in turn; ratios are the medians of the rounds' ratios. Peak memory is that of the resident set of a process
of its own, above what is there before the step; it includes the gradients. Reading it needs Linux.

Shapes: B samples of a forward, L tokens of each, padded, T targets.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gravity_rl.data.prompts import load_prompts
from gravity_rl.joint.lengths import RowBudget
from gravity_rl.joint.masks import CLEAN, CORRUPTED_1, CORRUPTED_2, PREFIX, DenseMask, Layout
from gravity_rl.joint.modeling import JointGlmOcr, LossSettings
from gravity_rl.joint.packing import plan_rows
from gravity_rl.joint.prompts import PromptRenderer
from gravity_rl.joint.rows import PackedRows, RowSettings, Stage
from gravity_rl.synth.crops import TASKS, crop_seed, sample_crop
from gravity_rl.synth.knobs import PRESETS
from gravity_rl.tiny.build import build_tiny

CROPS = 120
WEIGHTS = {"text": 0.34, "table": 0.36, "formula": 0.30}
TOLERANCE = 1e-4  # of the gradients, relative to their norm
Row = dict[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """Which rows are built from the crops of a preset."""

    row_tokens: int
    block_size: int


SETTINGS = {"tiny": Setting(3_400, 16), "standard": Setting(6_000, 32)}


@dataclass(frozen=True)
class Way:
    """One way to take a training step."""

    name: str
    batched: bool = False
    all_logits: bool = False
    one_backward: bool = False


PACKED = Way("packed row")
NAIVE = (
    Way("one by one, all logits", all_logits=True),
    Way("one by one"),
    Way("padded batch, all logits", batched=True, all_logits=True),
    Way("padded batch", batched=True),
    Way("padded batch, one backward", batched=True, one_backward=True),
)
WAYS = (PACKED, *NAIVE)


@dataclass(frozen=True)
class Forward:
    """What one forward of the naive way takes.

    Attributes:
        ids_BL, positions_3BL: tokens and their positions.
        layouts: of each sample, for the dense mask; none for the causal forward.
        images: pixel_values and image_grid_thw of the samples.
        where_2T: sample and position that predict each target.
        targets_T: the tokens to predict.
        scale: factor of the summed cross-entropy in the loss of the row.
    """

    ids_BL: Tensor
    positions_3BL: Tensor
    layouts: list[Layout]
    images: Row
    where_2T: Tensor
    targets_T: Tensor
    scale: float


# --- the samples ---


def build_rows(preset: str, count: int) -> list[Row]:
    """The first rows of a training run on rendered crops."""
    setting = SETTINGS[preset]
    _, processor = build_tiny()
    renderer, prompts = PromptRenderer(processor), load_prompts()
    crops: Any = []
    for index in range(CROPS):
        crop = sample_crop(TASKS[index % len(TASKS)], "train", crop_seed(0, "train", index), PRESETS[preset])
        prompt = [{"role": "user", "content": prompts[crop.task]}]
        crops.append({"prompt": prompt, "image": crop.image.convert("RGB"), "reference": crop.reference})
    budget = RowBudget(setting.row_tokens, setting.row_tokens, setting.block_size, "uniform")
    lengths = []
    for crop in crops:
        prefix = renderer.prefix_tokens(crop["prompt"], crop["image"].size[::-1])
        tokens = budget.joint_tokens(prefix, len(renderer.response_ids(crop["reference"])))
        lengths.append(tokens if tokens <= setting.row_tokens else 0)
    tasks = [TASKS[index % len(TASKS)] for index in range(CROPS)]
    plan = plan_rows(lengths, tasks, WEIGHTS, budget=setting.row_tokens, rows=count, seed=0)
    settings = RowSettings(
        block_size=setting.block_size,
        mask_schedule="uniform",
        random_phase=False,
        supervise_every_eos=False,
        mask_id=processor.tokenizer.mask_token_id,
        eos_id=processor.tokenizer.eos_token_id,
        image_token_id=processor.image_token_id,
        merge_size=processor.image_processor.merge_size,
        seed=0,
    )
    rows = PackedRows([Stage(crops, plan, corrupted=True, draw_offset=0)], renderer, settings)
    return [rows[index] for index in range(count)]


def naive_forwards(row: Row, *, batched: bool) -> list[Forward]:
    """The forwards of the naive way over the samples of a packed row."""
    numbers = list(range(int(row["samples"])))
    groups = [numbers] if batched else [[number] for number in numbers]
    streams = (CLEAN, CORRUPTED_1, CORRUPTED_2)
    forwards = [naive_forward(row, group, stream) for group in groups for stream in streams]
    return [forward for forward in forwards if len(forward.targets_T)]


def naive_forward(row: Row, samples: list[int], stream: int) -> Forward:
    """[prefix | clean] or [prefix | clean | corrupted] of some samples, cut out of a packed row and padded."""
    sample_of, stream_of = row["layout"][0], row["layout"][1]
    wanted = (stream_of == PREFIX) | (stream_of == CLEAN) | (stream_of == stream)
    places = [((sample_of == sample) & wanted).nonzero().flatten() for sample in samples]
    length = max(map(len, places))
    position_in = torch.full((2, len(sample_of)), -1)  # (sample of the forward, position) of a token of the row
    for number, place in enumerate(places):
        position_in[0, place] = number
        position_in[1, place] = torch.arange(len(place))
    index, targets = row["ar"] if stream == CLEAN else row["diffusion"]
    is_here = position_in[0, index] >= 0
    if stream != CLEAN:
        is_here &= belongs_to(row, index, stream)
    grid = row["image_grid_thw"]
    pixels = row["pixel_values"].split(grid.prod(-1).tolist())
    kind = "ar" if stream == CLEAN else "diffusion"
    return Forward(
        ids_BL=torch.stack([F.pad(row["input_ids"][0, place], (0, length - len(place))) for place in places]),
        positions_3BL=torch.stack(
            [F.pad(row["position_ids"][:, 0, place], (0, length - len(place))) for place in places], dim=1
        ),
        layouts=[] if stream == CLEAN else [Layout(*row["layout"][:, place]) for place in places],
        images={"pixel_values": torch.cat([pixels[sample] for sample in samples]), "image_grid_thw": grid[samples]},
        where_2T=position_in[:, index[is_here]],
        targets_T=targets[is_here],
        scale=0.5 / row[kind].size(1),
    )


def belongs_to(row: Row, index: Tensor, stream: int) -> Tensor:
    """Whether each diffusion target (T,) is one of the corrupted stream, given the tokens of the row that predict them.

    The first response token of a sample is predicted by its prefix, and is a target of the stream that masks it.
    """
    sample_of, stream_of, position_of, _ = row["layout"]
    ids = row["input_ids"][0]
    masks_first = torch.zeros(int(row["samples"]), dtype=torch.bool)
    first = (stream_of == stream) & (position_of == 0)
    clean = (stream_of == CLEAN) & (position_of == 0)
    masks_first[sample_of[first]] = ids[first] != ids[clean][sample_of[first]]
    return torch.where(stream_of[index] == PREFIX, masks_first[sample_of[index]], stream_of[index] == stream)


# --- the steps ---


def build_model() -> JointGlmOcr:
    stock, _ = build_tiny()
    model = JointGlmOcr(stock.config)
    model.load_state_dict(stock.state_dict())
    model.set_loss(LossSettings())
    return model.train()


def loss_and_gradients(model: JointGlmOcr, row: Row, forwards: list[Forward], way: Way) -> float:
    """The loss of a row; its gradients are left in the parameters."""
    if way == PACKED:
        tensors = {name: value for name, value in row.items() if name not in ("samples", "forward_tokens")}
        loss = model(**tensors)["loss"]
        loss.backward()
        return loss.item()
    losses = []
    with model.decoding():
        for forward in forwards:
            loss = naive_loss(model, forward, way.all_logits)
            if not way.one_backward:
                loss.backward()
            losses.append(loss if way.one_backward else loss.detach())
        total = torch.stack(losses).sum()
        if way.one_backward:
            total.backward()
    return total.item()


def naive_loss(model: JointGlmOcr, forward: Forward, all_logits: bool) -> Tensor:
    inputs = {
        "input_ids": forward.ids_BL,
        "position_ids": forward.positions_3BL,
        "attention_mask": dense_mask(forward) if forward.layouts else None,
        "use_cache": False,
        **forward.images,
    }
    sample, position = forward.where_2T
    if all_logits:
        logits_TN = model(**inputs).logits[sample, position]
    else:
        logits_TN = model.lm_head(model.model(**inputs).last_hidden_state[sample, position])
    return forward.scale * F.cross_entropy(logits_TN.float(), forward.targets_T, reduction="sum")


def dense_mask(forward: Forward) -> Tensor:
    """(B, 1, L, L) mask of a naive forward; padding sees itself, since a token has to see something."""
    count, length = forward.ids_BL.shape
    mask = torch.eye(length, dtype=torch.bool).repeat(count, 1, 1)
    for number, layout in enumerate(forward.layouts):
        size = len(layout.sample)
        mask[number, :size, :size] = DenseMask.of(layout).mask[0, 0]
    return mask[:, None]


def check_equal(model: JointGlmOcr, row: Row) -> None:
    """Every way has to give the loss and the gradients of the packed row."""
    results = []
    for way in WAYS:
        model.zero_grad()
        loss = loss_and_gradients(model, row, naive_forwards(row, batched=way.batched), way)
        results.append((loss, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    loss, gradient = results[0]
    losses = max(abs(other - loss) for other, _ in results)
    gradients = max(float((other - gradient).norm() / gradient.norm()) for _, other in results)
    print(f"  same loss (within {losses:.1e}) and gradients (within {gradients:.1e} of their norm)")
    assert losses < TOLERANCE and gradients < TOLERANCE


# --- what they cost ---


def time_ways(model: JointGlmOcr, rows: list[Row]) -> dict[Way, list[tuple[float, float]]]:
    """Way → wall and CPU seconds of a whole step, optimiser included, on each row but the first, which warms up."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    seconds: dict[Way, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number, row in enumerate(rows):
        forwards = {batched: naive_forwards(row, batched=batched) for batched in (False, True)}
        for way in WAYS if number % 2 else WAYS[::-1]:
            wall, cpu = time.perf_counter(), time.process_time()
            loss_and_gradients(model, row, forwards[way.batched], way)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            seconds[way].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {way: values[1:] for way, values in seconds.items()}


def peak_memory(way: Way, arrays: dict[str, np.ndarray], threads: int) -> float:
    """MB that a step takes above what is there before it; call it in a process of its own."""
    torch.set_num_threads(threads)
    model, row = build_model(), {name: torch.from_numpy(array) for name, array in arrays.items()}
    loss_and_gradients(model, row, naive_forwards(row, batched=False)[:1], NAIVE[0])
    model.zero_grad()
    forwards = naive_forwards(row, batched=way.batched)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident_kb("VmRSS")
    loss_and_gradients(model, row, forwards, way)
    return (resident_kb("VmHWM") - before) / 1024


def resident_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1])


def bench(preset: str, rounds: int, threads: int) -> None:
    rows, model = build_rows(preset, rounds + 1), build_model()
    setting = SETTINGS[preset]
    samples = [int(row["samples"]) for row in rows]
    tokens = [int(row["forward_tokens"]) for row in rows]
    print(f"\nPreset {preset}: rows of {setting.row_tokens:,} tokens, blocks of {setting.block_size}")
    print(f"  {statistics.mean(samples):.1f} samples and {statistics.mean(tokens):,.0f} tokens a row")
    check_equal(model, rows[0])
    seconds = time_ways(model, rows)
    arrays = {name: tensor.numpy() for name, tensor in rows[0].items()}
    fresh = multiprocessing.get_context("forkserver")
    fresh.set_forkserver_preload(["gravity_rl.adapt"])  # imports once what all of them import
    print(f"  {'':28}{'samples/s':>10}{'packed/it: wall':>17}{'CPU':>8}{'peak MB':>10}{'packed/it':>11}")
    packed_mb = 0.0
    for way in WAYS:
        with ProcessPoolExecutor(1, fresh) as pool:
            peak_mb = pool.submit(peak_memory, way, arrays, threads).result()
        packed_mb = packed_mb or peak_mb
        speed = statistics.median(n / wall for n, (wall, _) in zip(samples[1:], seconds[way], strict=True))
        wall, cpu = (
            statistics.median(it[kind] / packed[kind] for it, packed in zip(seconds[way], seconds[PACKED], strict=True))
            for kind in (0, 1)
        )
        print(f"  {way.name:28}{speed:>10.2f}{wall:>15.2f} x{cpu:>6.2f} x{peak_mb:>10.0f}{packed_mb / peak_mb:>9.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=sorted(SETTINGS), default=["tiny", "standard"])
    parser.add_argument("--rounds", type=int, default=7, help="rows that each way takes a step on")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for preset in arguments.presets:
        bench(preset, arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()
