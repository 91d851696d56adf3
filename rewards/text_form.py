r"""The form in which the robust profile compares texts: what is drawn stays, how it was typed does not.

The OmniDocBench form (`rewards.markup.normalize_text`) deletes punctuation and spaces, so a reward on it cannot tell
`1.5` from `15`. This one keeps both and removes only differences that no reader could see, by these rules:

| rule | example |
|---|---|
| white space of any kind is one space, none at the ends | no-break space, ideographic space, line break |
| invisible characters go | soft hyphen, zero-width space, direction marks, variation selectors |
| more than 30 combining marks in a row go (`rewards.marks`) | |
| canonical composition (NFC); the micro sign is a mu | `e` + combining acute is `é` |
| forms of width and position, Latin ligatures, hyphens fold | `１２` is `12`, `ﻻ` is `لا`, `ﬃ` is `ffi`; `ﷺ` stays |
| other compatibility characters stay | `①` is not `1`, `ſ` not `s`, `½` not `1/2` |
| inline math is Unicode, as the scorer has it | `$\alpha$` is `α`, `$\sqrt{2}$` is `√2` |
| scripts of more than one character have braces | `$x^{12}$` is `x^{12}`, `$x^12$` is `x^12` |
| `%`, `&` and `_` in math stay, escaped or not | `$x_1 = 5\%$` is `x_1=5%` |
| raised and lowered digits are written as math has them | `m²` is `$m^2$` and not `m2`; `30°` is `$30^\circ$` |
| math delimiters around one plain word go | `$x$` and `\(x\)` are `x`; `$5 or $6` stays |
| and around single letters, numbers and signs | `$n = 5$` is `n=5`, `f$(x)$` is `f(x)`; `$5 + $6` stays |
| no spaces around `=` and signs that only math has | `a ≤ b` is `a≤b`; `a + b`, `a < b` keep theirs |
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

from rewards.marks import without_mark_runs
from rewards.markup import inline_math_to_unicode

# Kinds of compatibility decompositions that are the same character, drawn for another width or position.
_SAME_CHARACTER = frozenset({"wide", "narrow", "small", "vertical", "initial", "medial", "final", "isolated"})
_LIGATURES = range(0xFB00, 0xFB18)
# Longer ligatures are phrases: one character of them would make a text 18 times as long.
_MAX_LIGATURE = 4
_HYPHENS = (0x2010, 0x2011)
_MICRO_SIGN, _MU = "\u00b5", "\u03bc"
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
# Delimiters around a formula of single letters, numbers and signs, with a sign or bracket among these. It neither
# begins with a space nor ends with a sign, as what stands between two prices or two variables of a program would.
_MATH_BODY = (
    r"(?=[^\s$\\])(?![^$\\\n]*?[^\W\d_]{2})(?=[\w ,.:;'′％!]*+[-=<>+*/|()\[\]≤≥≠≈≡±∓×÷⋅·→∈])"
    r"([-\w ,.:;'′％!=<>+*/|()\[\]≤≥≠≈≡±∓×÷⋅·→∈]++)(?<=[\w)\]|'′％!])"
)
_SIGNED_MATH = re.compile(rf"\${_MATH_BODY}\$(?!\d)|(?<![\w\\])\\\({_MATH_BODY}\\\)")
_INLINE_MATH = re.compile(r"\$[^$\n]*+\$|\\\((?:[^\\\n]|\\[^()\n])*+\\\)")
# Signs that the conversion drops; it keeps their full-width forms, which fold. A bare % is no comment in a text.
_DROPPED_SIGN = re.compile(r"(?<!\\)(?:\\[%&_]|%)")
_FULL_WIDTH = 0xFEE0
_BACKSLASH = "\\"
# A script in braces, with at most one level of groups inside.
_SCRIPT = re.compile(r"([\^_] *+)\{((?:\\.|[^{}\\]|\{(?:\\.|[^{}\\])*+\})*+)\}")
_ONE_SIGN = re.compile(r"\s*+(?:\\[a-zA-Z]++|[^\\])?+\s*+")
# Of these characters no later rule makes one, and no mark follows that would join them: the form stays idempotent.
_BRACED_SIGN = re.compile(r"([\^_])\{([a-zA-Z0-9α-ωΑ-Ω+*'′†‡∗∘∞-])\}(?![\u0300-\u036f])")
_ROOT = re.compile(r"√\(([0-9]++|[a-zA-Zα-ωΑ-Ω])\)(?![\u0300-\u036f])")
_ESCAPE = re.compile(r"\\(?=[!-/:-@\[-`{-~])")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁼⁽⁾ⁿ]+")
_LOWERED = re.compile("[₀-₉₊₋₌₍₎]+")
LEADER_DOTS = ".·‧․‥…⋯・"
_DOT_RUN = re.compile(rf" ?[{LEADER_DOTS}](?: ?[{LEADER_DOTS}])*+ ?")
_DOT_COUNTS = {"‥": 2, "…": 3, "⋯": 3, " ": 0}
_SIGNS = "=≠≈≡≤≥≪≫∼≃≅∝±∓×÷⋅∈∉⊂⊆⊃⊇∪∩→←↔⇒⇔"
_SIGN_SPACE = re.compile(rf"(?<=[{_SIGNS}]) (?!\u0338)|(?<!\\) (?=[{_SIGNS}])")
_CJK = (
    r"\u3001-\u3029\u3030-\u3098\u309b-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_PUNCTUATION = r"!-/:-@\[-`{-~＄…"
_CJK_SPACE = re.compile(rf"(?<=[{_CJK}]) (?=[{_CJK}{_PUNCTUATION}])|(?<=[{_PUNCTUATION}]) (?=[{_CJK}])")


def robust_text_form(text: str) -> str:
    """A text as the robust profile compares it, by the rules above. May be empty."""
    return laid_out(drawn_text(text))


def drawn_text(text: str) -> str:
    """What is drawn: all rules but those about dot leaders and spaces."""
    text = _ESCAPED_DOLLAR.sub("＄", _fold(text)).replace("$$", "$")
    text = _INLINE_MATH.sub(_as_converted, text)
    text = "\n".join(map(inline_math_to_unicode, text.split("\n")))
    text = _PLAIN_MATH.sub(lambda math: math[1] or math[2], text)
    text = _SIGNED_MATH.sub(lambda math: math[1] or math[2], text)
    text = _ESCAPE.sub("", _level(_fold(text))).replace("$", "＄")
    text = _BRACED_SIGN.sub(r"\1\2", text).replace("^∘", "°")
    return _ROOT.sub(r"√\1", text)


def laid_out(drawn: str) -> str:
    """The form of what is drawn: the rules about dot leaders and spaces."""
    text = _SIGN_SPACE.sub("", " ".join(drawn.split()))
    return _CJK_SPACE.sub("", _DOT_RUN.sub(_leader, text))


def invisible_count(text: str) -> int:
    """How many characters are neither white space nor drawn."""
    return sum(map(_invisible().__contains__, text))


@lru_cache(maxsize=1)
def _invisible() -> frozenset[str]:
    return frozenset(chr(code) for code, folded in _folding().items() if not folded)


def _fold(text: str) -> str:
    """The rules that look at characters one by one, and composition. Line breaks stay, for math ends at one."""
    text = without_mark_runs(text.translate(_folding()))
    return without_mark_runs(unicodedata.normalize("NFC", text))


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
    if char == _MICRO_SIGN:
        return _MU
    kind, *codes = unicodedata.decomposition(char).split() or [""]
    if char != "＄" and len(codes) <= _MAX_LIGATURE and (kind.strip("<>") in _SAME_CHARACTER or code in _LIGATURES):
        return "".join(chr(int(each, 16)) for each in codes)
    return char


def _level(text: str) -> str:
    """Raised and lowered digits on the line, behind `^` and `_`."""
    text = _RAISED.sub(lambda run: "^" + _digits(run[0]), text)
    return _LOWERED.sub(lambda run: "_" + _digits(run[0]), text)


def _digits(run: str) -> str:
    digits = unicodedata.normalize("NFKC", run).replace("−", "-")
    return digits if len(digits) == 1 else f"{{{digits}}}"


def _as_converted(math: re.Match[str]) -> str:
    """Inline math with all that is drawn written so that the conversion to Unicode keeps it."""
    return _SCRIPT.sub(_with_braces, _DROPPED_SIGN.sub(lambda sign: chr(ord(sign[0][-1]) + _FULL_WIDTH), math[0]))


def _with_braces(script: re.Match[str]) -> str:
    """A script of LaTeX with braces that the conversion to Unicode keeps, unless it is one sign."""
    mark, content = script.groups()
    if _ONE_SIGN.fullmatch(content):
        return script[0]
    stripped = content.strip()
    return rf"{mark[0]}{{\{{{content if stripped.endswith(_BACKSLASH) else stripped}\}}}}"


def _leader(run: re.Match[str]) -> str:
    return "…" if sum(_DOT_COUNTS.get(char, 1) for char in run[0]) >= 3 else run[0]
