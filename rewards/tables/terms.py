"""The terms of the table reward that both profiles share, and how they are put together.

After arXiv:2609.26638, Appendix E: `r = clip01((0.45 TEDS_s + 0.55 s_cell) (1 - p_row) (1 - p_loop))`, then
`r + b (1 - r)` with a bonus b for the right numbers of rows and columns. The profiles differ in what they count as a
row, a column and a cell, and in the two similarities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from rewards.gate import Gate
from rewards.types import PUBLISHED, Part, RewardConfig

Row = tuple[str, ...]  # texts of its cells


class Shape(NamedTuple):
    """Numbers of rows and columns."""

    rows: int
    columns: int


def unscored_parts(gate: Gate, wanted: Shape, closed: bool) -> dict[str, Part]:
    """The parts of a table that has not been compared."""
    return {
        "similarity": 0.0,
        **gate._asdict(),
        **dict.fromkeys(("teds_s", "s_cell", "p_row", "p_loop", "bonus"), 0.0),
        "rows": 0,
        "ref_rows": wanted.rows,
        "cols": 0,
        "ref_cols": wanted.columns,
        "closed": closed,
        "parsed": False,
    }


def compared_parts(
    teds_s: float, s_cell: float, p_loop: float, found: Shape, wanted: Shape, config: RewardConfig
) -> dict[str, Part]:
    """The parts of a comparison, `combine` aside."""
    same_shape = (found.rows == wanted.rows) + (found.columns == wanted.columns)
    return {
        "similarity": config.teds_weight * teds_s + config.cell_weight * s_cell,
        "teds_s": teds_s,
        "s_cell": s_cell,
        "p_row": row_count_penalty(found.rows, wanted.rows, config),
        "p_loop": p_loop,
        "bonus": config.shape_bonus * same_shape,
        "rows": found.rows,
        "cols": found.columns,
        "parsed": True,
    }


def combine(parts: dict[str, Part]) -> float:
    """The reward before the gate, from the parts of a comparison."""
    value = parts["similarity"] * (1.0 - parts["p_row"]) * (1.0 - parts["p_loop"])
    value = min(max(value, 0.0), 1.0)
    return value + parts["bonus"] * (1.0 - value)


def row_count_penalty(rows: int, wanted_rows: int, config: RewardConfig = PUBLISHED) -> float:
    """p_row: `0.35 * min(1, |difference| / max(reference rows, 4))`."""
    difference = abs(rows - wanted_rows) / max(wanted_rows, config.row_penalty_min_rows)
    return config.row_penalty * min(1.0, difference)


def excess_rows(rows: Iterable[Row], wanted_rows: Iterable[Row], config: RewardConfig = PUBLISHED) -> int:
    """How many rows are beyond their allowance.

    A row, known by its cell texts, may occur `max(3, occurrences in the reference + 1)` times; every further one is in
    excess.
    """
    wanted_counts = Counter(wanted_rows)
    excess = 0
    for key, count in Counter(rows).items():
        allowance = max(config.loop_min_allowance, wanted_counts[key] + config.loop_extra_allowance)
        excess += max(0, count - allowance)
    return excess


def repeated_row_penalty(excess: int, rows: int, config: RewardConfig = PUBLISHED) -> float:
    """p_loop: 0 without excess rows, else `min(1, 0.30 + 0.70 * excess / rows)`."""
    if not excess:
        return 0.0
    return min(1.0, config.loop_penalty_base + config.loop_penalty_slope * excess / rows)
