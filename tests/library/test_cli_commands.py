"""`python -m rewards`: usage errors, help, and the commands `check` and `explain`."""

from __future__ import annotations

import os
import subprocess

import pytest
from cli_helpers import COMMAND, ROWS, TABLE, run, write

from rewards.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "missing.jsonl", "-o", "x"], "cannot read missing.jsonl: No such file or directory"),
        (["score", ".", "-o", "x"], "cannot read .: Is a directory"),
        (["score", "in.jsonl", "-o", "missing/x"], "cannot write missing/x: there is no folder "),
        (["score", "in.jsonl", "-o", "."], "cannot write .: Is a directory"),
        (["score", "in.jsonl", "-o", "./in.jsonl"], "./in.jsonl is the input: malformed lines would be lost"),
        (["score", "in.jsonl", "-o", "x", "--timeout", "1"], "--timeout needs --workers"),
        (["score", "in.jsonl", "-o", "x", "--workers", "1", "--timeout", "nan"], "--timeout must be above 0 seconds"),
        (["score", "in.jsonl", "-o", "x", "--workers", "-1"], "--workers must be at least 0: -1"),
        (["score", "in.jsonl", "-o", "x", "--set", "a=1"], "--set: there is no constant 'a'. There are teds_weight, "),
        (["score", "in.jsonl", "-o", "x", "--set", "profile=robust"], "--set: there is no constant 'profile'"),
        (["score", "in.jsonl", "-o", "x", "--set", "a"], "--set takes NAME=VALUE, not 'a'"),
        (["check", "in.jsonl", "--set", "gate_ngram=2.5"], "--set: gate_ngram must be an integer: '2.5'"),
        (
            ["check", "in.jsonl", "--set", "gate_run_free=" + "9" * 400],
            "--set: gate_run_free must be at most 1000000000",
        ),
        (["check", "in.jsonl", "--set", "gate_run_free=" + "9" * 5000], "--set: gate_run_free must be an integer: '99"),
        (["check", "in.jsonl", "--set", "teds_weight=x"], "--set: teds_weight must be a number: 'x'"),
        (["check", "in.jsonl", "--set", "teds_weight=2"], "--set: teds_weight must be between 0.0 and 1.0: 2.0"),
        (["check", "in.jsonl", *["--set", "teds_weight=1"] * 2], "--set: teds_weight is set twice"),
        (["check", "missing.jsonl"], "cannot read missing.jsonl: No such file or directory"),
        (["check", "in.jsonl", "--max-length", "0"], "--max-length must be at least 1: 0"),
        (["explain", "--task", "text", "--prediction", "a", "--reference", "@missing"], "cannot read missing: No such"),
        (["explain", "--task", "text", "--prediction", "a", "--reference", "@latin"], "latin is not UTF-8: byte 1"),
        (
            ["explain", "--task", "table", "--prediction", "a", "--reference", "b"],
            "reference holds no table with a cell",
        ),
        (["explain", "--task", "text", "--prediction", "@-", "--reference", "@-"], "only one of --prediction and"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path, capsys, monkeypatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", *ROWS)
    (tmp_path / "latin").write_bytes(b"a\xe9")
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"python -m rewards: error: {message}") and err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "latin"]


@pytest.mark.parametrize("arguments", [[], ["guess"], ["score"], ["check"], ["check", "x", "--profile", "other"]])
def test_usage_errors_end_with_2(capsys, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and "usage: python -m rewards" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["score", "--help"], ["check", "--help"], ["explain", "--help"]])
def test_help_names_the_options(capsys, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(word in shown for word in (("--profile", "--set") if len(arguments) > 1 else ("score", "explain")))


def test_check_reports_by_kind(tmp_path, capsys) -> None:
    good = {"task": "text", "reference": "fine"}
    bad = [{"task": "formula", "reference": "\tau"}] * 12 + [{"task": "table", "reference": "none"}]
    source = write(tmp_path / "data.jsonl", good, *bad, {"task": "text"}, b"{")
    status, out, err = run(capsys, "check", source)
    assert status == 1
    assert out.splitlines() == [
        "error   malformed line: 2 (lines 15, 16)",
        "        line 15: reference: missing",
        "error   refused by the reward: 1 (line 14)",
        "        line 14: holds no table with a cell: 'none'",
        "warning lost backslash: 12 (lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...)",
        "        line 2: U+0009 before 'au' at character 1, probably \\tau",
        "16 lines, 1 without a finding",
    ]
    assert f"{source}:15: reference: missing" in err


def test_warnings_alone_end_with_0(tmp_path, capsys) -> None:
    source = write(tmp_path / "data.jsonl", {"task": "text", "reference": "a" * 30}, {"task": "text", "reference": "b"})
    status, out, _ = run(capsys, "check", source, "--max-length", 20)
    assert status == 0 and "longer than the limit: 1 (line 1)" in out
    status, out, _ = run(capsys, "check", source, "--profile", "robust")
    assert (status, out) == (0, "2 lines, 2 without a finding\n")


def test_explain_reads_files_and_values(tmp_path) -> None:
    (tmp_path / "p.html").write_text(TABLE.replace("12", "13"), encoding="utf-8")
    command = [*COMMAND, "explain", "--task", "table", "--prediction", f"@{tmp_path / 'p.html'}", "--reference", "@-"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    finished = subprocess.run(
        command, input=TABLE.encode(), capture_output=True, timeout=60, check=True, env=environment
    )
    assert finished.stdout.startswith(b"table, published profile: reward 0.9691\n")
    command = [*COMMAND, "explain", "--task", "text", "--prediction=-é", "--reference", "漢", "--profile", "robust"]
    finished = subprocess.run(command, capture_output=True, timeout=60, check=True, env=environment)
    assert finished.stdout.startswith(b"text, robust profile: reward 0.0000\n") and b"\\u6f22" in finished.stdout
