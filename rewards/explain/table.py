"""What a table reward is made of, for `rewards.explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from rapidfuzz.distance import Levenshtein, Prefix

from rewards import RewardConfig, Score
from rewards.explain.alignment import quoted, visible
from rewards.explain.rows import RowPair, TableRow, align_rows, published_rows, robust_rows
from rewards.explain.steps import Step, counted
from rewards.html.reader import read_tables
from rewards.html.table import Table, parse_table
from rewards.markup import normalize_table
from rewards.table import count_table_tags
from rewards.tables.document import Document
from rewards.tables.robust import compared_tables, show

_LISTED = 10  # rows or cells that are listed
_CELLS_OF_A_ROW = 3
_CONTEXT = 12  # equal characters before the first difference of two cells


def table_steps(prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[Step]:
    """The steps before the gate."""
    parts = scored.parts
    opened, closed = _opened_and_closed(prediction, config)
    tags = f"opens {counted(opened, 'table')} and closes {closed}"
    start = Step(config.teds_weight + config.cell_weight, "a perfect copy")
    if opened > closed and config.unclosed_factor == 0.0:
        return [start, Step(0.0, f"{tags}: not compared")]
    if parts["parsed"]:
        steps = [start, *_compared_steps(prediction, reference, scored, config)]
    else:
        steps = [start, *_unparsed_steps(scored, config)]
    # The robust profile also reads rows without a table, and takes them for one that is not closed.
    if opened > closed or (config.profile == "robust" and parts["parsed"] and not parts["closed"]):
        steps.append(Step(steps[-1].after * config.unclosed_factor, f"{tags}: x {config.unclosed_factor:g}"))
    return steps


def _opened_and_closed(prediction: str, config: RewardConfig) -> tuple[int, int]:
    if config.profile == "robust":
        document = read_tables(prediction)
        return document.opened, document.closed
    return count_table_tags(prediction)


def _unparsed_steps(scored: Score, config: RewardConfig) -> list[Step]:
    similarity = float(scored.parts["similarity"])
    return [
        Step(config.unparsed_weight, f"no table with a cell: x {config.unparsed_weight:g}"),
        Step(config.unparsed_weight * similarity, f"as plain text: similarity {similarity:.4f}"),
    ]


def _compared_steps(prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[Step]:
    parts = {name: float(part) for name, part in scored.parts.items()}
    structure, cells = f"TEDS_s {parts['teds_s']:.4f}", f"s_cell {parts['s_cell']:.4f}"
    if config.profile == "published":
        nodes, characters = _sizes(prediction, reference)
        structure += f", {(1.0 - parts['teds_s']) * nodes:.0f} edits in {counted(nodes, 'node')}"
        cells += f", {(1.0 - parts['s_cell']) * characters:.0f} edits in {counted(characters, 'character')}"
    elif (share := _share(prediction, reference)) < 1.0:
        structure += f" (times {share:.4f}, the share of the text in tables that are compared)"
        cells += f" (times {share:.4f} as well)"
    similarity = parts["similarity"]
    with_rows = similarity * (1.0 - parts["p_row"])
    with_loops = with_rows * (1.0 - parts["p_loop"])
    limited = min(max(with_loops, 0.0), 1.0)
    limit = [Step(limited, "limited to 0 ... 1")] if limited != with_loops else []
    rows, columns = _compared_numbers(scored, "rows"), _compared_numbers(scored, "cols")
    return [
        Step(config.teds_weight * parts["teds_s"] + config.cell_weight, f"structure: {structure}"),
        Step(similarity, f"cells: {cells}"),
        Step(with_rows, f"number of rows: {rows} (p_row {parts['p_row']:.4f})"),
        Step(with_loops, f"rows that repeat (p_loop {parts['p_loop']:.4f})"),
        *limit,
        Step(limited + parts["bonus"] * (1.0 - limited), f"bonus {parts['bonus']:g}: rows {rows}, columns {columns}"),
    ]


def _compared_numbers(scored: Score, name: str) -> str:
    """A number of the prediction, and that of the reference where it is another."""
    found, wanted = scored.parts[name], scored.parts[f"ref_{name}"]
    return f"{found}" if found == wanted else f"{found} for {wanted}"


def table_details(prediction: str, reference: str, scored: Score, config: RewardConfig) -> list[str]:
    """Which rows and cells differ."""
    parts = scored.parts
    if not parts["parsed"]:
        return []
    if config.profile == "robust":
        wanted, found = map(robust_rows, _compared_documents(prediction, reference))
    else:
        wanted, found = published_rows(_read(reference)), published_rows(_read(prediction))
    pairs = align_rows(wanted, found)
    nodes, characters = _sizes(prediction, reference) if config.profile == "published" else (0, 0)
    sections = []
    if parts["teds_s"] != 1.0:
        cost = _unit_cost(config.teds_weight, nodes, "node")
        sections.append((f"structure, row by row{cost}", _row_lines(pairs)))
    if parts["s_cell"] != 1.0:
        cost = _unit_cost(config.cell_weight, characters, "character")
        sections.append((f"cells, reference -> prediction{cost}", _cell_lines(pairs)))
    if parts["p_loop"] > 0.0:
        sections.append(("rows that repeat", _loop_lines(wanted, found, config)))
    lines = []
    for title, content in sections:
        listed = _limited(content)  # nothing where a table too many is all that is wrong
        lines += ["", title, *listed] if listed else []
    return lines


def _unit_cost(weight: float, total: int, unit: str) -> str:
    """What an edit costs where the similarity is edits by a total."""
    return f" ({weight / total:.4f} a {unit})" if total else ""


def _compared_documents(prediction: str, reference: str) -> tuple[Document, Document]:
    """The reference and the prediction with nothing but the tables that the robust profile compares."""
    wanted, found = read_tables(reference), read_tables(prediction)
    limits = show(wanted).limits
    return (
        replace(wanted, tables=compared_tables(wanted)),
        replace(found, tables=compared_tables(found, limits)),
    )


def _share(prediction: str, reference: str) -> float:
    """Share of a prediction's texts that the robust profile compares."""
    return show(read_tables(prediction), show(read_tables(reference)).limits).share


def _read(markup: str) -> Table:
    table = parse_table(normalize_table(markup))
    assert table is not None  # it has been scored
    return table


def _sizes(prediction: str, reference: str) -> tuple[int, int]:
    """What the published similarities are relative to: nodes, and characters of the cell texts."""
    tables = _read(prediction), _read(reference)
    characters = max(len(" ".join(table.cell_texts)) for table in tables)
    return max(table.nodes for table in tables), characters


def _row_lines(pairs: Sequence[RowPair]) -> Iterator[str]:
    for wanted, found in pairs:
        pair = RowPair(wanted, found)
        if not pair.nodes:
            continue
        edits = counted(pair.nodes, "edit")
        if wanted is None and found is not None:
            yield f"  row {found.number} of the prediction is extra: {edits}: {_row_text(found.texts)}"
        elif wanted is not None and found is None:
            yield f"  row {wanted.number} is missing: {edits}: {_row_text(wanted.texts)}"
        elif wanted is not None and found is not None:
            changes = list(_label_changes(wanted.cells, found.cells))
            more = f", {len(changes) - _CELLS_OF_A_ROW} more" if len(changes) > _CELLS_OF_A_ROW else ""
            yield f"  row {wanted.number}: {edits}: {', '.join(changes[:_CELLS_OF_A_ROW])}{more}"


def _label_changes(wanted: Sequence[Hashable], found: Sequence[Hashable]) -> Iterator[str]:
    for edit in Levenshtein.editops(wanted, found):
        number = edit.src_pos + 1
        if edit.tag == "replace":
            yield f"cell {number} {_label_change(wanted[edit.src_pos], found[edit.dest_pos])}"
        elif edit.tag == "delete":
            yield f"cell {number} missing"
        else:
            yield f"cell {edit.dest_pos + 1} extra"


def _label_change(wanted: Hashable, found: Hashable) -> str:
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        labels = zip(("colspan ", "rowspan ", ""), wanted[1:], found[1:], strict=False)
        return " and ".join(f"{name}{left} -> {right}" for name, left, right in labels if left != right)
    return f"{_element(wanted)} -> {_element(found)}"


def _element(label: Hashable) -> str:
    return "<td>" if isinstance(label, tuple) else f"<{visible(str(label))}>"


def _cell_lines(pairs: Sequence[RowPair]) -> Iterator[str]:
    for wanted, found in pairs:
        if wanted is None or found is None:
            row = wanted or found
            if row is not None and any(row.texts):
                where = f"row {row.number}" if wanted else f"row {row.number} of the prediction"
                yield f"  {where} {'missing' if wanted else 'extra'}: {_row_text(row.texts)}"
            continue
        for edit in Levenshtein.editops(wanted.texts, found.texts):
            where = f"  row {wanted.number}, cell {edit.src_pos + 1}: "
            if edit.tag == "replace":
                left, right = wanted.texts[edit.src_pos], found.texts[edit.dest_pos]
                yield f"{where}{_around_difference(left, right)} ({counted(Levenshtein.distance(left, right), 'edit')})"
            elif edit.tag == "delete":
                yield f"{where}{quoted(wanted.texts[edit.src_pos])} missing"
            else:
                yield f"{where}{quoted(found.texts[edit.dest_pos])} extra before it"


def _around_difference(wanted: str, found: str) -> str:
    """Two texts in quotes, cut so that their first difference is seen."""
    same = Prefix.similarity(wanted, found)
    start = same - _CONTEXT if same > 2 * _CONTEXT else 0
    cut = "..." if start else ""
    return " -> ".join(f"'{cut}{visible(text[start : start + 40], 40)}'" for text in (wanted, found))


def _loop_lines(wanted: Sequence[TableRow], found: Sequence[TableRow], config: RewardConfig) -> Iterator[str]:
    wanted_counts = Counter(_key(row, config) for row in wanted)
    for key, count in Counter(_key(row, config) for row in found).most_common():
        allowed = max(config.loop_min_allowance, wanted_counts[key] + config.loop_extra_allowance)
        if count > allowed:
            yield f"  {count} times, {allowed} allowed: {_row_text(key)}"


def _key(row: TableRow, config: RewardConfig) -> tuple[str, ...]:
    """What makes a row the same as another: the robust profile does not see blank cells."""
    return tuple(filter(None, row.texts)) if config.profile == "robust" else row.texts


def _row_text(texts: Sequence[str]) -> str:
    """The beginning of a row for a line."""
    return visible(" | ".join(texts[:20])[:200], 70)


def _limited(lines: Iterator[str]) -> list[str]:
    """The first lines, and how many more there are."""
    shown = [line for line, _ in zip(lines, range(_LISTED), strict=False)]
    more = sum(1 for _ in lines)
    return [*shown, f"  ... and {more} more"] if more else shown
