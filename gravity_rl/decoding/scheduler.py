"""Which rows are in the batch: prefills prompts, starts rows, runs rounds, takes finished rows out, refills slots.

Equal prompts are prefilled once and their states copied into every slot that needs them. Rows start in the order of
their prompts, so that at most one prompt waits with states of its own for a free slot. The host learns what a round
committed in one transfer at its end; all that happens between rounds is arithmetic on small host tensors.

Shapes: R rows of the output, L slots, N slots of a round, M moved or new rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.cache import RaggedCache, Visibility
from gravity_rl.decoding.loop import Proposal, Responses, commit
from gravity_rl.decoding.memory import PROMPTS_PER_PREFILL
from gravity_rl.decoding.noise import NoiseBuffer
from gravity_rl.decoding.prompts import Prefix, Prompts
from gravity_rl.decoding.rows import Rows
from gravity_rl.decoding.stats import PHASES
from gravity_rl.decoding.window import WindowPolicy

#: ``(rows, noise_LKV, block_size) -> Proposal``; block size 0 is an AR step
Step = Callable[[Rows, Tensor | None, int], Proposal]

_REFILL_SHARE = 8  # slots are refilled once this part of them is free


def round_up_rows(live: int, slots: int, device: torch.device) -> int:
    """N for a number of live rows: as it is on CPU, few different values on devices that capture rounds."""
    if device.type == "cpu" or not live:
        return live
    rows = 1 << (live - 1).bit_length() if live <= 8 else -(-live // 8) * 8
    return min(rows, slots)


class Scheduler:
    """Decodes all rows of a call.

    Args:
        model: in eval mode.
        prompts: R prompts.
        row_ids: (R,) int64 on the host, what the noise of each row depends on.
        step: one round.
        policy: chooses the window of each round.
        noise: of all slots; None where choice is greedy.
        responses: receives the tokens.
        eos_ids: end tokens, on the device.
        max_new_tokens: length limit.
        cache: L slots.
        visibility: which places a token sees, that of the cache.
    """

    def __init__(
        self,
        model: GlmOcrForConditionalGeneration,
        prompts: Prompts,
        row_ids: Tensor,
        *,
        step: Step,
        policy: WindowPolicy,
        noise: NoiseBuffer | None,
        responses: Responses,
        eos_ids: Tensor,
        max_new_tokens: int,
        cache: RaggedCache,
        visibility: Visibility,
    ):
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.prefills = self.prefill_forwards = 0
        self.rounds = {0: 0}  # by window
        self._model, self._prompts, self._row_ids = model, prompts, row_ids
        self._step, self._policy, self._noise, self._responses = step, policy, noise, responses
        self._eos_ids, self._max_new_tokens, self._visibility = eos_ids, max_new_tokens, visibility
        self._cache = cache
        self._rows = Rows.empty(cache, len(prompts))
        self._view = self._rows.first(0)
        order = sorted(range(len(prompts)), key=lambda row: (prompts.first[row], row))
        self._waiting = deque(order)
        #: a prompt that waiting rows have, by its first row, and its states
        self._kept: tuple[int, Prefix] | None = None
        self._live = 0
        self._written_L = torch.zeros(cache.num_slots, dtype=torch.long)  # the next two on the host
        self._lengths_L = torch.zeros(cache.num_slots, dtype=torch.long)

    def run(self) -> None:
        """Decode until every row has ended.

        Raises:
            FloatingPointError: the model's logits are not finite.
        """
        free = torch.arange(self._cache.num_slots)
        while True:
            with self._timed("rows"):
                self._close_up(self._fill(free))
            if not self._live:
                return
            free = self._round()

    def _round(self) -> Tensor:
        """One round; slots whose rows have ended, and idle ones behind the live rows (on the host)."""
        began = time.perf_counter()
        rows = self._view
        block_size = self._policy.choose(self._live)
        most_tokens = block_size + 2 if block_size else 1  # of a row in this round
        self._cache.reserve(most_tokens)
        if self._noise is not None:
            self._noise.prepare(self._written_L[: len(rows)], rows.row_ids_N, most_tokens)
        proposal = self._step(rows, None if self._noise is None else self._noise.ring_LKV, block_size)
        done = commit(rows, proposal, self._responses, self._eos_ids, self._max_new_tokens)
        state = torch.stack([done.finished_N, done.broken_N, rows.written_N, rows.lengths_N, done.drafts_N]).cpu()
        finished_N, broken_N = state[0].bool(), state[1].bool()
        if broken_N.any():
            indices = sorted(rows.index_N[broken_N.to(rows.index_N.device)].tolist())
            raise FloatingPointError(f"the model's logits are not finite in rows {indices}")
        self._written_L[: len(rows)], self._lengths_L[: len(rows)] = state[2], state[3]
        self._cache.longest = int(state[3].max())
        seconds = time.perf_counter() - began
        self.seconds["draft_rounds" if block_size else "ar_rounds"] += seconds
        self.rounds[block_size] = self.rounds.get(block_size, 0) + 1
        accepted = state[4][: self._live].tolist() if block_size else []
        self._policy.observe(block_size, self._live, seconds, accepted, finished_N[: self._live].tolist())
        return torch.cat([finished_N.nonzero()[:, 0], torch.arange(self._live, self._cache.num_slots)])

    def _fill(self, free: Tensor) -> Tensor:
        """Start waiting rows in the first of the free slots, once enough of them are free.

        Returns:
            The slots of ended rows that stay free.
        """
        ended = int((free < self._live).sum())
        enough = max(1, self._cache.num_slots // _REFILL_SHARE)
        count = min(len(free), len(self._waiting))
        if count < min(enough, len(self._waiting)):
            count = 0
        if ended:
            self._retire(free[:ended])
        if count:
            self._start([self._waiting.popleft() for _ in range(count)], free[:count])
        self._live += count - ended
        return free[count:ended]

    def _retire(self, slots_M: Tensor) -> None:
        """Make slots (on the host) idle."""
        self._rows.retire(self._to_device(slots_M), self._responses.num_rows)
        self._written_L[slots_M] = self._lengths_L[slots_M] = 0
        if self._noise is not None:
            self._noise.retire(slots_M)

    def _start(self, rows: list[int], slots_M: Tensor) -> None:
        """Put rows, which are in the order of their prompts, into slots, which are on the host.

        Prompts are prefilled in portions, whose rows start before the next portion: few states are held twice. Those
        of the last prompt are kept if waiting rows have it, too.
        """
        groups = [(prompt, list(group)) for prompt, group in groupby(rows, key=self._prompts.first.__getitem__)]
        begin = int(self._kept is not None and groups[0][0] == self._kept[0])
        starts = range(begin, len(groups), PROMPTS_PER_PREFILL)
        portions = [groups[:begin]] * begin + [groups[start : start + PROMPTS_PER_PREFILL] for start in starts]
        at = 0
        for portion in portions:
            prompts = [prompt for prompt, _ in portion]
            prefix = self._kept[1] if self._kept and prompts == [self._kept[0]] else self._prefill(prompts)
            lines = [line for line, (_, group) in enumerate(portion) for _ in group]
            started = [row for _, group in portion for row in group]
            self._start_from(prefix, lines, started, slots_M[at : at + len(started)])
            at += len(started)
            needed = bool(self._waiting) and self._prompts.first[self._waiting[0]] == prompts[-1]
            self._kept = (prompts[-1], prefix.only(len(prompts) - 1)) if needed else None
            del prefix  # before the next portion has states, too

    def _start_from(self, prefix: Prefix, lines: list[int], rows: list[int], slots_M: Tensor) -> None:
        """Start rows with the states of some lines of a prefix."""
        target_M, source_M = self._to_device(slots_M), self._to_device(torch.tensor(lines))
        indices_M = torch.tensor(rows)
        state = self._rows
        self._cache.write_rows(target_M, prefix.cache, source_M)
        state.boundary_N[target_M] = prefix.boundary_D[source_M]
        state.rope_offset_N[target_M] = prefix.rope_offset_D[source_M]
        state.row_ids_N[target_M] = self._to_device(self._row_ids[indices_M])
        state.index_N[target_M] = self._to_device(indices_M)
        state.written_N.index_fill_(0, target_M, 0)
        state.live_N.index_fill_(0, target_M, True)
        self._written_L[slots_M] = 0
        self._lengths_L[slots_M] = torch.tensor([self._prompts.lengths[row] - 1 for row in rows])
        if self._noise is not None:
            self._noise.reset(slots_M)

    def _prefill(self, prompts: list[int]) -> Prefix:
        """States of some prompts, each given by its first row."""
        began = time.perf_counter()
        prefix = self._prompts.prefill(self._model, prompts, self._visibility)
        _synchronise(self._cache.lengths_L.device)
        seconds = time.perf_counter() - began
        self.seconds["prefill"] += seconds
        self.seconds["rows"] -= seconds  # which this is a part of
        self.prefills += len(prompts)
        self.prefill_forwards += 1
        return prefix

    def _close_up(self, holes: Tensor) -> None:
        """Move rows from the end into the holes, so that live rows sit in slots 0 … n - 1."""
        target_M = holes[holes < self._live]
        if len(target_M):
            behind = torch.arange(self._live, self._live + len(holes))
            source_M = behind[~torch.isin(behind, holes)]
            self._rows.move(self._to_device(source_M), self._to_device(target_M))
            if self._noise is not None:
                self._noise.move(source_M, target_M)
            for tensor in (self._written_L, self._lengths_L):
                tensor[target_M] = tensor[source_M]
            self._retire(source_M)
        self._cache.longest = int(self._lengths_L[: self._live].max()) if self._live else 0
        count = round_up_rows(self._live, self._cache.num_slots, self._cache.lengths_L.device)
        if count != len(self._view):
            self._view = self._rows.first(count)

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._cache.lengths_L.device, non_blocking=True)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
