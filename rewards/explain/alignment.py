"""Two sequences aligned and written below each other with their differences marked, for a terminal.

    reference   the quick brown fox
    prediction  the quikk brown fxx
                        ^        ^

Only what surrounds a difference is written, so the output stays short however long the sequences are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

# Elements of each sequence that are compared: aligning takes quadratic time.
MAX_ELEMENTS = 50_000
LEGEND = "^ differs, - only in the reference, + only in the prediction"

_WIDTH = 96  # columns of the terminal for the sequences
_CONTEXT = 16  # equal elements on both sides of a difference
_LONGEST_ELEMENT = 32
_NAMES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


class _Column(NamedTuple):
    mark: str
    reference: str
    prediction: str


def difference_lines(
    reference: Sequence[str], prediction: Sequence[str], *, separator: str = "", most: int = 6
) -> list[str]:
    """The places where two sequences of strings differ, each as three lines and a heading.

    Args:
        reference: its elements are characters, tokens or texts.
        prediction: the other one.
        separator: written between two elements.
        most: number of places to write.
    """
    columns = _align(reference[:MAX_ELEMENTS], prediction[:MAX_ELEMENTS])
    windows = list(_windows(columns, len(separator)))
    lines: list[str] = []
    for window in windows[:most]:
        lines += [""] if lines else []
        lines += _window_lines(columns, window, separator)
    if len(windows) > most:
        lines.append(f"... and {len(windows) - most} more places")
    if max(len(reference), len(prediction)) > MAX_ELEMENTS:
        lines.append(f"... only the first {MAX_ELEMENTS} elements were aligned")
    return lines


def visible(text: str, longest: int = _LONGEST_ELEMENT) -> str:
    """A text as a terminal can show it: nothing unprintable, and the middle left out where it is longer."""
    if len(text) > longest:
        keep = (longest - 3) // 2
        text = f"{text[:keep]}...{text[-keep:]}"
    return "".join(char if char.isprintable() else _NAMES.get(char, f"<{ord(char):04X}>") for char in text)


def quoted(text: str, longest: int = 40) -> str:
    """The same in quotes."""
    return f"'{visible(text, longest)}'"


def _align(reference: Sequence[str], prediction: Sequence[str]) -> list[_Column]:
    columns: list[_Column] = []
    for code in Levenshtein.opcodes(reference, prediction):
        wanted = reference[code.src_start : code.src_end]
        found = prediction[code.dest_start : code.dest_end]
        if code.tag in ("equal", "replace"):
            mark = " " if code.tag == "equal" else "^"
            columns += [_Column(mark, left, right) for left, right in zip(wanted, found, strict=True)]
        else:
            columns += [_Column("-", left, "") for left in wanted] + [_Column("+", "", right) for right in found]
    return columns


def _windows(columns: Sequence[_Column], gap: int) -> Iterator[tuple[int, int]]:
    """Ranges of columns that hold the differences, with some context, each of them narrow enough for a line."""
    end = 0
    for index, column in enumerate(columns):
        if column.mark == " " or index < end:
            continue
        start = max(end, index - _CONTEXT)
        room = _WIDTH - sum(_width(columns[i]) + gap for i in range(start, index))
        last, end = index, index
        while end < len(columns) and end - last <= _CONTEXT and (room := room - _width(columns[end]) - gap) >= 0:
            if columns[end].mark != " ":
                last = end
            end += 1
        end = max(end, index + 1)
        yield start, end


def _window_lines(columns: Sequence[_Column], window: tuple[int, int], separator: str) -> list[str]:
    start, end = window
    before = "..." if start else "   "
    after = "..." if end < len(columns) else ""
    shown = columns[start:end]
    widths = [_width(column) for column in shown]

    def line(name: str, cells: Sequence[str]) -> str:
        padded = (cell + " " * (width - _text_width(cell)) for cell, width in zip(cells, widths, strict=True))
        return f"{name:11}{before}{separator.join(padded)}{after}".rstrip()

    marks = [column.mark * width for column, width in zip(shown, widths, strict=True)]
    reference = line("reference", [visible(column.reference) for column in shown])
    prediction = line("prediction", [visible(column.prediction) for column in shown])
    return [reference, prediction, f"{'':14}{(' ' * len(separator)).join(marks)}".rstrip()]


def _width(column: _Column) -> int:
    """Columns of the terminal that a pair of elements needs."""
    return max(_text_width(visible(column.reference)), _text_width(visible(column.prediction)), 1)


def _text_width(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
