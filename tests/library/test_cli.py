"""`python -m rewards score`: output, summary, malformed input, workers, interruption, exit statuses."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_helpers import COMMAND, ROWS, read, run, write

from rewards import RewardConfig, score
from rewards.cli.main import main
from rewards.cli.rows import MAX_LINE_BYTES
from rewards.workers import PoolError


def test_score_adds_reward_and_parts_and_keeps_the_rest(tmp_path, capsys) -> None:
    source, target = write(tmp_path / "in.jsonl", *ROWS), tmp_path / "out.jsonl"
    status, out, err = run(capsys, "score", source, "-o", target)
    assert status == 0
    for row, scored in zip(ROWS, read(target), strict=True):
        expected = score(row["task"], row["prediction"], row["reference"])
        assert scored == {**row, "reward": expected.value, "parts": expected.parts}
    assert out.splitlines()[0].split() == ["text", "table", "formula"]
    assert [line.split() for line in out.splitlines()[1:3]] == [["lines", *"211"], ["gate", "below", "1", *"000"]]
    assert err.startswith("4 lines scored in ") and err.endswith(" s, 0 malformed\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_the_summary_has_quartiles_means_and_gated_lines(tmp_path, capsys) -> None:
    texts = [("abcd"[:kept].ljust(4, "x"), "abcd") for kept in (0, 1, 2, 3, 4)] + [("." * 220, ".")]
    rows = [{"task": "text", "prediction": prediction, "reference": wanted} for prediction, wanted in texts]
    _, out, _ = run(capsys, "score", write(tmp_path / "in.jsonl", *rows), "-o", tmp_path / "out.jsonl")
    table = {line[:-9].strip(): line[-9:].strip() for line in out.splitlines()}
    assert table["lines"] == "6" and table["gate below 1"] == "1" and table["mean reward"] == "0.417"
    quantiles = [table[name] for name in ("min", "25%", "median", "75%", "max")]
    assert quantiles == ["0.000", "0.000", "0.250", "0.750", "1.000"]
    assert table["mean ned"] == "0.583"


def test_a_scored_file_can_be_scored_again(tmp_path, capsys) -> None:
    first, second, third = (tmp_path / name for name in ("1.jsonl", "2.jsonl", "3.jsonl"))
    write(first, *ROWS)
    run(capsys, "score", first, "-o", second, "--set", "violation_factor=0.9")
    run(capsys, "score", second, "-o", third)
    run(capsys, "score", first, "-o", second)
    assert third.read_bytes() == second.read_bytes()


MALFORMED = {
    b'{"task": "text"': "not JSON: Expecting ',' delimiter at character 17",
    b"[1]": "not a JSON object: a list",
    b'"a"': "not a JSON object: a string",
    b'{"task": "text", "prediction": "a"}': "reference: missing",
    b'{"task": "text", "prediction": 3, "reference": "a"}': "prediction: must be a string, not a number",
    b'{"task": "text", "prediction": null, "reference": "a"}': "prediction: must be a string, not null",
    b'{"task": "text", "prediction": ["a"], "reference": "a"}': "prediction: must be a string, not a list",
    b'{"task": "chart", "prediction": "a", "reference": "a"}': "task: must be one of text, table, formula: 'chart'",
    b'{"task": "table", "prediction": "a", "reference": "a"}': "reference: holds no table with a cell: 'a'",
    b'{"task": "formula", "prediction": "a", "reference": "$$"}': "reference: holds no formula: '$$'",
    b'{"task": "text", "prediction": "a", "reference": "a", "x": NaN}': "not JSON: NaN",
    b'{"task": "text", "prediction": "a", "reference": "a", "x": 1e999}': "not JSON: the number 1e999 is too large",
    b'{"task": "text", "prediction": "a", "prediction": "b", "reference": "a"}': "prediction: occurs twice",
    b'{"task": "text", "prediction": "a", "reference": "a", "x": {"k": 1, "k": 1}}': "k: occurs twice",
    b'{"task": "text", "prediction": "\xff", "reference": "a"}': "not UTF-8: byte 33 of the line",
    b'{"x": ' + b"9" * 5000 + b"}": "not JSON: a number of 5000 digits",
    b"[" * 100_000: "nested too deeply",
    b"null": "not a JSON object: null",
    b"\xef\xbb\xbf{}": "not JSON: Unexpected UTF-8 BOM (decode using utf-8-sig) at character 1",
    b"\x00": "not JSON: Expecting value at character 1",
}


@pytest.mark.parametrize("workers", [0, 1])
def test_malformed_lines_are_reported_and_the_rest_is_scored(tmp_path, capsys, workers: int) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, ROWS[0], *MALFORMED, b"", ROWS[1])
    status, _, err = run(capsys, "score", source, "-o", target, "--workers", workers)
    assert status == 1
    assert [row["id"] for row in read(target)] == [7, 8]
    expected = [f"{source}:{number}: {message}" for number, message in enumerate(MALFORMED.values(), 2)]
    assert sorted(err.splitlines()[:-1]) == sorted(expected)
    assert err.splitlines()[-1].endswith(f", {len(MALFORMED)} malformed")


def test_of_many_malformed_lines_the_first_are_printed(tmp_path, capsys) -> None:
    source = write(tmp_path / "in.jsonl", *[b"x"] * 500, ROWS[0])
    status, _, err = run(capsys, "score", source, "-o", tmp_path / "out.jsonl")
    lines = err.splitlines()
    assert status == 1 and len(lines) == 22
    assert lines[20] == "further malformed lines are only counted"
    assert lines[21].startswith("1 line scored in ") and lines[21].endswith(", 500 malformed")


def test_an_object_that_can_be_read_but_not_written_is_malformed(tmp_path, capsys) -> None:
    start = b'{"task":"text","prediction":"a","reference":"a","x":'
    deep = [start + b"[" * depth + b"]" * depth + b"}" for depth in range(700, 1000)]
    source, target = write(tmp_path / "in.jsonl", *deep, ROWS[0]), tmp_path / "out.jsonl"
    status, _, err = run(capsys, "score", source, "-o", target)
    assert status == 1 and "nested too deeply" in err
    assert read(target)[-1]["id"] == 7


def test_a_huge_line_is_skipped(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("rewards.cli.rows.MAX_LINE_BYTES", 300)
    lines = [{"task": "text", "prediction": "a" * size, "reference": "a"} for size in (10, 900, 5)]
    source, target = write(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    status, _, err = run(capsys, "score", source, "-o", target)
    assert status == 1 and f"{source}:2: longer than 300 bytes (9" in err
    assert [len(row["prediction"]) for row in read(target)] == [10, 5]
    assert MAX_LINE_BYTES >= 1 << 20


def test_a_byte_order_mark_and_a_missing_last_line_break_are_fine(tmp_path, capsys) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode())
    assert run(capsys, "score", source, "-o", target)[0] == 0
    assert len(read(target)) == 1
    for alone in (b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"):
        source.write_bytes(alone)
        assert run(capsys, "score", source, "-o", target)[:2] == (0, "no lines scored\n")


def test_an_empty_file_is_scored(tmp_path, capsys) -> None:
    status, out, _ = run(capsys, "score", write(tmp_path / "in.jsonl"), "-o", tmp_path / "out.jsonl")
    assert (status, out) == (0, "no lines scored\n")
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_profiles_and_constants_are_used(tmp_path, capsys) -> None:
    source, target = write(tmp_path / "in.jsonl", *ROWS), tmp_path / "out.jsonl"
    for options, config in (
        (["--profile", "robust"], RewardConfig(profile="robust")),
        (["--set", "violation_factor=0.5", "--set", "gate_ngram=4"], RewardConfig(violation_factor=0.5, gate_ngram=4)),
    ):
        run(capsys, "score", source, "-o", target, *options)
        values = [score(row["task"], row["prediction"], row["reference"], config).value for row in ROWS]
        assert [row["reward"] for row in read(target)] == values


def test_workers_give_the_same_file(tmp_path, capsys) -> None:
    source = write(tmp_path / "in.jsonl", *ROWS * 200)
    alone, together = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    run(capsys, "score", source, "-o", alone)
    status, _, _ = run(capsys, "score", source, "-o", together, "--workers", 2, "--timeout", 20)
    assert status == 0 and together.read_bytes() == alone.read_bytes()


def test_a_line_over_its_deadline_has_no_reward(tmp_path, capsys, monkeypatch) -> None:
    class LatePool:
        def __init__(self, workers: int, timeout_s: float, config: RewardConfig) -> None:
            assert (workers, timeout_s) == (3, 0.5)

        def __enter__(self):
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def outcomes(self, task, predictions, references):
            rows = zip(task, predictions, references, strict=True)
            return [None if row[0] == "text" else score(*row) for row in rows]

    monkeypatch.setattr("rewards.cli.score.RewardPool", LatePool)
    source, target = write(tmp_path / "in.jsonl", *ROWS), tmp_path / "out.jsonl"
    status, out, _ = run(capsys, "score", source, "-o", target, "--workers", 3, "--timeout", 0.5)
    assert status == 0
    assert [row["reward"] is None for row in read(target)] == [True, False, False, True]
    assert read(target)[0]["parts"] is None
    assert "over the deadline         2         0         0" in out


def test_stdin_and_stdout(tmp_path) -> None:
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
    command = [*COMMAND, "score", "-", "-o", "-"]
    finished = subprocess.run(command, input=lines + b"{\n", capture_output=True, timeout=60, check=False)
    assert finished.returncode == 1
    assert [json.loads(line)["id"] for line in finished.stdout.splitlines()] == [row["id"] for row in ROWS]
    assert b"stdin:5: not JSON" in finished.stderr and b"mean reward" in finished.stderr


def feed(process: subprocess.Popen[bytes]) -> None:
    """Writes rows until some have been scored."""
    assert process.stdin is not None
    process.stdin.write(b"".join(json.dumps(row).encode() + b"\n" for row in ROWS * 500))
    process.stdin.flush()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_interrupted_run_leaves_nothing(tmp_path, number: signal.Signals, status: int, workers: str) -> None:
    target = write(tmp_path / "out.jsonl", {"old": True})
    command = [*COMMAND, "score", "-", "-o", str(target), "--workers", workers]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        feed(process)
        limit = time.monotonic() + 60
        while not any(path.stat().st_size for path in tmp_path.glob(".*.partial")) and time.monotonic() < limit:
            time.sleep(0.05)
        assert any(tmp_path.glob(".*.partial"))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status
    assert out == b"" and b"Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"] and read(target) == [{"old": True}]


def test_a_reader_that_goes_away_is_quiet(tmp_path) -> None:
    source = write(tmp_path / "in.jsonl", *ROWS * 1000)
    command = [*COMMAND, "score", str(source), "-o", "-"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_workers_that_do_not_start_are_one_line(tmp_path, capsys, monkeypatch) -> None:
    def fail(*arguments: object) -> None:
        raise PoolError("no worker comes up")

    monkeypatch.setattr("rewards.cli.score.RewardPool", fail)
    source = write(tmp_path / "in.jsonl", *ROWS)
    status, out, err = run(capsys, "score", source, "-o", tmp_path / "out.jsonl", "--workers", 1)
    assert (status, out, err) == (1, "", "python -m rewards: error: no worker comes up\n")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_one_line(tmp_path, capsys) -> None:
    status, out, err = run(capsys, "score", write(tmp_path / "in.jsonl", *ROWS), "-o", "/dev/full")
    assert (status, out, err.count("\n")) == (1, "", 1) and "No space left" in err


def test_a_device_is_written_directly(tmp_path, capsys) -> None:
    assert run(capsys, "score", write(tmp_path / "in.jsonl", *ROWS), "-o", os.devnull)[0] == 0
    assert not Path(os.devnull).is_file()


def test_a_link_keeps_pointing_to_its_file(tmp_path, capsys) -> None:
    source, link = write(tmp_path / "in.jsonl", *ROWS), tmp_path / "link.jsonl"
    link.symlink_to("real.jsonl")
    run(capsys, "score", source, "-o", link)
    assert link.is_symlink() and len(read(tmp_path / "real.jsonl")) == len(ROWS)


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_terminal_has_a_progress_bar(tmp_path, monkeypatch, source: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    path = write(tmp_path / "in.jsonl", *ROWS)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    main(["score", str(path) if source == "file" else "-", "-o", str(tmp_path / "out.jsonl")])
    shown = terminal.getvalue()
    assert ("scoring:   0%|" if source == "file" else "scoring: 0 lines [") in shown
    assert "4 lines scored in " in shown.split("\r")[-1]
