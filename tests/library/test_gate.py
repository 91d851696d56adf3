"""The degeneration gate: what counts as a loop, what does not, and that both profiles equal the slow reference."""

from __future__ import annotations

import random
import time

import pytest
import slow_reference
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import RewardConfig, score
from rewards.gate import Shown, degeneration_gate, repeated_ngrams, shown_gate
from rewards.types import PUBLISHED, ROBUST

LENGTH = 34_000  # characters of 8,448 tokens
PAGE = "The harbour office opens at eight. Boats report to the master, who keeps a list of names, flags and berths."


def robust(prediction: str, reference: str) -> float:
    return degeneration_gate(prediction, reference, ROBUST).gate


def words(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(4, 8))) for _ in range(count)]


def rows(lines: list[tuple[object, ...]]) -> str:
    return "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)


def table(lines: list[tuple[object, ...]]) -> str:
    return f"<table>{rows(lines)}</table>"


DISTINCT = "".join(map(chr, range(0x4E00, 0x4F00)))
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
DRAW = random.Random(5)
LOOPS = {
    "words": "the quick brown fox " * 40,
    "no spaces": "ab" * 300,
    "near-equal lines": "Harbour Office\nHarbor Office\nHarbor Office\n" * 20,
    "a random word in each line": "".join(f"The office of {word} is open.\n" for word in words(1, 60)),
    "a random word in each row": rows([("Item", word) for word in words(2, 300)]),
    "counter": "\n".join(map(str, range(400))),
    "counter on one line": " ".join(map(str, range(400))),
    "counter with commas": ",".join(map(str, range(400))),
    "counter down": "\n".join(str(1000 - number) for number in range(400)),
    "counter in steps of two": "\n".join(str(2 * number) for number in range(400)),
    "counters in columns": rows([(number, 2 * number, 900 - number) for number in range(200)]),
    "counter in words": "".join(f"In {year} the company grew. " for year in range(1900, 2000)),
    "random numbers": "\n".join(str(DRAW.randint(0, 10**6)) for _ in range(500)),
    "one digit": "0" * 400,
    "digits without spaces": "12" * 200,
    "random decimals": " ".join(f"{DRAW.random():.3f}" for _ in range(300)),
    "dates": "\n".join(f"{day % 28 + 1:02}.{day % 12 + 1:02}.{1990 + day // 12}" for day in range(200)),
    "times": "\n".join(f"{hour % 24:02}:{hour % 60:02}" for hour in range(200)),
    "letters": "".join(f"{ALPHABET[item % 26]}) item\n" for item in range(200)),
    "two letters": "".join(f"{ALPHABET[item // 26]}{ALPHABET[item % 26]}) item\n" for item in range(200)),
    "roman numbers": "".join(f"{'i' * (item % 4)}{'v' * (item % 2)}) the item\n" for item in range(100)),
    "list items": "".join(f"{item}. item\n" for item in range(200)),
    "blank rows": "<table>" + "<tr><td></td><td></td></tr>" * 100,
    "cells in one row": "<table><tr>" + "<td>0</td>" * 150,
    "empty cells": "<table><tr>" + "<td></td>" * 250,
    "cells with numbered attributes": "".join(f'<td id="c{number}">' for number in range(400)),
    "rows with two kinds of cells": "<tr><td>yes</td><th>no</th></tr>" * 40,
    "line breaks": "<br>" * 200,
    "empty elements": "<b></b>" * 200,
    "closing tags": "</td></tr>" * 120,
    "attributes": "<td " + 'style="x" ' * 100,
    "one long attribute": '<td style="' + "a:b;" * 200 + '">',
    "long tags": f"<td {'x' * 100}>" * 200,
    "comments": "<!-- -->" * 100,
    "quad": r"x \quad " + r"\quad " * 80,
    "negative space": r"A " + r"\! " * 200 + "p_j",
    "groups": r"\mathbf { \Psi } " * 40,
    "fractions": r"\frac{" * 70,
    "matrix": r"0 & 0 & 0 \\ " * 60,
    "entities": "&nbsp;" * 70,
    "numeric entities": "".join(f"&#{number};" for number in range(200)),
    "lines of dots": ("." * 90 + "\n") * 200,
    "dots": "Chapter 1 " + "." * 400,
    "spaced dots": "Chapter 1 " + ". " * 400,
    "dashes": "|---|---|---|" * 30,
    "underscores": "_" * 400,
    "CJK": "大丈夫です" + "よね" * 150,
    "spaced Hangul": "곧 " * 200,
    "numbered chapters": "".join(f"第{number}章 港" for number in range(120)),
    "emoji": "😀🎉" * 150,
    "joined emoji": "👩\u200d💻 " * 100,
    "zero-width": "a" + "\u200b" * 400,
    "code fences": "```\nNo. 7 / 2024\n```\n" * 30,
    "right at first": PAGE + " Closed on Sundays." * 30,
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_closes_the_robust_gate(name: str) -> None:
    assert robust(LOOPS[name], PAGE) < 0.2
    assert robust(LOOPS[name] * 3, PAGE) < 0.1
    assert robust(LOOPS[name], "") < 0.2


FORMULA_LOOPS = ("quad", "negative space", "fractions", "matrix")


@pytest.mark.parametrize("name", sorted(set(LOOPS) - {"groups"}))
def test_a_loop_closes_the_gate_of_a_reward(name: str) -> None:
    task, reference = ("formula", "x_i+y") if name in FORMULA_LOOPS else ("text", PAGE)
    assert score(task, LOOPS[name], reference, ROBUST).parts["gate"] < 0.2
    assert score(task, LOOPS[name] * 3, reference, ROBUST).parts["gate"] < 0.1


def test_the_unseen_is_bounded_by_what_is_free_or_in_the_reference() -> None:
    def gate(unseen: int, wanted: int, free: int) -> float:
        return shown_gate("x", Shown("x", unseen, free), Shown("x", wanted, 9000), ROBUST).gate

    assert [gate(unseen, 0, 40) for unseen in (0, 40, 50, 400)] == [1.0, 1.0, 0.8, 0.1]
    assert [gate(unseen, 100, 40) for unseen in (100, 200)] == [1.0, 0.5]
    loop = "ab" * 50
    assert shown_gate("raw  raw", Shown(loop, 0, 1), Shown("x", 0, 1), ROBUST).gate == robust(loop, "x")
    assert shown_gate("raww", Shown(loop, 0, 1), Shown("x", 0, 1), ROBUST)[1:] == (1.0, 2)


DODGES_OF_THE_PUBLISHED_GATE = [
    "no spaces",
    "counter",
    "counters in columns",
    "random numbers",
    "dates",
    "blank rows",
    "cells in one row",
    "line breaks",
    "empty elements",
    "entities",
    "CJK",
    "emoji",
    "numbered chapters",
]


@pytest.mark.parametrize("name", DODGES_OF_THE_PUBLISHED_GATE)
def test_the_published_gate_does_not_see_it(name: str) -> None:
    assert degeneration_gate(LOOPS[name], PAGE).gate == 1.0


REPETITIVE = {
    "dot leaders": "\n".join(f"Chapter {number} {'. ' * 40}{9 * number}" for number in range(1, 25)),
    "dots without spaces": "\n".join(f"Chapter {number} {'.' * 80} {9 * number}" for number in range(1, 25)),
    "zeros": table([(0,) * 8] * 20),
    "dashes": table([(200 + number, "-", "-", "-", "-") for number in range(40)]),
    "blank form": table([("Name", "Date"), *[("", "")] * 40]),
    "lines to write on": "\n".join(["_" * 60] * 40),
    "numbered list": "\n".join(f"{number}. item" for number in range(1, 80)),
    "Markdown": "| a | b |\n|---|---|\n" + "| yes | no |\n" * 40,
    "measurements": table([(number, f"{number * 7 % 90}.{number * 13 % 10}", "mm") for number in range(80)]),
    "zero matrix": r"\begin{pmatrix}" + r"0 & 0 & 0 & 0 & 0 \\ " * 20 + r"\end{pmatrix}",
    "refrain": "KEEP WALKING UNTIL\nYOU SEE THE SEA\n" * 30,
}


@pytest.mark.parametrize("name", REPETITIVE)
def test_a_correct_copy_of_a_repetitive_reference_passes(name: str) -> None:
    reference = REPETITIVE[name]
    assert robust(reference, reference) == 1.0
    assert robust(" \n" + reference.replace(" ", "  ") + "\n", reference) == 1.0


@pytest.mark.parametrize("name", REPETITIVE)
def test_a_truncated_copy_passes(name: str) -> None:
    reference = REPETITIVE[name]
    for share in (10, 50, 90, 99):
        assert robust(reference[: len(reference) * share // 100], reference) == 1.0


@pytest.mark.parametrize("name", REPETITIVE)
def test_a_loop_where_the_reference_repeats_is_still_one(name: str) -> None:
    reference = REPETITIVE[name]
    tail = reference[len(reference) // 2 :]
    assert robust(reference + tail * 8, reference) < 0.3


def test_a_long_table_with_errors_passes() -> None:
    draw = random.Random(7)
    lines = [tuple(draw.randint(0, 999) / 10 for _ in range(8)) for _ in range(60)]
    reference = table(lines)
    misread = [tuple("0.0" if draw.random() < 0.1 else cell for cell in line) for line in lines]
    assert robust(table(misread), reference) >= 0.9
    assert robust(table([*lines, *lines[-2:]]), reference) >= 0.9
    assert robust(table([lines[0], *lines]), reference) >= 0.9
    assert robust(table([(*line[:-1], "") for line in lines]), reference) >= 0.9


def test_the_length_of_dot_leaders_does_not_matter() -> None:
    for dots in ("." * 4, "." * 90, ". " * 50, "·" * 60, "…" * 20):
        contents = "\n".join(f"{word} {dots} {page}" for page, word in enumerate(words(4, 24)))
        assert robust(contents, contents.replace(dots, "." * 12)) == 1.0
    assert robust("Bolts " + "." * 500 + " 9", "Bolts .... 9") < 0.2


def test_a_text_of_distinct_content_passes_at_any_length() -> None:
    text = " ".join(words(3, 4000))
    assert robust(text, "") == 1.0
    assert robust(text[:3000] * 2, text[:3000]) == 1.0


def test_a_short_text_is_no_loop() -> None:
    for text in ("", "a", "ha ha ha ha ha", "a" * 30, "0 0 0 0 0 0 0 0", "- - - - - -", "<br>" * 8):
        assert robust(text, "") == 1.0


@pytest.mark.parametrize("space", [" ", "\n", "\t", "\u00a0", "\u3000"])
def test_white_space_alone_is_no_loop(space: str) -> None:
    assert robust("Total:" + space * 20_000 + "x", "Total: x") == 1.0
    assert degeneration_gate("Total:" + space * 20_000 + "x").gate == 0.0


def test_each_turn_of_a_loop_costs() -> None:
    gates = [robust("the quick brown fox " * turns, PAGE) for turns in range(6, 60, 6)]
    assert gates == sorted(gates, reverse=True) and len(set(gates)) == len(gates)


@settings(deadline=None, max_examples=100)
@given(st.text("ab1<>/ ", max_size=80), st.text("xyz,", max_size=80))
def test_what_is_added_does_not_hide_a_loop(looped: str, more: str) -> None:
    assert robust(looped * 9 + "\n" + more, "") <= robust(looped * 9, "")


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("a ", 1),
        ("ab\n", 2),
        ("<b>", 1),
        ("<b></b>", 1),
        ("<B></b>", 1),
        ("</b>", 1),
        ("<b>x</b >", 2),
        ("<br/>", 1),
        (f"<b {DISTINCT[:111]}>", 1),
        (f"<b {DISTINCT[:112]}>", 115),
        ("< b>", 3),
        ("b>", 2),
        ("iv) ", 2),
        ("viii) ", 2),
        ("xviii) ", 6),
        ("... ,", 2),
        (". ,", 2),
        ("; . \n. ;", 4),
    ],
)
def test_what_a_unit_is(text: str, units: int) -> None:
    # Repeated 30 times it has 30 * units - 7 8-grams; those of the first two turns are free.
    assert repeated_ngrams(text * 30, 8) / 2 == 28 * units - 7


unit = st.sampled_from(
    [
        "<td>",
        "</td>",
        '<td a="1">',
        "...",
        ". ",
        "…",
        "." * 98,
        "<TD>",
        "<b",
        "</",
        "a)",
        "iv.",
        "12",
        "13",
        "٣",
        "0",
        "x",
        "é",
    ]
)
looping_text = st.builds(
    lambda parts, times, end: "".join(parts) * times + end,
    st.lists(unit | st.sampled_from([" ", "\n", ">", "<", "<td " + "y" * 112, "<" + "n" * 20, "0" * 18]), max_size=6),
    st.integers(1, 7),
    st.text(st.characters(exclude_categories=()), max_size=20),
)


@settings(deadline=None, max_examples=100)
@given(looping_text, looping_text, st.integers(1, 9), st.integers(1, 20))
def test_both_profiles_equal_the_slow_reference(prediction: str, reference: str, n: int, free: int) -> None:
    for config in (
        RewardConfig(gate_ngram=n, gate_run_free=free),
        RewardConfig(profile="robust", gate_ngram=n, gate_repeat_free=free),
    ):
        gate = degeneration_gate(prediction, reference, config)
        assert gate.gate == pytest.approx(slow_reference.gate(prediction, reference, config), abs=1e-12)
        assert gate.rho8 == slow_reference.rho8(prediction, config)
        assert gate.longest_run == slow_reference.longest_run(prediction)


@settings(deadline=None, max_examples=100)
@given(looping_text)
def test_a_copy_passes_and_the_rest_is_in_bounds(text: str) -> None:
    assert robust(text, text) == 1.0
    assert 0.0 < robust(text * 9, text) <= 1.0


def test_the_published_gate_does_not_look_at_the_reference() -> None:
    zeros = REPETITIVE["zeros"]
    assert degeneration_gate("." * 120, "." * 120) == degeneration_gate("." * 120)
    assert degeneration_gate(zeros, zeros, PUBLISHED).gate == 1.0


@pytest.mark.parametrize(
    "text",
    ["<td>0</td>", "ab", "1 ", "<", "<a", "<a ", "</a>", "é", "&nbsp;", "a) ", "".join(map(chr, range(33, 9000)))],
)
def test_the_gate_is_quick(text: str) -> None:
    filled = (text * (LENGTH // len(text) + 1))[:LENGTH]
    start = time.process_time()
    robust(filled, "x")
    assert time.process_time() - start < 0.25  # 0.03 s on an idle core
