"""Reading JSONL for the command line: one object a line, whatever the file holds.

A file is read line by line and never held in memory. A malformed line becomes a `Problem` with its number and
field instead of ending the run, because the file that has one is usually long and comes from somewhere else.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from tqdm import tqdm

from rewards.cli.streams import UsageError, required_stdin

TASKS = ("text", "table", "formula")
# Longer lines are reported and skipped. An image as base64 fits.
MAX_LINE_BYTES = 64 << 20
SHOWN_PROBLEMS = 20


class Row(NamedTuple):
    """A line: its number, counted from 1, its object, and its size in bytes."""

    number: int
    fields: dict[str, Any]
    size: int


class Problem(NamedTuple):
    """What is wrong with a line. `field` is None where it is the line as a whole."""

    number: int
    field: str | None
    message: str


class _Malformed(ValueError):
    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def open_input(path: str) -> AbstractContextManager[BinaryIO]:
    """The file as bytes, or stdin for `-`.

    Raises:
        UsageError: it cannot be opened.
    """
    if path == "-":
        return nullcontext(required_stdin())
    try:
        if Path(path).is_dir():
            raise UsageError(f"cannot read {path}: Is a directory")
        return Path(path).open("rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def read_rows(stream: BinaryIO, fields: Sequence[str], advance: Callable[[int], Any]) -> Iterator[Row | Problem]:
    """Each line that is not blank.

    Args:
        stream: the file.
        fields: those that must be there and strings.
        advance: called with the number of bytes of each line.
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        size = len(line)
        too_long = size > MAX_LINE_BYTES
        while too_long and not line.endswith(b"\n") and (line := stream.readline(MAX_LINE_BYTES)):
            size += len(line)
        advance(size)
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if too_long:
            yield Problem(number, None, f"longer than {MAX_LINE_BYTES} bytes ({size})")
        elif line and not line.isspace():
            yield _read_line(number, line, fields)


def _read_line(number: int, line: bytes, fields: Sequence[str]) -> Row | Problem:
    try:
        parsed = _parse(line)
        for name in fields:
            _require_string(parsed, name)
    except _Malformed as error:
        return Problem(number, error.field, str(error))
    return Row(number, parsed, len(line))


def _parse(line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(
            line.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_short_integer,
        )
    except UnicodeDecodeError as error:
        raise _Malformed(f"not UTF-8: byte {error.start + 1} of the line") from error
    except json.JSONDecodeError as error:
        raise _Malformed(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise _Malformed("nested too deeply") from error
    if not isinstance(parsed, dict):
        raise _Malformed(f"not a JSON object: {_json_type(parsed)}")
    return parsed


def _require_string(fields: dict[str, Any], name: str) -> None:
    if name not in fields:
        raise _Malformed("missing", name)
    value = fields[name]
    if not isinstance(value, str):
        raise _Malformed(f"must be a string, not {_json_type(value)}", name)
    if name == "task" and value not in TASKS:
        raise _Malformed(f"must be one of {', '.join(TASKS)}: {shortened(value)}", name)


def _json_type(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "a string" if isinstance(value, str) else "a number"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise _Malformed("occurs twice", shortened(name)[1:-1])
        fields[name] = value
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise _Malformed(f"not JSON: {name}")


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise _Malformed(f"not JSON: the number {shortened(literal)[1:-1]} is too large")
    return number


def _short_integer(literal: str) -> int:
    # Python refuses to read longer ones, in quadratic time if it did not.
    if len(literal) > 4000:
        raise _Malformed(f"not JSON: a number of {len(literal)} digits")
    return int(literal)


def shortened(value: str, length: int = 60) -> str:
    """A string in quotes, without unprintable characters, cut to a length."""
    return repr(value if len(value) <= length else value[: length - 3] + "...")


class Progress:
    """Progress by bytes, or by lines where the size is not known, and the problems met on the way, on stderr."""

    def __init__(self, name: str, stream: BinaryIO, what: str) -> None:
        self.name = "stdin" if name == "-" else name
        self.problems = 0
        self._start = time.monotonic()
        size = _size(stream)
        self._by_bytes = size is not None
        self._bar = tqdm(
            desc=what,
            total=size,
            unit="B" if self._by_bytes else " lines",
            unit_scale=self._by_bytes,
            file=sys.stderr,
            disable=None,
            leave=False,
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def advance(self, size: int) -> None:
        """Counts a line of a number of bytes."""
        self._bar.update(size if self._by_bytes else 1)

    def report(self, problem: Problem) -> None:
        """Prints a problem, unless there were many before it."""
        self.problems += 1
        if self.problems <= SHOWN_PROBLEMS:
            place = f"{problem.field}: " if problem.field is not None else ""
            self._write(f"{self.name}:{problem.number}: {place}{problem.message}")
        elif self.problems == SHOWN_PROBLEMS + 1:
            self._write("further malformed lines are only counted")

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._start

    def _write(self, line: str) -> None:
        tqdm.write(line, file=sys.stderr)


def _size(stream: BinaryIO) -> int | None:
    """Bytes of a regular file."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # stdin that is no file of the system
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
