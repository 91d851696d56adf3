"""A preallocated key/value cache whose rows have different lengths, and the masks that go with it.

Slot n holds a row: the causal states of its first ``lengths_L[n]`` tokens without holes. A forward writes the states
of its tokens behind them; they only stay if the caller then advances ``lengths_L``. Otherwise they are out of sight of
every mask and overwritten by the next forward, so that rejected tokens and drafts cost no copy. Where states go and
which of them a token sees is decided here and nowhere else, by a :class:`Visibility`.

Shapes: L slots, N of them in a forward, H key/value heads, Q tokens of one forward, K visible places, C places of a
slot in all, D head size, M moved or new rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

#: ``(places_K, own_NQ1, last_seen_NQ1, prefix_N11) -> (N, Q, K)`` bool: the places that a token sees, given its own
#: place, the last place it may look at (its own in a causal forward, the end of the window for a mask that drafts),
#: and how many places the prompt of its row takes.
Visibility = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_GROWTH = 1.5
_FIRST_ROOM = 128  # places behind the prompt that are allocated at first
_CLEARED_AHEAD = 32  # places behind the visible ones that are cleared with them


def full_visibility(places_K: Tensor, own_NQ1: Tensor, last_seen_NQ1: Tensor, prefix_N11: Tensor) -> Tensor:
    """Every place up to the limit."""
    return places_K <= last_seen_NQ1


class RaggedCache(Cache):
    """Keys and values of all layers.

    Places are allocated as they are needed, from the longest prompt on, up to ``max_capacity``, and cleared before they
    can be seen, since a masked place has weight zero, which times a NaN is NaN. Many are never needed: clearing all of
    them took 3% of the time of short responses.

    Args:
        num_slots: L.
        max_capacity: most places of a slot that will ever be allocated.
        device: where the lengths live; the states live where the model computes them.
        key_step: K is rounded up to a multiple of it, so that a device that captures forwards sees few shapes.
        visibility: which places a token sees.
    """

    def __init__(
        self,
        num_slots: int,
        max_capacity: int,
        device: torch.device,
        *,
        key_step: int = 1,
        visibility: Visibility = full_visibility,
    ):
        super().__init__(layers=[])
        self.num_slots = num_slots
        self.max_capacity = max_capacity
        self.capacity = 0
        self.key_step = key_step
        self.lengths_L = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.prefix_L = torch.zeros(num_slots, dtype=torch.long, device=device)
        #: the largest length, as far as the host knows: at least ``lengths_L.max()``, without asking the device
        self.longest = 0
        self.keys_LHCD: list[Tensor] = []
        self.values_LHCD: list[Tensor] = []
        self._visibility = visibility
        self._slots_NQ = torch.zeros(num_slots, 0, dtype=torch.long, device=device)
        #: (N·H·Q,) where the open window is written if the states of a layer are seen as lines of a head's size; all
        #: layers share it
        self._lines: Tensor | None = None
        self._visible = self._reserved = 0
        self._cleared = 0  # places of all slots that hold numbers

    def reserve(self, width: int) -> None:
        """Make room for the forwards of a round, which write up to ``width`` places behind what a row holds.

        How many places they see is settled here as well, before the round: all rounds with the same number of rows,
        window and visible places are then the same work for a device that captures one of them.
        """
        end = self.longest + width
        if end > self.max_capacity:
            raise RuntimeError(f"the cache has {self.max_capacity} places a row, and a round ends at {end}")
        self._reserved = width
        self._visible = min(self.max_capacity, -(-end // self.key_step) * self.key_step)
        if self._visible > self.capacity:
            self._grow(self._visible)
        if self._visible > self._cleared:
            self._clear(min(self.capacity, self._visible + _CLEARED_AHEAD))

    def open_window(self, rows: int, start: int, width: int) -> Tensor:
        """Say where the next forward, of slots 0 … N - 1, writes: token j goes to place ``lengths_L + start + j``.

        Returns:
            (N, Q) places, with N = ``rows`` and Q = ``width``.
        """
        if start + width > self._reserved:
            end = start + width
            raise RuntimeError(f"{self._reserved} places are reserved for a round, and a window ends at place {end}")
        offsets_Q = torch.arange(start, start + width, device=self.lengths_L.device)
        self._slots_NQ, self._lines = self.lengths_L[:rows, None] + offsets_Q, None
        return self._slots_NQ

    def seen_until(self, last_seen_NQ: Tensor) -> Tensor:
        """(N, 1, Q, K) boolean mask in which each query of the open window sees nothing behind its own limit."""
        places_K = torch.arange(self._visible, device=last_seen_NQ.device)
        prefix_N11 = self.prefix_L[: len(last_seen_NQ), None, None]
        return self._visibility(places_K, self._slots_NQ[..., None], last_seen_NQ[..., None], prefix_N11)[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (N, H, Q, D) states into the open window; the states of all visible places, (N, H, K, D)."""
        if layer_idx == len(self.keys_LHCD):
            self._add_layer(value_states)  # their type: autocast leaves keys in fp32, and attention casts them anyway
        rows, heads, _, size = key_states.shape
        if self._lines is None:
            first_NH1 = torch.arange(rows * heads, device=key_states.device).view(rows, heads, 1) * self.capacity
            self._lines = (first_NH1 + self._slots_NQ[:, None]).flatten()
        visible = []
        for states_LHCD, new_NHQD in ((self.keys_LHCD, key_states), (self.values_LHCD, value_states)):
            states = states_LHCD[layer_idx]
            states.view(-1, size).index_copy_(0, self._lines, new_NHQD.reshape(-1, size).to(states.dtype))
            visible.append(states[:rows, :, : self._visible])
        return visible[0], visible[1]

    def _add_layer(self, states_NHQD: Tensor) -> None:
        """Allocate a layer like these states."""
        _, heads, _, size = states_NHQD.shape
        for layers in (self.keys_LHCD, self.values_LHCD):
            layers.append(states_NHQD.new_empty(self.num_slots, heads, self.capacity, size))
            layers[-1][:, :, : self._cleared] = 0

    def _clear(self, end: int) -> None:
        """Fill all places before ``end`` that hold no numbers yet."""
        for states_LHCD in (*self.keys_LHCD, *self.values_LHCD):
            states_LHCD[:, :, self._cleared : end] = 0
        self._cleared = end

    def _grow(self, needed: int) -> None:
        """Allocate more places, layer by layer: what is held twice for a moment is one layer."""
        wanted = max(needed, int(self.capacity * _GROWTH)) if self.capacity else needed + _FIRST_ROOM
        wanted = -(-wanted // self.key_step) * self.key_step
        self.capacity = min(self.max_capacity, wanted)
        for layers in (self.keys_LHCD, self.values_LHCD):
            for layer, old_LHCD in enumerate(layers):
                slots, heads, _, size = old_LHCD.shape
                layers[layer] = old_LHCD.new_empty(slots, heads, self.capacity, size)
                layers[layer][:, :, : self._cleared] = old_LHCD[:, :, : self._cleared]

    def write_rows(self, slots_M: Tensor, source: RaggedCache, rows_M: Tensor) -> None:
        """Start rows in slots: they begin with the states of rows of another cache, which may occur several times."""
        places = source.longest
        if places > self.capacity:
            self._grow(places)
        if places > self._cleared:
            self._clear(places)
        if not self.keys_LHCD:
            for states in source.keys_LHCD:
                self._add_layer(states)
        pairs = ((self.keys_LHCD, source.keys_LHCD), (self.values_LHCD, source.values_LHCD))
        for target_layers, source_layers in pairs:
            for target_LHCD, states in zip(target_layers, source_layers, strict=True):
                target_LHCD[:, :, :places].index_copy_(0, slots_M, states[:, :, :places].index_select(0, rows_M))
        self.lengths_L[slots_M] = source.lengths_L[rows_M]
        self.prefix_L[slots_M] = source.prefix_L[rows_M]

    def move(self, source_M: Tensor, target_M: Tensor) -> None:
        """Copy rows into other slots."""
        for layers in (self.keys_LHCD, self.values_LHCD):
            for states_LHCD in layers:
                used = states_LHCD[:, :, : self.longest]
                used.index_copy_(0, target_M, used.index_select(0, source_M))
        for per_slot_L in (self.lengths_L, self.prefix_L):
            per_slot_L[target_M] = per_slot_L[source_M]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.longest

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.max_capacity

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._visible, 0
