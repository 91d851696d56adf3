"""Decoding at the full size of GLM-OCR: AR against self-speculation with drafts as good as the published ones.

    python benchmarks/decoding_gpu.py [--batches 1 8 42 64] [--accepted 17.4] [--cuda_graph] [--json FILE]

Needs no checkpoint: the weights are random, and only their shapes matter for speed. Three things make that a fair
test. The head is scaled down until the noise of temperature 1 alone chooses tokens, so that rounding in bf16 rarely
changes one, and one that changes has no influence on those behind it. Ends of responses are put into the noise. And
the drafts are forced: AR decoding writes the tokens first, then every draft forward runs at full cost, and its logits
are overwritten so that it proposes these tokens, each wrong with the probability that gives the wanted mean of accepted
drafts in a window of 32 (arXiv:2609.26638: 17.4 over all crops, 25.0 over tables). Accepting drafts, or not, is left to
the decoder. Wrong drafts fall evenly on rows and positions here; real ones come in clusters.

In fp32 all rows have to be equal to AR's. `--size tiny` shows on a CPU that the script works, nothing else.

Shapes: N slots of a round, W window with its first token.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from decoding_forced import (
    BLOCK,
    Size,
    build_model,
    forced_drafts,
    forced_ends,
    full_size,
    make_inputs,
    probability_for,
    ragged_lengths,
    tiny_size,
)
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding import CostModel, Decoded, generate, scheduler, self_spec
from gravity_rl.decoding.cache import RaggedCache
from gravity_rl.decoding.noise import NoiseBuffer
from gravity_rl.decoding.rows import Rows, causal_forward
from gravity_rl.decoding.sampling import Sampler
from gravity_rl.environment import describe_environment
from gravity_rl.joint.drafter import BlockDiffusion

# --- measuring ---


@dataclass
class Bench:
    """What all calls have in common."""

    size: Size
    model: GlmOcrForConditionalGeneration
    device: torch.device
    probability: float
    cost_model: CostModel = field(default_factory=CostModel)

    def decode(self, inputs: dict[str, Tensor], window: int | str, max_new_tokens: int) -> Decoded:
        """AR for window 0."""
        return generate(
            self.model,
            inputs,
            method="self_spec" if window else "ar",
            block_size=window or "auto",  # type: ignore[arg-type]
            drafter=BlockDiffusion(BLOCK, self.size.mask_id, 1.0, "uniform"),
            cost_model=self.cost_model,
            max_new_tokens=max_new_tokens,
            eos_token_ids=[self.size.end_id],
        )

    def measure(self, name: str, lengths: Sequence[int], windows: Sequence[int | str], rounds: int) -> dict[str, Any]:
        """All windows in turn, AR first: its tokens are what is drafted."""
        inputs = make_inputs(self.size, len(lengths), self.device)
        limit = min(max(lengths), self.size.max_new_tokens * 3)
        result: dict[str, Any] = {"workload": name, "rows": len(lengths), "mean": statistics.mean(lengths)}
        result |= {"prompt": inputs["input_ids"].shape[1], "contenders": {label(window): [] for window in windows}}
        with forced_ends(torch.tensor(lengths, device=self.device), self.size.end_id):
            plain = self.decode(inputs, 0, limit)  # warms up as well
            vocab_size = self.size.config.text_config.vocab_size
            with forced_drafts(plain, self.probability, vocab_size):
                for window in windows[1:]:
                    self.decode(inputs, window, min(limit, 2 * BLOCK))
                for _ in range(rounds):
                    for window in windows:
                        values = self._timed(inputs, window, limit, plain)
                        result["contenders"][label(window)].append(values)
                result["split"] = self.split(inputs, BLOCK // 2, min(limit, 4 * BLOCK))
                result["syncs"] = self.count_syncs(inputs, BLOCK // 2, limit)
        return result

    def _timed(self, inputs: dict[str, Tensor], window: int | str, limit: int, plain: Decoded) -> dict[str, Any]:
        gc.collect()
        before = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        out = self.decode(inputs, window, limit)
        seconds = time.perf_counter() - began
        peak = torch.cuda.max_memory_allocated() - before if self.device.type == "cuda" else None
        windows: Counter[int] = Counter()
        for choice in out.stats.choices:
            windows[choice.block_size] += choice.rounds
        pairs = list(zip(out.sequences, plain.sequences, strict=True))
        return {
            "seconds": seconds,
            "decode": out.stats.total_seconds - out.stats.seconds["prefill"],
            "phases": out.stats.seconds,
            "tokens": out.stats.tokens,
            "rounds": out.stats.rounds,
            "tpf": out.stats.tpf,
            "accepted_per_round": out.stats.rows.accepted_per_round if out.stats.rows.drafted else None,
            "windows": dict(sorted(windows.items())),
            "equal_rows": sum(torch.equal(a, b) for a, b in pairs) / len(pairs),
            "equal_tokens": statistics.mean(agreement(a, b) for a, b in pairs),
            "peak_bytes": peak,
            "planned_bytes": out.stats.memory,
        }

    def split(self, inputs: dict[str, Tensor], window: int, max_new_tokens: int) -> dict[str, dict[str, float]]:
        """Milliseconds a round of its parts: on the device's clock from first to last kernel, and to launch them."""
        clock = PartClock(self.device)
        places = [
            (self_spec, "draft_logits", "draft forward"),
            (self_spec, "causal_forward", "verify forward"),
            (Sampler, "choose", "sampling, twice"),
            (NoiseBuffer, "prepare", "noise"),
            (scheduler, "commit", "commit"),
        ]
        with ExitStack() as stack:
            for owner, name, part in places:
                stack.enter_context(patch.object(owner, name, clock.timing(part, getattr(owner, name))))
            out = self.decode(inputs, window, max_new_tokens)
        parts = clock.milliseconds(out.stats.rounds)
        whole = 1e3 * out.stats.seconds["draft_rounds"] / out.stats.rounds
        return {**parts, "whole round": {"device": whole, "host": whole}}

    def count_syncs(self, inputs: dict[str, Tensor], window: int, limit: int) -> dict[str, Any] | None:
        """Times that the host waited for the device, a round, and where: what the second half of a call adds."""
        if self.device.type != "cuda":
            return None
        places, rounds = [], []
        for tokens in (max(1, limit // 2), limit):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    out = self.decode(inputs, window, tokens)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            waits = [w for w in caught if "called a synchronizing" in str(w.message)]
            places.append(Counter(f"{Path(w.filename).name}:{w.lineno}" for w in waits))
            rounds.append(out.stats.rounds)
        added = places[1] - places[0]
        more_rounds = max(1, rounds[1] - rounds[0])
        return {"a_round": added.total() / more_rounds, "where": dict(added.most_common(8)), "rounds": more_rounds}


def agreement(ids: Tensor, other: Tensor) -> float:
    """Share of equal tokens, place by place."""
    shared = min(len(ids), len(other))
    return float((ids[:shared] == other[:shared]).sum()) / max(len(ids), len(other))


class PartClock:
    """Adds up how long functions take, on the device where there is one, without waiting for it."""

    def __init__(self, device: torch.device):
        self._on_device = device.type == "cuda"
        self._marks: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self._host: defaultdict[str, float] = defaultdict(float)

    def timing(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began, start = time.perf_counter(), self._mark()
            result = function(*args, **kwargs)
            self._marks[part].append((start, self._mark()))
            self._host[part] += time.perf_counter() - began
            return result

        return timed

    def _mark(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self, rounds: int) -> dict[str, dict[str, float]]:
        parts = {}
        for part, marks in self._marks.items():
            spans = [a.elapsed_time(b) if self._on_device else 1e3 * (b - a) for a, b in marks]
            parts[part] = {"device": sum(spans) / rounds, "host": 1e3 * self._host[part] / rounds}
        return parts


# --- captured forwards ---


@torch.inference_mode()
def measure_graph(bench: Bench, rows: int, window: int, keys: int) -> dict[str, Any]:
    """Milliseconds of the forwards of a round (of an AR step for window 0), launched one by one and as a CUDA graph."""
    live = Rows.empty(RaggedCache(rows, keys + 2 * window + 2, bench.device, key_step=64), rows)
    live.cache.lengths_L.fill_(keys)
    live.cache.longest = keys
    live.cache.reserve(window + 2)
    ids_NW = torch.ones(rows, window + 1, dtype=torch.long, device=bench.device)

    def forwards() -> Tensor:
        if not window:
            return causal_forward(bench.model, live, ids_NW)
        self_spec.draft_logits(bench.model, live, window, bench.size.mask_id)
        return causal_forward(bench.model, live, ids_NW, start=1)

    values: dict[str, Any] = {"rows": rows, "window": window, "keys": keys, "eager": repeat(forwards, bench.device)}
    if bench.device.type != "cuda":
        return values | {"failed": "CUDA graphs need a CUDA device"}
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forwards()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forwards()
        return values | {"captured": repeat(graph.replay, bench.device)}
    except RuntimeError as error:
        return values | {"failed": str(error).splitlines()[0]}


def repeat(function: Callable[[], Any], device: torch.device, times: int = 20) -> float:
    """Median milliseconds of a call, the device's work included."""
    spans = []
    for _ in range(times + 3):
        began = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spans.append(1e3 * (time.perf_counter() - began))
    return statistics.median(spans[3:])


# --- printing ---


def label(window: int | str) -> str:
    return "AR" if window == 0 else str(window) if window == "auto" else f"window {window}"


def print_result(result: dict[str, Any]) -> None:
    print(f"\n{result['workload']}: {result['rows']} rows, prompts of {result['prompt']} tokens", flush=True)
    print(f"  {'':10}{'seconds':>9}{'decode':>9}{'tok/s':>9}{'AR/it':>9}{'TPF':>7}{'accepted':>10}{'rounds':>8}"
          f"{'equal rows':>12}{'tokens':>8}{'peak GiB':>10}{'planned':>9}")  # fmt: skip
    plain = statistics.median(values["decode"] for values in result["contenders"]["AR"])
    for name, runs in result["contenders"].items():
        seconds, decode = (statistics.median(values[key] for values in runs) for key in ("seconds", "decode"))
        last = runs[-1]
        accepted = "" if last["accepted_per_round"] is None else f"{last['accepted_per_round']:.2f}"
        peak = "" if last["peak_bytes"] is None else f"{last['peak_bytes'] / 2**30:.2f}"
        print(f"  {name:10}{seconds:9.3f}{decode:9.3f}{last['tokens'] / decode:9.0f}{plain / decode:7.2f} x"
              f"{last['tpf']:7.2f}{accepted:>10}{last['rounds']:8}{last['equal_rows']:12.1%}{last['equal_tokens']:8.2%}"
              f"{peak:>10}{last['planned_bytes'] / 2**30:9.2f}")  # fmt: skip
    print(f"  rounds of auto by window: {result['contenders']['auto'][-1]['windows']}")
    phases = ", ".join(f"{name} {seconds:.3f}" for name, seconds in result["contenders"]["auto"][-1]["phases"].items())
    print(f"  seconds of auto by phase: {phases}")
    parts = ", ".join(f"{name} {part['device']:.2f} ({part['host']:.2f})" for name, part in result["split"].items())
    print(f"  ms a round of window {BLOCK // 2} (host): {parts}")
    if result["syncs"]:
        print(f"  host waits a round: {result['syncs']['a_round']:.2f}; {result['syncs']['where']}", flush=True)


def print_graph(values: dict[str, Any]) -> None:
    what = f"{values['rows']} rows, {label(values['window'])}, {values['keys']} keys"
    if "captured" in values:
        gain = values["eager"] / values["captured"]
        print(f"  {what}: {values['eager']:.2f} ms, captured {values['captured']:.2f} ms, {gain:.2f} x", flush=True)
    else:
        print(f"  {what}: {values['eager']:.2f} ms, not captured: {values['failed']}", flush=True)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_cuda = torch.cuda.is_available()
    parser.add_argument("--size", choices=["tiny", "full"], default="full")
    parser.add_argument("--device", default="cuda" if on_cuda else "cpu")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], help="default: bfloat16 on CUDA")
    parser.add_argument("--batches", type=int, nargs="+", help="rows; default: 1 8 42 64")
    parser.add_argument("--windows", type=int, nargs="+", default=[8, 16, 32], help="fixed windows, up to 32")
    parser.add_argument("--accepted", type=float, default=17.4, help="mean of accepted drafts in a window of 32")
    parser.add_argument("--max_new_tokens", type=int, help="of every row; default: 512")
    parser.add_argument("--rounds", type=int, default=1, help="timed rounds, after one of warm-up")
    parser.add_argument("--cuda_graph", action="store_true", help="also try to capture the forwards of a round")
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    arguments = parser.parse_args(argv)
    size, device = (full_size if arguments.size == "full" else tiny_size)(), torch.device(arguments.device)
    dtype = getattr(torch, arguments.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    bench = Bench(size, build_model(size, device, dtype), device, probability_for(arguments.accepted))
    parameters = sum(parameter.numel() for parameter in bench.model.parameters())
    print(f"{arguments.size} size, {parameters / 1e6:,.0f}M parameters, {dtype} on {device}; a draft is right with "
          f"probability {bench.probability:.4f}", flush=True)  # fmt: skip
    windows = [0, *arguments.windows, "auto"]
    length = arguments.max_new_tokens or size.max_new_tokens
    workloads = {f"{rows} x {length} tokens": [length] * rows for rows in arguments.batches or size.batches}
    ragged = ragged_lengths(size.ragged_rows, length // 2, 3 * length)
    workloads[f"log-normal lengths, mean {statistics.mean(ragged):.0f}, longest {max(ragged)}"] = ragged
    report: dict[str, Any] = {"environment": describe_environment(), "parameters": parameters, "dtype": str(dtype)}
    report |= {"arguments": vars(arguments) | {"json": str(arguments.json)}, "workloads": [], "graphs": []}
    for name, lengths in workloads.items():
        report["workloads"].append(bench.measure(name, lengths, windows, arguments.rounds))
        print_result(report["workloads"][-1])
        write(arguments.json, report)
    if arguments.cuda_graph:
        print("\nforwards of a round, launched one by one and captured")
        keys = make_inputs(size, 1, device)["input_ids"].shape[1] + length // 2
        for rows, window in itertools.product(arguments.batches or size.batches, (0, BLOCK // 2)):
            report["graphs"].append(measure_graph(bench, rows, window, keys))
            print_graph(report["graphs"][-1])
            if "failed" in report["graphs"][-1]:
                break  # a failed capture may leave the device unusable
        write(arguments.json, report)
    return report


def write(file: Path | None, report: dict[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
