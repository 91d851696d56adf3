"""LaTeX as the formula reward sees it: tokens, the published canonical form, the four well-formedness checks.

The canonical form is a string from which what does not change the drawing is meant to be gone. It is made
from LaTeX tokens, so dropping `\\left` leaves `\\leftarrow` alone, and `\\\\,` is a line break and a comma
rather than a thin space. Everything is one pass over the tokens, so the time is linear in the length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# A control word, a control symbol (a backslash and any other character), or one character.
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)

_DELIMITERS = frozenset({"$", r"\(", r"\)", r"\[", r"\]"})
_DISPLAY_ENVIRONMENTS = frozenset({"equation", "equation*", "displaymath", "math"})
_SIZING = frozenset({r"\left", r"\right"})
# fmt: off
_SPACING = frozenset({
    r"\,", r"\:", r"\;", r"\!", r"\>", "\\ ", "\\\t", "\\\n", "~", r"\space", r"\nobreakspace", r"\quad",
    r"\qquad", r"\enspace", r"\enskip", r"\thinspace", r"\medspace", r"\thickspace", r"\negthinspace",
    r"\negmedspace", r"\negthickspace",
})
# fmt: on
_SPACING_WITH_LENGTH = frozenset({r"\hspace", r"\mspace"})
_FRACTIONS = {r"\dfrac": r"\frac", r"\tfrac": r"\frac"}

CHECKS = ("left_right", "braces", "environments", "dollars")


def tokenize(latex: str) -> list[str]:
    """The tokens of a LaTeX string. Joined, they give the string back."""
    return _TOKEN.findall(latex)


def canonical(latex: str) -> str:
    """The published canonical form of a formula (arXiv:2609.26638, Appendix E).

    Drops math delimiters (`$`, `$$`, `\\(`, `\\)`, `\\[`, `\\]` and the environments that only open display
    math), `\\left` and `\\right`, spacing commands, whitespace and unescaped braces, and turns `\\dfrac` and
    `\\tfrac` into `\\frac`.
    """
    return "".join(_canonical_tokens(tokenize(latex)))


def _canonical_tokens(tokens: list[str]) -> Iterator[str]:
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token in (r"\begin", r"\end"):
            name, after = _group(tokens, _skip_space(tokens, position))
            if name in _DISPLAY_ENVIRONMENTS:
                position = after
                continue
        elif token in _SPACING_WITH_LENGTH:
            if position < len(tokens) and tokens[position] == "*":
                position += 1
            position = _group(tokens, position)[1]
            continue
        if token in "{}" or token.isspace() or token in _DELIMITERS or token in _SIZING or token in _SPACING:
            continue
        yield _FRACTIONS.get(token, token)


def _group(tokens: list[str], position: int) -> tuple[str, int]:
    """The content of the brace group without inner groups at a position, and the position after it.

    Where no such group stands, the content is empty and the position is unchanged.
    """
    if position >= len(tokens) or tokens[position] != "{":
        return "", position
    content: list[str] = []
    for index in range(position + 1, len(tokens)):
        token = tokens[index]
        if token == "}":
            return "".join(content).strip(), index + 1
        if token == "{":
            break
        content.append(token)
    return "", position


def checks(latex: str) -> dict[str, bool]:
    """Which of the four checks a raw LaTeX string passes, by the names in `CHECKS`.

    - `left_right`: every `\\right` closes an earlier `\\left`, and none stays open.
    - `braces`: the same for unescaped `{` and `}`.
    - `environments`: every `\\end{name}` closes the latest open `\\begin{name}`, and none stays open.
    - `dollars`: the number of unescaped `$` is even.
    """
    tokens = tokenize(latex)
    return {
        "left_right": _balanced(tokens, r"\left", r"\right"),
        "braces": _balanced(tokens, "{", "}"),
        "environments": _environments_balanced(tokens),
        "dollars": tokens.count("$") % 2 == 0,
    }


def _balanced(tokens: list[str], opening: str, closing: str) -> bool:
    depth = 0
    for token in tokens:
        if token == opening:
            depth += 1
        elif token == closing:
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


def _environments_balanced(tokens: list[str]) -> bool:
    open_names: list[str] = []
    for position, token in enumerate(tokens):
        if token == r"\begin":
            open_names.append(_group(tokens, _skip_space(tokens, position + 1))[0])
        elif token == r"\end":
            name = _group(tokens, _skip_space(tokens, position + 1))[0]
            if not open_names or open_names.pop() != name or not name:
                return False
    return not open_names


def _skip_space(tokens: list[str], position: int) -> int:
    while position < len(tokens) and tokens[position].isspace():
        position += 1
    return position
