"""The table reward: structure and cell texts, with penalties for wrong row counts and for repeated rows.

After arXiv:2609.26638, Appendix E:
`r = clip01((0.45 TEDS_s + 0.55 s_cell) (1 - p_row) (1 - p_loop))`, then `r + b (1 - r)` with a bonus b for
the right numbers of rows and columns, times the degeneration gate.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rewards.gate import CLOSED_GATE, degeneration_gate
from rewards.html_table import Table, parse_table
from rewards.markup import normalize_table
from rewards.teds import structure_similarity
from rewards.types import PUBLISHED, Part, RewardConfig, Score, is_oversized, require_strings


def count_table_tags(markup: str) -> tuple[int, int]:
    """How many tables the raw markup opens and closes, in any letter case."""
    markup = markup.lower()
    return markup.count("<table"), markup.count("</table>")


@lru_cache(maxsize=256)
def _read_reference(reference: str) -> Table:
    """The parsed reference, read once for all predictions of a group."""
    table = parse_table(normalize_table(reference))
    if table is None:
        raise ValueError(f"reference holds no table with a cell: {reference[:80]!r}")
    opened, closed = count_table_tags(reference)
    if opened > closed:
        raise ValueError(f"reference does not close its table: ...{reference[-80:]!r}")
    return table


def table_reward(prediction: str, reference: str, config: RewardConfig = PUBLISHED) -> Score:
    """The published table reward.

    A prediction whose `<table` is not closed has value 0. One without a table that has a cell has
    `0.15 * edit similarity` of the raw strings. Where the value is 0 without comparing tables (unclosed, gate
    0, oversized) the compared parts stay at 0.

    Parts: `similarity` (the weighted sum, or the edit similarity of the raw strings), `teds_s`, `s_cell`,
    `p_row`, `p_loop`, `bonus`, `rows`, `ref_rows`, `cols`, `ref_cols`, `closed`, `parsed`, and the gate with
    its terms.

    Raises:
        TypeError: an argument is not a string.
        ValueError: the reference holds no table with a cell, or does not close it.
    """
    require_strings(prediction, reference)
    wanted = _read_reference(reference)
    oversized = is_oversized(prediction, reference)
    gate = CLOSED_GATE if oversized else degeneration_gate(prediction, reference, config)
    opened, closed = count_table_tags(prediction)
    parts: dict[str, Part] = {
        "similarity": 0.0,
        **gate._asdict(),
        **dict.fromkeys(("teds_s", "s_cell", "p_row", "p_loop", "bonus"), 0.0),
        "rows": 0,
        "ref_rows": len(wanted.rows),
        "cols": 0,
        "ref_cols": wanted.columns,
        "closed": 0 < opened <= closed,
        "parsed": False,
    }
    factor = gate.gate * (config.unclosed_factor if opened > closed else 1.0)
    if factor == 0.0:
        return Score(0.0, parts)
    table = parse_table(normalize_table(prediction))
    if table is None:
        parts["similarity"] = Levenshtein.normalized_similarity(prediction, reference)
        return Score(config.unparsed_weight * parts["similarity"] * factor, parts)
    return Score(_compare(table, wanted, config, parts) * factor, parts)


def _compare(table: Table, wanted: Table, config: RewardConfig, parts: dict[str, Part]) -> float:
    """The reward of a parsed table before the gate. Fills in the parts."""
    teds_s = structure_similarity(table.tree, wanted.tree)
    s_cell = Levenshtein.normalized_similarity(" ".join(table.cell_texts), " ".join(wanted.cell_texts))
    similarity = config.teds_weight * teds_s + config.cell_weight * s_cell
    p_row = row_count_penalty(len(table.rows), len(wanted.rows), config)
    p_loop = repeated_row_penalty(table.rows, wanted.rows, config)
    same_shape = (len(table.rows) == len(wanted.rows)) + (table.columns == wanted.columns)
    bonus = config.shape_bonus * same_shape
    parts |= {
        "similarity": similarity,
        "teds_s": teds_s,
        "s_cell": s_cell,
        "p_row": p_row,
        "p_loop": p_loop,
        "bonus": bonus,
        "rows": len(table.rows),
        "cols": table.columns,
        "parsed": True,
    }
    value = min(max(similarity * (1.0 - p_row) * (1.0 - p_loop), 0.0), 1.0)
    return value + bonus * (1.0 - value)


def row_count_penalty(rows: int, wanted_rows: int, config: RewardConfig = PUBLISHED) -> float:
    """p_row: `0.35 * min(1, |difference| / max(reference rows, 4))`."""
    difference = abs(rows - wanted_rows) / max(wanted_rows, config.row_penalty_min_rows)
    return config.row_penalty * min(1.0, difference)


def repeated_row_penalty(
    rows: tuple[tuple[str, ...], ...],
    wanted_rows: tuple[tuple[str, ...], ...],
    config: RewardConfig = PUBLISHED,
) -> float:
    """p_loop: 0 without excess rows, else `min(1, 0.30 + 0.70 * share of excess rows)`.

    A row, known by its cell texts, may occur `max(3, occurrences in the reference + 1)` times; every further
    one is in excess.
    """
    wanted_counts = Counter(wanted_rows)
    excess = 0
    for key, count in Counter(rows).items():
        allowance = max(config.loop_min_allowance, wanted_counts[key] + config.loop_extra_allowance)
        excess += max(0, count - allowance)
    if not excess:
        return 0.0
    return min(1.0, config.loop_penalty_base + config.loop_penalty_slope * excess / len(rows))
