"""The mask token of a drafter: its id, its row, and what stock classes make of a saved checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL
from tokenizers import Tokenizer
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    GlmOcrForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from gravity_rl.joint.drafter import MASK_TOKEN, BlockDiffusion, add_mask_token
from gravity_rl.model import ModelError, never_sampled_ids
from gravity_rl.tiny.build import EOS, PAD, UNK, build_config, build_processor, build_tokenizer

OTHER = "<|other|>"
SPARE_ID = 158  # the first of two spare rows: 158 tokens, 160 rows


def tokenizer_without_mask(extra: int = 0, gap: bool = False, **names: str) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with another token in the place of ``<|mask|>``, and `extra` tokens behind the last."""
    state = json.loads(build_tokenizer().backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    vocabulary[OTHER] = vocabulary.pop(MASK_TOKEN)
    for token in state["added_tokens"]:
        token["content"] = OTHER if token["content"] == MASK_TOKEN else token["content"]
    if gap:
        last = max(vocabulary, key=vocabulary.__getitem__)
        vocabulary[last] += 1
    backend = Tokenizer.from_str(json.dumps(state))
    backend.add_tokens([f"<extra {index}>" for index in range(extra)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=EOS, pad_token=PAD, unk_token=UNK, padding_side="left", **names
    )


def build(tokenizer: PreTrainedTokenizerFast | None = None, tied: bool = False) -> tuple[Any, Any]:
    """A small untrained model of 160 rows, and its processor with the given tokenizer."""
    processor = build_processor(SMALL)
    config = build_config(SMALL, processor.tokenizer)
    config.tie_word_embeddings = tied
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GlmOcrForConditionalGeneration(config)
    if tokenizer is not None:
        processor.tokenizer = tokenizer
    return model, processor


def matrices(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of embedding and head, (V, H) each."""
    weights = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return weights[0].detach().clone(), weights[1].detach().clone()


def without(weight: torch.Tensor, row: int) -> torch.Tensor:
    return torch.cat([weight[:row], weight[row + 1 :]])


def test_new_token_takes_a_spare_row() -> None:
    model, processor = build(tokenizer_without_mask())
    embedding, head = matrices(model)
    mask_id = add_mask_token(model, processor, seed=1)
    new_embedding, new_head = matrices(model)
    assert mask_id == SPARE_ID == processor.tokenizer.convert_tokens_to_ids(MASK_TOKEN)
    assert new_embedding.shape == embedding.shape
    assert not new_embedding[mask_id].equal(embedding[mask_id])
    assert without(new_embedding, mask_id).equal(without(embedding, mask_id))
    assert new_head.equal(head), "an untied head has nothing to learn from the new row"


@pytest.mark.parametrize("extra", [2, 0])
def test_tied_head_shares_the_row(extra: int) -> None:
    model, processor = build(tokenizer_without_mask(extra), tied=True)
    before, _ = matrices(model)
    mask_id = add_mask_token(model, processor, seed=1)
    embedding, head = matrices(model)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert mask_id == SPARE_ID + extra
    assert head.equal(embedding)
    assert without(embedding[: len(before)], mask_id).equal(without(before, mask_id))


def test_matrices_grow_when_no_row_is_spare() -> None:
    model, processor = build(tokenizer_without_mask(extra=2))
    embedding, head = matrices(model)
    head_row_before = head[-1]
    mask_id = add_mask_token(model, processor, seed=1)
    new_embedding, new_head = matrices(model)
    assert mask_id == len(embedding) == 160
    assert len(new_embedding) == len(new_head) == 161
    assert new_embedding[:160].equal(embedding) and new_head[:160].equal(head)
    assert new_head[-2].equal(head_row_before)
    assert model.config.text_config.vocab_size == 161 == model.lm_head.out_features
    assert model.get_input_embeddings().num_embeddings == 161


def test_token_of_the_tokenizer_is_redrawn_in_place() -> None:
    model, processor = build()
    named = processor.tokenizer.mask_token_id
    embedding, _ = matrices(model)
    tokens = len(processor.tokenizer)
    assert add_mask_token(model, processor, seed=1) == named
    assert len(processor.tokenizer) == tokens
    new_embedding, _ = matrices(model)
    assert not new_embedding[named].equal(embedding[named])
    assert without(new_embedding, named).equal(without(embedding, named))


def test_token_that_the_tokenizer_names_beyond_the_rows_grows_the_matrices() -> None:
    tokenizer = tokenizer_without_mask(extra=2)
    tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})
    model, processor = build(tokenizer)
    assert add_mask_token(model, processor, seed=1) == 160
    assert len(matrices(model)[0]) == 161


@pytest.mark.parametrize("extra", [0, 2])
def test_row_has_the_moments_of_the_real_tokens(extra: int) -> None:
    """Over 400 seeds, each of the 32 dimensions keeps within five standard errors of mean and variance."""
    model, processor = build(tokenizer_without_mask(extra))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    scale = torch.linspace(0.1, 2.0, 32)
    with torch.no_grad():
        for layer, shift in [(embedding, 3.0), (head, -3.0)]:
            layer.weight.copy_(torch.randn(160, 32, generator=torch.Generator().manual_seed(7)) * scale + shift)
            layer.weight[1] = 1e3  # padding
            layer.weight[158 + extra :] = -1e3  # spare
    tokens = [row for row in range(158 + extra) if row != 1]
    sampled = {name: layer.weight.detach()[tokens] for name, layer in [("embedding", embedding), ("head", head)]}
    rows: dict[str, list[torch.Tensor]] = {"embedding": [], "head": []}
    for seed in range(400):
        mask_id = add_mask_token(model, processor, seed=seed)
        rows["embedding"].append(matrices(model)[0][mask_id])
    check_moments(torch.stack(rows["embedding"]), sampled["embedding"])
    if extra:  # the head's row is drawn once, as it grows
        z = (matrices(model)[1][mask_id] - sampled["head"].mean(dim=0)) / sampled["head"].std(dim=0)
        assert z.abs().max() < 5


def check_moments(drawn: torch.Tensor, sampled: torch.Tensor) -> None:
    count, std = len(drawn), sampled.std(dim=0, correction=0)
    assert ((drawn.mean(dim=0) - sampled.mean(dim=0)).abs() < 5 * std / count**0.5).all()
    assert ((drawn.var(dim=0) / std**2 - 1).abs() < 5 * (2 / count) ** 0.5).all()


@pytest.mark.parametrize("extra", [0, 2])
def test_the_seed_alone_decides_and_the_global_state_is_untouched(extra: int) -> None:
    drawn = []
    for seed, noise in [(1, 5), (1, 6), (2, 5)]:
        model, processor = build(tokenizer_without_mask(extra))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)
            state = torch.get_rng_state()
            mask_id = add_mask_token(model, processor, seed=seed)
            assert torch.get_rng_state().equal(state)
        embedding, head = matrices(model)
        drawn.append(torch.cat([embedding[mask_id], head[mask_id]]))
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2])


def test_low_precision_weights_keep_their_precision() -> None:
    model, processor = build(tokenizer_without_mask())
    model.bfloat16()
    mask_id = add_mask_token(model, processor, seed=1)
    embedding, _ = matrices(model)
    exact, processor = build(tokenizer_without_mask())
    add_mask_token(exact, processor, seed=1)
    assert embedding.dtype == torch.bfloat16
    torch.testing.assert_close(embedding[mask_id].float(), matrices(exact)[0][mask_id], rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("names", [{}, {"mask_token": OTHER}])
def test_generation_bans_the_new_token(names: dict[str, Any]) -> None:
    model, processor = build(tokenizer_without_mask(**names))
    assert SPARE_ID not in never_sampled_ids(model, processor.tokenizer)
    mask_id = add_mask_token(model, processor, seed=1)
    assert processor.tokenizer.mask_token == names.get("mask_token", MASK_TOKEN)
    assert mask_id in never_sampled_ids(model, processor.tokenizer)
    assert processor.tokenizer(MASK_TOKEN, add_special_tokens=False)["input_ids"] == [mask_id]
    assert processor.tokenizer.decode([mask_id], skip_special_tokens=True) == ""


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("extra", [0, 2])
def test_stock_classes_load_what_is_saved(extra: int, tied: bool, tmp_path: Path) -> None:
    model, processor = build(tokenizer_without_mask(extra), tied)
    mask_id = add_mask_token(model, processor, seed=1)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    tokenizer = AutoProcessor.from_pretrained(tmp_path).tokenizer
    assert tokenizer.mask_token == MASK_TOKEN and tokenizer.mask_token_id == mask_id
    ids = torch.tensor([[5, 60, mask_id, 70]])
    with torch.no_grad():
        expected = model.eval()(input_ids=ids).logits
        assert again(input_ids=ids).logits.equal(expected)
    assert again.config.text_config.vocab_size == expected.shape[-1] == 160 + (extra > 0)
    assert (again.lm_head.weight is again.get_input_embeddings().weight) == tied
    assert add_mask_token(again, AutoProcessor.from_pretrained(tmp_path), 2, trained(mask_id)) == mask_id
    assert matrices(again)[0].equal(matrices(model)[0]), "a trained row is not drawn again"


def trained(mask_id: int) -> BlockDiffusion:
    return BlockDiffusion(bd_size=16, mask_id=mask_id, ar_loss_weight=1.0, mask_schedule="uniform")


@pytest.mark.parametrize(
    ("tokenizer", "mask_id", "named"),
    [
        (build_tokenizer, 2, 2),
        (tokenizer_without_mask, SPARE_ID, SPARE_ID),  # the id that the tokenizer would give it anyway
        (tokenizer_without_mask, SPARE_ID + 1, None),  # no token has this id, and none can get it
        (lambda: tokenizer_without_mask(gap=True), SPARE_ID + 1, None),
        (lambda: tokenizer_without_mask(mask_token=OTHER), 2, None),
    ],
    ids=["named", "next id", "another id", "gap", "other name"],
)
def test_trained_token_is_kept(tokenizer: Callable[[], Any], mask_id: int, named: int | None) -> None:
    model, processor = build(tokenizer())
    before = matrices(model)
    assert add_mask_token(model, processor, 1, trained(mask_id)) == mask_id
    after = matrices(model)
    assert before[0].equal(after[0]) and before[1].equal(after[1])
    assert processor.tokenizer.get_vocab().get(MASK_TOKEN) == named
    if named is not None:
        assert processor.tokenizer.mask_token_id == mask_id
        assert mask_id in never_sampled_ids(model, processor.tokenizer)


@pytest.mark.parametrize(
    ("tokenizer", "mask_id", "message"),
    [
        (build_tokenizer, 3, r"mask_id is 3, but tokenizer\.json gives <\|mask\|> the id 2"),
        (build_tokenizer, 160, "mask_id 160 is no row of the embedding, which has 160"),
        (tokenizer_without_mask, 1, r"mask_id 1 is the token '<\|pad\|>'"),
        (tokenizer_without_mask, 100, r"mask_id 100 is the token .*, which is no mask token"),
        (lambda: tokenizer_without_mask(extra=3), None, "'<extra 2>' has id 160, but the embedding has 160 rows"),
        (lambda: tokenizer_without_mask(gap=True), None, "would get id 158, which ' ' has"),
    ],
)
def test_contradictions_are_refused(tokenizer: Callable[[], Any], mask_id: int | None, message: str) -> None:
    model, processor = build(tokenizer())
    before = matrices(model)
    with pytest.raises(ModelError, match=message):
        add_mask_token(model, processor, 1, None if mask_id is None else trained(mask_id))
    assert matrices(model)[0].equal(before[0])
