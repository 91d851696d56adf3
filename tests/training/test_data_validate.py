"""Validation before training: every kind of problem is found, and all of them are reported together."""

import json

import pytest
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gravity_rl.data.rows import read_rows
from gravity_rl.data.validate import GATED_REFERENCE, validate_sources
from rewards import Score, score

TABLE = "<table><tr><td>a</td><td>b</td></tr></table>"


@pytest.fixture(scope="module")
def tokenizer():
    """One token a character."""
    vocabulary = {character: index for index, character in enumerate(map(chr, range(32, 127)))}
    backend = Tokenizer(models.WordLevel({**vocabulary, "<unk>": 200}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    # As in GLM-OCR: special, but not under a name that `all_special_tokens` would list.
    backend.add_special_tokens([AddedToken("<|image|>", special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        eos_token="<|eos|>",
    )


def source_of(*rows, name="memory"):
    """Rows with a usable image and reference wherever they do not say otherwise."""
    default = {"image": Image.new("RGB", (8, 8)), "task": "text", "reference": "hello"}
    return read_rows(name, enumerate(({**default, **row} for row in rows), start=1))


def found(validation):
    return [(p.row, p.field, p.message) for p in validation.problems]


def check(*sources, **options):
    return validate_sources(sources, image_workers=2, **options)


def test_good_rows_have_no_problems(tokenizer):
    source = source_of({}, {"reference": ""}, {"task": "table", "reference": TABLE})
    validation = check(source, tokenizer=tokenizer, max_completion_length=200, scorer=score)
    assert found(validation) == []
    assert validation.warnings == []
    assert validation.bad_rows == set()
    assert validation.token_counts == {("memory", 1): 5, ("memory", 2): 0, ("memory", 3): len(TABLE)}


def test_all_kinds_of_problems_are_reported_together_in_the_order_of_the_rows(tokenizer):
    first = source_of(
        {"reference": "x" * 20},
        {"image": b"not an image"},
        {"task": "chart"},
        {"id": "same"},
        {"id": "same", "image": b"", "prompt": "<|image|>Read:"},
        {"task": "formula", "reference": ""},
        name="first",
    )
    second = source_of({"id": "same"}, {"image": "/no/such/file.png", "reference": 3}, name="second")
    validation = check(first, second, tokenizer=tokenizer, max_completion_length=20)
    assert [(p.source, p.row, p.field) for p in validation.problems] == [
        ("first", 1, "reference"),
        ("first", 2, "image"),
        ("first", 3, "task"),
        ("first", 5, "id"),
        ("first", 5, "image"),
        ("first", 5, "prompt"),
        ("first", 6, "reference"),
        ("second", 1, "id"),
        ("second", 2, "reference"),
        ("second", 2, "image"),
    ]
    assert validation.bad_rows == {(p.source, p.row) for p in validation.problems}


def test_completion_limit_counts_the_end_token(tokenizer):
    source = source_of({"reference": "x" * 9}, {"reference": "x" * 10})
    validation = check(source, tokenizer=tokenizer, max_completion_length=10)
    assert found(validation) == [(2, "reference", "longer than the completion limit")]
    assert validation.problems[0].detail == "11 tokens with the end token, limit 10"


def test_completion_limit_needs_a_tokenizer():
    with pytest.raises(ValueError, match="pass the tokenizer"):
        check(source_of({}), max_completion_length=10)


def test_sources_need_different_names():
    with pytest.raises(ValueError, match="same name"):
        check(source_of({}, name="a"), source_of({}, name="a"))


def test_special_tokens_in_a_prompt(tokenizer):
    source = source_of({"prompt": "Read:"}, {"prompt": "Read<|eos|>"}, {"prompt": "<|image|>Read"})
    validation = check(source, tokenizer=tokenizer)
    assert found(validation) == [
        (2, "prompt", "contains a special token"),
        (3, "prompt", "contains a special token"),
    ]
    assert [p.detail for p in validation.problems] == ["<|eos|>", "<|image|>"]


def test_duplicate_id_names_its_first_use():
    validation = check(source_of({"id": 7}, {"id": "7"}, name="a"), source_of({"id": "7"}, name="b"))
    assert [(p.source, p.row, p.detail) for p in validation.problems] == [
        ("a", 2, "'7' is also a:1"),
        ("b", 1, "'7' is also a:1"),
    ]


def test_an_id_may_not_equal_the_default_id_of_another_row():
    validation = check(source_of({}, {"id": "memory:1"}))
    assert found(validation) == [(2, "id", "not unique")]


def test_decompression_bomb_among_good_images(tmp_path, recwarn):
    Image.new("1", (9500, 9500)).save(tmp_path / "bomb.png")
    validation = check(source_of({}, {"image": str(tmp_path / "bomb.png")}, {}))
    assert found(validation) == [(2, "image", "too many pixels, possible decompression bomb")]
    assert not recwarn.list


@pytest.mark.parametrize("workers", [1, 7])
def test_result_does_not_depend_on_the_number_of_threads(workers):
    rows = [{"image": b"bad" if index % 3 == 0 else Image.new("L", (4, 4))} for index in range(30)]
    validation = validate_sources([source_of(*rows)], image_workers=workers)
    assert [p.row for p in validation.problems] == list(range(1, 31, 3))


def test_references_have_to_score_one_against_themselves():
    rows = [
        {"task": "table", "reference": TABLE},
        {"task": "table", "reference": "just text"},
        {"task": "formula", "reference": "x^{2}"},
        {"task": "text", "reference": ""},
    ]
    validation = check(source_of(*rows), scorer=score)
    assert found(validation) == [(2, "reference", "refused by the reward")]
    assert validation.warnings == []


def test_repetitive_reference_is_a_warning_because_the_gate_caps_it():
    dots = "Contents " + "." * 80 + " 7"
    validation = check(source_of({"reference": "hello"}, {"reference": dots}), scorer=score)
    assert validation.problems == []
    assert [(p.row, p.field, p.message) for p in validation.warnings] == [(2, "reference", GATED_REFERENCE)]
    assert validation.bad_rows == set()


def test_low_score_without_the_gate_is_a_problem():
    def scorer(task, prediction, reference):
        assert prediction == reference
        return Score(0.5, {"gate": 0.9 if task == "table" else 1.0})

    validation = check(source_of({}, {"task": "table", "reference": TABLE}), scorer=scorer)
    assert found(validation) == [
        (1, "reference", "does not score 1 against itself"),
        (2, "reference", "does not score 1 against itself"),
    ]


def test_malformed_rows_are_not_scored():
    def scorer(task, prediction, reference):
        raise AssertionError("must not be called")

    validation = check(source_of({"reference": None}, {"task": "chart"}), scorer=scorer)
    assert len(validation.problems) == 2


def test_a_bug_in_the_scorer_is_not_blamed_on_the_data():
    def scorer(task, prediction, reference):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        check(source_of({}), scorer=scorer)


def test_details_are_plain_text():
    validation = check(source_of({"image": b"bad", "id": "a\nb"}, {"id": "a\nb"}))
    assert all("\n" not in str(problem) for problem in validation.problems)
    json.dumps([str(problem) for problem in validation.problems])
