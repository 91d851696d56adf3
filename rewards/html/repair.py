"""Tolerant rewriting of HTML: closes what is open, drops what closes nothing, resolves character references.

The OmniDocBench scorer parses each table with BeautifulSoup's `html.parser` tree builder, edits the tree and
writes it out again. `repair` gives the same string in one pass and in linear time: no tree is built, and
input that makes the standard library's parser quadratic (thousands of unterminated tags) is bounded by
`MAX_TAG`. The edits of the scorer are part of the pass: `th` becomes `td`, `thead` and `span` tags go (their
content stays), and a `math` element becomes the text `$alttext$`.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from html.entities import html5

# Longest start tag in characters, attributes included. What looks like a longer one is text.
MAX_TAG = 2048

_NAME = r"[a-zA-Z][^\t\n\r\f />\x00]*+"
_VALUE = r"""'[^']*+'|"[^"]*+"|(?!['"])[^>\s]*+"""
_ATTRIBUTE = rf"(?<=['\"\s/])[^\s/>][^\s/=>]*+(?:\s*+=++\s*+(?:{_VALUE}))?+"
_START_TAG = re.compile(rf"<({_NAME})((?:(?:\s|/(?!>))++(?:{_ATTRIBUTE}(?:\s|/(?!>))*+)*+)?+)(/?)>")
_ATTRIBUTES = re.compile(rf"(?<=['\"\s/])([^\s/>][^\s/=>]*+)(?:\s*+=++\s*+({_VALUE}))?+(?:\s|/(?!>))*+")
_END_TAG = re.compile(rf"</(?:\s*+([a-zA-Z][-.a-zA-Z0-9:_]*+)\s*+>|({_NAME})[^>]*+>)")
_COMMENT_END = re.compile(r"--\s*+>")
_REFERENCE = re.compile(r"&(?:([a-zA-Z][-.a-zA-Z0-9]*+)|#(?:[0-9]++|[xX][0-9a-fA-F]++));?")
_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{8,}+|[xX][0-9a-fA-F]{7,}+);?")

# fmt: off
_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "keygen", "link", "menuitem", "meta", "param",
    "source", "track", "wbr", "basefont", "bgsound", "command", "frame", "image", "isindex", "nextid",
    "spacer",
})
# fmt: on
_UNWRAPPED = frozenset({"thead", "span"})
_RAW_TEXT = frozenset({"script", "style"})
_PRESERVED_SPACE = frozenset({"pre", "textarea"})
_RENAMED = {"th": "td"}
_ASCII_SPACES = " \n\t\f\r"


def unescape(text: str) -> str:
    """`html.unescape`, with numeric references too long for any code point replaced by U+FFFD."""
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text))


def repair(markup: str) -> str:
    """Well-nested HTML with character references resolved in text, attribute values and comments.

    The result is meant for the scorer's next steps, which work on strings; it is not escaped again.
    """
    return _Rewriter(markup).run()


class _Rewriter:
    def __init__(self, markup: str) -> None:
        self.markup = markup
        self.output: list[str] = []
        self.text: list[str] = []  # of the text node that is being read
        self.stack: list[str] = []  # names of the open elements, as written
        self.open: Counter[str] = Counter()
        self.comments_end = True  # until one does not
        self.math_depth = 0  # stack size at the outermost open <math>, whose content is dropped; 0 outside

    def run(self) -> str:
        markup = self.markup
        position = 0
        while (start := markup.find("<", position)) >= 0:
            self.text.append(_resolve_references(markup[position:start]))
            position = self._construct(start)
        self.text.append(_resolve_references(markup[position:]))
        self._end_text()
        while self.stack:
            self._pop()
        return "".join(self.output)

    def _construct(self, start: int) -> int:
        """Reads what begins with the `<` at start; returns the position after it."""
        markup = self.markup
        following = markup[start + 1 : start + 2]
        if following.isascii() and following.isalpha():
            return self._start_tag(start)
        if following == "/":
            return self._end_tag(start)
        if markup.startswith("<!--", start):
            return self._comment(start)
        if following and following in "!?":
            return self._declaration(start)
        self.text.append("<")
        return start + 1

    def _start_tag(self, start: int) -> int:
        # Without the first look, thousands of tags that do not end would each be read to the limit.
        ends = self.markup.find(">", start, start + MAX_TAG) >= 0
        match = _START_TAG.match(self.markup, start, start + MAX_TAG) if ends else None
        if match is None:
            return self._as_text(start)
        name = match[1].lower()
        self._open_element(name, match[2])
        if match[3] or name in _VOID:
            self._pop()
        elif name in _RAW_TEXT:
            return self._raw_text(match.end(), name)
        return match.end()

    def _open_element(self, name: str, attributes: str) -> None:
        self._end_text()
        self.stack.append(name)
        self.open[name] += 1
        if self.math_depth:
            return
        if name == "math":
            self.output.append(f"${_parse_attributes(attributes).get('alttext', '')}$")
            self.math_depth = len(self.stack)
        elif name in _VOID:
            self.output.append(f"<{name}{_format_attributes(attributes)}/>")
        elif name not in _UNWRAPPED:
            self.output.append(f"<{_written(name)}{_format_attributes(attributes)}>")

    def _end_tag(self, start: int) -> int:
        end = self.markup.find(">", start)
        if end < 0:
            return self._as_text(start)
        match = _END_TAG.match(self.markup, start)
        if match is None:
            if end > start + 2:  # `</>` is nothing at all
                self._emit_comment(self.markup[start + 2 : end])
            return end + 1
        self._end_text()
        name = (match[1] or match[2]).lower()
        if self.open[name]:
            while self._pop() != name:
                pass
        return match.end()

    def _pop(self) -> str:
        name = self.stack.pop()
        self.open[name] -= 1
        if self.math_depth:
            if len(self.stack) < self.math_depth:
                self.math_depth = 0
        elif name not in _VOID and name not in _UNWRAPPED:
            self.output.append(f"</{_written(name)}>")
        return name

    def _raw_text(self, start: int, name: str) -> int:
        """The content of `script` or `style`, which holds no markup. Without an end tag the rest is lost."""
        end = re.compile(rf"</\s*+{name}\s*+>", re.IGNORECASE).search(self.markup, start)
        if end is None:
            return len(self.markup)
        self.text.append(unescape(self.markup[start : end.start()]))
        return end.start()

    def _comment(self, start: int) -> int:
        end = _COMMENT_END.search(self.markup, start + 4) if self.comments_end else None
        if end is None:
            self.comments_end = False
            return self._as_text(start)
        self._emit_comment(self.markup[start + 4 : end.start()])
        return end.end()

    def _declaration(self, start: int) -> int:
        end = self.markup.find(">", start)
        if end < 0:
            return self._as_text(start)
        self._end_text()
        if not self.math_depth:
            self.output.append(unescape(self.markup[start : end + 1]))
        return end + 1

    def _emit_comment(self, content: str) -> None:
        self._end_text()
        if not self.math_depth:
            self.output.append(f"<!--{unescape(content)}-->")

    def _as_text(self, start: int) -> int:
        """An unfinished construct is text up to the next `>`, else up to the next `<`, else its `<` alone."""
        end = self.markup.find(">", start) + 1
        if not end:
            end = max(self.markup.find("<", start + 1), start + 1)
        self.text.append(self.markup[start:end])
        return end

    def _end_text(self) -> None:
        text = "".join(self.text)
        self.text.clear()
        if not text or self.math_depth:
            return
        if not text.strip(_ASCII_SPACES) and not any(self.open[name] for name in _PRESERVED_SPACE):
            text = "\n" if "\n" in text else " "
        self.output.append(text)


def _written(name: str) -> str:
    return _RENAMED.get(name) or unescape(name)


def _resolve_references(text: str) -> str:
    return _REFERENCE.sub(_resolve_reference, text) if "&" in text else text


def _resolve_reference(match: re.Match[str]) -> str:
    """The character of a reference. An unknown name loses its semicolon and stays."""
    name = match[1]
    if name is None:
        return unescape(match[0])
    return html5.get(f"{name};") or f"&{name}"


def _parse_attributes(text: str) -> dict[str, str]:
    """Attribute values by lower-case name. Of several with one name the last counts; no value is empty."""
    attributes = {}
    for match in _ATTRIBUTES.finditer(text):
        value = match[2] or ""
        if value[:1] in ("'", '"') and value[:1] == value[-1:] and len(value) > 1:
            value = value[1:-1]
        attributes[match[1].lower()] = unescape(value)
    return attributes


def _format_attributes(text: str) -> str:
    if not text:
        return ""
    written = []
    for name, value in sorted(_parse_attributes(text).items()):
        quote = "'" if '"' in value and "'" not in value else '"'
        written.append(f" {unescape(name)}={quote}{value}{quote}")
    return "".join(written)
