"""A group of a formula while it is read: what is complete, the last atom, and what was open around it.

The reader keeps a stack of them. `Content` knows where a script goes and what `\\over` divides; which token opens or
closes a group is the business of `rewards.latex.reader`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rewards.latex.items import BESIDE, Item, Nucleus, braced
from rewards.latex.tables import GRIDS, INFIX, Layout


@dataclass(slots=True)
class Content:
    """A group that is being read: the whole formula, `{...}`, `\\left...\\right`, `[...]` or an environment.

    Attributes:
        kind: `root`, `group`, `left`, `option`, `above`, `plain`, `grid` or `environment`.
        closer: what ends the group: the closing token, or the name of the environment.
        font: of the next letter; `start_font`: at the beginning of the group or cell.
        braces, lefts: open `{` and `\\left` inside the innermost environment, this one included.
        environments, alignments: open environments, and those of them in which `&` has a meaning.
        opening, closing: delimiters of a `\\left` group, empty where none is drawn.
        text: `$` switches between text and mathematics.
        layout, columns: of a grid, and the alignments of its columns as far as its arguments have them.
        rows: cells of a grid that are complete, by row.
        done: items before the last atom; `nucleus`: the last atom; `only_movable`: all others were operators.
        divider, numerator: `\\over` or its like, and what stood before it.
    """

    kind: str
    closer: str = ""
    font: str = "normal"
    start_font: str = "normal"
    braces: int = 0
    lefts: int = 0
    environments: int = 0
    alignments: int = 0
    opening: str = ""
    closing: str = ""
    text: bool = False
    layout: Layout = GRIDS["matrix"]
    columns: list[str] = field(default_factory=list)
    rows: list[list[list[Item]]] = field(default_factory=lambda: [[]])
    done: list[Item] = field(default_factory=list)
    nucleus: Nucleus | None = None
    only_movable: bool = True
    divider: str = ""
    numerator: list[Item] = field(default_factory=list)

    def is_environment(self) -> bool:
        return self.kind in ("plain", "grid", "environment") and self.closer != "}"

    def put(self, nucleus: Nucleus) -> None:
        """The next atom. An empty one draws nothing, but ends the atom before."""
        if nucleus.item is None and not nucleus.has_scripts():
            self.seal()
            return
        self.flush()
        self.nucleus = nucleus

    def seal(self) -> None:
        if self.nucleus is not None and self.nucleus.has_scripts():
            self.nucleus.sealed = True

    def flush(self) -> None:
        if self.nucleus is not None:
            self.only_movable &= self.nucleus.movable
            self.done.extend(self.nucleus.items())
            self.nucleus = None

    def script(self, mark: str, content: list[Item], from_quote: bool = False) -> bool:
        """Add a script to the last atom. False if LaTeX calls it a double script."""
        if self.nucleus is None:
            self.nucleus = Nucleus()
        last = self.nucleus
        if not content:
            return True
        if mark == "^" and last.primes and not last.stacked:
            legal = last.quoted or last.sealed
            last.primes = last.quoted = from_quote
            last.sup.extend(content)
            return legal
        beside = last.sealed or (last.stacked and not last.mathop)
        last.stacked |= last.mathop
        if beside or not last.attach(mark, content):
            self.flush()
            last = self.nucleus = Nucleus(BESIDE)
            last.attach(mark, content)
            last.quoted = from_quote
            return beside
        last.quoted |= from_quote
        return True

    def divide(self, command: str) -> None:
        """`\\over` and the like: what was read is the numerator."""
        numerator = self.close().items()
        self.reset()
        self.divider, self.numerator = command, numerator

    def reset(self) -> None:
        self.done, self.nucleus, self.only_movable = [], None, True
        self.divider, self.numerator = "", []

    def close(self) -> Nucleus:
        """All that was read, as one atom. Its last scripts stay open for primes and limits only."""
        if self.divider:
            self.flush()
            left, name, right = INFIX[self.divider]
            fraction = braced(name, self.numerator, self.done)
            return Nucleus([left, *fraction, right] if left else fraction)
        last = self.nucleus or Nucleus()
        if last.stacked and self.done:
            self.flush()
            return Nucleus(self.done, sealed=True)
        last.sealed |= last.has_scripts()
        if self.done:
            if last.item is not None:
                self.done.append(last.item)
            last.item = self.done
            last.movable &= self.only_movable
            last.mathop = False
        return last

    def next_cell(self) -> None:
        self.rows[-1].append(self.close().items())
        self.reset()
        self.font = self.start_font

    def next_row(self) -> None:
        self.next_cell()
        self.rows.append([])
