"""`python -m rewards check`: looks at every reference of a JSONL file and counts what is wrong by kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rewards import RewardConfig
from rewards.cli.references import Finding, check_reference
from rewards.cli.rows import Problem, Progress, open_input, read_rows
from rewards.cli.streams import required_stdout
from rewards.explain.steps import counted

# Characters of 8,448 tokens, the length of a completion in the published setting.
DEFAULT_MAX_LENGTH = 34_000
# Lines that are listed of each kind.
_LISTED = 10


class _Kind:
    def __init__(self) -> None:
        self.count = 0
        self.lines: list[int] = []
        self.example = ""

    def add(self, number: int, finding: Finding) -> None:
        self.count += 1
        self.example = self.example or f"line {number}: {finding.detail}"
        if len(self.lines) < _LISTED:
            self.lines.append(number)


def check_file(source: str, config: RewardConfig, max_length: int) -> int:
    """Checks a file, prints the findings by kind, and returns the exit status: 1 if there is an error.

    Args:
        source: path, or `-` for stdin.
        config: with which references are scored against themselves.
        max_length: of a reference, in characters.

    Raises:
        UsageError: the file cannot be opened, or stdout is closed.
    """
    output = required_stdout()
    kinds: dict[tuple[bool, str], _Kind] = {}
    lines = clean = 0
    with open_input(source) as stream, Progress(source, stream, "checking") as progress:
        for row in read_rows(stream, ("task", "reference"), progress.advance):
            lines += 1
            if isinstance(row, Problem):
                progress.report(row)
                findings = [Finding(True, "malformed line", ": ".join(filter(None, (row.field, row.message))))]
            else:
                findings = check_reference(row.fields["task"], row.fields["reference"], config, max_length)
            clean += not findings
            for finding in findings:
                kinds.setdefault((finding.is_error, finding.kind), _Kind()).add(row.number, finding)
    for text in _report(kinds):
        print(text, file=output)
    print(f"{counted(lines, 'line')}, {clean} without a finding", file=output)
    print(f"{counted(lines, 'line')} checked in {progress.seconds:.1f} s", file=sys.stderr)
    return 1 if any(is_error for is_error, _ in kinds) else 0


def _report(kinds: dict[tuple[bool, str], _Kind]) -> Sequence[str]:
    """Errors first, the most frequent first; each with its first lines and an example."""
    report = []
    for (is_error, name), kind in sorted(kinds.items(), key=lambda item: (not item[0][0], -item[1].count, item[0][1])):
        more = ", ..." if kind.count > len(kind.lines) else ""
        report.append(f"{'error' if is_error else 'warning':8}{name}: {kind.count} ({_lines(kind.lines)}{more})")
        report.append(f"        {kind.example}")
    return report


def _lines(numbers: Sequence[int]) -> str:
    return f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
