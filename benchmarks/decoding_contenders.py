"""The contenders of ``decoding.py``, TRL's transformers path and our decoding, which take turns.

How fast a machine is changes from second to second, by more than the differences that are looked for. So all
contenders read the same call at the same time, in threads of which one runs at a time: after a few rounds a thread
waits until it is the one that has run least. A slow second then falls on all of them.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from decoding_crops import Checkpoint
from decoding_rounds import Round
from torch import Tensor
from transformers import GenerationConfig, GlmOcrForConditionalGeneration, LogitsProcessor, LogitsProcessorList

from gravity_rl.decoding import BatchStats, CostModel, DecodeStats, generate
from gravity_rl.decoding.scheduler import Scheduler
from gravity_rl.decoding.window import ladder

TRL, AR, AUTO = "TRL transformers path", "AR", "auto"
#: Lets others run if the contender has run for long enough.
Pause = Callable[[], None]
TURN_SECONDS = 0.05  # shorter than most changes of the machine, longer than it takes to warm up a cache


@dataclass(frozen=True)
class Reading:
    """A batch that was read, with the seconds of vision and prefill."""

    ids: list[list[int]]
    prefill: float
    rows: list[DecodeStats] = field(default_factory=list)
    stats: BatchStats | None = None


@dataclass
class Measured:
    """What a contender took for the calls of a round; without ``stats`` if it does not count."""

    decode: float = 0.0
    total: float = 0.0
    cpu: float = 0.0
    ids: list[list[int]] = field(default_factory=list)
    rows: list[DecodeStats] = field(default_factory=list)
    stats: list[BatchStats] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    def add(self, reading: Reading, seconds: float, cpu: float, rounds: list[Round]) -> None:
        self.total += seconds
        self.decode += seconds - reading.prefill
        self.cpu += cpu
        self.ids += reading.ids
        self.rows += reading.rows
        self.stats += [reading.stats] if reading.stats else []
        self.rounds += rounds

    def windows(self) -> Counter[int]:
        """Rounds of the decoder by their window, 0 for AR steps."""
        counts: Counter[int] = Counter()
        for choice in (choice for stats in self.stats for choice in stats.choices):
            counts[choice.block_size] += choice.rounds
        return counts


class BetweenTokens(LogitsProcessor):
    """Notes when the first logits of a call are there, and pauses at all of them; leaves them as they are."""

    def __init__(self, pause: Pause):
        self.pause, self.first = pause, 0.0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.first = self.first or time.perf_counter()
        self.pause()
        return scores


def trl_path(
    checkpoint: Checkpoint,
    model: GlmOcrForConditionalGeneration,
    inputs: dict[str, Tensor],
    temperature: float,
    seed: int,
    pause: Pause,
) -> Reading:
    """``model.generate`` with the generation configuration that TRL's GRPO trainer makes."""
    generation = GenerationConfig(
        max_new_tokens=checkpoint.max_new_tokens,
        do_sample=True,
        pad_token_id=checkpoint.processor.tokenizer.pad_token_id,
        bos_token_id=checkpoint.processor.tokenizer.bos_token_id,
        eos_token_id=checkpoint.ends,
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        repetition_penalty=1.0,
        suppress_tokens=checkpoint.banned,
        disable_compile=True,
    )
    torch.manual_seed(seed)  # all others have noise of their own
    between, began = BetweenTokens(pause), time.perf_counter()
    with torch.no_grad():
        output = model.generate(**inputs, generation_config=generation, logits_processor=LogitsProcessorList([between]))
    ids = []
    for row in output[:, inputs["input_ids"].shape[1] :].tolist():
        end = next((place + 1 for place, token in enumerate(row) if token in checkpoint.ends), len(row))
        ids.append(row[:end])
    return Reading(ids, between.first - began)


def our_path(
    checkpoint: Checkpoint,
    settings: Mapping[str, Any],
    model: GlmOcrForConditionalGeneration,
    inputs: dict[str, Tensor],
    temperature: float,
    seed: int,
    pause: Pause,
) -> Reading:
    """``gravity_rl.decoding``, which pauses by itself, see ``watched_rounds``."""
    out = generate(
        model,
        inputs,
        drafter=checkpoint.drafter,
        max_new_tokens=checkpoint.max_new_tokens,
        eos_token_ids=checkpoint.ends,
        banned_token_ids=checkpoint.banned,
        temperature=temperature,
        seed=seed,
        **settings,
    )
    return Reading([ids.tolist() for ids in out.sequences], out.stats.seconds["prefill"], out.row_stats, out.stats)


class Contenders:
    """All of them, by name.

    Args:
        checkpoint: each contender gets a copy of its model with the same weights, as a model decodes one call at a
            time.
        sampled: whether TRL's path takes part.
        cost_model: what "auto" knows of the model.
    """

    def __init__(self, checkpoint: Checkpoint, sampled: bool, cost_model: CostModel):
        settings: dict[str, dict[str, Any]] = {AR: {"method": "ar"}}
        for window in ladder(checkpoint.drafter.bd_size)[1:]:
            settings[f"window {window}"] = {"method": "self_spec", "block_size": window}
        settings[AUTO] = {"method": "self_spec", "cost_model": cost_model}
        paths: dict[str, Callable[..., Reading]] = {TRL: partial(trl_path, checkpoint)} if sampled else {}
        paths |= {name: partial(our_path, checkpoint, chosen) for name, chosen in settings.items()}
        weights = {id(parameter): parameter for parameter in checkpoint.model.parameters()}
        self.by_name = {
            name: partial(path, copy.deepcopy(checkpoint.model, dict(weights))) for name, path in paths.items()
        }
        self._calls = 0

    def read(self, inputs: dict[str, Tensor], temperature: float, seed: int, measured: Mapping[str, Measured]) -> None:
        """One batch with every contender. At every call another one begins, as the first pays for a cold start: whole
        calls of equal ones took 2 to 3% less where they came later."""
        order = deque(self.by_name)
        order.rotate(self._calls)
        self._calls += 1
        decoders = {name: partial(self.by_name[name], inputs, temperature, seed) for name in order}
        for name, turn in take_turns(decoders).items():
            measured[name].add(*turn)


# --- turns ---


class Turns:
    """Who runs: of all contenders that have not left, the one that has run least; the first of those."""

    def __init__(self, names: Iterable[str]):
        self.seconds = {name: [0.0, 0.0] for name in names}  # on the wall, and of the processor
        self._waiting: set[str] = set()
        self._present = set(self.seconds)
        self._running: str | None = None
        self._changed = threading.Condition()
        self._began = (0.0, 0.0)

    def take(self, name: str) -> None:
        """Wait for a turn."""
        with self._changed:
            self._waiting.add(name)
            self._appoint()
            self._changed.wait_for(lambda: self._running == name)
            self._waiting.remove(name)
        self._began = time.perf_counter(), time.process_time()

    def pause(self, name: str) -> None:
        """Let others run if this turn was long enough."""
        if time.perf_counter() - self._began[0] >= TURN_SECONDS:
            self.give(name)
            self.take(name)

    def give(self, name: str, leave: bool = False) -> None:
        """End a turn, for good if the contender has read its call."""
        seconds = self.seconds[name]
        seconds[0] += time.perf_counter() - self._began[0]
        seconds[1] += time.process_time() - self._began[1]
        with self._changed:
            self._running = None
            if leave:
                self._present.remove(name)
            self._appoint()

    def _appoint(self) -> None:
        """Choose who runs next, once everybody else waits."""
        if self._running is None and self._present and self._waiting == self._present:
            waiting = (name for name in self.seconds if name in self._waiting)
            self._running = min(waiting, key=lambda name: self.seconds[name][0])
            self._changed.notify_all()


def take_turns(
    decoders: Mapping[str, Callable[[Pause], Reading]],
) -> dict[str, tuple[Reading, float, float, list[Round]]]:
    """What the contenders read, with the seconds and the CPU seconds that each took by itself, and its rounds.

    Raises:
        Exception: what one of them raised, once all have ended.
    """
    turns, threads, current = Turns(decoders), torch.get_num_threads(), threading.local()
    rounds: dict[str, list[Round]] = {name: [] for name in decoders}

    def run(name: str) -> Reading:
        torch.set_num_threads(threads)  # which holds for a thread
        current.pause, current.record = partial(turns.pause, name), rounds[name].append
        turns.take(name)
        try:
            return decoders[name](current.pause)
        finally:
            turns.give(name, leave=True)

    watching = watched_rounds(lambda: current.pause(), lambda one: current.record(one))
    with watching, ThreadPoolExecutor(len(decoders)) as pool:
        futures = {name: pool.submit(run, name) for name in decoders}
    return {name: (future.result(), *turns.seconds[name], rounds[name]) for name, future in futures.items()}


@contextmanager
def watched_rounds(pause: Pause, record: Callable[[Round], None]) -> Iterator[None]:
    """Our decoding pauses before each of its rounds, and records it."""
    real = Scheduler._round

    def watched_round(scheduler: Scheduler) -> Tensor:
        pause()
        before, live_rows, began = dict(scheduler.rounds), scheduler._live, time.perf_counter()
        free = real(scheduler)
        seconds = time.perf_counter() - began
        (window,) = (window for window, count in scheduler.rounds.items() if count != before.get(window, 0))
        record(Round(window, live_rows, seconds))
        return free

    with patch.object(Scheduler, "_round", watched_round):
        yield
