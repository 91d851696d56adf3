"""Rows in the PubTabNet layout (also used by FinTabNet), turned into rows of the dataset contract.

PubTabNet annotates a table as structure tokens with empty cells, plus the tokens of each cell in reading
order. The reference is the structure with every cell's tokens put back in place.
"""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def is_pubtabnet(row: Mapping[str, Any]) -> bool:
    """Whether the row is laid out as in PubTabNet: the annotation is an object named `html`."""
    return isinstance(row.get("html"), Mapping)


def from_pubtabnet(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Turn a PubTabNet row into a row of the contract.

    Args:
        row: the parsed line, with `filename`, `html` and usually `split`.
        folder: folder of the JSONL file; the image lies in it, or in its subfolder named like the split.

    Raises:
        ValueError: the annotation is not consistent, or the file name is unusable; the text says where.
    """
    filename, split = row.get("filename"), row.get("split")
    if not isinstance(filename, str) or not filename:
        raise ValueError("filename is missing")
    image = filename
    try:
        if isinstance(split, str) and not (folder / filename).exists() and (folder / split / filename).exists():
            image = f"{split}/{filename}"
    except OSError as error:
        raise ValueError(f"filename cannot be looked up: {error.strerror}") from error
    return {"image": image, "task": "table", "reference": table_html(row["html"]), "id": filename}


def table_html(annotation: Mapping[str, Any]) -> str:
    """Return `<table>…</table>` for an `html` object: the structure with the cells' tokens inserted.

    Tokens of one character are text and are escaped; longer ones are tags such as `<b>`.

    Raises:
        ValueError: tokens are not lists of strings, or the number of cells is not the number of `<td>`.
    """
    structure = annotation.get("structure")
    if not isinstance(structure, Mapping):
        raise ValueError("html.structure is not an object")
    tokens = _strings(structure.get("tokens"), "html.structure.tokens")
    cells = annotation.get("cells")
    if not isinstance(cells, list) or not all(isinstance(cell, Mapping) for cell in cells):
        raise ValueError("html.cells is not a list of objects")
    # A plain cell opens with "<td>", one with attributes with "<td", ' colspan="2"', ">".
    openings = sum(token in ("<td>", ">") for token in tokens)
    if openings != len(cells):
        raise ValueError(f"html.structure has {openings} cells, html.cells has {len(cells)}")
    parts: list[str] = []
    contents = iter(cells)
    for token in tokens:
        parts.append(token)
        if token in ("<td>", ">"):
            cell = _strings(next(contents).get("tokens"), "html.cells tokens")
            parts += [html.escape(text, quote=False) if len(text) == 1 else text for text in cell]
    body = "".join(parts)
    return body if body.startswith("<table") else f"<table>{body}</table>"


def _strings(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        raise ValueError(f"{name} is not a list of strings")
    return value
