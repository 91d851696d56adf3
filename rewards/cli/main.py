"""The command line: scores a file, checks a file of references, explains one reward.

    python -m rewards score in.jsonl -o out.jsonl
    python -m rewards check data.jsonl
    python -m rewards explain --task table --prediction @prediction.html --reference @reference.html

Exit status: 0, 1 where lines are malformed or references unusable, 2 for wrong arguments and missing files, 130 after
Ctrl-C. Results go to stdout, progress and problems to stderr.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, get_type_hints

from rewards import RewardConfig
from rewards.cli.check import DEFAULT_MAX_LENGTH, check_file
from rewards.cli.rows import TASKS, shortened
from rewards.cli.score import score_file
from rewards.cli.streams import UsageError, replace_closed_streams, required_stdin, required_stdout
from rewards.explain import explain
from rewards.types import PROFILES
from rewards.workers import PoolError

# Of an integer in --set; the rewards calculate with floats, which have an end.
_LARGEST = 10**9

_SCORE = """Scores each line of a JSONL file. A line is an object with the strings `task` (text, table or formula),
`prediction` and `reference`. The output has every field of the input and `reward` and `parts`, which replace fields
of these names. A line that cannot be scored is left out, reported with its number, and makes the exit status 1. The
output gets its name when it is complete; an unfinished one is removed."""
_CHECK = """Checks the references of a JSONL file before anything is trained on them: whether each one parses and
scores 1 against itself (otherwise: error), and whether it holds what is rarely meant (warning), such as control
characters of a lost backslash. A line is an object with the strings `task` (text, table or formula) and `reference`.
Warnings leave the exit status at 0."""
_EXPLAIN = """Shows what one reward is made of: the reward after each factor, and the differences behind it. A value
that begins with @ is a file to read in UTF-8, and @- is stdin. Write --prediction=-1 for a value that begins with a
dash."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    try:
        arguments.config = _config(arguments.profile, arguments.set)
        status: int = arguments.run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except UsageError as error:
        return _fail(str(error), 2)
    except BrokenPipeError:
        # The reader has gone (`| head`). Python would complain once more when it flushes the streams at exit.
        nothing = os.open(os.devnull, os.O_WRONLY)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            os.dup2(nothing, stream.fileno())
        return 1
    except (OSError, PoolError) as error:
        return _fail(str(error), 1)
    return status


def _fail(message: str, status: int) -> int:
    print(f"python -m rewards: error: {message}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rewards", description="OCR rewards for text, tables and formulas (docs/REWARDS.md)."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    score = commands.add_parser("score", help="add rewards to a JSONL file of predictions", description=_SCORE)
    score.add_argument("input", metavar="in.jsonl", help="file of predictions, or -")
    score.add_argument("-o", "--output", required=True, metavar="out.jsonl", help="file to write, or -")
    score.add_argument("--workers", type=int, default=0, metavar="N", help="processes; 0 (default): in this one")
    score.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="seconds a line may take; one over it has reward null. Needs --workers (default there: 10)",
    )
    score.set_defaults(run=_run_score)

    check = commands.add_parser("check", help="check the references of a JSONL file", description=_CHECK)
    check.add_argument("input", metavar="data.jsonl", help="file of references, or -")
    check.add_argument(
        "--max-length",
        type=int,
        default=DEFAULT_MAX_LENGTH,
        metavar="N",
        help="characters above which a reference is reported (default %(default)s, about 8,448 tokens)",
    )
    check.set_defaults(run=_run_check)

    one = commands.add_parser("explain", help="show what one reward is made of", description=_EXPLAIN)
    one.add_argument("--task", required=True, choices=TASKS, help="which reward")
    one.add_argument("--prediction", required=True, metavar="TEXT|@FILE", help="the completion")
    one.add_argument("--reference", required=True, metavar="TEXT|@FILE", help="what is written in the crop")
    one.set_defaults(run=_run_explain)

    for command in (score, check, one):
        command.add_argument("--profile", choices=PROFILES, default=PROFILES[0], help="default: %(default)s")
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="change a constant of RewardConfig, such as teds_weight=0.5; repeatable",
        )
    return parser


def _config(profile: str, assignments: Sequence[str]) -> RewardConfig:
    """The configuration that `--profile` and `--set` describe."""
    constants = {name: kind for name, kind in get_type_hints(RewardConfig).items() if name != "profile"}
    values: dict[str, float] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set takes NAME=VALUE, not {assignment!r}")
        if name not in constants:
            raise UsageError(f"--set: there is no constant {name!r}. There are {', '.join(constants)}")
        if name in values:
            raise UsageError(f"--set: {name} is set twice")
        integral = constants[name] is int
        try:
            values[name] = int(text) if integral else float(text)
        except ValueError:
            kind = "an integer" if integral else "a number"
            raise UsageError(f"--set: {name} must be {kind}: {shortened(text)}") from None
        if integral and values[name] > _LARGEST:
            raise UsageError(f"--set: {name} must be at most {_LARGEST}: {shortened(text)}")
    try:
        return RewardConfig(profile=profile, **values)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(f"--set: {error}") from error


def _run_score(arguments: argparse.Namespace) -> int:
    if arguments.workers < 0:
        raise UsageError(f"--workers must be at least 0: {arguments.workers}")
    if arguments.timeout is not None and not arguments.workers:
        raise UsageError("--timeout needs --workers: a line can only be stopped in a process of its own")
    if arguments.timeout is not None and not 0.0 < arguments.timeout < float("inf"):
        raise UsageError(f"--timeout must be above 0 seconds: {arguments.timeout}")
    _end_on_sigterm()
    timeout_s = 10.0 if arguments.timeout is None else arguments.timeout
    return score_file(arguments.input, arguments.output, arguments.config, arguments.workers, timeout_s)


def _run_check(arguments: argparse.Namespace) -> int:
    if arguments.max_length < 1:
        raise UsageError(f"--max-length must be at least 1: {arguments.max_length}")
    return check_file(arguments.input, arguments.config, arguments.max_length)


def _run_explain(arguments: argparse.Namespace) -> int:
    if arguments.prediction == arguments.reference == "@-":
        raise UsageError("only one of --prediction and --reference can be stdin")
    output = required_stdout()
    prediction, reference = _value(arguments.prediction), _value(arguments.reference)
    try:
        lines = explain(arguments.task, prediction, reference, arguments.config)
    except ValueError as error:  # the reference is unusable
        raise UsageError(str(error)) from error
    for line in lines:
        print(line, file=output)
    return 0


def _value(argument: str) -> str:
    """An argument, or the content of the file that it names with @."""
    if not argument.startswith("@"):
        return argument
    name = argument[1:]
    try:
        content = required_stdin().read() if name == "-" else Path(name).read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8: byte {error.start}") from error


def _end_on_sigterm() -> None:
    """SIGTERM unwinds as Ctrl-C does, so that no unfinished output and no process is left behind."""

    def stop(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
