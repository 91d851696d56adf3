"""Speed of decoding side by side: TRL's transformers path, plain AR, fixed windows, and windows chosen by themselves.

    python benchmarks/decoding.py [--rounds 5] [--threads 1] [--batches 1 4 28 56] [--temperatures 1 0] [--json FILE]

Crops are rendered, three tasks in turn, and read by a shipped checkpoint: batches of mixed crops, 28 short responses
of which four are much longer, and a group of 28 completions of one prompt. In each round every contender reads the
same crops, in an order that turns around; a round at temperature 1 has noise of its own. All contenders but TRL's path
have to write the same tokens, which is checked. TRL's path is what its GRPO trainer does: the prompt with its pixels
once a completion, and a sampler of its own, so that its tokens and their number are others; compare it by tokens a
second. Times are medians of the rounds and ratios medians of the rounds' ratios. `decode` leaves out vision and
prefill, in TRL's path all that comes before its first logits.

More than one thread is slower wherever other programs run, and no faster for a model of this size. On a busy machine
`--clock cpu` measures CPU time instead, also where "auto" measures: about what one thread would take on a free core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import torch
from decoding_crops import GROUP_NAME, MIXED, TAIL, Checkpoint, Workload, make_workloads
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from gravity_rl.decoding import BatchStats, CostModel, DecodeStats, generate, scheduler
from gravity_rl.decoding.window import ladder
from gravity_rl.drafting_metrics import sum_by_task
from gravity_rl.environment import describe_environment

TRL, AR, AUTO = "TRL transformers path", "AR", "auto"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Window = int | Literal["auto"]


@dataclass
class Measured:
    """What a contender took for the calls of a round; without ``stats`` if it does not count."""

    clock: Callable[[], float]
    decode: float = 0.0
    total: float = 0.0
    cpu: float = 0.0
    ids: list[list[int]] = field(default_factory=list)
    rows: list[DecodeStats] = field(default_factory=list)
    stats: list[BatchStats] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    def windows(self) -> Counter[int]:
        """Rounds of the decoder by their window, 0 for AR steps."""
        counts: Counter[int] = Counter()
        for choice in (choice for stats in self.stats for choice in stats.choices):
            counts[choice.block_size] += choice.rounds
        return counts


#: ``(inputs, temperature, seed, measured)`` decodes one batch and adds what it took
Contender = Callable[[dict[str, Tensor], float, int, Measured], None]


# --- contenders ---


class FirstForward(LogitsProcessor):
    """Notes when the first logits of a call are there; leaves them as they are."""

    def __init__(self, clock: Callable[[], float]):
        self.clock, self.at = clock, 0.0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.at = self.at or self.clock()
        return scores


def trl_path(
    checkpoint: Checkpoint, inputs: dict[str, Tensor], temperature: float, seed: int, measured: Measured
) -> None:
    """``model.generate`` with the generation configuration that TRL's GRPO trainer makes."""
    generation = GenerationConfig(
        max_new_tokens=checkpoint.max_new_tokens,
        do_sample=True,
        pad_token_id=checkpoint.processor.tokenizer.pad_token_id,
        bos_token_id=checkpoint.processor.tokenizer.bos_token_id,
        eos_token_id=checkpoint.ends,
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        repetition_penalty=1.0,
        suppress_tokens=checkpoint.banned,
        disable_compile=True,
    )
    torch.manual_seed(seed)
    first = FirstForward(measured.clock)
    began = measured.clock()
    with torch.no_grad():
        output = checkpoint.model.generate(
            **inputs, generation_config=generation, logits_processor=LogitsProcessorList([first])
        )
    ended = measured.clock()
    measured.total += ended - began
    measured.decode += ended - first.at
    for row in output[:, inputs["input_ids"].shape[1] :].tolist():
        end = next((place + 1 for place, token in enumerate(row) if token in checkpoint.ends), len(row))
        measured.ids.append(row[:end])


def ours(
    checkpoint: Checkpoint,
    method: Literal["ar", "self_spec"],
    block_size: Window,
    cost_model: CostModel | None,
    inputs: dict[str, Tensor],
    temperature: float,
    seed: int,
    measured: Measured,
) -> None:
    """``gravity_rl.decoding``."""
    began = measured.clock()
    out = generate(
        checkpoint.model,
        inputs,
        method=method,
        block_size=block_size,
        cost_model=cost_model,
        drafter=checkpoint.drafter,
        max_new_tokens=checkpoint.max_new_tokens,
        eos_token_ids=checkpoint.ends,
        banned_token_ids=checkpoint.banned,
        temperature=temperature,
        seed=seed,
    )
    measured.total += measured.clock() - began
    measured.decode += out.stats.total_seconds - out.stats.seconds["prefill"]
    measured.ids += [sequence.tolist() for sequence in out.sequences]
    measured.rows += out.row_stats
    measured.stats.append(out.stats)


def make_contenders(checkpoint: Checkpoint, temperature: float) -> dict[str, Contender]:
    """By name. What "auto" knows of the model is kept as long as these contenders are, as in training."""
    contenders: dict[str, Contender] = {TRL: partial(trl_path, checkpoint)} if temperature else {}
    contenders[AR] = partial(ours, checkpoint, "ar", "auto", None)
    for window in ladder(checkpoint.drafter.bd_size)[1:]:
        contenders[f"window {window}"] = partial(ours, checkpoint, "self_spec", window, None)
    contenders[AUTO] = partial(ours, checkpoint, "self_spec", "auto", CostModel())
    return contenders


# --- measuring ---


def read_all(contender: Contender, workload: Workload, round_: int, clock: Callable[[], float]) -> Measured:
    """One round of a contender."""
    measured, began = Measured(clock), time.process_time()
    for number, (inputs, _) in enumerate(workload.calls):
        contender(inputs, workload.temperature, 1000 * round_ + number, measured)
    measured.cpu = time.process_time() - began
    return measured


def measure(checkpoint: Checkpoint, workload: Workload, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """All contenders on a workload; the first round warms up and is not counted."""
    contenders = make_contenders(checkpoint, workload.temperature)
    results: dict[str, list[Measured]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name in list(contenders)[:: 1 if round_ % 2 else -1]:
            results[name].append(read_all(contenders[name], workload, round_, clock))
    same_ids = all(
        result.ids == plain.ids
        for name, counted in results.items()
        if name != TRL
        for result, plain in zip(counted, results[AR], strict=True)
    )
    tasks = [task for _, tasks in workload.calls for task in tasks]
    timed = {name: counted[1:] for name, counted in results.items()}
    fixed = {name: median(result.decode for result in timed[name]) for name in timed if name not in (TRL, AUTO)}
    lengths = [len(ids) for result in timed[AR] for ids in result.ids]
    best = min(fixed, key=fixed.__getitem__)
    return {
        "workload": workload.name,
        "temperature": workload.temperature,
        "rows": len(tasks),
        "mean_length": statistics.mean(lengths),
        "longest": max(lengths),
        "same_ids": same_ids,
        "best_fixed": best,
        "contenders": {name: summarise(counted, timed, best, tasks) for name, counted in timed.items()},
    }


def summarise(counted: list[Measured], timed: dict[str, list[Measured]], best: str, tasks: list[str]) -> dict[str, Any]:
    """Seconds of a contender, its ratios to others (above 1: it is faster), and what drafting achieved."""
    values: dict[str, Any] = {
        name: [getattr(result, name) for result in counted] for name in ("decode", "total", "cpu", "tokens")
    }
    values["tokens_per_second"] = median(result.tokens / result.total for result in counted)
    values["faster_than_ar"] = ratio(timed[AR], counted, "decode")
    values["faster_than_best"] = ratio(timed[best], counted, "decode")
    if TRL in timed:
        values["faster_than_trl"] = ratio(timed[TRL], counted, "total")
        speeds = (
            (it.tokens / it.total) / (trl.tokens / trl.total) for it, trl in zip(counted, timed[TRL], strict=True)
        )
        values["tokens_per_second_by_trl"] = median(speeds)
    rows = [stats for result in counted for stats in result.rows]
    if not rows:
        return values
    total, by_round = DecodeStats.total(rows), [result.windows() for result in counted]
    windows = sum(by_round, Counter())
    values |= {
        "tokens_per_round": total.tokens_per_round,
        "tpf": total.tpf,
        "share_of_rounds_by_window": {window: count / windows.total() for window, count in sorted(windows.items())},
        "rounds_by_window": by_round,
        "by_task": {
            task: {
                "tokens_per_round": stats.tokens_per_round,
                "tpf": stats.tpf,
                "accepted_per_round": stats.accepted_per_round if stats.drafted else None,
                "acceptance": stats.acceptance if stats.tested else None,
            }
            for task, stats in sum_by_task(tasks * len(counted), rows).items()
        },
    }
    return values


def ratio(other: list[Measured], counted: list[Measured], name: str) -> float:
    return median(getattr(a, name) / getattr(b, name) for a, b in zip(other, counted, strict=True))


median = statistics.median


# --- printing ---


def print_table(result: dict[str, Any]) -> None:
    print(
        f"\n{result['workload']}, temperature {result['temperature']:g}: {result['rows']} rows, mean length "
        f"{result['mean_length']:.1f}, longest {result['longest']}; same ids: {'yes' if result['same_ids'] else 'NO'}"
    )
    print(f"  {'seconds:':22}{'decode':>8}{'total':>8}{'CPU':>8}{'AR/it':>9}{'best/it':>9}{'TRL/it: total':>15}"
          f"{'tok/s':>8}{'it/TRL':>8}{'a round':>9}{'TPF':>6}")  # fmt: skip
    for name, values in result["contenders"].items():
        seconds = "".join(f"{median(values[key]):8.3f}" for key in ("decode", "total", "cpu"))
        trl = f"{values['faster_than_trl']:13.2f} x" if "faster_than_trl" in values else f"{'':15}"
        by_trl = f"{values['tokens_per_second_by_trl']:6.2f} x" if "faster_than_trl" in values else f"{'':8}"
        counts = f"{values['tokens_per_round']:9.2f}{values['tpf']:6.2f}" if "tpf" in values else ""
        print(f"  {name:22}{seconds}{values['faster_than_ar']:7.2f} x{values['faster_than_best']:7.2f} x{trl}"
              f"{values['tokens_per_second']:8.0f}{by_trl}{counts}")  # fmt: skip
    auto = result["contenders"][AUTO]
    windows = ", ".join(f"{window or AR}: {share:.0%}" for window, share in auto["share_of_rounds_by_window"].items())
    last = ", ".join(f"{window or AR}: {count}" for window, count in sorted(auto["rounds_by_window"][-1].items()))
    print(f"  rounds of auto by window: {windows} (counts of the last round: {last}); best of the others: "
          f"{result['best_fixed']}")  # fmt: skip
    widest = list(result["contenders"])[-2]
    for task, stats in result["contenders"][widest]["by_task"].items():
        print(f"  {widest}, {task}: {stats['tokens_per_round']:.2f} tokens a round, {stats['accepted_per_round']:.2f} "
              f"accepted, acceptance {stats['acceptance']:.2f}, TPF {stats['tpf']:.2f}")  # fmt: skip


def find_targets(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The wanted ratios beside the measured ones, for what was measured."""
    wanted = []
    for result in results:
        auto, where = result["contenders"][AUTO], f"{result['workload']}, temperature {result['temperature']:g}"
        for name, least in ((MIXED.format(1), 1.4), (TAIL, 1.25)):
            if result["workload"] == name:
                wanted.append((f"auto by AR, decode: {where}", least, auto["faster_than_ar"]))
        wanted.append((f"auto by the best of AR and fixed windows, decode: {where}", 0.97, auto["faster_than_best"]))
        if result["workload"] == GROUP_NAME:
            wanted.append((f"auto by TRL's path, tokens a second: {where}", 2.0, auto["tokens_per_second_by_trl"]))
    return [{"ratio": name, "wanted": least, "measured": measured} for name, least, measured in wanted]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", default="shipped:tiny-reader", help="a checkpoint with a drafter")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="wall time or CPU time")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 28, 56], help="rows of the mixed batches")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.0])
    parser.add_argument("--max_new_tokens", type=int, default=128, help="length limit of a response")
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    clock = CLOCKS[arguments.clock]
    checkpoint = Checkpoint(arguments.model_name_or_path, arguments.max_new_tokens)
    loads = [os.getloadavg()]
    results = []
    for workload in make_workloads(checkpoint, arguments.batches, arguments.temperatures):
        with patch.object(scheduler, "time", SimpleNamespace(perf_counter=clock)):
            results.append(measure(checkpoint, workload, arguments.rounds, clock))
        print_table(results[-1])
    loads.append(os.getloadavg())
    targets = find_targets(results)
    print(f"\nother programs disturb times; load before and after (1 minute): {loads[0][0]:.1f}, {loads[1][0]:.1f}")
    print(f"targets{'':88}wanted  measured")
    for target in targets:
        print(f"  {target['ratio']:92}{target['wanted']:6.2f} {target['measured']:9.2f}")
    if arguments.json:
        environment = describe_environment() | {"load_before_and_after": loads}
        options = vars(arguments) | {"json": str(arguments.json)}
        report = {"environment": environment, "arguments": options, "workloads": results, "targets": targets}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
