"""Prefill once for equal prompts, rows that leave and enter, growth; a round asks the device for one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from decoding_helpers import ROWS, banned_ids, drafter, eos_id, ids, make_inputs, plain_ids, run, varied_policy
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.overrides import TorchFunctionMode

from gravity_rl.decoding import Decoded, generate
from gravity_rl.decoding.ar import ar_step
from gravity_rl.decoding.cache import RaggedCache
from gravity_rl.decoding.loop import Responses, commit
from gravity_rl.decoding.memory import PROMPTS_PER_PREFILL
from gravity_rl.decoding.rows import Rows
from gravity_rl.decoding.sampling import Sampler
from gravity_rl.decoding.scheduler import Scheduler
from gravity_rl.decoding.self_spec import self_spec_round


@contextmanager
def vision_patches() -> Iterator[list[int]]:
    """Image patches of each call of the vision tower."""
    calls: list[int] = []
    handle = varied_policy()[0].model.visual.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(len(args[0] if args else kwargs["hidden_states"])), with_kwargs=True
    )
    try:
        yield calls
    finally:
        handle.remove()


@pytest.mark.parametrize("method", ["ar", "self_spec"])
@pytest.mark.parametrize("max_live_rows", [None, 5])
def test_twenty_eight_completions_take_one_prefill(method: str, max_live_rows: int | None) -> None:
    with vision_patches() as calls:
        decoded = run([1] * 28, method, row_ids=range(28), max_live_rows=max_live_rows, max_new_tokens=12)
    assert decoded.stats.prefills == decoded.stats.prefill_forwards == 1
    assert calls == [len(make_inputs([1])["pixel_values"])]
    assert len({tuple(sequence) for sequence in ids(decoded)}) == 28
    assert ids(decoded)[1] == plain_ids(1.0)[1][:12]


@pytest.mark.parametrize("max_live_rows", [None, 1, 2])
def test_equal_prompts_anywhere_in_a_batch_are_prefilled_once(max_live_rows: int | None) -> None:
    rows = [2, 0, 1, 0, 2, 3, 1, 0, 2]
    row_ids = [20, 0, 1, 30, 2, 3, 31, 32, 33]
    with vision_patches() as calls:
        decoded = run(rows, "self_spec", row_ids=row_ids, max_live_rows=max_live_rows)
    assert decoded.stats.prefills == 4
    assert sum(calls) == sum(len(make_inputs([row])["pixel_values"]) for row in range(4))
    for place in (1, 2, 4, 5):
        assert ids(decoded)[place] == plain_ids(1.0)[rows[place]]
    places = [0, 3, 6, 7, 8]
    others = run([rows[place] for place in places], "ar", row_ids=[row_ids[place] for place in places])
    assert [ids(decoded)[place] for place in places] == ids(others)


def test_equal_prompts_with_different_images_are_not_merged() -> None:
    inputs = make_inputs([0, 0, 0])
    patches = len(inputs["pixel_values"]) // 3
    inputs["pixel_values"][patches] += 1  # one value of the second image would do; all of a patch are visible
    model, _ = varied_policy()
    settings: dict[str, Any] = {"max_new_tokens": 12, "eos_token_ids": [], "temperature": 0.0}
    with vision_patches() as calls:
        decoded = generate(model, inputs, method="ar", **settings)
    assert decoded.stats.prefills == 2
    assert calls == [2 * patches]
    assert ids(decoded)[0] == ids(decoded)[2]
    assert not torch.equal(decoded.logprobs[0], decoded.logprobs[1])
    second = {name: tensor[1:2] for name, tensor in inputs.items()}
    second["pixel_values"] = inputs["pixel_values"][patches : 2 * patches]
    alone = generate(model, second, method="ar", **settings)
    assert ids(alone)[0] == ids(decoded)[1]
    torch.testing.assert_close(alone.logprobs[0], decoded.logprobs[1], atol=1e-5, rtol=0)


def test_images_of_another_shape_are_not_merged() -> None:
    """The same patches in the same number, once wide and once high."""
    inputs = make_inputs([1, 1])
    inputs["image_grid_thw"][1] = inputs["image_grid_thw"][1, [0, 2, 1]]
    assert inputs["image_grid_thw"][0].tolist() != inputs["image_grid_thw"][1].tolist()
    decoded = generate(varied_policy()[0], inputs, method="ar", max_new_tokens=2, eos_token_ids=[])
    assert decoded.stats.prefills == 2


def test_many_prompts_are_prefilled_in_portions() -> None:
    """Prompts of different texts; the forwards are as few as the portions allow."""
    model, processor = varied_policy()
    letters = processor.tokenizer.convert_tokens_to_ids(list("abcdefghijklmnopqrstuvwxyz0123456789ABCD"))
    inputs = {
        "input_ids": torch.tensor(letters)[:, None].expand(-1, 3).clone(),
        "attention_mask": torch.ones(len(letters), 3, dtype=torch.long),
        "mm_token_type_ids": torch.zeros(len(letters), 3, dtype=torch.long),
    }
    decoded = generate(model, inputs, method="ar", max_new_tokens=2, eos_token_ids=[])
    assert decoded.stats.prefills == len(letters) == 40
    assert decoded.stats.prefill_forwards == -(-40 // PROMPTS_PER_PREFILL)


def test_states_of_prompts_are_kept_only_while_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between rounds, at most the prompt that waiting rows share with rows that have started."""
    held: list[int] = []
    original = Scheduler._round

    def counting(self: Scheduler) -> Tensor:
        held.append(self._kept[1].cache.num_slots if self._kept else 0)
        return original(self)

    monkeypatch.setattr(Scheduler, "_round", counting)
    run([0, 1, 2, 0, 1, 2, 0, 1, 2, 3], "self_spec", row_ids=range(10), max_live_rows=2, max_new_tokens=6)
    assert max(held) == 1
    assert held[-1] == 0


def test_slots_are_refilled_several_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill and a start for every row that ends would cost more than the free slots, unless nobody else waits."""
    started: list[tuple[int, int]] = []  # rows that start, and rows that still wait
    original = Scheduler._start

    def noting(self: Scheduler, rows: list[int], slots_M: Tensor) -> None:
        started.append((len(rows), len(self._waiting)))
        original(self, rows, slots_M)

    monkeypatch.setattr(Scheduler, "_start", noting)
    run([0] * 48, "ar", row_ids=range(48), max_live_rows=24, eos_token_ids=[eos_id(), 37, 60, 90])
    assert started[0] == (24, 24)
    assert len(started) > 3
    assert all(count >= 3 for count, waiting in started if waiting)
    assert started[-1][1] == 0


def test_rows_leave_the_forwards_when_they_have_ended() -> None:
    """Token by token, the row-forwards of the batch are the tokens of its rows, and no more."""
    rows_of_forwards: list[int] = []
    handle = varied_policy()[0].lm_head.register_forward_pre_hook(
        lambda module, args: rows_of_forwards.append(len(args[0]))
    )
    try:
        decoded = run(range(6), "ar", eos_token_ids=[eos_id(), 60, 90, 120, 37])
    finally:
        handle.remove()
    lengths = [len(sequence) for sequence in decoded.sequences]
    assert len(set(lengths)) > 2
    decode_forwards = rows_of_forwards[decoded.stats.prefill_forwards :]
    assert decode_forwards == [sum(length > at for length in lengths) for at in range(max(lengths))]


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_refills_with_longer_prompts_grow_the_cache(method: str) -> None:
    """Rows start in the order of the batch: short prompts first, the longest one into a cache made for the others."""
    model, processor = varied_policy()
    letters = torch.tensor(processor.tokenizer.convert_tokens_to_ids(list("abcdefgh")))
    lengths = [1, 2, 5, 700]
    texts = [letters[torch.arange(length) % 8] for length in lengths]
    inputs = {
        name: torch.zeros(4, 700, dtype=torch.long) for name in ("input_ids", "attention_mask", "mm_token_type_ids")
    }
    for row, text in enumerate(texts):
        inputs["input_ids"][row, -len(text) :] = text
        inputs["attention_mask"][row, -len(text) :] = 1
    settings: dict[str, Any] = {
        "max_new_tokens": 6, "eos_token_ids": [], "banned_token_ids": banned_ids(), "drafter": drafter(),
        "block_size": 3,
    }  # fmt: skip
    decoded = generate(model, inputs, method=method, max_live_rows=1, **settings)
    for row, length in enumerate(lengths):
        alone = {name: tensor[row : row + 1, -length:] for name, tensor in inputs.items()}
        assert ids(decoded)[row] == ids(generate(model, alone, method="ar", row_ids=[row], **settings))[0]


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_growth_to_the_limit(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """A cache that starts small grows several times, and no further than prompt, limit and window need."""
    expected = plain_ids(1.0, endless=True)
    monkeypatch.setattr("gravity_rl.decoding.cache._FIRST_ROOM", 0)
    capacities: list[int] = []
    original = RaggedCache._grow

    def growing(self: RaggedCache, needed: int) -> None:
        original(self, needed)
        if self.max_capacity > 40:
            capacities.append(self.capacity)

    monkeypatch.setattr(RaggedCache, "_grow", growing)
    decoded = run(range(6), method, eos_token_ids=[])
    assert ids(decoded) == expected
    assert capacities == sorted(capacities)
    assert len(set(capacities)) > 2
    longest = int(make_inputs(range(6))["attention_mask"].sum(1).max())
    assert max(capacities) <= longest + 40 + 4 + 1


class HostTransfers(TorchFunctionMode):
    """Counts the calls that would make a device wait: answers for the host, and shapes that depend on values."""

    ASKS = ("cpu", "item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "unique",
            "masked_select", "equal", "allclose", "argwhere")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        by_mask = name in ("__getitem__", "__setitem__") and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        if name in self.ASKS or by_mask:
            self.counts["by_mask" if by_mask else name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("block_size", [0, 4])
def test_a_round_on_the_device_asks_for_nothing(monkeypatch: pytest.MonkeyPatch, block_size: int) -> None:
    """The steps and what commits their tokens run on tensors without values, where any question would raise."""
    rounds = 0
    model, _ = varied_policy()
    original = Scheduler._round

    def traced(self: Scheduler) -> Tensor:
        nonlocal rounds
        rounds += 1
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = mode.from_tensor
            cache = RaggedCache(self._cache.num_slots, self._cache.max_capacity, torch.device("cpu"))
            cache.longest, cache.capacity = self._cache.longest, self._cache.capacity
            cache.reserve(block_size + 2)
            cache.lengths_L, cache.prefix_L = fake(self._cache.lengths_L), fake(self._cache.prefix_L)
            cache.keys_LHCD, cache.values_LHCD = (
                [fake(states) for states in layers] for layers in (self._cache.keys_LHCD, self._cache.values_LHCD)
            )
            rows = Rows(cache, *(fake(tensor) for tensor in self._view._tensors()))
            sampler = Sampler(0.7, torch.tensor(banned_ids()), top_p=0.9, top_k=20, min_p=0.01)
            noise = torch.empty(len(rows), 8, model.config.text_config.vocab_size)
            proposal = (
                self_spec_round(model, rows, sampler, noise, block_size, 2)
                if block_size
                else ar_step(model, rows, sampler, noise)
            )
            responses = Responses(len(self._prompts), 40, 8, torch.device("cpu"))
            done = commit(rows, proposal, responses, torch.tensor([eos_id()]), 40)
            assert done.finished_N.shape == done.broken_N.shape == done.drafts_N.shape == (len(rows),)
        return original(self)

    monkeypatch.setattr(Scheduler, "_round", traced)
    run([0, 1, 2], "self_spec", max_new_tokens=6)
    assert rounds > 1


@pytest.mark.parametrize("ask", [lambda x: bool(x.any()), lambda x: x.tolist(), lambda x: x[x > 0], torch.nonzero])
def test_tensors_without_values_refuse_questions(ask: Callable[[Tensor], object]) -> None:
    """The test above can fail."""
    with FakeTensorMode() as mode, pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        ask(mode.from_tensor(torch.zeros(3)))


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_one_transfer_to_the_host_a_round(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """``.cpu()`` once; every other question in a round is asked of tensors that live on the host."""
    counts: list[Counter[str]] = []
    original, transferred = Scheduler._round, Tensor.cpu

    def counting(self: Scheduler) -> Tensor:
        with HostTransfers() as transfers:
            freed = original(self)
        counts.append(transfers.counts)
        return freed

    monkeypatch.setattr(Scheduler, "_round", counting)
    assert ids(run([0, 1, 2], method)) == plain_ids(1.0)[:3]
    assert len(counts) > 3
    assert {count["cpu"] for count in counts} == {1}
    # of the state that came over: whether rows broke or ended and the longest row; of the noise: what is missing
    assert all(count["__bool__"] <= 2 and count["nonzero"] <= 1 and count["__int__"] <= 2 for count in counts)
    assert all(count["tolist"] <= 2 for count in counts)  # accepted drafts and ended rows, of the same state
    assert not any(count[name] for count in counts for name in ("by_mask", "item", "unique", "masked_select", "equal"))
    assert Tensor.cpu is transferred


def test_phases_are_timed_and_rounds_counted() -> None:
    decoded: Decoded = run(range(len(ROWS)), "self_spec", row_ids=range(len(ROWS)), max_live_rows=3)
    stats = decoded.stats
    assert set(stats.seconds) == {"prefill", "draft_rounds", "ar_rounds", "rows"}
    assert stats.seconds["prefill"] > 0
    assert stats.seconds["draft_rounds"] > 0
    assert stats.seconds["rows"] > 0
    assert stats.seconds["ar_rounds"] == 0
    assert stats.total_seconds == sum(stats.seconds.values())
