"""Row contract: required fields, aliases, types, and the report of all problems together."""

import pickle

import pytest

from gravity_rl.data.contract import PRINTED_PROBLEMS, DataError, Problem, parse_record


def problems_of(**values):
    return [(p.field, p.message) for p in parse_record(values, "rows.jsonl", 7)[1]]


def test_full_row_is_taken_as_it_is():
    values = {"task": "table", "reference": "<table></table>", "prompt": "Read:", "id": "a", "source": "book"}
    record, problems = parse_record(values, "rows.jsonl", 7)
    assert not problems
    assert (record.task, record.reference, record.prompt, record.id, record.source) == tuple(values.values())


def test_defaults_name_source_and_row():
    record, problems = parse_record({"task": "text", "reference": "x"}, "rows.jsonl", 7)
    assert not problems
    assert (record.id, record.source, record.prompt) == ("rows.jsonl:7", "rows.jsonl", None)


def test_aliases():
    record, problems = parse_record({"task_type": "formula", "target": "x^2"}, "rows.jsonl", 1)
    assert not problems
    assert (record.task, record.reference) == ("formula", "x^2")


def test_alias_may_repeat_the_value_but_not_contradict_it():
    assert problems_of(task="text", task_type="text", reference="a", target="a") == []
    assert problems_of(task="text", task_type="table", reference="a", target="b") == [
        ("task", "differs from its alias task_type"),
        ("reference", "differs from its alias target"),
    ]


def test_problem_names_the_field_as_the_file_spells_it():
    assert problems_of(task_type="chart", target=3) == [
        ("task_type", "unknown task, expected text, table or formula"),
        ("target", "not a string"),
    ]


@pytest.mark.parametrize("reference", [float("nan"), 12, True, ["a"], {"html": "x"}, b"bytes"])
def test_reference_of_another_type(reference):
    assert problems_of(task="text", reference=reference) == [("reference", "not a string")]


def test_missing_fields():
    assert problems_of() == [("task", "missing"), ("reference", "missing")]
    assert problems_of(task=None, reference=None) == [("task", "missing"), ("reference", "missing")]


@pytest.mark.parametrize("task", ["table", "formula"])
@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_only_text_may_be_blank(task, blank):
    assert problems_of(task=task, reference=blank) == [("reference", f"empty for a {task}")]
    assert problems_of(task="text", reference=blank) == []


@pytest.mark.parametrize("task", ["Table", "tables", " text", ""])
def test_task_is_matched_exactly(task):
    assert problems_of(task=task, reference="x") == [("task", "unknown task, expected text, table or formula")]


def test_prompt_source_and_id_types():
    assert problems_of(task="text", reference="x", prompt=["Read"], source=1, id=2.5) == [
        ("prompt", "not a string"),
        ("id", "not a string"),
        ("source", "not a string"),
    ]
    assert problems_of(task="text", reference="x", prompt="  ") == [
        ("prompt", "empty; leave it out to use the prompt of the task")
    ]
    assert problems_of(task="text", reference="x", id=True) == [("id", "not a string")]


def test_glyphs_are_an_optional_string():
    row = {"task": "text", "reference": "a b"}
    for given, expected in (
        ({}, None),
        ({"glyphs": None}, None),
        ({"glyphs": "a b \0"}, "a b \0"),
        ({"glyphs": ""}, ""),
    ):
        record, problems = parse_record({**row, **given}, "rows.jsonl", 1)
        assert (record.glyphs, problems) == (expected, [])
    assert problems_of(**row, glyphs=["a", "b"]) == [("glyphs", "not a string")]
    assert problems_of(**row, glyphs="a\ud800") == [("glyphs", "not valid Unicode: lone surrogate")]


def test_integer_id_becomes_a_string():
    record, problems = parse_record({"task": "text", "reference": "x", "id": 0}, "rows.jsonl", 1)
    assert (record.id, problems) == ("0", [])


def test_lone_surrogates_are_refused_and_real_unicode_is_not():
    assert problems_of(task="text", reference="a\ud800b") == [("reference", "not valid Unicode: lone surrogate")]
    assert problems_of(task="text", reference="naïve 表 \U0001f600 \0") == []


def test_error_prints_the_first_problems_and_counts_all_of_them():
    many = [Problem("a.jsonl", row, "image", "image file not found", f"{row}.png") for row in range(1, 61)]
    many.append(Problem("b.parquet", None, "source", "holds no rows"))
    error = DataError(many)
    lines = str(error).splitlines()
    assert lines[0] == "61 problems in the data"
    assert "60 x image: image file not found" in lines[1]
    assert "1 x source: holds no rows" in lines[2]
    assert lines[3] == "- a.jsonl:1: image: image file not found (1.png)"
    assert len(lines) == 3 + PRINTED_PROBLEMS + 1
    assert lines[-1] == "... and 11 more"
    assert error.problems == tuple(many)


def test_error_survives_pickling():
    error = DataError([Problem("a.jsonl", 3, "id", "not unique")])
    copy = pickle.loads(pickle.dumps(error))
    assert copy.problems == error.problems
    assert str(copy) == str(error)


def test_a_huge_value_does_not_flood_the_report():
    _, problems = parse_record({"task": "x" * 10_000_000, "reference": list(range(100_000))}, "rows.jsonl", 1)
    assert all(len(str(problem)) < 300 for problem in problems)
    assert len(problems) == 2
