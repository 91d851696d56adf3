"""A table as the TEDS metric sees it: nodes with spans and cell contents, and the metric's own count of elements.

This is the reading of PubTabNet's code, which OmniDocBench uses as well. It differs from `rewards.html.table`, which
the reward uses, in what an evaluation must not change: the inline tags inside cells count as elements, and a cell's
content is its list of characters and tags.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from lxml import etree

from rewards.html.table import MAX_DEPTH
from rewards.trees.distance import Node

_FULL_DOCUMENT = re.compile(r"\s*<(?:html|!doctype)", re.IGNORECASE)
_LEADING_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,9})")


class Label(NamedTuple):
    """What a node of the tree is compared by. Only cells (`td`) have spans, and a content if it is compared."""

    tag: str
    colspan: int = 0
    rowspan: int = 0
    content: str = ""


class MetricTable(NamedTuple):
    """The tree from the table down, cells as leaves; and the number of all elements below the table."""

    tree: Node
    elements: int


class Alphabet:
    """One character for each token of a cell, so that lists of tokens compare as strings.

    A token is a character or a tag. Two contents have the distance of their token lists if one alphabet wrote both.
    """

    def __init__(self) -> None:
        self._symbols: dict[str, str] = {}

    def write(self, cell: etree._Element) -> str:
        symbols = self._symbols
        return "".join(symbols.setdefault(token, chr(min(len(symbols), sys.maxunicode))) for token in _tokens(cell))


def read_table(document: str, alphabet: Alphabet | None = None) -> MetricTable | None:
    """The first table in the body of an HTML document, or None where there is none.

    Args:
        document: begins with `<html` or a doctype. Anything else holds no table for the metric.
        alphabet: writes the contents of the cells; without one they are left out, for the structure-only metric.
    """
    if not _FULL_DOCUMENT.match(document):
        return None
    parser = etree.HTMLParser(remove_comments=True, remove_pis=True, no_network=True, encoding="utf-8")
    try:
        root = etree.fromstring(document.replace("\x00", "").encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError:  # only a doctype, for example
        return None
    table = None if root is None else root.find("body/table")
    if table is None:
        return None
    elements = sum(1 for _ in table.iterdescendants(etree.Element))
    return MetricTable(_read(table, alphabet, MAX_DEPTH), elements)


def _read(element: etree._Element, alphabet: Alphabet | None, depth: int) -> Node:
    if element.tag == "td":
        content = alphabet.write(element) if alphabet else ""
        return Node(Label("td", _span(element.get("colspan")), _span(element.get("rowspan")), content))
    children = element if depth else ()
    return Node(Label(element.tag), tuple(_read(child, alphabet, depth - 1) for child in children))


def _tokens(cell: etree._Element) -> Iterator[str]:
    for event, element in etree.iterwalk(cell, events=("start", "end")):
        if event == "start":
            if element is not cell:
                yield f"<{element.tag}>"
            yield from element.text or ""
        elif element is not cell:
            if element.tag != "unk":
                yield f"</{element.tag}>"
            if element.tag != "td":  # the metric loses what follows a cell inside a cell
                yield from element.tail or ""


def _span(value: str | None) -> int:
    """A span as Python reads it; where the official code raises, its leading integer, or else 1."""
    if value is None:
        return 1
    try:
        return int(value)
    except ValueError:
        match = _LEADING_INTEGER.match(value)
        return int(match[1]) if match else 1
