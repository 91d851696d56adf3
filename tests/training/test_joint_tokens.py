"""Checkpoints whose tokens or settings contradict each other are refused before training, and say where."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from joint_helpers import eos_id, mask_id, processor, stock_model

from gravity_rl.joint.drafter import check_mask_id
from gravity_rl.joint.tokens import decoding_tokens, require_trainable
from gravity_rl.model import ModelError, never_sampled_ids


@pytest.fixture
def model() -> Any:
    return copy.deepcopy(stock_model())


@pytest.fixture
def own_processor() -> Any:
    return copy.deepcopy(processor())


def test_tokens_of_a_sound_checkpoint(model: Any) -> None:
    require_trainable(model, processor())
    model.generation_config.eos_token_id = [7, eos_id()]
    ends, banned = decoding_tokens(model, processor(), mask_id())
    assert ends == sorted({7, eos_id()})
    assert banned == never_sampled_ids(model, processor().tokenizer)
    check_mask_id(processor().tokenizer, mask_id())


def test_an_id_outside_of_the_vocabulary_cannot_be_chosen_anyway(model: Any) -> None:
    model.config.video_token_id = 59_281
    _, banned = decoding_tokens(model, processor(), mask_id())
    assert banned
    assert max(banned) < model.config.text_config.vocab_size


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([0, 99_999], "eos_token_id 99999 is no token of a vocabulary"),
        (-1, "eos_token_id -1 is no token"),
        ("x", "eos_token_id 'x' is no token"),
        ([0, mask_id()], f"eos_token_id {mask_id()} is the mask token"),
    ],
)
def test_end_tokens_that_are_none(model: Any, declared: Any, message: str) -> None:
    model.generation_config.eos_token_id = declared
    with pytest.raises(ModelError, match=f"generation_config.json: {message}"):
        decoding_tokens(model, processor(), mask_id())


@pytest.mark.parametrize("name", ["eos_token", "pad_token"])
def test_a_missing_token_is_named(model: Any, own_processor: Any, name: str) -> None:
    setattr(own_processor.tokenizer, name, None)
    with pytest.raises(ModelError, match=f"tokenizer_config.json: {name} is missing"):
        decoding_tokens(model, own_processor, mask_id())


def test_an_end_token_is_needed_to_train(model: Any, own_processor: Any) -> None:
    own_processor.tokenizer.eos_token = None
    with pytest.raises(ModelError, match="eos_token is missing"):
        require_trainable(model, own_processor)


def test_another_image_token_is_refused(model: Any) -> None:
    model.config.image_token_id = 59_280
    with pytest.raises(ModelError, match=r"config\.json: image_token_id is 59280, but tokenizer.json gives"):
        require_trainable(model, processor())


def test_attention_dropout_is_refused(model: Any) -> None:
    model.config.text_config.attention_dropout = 0.1
    with pytest.raises(ModelError, match=r"config\.json: attention_dropout is 0\.1"):
        require_trainable(model, processor())


def test_a_mask_id_of_another_token_is_refused(own_processor: Any) -> None:
    with pytest.raises(ModelError, match=f"mask_id is {eos_id()}, but tokenizer.json gives"):
        check_mask_id(own_processor.tokenizer, eos_id())
