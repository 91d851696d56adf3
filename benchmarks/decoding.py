"""Speed of decoding side by side: TRL's transformers path, plain AR, fixed windows, and windows chosen by themselves.

    python benchmarks/decoding.py [--rounds 5] [--threads 1] [--batches 1 4 28 56] [--temperatures 1 0] [--json FILE]

Crops are rendered, three tasks in turn, and read by a shipped checkpoint: batches of mixed crops, 28 responses of
which four are much longer, and a group of 28 completions of one prompt. In each round every contender reads the same
crops, with the same noise; each round has crops and noise of its own. They take turns after a few tokens, see
``decoding_contenders.py``, so that a machine whose speed changes by a tenth from second to second decides hundredths.
All contenders but TRL's path have to write the same tokens, which is checked. TRL's path is what its GRPO trainer
does: the prompt with its pixels once a completion, and a sampler of its own, so that its tokens and their number are
others; compare it by tokens a second. What `auto` learns about the model is kept over all workloads, as it is over the
calls of a training run: what it loses while it learns, a few per cent of a dozen calls, shows in the first of them.
Times are means of the rounds, ratios are medians of the rounds' ratios, with their standard errors. `decode` leaves
out vision and prefill, in TRL's path all that comes before its first logits. What the windows of `auto` are worth is
also computed from the time that rounds of their kind typically took, see ``decoding_rounds.py``: little of the
machine's noise is in that, and hardly anything of the time that choosing takes.

More than one thread is slower wherever other programs run, and no faster for a model of this size. `taskset -c 0`
before the command spares it moves between cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from decoding_contenders import AR, AUTO, TRL, Contenders, Measured
from decoding_crops import GROUP_NAME, MIXED, TAIL, Checkpoint, Workload, make_workloads
from decoding_rounds import TypicalTimes

from gravity_rl.decoding import CostModel, DecodeStats
from gravity_rl.drafting_metrics import sum_by_task
from gravity_rl.environment import describe_environment

#: Of normally distributed values: standard error of their median, by their median deviation over the root of the count.
MEDIAN_ERROR = 1.2533 * 1.4826

# --- measuring ---


def measure(checkpoint: Checkpoint, workload: Workload, rounds: int, cost_model: CostModel) -> dict[str, Any]:
    """All contenders on a workload; the first round warms up and is not counted."""
    contenders = Contenders(checkpoint, sampled=workload.temperature > 0, cost_model=cost_model)
    results: dict[str, list[Measured]] = {name: [] for name in contenders.by_name}
    tasks: list[str] = []
    for round_ in range(rounds + 1):
        measured = {name: Measured() for name in results}
        calls = workload.calls(checkpoint, round_)
        for number, (inputs, _) in enumerate(calls):
            contenders.read(inputs, workload.temperature, 1000 * round_ + number, measured)
        tasks += [task for _, of_call in calls for task in of_call] if round_ else []
        for name, result in measured.items():
            results[name].append(result)
    same_ids = all(
        result.ids == plain.ids
        for name, counted in results.items()
        if name != TRL
        for result, plain in zip(counted, results[AR], strict=True)
    )
    timed = {name: counted[1:] for name, counted in results.items()}
    speeds = {name: ratio(timed[AR], timed[name], decode_seconds)[0] for name in timed if name not in (TRL, AUTO)}
    lengths = [len(ids) for result in timed[AR] for ids in result.ids]
    best = max(speeds, key=speeds.__getitem__)
    typical = TypicalTimes(one for counted in timed.values() for result in counted for one in result.rounds)
    by_typical = {
        name: ratio(counted, timed[AUTO], lambda result: typical.total(result.rounds))
        for name, counted in timed.items()
        if name not in (TRL, AUTO)
    }
    least, error = min(by_typical.values(), key=lambda pair: pair[0])
    return {
        "workload": workload.name,
        "temperature": workload.temperature,
        "rows": len(tasks) // rounds,
        "mean_length": statistics.mean(lengths),
        "longest": max(lengths),
        "same_ids": same_ids,
        "best_fixed": best,
        "auto_by_best_at_typical_times": least,
        "error_at_typical_times": error,
        "contenders": {name: summarise(counted, timed, best, tasks) for name, counted in timed.items()},
    }


def summarise(counted: list[Measured], timed: dict[str, list[Measured]], best: str, tasks: list[str]) -> dict[str, Any]:
    """Seconds of a contender, its ratios to others (above 1: it is faster), and what drafting achieved."""
    values: dict[str, Any] = {
        name: [getattr(result, name) for result in counted] for name in ("decode", "total", "cpu", "tokens")
    }
    values["tokens_per_second"] = statistics.median(result.tokens / result.total for result in counted)
    values["faster_than_ar"], values["error_of_ar"] = ratio(timed[AR], counted, decode_seconds)
    values["faster_than_best"], values["error_of_best"] = ratio(timed[best], counted, decode_seconds)
    if TRL in timed:
        values["faster_than_trl"], _ = ratio(timed[TRL], counted, lambda result: result.total)
        by_trl = ratio(timed[TRL], counted, lambda result: result.total / result.tokens)
        values["tokens_per_second_by_trl"], values["error_of_by_trl"] = by_trl
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
            for task, stats in sum_by_task(tasks, rows).items()
        },
    }
    return values


def decode_seconds(result: Measured) -> float:
    return result.decode


def ratio(
    other: list[Measured], counted: list[Measured], value: Callable[[Measured], float]
) -> tuple[float, float | None]:
    """Median of the rounds' ratios, and its standard error by their median deviation: stalls count for neither.

    One round has no error that is known.
    """
    ratios = [value(a) / value(b) for a, b in zip(other, counted, strict=True)]
    middle = statistics.median(ratios)
    if len(ratios) == 1:
        return middle, None
    deviation = statistics.median(abs(ratio - middle) for ratio in ratios)
    few = len(ratios) / (len(ratios) - 0.8)  # of which the median deviation is too small
    return middle, MEDIAN_ERROR * few * deviation / len(ratios) ** 0.5


# --- printing ---


def format_error(error: float | None) -> str:
    return "  ?  " if error is None else f"{error:.3f}"


def print_table(result: dict[str, Any]) -> None:
    print(
        f"\n{result['workload']}, temperature {result['temperature']:g}: {result['rows']} rows, mean length "
        f"{result['mean_length']:.1f}, longest {result['longest']}; same ids: {'yes' if result['same_ids'] else 'NO'}"
    )
    print(f"  {'seconds a round:':22}{'decode':>8}{'total':>8}{'CPU':>8}{'AR/it':>9}{'best/it':>17}"
          f"{'TRL/it: total':>15}{'tok/s':>8}{'it/TRL':>8}{'a round':>9}{'TPF':>6}")  # fmt: skip
    for name, values in result["contenders"].items():
        seconds = "".join(f"{statistics.mean(values[key]):8.3f}" for key in ("decode", "total", "cpu"))
        best = f"{values['faster_than_best']:7.3f} ± {format_error(values['error_of_best'])} x"
        trl = f"{values['faster_than_trl']:13.2f} x" if "faster_than_trl" in values else f"{'':15}"
        by_trl = f"{values['tokens_per_second_by_trl']:6.2f} x" if "faster_than_trl" in values else f"{'':8}"
        counts = f"{values['tokens_per_round']:9.2f}{values['tpf']:6.2f}" if "tpf" in values else ""
        print(f"  {name:22}{seconds}{values['faster_than_ar']:7.2f} x{best}{trl}"
              f"{values['tokens_per_second']:8.0f}{by_trl}{counts}")  # fmt: skip
    auto = result["contenders"][AUTO]
    windows = ", ".join(f"{window or AR}: {share:.0%}" for window, share in auto["share_of_rounds_by_window"].items())
    last = ", ".join(f"{window or AR}: {count}" for window, count in sorted(auto["rounds_by_window"][-1].items()))
    print(f"  rounds of auto by window: {windows} (counts of the last round: {last}); best of the others: "
          f"{result['best_fixed']}")  # fmt: skip
    error = format_error(result["error_at_typical_times"])
    print(
        f"  with every round at its typical time, best/auto: {result['auto_by_best_at_typical_times']:.3f} ± {error} x"
    )
    widest = list(result["contenders"])[-2]
    for task, stats in result["contenders"][widest]["by_task"].items():
        print(f"  {widest}, {task}: {stats['tokens_per_round']:.2f} tokens a round, {stats['accepted_per_round']:.2f} "
              f"accepted, acceptance {stats['acceptance']:.2f}, TPF {stats['tpf']:.2f}")  # fmt: skip


def find_targets(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The wanted ratios beside the measured ones and their standard errors, for what was measured."""
    wanted = []
    for result in results:
        auto, where = result["contenders"][AUTO], f"{result['workload']}, temperature {result['temperature']:g}"
        by_ar = auto["faster_than_ar"], auto["error_of_ar"]
        for name, least in ((MIXED.format(1), 1.4), (TAIL, 1.25)):
            if result["workload"] == name:
                wanted.append((f"auto by AR, decode: {where}", least, *by_ar))
        by_best = auto["faster_than_best"], auto["error_of_best"]
        wanted.append((f"auto by the best of AR and fixed windows, decode: {where}", 0.97, *by_best))
        if result["workload"] == GROUP_NAME:
            by_trl = auto["tokens_per_second_by_trl"], auto["error_of_by_trl"]
            wanted.append((f"auto by TRL's path, tokens a second: {where}", 2.0, *by_trl))
    return [
        {"ratio": name, "wanted": least, "measured": measured, "standard_error": error}
        for name, least, measured, error in wanted
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", default="shipped:tiny-reader", help="a checkpoint with a drafter")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 28, 56], help="rows of the mixed batches")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.0])
    parser.add_argument("--max_new_tokens", type=int, default=128, help="length limit of a response")
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    checkpoint = Checkpoint(arguments.model_name_or_path, arguments.max_new_tokens)
    loads, cost_model = [os.getloadavg()], CostModel()
    results = []
    for workload in make_workloads(arguments.batches, arguments.temperatures):
        results.append(measure(checkpoint, workload, arguments.rounds, cost_model))
        print_table(results[-1])
    loads.append(os.getloadavg())
    targets = find_targets(results)
    print(f"\nother programs disturb times; load before and after (1 minute): {loads[0][0]:.1f}, {loads[1][0]:.1f}")
    print(f"targets{'':88}wanted  measured  ±")
    for target in targets:
        error = format_error(target["standard_error"])
        print(f"  {target['ratio']:92}{target['wanted']:6.2f} {target['measured']:9.3f}  {error}")
    if arguments.json:
        environment = describe_environment() | {"load_before_and_after": loads}
        options = vars(arguments) | {"json": str(arguments.json)}
        report = {"environment": environment, "arguments": options, "workloads": results, "targets": targets}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
