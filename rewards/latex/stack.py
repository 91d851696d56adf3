"""The open groups of a formula that is read, and the commands inside them that wait for arguments.

Depth is the model's choice, so this is a list rather than recursion. What a closed group draws goes to the command
that waits for it, or into the group around it.
"""

from __future__ import annotations

from collections.abc import Callable

from rewards.latex.commands import Command, built
from rewards.latex.content import Content
from rewards.latex.grid import grid
from rewards.latex.items import BREAK, Item, Nucleus

# Which check an unclosed group fails, by its kind.
_UNCLOSED = {
    "group": "braces",
    "left": "left_right",
    "option": "arguments",
    "above": "arguments",
    "grid": "environments",
    "plain": "environments",
    "environment": "environments",
}


class Stack:
    """The innermost entry is last; the first is the whole formula.

    Attributes:
        stack: open groups and waiting commands; `groups`: the groups alone.
        checks: which checks passed so far.
    """

    def __init__(self, checks: dict[str, bool]) -> None:
        root = Content("root")
        self.stack: list[Content | Command] = [root]
        self.groups = [root]
        self.checks = checks

    def content(self) -> Content:
        """The innermost open group."""
        return self.groups[-1]

    def fail(self, check: str) -> None:
        self.checks[check] = False

    def open(self, kind: str, closer: str) -> Content:
        outer, font = self.content(), self.stack[-1].font
        inner = Content(kind, closer, font, font, outer.braces, outer.lefts, outer.environments, outer.alignments)
        self.stack.append(inner)
        self.groups.append(inner)
        return inner

    def deliver(self, nucleus: Nucleus) -> None:
        """Give an atom to the command that waits for it, or to the innermost group."""
        while isinstance(command := self.stack[-1], Command):
            command.arguments.append(nucleus)
            if len(command.arguments) < command.need:
                return
            self.stack.pop()
            if command.name in ("^", "_"):
                self._attach(command.name, nucleus)
                return
            nucleus = built(command)
        command.put(nucleus)

    def _attach(self, mark: str, script: Nucleus) -> None:
        # x^{{}^\circ} is how some editors write x^\circ.
        only_raised = mark == "^" and script.item is None and not script.sub
        if not self.content().script(mark, script.sup if only_raised else script.items()):
            self.fail("double_scripts")

    def fill_arguments(self) -> None:
        """Commands that still wait get empty arguments."""
        while isinstance(self.stack[-1], Command):
            self.fail("arguments")
            self.deliver(Nucleus())

    def close_innermost(self, intended: bool) -> None:
        """Close the innermost group, inside of which no command waits."""
        inner = self.groups.pop()
        self.stack.pop()
        if not intended:
            self.fail("braces" if inner.closer == "}" else _UNCLOSED[inner.kind])
        nucleus = _CLOSED.get(inner.kind, Content.close)(inner)
        waiting = self.stack[-1]
        if inner.kind == "option" and isinstance(waiting, Command):
            waiting.option = nucleus.items()
        else:
            self.deliver(nucleus)

    def close_until(self, wanted: Callable[[Content], bool]) -> Content:
        """Close groups that were left open inside of the innermost one that is wanted, and return that one."""
        while not wanted(inner := self.content()):
            self.close_innermost(intended=False)
            self.fill_arguments()
        return inner

    def close_all(self) -> None:
        self.fill_arguments()
        self.close_until(lambda inner: inner.kind == "root")


def _close_left(inner: Content) -> Nucleus:
    nucleus = inner.close()
    items: list[Item] = [inner.opening] if inner.opening else []
    items.extend(nucleus.items())
    if inner.closing:
        items.append(inner.closing)
    return Nucleus(items or None, sealed=not inner.closing and nucleus.has_scripts())


def _close_grid(inner: Content) -> Nucleus:
    inner.next_cell()
    layout = inner.layout
    items: list[Item] = [layout.left] if layout.left else []
    items.extend(grid(inner.rows, inner.columns, layout.columns or "c", layout.small))
    if layout.right:
        items.append(layout.right)
    return Nucleus(items or None)


def _close_plain(inner: Content) -> Nucleus:
    return Nucleus(without_breaks(inner.close().items()) or None)


def _close_environment(inner: Content) -> Nucleus:
    return Nucleus([rf"\begin{{{inner.closer}}}", *inner.close().items(), rf"\end{{{inner.closer}}}"])


def without_breaks(items: list[Item]) -> list[Item]:
    """Line breaks at the end draw nothing."""
    while len(items) == 1 and isinstance(items[0], list):
        items = items[0]
    while items and items[-1] == BREAK:
        items.pop()
    return items


_CLOSED: dict[str, Callable[[Content], Nucleus]] = {
    "left": _close_left,
    "grid": _close_grid,
    "plain": _close_plain,
    "environment": _close_environment,
}
