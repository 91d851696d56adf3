"""The TRL adapter: its signature, its completions, what it logs, and that it can be pickled."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict

import pytest

from rewards import RewardConfig, score
from rewards.adapters.trl import OCRReward

TABLE = "<table><tr><td>a</td><td>b</td></tr></table>"
TASKS = ["text", "table", "table", "formula"]
REFERENCES = ["Hello", TABLE, TABLE, "x^2"]
COMPLETIONS = ["Helo", TABLE, TABLE.replace(">b<", ">c<"), "x^3"]
EXPECTED = [score(*sample).value for sample in zip(TASKS, COMPLETIONS, REFERENCES, strict=True)]


def test_called_as_trl_calls_it() -> None:
    metrics: dict[str, list[float]] = defaultdict(list)
    extra: dict[str, list] = {}
    rewards = OCRReward()(
        prompts=["p"] * 4,
        completions=COMPLETIONS,
        completion_ids=[[1, 2]] * 4,
        task=TASKS,
        reference=REFERENCES,
        image=[None] * 4,
        trainer_state=object(),
        log_metric=lambda name, value: metrics[name].append(value),
        log_extra=extra.__setitem__,
    )
    assert rewards == EXPECTED
    assert metrics["table/s_cell"] == [pytest.approx((1 + 2 / 3) / 2)]
    assert metrics["table/gate"] == [1.0]
    assert metrics["table/parsed"] == [1.0]
    assert metrics["text/ned"] == [pytest.approx(1 / 5)]
    assert metrics["text/reward"] == [pytest.approx(4 / 5)]
    assert metrics["formula/violations"] == [0.0]
    assert extra["task"] == TASKS
    assert json.loads(extra["parts"][1])["teds_s"] == 1.0


def test_logging_is_optional() -> None:
    assert OCRReward()(["p"] * 4, COMPLETIONS, task=TASKS, reference=REFERENCES) == EXPECTED


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: [{"role": "assistant", "content": text}],
        lambda text: [{"role": "assistant", "content": [{"type": "text", "text": text}]}],
        lambda text: [{"role": "assistant", "content": [{"type": "text", "text": part} for part in text]}],
        lambda text: [{"role": "assistant", "content": text[:2]}, {"role": "assistant", "content": text[2:]}],
    ],
    ids=["string", "block", "blocks", "messages"],
)
def test_conversational_completions(wrap) -> None:
    completions = [wrap(text) for text in COMPLETIONS]
    assert OCRReward()(["p"] * 4, completions, task=TASKS, reference=REFERENCES) == EXPECTED


@pytest.mark.parametrize(
    ("completion", "error", "message"),
    [
        (None, TypeError, "a completion must be a string or a list of messages, not NoneType"),
        ([None], TypeError, "message 0 of the completion must be a mapping, not NoneType"),
        ([{"role": "assistant"}], ValueError, "message 0 of the completion has no content"),
        (
            [{"content": "a"}, {"content": None}],
            TypeError,
            "content of message 1 must be a string or a list of blocks, ",
        ),
        ([{"content": [{"type": "image"}]}], ValueError, "block 0 of message 0 has no text, its type is 'image'"),
        ([{"content": ["a"]}], TypeError, "block 0 of message 0 must be a mapping, not str"),
        ([{"content": [{"type": "text", "text": None}]}], TypeError, "text of block 0 of message 0 must be a str, not"),
    ],
)
def test_a_completion_without_text_is_an_error_of_its_sample(
    completion: object, error: type[Exception], message: str
) -> None:
    completions = [*COMPLETIONS[:3], completion]
    with pytest.raises(error) as caught:
        OCRReward()(["p"] * 4, completions, task=TASKS, reference=REFERENCES)
    assert str(caught.value).startswith(f"sample 3: {message}")


def test_scores_have_the_parts() -> None:
    scores = OCRReward().scores(COMPLETIONS, TASKS, REFERENCES)
    assert [scored.value for scored in scores] == EXPECTED
    assert scores[2].parts["s_cell"] == pytest.approx(2 / 3)


def test_pickled_with_its_configuration() -> None:
    reward = pickle.loads(pickle.dumps(OCRReward(RewardConfig(teds_weight=0.0, shape_bonus=0.0))))
    assert reward.__name__ == "ocr_reward"
    assert reward(["p"], [TABLE], task=["table"], reference=[TABLE]) == [pytest.approx(0.55)]


def test_columns_of_different_length_are_an_error() -> None:
    with pytest.raises(ValueError):
        OCRReward()(["p"] * 4, COMPLETIONS, task=TASKS[:3], reference=REFERENCES)


def test_the_configuration_is_read_by_trl_parser(tmp_path) -> None:
    trl = pytest.importorskip("trl")
    file = tmp_path / "rewards.yaml"
    file.write_text("teds_weight: 0.5\ngate_ngram: 4\n", encoding="utf-8")
    (config,) = trl.TrlParser([RewardConfig]).parse_args_and_config(["--config", str(file), "--cell_weight", "0.5"])
    assert config == RewardConfig(teds_weight=0.5, cell_weight=0.5, gate_ngram=4)
