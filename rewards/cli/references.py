"""What is wrong with a reference, or looks as if it were: the findings of `python -m rewards check`.

A reference that the reward refuses, or that does not score 1 against itself, is an error: no model could reach full
reward on it. Everything else is a warning. It is legal and may be meant, but in data sets it mostly is the trace of
a lost backslash, a wrong encoding, or a model that wrote around its answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rewards import RewardConfig, Score, score
from rewards.table import count_table_tags
from rewards.text import is_blank

# How far a self-score may be from 1 by rounding.
_TOLERANCE = 1e-9

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_FENCE = re.compile(r"```(?:html|latex|markdown)?")
_TABLE_TAG = re.compile(r"</?table\b[^<>]*>?", re.IGNORECASE)
_TAG = re.compile(r"<[/!?a-zA-Z][^<>]*>")
_DELIMITED = re.compile(r"\s*+(?:\$|\\\(|\\\[|\\begin\s*+\{(?:equation|displaymath|math)\*?\})")

# The character that an escape leaves behind, by the letter that it swallowed.
_ESCAPES = {"\x07": "a", "\x08": "b", "\t": "t", "\n": "n", "\x0b": "v", "\x0c": "f", "\r": "r"}
_AFTER_ESCAPE = re.compile(r"[\x07\x08\t\n\x0b\x0c\r](?=([a-zA-Z]+))")
# fmt: off
_COMMANDS = frozenset({
    "alpha", "angle", "approx", "ast", "asymp", "array", "arccos", "arcsin", "arctan", "arg", "acute",
    "bar", "because", "begin", "beta", "beth", "big", "bigcap", "bigcup", "bigg", "Big", "bigl", "bigr", "biggl",
    "biggr", "bigoplus", "bigotimes", "binom", "bm", "bmod", "boldsymbol", "bot", "boxed", "breve", "bullet",
    "fbox", "flat", "forall", "frac", "frown",
    "nabla", "natural", "ncong", "ne", "nearrow", "neg", "neq", "nexists", "ngeq", "ni", "nleq", "nmid", "nolimits",
    "nonumber", "not", "notag", "notin", "nparallel", "nsim", "nsubseteq", "nu", "nwarrow",
    "rVert", "rangle", "rbrace", "rceil", "rfloor", "rho", "right", "rightarrow", "rightleftharpoons", "rightharpoonup",
    "rm", "root", "rtimes", "rvert",
    "tag", "tan", "tanh", "tau", "tbinom", "text", "textbf", "textit", "textrm", "tfrac", "therefore", "theta",
    "thickapprox", "thicksim", "thinspace", "tilde", "times", "to", "top", "triangle", "triangleq", "tt",
    "vDash", "varepsilon", "varkappa", "varphi", "varpi", "varpropto", "varrho", "varsigma", "vartheta", "vartriangle",
    "vdash", "vdots", "vec", "vee", "veebar", "vert", "vphantom",
})
# fmt: on


class Finding(NamedTuple):
    """Something about a reference: an error or a warning, its kind (one of a few), and the detail."""

    is_error: bool
    kind: str
    detail: str


def check_reference(task: str, reference: str, config: RewardConfig, max_length: int) -> list[Finding]:
    """Everything found, at most one finding of a kind.

    Args:
        task: `text`, `table` or `formula`.
        reference: any string.
        config: with which it is scored against itself.
        max_length: in characters.
    """
    findings = [_self_score(task, reference, config)]
    findings += [Finding(False, *found) for found in _warnings(task, reference, max_length)]
    return [found for found in findings if found is not None]


def _self_score(task: str, reference: str, config: RewardConfig) -> Finding | None:
    try:
        scored = score(task, reference, reference, config)
    except ValueError as error:
        if not str(error).startswith("reference"):
            raise
        return Finding(True, "refused by the reward", str(error).removeprefix("reference "))
    if scored.value < 1.0 - _TOLERANCE:
        if scored.value >= scored.parts["gate"] - _TOLERANCE:
            return Finding(False, "gate marks down a correct copy", f"reward {scored.value:.4f}; {_gate_terms(scored)}")
        return Finding(True, "does not score 1 against itself", f"reward {scored.value:.4f}")
    failed = [name for name, passed in scored.parts.items() if passed is False]
    if failed and task == "formula":
        return Finding(False, "malformed formula", f"fails {', '.join(failed)}, so predictions may fail them too")
    return None


def _gate_terms(scored: Score) -> str:
    return f"rho8 {scored.parts['rho8']:.3f}, longest run {scored.parts['longest_run']}"


def _warnings(task: str, reference: str, max_length: int) -> Iterator[tuple[str, str]]:
    if len(reference) > max_length:
        yield "longer than the limit", f"{len(reference)} characters, limit {max_length}"
    lost = _lost_backslash(task, reference)
    if lost:
        yield "lost backslash", lost
    elif control := _CONTROL.search(reference):
        yield "control character", f"U+{ord(control[0]):04X} at character {control.start() + 1}"
    if surrogate := _SURROGATE.search(reference):
        yield "lone surrogate", f"U+{ord(surrogate[0]):04X} at character {surrogate.start() + 1}"
    if "\ufffd" in reference:
        place = reference.index("\ufffd") + 1
        yield "replacement character", f"U+FFFD at character {place}: read with a wrong encoding"
    if "```" in reference:
        yield "code fence", f"``` at character {reference.index('```') + 1}"
    yield from _TASK_WARNINGS[task](reference)


def _lost_backslash(task: str, reference: str) -> str:
    """Where a control character stands for the start of a command, as in a newline before `abla`."""
    for match in _AFTER_ESCAPE.finditer(reference):
        is_space = match[0].isspace() and match[0] not in "\x0b\x0c"
        if is_space and task != "formula":
            continue
        command = _command(_ESCAPES[match[0]], match[1], exact=is_space)
        # A line break before a single letter is more often meant than not.
        if command and not (match[0] == "\n" and len(command) == 2):
            written = f"U+{ord(match[0]):04X} before {match[1][:20]!r} at character {match.start() + 1}"
            return f"{written}, probably \\{command}"
    return ""


def _command(letter: str, rest: str, exact: bool) -> str:
    """The command that a letter and what follows it make; unless exact, any that they begin with."""
    word = letter + rest[:40]
    if exact:
        return word if word in _COMMANDS else ""
    return max((command for command in _COMMANDS if word.startswith(command)), key=len, default="")


def _text_warnings(reference: str) -> Iterator[tuple[str, str]]:
    if is_blank(reference):
        yield "blank text", "only a blank prediction is right"


def _table_warnings(reference: str) -> Iterator[tuple[str, str]]:
    opened, closed = count_table_tags(reference)
    if closed > opened:
        yield "unbalanced table tags", f"opens {opened}, closes {closed}"
    elif opened > 1:
        yield "more than one table", f"{opened} opening tags; the published reward reads the first table only"
    tags = list(_TABLE_TAG.finditer(reference))
    if not tags or opened > closed:
        return
    outside = _TAG.sub("", reference[: tags[0].start()] + " " + reference[tags[-1].end() :])
    chatter = " ".join(_FENCE.sub("", outside).split())
    if chatter:
        yield "text around the table", repr(chatter[:60])


def _formula_warnings(reference: str) -> Iterator[tuple[str, str]]:
    if match := _DELIMITED.match(reference):
        yield "formula delimiters", f"begins with {match[0].strip()}"


_TASK_WARNINGS = {"text": _text_warnings, "table": _table_warnings, "formula": _formula_warnings}
