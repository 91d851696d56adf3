r"""The form in which the robust profile compares texts: what is drawn stays, how it was typed does not.

The OmniDocBench form (`rewards.markup.normalize_text`) deletes punctuation and spaces, so a reward on it cannot tell
`1.5` from `15`. This one keeps both and removes only differences that no reader could see, by these rules:

| rule | example |
|---|---|
| white space of any kind is one space, none at the ends | no-break space, ideographic space, line break |
| invisible characters go | soft hyphen, zero-width space, direction marks, variation selectors |
| canonical composition (NFC) | `e` + combining acute is `é` |
| forms of width and position, Latin ligatures, hyphens fold | `１２` is `12`, `ﻻ` is `لا`, `ﬃ` is `ffi` |
| other compatibility characters stay | `①` is not `1`, `ſ` not `s`, `½` not `1/2` |
| inline math is Unicode, as the scorer has it | `$\alpha$` is `α` |
| raised and lowered digits are written as math has them | `m²` is `$m^2$` and not `m2`; `30°` is `$30^\circ$` |
| math delimiters around one plain word go | `$x$` and `\(x\)` are `x`; `$5 or $6` stays |
| a backslash before ASCII punctuation goes | `snake\_case` is `snake_case` |
| three or more leader dots, with the spaces around them, are one ellipsis | `Contents . . . . 9` is `Contents···· 9` |
| no space between CJK characters, nor between one and punctuation | `你 好` is `你好`; Korean keeps its spaces |

The form is idempotent and takes time linear in the length. A dollar sign is written `＄` in it, so that nothing in a
form is read as math again.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import chain

from rewards.markup import inline_math_to_unicode

# Kinds of compatibility decompositions that are the same character, drawn for another width or position.
_SAME_CHARACTER = frozenset({"wide", "narrow", "small", "vertical", "initial", "medial", "final", "isolated"})
_LIGATURES = range(0xFB00, 0xFB18)
_HYPHENS = (0x2010, 0x2011)
# Format characters that are drawn: the Arabic, Syriac and Kaithi signs around a number.
_DRAWN_FORMATS = frozenset({*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD})
# Not drawn, though no format characters: joiners, fillers and variation selectors.
_IGNORABLE = frozenset(
    chain(
        (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0),
        range(0x180B, 0x1810),
        range(0xFE00, 0xFE10),
        range(0xE0000, 0xE1000),
    )
)
# All characters that the table below changes lie here.
_FOLDED_BLOCKS = (
    range(0x3200),
    range(0xFB00, 0x10000),
    range(0x110BD, 0x110CE),
    range(0x13430, 0x13440),
    range(0x1BCA0, 0x1BCA4),
    range(0x1D173, 0x1D17B),
    range(0xE0000, 0xE1000),
)

_ESCAPED_DOLLAR = re.compile(r"(?<!\\)\\\$")
# Delimiters around one word. Two prices have a space between them or a digit after the second dollar sign, and the
# escaped parentheses of a call follow its name.
_PLAIN_MATH = re.compile(r"\$ *+(\w[^\s$]*+) *+\$(?!\d)|(?<![\w\\])\\\( *+(\w[^\s\\]*+) *+\\\)")
_ESCAPE = re.compile(r"\\(?=[!-/:-@\[-`{-~])")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁼⁽⁾ⁿ]+")
_LOWERED = re.compile("[₀-₉₊₋₌₍₎]+")
LEADER_DOTS = ".·‧․‥…⋯・"
_DOT_RUN = re.compile(rf" ?[{LEADER_DOTS}](?: ?[{LEADER_DOTS}])*+ ?")
_DOT_COUNTS = {"‥": 2, "…": 3, "⋯": 3, " ": 0}
_CJK = (
    r"\u3001-\u3029\u3030-\u3098\u309b-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_PUNCTUATION = r"!-/:-@\[-`{-~＄…"
_CJK_SPACE = re.compile(rf"(?<=[{_CJK}]) (?=[{_CJK}{_PUNCTUATION}])|(?<=[{_PUNCTUATION}]) (?=[{_CJK}])")


def robust_text_form(text: str) -> str:
    """A text as the robust profile compares it, by the rules above. May be empty."""
    text = _ESCAPED_DOLLAR.sub("＄", _fold(text)).replace("$$", "$")
    text = "\n".join(map(inline_math_to_unicode, text.split("\n")))
    text = _PLAIN_MATH.sub(lambda math: math[1] or math[2], text)
    text = _ESCAPE.sub("", _level(_fold(text))).replace("$", "＄")
    text = _DOT_RUN.sub(_leader, " ".join(text.split()))
    return _CJK_SPACE.sub("", text)


def _fold(text: str) -> str:
    """The rules that look at characters one by one, and composition. Line breaks stay, for math ends at one."""
    return unicodedata.normalize("NFC", text.translate(_folding()))


@lru_cache(maxsize=1)
def _folding() -> dict[int, str]:
    """What becomes of each character that does not stay as it is."""
    table = {}
    for code in chain.from_iterable(_FOLDED_BLOCKS):
        char = chr(code)
        folded = _folded(char)
        if folded != char:
            table[code] = folded
    return table


def _folded(char: str) -> str:
    code = ord(char)
    if char.isspace():
        return char if char == "\n" else " "
    category = unicodedata.category(char)
    if code in _IGNORABLE or (category in ("Cc", "Cf") and code not in _DRAWN_FORMATS):
        return ""
    if code in _HYPHENS:
        return "-"
    kind, *codes = unicodedata.decomposition(char).split() or [""]
    if char != "＄" and (kind.strip("<>") in _SAME_CHARACTER or code in _LIGATURES):
        return "".join(chr(int(each, 16)) for each in codes)
    return char


def _level(text: str) -> str:
    """Raised and lowered digits on the line, behind `^` and `_`."""
    text = _RAISED.sub(lambda run: "^" + _digits(run[0]), text.replace("^∘", "°"))
    return _LOWERED.sub(lambda run: "_" + _digits(run[0]), text)


def _digits(run: str) -> str:
    return unicodedata.normalize("NFKC", run).replace("−", "-")


def _leader(run: re.Match[str]) -> str:
    return "…" if sum(_DOT_COUNTS.get(char, 1) for char in run[0]) >= 3 else run[0]
