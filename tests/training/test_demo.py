"""The demo's verdict and the page of a run."""

import copy
import json
import subprocess
import sys
import time

import psutil
import pytest

from gravity_rl import demo
from gravity_rl.demo import FULL, SHORT, main, shortfalls, training_command
from gravity_rl.report import main as report_main
from gravity_rl.report import reward_curves


def results(**rewards):
    """Held-out results with the given reward for ``decoding_task``; everything else is 0.5."""
    made = {d: {t: {"reward": 0.5, "crops": 10} for t in ("table", "text", "all")} for d in ("sampled", "greedy")}
    for name, reward in rewards.items():
        decoding, task = name.split("_")
        made[decoding][task]["reward"] = reward
    return made


GOOD = {"sampled_all": 0.7, "greedy_all": 0.55, "sampled_table": 0.8, "greedy_table": 0.6}


def test_a_run_that_improved_has_no_shortfall():
    assert shortfalls(results(), results(**GOOD), FULL) == []


@pytest.mark.parametrize(
    ("name", "reward", "words"),
    [
        ("sampled_all", 0.59, "sampled reward (all) changed by +0.090, wanted at least +0.10"),
        ("greedy_all", 0.5, "greedy reward (all) changed by +0.000, wanted a rise"),
        ("greedy_table", 0.49, "greedy reward (table) changed by -0.010, wanted a rise"),
        ("sampled_table", 0.4, "sampled reward (table) changed by -0.100, wanted a rise"),
    ],
)
def test_each_missing_rise_is_named(name, reward, words):
    assert shortfalls(results(), results(**{**GOOD, name: reward}), FULL) == [words]


def test_the_short_demo_does_not_ask_for_the_greedy_reward():
    after = results(sampled_all=0.6, sampled_table=0.6, greedy_all=0.4)
    assert shortfalls(results(), after, SHORT) == []
    assert len(shortfalls(results(), results(greedy_all=0.9), SHORT)) == 2


def test_a_result_that_is_not_a_number_is_a_shortfall():
    after = copy.deepcopy(results(**GOOD))
    after["greedy"]["all"]["reward"] = float("nan")
    assert len(shortfalls(results(), after, FULL)) == 1


def test_the_short_demo_runs_the_same_command_with_other_numbers(tmp_path):
    full, short = (
        training_command(tmp_path, tmp_path / "t.jsonl", tmp_path / "h.jsonl", size, seed=0) for size in (FULL, SHORT)
    )
    differing = {full[i - 1] for i in range(len(full)) if full[i] != short[i]}
    assert differing == {"--max_steps"}


def test_a_folder_that_the_demo_did_not_write_is_left_alone(tmp_path, capsys):
    precious = tmp_path / "thesis.tex"
    precious.write_text("…", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path)])
    assert precious.is_file()
    assert "was not written by the demo" in capsys.readouterr().err


def test_curves_are_drawn_for_every_task_that_was_logged():
    metrics = [{"step": step, "rewards/table/mean": 0.1 * step} for step in range(1, 6)]
    metrics[2]["rewards/text/mean"] = 0.9
    drawing = reward_curves(metrics)
    assert drawing.startswith("<svg")
    assert drawing.rstrip().endswith("</svg>")
    assert "http://www.w3.org/2000/svg" in drawing
    assert reward_curves([{"step": 1}]).startswith("<svg")


def test_ending_the_demo_ends_the_trainer_below_the_launcher(tmp_path):
    """SIGTERM to the demo: the launcher's child, which no signal reaches by itself, is gone too."""
    pid_file = tmp_path / "trainer.pid"
    trainer = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {trainer!r}])"
    program = (
        f"import sys; from gravity_rl.demo import run_to_the_end; run_to_the_end([sys.executable, '-c', {launcher!r}])"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        deadline = time.monotonic() + 60
        while not (pid_file.is_file() and pid_file.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        started = psutil.Process(int(pid_file.read_text()))
        process.terminate()
        assert process.wait() == 143
    psutil.wait_procs([started], timeout=10)
    assert not started.is_running() or started.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_report_of_a_run_that_lacks_something_is_one_line(tmp_path, capsys, text):
    (tmp_path / "evaluation").mkdir()
    if text is not None:
        (tmp_path / "evaluation" / "before.json").write_text(text, encoding="utf-8")
    assert report_main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(tmp_path) in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("rewards", "control", "status", "words"),
    [
        (GOOD, False, 0, "The model improved: sampled +0.200, greedy +0.050."),
        ({**GOOD, "greedy_table": 0.4}, False, 1, "FAILED: the model did not improve as it should:"),
        ({}, True, 0, "Control with shuffled rewards: sampled reward changed by +0.000."),
        (GOOD, True, 1, "FAILED: rewards that say nothing must not improve the model."),
    ],
)
def test_the_verdict_is_said_and_returned(tmp_path, monkeypatch, capsys, rewards, control, status, words):
    (tmp_path / "evaluation").mkdir()
    for name, result in (("before", results()), ("after", results(**rewards))):
        (tmp_path / "evaluation" / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    monkeypatch.setattr(demo, "write_report", lambda run: run / "report.html")
    assert demo.verdict(tmp_path, FULL, control=control) == status
    printed = capsys.readouterr()
    assert words in printed.out + printed.err
    assert str(tmp_path) in printed.out
