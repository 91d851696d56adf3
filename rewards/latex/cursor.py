"""A position in a list of LaTeX tokens, and the arguments that are taken there without reading them as mathematics.

Names, lengths, column specifications and what isn't drawn. Where the closing brace of each group is, is looked up in
a table made once, so that skipping a group costs the same at any length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MAX_NAME = 32
_MAX_OPTION = 32
_MAX_LENGTH = 16
_UNIT = "(?:pt|em|ex|mm|cm|in|mu|pc|bp|sp)"
_BRACKETED_LENGTH = re.compile(rf"\[[-+]?[\d.,]*(?:{_UNIT}|\\[a-zA-Z]+)\]")
_LENGTH_DIGITS = frozenset("=+-.,0123456789")
_LENGTH_UNIT = re.compile(_UNIT)
_LENGTH_WORD = re.compile(r"\\[a-z]*(?:skip|sep|width|height|depth|indent|unit)")


class Cursor:
    """The next token is at `position`; at the end of the tokens it is the empty string."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self._closing_brace = _matching_braces(tokens)

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def take_if(self, token: str) -> bool:
        """Pass the next token if it is this one."""
        found = self.peek() == token
        self.position += found
        return found

    def group(self, limit: int) -> Sequence[str] | None:
        """Take the tokens of the brace group that follows; None if there is none of at most `limit` tokens."""
        end = self._closing_brace.get(self.position)
        if end is None or end - self.position > limit:
            return None
        tokens = self.tokens[self.position + 1 : end]
        self.position = end + 1
        return tokens

    def name(self) -> str:
        """Take a name in braces; empty if there is none."""
        return "".join(self.group(_MAX_NAME) or [])

    def count_groups(self) -> int:
        """How many brace groups follow each other from here."""
        groups, position = 0, self.position
        while (end := self._closing_brace.get(position)) is not None:
            groups += 1
            position = end + 1
        return groups

    def skip_argument(self) -> bool:
        """Pass an argument: a brace group or one token. False if there is none."""
        end = self._closing_brace.get(self.position)
        if end is not None:
            self.position = end + 1
        elif self.peek() in ("", "{", "}", "&", r"\\"):
            return False
        else:
            self.position += 1
        return True

    def skip_option(self) -> None:
        """Pass an argument in brackets, if a short one follows."""
        end = self._closing_bracket(_MAX_OPTION)
        if end is not None:
            self.position = end + 1

    def skip_bracketed_length(self) -> None:
        """Pass `[2pt]`, as after a line break. Brackets around anything else stay."""
        end = self._closing_bracket(_MAX_LENGTH)
        if end is not None and _BRACKETED_LENGTH.fullmatch("".join(self.tokens[self.position : end + 1])):
            self.position = end + 1

    def skip_length(self) -> None:
        """Pass a length without brackets, as after `\\kern`: `-.5em`, `=2\\parskip`. Anything else stays."""
        end = self.position
        limit = min(len(self.tokens), end + _MAX_LENGTH)
        while end < limit and self.tokens[end] in _LENGTH_DIGITS:
            end += 1
        if _LENGTH_UNIT.fullmatch("".join(self.tokens[end : end + 2])):
            self.position = end + 2
        elif end < limit and _LENGTH_WORD.fullmatch(self.tokens[end]):
            self.position = end + 1

    def alignment(self) -> str:
        """Take `[t]`, `[r]` and the like; empty if there is none."""
        following = list(self.tokens[self.position : self.position + 3])
        if len(following) < 3 or following[0] != "[" or following[1] not in "tbclr" or following[2] != "]":
            return ""
        self.position += 3
        return following[1]

    def _closing_bracket(self, limit: int) -> int | None:
        """Where the bracket that opens here is closed, if that is at most `limit` tokens away."""
        if self.peek() != "[":
            return None
        for position in range(self.position + 1, min(len(self.tokens), self.position + limit)):
            if self.tokens[position] == "]":
                return position
        return None


def _matching_braces(tokens: Sequence[str]) -> dict[int, int]:
    """The position of the closing brace for that of each opening one that is closed."""
    matches: dict[int, int] = {}
    opened: list[int] = []
    for position, token in enumerate(tokens):
        if token == "{":
            opened.append(position)
        elif token == "}" and opened:
            matches[opened.pop()] = position
    return matches
