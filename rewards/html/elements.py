"""HTML elements as far as reading tables needs them: which names are tags, which elements hide what is in them.

Only known names are tags for `rewards.html.reader`, since OCR writes `x<y` and `<fcel>` where it means text. Elements
hide by name, by the `hidden` attribute, or by an inline style. A class may hide as well, but its style is not here.
"""

from __future__ import annotations

import re

from rewards.html.repair import unescape

# fmt: off
VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr",
})
# Their content is no markup, and is not shown.
RAW_TEXT = frozenset({"script", "style", "title", "iframe", "noembed", "noframes", "noscript", "xmp"})
# They begin on a line of their own, and what follows them does.
BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "br", "center", "dd", "details", "dialog", "dir", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr",
    "legend", "li", "main", "menu", "nav", "ol", "optgroup", "option", "p", "pre", "section", "summary", "ul",
})
_NOT_SHOWN = frozenset({
    "template", "datalist", "object", "audio", "video", "canvas", "svg", "rp", "annotation", "annotation-xml",
    "mphantom",
})
_SHOWN_IF_OPEN = frozenset({"details", "dialog"})
_TABLE = frozenset({"table", "caption", "colgroup", "thead", "tbody", "tfoot", "tr", "td", "th"})
_INLINE = frozenset({
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "body", "button", "cite", "code", "data", "del", "dfn", "em",
    "font", "head", "html", "i", "ins", "kbd", "label", "map", "mark", "meter", "nobr", "output", "picture",
    "progress", "q", "rb", "rt", "rtc", "ruby", "s", "samp", "select", "slot", "small", "span", "strike", "strong",
    "sub", "sup", "textarea", "time", "tt", "u", "var", "math", "maction", "menclose", "merror", "mfenced", "mfrac",
    "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle", "msub",
    "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover", "semantics",
})
# What may stand in a tag without a value, and names that tell a tag from a comparison (`x<i and y>j`).
_ATTRIBUTES = frozenset({
    "align", "alt", "async", "autofocus", "autoplay", "checked", "class", "color", "compact", "contenteditable",
    "controls", "default", "defer", "dir", "disabled", "download", "draggable", "face", "height", "hidden", "href",
    "id", "inert", "ismap", "itemscope", "lang", "loop", "multiple", "muted", "name", "noshade", "novalidate",
    "nowrap", "open", "readonly", "required", "reversed", "role", "selected", "size", "src", "style", "title",
    "translate", "type", "valign", "value", "width",
})
# fmt: on
NAMES = VOID | RAW_TEXT | BLOCKS | _NOT_SHOWN | _SHOWN_IF_OPEN | _TABLE | _INLINE
# Their tags are text if they hold words but no attribute. Some of the names are letters that formulas use.
_OFTEN_TEXT = (VOID | BLOCKS | _INLINE) - _SHOWN_IF_OPEN

_ATTRIBUTE_AND_VALUE = re.compile(r"""([^\s/=]++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s]*+))?+""")
_QUOTED_VALUE = re.compile(r"""=\s*+["']""")
_ZERO = r"(?:0+(?:\.0*)?|\.0+)(?![0-9.])[a-z%]*"
# All sides of a rectangle at most a pixel from its corner, or its right or lower one at 0.
_CLIPPED = rf"(?:,?(?:1px|{_ZERO})){{4}}|(?:0|1px){{4}}|[^,)]*,(?:[^,)]*,)?{_ZERO},[^)]*"
_CLIPPED_PATH = (
    rf"(?:inset\((?:[5-9][0-9]|[^)]{{0,40}}100)(?:\.[0-9]+)?%|(?:circle|ellipse)\({_ZERO}"
    r"|polygon\((?:,?0+(?:px|%)?+)++\))"
)
# A thousand pixels, or what is about as much in other units.
_FAR = r"(?:999|[0-9]{4}|[0-9]{3}(?:\.[0-9]*)?(?:r?em|v[wh]|in|cm))"
_NO_SIZE = rf"(?:max-)?(?:height|width):{_ZERO}"
_HIDING_STYLE = re.compile(
    rf"(?:^|;)(?:display:none|(?:content-)?visibility:(?:hidden|collapse)|(?:opacity|font-size):{_ZERO}"
    rf"|clip:rect\((?:{_CLIPPED})\)|clip-path:{_CLIPPED_PATH}"
    rf"|color:(?:transparent|rgba\([^)]*,{_ZERO}\))|(?:text-indent|left|top|margin-left):-{_FAR}"
    rf"|transform:scale\({_ZERO}\)|overflow:hidden;(?:.*;)?{_NO_SIZE}|{_NO_SIZE};(?:.*;)?overflow:hidden)"
)
_STYLE_SPACE = re.compile(r"\s+|/\*.*?\*/")

_LESS, _MORE = r"(?:<|&(?:amp;)*+lt;)", r"(?:>|&(?:amp;)*+gt;)"
_WRITTEN_TAG = re.compile(
    rf"{_LESS}(?:/?(?:{'|'.join(sorted(NAMES))})(?:[\s/][^<>&]{{0,200}})?|!--(?:[^<>&-]|-(?!-))*+--){_MORE}",
    re.IGNORECASE,
)


def parse_attributes(text: str) -> dict[str, str]:
    """Values by lower-case name. Of several with one name the first counts, as in a browser."""
    found: dict[str, str] = {}
    if text and not text.isspace():
        for name, value in _ATTRIBUTE_AND_VALUE.findall(text):
            found.setdefault(name.lower(), unescape(value.strip("\"'")))
    return found


def is_text(name: str, attributes: str) -> bool:
    """Whether what looks like a start tag with a known name is text: `<i and y>`, `<p 0>`."""
    if name not in _OFTEN_TEXT or _QUOTED_VALUE.search(attributes):
        return False
    found = [(name.lower(), value) for name, value in _ATTRIBUTE_AND_VALUE.findall(attributes)]
    return any(not value for _, value in found) and _ATTRIBUTES.isdisjoint(name for name, _ in found)


def is_hidden(name: str, attributes: dict[str, str]) -> bool:
    """Whether a browser shows nothing of an element with this name and these attributes."""
    if name in _NOT_SHOWN or (name in _SHOWN_IF_OPEN and "open" not in attributes):
        return True
    style = attributes.get("style")
    return "hidden" in attributes or bool(style and _HIDING_STYLE.search(_STYLE_SPACE.sub("", style.lower())))


def without_written_tags(text: str) -> str:
    """A text without what reads as a tag or a comment, because it was written with character references."""
    if "<" not in text and "&" not in text:
        return text
    return " ".join(_WRITTEN_TAG.sub("", text).split())
