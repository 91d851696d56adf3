"""The pool: results, deadlines, deaths, errors, threads, and that no process outlives it in whatever way it ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import pytest

from rewards import RewardConfig, Score, score
from rewards.types import ROBUST
from rewards.workers import PoolError, RewardPool
from rewards.workers import link as worker_link
from rewards.workers.process import encode
from rewards.workers.queue import Batch, WorkQueue

TABLE = "<table><tr><td>{}</td><td>b</td></tr></table>"
PAIR = "\ud83d\ude00"  # two lone surrogates, which are not the one character that they would encode
HANG_S = 60.0  # until something that should have happened is given up, on a busy machine


def obeying(workers: int, timeout_s: float = 600.0, **options: object) -> RewardPool:
    return RewardPool(workers, timeout_s, scorer="pool_scorers:obey", **options)  # type: ignore[arg-type]


def run(pool: RewardPool, *predictions: str, reference: str = "r") -> list:
    return pool.score_batch(["text"] * len(predictions), predictions, [reference] * len(predictions))


def both_pids(pool: RewardPool) -> set[int]:
    """The processes of a pool of two."""
    pids: set[int] = set()
    while len(pids) < 2:
        pids |= {scored.parts["pid"] for scored in run(pool, *[f"sleep 0.0{n}" for n in range(10, 20)])}
    return pids


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_for(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="module")
def pool() -> RewardPool:
    with obeying(2) as shared:
        yield shared


# --- results ---


@pytest.mark.parametrize("config", [RewardConfig(gate_run_free=2), ROBUST], ids=["published", "robust"])
def test_same_scores_as_in_this_process_in_order(config: RewardConfig) -> None:
    samples = [("text", f"word{n % 7} {PAIR[: n % 3]}\0\n\u2028", f"word{n % 5} {PAIR}") for n in range(40)]
    samples += [("table", TABLE.format(n % 6), TABLE.format(n % 4)) for n in range(40)]
    samples += [("formula", rf"\frac{{{n % 9}}}{{x}}" + "}" * (n % 2), r"\frac{1}{x}") for n in range(40)]
    samples = [samples[(n * 7) % len(samples)] for n in range(len(samples))]
    with RewardPool(2, 60.0, config) as pool:
        assert pool.score_batch(*zip(*samples, strict=True)) == [score(*sample, config) for sample in samples]
        assert pool.score_batch([], [], []) == []
        assert (pool.timeouts, pool.deaths) == (0, 0)


def test_equal_samples_are_scored_once() -> None:
    with obeying(1) as pool:
        scores = pool.score_batch(["text", "table", "text"] * 4, ["same"] * 12, ["r"] * 12)
    assert sorted({scored.parts["calls"] for scored in scores}) == [1, 2]
    assert scores[0] == scores[2] != scores[1]


def test_scoring_function_may_print(pool: RewardPool) -> None:
    assert all(run(pool, *["print"] * 3))


def test_several_threads_at_once(pool: RewardPool) -> None:
    def score_some(name: int) -> None:
        tasks, predictions = [f"task {name}"] * 40, [f"{name} {n % 20}" for n in range(40)]
        found[name] = pool.score_batch(tasks, predictions, [str(n % 3) for n in range(40)])

    found: dict[int, list] = {}
    threads = [threading.Thread(target=score_some, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert [len(found[name]) for name in range(4)] == [40] * 4
    assert all(scored is not None for scores in found.values() for scored in scores)


def test_all_workers_work(pool: RewardPool) -> None:
    pids = Counter(scored.parts["pid"] for scored in run(pool, *[f"sleep 0.0{n}" for n in range(10, 40)]))
    assert len(pids) == 2, "one group, and the worker without one helps"
    assert min(pids.values()) >= 5


def test_groups_stay_with_a_worker_and_chunks_shrink() -> None:
    queue, references = WorkQueue(2), [str(n) * (n + 1) for n in range(4)]
    samples = [("text", f"{n:02}", reference) for reference in references for n in range(20)]
    batch = Batch(*zip(*samples, strict=True))
    thread = threading.Thread(target=queue.run, args=(batch,))
    thread.start()
    taken: list[tuple[int, str, int]] = []
    while batch.left:
        worker = len(taken) % 2
        group, chunk = queue.take(worker)
        taken.append((worker, group.reference, len(chunk)))
        for sample in chunk:
            queue.set_answer(group, sample, ["score", float(sample.places[0]), {}])
    thread.join(HANG_S)
    assert [scored.value for scored in batch.outcomes] == list(range(80))
    sizes = [size for _, _, size in taken]
    assert sizes[:2] == [8, 8] and sizes[-8:] == [1] * 8
    firsts = {reference: worker for worker, reference, _ in reversed(taken)}
    assert [reference for _, reference, _ in taken[:2]] == [references[3], references[2]], "the longest first"
    strayed = sum(firsts[reference] != worker for worker, reference, _ in taken)
    assert strayed <= 2, "only at the end does a worker help with the other's group"


def test_many_references_take_no_longer_each() -> None:
    def seconds_for(count: int) -> float:
        start = time.process_time()
        texts = [str(n) for n in range(count)]
        batch = Batch(["text"] * count, texts, texts)
        queue = WorkQueue(2)
        thread = threading.Thread(target=queue.run, args=(batch,))
        thread.start()
        while batch.left:
            group, chunk = queue.take(batch.left % 2)
            for sample in chunk:
                queue.set_answer(group, sample, ["score", 1.0, {}])
        thread.join(HANG_S)
        return time.process_time() - start

    assert seconds_for(16_000) < 30 * seconds_for(2_000) + 0.1, "8 times as many"


def test_put_back_samples_are_taken_again_and_the_largest_group_is_helped_with() -> None:
    batch = Batch(["text"] * 12, [str(n) for n in range(12)], ["a"] * 8 + ["b" * 9] * 4)
    large, first = batch.take(0, 1)
    assert (large.reference, len(first)) == ("b" * 9, 3)
    batch.put_back(large, deque(first))
    small, _ = batch.take(1, 1)
    helped, second = batch.take(2, 1)
    assert (small.reference, helped, second) == ("a", large, first[: len(second)])


# --- deadlines ---


def test_sample_over_its_deadline_has_no_score_and_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "run" / "slow.jsonl"
    with obeying(2, 0.5, slow_samples=file) as pool:
        scores = run(pool, "a", "sleep 600", "b", "sleep 599", "sleep 600", f"hang {tmp_path / 'pid'}", PAIR)
        assert [scored is None for scored in scores] == [False, True, False, True, True, True, False]
        assert (pool.timeouts, pool.deaths) == (4, 0)
        assert all(run(pool, "a", "b", "c"))
    saved = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    assert {row["prediction"] for row in saved} == {"sleep 600", "sleep 599", f"hang {tmp_path / 'pid'}"}
    for row in saved:
        assert (row["task"], row["reference"], row["outcome"]) == ("text", "r", "timeout")
        assert row["seconds"] >= 0.5


def test_a_saved_sample_may_be_any_string(tmp_path: Path) -> None:
    with obeying(1, 0.2, slow_samples=tmp_path / "slow.jsonl") as pool:
        assert pool.score_batch(["text"], ["sleep 600"], ["\udc80\0"]) == [None]
    assert json.loads((tmp_path / "slow.jsonl").read_bytes())["reference"] == "\udc80\0"


def test_waiting_does_not_count() -> None:
    with obeying(1, 0.5) as pool:
        scores = run(pool, *[f"sleep 0.08{n:02}" for n in range(32)])
    assert None not in scores, "each takes less than the deadline, and a chunk of 8 more"


def test_slow_samples_are_no_reason_to_stop() -> None:
    with obeying(2, 0.5) as pool:
        scores = run(pool, *[f"sleep 60{n}" if n % 4 == 0 else f"{n}" for n in range(24)])
    assert [scored is None for scored in scores] == [n % 4 == 0 for n in range(24)]
    assert pool.timeouts == 6


def test_the_file_of_slow_samples_may_be_a_string(tmp_path: Path) -> None:
    with obeying(1, 0.2, slow_samples=str(tmp_path / "slow.jsonl")) as pool:
        assert run(pool, "sleep 600", "a")[0] is None
    assert (tmp_path / "slow.jsonl").exists()
    with pytest.raises(TypeError):
        obeying(1, slow_samples=3)


@pytest.mark.parametrize("seconds", [3e6, 1e300, 10**400])
def test_a_deadline_may_be_far_away(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "_LONGEST_POLL_S", 0.01)
    with obeying(1, seconds) as pool:
        assert all(run(pool, "a", "sleep 0.1"))
    monkeypatch.undo()
    with obeying(1, seconds) as pool:
        assert all(run(pool, "a"))


def test_samples_that_cannot_be_saved_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with obeying(1, 0.2, slow_samples=tmp_path / "file" / "slow.jsonl") as pool, pytest.raises(PoolError, match="file"):
        run(pool, "sleep 600")


# --- deaths ---


def test_sample_whose_worker_dies_is_tried_once_more(tmp_path: Path) -> None:
    with obeying(2, slow_samples=tmp_path / "slow.jsonl") as pool:
        scores = run(pool, "a", f"die-once {tmp_path / 'mark'}", "b", "die", "c")
        assert [scored is None for scored in scores] == [False, False, False, True, False]
        assert (pool.timeouts, pool.deaths) == (0, 1)
        assert all(run(pool, "a", "b", "c"))
    saved = json.loads((tmp_path / "slow.jsonl").read_text(encoding="ascii"))
    assert (saved["prediction"], saved["outcome"]) == ("die", "death")


def test_no_memory_is_a_death_and_too_deep_a_recursion_an_error() -> None:
    with obeying(1) as pool:
        assert [scored is None for scored in run(pool, "a", "memory", "b")] == [False, True, False]
        assert pool.deaths == 1
        with pytest.raises(RuntimeError, match=r"^sample 1: RecursionError: "):
            run(pool, "a", "recursion")
        assert pool.deaths == 1


def test_a_worker_is_replaced_wherever_the_process_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, gone, elsewhere = (tmp_path / name for name in ("here", "gone", "elsewhere"))
    for folder in (here, gone, elsewhere):
        folder.mkdir()
    (here / "local_scorer.py").write_text("from pool_scorers import obey\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", ["", "no such hook", *sys.path])
    monkeypatch.chdir(here)
    with RewardPool(1, 60.0, scorer="local_scorer:obey") as pool:
        for folder in (elsewhere, gone):
            monkeypatch.chdir(folder)
            if folder is gone:
                gone.rmdir()
            assert [scored is None for scored in run(pool, "die", "a")] == [True, False]
        with obeying(1) as second:
            assert all(run(second, "a"))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_does_not_hold_up_the_replacement_of_a_worker() -> None:
    with obeying(1) as pool:
        for _ in range(8):
            assert run(pool, "die") == [None]
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            ended = threading.Timer(HANG_S, os.kill, (child, signal.SIGKILL))
            ended.start()
            try:
                assert all(run(pool, "a"))
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "the pool did not wait for the child"
            finally:
                ended.cancel()
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def test_worker_that_dies_between_batches_costs_no_sample_a_try(tmp_path: Path) -> None:
    with obeying(1) as pool:
        pid = run(pool, "a")[0].parts["pid"]
        os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: not is_running(pid))
        assert run(pool, f"die-once {tmp_path / 'mark'}")[0].parts["pid"] != pid
        assert pool.deaths == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_leave_signals_to_the_pool(pool: RewardPool, number: signal.Signals) -> None:
    pid = run(pool, "a")[0].parts["pid"]
    os.kill(pid, number)
    assert all(run(pool, *[f"sleep 0.0{n}" for n in range(10, 20)]))
    assert is_running(pid)


# --- errors ---


@pytest.mark.parametrize(
    ("prediction", "error", "message"),
    [
        ("raise TypeError", TypeError, "sample 2: no good"),
        ("raise ValueError", ValueError, "sample 2: no good"),
        ("raise KeyError", RuntimeError, "sample 2: KeyError: 'no good'"),
        ("none", TypeError, "sample 2: the scoring function returned NoneType instead of rewards.Score"),
        ("parts", TypeError, "sample 2: the scoring function returned {1} as set, which is no finite number"),
    ],
)
def test_error_of_the_scoring_function(pool: RewardPool, prediction: str, error: type[Exception], message: str) -> None:
    before = both_pids(pool)
    with pytest.raises(error) as caught:
        run(pool, "a", "b", prediction, "c", "raise ValueError", prediction)
    assert str(caught.value) == message
    assert "in obey" in "".join(caught.value.__notes__) or prediction in ("none", "parts")
    assert both_pids(pool) == before


def test_outcomes_have_errors_in_their_places(pool: RewardPool) -> None:
    predictions = ["raise ValueError", "a", "die", "raise ValueError", "raise KeyError"]
    found = pool.outcomes(["text"] * 5, predictions, ["r"] * 5)
    assert [type(outcome) for outcome in found] == [ValueError, Score, type(None), ValueError, RuntimeError]
    assert str(found[0]) == "no good" and "in obey" in found[0].__notes__[0]


def test_errors_are_those_of_score() -> None:
    with RewardPool(1, 60.0) as pool:
        with pytest.raises(ValueError, match=r"sample 1: task must be one of .*: 'chart'"):
            pool.score_batch(["text", "chart"], ["a", "a"], ["a", "a"])
        with pytest.raises(ValueError, match=r"sample 0: .*reference"):
            pool.score_batch(["table"], ["a"], ["a"])


@pytest.mark.parametrize(
    ("task", "predictions", "references", "message"),
    [
        (["text"], [None], ["a"], "sample 0: prediction must be a str, not NoneType"),
        (["text", "text"], ["a", "a"], ["a", 1], "sample 1: reference must be a str, not int"),
        ([None], ["a"], ["a"], "sample 0: task must be a str, not NoneType"),
        ("text", ["a"], ["a"], "task must be a sequence of strings, not one string"),
    ],
)
def test_samples_that_are_no_strings(pool: RewardPool, task, predictions, references, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        pool.score_batch(task, predictions, references)
    assert str(caught.value) == message


def test_columns_of_different_length(pool: RewardPool) -> None:
    with pytest.raises(ValueError, match="differ in length: 1, 2, 1"):
        pool.score_batch(["text"], ["a", "b"], ["a"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be an integer of at least 1: 0"),
        ({"timeout_s": 0.0}, "timeout_s must be a positive number of seconds: 0.0"),
        ({"timeout_s": float("nan")}, "timeout_s must be a positive number of seconds: nan"),
        ({"scorer": "rewards"}, "scorer must be an import path of the form module:function: 'rewards'"),
    ],
)
def test_wrong_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        RewardPool(**{"workers": 1, "timeout_s": 1.0, **arguments})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "cannot import 'bad_scorers:obey': OSError: no model here"),
        ("nothing", "cannot import 'bad_scorers:obey': AttributeError: module 'bad_scorers' has no attribute 'obey'"),
        ("exit", "a reward worker ended with status 3 while it started"),
        ("die", "a reward worker was killed 3 times while it started"),
        ("sleep", "a reward worker did not come up within 1 s"),
    ],
)
def test_worker_that_does_not_come_up(what: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "what").write_text(what, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if what == "sleep":
        monkeypatch.setattr(worker_link, "START_LIMIT_S", 1.0)
    with pytest.raises(PoolError) as caught:
        RewardPool(1, 1.0, scorer="bad_scorers:obey")
    assert message in str(caught.value)
    assert what != "die" or (tmp_path / "deaths").read_text(encoding="utf-8") == "xxx"


def test_worker_that_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with obeying(1) as pool:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        for _ in range(2):
            with pytest.raises(PoolError, match=r"a reward worker cannot be started: .*No such file"):
                run(pool, "die")


# --- ends ---


def test_closed_pool_refuses() -> None:
    pool = obeying(1)
    pid = run(pool, "a")[0].parts["pid"]
    pool.close()
    pool.close()
    assert not is_running(pid)
    with pytest.raises(PoolError, match="the pool is closed"):
        run(pool, "a")


def test_closing_does_not_wait_for_what_the_caller_holds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a signal handler that has interrupted `score_batch`."""
    monkeypatch.setattr("rewards.workers._CLOSE_LIMIT_S", 0.2)
    pool = obeying(2)
    pids = both_pids(pool)
    before = threading.active_count()
    with pool._queue._changed:
        pool.close()
    assert wait_for(lambda: not any(map(is_running, pids)))
    assert wait_for(lambda: threading.active_count() == before - 2)


def test_closing_ends_a_running_batch_and_what_it_has_started(tmp_path: Path) -> None:
    pool, file, errors = obeying(1), tmp_path / "pid", []

    def score_forever() -> None:
        try:
            run(pool, f"spawn {file}", "a")
        except PoolError as error:
            errors.append(str(error))

    thread = threading.Thread(target=score_forever)
    thread.start()
    assert wait_for(file.exists)
    pool.close()
    thread.join(HANG_S)
    assert errors == ["the pool is closed"]
    assert pool.deaths == 0
    assert wait_for(lambda: not is_running(int(file.read_text())))


def test_pool_that_is_dropped_ends() -> None:
    pool = obeying(2)
    pids = both_pids(pool)
    before = threading.active_count()
    del pool
    gc.collect()
    assert wait_for(lambda: not any(map(is_running, pids)))
    assert wait_for(lambda: threading.active_count() == before - 2)


def test_worker_ends_when_the_pipe_closes_in_the_middle_of_a_sample(tmp_path: Path) -> None:
    """The way out where the system does not end it, which is any but Linux."""
    program = f"import sys; sys.path[:] = {sys.path}; from rewards.workers.process import main; main()"
    worker = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert worker.stdin is not None
    worker.stdin.write(encode({"config": {}, "scorer": "pool_scorers:obey"}))
    worker.stdin.write(encode(["text", "r", [f"spawn {tmp_path / 'pid'}"]]))
    worker.stdin.flush()
    assert wait_for((tmp_path / "pid").exists)
    worker.communicate(timeout=HANG_S)
    assert worker.returncode == -signal.SIGKILL
    assert wait_for(lambda: not is_running(int((tmp_path / "pid").read_text(encoding="ascii"))))


def test_error_in_the_block_ends_the_pool() -> None:
    with pytest.raises(ZeroDivisionError), obeying(1) as pool:
        pid = run(pool, "a")[0].parts["pid"]
        raise ZeroDivisionError
    assert not is_running(pid)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_fork_has_no_part_in_the_pool(pool: RewardPool) -> None:
    before = both_pids(pool)
    child = os.fork()
    if child == 0:
        try:
            run(pool, "a")
        except PoolError:
            pool.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert both_pids(pool) == before


# A user's script, with no `if __name__ == "__main__"`. Both workers keep the interpreter's lock.
SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
from rewards.workers import RewardPool

print("main module", flush=True)
how, folder = sys.argv[1], Path(sys.argv[2])
pool = RewardPool(2, 600.0, scorer="pool_scorers:obey")
if how == "interrupted and goes on":
    try:
        pool.score_batch(["text"] * 3, [f"begin {folder / 'a'}", "a", "b"], ["r"] * 3)
    except KeyboardInterrupt:
        print(len(pool.score_batch(["text"] * 3, ["a", "b", "c"], ["r"] * 3)), "scores", flush=True)
    sys.exit(5)
samples = [["text"] * 2, [f"hang {folder / name}" for name in "ab"], ["r", "s"]]
if how == "exit":
    threading.Thread(target=pool.score_batch, args=samples, daemon=True).start()
    while not all((folder / name).exists() for name in "ab"):
        time.sleep(0.01)
    sys.exit(0)
if how == "system exit in a handler":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
pool.score_batch(*samples)
"""


def launch(how: str, folder: Path) -> subprocess.Popen:
    search = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": search}
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(folder / "script.py"), how, str(folder)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("how", "number", "status"),
    [
        ("exit", None, 0),
        ("interrupted", signal.SIGINT, -signal.SIGINT),
        ("terminated", signal.SIGTERM, -signal.SIGTERM),
        ("system exit in a handler", signal.SIGTERM, 9),
        ("killed", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_no_worker_outlives_the_process(how: str, number: int | None, status: int, tmp_path: Path) -> None:
    process = launch(how, tmp_path)
    files = [tmp_path / name for name in "ab"]
    assert wait_for(lambda: all(file.exists() for file in files) or process.poll() is not None)
    pids = [int(file.read_text(encoding="ascii")) for file in files]
    if number is not None:
        assert all(map(is_running, pids))
        process.send_signal(number)
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == status
    assert output == "main module\n"
    assert errors.count("Traceback") == (how == "interrupted")
    try:
        assert wait_for(lambda: not any(map(is_running, pids)))
    finally:
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)


def test_interrupted_batch_leaves_the_pool_usable(tmp_path: Path) -> None:
    process = launch("interrupted and goes on", tmp_path)
    assert wait_for((tmp_path / "a").exists)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=HANG_S)
    assert (process.returncode, output) == (5, "main module\n3 scores\n")


def test_import_is_light() -> None:
    program = "import sys, rewards.workers; print([n for n in ('torch', 'numpy', 'numba') if n in sys.modules])"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "[]\n"
