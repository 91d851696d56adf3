"""The dataset contract: which columns a row has, what they may hold, and how a violation is reported.

Every reader turns its rows into `Record`s through `parse_record`, so the contract is enforced in one place.
Violations are collected as `Problem`s and raised together as one `DataError`, because fixing a set of
100,000 crops one exception at a time is not workable. `docs/DATA.md` describes the contract for users.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TASKS = ("text", "table", "formula")
ALIASES = {"task": "task_type", "reference": "target"}
REQUIRED_COLUMNS = ("image", "task", "reference")
OPTIONAL_COLUMNS = ("prompt", "id", "source", "glyphs")
TEXT_COLUMNS = ("task", "reference", *ALIASES.values(), *OPTIONAL_COLUMNS)

PRINTED_PROBLEMS = 50
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation of the contract.

    Attributes:
        source: file or dataset as it was named in the configuration.
        row: 1-based line of a JSONL file, 1-based row of any other source; None if the whole source is meant.
        field: column name as it stands in the source, or `line` or `source`.
        message: fixed wording, so that problems can be counted by kind.
        detail: what is particular to this row, shown in parentheses.
    """

    source: str
    row: int | None
    field: str
    message: str
    detail: str = ""

    def __str__(self) -> str:
        where = self.source if self.row is None else f"{self.source}:{self.row}"
        return f"{where}: {self.field}: {self.message}" + (f" ({self.detail})" if self.detail else "")


def describe_problems(problems: Iterable[Problem]) -> str:
    """List the problems: counts by kind, then the first `PRINTED_PROBLEMS` one by one."""
    problems = list(problems)
    kinds = Counter((problem.field, problem.message) for problem in problems)
    lines = [f"{len(problems)} problem{'s' if len(problems) != 1 else ''} in the data"]
    lines += [f"  {count:>7} x {field}: {message}" for (field, message), count in kinds.most_common()]
    lines += [f"- {problem}" for problem in problems[:PRINTED_PROBLEMS]]
    if len(problems) > PRINTED_PROBLEMS:
        lines.append(f"... and {len(problems) - PRINTED_PROBLEMS} more")
    return "\n".join(lines)


class DataError(ValueError):
    """The data cannot be used as it is. `problems` holds all of them, the message the first ones."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return describe_problems(self.problems)


@dataclass(slots=True)
class Record:
    """The text fields of one row. A field with a problem holds an empty value and the row is never used.

    Attributes:
        glyphs: one character for each merged image token, row by row from the top left, a space where nothing is
            drawn; None if the row does not say. Its length depends on the image processor and is checked where the
            images are processed.
    """

    origin: str
    row: int
    task: str
    reference: str
    prompt: str | None
    id: str
    source: str
    glyphs: str | None


def shorten(value: object, limit: int = 80) -> str:
    """Return `repr(value)`, cut to `limit` characters, so that one bad field cannot flood a report."""
    text = repr(value[: limit + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def is_encodable(text: str) -> bool:
    """Whether `text` is valid Unicode. JSON can spell lone surrogates, which UTF-8 and Arrow cannot hold."""
    return _LONE_SURROGATE.search(text) is None


class _RowReader:
    """Reads the fields of one row and collects what is wrong with them."""

    def __init__(self, values: Mapping[str, Any], origin: str, row: int) -> None:
        self.values, self.origin, self.row = values, origin, row
        self.problems: list[Problem] = []

    def report(self, field: str, message: str, detail: str = "") -> None:
        self.problems.append(Problem(self.origin, self.row, field, message, detail))

    def string(self, field: str) -> str | None:
        """Return the field's string, or None if it is absent or unusable (which is reported)."""
        value = self.values.get(field)
        if value is None:
            return None
        if not isinstance(value, str):
            self.report(field, "not a string", f"{type(value).__name__} {shorten(value)}")
        elif not is_encodable(value):
            self.report(field, "not valid Unicode: lone surrogate", shorten(value))
        else:
            return value
        return None

    def required(self, name: str) -> tuple[str, str | None]:
        """Return the column that holds the field (itself or its alias) and its string."""
        alias = ALIASES[name]
        given = [field for field in (name, alias) if self.values.get(field) is not None]
        if not given:
            self.report(name, "missing")
            return name, None
        if len(given) == 2 and self.values[name] != self.values[alias]:
            both = f"{shorten(self.values[name])}, {shorten(self.values[alias])}"
            self.report(name, f"differs from its alias {alias}", both)
        return given[0], self.string(given[0])

    def task(self) -> str | None:
        field, task = self.required("task")
        if task is not None and task not in TASKS:
            self.report(field, "unknown task, expected text, table or formula", shorten(task))
        return task

    def reference(self, task: str | None) -> str | None:
        field, reference = self.required("reference")
        if task in ("table", "formula") and reference is not None and not reference.strip():
            self.report(field, f"empty for a {task}")
        return reference

    def prompt(self) -> str | None:
        prompt = self.string("prompt")
        if prompt is not None and not prompt.strip():
            self.report("prompt", "empty; leave it out to use the prompt of the task")
        return prompt

    def identifier(self) -> str:
        value = self.values.get("id")
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.string("id") or f"{self.origin}:{self.row}"


def parse_record(values: Mapping[str, Any], origin: str, row: int) -> tuple[Record, list[Problem]]:
    """Read the text fields of one row, resolving aliases.

    Args:
        values: the row as the source holds it, of any types; keys outside the contract are ignored.
        origin: name of the source, for messages and for the default `source` and `id`.
        row: 1-based row number.

    Returns:
        The record, and the problems found in it.
    """
    reader = _RowReader(values, origin, row)
    task = reader.task()
    record = Record(
        origin=origin,
        row=row,
        task=task or "",
        reference=reader.reference(task) or "",
        prompt=reader.prompt(),
        id=reader.identifier(),
        source=reader.string("source") or origin,
        glyphs=reader.string("glyphs"),
    )
    return record, reader.problems


def join_path(folder: str | Path | None, path: str) -> str:
    """Resolve a row's image path against the folder of its source; absolute paths and `..` are allowed.

    Raises:
        ValueError: the path is relative and the source has no folder (a dataset from the hub).
    """
    if Path(path).is_absolute():
        return path
    if folder is None:
        raise ValueError("relative image path in a source that has no folder")
    return str(Path(folder) / path)
