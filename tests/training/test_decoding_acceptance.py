"""What is accepted and counted when the drafts are known: all right, all wrong, wrong at chosen places."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from decoding_helpers import eos_id, ids, plain_ids, run, varied_policy
from torch import Tensor

from gravity_rl.decoding import self_spec
from gravity_rl.decoding.rows import Rows

SCORE = 1e4


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the drafts by a known continuation, but for the response positions that ``wrong`` names."""
    original = self_spec.draft_logits

    def install(truth: list[list[int]], wrong: Callable[[int], bool] = lambda position: False) -> None:
        def drafts(model: object, rows: Rows, block_size: int, mask_id: int) -> Tensor:
            logits = original(model, rows, block_size, mask_id)  # type: ignore[arg-type]
            for n, (index, written) in enumerate(zip(rows.index_N.tolist(), rows.written_N.tolist(), strict=True)):
                for j in range(1, block_size + 1):
                    position = written + j
                    known = truth[index][position] if position < len(truth[index]) else eos_id()
                    logits[n, j] = 0
                    logits[n, j, 30 if wrong(position) and known != 30 else 31 if wrong(position) else known] = SCORE
            return logits

        monkeypatch.setattr(self_spec, "draft_logits", drafts)

    return install


def expected_histogram(length: int, block_size: int, wrong: Callable[[int], bool]) -> list[int]:
    """Histogram of committed drafts of a response of ``length`` tokens, counted by hand."""
    histogram = [0] * (block_size + 1)
    written = 0
    while written < length:
        agreed = next((j - 1 for j in range(1, block_size + 1) if wrong(written + j)), block_size)
        committed = min(agreed + 2, length - written)
        histogram[min(agreed, committed - 1)] += 1
        written += committed
    return histogram


def expected_tested(length: int, block_size: int, wrong: Callable[[int], bool]) -> int:
    """Committed drafts, and rejected ones whose correction was committed."""
    tested = written = 0
    while written < length:
        room = min(block_size, length - written - 1)  # drafts that the response has places for
        agreed = next((j - 1 for j in range(1, block_size + 1) if wrong(written + j)), block_size)
        tested += min(agreed + 1, room)
        written += min(agreed + 2, length - written)
    return tested


WRONG: dict[str, Callable[[int], bool]] = {
    "none": lambda position: False,
    "all": lambda position: True,
    "every seventh": lambda position: position % 7 == 3,
    "even": lambda position: position % 2 == 0,
}


@pytest.mark.parametrize("name", list(WRONG))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("block_size", [1, 3, 8])
def test_known_drafts(rig: Callable[..., None], name: str, temperature: float, block_size: int) -> None:
    rows, wrong = [0, 1, 2], WRONG[name]
    truth = plain_ids(temperature)[: len(rows)]
    rig(truth, wrong)
    decoded = run(rows, "self_spec", temperature=temperature, block_size=block_size)
    assert ids(decoded) == truth
    for sequence, stats in zip(truth, decoded.row_stats, strict=True):
        assert stats.accepted == expected_histogram(len(sequence), block_size, wrong)
        assert stats.tokens == len(sequence)
        assert stats.rounds == stats.draft_forwards == stats.verify_forwards == sum(stats.accepted)
        assert stats.ar_forwards == 0
        assert stats.drafted == block_size * stats.draft_forwards
        assert stats.tested == expected_tested(len(sequence), block_size, wrong)


@pytest.mark.parametrize(("place", "role"), [
    (0, "a0"), (1, "first draft"), (3, "last draft"), (4, "correction"),
    (10, "a0"), (12, "draft"), (13, "last draft"), (14, "correction"),
])  # fmt: skip
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_eos_at_every_place_of_a_window(rig: Callable[..., None], place: int, role: str, temperature: float) -> None:
    """With all drafts right and B = 3, rounds commit five tokens: a0, three drafts and the verifier's own."""
    row, sequence = next(
        (row, sequence)
        for row, sequence in enumerate(plain_ids(temperature, endless=True))
        if sequence[place] not in sequence[:place]
    )
    rig([sequence])
    decoded = run([row], "self_spec", block_size=3, temperature=temperature, eos_token_ids=[sequence[place]])
    assert ids(decoded) == [sequence[: place + 1]], role
    assert len(decoded.logprobs[0]) == place + 1
    assert decoded.stats.rounds == place // 5 + 1
    assert decoded.stats.rows.rounds == place // 5 + 1
    assert decoded.stats.accepted == expected_histogram(place + 1, 3, WRONG["none"])


def test_uniform_model_agrees_with_all_its_drafts() -> None:
    """Equal logits everywhere: the shared noise alone decides, so draft and verifier draw the same tokens."""
    model, _ = varied_policy()
    weight = model.lm_head.weight.data.clone()
    model.lm_head.weight.data.zero_()
    try:
        one_by_one, drafted = (run([0, 1], method, block_size=6, eos_token_ids=[]) for method in ("ar", "self_spec"))
    finally:
        model.lm_head.weight.data.copy_(weight)
    assert ids(one_by_one) == ids(drafted)
    assert len({token for sequence in ids(drafted) for token in sequence}) > 40
    assert drafted.stats.rounds == 40 / 8
    assert drafted.stats.rows.rounds == 2 * 40 / 8
    assert drafted.stats.tokens_per_round == 8
    assert drafted.stats.rows.accepted_per_round == 6
    assert drafted.stats.rows.accepted_share == drafted.stats.rows.acceptance == 1
    assert drafted.stats.tpf == 4
    assert torch.cat(drafted.logprobs).tolist() == pytest.approx([-math.log(model.lm_head.out_features)] * 80)
