"""Samples as GRPO makes them, for the reward benchmarks: groups of completions of the same reference.

Tables of 100 to 200 cells with headers and spans, paragraphs and formulas; completions that copy the reference,
misread cells, lose, repeat or merge rows, get spans wrong, are cut off or loop. Everything follows from a seed.
"""

from __future__ import annotations

import random
from typing import NamedTuple

WORDS = ["net", "total", "dose", "week", "model", "cost", "gross", "mean", "control", "group", "revenue", "item"]
SPANS = ("", "", "", "", "", "", ' colspan="2"', ' rowspan="2"', ' colspan="3"')


class Sample(NamedTuple):
    task: str
    prediction: str
    reference: str


Cell = tuple[str, str]  # attributes, text
Rows = list[list[Cell]]


def training_batch(seed: int = 0, prompts: int = 24, completions: int = 28) -> list[Sample]:
    """The samples of one step: of 24 prompts 22 are tables (92%), one a text, one a formula."""
    source = random.Random(seed)
    samples = []
    for prompt in range(prompts):
        task = {0: "text", 1: "formula"}.get(prompt, "table")
        if task == "table":
            rows = random_table(source)
            made = [render(misread(source, rows)) for _ in range(completions)]
            samples += [Sample(task, damage(source, text), render(rows)) for text in made]
        else:
            reference = paragraph(source) if task == "text" else formula(source)
            samples += [Sample(task, typos(source, reference), reference) for _ in range(completions)]
    return samples


def random_table(source: random.Random, rows: int | None = None, columns: int | None = None) -> Rows:
    """A table of 100 to 200 cells, or of the given shape."""
    if rows is None or columns is None:
        columns = source.randint(5, 10)
        rows = source.randint(100, 200) // columns
    return [[(source.choice(SPANS), cell_text(source)) for _ in range(columns)] for _ in range(rows)]


def cell_text(source: random.Random) -> str:
    kind = source.random()
    if kind < 0.1:
        return ""
    if kind < 0.4:
        return " ".join(source.choices(WORDS, k=source.randint(1, 3)))
    return f"{source.uniform(0, 1000):.{source.randint(0, 3)}f}"


def render(rows: Rows) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td{attributes}>{text}</td>" for attributes, text in row) + "</tr>" for row in rows
    )
    return f"<table>{body}</table>"


def misread(source: random.Random, rows: Rows) -> Rows:
    """A copy with what recognition gets wrong; every fourth is right."""
    rows = [list(row) for row in rows]
    if source.random() < 0.25:
        return rows
    for _ in range(source.randint(1, 8)):
        row = source.choice(rows)
        column = source.randrange(len(row))
        row[column] = (row[column][0], typos(source, row[column][1], 1))
    if source.random() < 0.3:
        row = source.choice(rows)
        row[source.randrange(len(row))] = (source.choice(SPANS), cell_text(source))
    change = source.random()
    place = source.randrange(len(rows))
    if change < 0.15:
        del rows[place]
    elif change < 0.3:
        rows.insert(place, rows[place])
    elif change < 0.4:
        del rows[place][0]
    elif change < 0.5 and place + 1 < len(rows):
        rows[place : place + 2] = [rows[place] + rows[place + 1]]
    return rows


def damage(source: random.Random, table: str) -> str:
    """The same table, sometimes cut off or looping."""
    kind = source.random()
    if kind < 0.05:
        return table[: source.randrange(len(table) // 2, len(table))]
    if kind < 0.08:
        row = table[table.index("<tr>") : table.index("</tr>") + len("</tr>")]
        return table[: -len("</table>")] + row * 40 + "</table>"
    return table


def typos(source: random.Random, text: str, most: int = 6) -> str:
    for _ in range(source.randint(0, most)):
        place = source.randrange(len(text) + 1)
        text = text[:place] + source.choice("0123456789abcdef") + text[place + source.randint(0, 1) :]
    return text


def paragraph(source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=150)) + r" where $x_1^2 \leq \alpha$."


def formula(source: random.Random) -> str:
    terms = [rf"\frac{{{source.choice('abcxyz')}_{{{n}}}}}{{\sqrt{{{source.randint(1, 99)}}}}}" for n in range(12)]
    return r"\begin{aligned} y &= " + "+".join(terms) + r" \\ &\leq \left( 1 \right) \end{aligned}"
