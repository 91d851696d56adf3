"""What a call says it reserves, what it does reserve, and the error when that is not there."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from decoding_helpers import drafter, ids, make_inputs, plain_ids, read, reader, run, use_windows, varied_policy

from gravity_rl.decoding import DecodeMemoryError, engine, generate
from gravity_rl.decoding.cache import RaggedCache
from gravity_rl.decoding.memory import MemoryPlan, plan_memory
from gravity_rl.decoding.noise import NoiseBuffer
from gravity_rl.decoding.prompts import Prefix, Prompts
from gravity_rl.decoding.scheduler import Scheduler

LIMIT = 320


class Reserved:
    """Bytes that a call took at most: by its slots, by prompts on their way there, and so on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: Any):
        self.places = self.keys_values = self.prompts = self.noise = self.logits = self.responses = 0
        prefixes: weakref.WeakSet[RaggedCache] = weakref.WeakSet()
        original, prefill = Scheduler._round, Prompts.prefill

        def measuring(scheduler: Scheduler) -> Any:
            freed = original(scheduler)
            self.places = scheduler._cache.capacity
            self.keys_values = max(self.keys_values, size(scheduler._cache))
            self.noise = 0 if scheduler._noise is None else scheduler._noise.ring_LKV.nbytes
            self.responses = scheduler._responses.ids.nbytes + scheduler._responses.logprobs.nbytes
            return freed

        def prefilling(*args: Any) -> Prefix:
            prefix = prefill(*args)
            prefixes.add(prefix.cache)
            self.prompts = max(self.prompts, sum(map(size, prefixes)))
            return prefix

        monkeypatch.setattr(Scheduler, "_round", measuring)
        monkeypatch.setattr(Prompts, "prefill", prefilling)
        self.handle = model.lm_head.register_forward_hook(self._note_logits)

    def _note_logits(self, module: Any, args: Any, logits: torch.Tensor) -> None:
        self.logits = max(self.logits, logits.nbytes)


def keep_plans(monkeypatch: pytest.MonkeyPatch) -> list[MemoryPlan]:
    """The plans of all calls to come."""
    plans: list[MemoryPlan] = []

    def planning(*args: Any, **kwargs: Any) -> MemoryPlan:
        plans.append(plan_memory(*args, **kwargs))
        return plans[-1]

    monkeypatch.setattr(engine, "plan_memory", planning)
    return plans


def size(cache: RaggedCache) -> int:
    return sum(states.nbytes for states in (*cache.keys_LHCD, *cache.values_LHCD))


@pytest.mark.parametrize("policy", [varied_policy, reader])
@pytest.mark.parametrize(("method", "temperature"), [("ar", 1.0), ("self_spec", 0.0), ("self_spec", 1.0)])
def test_the_plan_is_kept(monkeypatch: pytest.MonkeyPatch, policy: Any, method: str, temperature: float) -> None:
    """At the limit, keys and values are those of the plan, and the parts stay within it."""
    model = policy()[0]
    reserved = Reserved(monkeypatch, model)
    plans = keep_plans(monkeypatch)
    settings: dict[str, Any] = {
        "max_new_tokens": LIMIT,
        "eos_token_ids": [],
        "temperature": temperature,
        "block_size": 8,
    }
    try:
        decoded = (run if policy is varied_policy else read)([0, 1, 2], method, **settings)
    finally:
        reserved.handle.remove()
    plan = plans[0]
    assert decoded.stats.memory == plan.total
    assert (plan.slots, plan.places) == (3, reserved.places)
    text = model.config.text_config
    layers = text.num_hidden_layers
    assert reserved.keys_values * (2 * layers + 1) == plan.keys_values * 2 * layers  # the plan has one tensor twice
    assert reserved.noise == plan.noise
    assert (plan.noise > 0) == (temperature > 0)
    assert 0 < reserved.logits <= plan.logits
    assert 0 < reserved.prompts <= plan.prompts
    assert reserved.responses == plan.responses


@pytest.mark.parametrize("max_live_rows", [None, 40, 5])
def test_prompts_on_their_way_into_slots_are_planned_for(
    monkeypatch: pytest.MonkeyPatch, max_live_rows: int | None
) -> None:
    """Many different prompts, the last of them with several rows: few of their states are held twice."""
    model, processor = varied_policy()
    letters = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
    texts = torch.tensor(processor.tokenizer.convert_tokens_to_ids(list(letters)))
    ids_RP = torch.cat([texts, texts[-1:], texts[-1:], texts[-1:]])[:, None].repeat(1, 50)
    inputs = {"input_ids": ids_RP, "attention_mask": torch.ones_like(ids_RP), "mm_token_type_ids": 0 * ids_RP}
    plans = keep_plans(monkeypatch)
    reserved = Reserved(monkeypatch, model)
    try:
        decoded = generate(model, inputs, method="ar", max_new_tokens=3, eos_token_ids=[], max_live_rows=max_live_rows)
    finally:
        reserved.handle.remove()
    assert decoded.stats.prefills == len(texts)
    assert 0 < reserved.prompts <= plans[0].prompts


def test_live_rows_and_the_limit_bound_the_plan() -> None:
    """The parts that follow live rows, and the one that follows all rows."""

    def plan(**settings: int) -> MemoryPlan:
        sizes = {"rows": 6, "slots": 6, "longest_prompt": 50, "max_new_tokens": 30, "max_block": 4} | settings
        config = varied_policy()[0].config
        return plan_memory(config, torch.float32, sampled=True, **sizes)

    for part in ("keys_values", "noise", "logits"):
        assert getattr(plan(), part) == 2 * getattr(plan(slots=3), part) == 6 * getattr(plan(slots=1), part) > 0
        assert getattr(plan(rows=600), part) == getattr(plan(), part)
    assert plan(slots=600).prompts == plan(slots=16).prompts  # in portions
    assert plan(max_new_tokens=60).keys_values > plan().keys_values
    assert plan(rows=600).responses > 50 * plan().responses
    memory = [run(range(6), "ar", max_live_rows=live, max_new_tokens=9).stats.memory for live in (None, 6, 3, 1)]
    assert memory[0] == memory[1] > memory[2] > memory[3]


@pytest.mark.parametrize("where", ["cache", "noise", "forward"])
def test_running_out_of_memory_names_the_setting(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    if where == "cache":
        monkeypatch.setattr(RaggedCache, "_grow", fail)
    elif where == "noise":
        monkeypatch.setattr(NoiseBuffer, "__init__", fail)
    else:
        monkeypatch.setattr(engine, "self_spec_round", fail)
    with pytest.raises(DecodeMemoryError, match="lower max_live_rows, which is 2, max_new") as caught:
        run([0, 1, 2], "self_spec", max_live_rows=2)
    assert "2 rows at once of up to" in str(caught.value)
    assert "GiB" in str(caught.value)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_more_than_any_machine_has(method: str) -> None:
    with pytest.raises(DecodeMemoryError, match="max_live_rows, which is 1, max_new_tokens or block_size"):
        run([0], method, max_new_tokens=10**12)


def test_other_errors_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(engine, "self_spec_round", fail)
    with pytest.raises(RuntimeError, match="shapes do not match") as caught:
        run([0], "self_spec")
    assert not isinstance(caught.value, DecodeMemoryError)


def test_the_model_is_usable_after_running_out_of_memory() -> None:
    model = varied_policy()[0].train()
    try:
        with pytest.raises(DecodeMemoryError):
            run([0], "ar", max_new_tokens=10**12)
        assert model.training
    finally:
        model.eval()
    assert ids(run([0], "ar")) == plain_ids(1.0)[:1]


def test_the_widest_window_of_auto_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows may go up to the block size of the drafter, at the very end of a response."""
    planned = run([3], "self_spec", block_size="auto", max_new_tokens=9, drafter=drafter(16)).stats.memory
    use_windows(monkeypatch, lambda at, live: 16 if at else 5, largest=16)
    decoded = run([3], "self_spec", max_new_tokens=9, eos_token_ids=[])
    assert decoded.stats.memory == planned
    assert len(decoded.sequences[0]) == 9
    assert len(make_inputs([3])["input_ids"]) == 1
