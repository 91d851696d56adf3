"""The table reward: structure and cell texts, with penalties for wrong row counts and for repeated rows.

Here is the published profile, after arXiv:2609.26638, Appendix E; `rewards.tables.terms` has the formula. It compares
what the OmniDocBench scorer makes of the markup. The robust profile (`rewards.tables.robust`) reads the markup as a
browser would show it, and puts the same terms together.
"""

from __future__ import annotations

from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rewards.gate import CLOSED_GATE, degeneration_gate
from rewards.html.scan import read_table
from rewards.html.table import Table
from rewards.tables.robust import robust_table_reward
from rewards.tables.terms import (
    Shape,
    combine,
    compared_parts,
    excess_rows,
    repeated_row_penalty,
    unscored_parts,
)
from rewards.teds import structure_similarity
from rewards.types import PUBLISHED, Part, RewardConfig, Score, is_oversized, require_config, require_strings


def count_table_tags(markup: str) -> tuple[int, int]:
    """How many tables the raw markup opens and closes, in any letter case."""
    markup = markup.lower()
    return markup.count("<table"), markup.count("</table>")


@lru_cache(maxsize=64)
def _read_reference(reference: str) -> Table:
    """The parsed reference, read once for all predictions of a group."""
    table = read_table(reference)
    if table is None:
        raise ValueError(f"reference holds no table with a cell: {reference[:80]!r}")
    opened, closed = count_table_tags(reference)
    if opened > closed:
        raise ValueError(f"reference does not close its table: ...{reference[-80:]!r}")
    return table


def table_reward(prediction: str, reference: str, config: RewardConfig = PUBLISHED) -> Score:
    """The table reward of the configuration's profile.

    A prediction whose `<table` is not closed has value 0 (robust: 0.85 times its value). One without a table that has
    a cell has `0.15 * edit similarity` of the raw strings (robust: of what is shown). Where the value is 0 without
    comparing tables (unclosed, gate 0, oversized) the compared parts stay at 0.

    Parts: `similarity` (the weighted sum, or the edit similarity of the strings), `teds_s`, `s_cell`, `p_row`,
    `p_loop`, `bonus`, `rows`, `ref_rows`, `cols`, `ref_cols`, `closed`, `parsed`, and the gate with its terms.

    Raises:
        TypeError: an argument is not a string.
        ValueError: the reference holds no table with a cell, or does not close it.
    """
    require_strings(prediction, reference)
    require_config(config)
    if config.profile == "robust":
        return robust_table_reward(prediction, reference, config)
    wanted = _read_reference(reference)
    oversized = is_oversized(prediction, reference)
    gate = CLOSED_GATE if oversized else degeneration_gate(prediction, reference, config)
    opened, closed = count_table_tags(prediction)
    parts = unscored_parts(gate, Shape(len(wanted.rows), wanted.columns), 0 < opened <= closed)
    factor = gate.gate * (config.unclosed_factor if opened > closed else 1.0)
    if factor == 0.0:
        return Score(0.0, parts)
    table = read_table(prediction)
    if table is None:
        parts["similarity"] = Levenshtein.normalized_similarity(prediction, reference)
        return Score(config.unparsed_weight * parts["similarity"] * factor, parts)
    parts |= _compare(table, wanted, config)
    return Score(combine(parts) * factor, parts)


def _compare(table: Table, wanted: Table, config: RewardConfig) -> dict[str, Part]:
    teds_s = structure_similarity(table.tree, wanted.tree)
    s_cell = Levenshtein.normalized_similarity(" ".join(table.cell_texts), " ".join(wanted.cell_texts))
    p_loop = repeated_row_penalty(excess_rows(table.rows, wanted.rows, config), len(table.rows), config)
    found = Shape(len(table.rows), table.columns)
    return compared_parts(teds_s, s_cell, p_loop, found, Shape(len(wanted.rows), wanted.columns), config)
