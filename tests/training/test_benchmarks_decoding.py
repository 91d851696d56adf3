"""The benchmarks of decoding run at a tiny size, compare the right things and report what they should."""

from __future__ import annotations

import importlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding import CostModel
from gravity_rl.joint.drafter import BlockDiffusion, write_block_diffusion
from gravity_rl.tiny.build import MASK, build_tokenizer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks/ is not in the source archive")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a benchmark by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def decoding(module: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The CPU benchmark with fewer crops."""
    crops = module("decoding_crops")
    monkeypatch.setattr(crops, "POOL", 96)
    monkeypatch.setattr(crops, "MOST_CALLS", 3)
    return module("decoding")


@pytest.fixture(scope="module")
def drafter_checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint that says it has a drafter of 4 tokens."""
    folder = tmp_path_factory.mktemp("drafter") / "checkpoint"
    shutil.copytree(tiny_checkpoint, folder)
    mask_id = build_tokenizer().convert_tokens_to_ids(MASK)
    write_block_diffusion(folder, BlockDiffusion(4, mask_id, 1.0, "uniform"))
    return folder


def test_cpu_benchmark_compares_all_contenders(
    decoding: ModuleType, drafter_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    options = ["--rounds", "1", "--batches", "1", "--max_new_tokens", "6", "--json", str(file)]
    decoding.main(["--model_name_or_path", str(drafter_checkpoint), *options])
    report, printed = json.loads(file.read_text()), capsys.readouterr().out
    ours = ["AR", "window 2", "window 4", "auto"]
    seen = {(workload["workload"], workload["temperature"]) for workload in report["workloads"]}
    mixed, tail, group = "mixed crops, batch 1", "28 mixed with a long tail", "groups of 28, one prompt each"
    assert seen == {(mixed, 1.0), (tail, 1.0), (group, 1.0), (mixed, 0.0), (tail, 0.0)}
    for workload in report["workloads"]:
        contenders = workload["contenders"]
        assert list(contenders) == (["TRL transformers path"] if workload["temperature"] else []) + ours
        assert workload["same_ids"] and workload["best_fixed"] in ours[:-1]
        assert 0.1 < workload["auto_by_best_at_typical_times"] < 10
        assert workload["rows"] == {mixed: 3, tail: 56, group: 3 * 28}[workload["workload"]]
        assert len({str(contenders[name]["tokens"]) for name in ours}) == 1
        assert contenders["AR"]["tpf"] == 1 and contenders["AR"]["faster_than_ar"] == 1
        assert contenders[workload["best_fixed"]]["faster_than_best"] == 1
        assert sum(contenders["auto"]["share_of_rounds_by_window"].values()) == pytest.approx(1)
        assert contenders["window 4"]["share_of_rounds_by_window"] == {"4": 1.0}
        assert [set(counts) for counts in contenders["AR"]["rounds_by_window"]] == [{"0"}]
        for values in contenders.values():
            assert len(values["total"]) == len(values["decode"]) == len(values["cpu"]) == 1
            assert 0 < values["decode"][0] < values["total"][0] and 0 < values["cpu"][0] < 2 * values["total"][0]
        assert ("faster_than_trl" in contenders["auto"]) == bool(workload["temperature"])
    first = report["workloads"][0]["contenders"]["window 4"]["by_task"]
    assert set(first) == {"formula", "table", "text"} and 0 <= first["table"]["acceptance"] <= 1
    assert {target["wanted"] for target in report["targets"]} == {1.4, 1.25, 0.97, 2.0}
    assert {target["standard_error"] for target in report["targets"]} == {None}  # one round does not tell
    assert "± 0.000" not in printed
    assert len(report["environment"]["load_before_and_after"]) == 2
    assert all(name in printed for name in [*ours, "TRL transformers path", mixed, tail, group, "targets"])
    assert "same ids: NO" not in printed


def test_cpu_benchmark_says_when_ids_differ(
    module: Any,
    decoding: ModuleType,
    drafter_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = decoding.Checkpoint(str(drafter_checkpoint), 4)
    workload = decoding.make_workloads([1], [0.0])[0]
    contenders = module("decoding_contenders")
    real = contenders.generate

    def wrong_when_drafting(*args: Any, **kwargs: Any) -> Any:
        out = real(*args, **kwargs)
        return replace(out, sequences=[ids + 1 for ids in out.sequences]) if kwargs["method"] != "ar" else out

    monkeypatch.setattr(contenders, "generate", wrong_when_drafting)
    result = decoding.measure(checkpoint, workload, 1, CostModel())
    decoding.print_table(result)
    assert not result["same_ids"]
    assert "same ids: NO" in capsys.readouterr().out


def test_trl_path_at_next_to_no_temperature_writes_the_greedy_tokens(
    module: Any, decoding: ModuleType, drafter_checkpoint: Path
) -> None:
    checkpoint = decoding.Checkpoint(str(drafter_checkpoint), 6)
    inputs, _ = decoding.make_workloads([3], [1.0])[0].calls(checkpoint, 0)[0]
    contenders, pauses = module("decoding_contenders"), []
    trl = contenders.trl_path(checkpoint, checkpoint.model, inputs, 1e-6, 0, lambda: pauses.append(1))
    greedy = contenders.our_path(checkpoint, {"method": "ar"}, checkpoint.model, inputs, 0.0, 0, lambda: None)
    assert trl.ids == greedy.ids
    assert len(pauses) == max(map(len, trl.ids)) and trl.prefill > 0


def test_contenders_take_turns_and_are_charged_for_their_own_time(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = module("decoding_contenders")
    monkeypatch.setattr(contenders, "TURN_SECONDS", 0.0)
    now, order = [0.0], ""

    def clock() -> float:
        return now[0]

    monkeypatch.setattr(contenders, "time", SimpleNamespace(perf_counter=clock, process_time=clock))

    def decoder(name: str, rounds: int, seconds: float) -> Callable[[Callable[[], None]], Any]:
        def decode(pause: Callable[[], None]) -> Any:
            nonlocal order
            for _ in range(rounds):
                now[0] += seconds
                order += name
                pause()
            return contenders.Reading([], 0.0)

        return decode

    results = contenders.take_turns({"a": decoder("a", 4, 1.0), "b": decoder("b", 2, 2.0), "c": decoder("c", 1, 7.0)})
    assert {name: seconds for name, (_, seconds, _, _) in results.items()} == {"a": 4, "b": 4, "c": 7}
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert sorted(order) == list("aaaabbc") and "aaa" not in order.replace("c", "")  # b has its second turn in between


def test_at_every_call_another_contender_begins(module: Any, decoding: ModuleType, drafter_checkpoint: Path) -> None:
    benchmark = module("decoding_contenders")
    checkpoint, began = decoding.Checkpoint(str(drafter_checkpoint), 2), []
    contenders = decoding.Contenders(checkpoint, sampled=True, cost_model=CostModel())

    def begin(name: str, *arguments: Any) -> Any:
        began.append(name)
        return benchmark.Reading([], 0.0)

    names = list(contenders.by_name)
    contenders.by_name = {name: partial(begin, name) for name in names}
    measured = {name: benchmark.Measured() for name in names}
    for seed in range(len(names)):
        contenders.read({}, 1.0, seed, measured)
    orders = [began[at : at + len(names)] for at in range(0, len(began), len(names))]
    assert [sorted(order) for order in orders] == [sorted(names)] * len(names)
    assert {order[0] for order in orders} == {order[-1] for order in orders} == set(names)


def test_a_contender_that_fails_stops_none_of_the_others(module: Any) -> None:
    contenders, read = module("decoding_contenders"), []

    def fail(pause: Callable[[], None]) -> Any:
        pause()
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        contenders.take_turns({"a": fail, "b": lambda pause: [read.append(pause()) for _ in range(3)]})
    assert len(read) == 3


@pytest.mark.parametrize(
    ("ours", "middle", "error"),
    [([2.0] * 5, 0.5, 0.0), ([1.0, 0.5, 2.0], 1.0, 0.5), ([1.0, 1.0, 1.0, 100.0], 1.0, 0.0), ([4.0], 0.25, None)],
)
def test_ratios_are_medians_that_a_stall_does_not_move(
    decoding: ModuleType, ours: list[float], middle: float, error: float | None
) -> None:
    measured = [SimpleNamespace(decode=seconds) for seconds in ours]
    got = decoding.ratio([SimpleNamespace(decode=1.0)] * len(ours), measured, decoding.decode_seconds)
    few = len(ours) / (len(ours) - 0.8)
    expected = None if error is None else pytest.approx(error * decoding.MEDIAN_ERROR * few / len(ours) ** 0.5)
    assert got == (middle, expected)


def test_typical_times_are_those_of_rounds_of_the_same_kind(module: Any) -> None:
    rounds = module("decoding_rounds")

    def some(window: int, live_rows: int, noise: float = 1.0) -> Any:
        return rounds.Round(window, live_rows, noise * (2 + window) * (1 + 0.1 * live_rows))

    noises = (0.1, 0.8, 1.0, 1.2, 9.0)
    measured = [some(window, live, noise) for window in (0, 4) for live in range(1, 29) for noise in noises]
    typical = rounds.TypicalTimes([*measured, some(8, 3)])
    assert typical.total([some(4, 28, 9.0), some(0, 1, 0.5)]) == pytest.approx(6 * 3.8 + 2 * 1.1)
    assert typical.total([some(8, 3)]) == pytest.approx(13.0)
    assert typical.total([]) == 0
    few = rounds.TypicalTimes([some(8, 3), some(8, 3, 100.0), some(8, 3, 0.9), some(8, 3, 1.1)])
    assert few.total([some(8, 3)]) == pytest.approx(1.05 * 13.0)
    assert rounds.TypicalTimes([some(8, 3), some(8, 3, 3.0)]).total([some(8, 3)]) == pytest.approx(2 * 13.0)


def test_rounds_are_recorded_with_their_windows_and_rows(
    module: Any, decoding: ModuleType, drafter_checkpoint: Path
) -> None:
    checkpoint = decoding.Checkpoint(str(drafter_checkpoint), 6)
    inputs, _ = decoding.make_workloads([3], [1.0])[0].calls(checkpoint, 0)[0]
    contenders = module("decoding_contenders")
    measured = {name: contenders.Measured() for name in ("AR", "window 4", "auto", "window 2")}
    contenders.Contenders(checkpoint, sampled=False, cost_model=CostModel()).read(inputs, 1.0, 0, measured)
    for name, result in measured.items():
        counts = Counter(one.window for one in result.rounds)
        assert counts == {window: count for window, count in result.windows().items() if count}, name
        assert result.rounds[0].live_rows == 3 and {one.live_rows for one in result.rounds} <= {1, 2, 3}
        assert all(one.seconds > 0 for one in result.rounds)
        assert sum(one.seconds for one in result.rounds) < result.total
    assert {one.window for one in measured["window 4"].rounds} == {4}


def test_tail_has_few_long_responses(decoding: ModuleType, drafter_checkpoint: Path) -> None:
    checkpoint = decoding.Checkpoint(str(drafter_checkpoint), 6)
    checkpoint.inputs = lambda crops: crops  # type: ignore[method-assign]
    mixed, tails, groups = (
        [crops for crops, _ in load.calls(checkpoint, 1)] for load in decoding.make_workloads([56], [1.0])
    )
    tokenizer = checkpoint.processor.tokenizer
    for tail in tails:
        lengths = sorted(len(tokenizer(crop.reference)["input_ids"]) for crop in tail)
        assert len(tail) == 28 and lengths[-4] > 2 * lengths[-5]
    assert len({id(crop) for tail in tails for crop in tail}) == 56
    assert [len(set(map(id, group))) for group in groups] == [1, 1, 1] and len(groups[0]) == 28
    others = [crops for crops, _ in decoding.make_workloads([56], [1.0])[0].calls(checkpoint, 2)]
    seen = [{crop.image.tobytes() for crop in batches[0]} for batches in (mixed, others)]
    assert list(map(len, seen)) == [56, 56] and not seen[0] & seen[1]  # rounds have crops of their own


def test_gpu_benchmark_runs_at_a_tiny_size(module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    module("decoding_gpu").main(["--size", "tiny", "--device", "cpu", "--cuda_graph", "--json", str(file)])
    report, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert [workload["rows"] for workload in report["workloads"]] == [1, 3, 3]
    for workload in report["workloads"]:
        assert list(workload["contenders"]) == ["AR", "window 8", "window 16", "window 32", "auto"]
        for values in (runs[0] for runs in workload["contenders"].values()):
            assert values["equal_rows"] == values["equal_tokens"] == 1
            assert values["tokens"] == pytest.approx(workload["mean"] * workload["rows"])
            assert 0 < values["decode"] <= values["seconds"] and values["planned_bytes"] > 0
        assert workload["contenders"]["window 8"][0]["accepted_per_round"] > 2
        assert set(workload["split"]) == {
            "draft forward", "verify forward", "sampling, twice", "noise", "commit", "whole round"
        }  # fmt: skip
        assert workload["syncs"] is None  # there is nothing to wait for on a CPU
    assert "CUDA" in report["graphs"][0]["failed"]
    assert all(text in printed for text in ("log-normal", "auto", "window 16", "planned", "not captured"))


@pytest.mark.parametrize(("probability", "least", "most"), [(1.0, 7, 8), (0.0, 0, 0)])
def test_forced_drafts_are_right_with_the_given_probability_and_cost_a_forward(
    module: Any, probability: float, least: float, most: float
) -> None:
    forced = module("decoding_forced")
    gpu, size = module("decoding_gpu"), forced.tiny_size()
    model = forced.build_model(size, torch.device("cpu"), torch.float32)
    bench = gpu.Bench(size, model, torch.device("cpu"), probability)
    inputs, lengths = forced.make_inputs(size, 2, torch.device("cpu")), torch.tensor([60, 45])
    with forced.forced_ends(lengths, size.end_id):
        plain = bench.decode(inputs, 0, 60)
        forwards: list[int] = []
        with forced.forced_drafts(plain, probability, size.config.text_config.vocab_size):
            hook = model.register_forward_hook(lambda *_: forwards.append(1))
            out = bench.decode(inputs, 8, 60)
            hook.remove()
    assert [len(ids) for ids in out.sequences] == lengths.tolist()
    assert all(torch.equal(a, b) for a, b in zip(out.sequences, plain.sequences, strict=True))
    assert least <= out.stats.rows.accepted_per_round <= most
    assert len(forwards) == 2 * out.stats.rounds + out.stats.prefill_forwards
    assert len(set(plain.sequences[0].tolist())) > 20  # noise chooses, so that rows vary


def test_full_size_is_the_published_one(module: Any) -> None:
    forced = module("decoding_forced")
    size = forced.full_size()
    with torch.device("meta"):
        model = GlmOcrForConditionalGeneration(size.config)
    text = sum(parameter.numel() for parameter in model.model.language_model.layers.parameters())
    assert 1.0e9 < sum(parameter.numel() for parameter in model.parameters()) < 1.15e9  # 2.2 GB in bf16
    assert text == 16 * (1536 * 128 * (16 + 8 + 8 + 16) + 3 * 1536 * 4608 + 4 * 1536)
    assert forced.make_inputs(size, 1, torch.device("cpu"))["input_ids"].shape[1] == pytest.approx(1000, abs=50)


@pytest.mark.parametrize("accepted", [17.4, 25.0])
def test_probability_gives_the_published_mean(module: Any, accepted: float) -> None:
    probability = module("decoding_forced").probability_for(accepted)
    assert sum(probability**k for k in range(1, 33)) == pytest.approx(accepted, abs=1e-6)
