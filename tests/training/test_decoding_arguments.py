"""What decoding refuses, and what it leaves as it was."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from decoding_helpers import eos_id, make_inputs, plain_ids, run, varied_policy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gravity_rl.decoding import generate
from gravity_rl.decoding.attention import fast_text_tower
from gravity_rl.decoding.cache import RaggedCache
from gravity_rl.decoding.loop import Proposal, Responses, commit
from gravity_rl.decoding.rows import Rows
from gravity_rl.joint.drafter import BlockDiffusion
from gravity_rl.model import ModelError


@pytest.mark.parametrize(("overrides", "message"), [
    ({"drafter": BlockDiffusion(8, 10**6, 1.0, "uniform")}, "mask_id"),
    ({"block_size": 0}, "block_size: 0"),
    ({"block_size": -3}, "block_size: -3"),
    ({"block_size": 2.5}, "block_size: 2.5"),
    ({"block_size": "large"}, "block_size: 'large'"),
    ({"block_size": True}, "block_size: True"),
    ({"max_new_tokens": 0}, "max_new_tokens: 0"),
    ({"max_new_tokens": 2.5}, "max_new_tokens: 2.5"),
    ({"top_k": 2.5}, "top_k: 2.5"),
    ({"max_new_tokens": 10**19}, "max_new_tokens"),
    ({"row_ids": [1 << 63]}, "row_ids"),
    ({"row_ids": [1.5]}, "row_ids"),
    ({"eos_token_ids": None}, "eos_token_ids"),
    ({"eos_token_ids": [1.5]}, "eos_token_ids"),
    ({"banned_token_ids": 3}, "banned_token_ids"),
    ({"seed": 0.5}, "seed"),
    ({"temperature": None}, "temperature: None"),
    ({"top_p": "0.9"}, "top_p: '0.9'"),
    ({"drafter": BlockDiffusion(0, 5, 1.0, "uniform")}, "drafter.bd_size: 0"),
    ({"max_live_rows": 0}, "max_live_rows: 0"),
    ({"max_live_rows": -1}, "max_live_rows: -1"),
    ({"top_p": 0.0}, "top_p: 0.0"),
    ({"top_p": 1.01}, "top_p: 1.01"),
    ({"top_p": float("nan")}, "top_p: nan"),
    ({"top_k": -1}, "top_k: -1"),
    ({"min_p": -0.1}, "min_p: -0.1"),
    ({"min_p": 1.5}, "min_p: 1.5"),
    ({"min_p": float("nan")}, "min_p: nan"),
    ({"temperature": -0.1}, "temperature: -0.1"),
    ({"temperature": float("nan")}, "temperature: nan"),
    ({"temperature": 1e-40}, "temperature: 1e-40 is below 1e-06"),
    ({"temperature": float("inf")}, "temperature: inf"),
    ({"row_ids": [1, 2]}, "row_ids: 2 of them for 1 rows"),
    ({"eos_token_ids": [-1]}, r"eos_token_ids: \[-1\]"),
    ({"banned_token_ids": [10**6]}, "banned_token_ids"),
    ({"banned_token_ids": [5, 6], "eos_token_ids": [6]}, r"banned_token_ids: \[6\]"),
])  # fmt: skip
def test_arguments_out_of_range(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run([0], "self_spec", **overrides)


def test_whole_numbers_may_be_of_numpy_or_torch() -> None:
    plain = run([0, 1], "ar", max_new_tokens=6, row_ids=[3, 4])
    others = run([0, 1], "ar", max_new_tokens=np.int64(6), row_ids=torch.tensor([3, 4]), seed=np.int64(0))
    assert [row.tolist() for row in plain.sequences] == [row.tolist() for row in others.sequences]


def test_inputs_that_contradict_each_other() -> None:
    inputs, model = make_inputs([0]), varied_policy()[0]
    settings: dict[str, Any] = {"method": "ar", "max_new_tokens": 3, "eos_token_ids": []}
    with pytest.raises(ValueError, match=r"pixel_values: .* patches, but image_grid_thw asks for"):
        generate(model, inputs | {"pixel_values": inputs["pixel_values"][:-1]}, **settings)
    with pytest.raises(ValueError, match="input_ids: row 0 has ids outside of the vocabulary"):
        generate(model, inputs | {"input_ids": inputs["input_ids"] + 10**6}, **settings)


def test_one_call_at_a_time_for_a_model() -> None:
    model = varied_policy()[0]
    with fast_text_tower(model), pytest.raises(RuntimeError, match="decoding already"):
        run([0], "ar")
    assert model.config.text_config._attn_implementation == "sdpa"


def test_what_is_not_committed_may_be_broken() -> None:
    """Drafts of a mask token whose embedding is broken are never right; a token that only they read is not reported."""
    proposal = Proposal(
        tokens_NK=torch.tensor([[4, 5, 6]]),
        logprobs_NK=torch.tensor([[-1.0, -1.0, float("nan")]]),
        count_N=torch.tensor([2]),
        agreed_N=torch.tensor([0]),
        block_size=1,
    )
    rows = Rows.empty(RaggedCache(1, 50, torch.device("cpu")), 0)
    rows.live_N.fill_(True)
    for count, broken in ((2, False), (3, True)):
        done = commit(rows, replace(proposal, count_N=torch.tensor([count])), Responses(1, 9, 1, torch.device("cpu")),
                      torch.tensor([1]), 9)  # fmt: skip
        assert done.broken_N.tolist() == [broken]


def test_unknown_method() -> None:
    with pytest.raises(ValueError, match="method: 'beam' is none of ar, self_spec"):
        run([0], "beam")


def test_the_whole_vocabulary_banned() -> None:
    vocab_size = varied_policy()[0].config.text_config.vocab_size
    with pytest.raises(ValueError, match="whole vocabulary"):
        run([0], "ar", banned_token_ids=range(vocab_size), eos_token_ids=[])


def test_plain_decoding_needs_no_drafter() -> None:
    assert len(run([0], "ar", drafter=None, max_new_tokens=3).sequences[0]) == 3


def test_drafting_without_a_drafter() -> None:
    """A model that was not loaded from a folder with ``block_diffusion.json``."""
    with pytest.raises(ModelError, match=r"block_diffusion\.json"):
        run([0], "self_spec", drafter=None)


@pytest.mark.parametrize("name", ["repetition_penalty", "no_repeat_ngram_size", "stop_strings", "logits_processor"])
def test_rules_that_depend_on_the_history_cannot_be_asked_for(name: str) -> None:
    """A draft would have to be judged by the history before it; there is no setting that could be ignored."""
    with pytest.raises(TypeError, match=name):
        run([0], "self_spec", **{name: 2})


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_the_generation_configuration_is_not_read(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    config = varied_policy()[0].generation_config
    for name, value in {"repetition_penalty": 5.0, "top_k": 1, "temperature": 0.1, "max_new_tokens": 1}.items():
        monkeypatch.setattr(config, name, value, raising=False)
    assert run([0], method).sequences[0].tolist() == plain_ids(1.0)[0]


def test_other_models_are_refused() -> None:
    with pytest.raises(TypeError, match="Linear"):
        run([0], "ar", model=torch.nn.Linear(2, 2))


def test_attention_without_4d_masks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = varied_policy()[0].config.text_config
    monkeypatch.setattr(config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ValueError, match=r"flash_attention_2.*'sdpa' or 'eager'"):
        run([0], "ar")


@pytest.mark.parametrize("change", [-1, 1])
def test_images_and_their_places_have_to_match(change: int) -> None:
    inputs = make_inputs([0, 1])
    grid = inputs["image_grid_thw"]
    inputs["image_grid_thw"] = grid[:1] if change < 0 else torch.cat([grid, grid[:1]])
    with pytest.raises(ValueError, match=f"image_grid_thw: {2 + change} images for 2 places"):
        generate(varied_policy()[0], inputs, method="ar", max_new_tokens=2, eos_token_ids=[])


def test_shapes_of_inputs_have_to_match() -> None:
    inputs = make_inputs([0, 1])
    inputs["attention_mask"] = inputs["attention_mask"][:, 1:]
    with pytest.raises(ValueError, match=r"inputs: .*attention_mask"):
        generate(varied_policy()[0], inputs, method="ar", max_new_tokens=2, eos_token_ids=[])


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "mm_token_type_ids", "pixel_values", "image_grid_thw"])
def test_missing_inputs(name: str) -> None:
    inputs = dict(make_inputs([0]))
    del inputs[name]
    with pytest.raises(ValueError, match=name):
        generate(varied_policy()[0], inputs, method="ar", max_new_tokens=2, eos_token_ids=[])


@pytest.mark.parametrize("name", ["pixel_values_videos", "video_grid_thw"])
def test_videos_are_refused(name: str) -> None:
    inputs = make_inputs([0]) | {name: torch.ones(1, 3)}
    with pytest.raises(ValueError, match=name):
        generate(varied_policy()[0], inputs, method="ar", max_new_tokens=2, eos_token_ids=[])


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (3,)])
def test_inputs_without_rows_or_tokens(shape: tuple[int, ...]) -> None:
    empty = torch.zeros(shape, dtype=torch.long)
    inputs = dict.fromkeys(("input_ids", "attention_mask", "mm_token_type_ids"), empty)
    with pytest.raises(ValueError, match=r"must be \(rows, tokens\)"):
        generate(varied_policy()[0], inputs, method="ar", max_new_tokens=2, eos_token_ids=[])


def test_right_padded_prompts() -> None:
    inputs = dict(make_inputs([1, 0]))
    shift = int((inputs["attention_mask"][1] == 0).sum())
    assert shift > 0
    for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
        inputs[name][1] = inputs[name][1].roll(-shift)
    with pytest.raises(ValueError, match="attention_mask: row 1 is empty or not padded on the left"):
        generate(varied_policy()[0], inputs, method="ar", max_new_tokens=2, eos_token_ids=[])


def test_prompt_that_ends_in_an_image() -> None:
    inputs = dict(make_inputs([0]))
    inputs["mm_token_type_ids"][0, -1] = 1
    with pytest.raises(ValueError, match="row 0 ends in an image"):
        generate(varied_policy()[0], inputs, method="ar", max_new_tokens=2, eos_token_ids=[])


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_logits_that_are_not_finite(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    model, _ = varied_policy()
    monkeypatch.setattr(model.lm_head.weight, "data", torch.full_like(model.lm_head.weight, float("nan")))
    with pytest.raises(FloatingPointError, match=r"rows \[0, 1\]"):
        run([0, 1], method, max_new_tokens=4)


def test_modes_random_state_and_gradients_are_left_alone() -> None:
    model, _ = varied_policy()
    model.train()
    model.model.visual.eval()
    before, rope_deltas = torch.random.get_rng_state(), model.model.rope_deltas
    try:
        decoded = run([0], "self_spec", max_new_tokens=4)
        assert model.training
        assert model.model.language_model.layers[0].training
        assert not any(module.training for module in model.model.visual.modules())
        with pytest.raises(ValueError, match="left"):
            inputs = dict(make_inputs([0]))
            inputs["attention_mask"] = torch.zeros_like(inputs["attention_mask"])
            generate(model, inputs, method="ar", max_new_tokens=2, eos_token_ids=[])
        assert model.training
    finally:
        model.eval()
    assert torch.equal(before, torch.random.get_rng_state())
    assert model.model.rope_deltas is rope_deltas
    assert not decoded.logprobs[0].requires_grad


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_decoding_and_learning_take_turns(method: str) -> None:
    """What decoding returns, and the model behind it, take part in gradients like any other tensors."""
    model, _ = varied_policy()
    inputs = make_inputs([0])
    for _ in range(2):
        decoded = run([0], method, max_new_tokens=4)
        ids, logprobs = decoded.sequences[0], decoded.logprobs[0]
        assert not ids.is_inference() and not logprobs.is_inference()
        ids_1T = torch.cat([inputs["input_ids"], ids[None]], 1)
        types_1T = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(ids[None])], 1)
        images = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        logits_1TV = model(input_ids=ids_1T, mm_token_type_ids=types_1T, **images).logits
        learned_1T = logits_1TV[:, -len(ids) - 1 : -1].log_softmax(-1).gather(2, ids[None, :, None])[..., 0]
        assert torch.allclose(learned_1T[0], logprobs, atol=1e-5)
        try:
            (learned_1T * (learned_1T - logprobs).exp()).sum().backward()
            assert any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
        finally:
            model.zero_grad(set_to_none=True)
    assert not decoded.logprobs[0].is_inference()  # a trainer computes gradients of ratios to them


def test_eos_counts_towards_the_limit() -> None:
    free = plain_ids(1.0, endless=True)[1]
    place = next(i for i in range(3, 40) if free[i] not in free[:i])
    for limit, expected in ((place, place), (place + 1, place + 1), (place + 2, place + 1)):
        decoded = run([1], "self_spec", eos_token_ids=[free[place]], max_new_tokens=limit)
        assert len(decoded.sequences[0]) == expected
        assert (decoded.sequences[0][-1] == free[place]) == (limit > place)
    assert eos_id() not in free[:place]


@pytest.mark.parametrize(("vision", "text"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "float32")])
def test_towers_of_different_types(vision: str, text: str) -> None:
    model = deepcopy(varied_policy()[0])
    model.model.visual.to(getattr(torch, vision))
    model.model.language_model.to(getattr(torch, text))
    model.lm_head.to(getattr(torch, text))
    lengths = [len(ids) for ids in run([0, 1], "self_spec", model=model, max_new_tokens=4).sequences]
    assert all(1 <= length <= 4 for length in lengths)


def test_sharded_models_are_refused() -> None:
    model = deepcopy(varied_policy()[0])
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match="model: its weights are sharded"):
            run([0], "ar", model=model, max_new_tokens=2)
    finally:
        torch.distributed.destroy_process_group()
