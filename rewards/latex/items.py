"""Pieces of a formula while it is read: letters in their fonts, atoms with their scripts, and the final tokens.

The canonical tokens are built as nested lists (`Item`), so that a group moves into the one around it without being
copied, and are laid flat at the very end. Nothing recurses: the depth is the model's choice.

Canonical order of a nucleus: itself, `_{ ... }`, `^{ ... }`. The token `{}` stands before a script that is drawn
beside the scripts before it rather than above or below them (`x_a{}^b`, `{x_a}^b`). What is drawn exactly above or
below a nucleus (`\\overset`, `\\underset`, limits of `\\mathop`) is `\\stack{ ... }` with such scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Union

from rewards.latex.tables import BOLD_SYMBOLS


class Letter(NamedTuple):
    """A letter, digit or symbol in a font other than that of plain mathematics."""

    font: str
    symbol: str


Item = Union[str, Letter, list["Item"]]  # noqa: UP007 (recursive)

# Digits and symbols look the same in both.
_PLAIN_FONTS = ("normal", "rm")
PRIME = r"\prime"
BREAK = r"\\"
BESIDE = "{}"


def letter(symbol: str, font: str) -> Item:
    """A symbol as it is drawn in a font: most symbols have but one form."""
    if symbol.isascii() and symbol.isalpha():
        return symbol if font == "normal" else Letter(font, symbol)
    if symbol.isascii() and symbol.isdigit() and font not in _PLAIN_FONTS:
        return Letter("bf" if font == "bold" else font, symbol)
    if symbol in BOLD_SYMBOLS and font.startswith(("bf", "bold")):
        return Letter("bold", symbol)
    return symbol


def flatten(items: Sequence[Item]) -> list[str]:
    """The canonical tokens. A change of font becomes a token of its own, before the first letter in the new font."""
    tokens: list[str] = []
    font = "normal"
    rest = list(reversed(items))
    while rest:
        item = rest.pop()
        if isinstance(item, list):
            rest.extend(reversed(item))
            continue
        wanted, symbol = item if isinstance(item, Letter) else (_plain_font(item, font), item)
        if wanted != font:
            tokens.append(rf"\math{wanted}")
            font = wanted
        tokens.append(symbol)
    return tokens


def _plain_font(symbol: str, font: str) -> str:
    """The font that a symbol of plain mathematics needs after one in `font`."""
    if symbol.isascii() and symbol.isalpha():
        return "normal"
    has_fonts = symbol in BOLD_SYMBOLS or (symbol.isascii() and symbol.isdigit())
    return "normal" if has_fonts and font not in _PLAIN_FONTS else font


def leaves(items: Sequence[Item], limit: int) -> list[str | Letter]:
    """The first leaves of nested items, at most `limit` of them."""
    found: list[str | Letter] = []
    rest = list(reversed(items[:limit]))
    while rest and len(found) < limit:
        item = rest.pop()
        if isinstance(item, list):
            rest.extend(reversed(item[:limit]))
        else:
            found.append(item)
    return found


def braced(opening: str, *groups: list[Item]) -> list[Item]:
    """`opening{ ... }{ ... }` as items. The groups are not copied."""
    result: list[Item] = [opening + "{"]
    for number, group in enumerate(groups):
        if number:
            result.append("}{")
        result.append(group)
    result.append("}")
    return result


@dataclass(slots=True)
class Nucleus:
    """An atom and its scripts.

    Attributes:
        item: what is drawn, None for nothing.
        sub, sup: contents of the scripts, empty for none.
        primes: the superscript holds just primes, so that more can be added.
        quoted: it was written with `'`, so that LaTeX takes a superscript after it.
        sealed: something ended the atom, so a further script is drawn beside its scripts.
        stacked: the scripts are drawn exactly above and below.
        movable: the scripts may be drawn above and below as a matter of style (`\\sum`, `\\lim`).
        mathop: not such an operator, but `\\mathop` makes it one: its scripts are stacked.
    """

    item: Item | None = None
    sub: list[Item] = field(default_factory=list)
    sup: list[Item] = field(default_factory=list)
    primes: bool = False
    quoted: bool = False
    sealed: bool = False
    stacked: bool = False
    movable: bool = False
    mathop: bool = False

    def has_scripts(self) -> bool:
        return bool(self.sub or self.sup)

    def items(self) -> list[Item]:
        """What is drawn, as items; empty for nothing."""
        result: list[Item] = [] if self.item is None else [self.item]
        if self.stacked:
            result = braced(r"\stack", result)
        if self.sub:
            result.extend(braced("_", self.sub))
        if self.sup:
            result.extend(braced("^", self.sup))
        return result

    def attach(self, mark: str, content: list[Item]) -> bool:
        """Set the script `_` or `^` if it is free, and say whether it was."""
        if self.sub if mark == "_" else self.sup:
            return False
        if mark == "_":
            self.sub = content
            self.quoted = False
        else:
            self.sup = content
            self.primes = all(item == PRIME for item in content)
        return True

    def stack(self, mark: str, content: list[Item]) -> Nucleus:
        """The nucleus with something above (`^`) or below (`_`) it."""
        if not content:
            return self
        base = self
        if not (self.movable or self.stacked or self.mathop) or (self.sub if mark == "_" else self.sup):
            base = Nucleus(self.items() or None)
        base.stacked = not base.movable
        base.sealed = False
        base.attach(mark, content)
        return base
