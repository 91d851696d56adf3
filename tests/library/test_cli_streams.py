"""`python -m rewards`: closed standard streams, outputs that are the input, names of files, signals at the start."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_helpers import COMMAND, ROWS, TABLE, read, run, write

from rewards.cli.rows import read_rows
from rewards.cli.score import _batches

LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell in which `rewards` is the command line."""
    line = command.replace("rewards ", f"{shlex.join(COMMAND)} ", 1)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        ("rewards score in.jsonl -o out.jsonl >&-", 0, "4 lines scored in "),
        ("rewards score in.jsonl -o out.jsonl --workers 1 <&- >&- 2>&-", 0, ""),
        ("rewards score in.jsonl -o out.jsonl <&-", 0, "4 lines scored in "),
        ("rewards score in.jsonl -o - >&-", 2, "python -m rewards: error: cannot write stdout: it is closed\n"),
        ("rewards score - -o out.jsonl <&-", 2, "python -m rewards: error: cannot read stdin: it is closed\n"),
        ("rewards check in.jsonl >&-", 2, "python -m rewards: error: cannot write stdout: it is closed\n"),
        ("rewards check missing.jsonl 2>&-", 2, ""),
        ("rewards score missing.jsonl 2>&-", 2, ""),
        ("rewards check - <&-", 2, "python -m rewards: error: cannot read stdin: it is closed\n"),
        (
            "rewards explain --task text --prediction a --reference @- <&-",
            2,
            "python -m rewards: error: cannot read stdin: it is closed\n",
        ),
        (
            "rewards explain --task text --prediction a --reference b >&-",
            2,
            "python -m rewards: error: cannot write stdout: it is closed\n",
        ),
    ],
)
def test_closed_streams(tmp_path: Path, command: str, status: int, error: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES)
    finished = shell(command, tmp_path)
    assert finished.returncode == status
    assert finished.stderr.startswith(error) and (error or not finished.stderr)
    assert "Traceback" not in finished.stderr
    if status == 0:
        assert len(read(tmp_path / "out.jsonl")) == len(ROWS)
    assert {path.name for path in tmp_path.iterdir()} - {"out.jsonl"} == {"in.jsonl"}
    assert (tmp_path / "out.jsonl").exists() == (status == 0)


def test_problems_do_not_go_to_stdout_because_stderr_is_closed(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES + b"{\n")
    finished = shell("rewards score in.jsonl -o - 2>&-", tmp_path)
    assert finished.returncode == 1
    assert len([json.loads(line) for line in finished.stdout.splitlines()]) == len(ROWS)


@pytest.mark.parametrize(
    "command",
    [
        "rewards score b.jsonl -o - 1<>b.jsonl",
        "rewards score b.jsonl -o - >>b.jsonl",
        "rewards score - -o - <b.jsonl 1<>b.jsonl",
        "rewards score - -o b.jsonl <b.jsonl",
        "rewards score b.jsonl -o link.jsonl",
        "rewards score link.jsonl -o b.jsonl",
        "rewards score b.jsonl -o hard.jsonl",
    ],
)
def test_the_input_is_never_the_output(tmp_path: Path, command: str) -> None:
    (tmp_path / "b.jsonl").write_bytes(LINES)
    (tmp_path / "link.jsonl").symlink_to("b.jsonl")
    (tmp_path / "hard.jsonl").hardlink_to(tmp_path / "b.jsonl")
    finished = shell(command, tmp_path)
    assert finished.returncode == 2
    assert " is the input: malformed lines would be lost" in finished.stderr and finished.stderr.count("\n") == 1
    assert (tmp_path / "b.jsonl").read_bytes() == LINES
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs names for open files")
@pytest.mark.parametrize("command", ["-o /dev/stdout >>log", "-o /dev/fd/3 3>>log", "-o - >>log"])
def test_what_an_open_file_holds_is_kept(tmp_path: Path, command: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES)
    (tmp_path / "log").write_text('{"old": true}\n', encoding="ascii")
    number = (tmp_path / "log").stat().st_ino
    assert shell(f"rewards score in.jsonl {command}", tmp_path).returncode == 0
    lines = (tmp_path / "log").read_text(encoding="ascii").splitlines()
    assert lines[0] == '{"old": true}' and lines[1].startswith('{"task": "text", ')
    assert (tmp_path / "log").stat().st_ino == number


def test_input_and_output_may_be_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "score", os.devnull, "-o", os.devnull)[0] == 0


def test_no_file_beside_the_output_is_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "x.jsonl.partial", *ROWS)
    before = source.read_bytes()
    assert run(capsys, "score", source, "-o", tmp_path / "x.jsonl")[0] == 0
    assert source.read_bytes() == before and len(read(tmp_path / "x.jsonl")) == len(ROWS)
    other = write(tmp_path / "y.jsonl", {"kept": True})
    source.unlink()
    source.symlink_to(other)
    assert run(capsys, "score", tmp_path / "x.jsonl", "-o", tmp_path / "x.jsonl.new")[0] == 0
    assert run(capsys, "score", tmp_path / "x.jsonl.new", "-o", tmp_path / "x.jsonl")[0] == 0
    assert read(other) == [{"kept": True}] and source.is_symlink()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_failed_run_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    def fail(*arguments: object) -> None:
        assert len(list(tmp_path.iterdir())) == 2, "the unfinished file is there"
        raise OSError("no more of this")

    monkeypatch.setattr("rewards.cli.score.score", fail)
    source = write(tmp_path / "in.jsonl", *ROWS)
    assert run(capsys, "score", source, "-o", tmp_path / "out.jsonl")[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_output_has_the_permissions_of_any_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "score", write(tmp_path / "in.jsonl", *ROWS), "-o", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").stat().st_mode == (tmp_path / "in.jsonl").stat().st_mode


def test_long_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, long = write(tmp_path / "in.jsonl", *ROWS), tmp_path / ("n" * 250)
    assert run(capsys, "score", source, "-o", long)[0] == 0
    assert len(read(long)) == len(ROWS)
    too_long = tmp_path / ("n" * 300)
    for arguments in (["score", source, "-o", too_long], ["score", too_long, "-o", long], ["check", too_long]):
        status, out, err = run(capsys, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1) and "File name too long" in err
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    source = write(tmp_path / "in.jsonl", *ROWS)
    for arguments in (["score", source, "-o", loop], ["score", source, "-o", loop / "x"], ["score", loop, "-o", "x"]):
        status, out, err = run(capsys, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1) and "Too many levels of symbolic links" in err


def test_a_link_to_no_file_yet_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to("new.jsonl")
    assert run(capsys, "score", write(tmp_path / "in.jsonl", *ROWS), "-o", tmp_path / "link")[0] == 0
    assert len(read(tmp_path / "new.jsonl")) == len(ROWS)


@pytest.mark.parametrize("stage", ["rewards.cli.main", "rewards.explain", "tqdm"])
def test_ctrl_c_while_the_command_line_is_imported(tmp_path: Path, stage: str) -> None:
    program = (
        "import os, runpy, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(name, *rest):\n"
        f"        if name == {stage!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "import rewards\n"
        "sys.meta_path.insert(0, Interrupt)\n"
        "sys.argv = ['rewards', 'check', 'in.jsonl']\n"
        "runpy.run_module('rewards', run_name='__main__')\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (finished.returncode, finished.stdout) == (130, "")
    assert finished.stderr == "python -m rewards: error: interrupted\n"


def test_lines_that_are_held_at_once_are_few_where_they_are_long(tmp_path: Path) -> None:
    """Whatever makes them long."""
    lines = [{**ROWS[0], "image": "a" * 3_000_000}, *[ROWS[0]] * 600] * 2
    with write(tmp_path / "in.jsonl", *lines).open("rb") as stream:
        batches = list(_batches(read_rows(stream, ("task",), lambda size: None), pytest.fail, most=500))
    assert [len(batch) for batch in batches] == [500, 500, 202]
    with write(tmp_path / "in.jsonl", *[lines[0]] * 7).open("rb") as stream:
        batches = list(_batches(read_rows(stream, ("task",), lambda size: None), pytest.fail, most=500))
    assert [len(batch) for batch in batches] == [3, 3, 1]


def test_nothing_is_scored_in_the_command_where_there_are_workers(tmp_path: Path, capsys, monkeypatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("scored in the parent")

    monkeypatch.setattr("rewards.cli.score.score", fail)
    source = write(tmp_path / "in.jsonl", *ROWS, {"task": "table", "prediction": TABLE, "reference": "none"})
    status, _, err = run(capsys, "score", source, "-o", tmp_path / "out.jsonl", "--workers", 1)
    assert status == 1 and f"{source}:5: reference: holds no table with a cell: 'none'" in err
    assert [row["reward"] is not None for row in read(tmp_path / "out.jsonl")] == [True] * 4


def test_a_killed_run_leaves_an_unfinished_file_that_nothing_reads(tmp_path: Path) -> None:
    target = write(tmp_path / "out.jsonl", {"old": True})
    process = subprocess.Popen([*COMMAND, "score", "-", "-o", str(target)], stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        limit = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < limit:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        process.stdin.close()
    finally:
        process.kill()
        process.wait()
    (left,) = (path for path in tmp_path.iterdir() if path != target)
    assert left.name.startswith(".rewards-") and left.suffix == ".partial" and read(target) == [{"old": True}]
