"""Sources made of plain rows: JSONL files (also in the PubTabNet layout) and rows in memory.

Defines `Source`, what every reader returns. Readers only parse and open no image. What cannot be parsed is
a `Problem`, never a crash, so that one broken line is reported together with everything else that is wrong.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from gravity_rl.data.contract import TEXT_COLUMNS, Problem, Record, parse_record, shorten
from gravity_rl.data.images import encode_image, image_dataset
from gravity_rl.data.pubtabnet import from_pubtabnet, is_pubtabnet


@dataclass
class Source:
    """The rows of one file or dataset.

    Attributes:
        name: as it was named in the configuration; for a pattern, the file that it matched.
        records: text fields of each row; rows that could not be parsed at all are absent.
        images: dataset with the single column `image`, one row a record, in the storage of `datasets.Image`.
        problems: what is wrong with the rows so far. A row that is named here must not be used.
        ignored: columns that the contract does not know.
    """

    name: str
    records: list[Record]
    images: datasets.Dataset
    problems: list[Problem] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)


class SourceError(Exception):
    """A source cannot be read at all. Holds the message and the detail of a `Problem`."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message, detail)
        self.message, self.detail = message, detail


def read_rows(name: str, rows: Iterable[tuple[int, Mapping[str, Any]]], folder: str | Path | None = None) -> Source:
    """Make a source of rows in memory, for example of crops that were rendered on the fly.

    Args:
        name: what messages and default ids call the source.
        rows: 1-based row number and fields of each row, as from `enumerate(rows, start=1)`; images may be
            paths, bytes or PIL images.
        folder: what relative image paths refer to.
    """
    records: list[Record] = []
    images: list[dict[str, Any] | None] = []
    problems: list[Problem] = []
    columns: set[str] = set()
    for row, values in rows:
        record, found = parse_record(values, name, row)
        records.append(record)
        problems += found
        columns |= values.keys()
        image = values.get("image")
        try:
            images.append(encode_image(image, folder))
        except ValueError as error:
            images.append(None)
            problems.append(Problem(name, row, "image", str(error), "" if image is None else shorten(image)))
    return Source(name, records, image_dataset(images), problems, columns - {"image", *TEXT_COLUMNS})


def read_jsonl(name: str, path: Path) -> Source:
    """Read a JSON Lines file; image paths are relative to its folder.

    Raises:
        SourceError: the file cannot be opened.
    """
    folder = path.absolute().parent
    problems: list[Problem] = []

    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        for line, row in _json_lines(name, path, problems):
            if not is_pubtabnet(row):
                yield line, row
                continue
            try:
                yield line, from_pubtabnet(row, folder)
            except ValueError as error:
                problems.append(Problem(name, line, "html", "broken PubTabNet annotation", str(error)))

    source = read_rows(name, rows(), folder)
    source.problems = sorted(problems + source.problems, key=lambda problem: problem.row or 0)
    return source


def _json_lines(name: str, path: Path, problems: list[Problem]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield number and object of each line that holds one, skip blank lines, report the others."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise SourceError("file cannot be opened", str(error)) from error
    with file:
        for number, raw in enumerate(file, start=1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not text:
                    continue
                row = json.loads(text)
            except UnicodeDecodeError as error:
                problems.append(Problem(name, number, "line", "not valid UTF-8", str(error)))
            except RecursionError:
                problems.append(Problem(name, number, "line", "not valid JSON", "nested too deeply"))
            except ValueError as error:
                problems.append(Problem(name, number, "line", "not valid JSON", str(error)))
            else:
                if isinstance(row, dict):
                    yield number, row
                else:
                    detail = f"{type(row).__name__} {shorten(row)}"
                    problems.append(Problem(name, number, "line", "not a JSON object", detail))
