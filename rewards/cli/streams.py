"""The standard streams and the output file of a command, whatever they are: closed, the same file, a link, a device.

Python has None for a standard stream that the caller has closed, and the next file that is opened would take its
number, so that what a library prints to standard error would end up in it.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

_STREAMS = ("stdin", "stdout", "stderr")


class UsageError(Exception):
    """The user's mistake. The message is complete and one line long."""


def replace_closed_streams() -> None:
    """Occupy the numbers of closed standard streams; what is written to a closed stderr is lost.

    stdin and stdout stay None, so that a command that needs them can say so.
    """
    for number, name in enumerate(_STREAMS):
        if getattr(sys, name) is None and not _is_open(number):
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)  # inherited by workers, unlike what open returns
            if nothing != number:
                os.close(nothing)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def required_stdin() -> BinaryIO:
    """stdin as bytes. Raises UsageError where it is closed."""
    if sys.stdin is None:
        raise UsageError("cannot read stdin: it is closed")
    return sys.stdin.buffer


def required_stdout() -> TextIO:
    """stdout. Raises UsageError where it is closed."""
    if sys.stdout is None:
        raise UsageError("cannot write stdout: it is closed")
    return sys.stdout


@contextmanager
def open_output(target: str, source: BinaryIO) -> Iterator[TextIO]:
    """What results are written to: stdout for `-`, else a file that gets its name at the end, if there is no error.

    Until then it is an unfinished file of a random name in the same folder. A device, a pipe, and a file that is
    open already (`/dev/stdout`) are written directly.

    Args:
        target: path, or `-`.
        source: the input, which must not be the same file.

    Raises:
        UsageError: it cannot be written, or is the input.
    """
    if target == "-":
        stream = required_stdout()
        _refuse_same(source, _status(stream), "stdout")
        yield stream
        return
    path = Path(target)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        status = None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error
    _refuse_same(source, status, target)
    in_place = status is not None and (not stat.S_ISREG(status.st_mode) or _is_descriptor(path))
    if not in_place:
        path = path.resolve()
    written = path if in_place else path.with_name(f".rewards-{secrets.token_hex(8)}.partial")
    try:
        sink = written.open("a" if in_place else "x", encoding="ascii", newline="\n")
    except OSError as error:
        reason = error.strerror if path.parent.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"cannot write {target}: {reason}") from error
    try:
        with sink:
            yield sink
        if not in_place:
            written.replace(path)
    finally:
        if not in_place:
            written.unlink(missing_ok=True)


def _is_descriptor(path: Path) -> bool:
    return str(path.absolute()).startswith(("/dev/std", "/dev/fd/", "/proc/"))


def _refuse_same(source: BinaryIO, target: os.stat_result | None, name: str) -> None:
    """Raises UsageError if both are one file of the system; both may well be one terminal."""
    status = _status(source)
    if status is None or target is None or not stat.S_ISREG(status.st_mode):
        return
    if os.path.samestat(status, target):
        raise UsageError(f"{name} is the input: malformed lines would be lost")


def _status(stream: BinaryIO | TextIO) -> os.stat_result | None:
    try:
        return os.fstat(stream.fileno())
    except OSError:  # an object of Python's that is no file of the system
        return None
