"""The OmniDocBench scorer's markup normalisation: the strings that its metrics compare.

`normalize_text` and `normalize_table` come before the text and table rewards, as the published rewards want
it (arXiv:2609.26638, Appendix E). `normalize_formula` is what the benchmark's string metric for formulas
compares; the formula reward has a canonical form of its own (`rewards.latex.published`). The rules follow the public
OmniDocBench v1.5 code, traps included: a reward that differs from the metric trains for something else.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache, partial

from rewards.html.repair import repair
from rewards.marks import without_mark_runs

# Inline math that nests deeper than this, or whose braces do not balance, is left as it stands: the converter
# takes time that is exponential in the depth of optional arguments and of groups that are never closed.
MAX_GROUP_DEPTH = 6
MAX_BRACKET_DEPTH = 2
# Longest inline math whose conversion is kept for the next text.
MAX_KEPT_LATEX = 200

_INLINE_OPENING = re.compile(r"\$|\\\(")
_ESCAPED = re.compile(r"\\[\\_&%^]")
_NESTING = re.compile(r"\\(?:begin|end)(?![a-zA-Z])|\\.|[{}\[\]]")
_NOT_WORD = re.compile(r"[^\w\u4e00-\u9fff]")

_TABLE_OPENING = re.compile(r"<table\b[^>]*>", re.IGNORECASE)
_TABLE_CLOSING = re.compile(r"</table>", re.IGNORECASE)
_LAYOUT_ATTRIBUTES = tuple(re.compile(rf' {name}="[^"]*"') for name in ("style", "height", "width", "align", "class"))
_TBODY = re.compile(r"</?tbody>")
_BARE_INLINE_TAG = re.compile(r"</?(?:sup|sub|span|div|p)>")
_UNREADABLE = re.compile(r"[\x00-\x08\x0e-\x1f]")
_UNENCODABLE = re.compile(r"[\ud800-\udfff\ufffe\uffff]")

_BRACKETED_FORMULA = re.compile(r"\\\[(.+?)(?<!\\)\\\]")
_FORMULA_LAYOUT = tuple(
    re.compile(pattern)
    for pattern in (
        r"\\tag\{[^}\n]*\}",
        r"\\hspace\{[^}\n]*\}",
        r"\\begin\{[^}\n]*\}",
        r"\\end\{[^}\n]*\}",
        r"\\arraycolsep[^}\n]*\}",
    )
)
# Deleted in this order, as plain substrings.
# fmt: off
_FORMULA_WORDS = (
    r"\mathbf", r"\mathrm", r"\mathnormal", r"\mathit", r"\mathbb", r"\mathcal", r"\mathscr", r"\mathfrak",
    r"\mathsf", r"\mathtt", r"\textbf", r"\text", r"\boldmath", r"\boldsymbol", r"\operatorname", r"\bm",
    r"\symbfit", r"\mathbfcal", r"\symbf", r"\scriptscriptstyle", r"\notag", r"\setlength", r"\coloneqq",
    r"\space", r"\thickspace", r"\thinspace", r"\medspace", r"\nobreakspace", r"\negmedspace", r"\quad",
    r"\qquad", r"\enspace", r"\substackw", " ", "$$", r"\left", r"\right", r"\displaystyle",
)
# fmt: on


def normalize_text(text: str) -> str:
    """Text as the scorer compares it: inline math as Unicode, then word characters only.

    Spaces, punctuation and combining marks go; letter case and underscores stay. May be empty.
    """
    text = "\n".join(inline_math_to_unicode(line) for line in text.split("\n"))
    for separator in (r"\t", r"\n", "\t", "\n", "/t", "/n"):
        text = text.replace(separator, "")
    return _NOT_WORD.sub("", text)


def inline_math_to_unicode(line: str) -> str:
    r"""Replaces each `$...$` and `\(...\)` that holds LaTeX by its Unicode text."""
    pieces = []
    position = 0
    search_from = 0
    missing: set[str] = set()  # closing delimiters that do not occur any more
    while (opening := _INLINE_OPENING.search(line, search_from)) is not None:
        closing = "$" if opening[0] == "$" else r"\)"
        end = -1 if closing in missing else line.find(closing, opening.end())
        if end < 0:
            missing.add(closing)
            search_from = opening.end()
            continue
        content = _ESCAPED.sub("", line[opening.end() : end])
        search_from = end + len(closing)
        converted = _latex_to_unicode(content) if any(char in content for char in r"\^_") else None
        if converted is not None:
            pieces += [line[position : opening.start()], converted]
            position = search_from
    return "".join(pieces) + line[position:]


def _is_convertible(latex: str) -> bool:
    """True if groups and environments balance, and neither they nor brackets nest too deeply."""
    groups = brackets = 0
    for mark in _NESTING.findall(latex):
        if mark in ("{", r"\begin", r"\(", r"\["):
            groups += 1
        elif mark in ("}", r"\end", r"\)", r"\]"):
            groups -= 1
        elif mark == "[":
            brackets += 1
        elif mark == "]":
            brackets = max(0, brackets - 1)
        if not 0 <= groups <= MAX_GROUP_DEPTH or brackets > MAX_BRACKET_DEPTH:
            return False
    return groups == 0


def _latex_to_unicode(latex: str) -> str | None:
    return _short_latex_to_unicode(latex) if len(latex) <= MAX_KEPT_LATEX else _convert(latex)


def _convert(latex: str) -> str | None:
    """The Unicode text of LaTeX, or None where the converter fails on it, as it does on missing arguments."""
    if not _is_convertible(latex):
        return None
    try:
        return _converter()(latex + " " if latex.endswith("\\") else latex).strip()
    except (LookupError, AttributeError, TypeError, ValueError):
        return None


_short_latex_to_unicode = lru_cache(maxsize=4096)(_convert)


@lru_cache(maxsize=1)
def _converter() -> Callable[[str], str]:
    # Imported here because it is slow to import and most texts hold no math.
    from pylatexenc.latex2text import LatexNodes2Text
    from pylatexenc.latexwalker import get_default_latex_context_db

    # It warns of every malformed formula, and a model in training writes many.
    logging.getLogger("pylatexenc").setLevel(logging.ERROR)
    return partial(LatexNodes2Text().latex_to_text, latex_context=get_default_latex_context_db())


def normalize_table(markup: str) -> str:
    """A table's HTML as the scorer compares it, or an empty string where there is no table.

    The result holds one `<html><body><table border="1" >` and the inside of the first table found, repaired.
    Characters that no HTML document may hold are removed first (controls) or replaced by U+FFFD (surrogates).
    """
    if "<table" not in markup.replace(" ", ""):
        return ""
    markup = _UNENCODABLE.sub("\ufffd", _UNREADABLE.sub("", markup))
    markup = unicodedata.normalize("NFKC", without_mark_runs(repair(markup).replace("\n", ""))).strip()
    inside = _inside_table(markup)
    for attribute in _LAYOUT_ATTRIBUTES:
        inside = attribute.sub("", inside)
    inside = re.sub(r"\s+", " ", _TBODY.sub("", inside))
    inside = _without_colgroups(_BARE_INLINE_TAG.sub("", inside))
    return f'<html><body><table border="1" >{inside}</table></body></html>'


def _inside_table(markup: str) -> str:
    """What stands between the first opening and the last closing table tag."""
    opening = _TABLE_OPENING.search(markup)
    if opening is None:
        return ""
    end = max((closing.start() for closing in _TABLE_CLOSING.finditer(markup, opening.end())), default=-1)
    return markup[opening.end() : end] if end >= 0 else ""


def _without_colgroups(markup: str) -> str:
    """Deletes each attribute-less `<colgroup>` up to its end tag."""
    pieces = []
    position = 0
    while (start := markup.find("<colgroup>", position)) >= 0:
        end = markup.find("</colgroup>", start)
        if end < 0:
            break
        pieces.append(markup[position:start])
        position = end + len("</colgroup>")
    return "".join(pieces) + markup[position:]


def normalize_formula(latex: str) -> str:
    r"""LaTeX as the scorer's string metric for formulas compares it.

    Lower-cased, without delimiters, fonts, spacing words, spaces and environment tags. Deletes plain
    substrings, so `\leftarrow` and `\rightarrow` both become `arrow`.
    """
    latex = latex.strip().strip("$").strip("\n")
    bracketed = _BRACKETED_FORMULA.search(latex)
    if bracketed:
        latex = bracketed[1].strip()
    for pattern in _FORMULA_LAYOUT:
        latex = pattern.sub("", latex)
    latex = latex.strip(".")
    for word in _FORMULA_WORDS:
        latex = latex.replace(word, "")
    return latex.lower()
