"""Canonical LaTeX tokens of a formula, and the nine checks of whether it is well-formed, in one pass.

    read_formula(r"x^{\\prime 2}").tokens == read_formula("x'^2").tokens

The robust formula reward compares these tokens. They are meant to be equal where the drawings are, up to spacing,
size, style and the place of limits. Malformed input is read as far as it goes, and each repair fails a check.
The reader keeps its own stack, so nesting costs no recursion, and looks at each token a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rewards.latex import tables
from rewards.latex.commands import Command, combined_font
from rewards.latex.content import Content
from rewards.latex.cursor import Cursor
from rewards.latex.grid import read_columns
from rewards.latex.items import BREAK, PRIME, Nucleus, flatten, letter
from rewards.latex.lexer import lex
from rewards.latex.stack import Stack, without_breaks

ROBUST_CHECKS = (
    "left_right",
    "braces",
    "environments",
    "dollars",
    "trailing_backslash",
    "ampersand",
    "arguments",
    "double_scripts",
    "display",
)
# A longer argument is no column specification.
_MAX_SPECIFICATION = 512
# Columns that the alignment of a starred matrix is for.
_MAX_COLUMNS = 100
_DISPLAY_PAIRS = {r"\[": r"\]", r"\(": r"\)"}


class Formula(NamedTuple):
    """The canonical tokens, and for each check whether the formula passes it."""

    tokens: Sequence[str]
    checks: dict[str, bool]


def read_formula(latex: str) -> Formula:
    """Read any string as LaTeX. Never fails; a string that draws nothing has no tokens.

    The checks, each true where the string passes:

    - `left_right`: every `\\left` and `\\right` has a delimiter, and they pair up inside their environment.
    - `braces`: unescaped `{` and `}` pair up inside their environment.
    - `environments`: every `\\end{name}` closes the latest open `\\begin{name}`, and none stays open.
    - `dollars`: the number of unescaped `$` is even.
    - `trailing_backslash`: the string doesn't end in a backslash without anything to escape.
    - `ampersand`: every unescaped `&` is inside an environment other than those that only open display math.
    - `arguments`: no command, script or array lacks an argument, and no optional argument stays open.
    - `double_scripts`: no atom has two subscripts or two superscripts.
    - `display`: `\\[ \\]` and `\\( \\)` pair up and don't nest.
    """
    return _Reader(lex(latex)).read()


class _Reader(Stack):
    """One method for each kind of token; they say what it opens, closes, draws or fails."""

    def __init__(self, tokens: list[str]) -> None:
        super().__init__(dict.fromkeys(ROBUST_CHECKS, True))
        self.tokens = tokens
        self.cursor = Cursor(tokens)
        self.open_display = ""

    def read(self) -> Formula:
        while token := self.cursor.take():
            _HANDLERS.get(token, _Reader._symbol)(self, token)
        self.close_all()
        self.checks["dollars"] = self.tokens.count("$") % 2 == 0
        self.checks["trailing_backslash"] = self.tokens[-1:] != ["\\"]
        self.checks["display"] &= not self.open_display
        return Formula(flatten(without_breaks(self.content().close().items())), self.checks)

    # Groups.

    def _open_brace(self, token: str) -> None:
        waiting = self.stack[-1]
        inner = self.open("group", "}")
        inner.braces += 1
        inner.text = isinstance(waiting, Command) and waiting.name in tables.TEXT_COMMANDS

    def _close_brace(self, token: str) -> None:
        self.fill_arguments()
        if self.content().braces == 0:
            self.fail("braces")
            return
        self.close_until(lambda inner: inner.closer == token)
        self.close_innermost(intended=True)

    def _close_bracket(self, token: str) -> None:
        if self.content().closer != token:
            self._symbol(token)
            return
        self.fill_arguments()
        self.close_innermost(intended=True)

    def _left(self, token: str) -> None:
        opening = self._delimiter()
        inner = self.open("left", r"\right")
        inner.opening = opening
        inner.lefts += 1

    def _right(self, token: str) -> None:
        self.fill_arguments()
        delimiter = self._delimiter()
        if self.content().lefts == 0:
            self.fail("left_right")
            self.deliver(Nucleus(delimiter or None))
            return
        self.close_until(lambda inner: inner.kind == "left").closing = delimiter
        self.close_innermost(intended=True)

    def _delimiter(self) -> str:
        """Take the delimiter after `\\left` or `\\right`; empty for `.` and for none."""
        token = tables.ANGLES.get(self.cursor.peek(), self.cursor.peek())
        if token not in tables.DELIMITERS:
            self.fail("left_right")
            return ""
        self.cursor.take()
        return "" if token == "." else token

    def _sized_delimiter(self, token: str) -> None:
        """`\\big`, `\\middle` and the like: the size isn't compared, but it makes `<` an angle."""
        if self.cursor.peek() in tables.ANGLES:
            self.deliver(Nucleus(tables.ANGLES[self.cursor.take()]))
        else:
            self.cursor.take_if(".")

    # Environments.

    def _begin(self, token: str) -> None:
        name = self.cursor.name()
        if not name:
            self.fail("environments")
            self._symbol(token)
            return
        plain_name = name.removesuffix("*")
        layout = tables.GRIDS.get(plain_name)
        if layout is not None:
            columns = self._columns(layout, starred=name != plain_name)
            inner = self.open("grid", name)
            inner.columns, inner.layout = columns, layout
        else:
            inner = self.open("plain" if plain_name in tables.PLAIN_ENVIRONMENTS else "environment", name)
        inner.braces = inner.lefts = 0
        inner.environments += 1
        inner.alignments += inner.kind != "plain"

    def _columns(self, layout: tables.Layout, starred: bool) -> list[str]:
        """Read the arguments of a grid environment. What they leave open, the layout says."""
        columns: list[str] = []
        if starred or not layout.left:
            letter_or_position = self.cursor.alignment()
            if starred and letter_or_position in ("l", "c", "r"):
                columns = [letter_or_position] * _MAX_COLUMNS
        for _ in range(layout.arguments):
            argument = self.cursor.group(_MAX_SPECIFICATION)
            if argument is None:
                self.fail("arguments")
            elif not layout.columns:
                columns = read_columns(argument)
        return columns

    def _end(self, token: str) -> None:
        self.fill_arguments()
        name = self.cursor.name()
        if self.content().environments == 0:
            self.fail("environments")
            self._symbol(token)
            return
        inner = self.close_until(Content.is_environment)
        self.close_innermost(intended=inner.closer == name)

    def _open_grid(self, token: str) -> None:
        """`\\substack{...}` and its like: the braces hold rows."""
        if not self.cursor.take_if("{"):
            self.fail("arguments")
            return
        inner = self.open("grid", "}")
        inner.layout = tables.GRIDS[token[1:]]
        inner.braces += 1
        inner.alignments += 1

    def _ampersand(self, token: str) -> None:
        self.fill_arguments()
        inner = self.content()
        if inner.alignments == 0:
            self.fail("ampersand")
        if inner.kind == "grid":
            inner.next_cell()
        else:
            inner.put(Nucleus(token))

    def _line_break(self, token: str) -> None:
        self.fill_arguments()
        self.cursor.take_if("*")
        self.cursor.skip_bracketed_length()
        inner = self.content()
        if inner.kind == "grid":
            inner.next_row()
        else:
            inner.put(Nucleus(BREAK))

    # Symbols and commands.

    def _symbol(self, token: str) -> None:
        is_word = len(token) > 1 and token[1].isalpha()
        groups = self.cursor.count_groups() if is_word and token not in tables.SYMBOLS else 0
        if groups:  # a command that the tables don't know: the groups right after it are taken for its arguments
            self.stack.append(Command(token, groups, self.stack[-1].font))
        else:
            self.deliver(Nucleus(letter(token, self.stack[-1].font), movable=token in tables.OPERATORS))

    def _command(self, token: str) -> None:
        font = self.stack[-1].font
        if token in tables.FONTS:
            font = combined_font(font, tables.FONTS[token])
        elif token == r"\operatorname":
            self.cursor.take_if("*")
            font = "rm"
        elif token == r"\smash":
            self.cursor.skip_option()
        self.stack.append(Command(token, tables.ARGUMENTS[token], font))
        if token in tables.OPTIONAL and self.cursor.take_if("["):
            self.open("option", "]")

    def _script(self, token: str) -> None:
        self.fill_arguments()
        self.stack.append(Command(token, 1, self.stack[-1].font))

    def _prime(self, token: str) -> None:
        self.fill_arguments()
        if not self.content().script("^", [PRIME], from_quote=True):
            self.fail("double_scripts")

    def _infix(self, token: str) -> None:
        self.fill_arguments()
        if self.content().closer == token:
            self.close_innermost(intended=True)
        else:
            self.content().divide(token)

    def _above(self, token: str) -> None:
        """Plain TeX's `\\buildrel above \\over base`."""
        self.stack.append(Command(r"\overset", 2, self.stack[-1].font))
        self.open("above", r"\over")

    def _root(self, token: str) -> None:
        """Plain TeX's `\\root n \\of x`."""
        self.stack.append(Command(r"\sqrt", 1, self.stack[-1].font))
        self.open("option", r"\of")

    def _font_switch(self, token: str) -> None:
        inner = self.content()
        inner.font = combined_font(inner.font, tables.FONT_SWITCHES[token])

    def _dollar(self, token: str) -> None:
        self.fill_arguments()
        inner = self.content()
        if inner.text:
            inner.font = "normal" if inner.font == inner.start_font else inner.start_font

    def _display(self, token: str) -> None:
        self.fill_arguments()
        if token in _DISPLAY_PAIRS and not self.open_display:
            self.open_display = _DISPLAY_PAIRS[token]
        elif token == self.open_display:
            self.open_display = ""
        else:
            self.fail("display")

    def _space(self, token: str) -> None:
        if isinstance(self.stack[-1], Content):
            self.stack[-1].seal()

    def _ignore(self, token: str) -> None:
        pass

    def _drop(self, token: str) -> None:
        """A command that isn't drawn, with its arguments."""
        self.cursor.take_if("*")
        for _ in range(tables.DROPPED[token]):
            self.cursor.skip_option()
            if not self.cursor.skip_argument():
                self.fail("arguments")

    def _length(self, token: str) -> None:
        self.cursor.skip_length()


_HANDLERS: dict[str, Callable[[_Reader, str], None]] = {
    **dict.fromkeys(tables.ARGUMENTS, _Reader._command),
    **dict.fromkeys(("^", "_"), _Reader._script),
    **dict.fromkeys(tables.SPACING, _Reader._space),
    **dict.fromkeys(tables.INVISIBLE | {"\\"}, _Reader._ignore),
    **dict.fromkeys(tables.DELIMITER_SIZES, _Reader._sized_delimiter),
    **dict.fromkeys(tables.DROPPED, _Reader._drop),
    **dict.fromkeys(tables.LENGTHS, _Reader._length),
    **dict.fromkeys(tables.FONT_SWITCHES, _Reader._font_switch),
    **dict.fromkeys(tables.INFIX, _Reader._infix),
    **dict.fromkeys(tables.GRID_COMMANDS, _Reader._open_grid),
    **dict.fromkeys((r"\[", r"\]", r"\(", r"\)"), _Reader._display),
    **dict.fromkeys(("]", r"\of"), _Reader._close_bracket),
    "{": _Reader._open_brace,
    "}": _Reader._close_brace,
    "'": _Reader._prime,
    "&": _Reader._ampersand,
    "$": _Reader._dollar,
    BREAK: _Reader._line_break,
    r"\left": _Reader._left,
    r"\right": _Reader._right,
    r"\begin": _Reader._begin,
    r"\end": _Reader._end,
    r"\buildrel": _Reader._above,
    r"\root": _Reader._root,
}
