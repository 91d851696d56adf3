"""Matrices, arrays and aligned equations in one canonical form, so that equal drawings have equal tokens.

A grid is `\\array{rl}`, its cells with `&` and `\\\\` between them, and `\\endarray`. The letters are the alignments
of the columns that are used, with `|` for rules. What isn't drawn goes: empty cells at the end of a row, empty rows
at the end, empty columns, the alignment of a single row. A relation with a column of its own (`eqnarray`) moves
into the column that follows, as in `aligned`. A grid of one cell is that cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from rewards.latex.items import BREAK, Item, leaves
from rewards.latex.tables import BINARIES, RELATIONS

# A relation in a column of its own has no more leaves than this, its `\stack{` included.
_RELATION_LEAVES = 12
_MAX_REPEAT = 100
_SIGNS = RELATIONS | BINARIES


def read_columns(specification: Sequence[str]) -> list[str]:
    """The columns of an array's argument: `l`, `c` or `r`, each with the rules `|` before it; rules at the end last."""
    columns: list[str] = []
    rules = ""
    rest = list(reversed(specification))
    budget = _MAX_REPEAT
    while rest:
        token = rest.pop()
        if token == "|":
            rules += token
        elif token in ("l", "c", "r", "L", "C", "R"):
            columns.append(rules + token.lower())
            rules = ""
        elif token in ("p", "m", "b", "X"):
            _pop_group(rest)
            columns.append(rules + "l")
            rules = ""
        elif token in ("@", "!", ">", "<"):
            _pop_group(rest)
        elif token == "*":
            count, repeated = "".join(_pop_group(rest)), _pop_group(rest)
            times = min(int(count), budget) if count.isdecimal() and len(count) < 4 else 0
            budget -= times
            rest.extend(list(reversed(repeated)) * times)
    return [*columns, rules] if rules else columns


def _pop_group(rest: list[str]) -> list[str]:
    """Take a brace group, or one token, from the end of a reversed list."""
    if not rest:
        return []
    first = rest.pop()
    if first != "{":
        return [first]
    group: list[str] = []
    depth = 1
    while rest:
        token = rest.pop()
        depth += (token == "{") - (token == "}")
        if depth == 0:
            break
        group.append(token)
    return group


def grid(rows: list[list[list[Item]]], columns: Sequence[str], pattern: str, small: bool) -> list[Item]:
    """The canonical items of a grid, in time linear in the number of cells.

    Args:
        rows: the items of each cell.
        columns: the first columns' alignments.
        pattern: the alignments of the columns after these, repeated.
        small: whether it is set in script size.
    """
    rows = _trimmed(rows)
    if not rows:
        return []
    width = max(map(len, rows))
    letters = list(columns[:width])
    letters.extend(pattern[index % len(pattern)] for index in range(len(letters), width))
    end = "".join(rule for rule in columns[width:] if not rule.strip("|"))
    rows, letters = _without_empty_columns(rows, letters)
    rows, letters = _joined(rows, letters, _sign_columns(rows, letters))
    if len(rows) == 1:
        pairs = {index for index in range(len(letters) - 1) if letters[index : index + 2] == ["r", "l"]}
        rows, letters = _joined(rows, letters, pairs)
        letters = [letter[:-1] + "c" for letter in letters]
        if letters == ["c"] and not end:
            return rows[0][0]
    return _drawn(rows, "".join(letters) + end, small)


def _trimmed(rows: list[list[list[Item]]]) -> list[list[list[Item]]]:
    """Without empty cells at the end of a row and empty rows at the end."""
    for row in rows:
        while row and not row[-1]:
            row.pop()
    while rows and not rows[-1]:
        rows.pop()
    return rows


def _without_empty_columns(
    rows: list[list[list[Item]]], letters: list[str]
) -> tuple[list[list[list[Item]]], list[str]]:
    """Columns without a rule in which nothing is drawn are dropped."""
    keep = [len(letter) > 1 for letter in letters]
    for row in rows:
        for index, cell in enumerate(row):
            keep[index] = keep[index] or bool(cell)
    kept = [[cell for cell, filled in zip(row, keep, strict=False) if filled] for row in rows]
    return kept, [letter for letter, filled in zip(letters, keep, strict=True) if filled]


def _sign_columns(rows: list[list[list[Item]]], letters: list[str]) -> set[int]:
    """The columns that hold but relations and stand before a left-aligned one."""
    found = {
        index for index in range(len(letters) - 1) if letters[index + 1] == "l" and letters[index] in ("l", "c", "r")
    }
    for row in rows:
        for index, cell in enumerate(row):
            if index in found and not _is_sign(cell):
                found.discard(index)
    return found


def _joined(
    rows: list[list[list[Item]]], letters: list[str], joins: set[int]
) -> tuple[list[list[list[Item]]], list[str]]:
    """Each of the columns is joined to the one after it, whose alignment is kept."""
    if not joins:
        return rows, letters
    result = []
    for row in rows:
        cells: list[list[Item]] = []
        for index, cell in enumerate(row):
            if index - 1 in joins:
                cells[-1].extend(cell)
            else:
                cells.append(list(cell))
        result.append(cells)
    return result, [letter for index, letter in enumerate(letters) if index not in joins]


def _is_sign(cell: list[Item]) -> bool:
    found = leaves(cell, _RELATION_LEAVES + 1)
    if found and found[0] == r"\stack{":
        return len(found) <= _RELATION_LEAVES
    return len(found) <= 2 and all(leaf in _SIGNS for leaf in found)


def _drawn(rows: list[list[list[Item]]], letters: str, small: bool) -> list[Item]:
    result: list[Item] = [rf"\{'small' if small else ''}array{{{letters}}}"]
    for number, row in enumerate(rows):
        if number:
            result.append(BREAK)
        for index, cell in enumerate(row):
            if index:
                result.append("&")
            result.extend(cell)
    result.append(r"\endarray")
    return result
