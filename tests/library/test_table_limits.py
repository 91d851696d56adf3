"""No completion stalls the robust table reward, takes much memory, or earns anything by being hostile."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from rewards import RewardConfig, Score, table_reward

ROBUST = RewardConfig(profile="robust")


def table(*rows: str) -> str:
    """A plain table; cells are separated by bars."""
    cells = ("".join(f"<td>{cell}</td>" for cell in row.split("|")) for row in rows)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def robust(prediction: str, reference: str) -> Score:
    return table_reward(prediction, reference, ROBUST)


LENGTH = 34_000  # characters of 8,448 tokens


def filled(unit: str, start: str = "<table>", end: str = "</table>") -> str:
    return start + unit * ((LENGTH - len(start) - len(end)) // len(unit)) + end


HOSTILE = {
    "blank cells": filled("<td></td>"),
    "blank rows": filled("<tr></tr>"),
    "one row": filled("<td>x</td>", "<table><tr>", "</tr></table>"),
    "different cells": "<table><tr>" + "".join(f"<td>{number}" for number in range(3700)) + "</table>",
    "looped rows": filled("<tr><td>a b</td></tr>"),
    "tables": filled("<table><td>x</table>", start=""),
    "nested tables": "<table><tr><td>" * 3000 + "x",
    "nested rows": filled("<tr><td>a<table>"),
    "line breaks": filled("<br>", "<table><tr><td>", "</td></tr></table>"),
    "hidden elements": filled("<b hidden>"),
    "hidden cells": filled("<td hidden>"),
    "unterminated attributes": filled('<td style="'),
    "unterminated quotes": filled("<td a='<td a=\""),
    "many attributes": "<td " + "a " * 17_000 + ">",
    "unterminated end tags": filled("</"),
    "unterminated declarations": filled("<!"),
    "unterminated comments": filled("<!--"),
    "escaped tags": filled("&lt;br "),
    "escaped references": filled("&amp;amp;amp;"),
    "scripts": filled("<script>"),
    "styles": filled("<b style='" + ";overflow:hidden" * 200 + "'>"),
    "math": filled("<math alttext='$\\frac{1}{2}$'>y</math>"),
    "end tags": filled("<b>", end="</i>" * 3000),
    "words": "<table><tr><td>" + " ".join(f"w{number}" for number in range(6000)) + "</table>",
    "angles": filled("<"),
    "control characters": filled("\x00"),
    "huge spans": filled("<td colspan=99999999999999999999 rowspan=99999999999999999999>x"),
}
BIG = {
    "text": table(*("|".join(f"r{row}c{column} v" for column in range(10)) for row in range(100))),
    "blanks": table(*("|".join("" if (row + column) % 2 else f"{row}" for column in range(10)) for row in range(100))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_prediction_stalls_the_reward_or_earns_much(name: str) -> None:
    for reference in BIG.values():
        robust(reference, reference)  # reads it
        start = time.process_time()
        scored = robust(HOSTILE[name], reference)
        assert time.process_time() - start < 3.0  # under 0.5 s on an idle core
        assert 0.0 <= scored.value <= 0.15


@pytest.mark.parametrize("name", ["different cells", "looped rows", "nested tables", "huge spans", "math"])
def test_no_prediction_takes_much_memory(name: str) -> None:
    tracemalloc.start()
    robust(HOSTILE[name], BIG["text"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000  # about 12 MB


def test_an_ordinary_table_takes_milliseconds() -> None:
    cells = [[f"row {row} value {row * 8 + column}.5" for column in range(8)] for row in range(20)]
    reference = table(*map("|".join, cells))
    predictions = [table(*map("|".join, cells[:row] + cells[row + 1 :])).replace("3", "8") for row in range(20)]
    robust(reference, reference)
    start = time.process_time()
    for prediction in predictions:
        assert 0.5 < robust(prediction, reference).value < 1.0
    assert (time.process_time() - start) / len(predictions) < 0.05  # about 5 ms
