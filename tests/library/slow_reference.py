"""The rewards once more, as slowly and plainly as they can be written, for the tests to compare with.

Everything numeric is recomputed here: edit distances in full tables, the gate by comparing every n-gram with all
earlier ones, tree distances with apted, and the formulas of `docs/REWARDS.md` spelled out. What is read from the
library are the forms that are compared (normal forms, parsed tables, tokens, checks), which have tests of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from rewards import RewardConfig
from rewards.formula import shown_formula
from rewards.gate import Shown
from rewards.html.elements import without_written_tags
from rewards.html.reader import read_tables
from rewards.html.table import parse_table
from rewards.latex.published import canonical, checks
from rewards.latex.reader import Formula, read_formula
from rewards.markup import normalize_table
from rewards.tables.gate import Amounts, measure
from rewards.tables.robust import show
from rewards.text import compared_form, is_blank, shown_text
from rewards.trees.distance import apted_distance

Parts = dict[str, float | int | bool]
_DOTS = tuple(".·‧․‥…⋯・")


def levenshtein(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Fewest insertions, deletions and substitutions, by the whole table."""
    table = [[i + j if i * j == 0 else 0 for j in range(len(right) + 1)] for i in range(len(left) + 1)]
    for i, a in enumerate(left, 1):
        for j, b in enumerate(right, 1):
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (a != b))
    return table[-1][-1]


def similarity(left: Sequence[Hashable], right: Sequence[Hashable]) -> float:
    """1 - NED; two empty sequences are equal."""
    longer = max(len(left), len(right))
    return 1 - levenshtein(left, right) / longer if longer else 1.0


def score(task: str, prediction: str, reference: str, config: RewardConfig) -> tuple[float, Parts]:
    """Value and parts of a reward."""
    parts: Parts = {
        "gate": gate(prediction, reference, config),
        "rho8": rho8(prediction, config),
        "longest_run": longest_run(prediction),
    }
    reward = {"text": _text, "table": _table, "formula": _formula}[task]
    return reward(prediction, reference, config, parts), parts


def _text(prediction: str, reference: str, config: RewardConfig, parts: Parts) -> float:
    if config.profile == "robust":
        parts["gate"] = _shown_gate(shown_text(prediction), shown_text(reference), config)
    forms = (compared_form(prediction, config.profile), compared_form(reference, config.profile))
    alike = float(is_blank(prediction)) if is_blank(reference) else similarity(*forms)
    parts["similarity"] = alike if parts["gate"] else 0.0
    parts["ned"] = 1 - parts["similarity"]
    return parts["similarity"] * parts["gate"]


def _formula(prediction: str, reference: str, config: RewardConfig, parts: Parts) -> float:
    found, wanted = (
        read_formula(latex) if config.profile == "robust" else Formula(canonical(latex), checks(latex))
        for latex in (prediction, reference)
    )
    if config.profile == "robust":
        shown = (shown_formula(prediction, found), shown_formula(reference, wanted))
        parts["gate"] = _shown_gate(*shown, config)
    parts |= found.checks
    parts["violations"] = len([name for name in found.checks if wanted.checks[name] and not found.checks[name]])
    parts["similarity"] = similarity(found.tokens, wanted.tokens) if parts["gate"] else 0.0
    return parts["similarity"] * config.violation_factor ** parts["violations"] * parts["gate"]


def _table(prediction: str, reference: str, config: RewardConfig, parts: Parts) -> float:
    if config.profile == "robust":
        return _robust_table(prediction, reference, config, parts)
    found, wanted = parse_table(normalize_table(prediction)), parse_table(normalize_table(reference))
    assert wanted is not None
    opened, closed = prediction.lower().count("<table"), prediction.lower().count("</table>")
    parts["closed"] = 0 < opened <= closed
    parts |= {"ref_rows": len(wanted.rows), "ref_cols": wanted.columns}
    factor = parts["gate"] * (config.unclosed_factor if opened > closed else 1)
    if found is None or not factor:
        plain = similarity(prediction, reference) if factor else 0.0
        return _without_cells(plain, config, parts) * factor
    parts |= {"rows": len(found.rows), "cols": found.columns}
    parts["teds_s"] = 1 - apted_distance(found.tree, wanted.tree) / max(found.nodes, wanted.nodes)
    parts["s_cell"] = similarity(" ".join(found.cell_texts), " ".join(wanted.cell_texts))
    excess = _excess(found.rows, wanted.rows, config)
    return _combined(excess, len(found.rows), config, parts) * factor


def _robust_table(prediction: str, reference: str, config: RewardConfig, parts: Parts) -> float:
    wanted_document = read_tables(reference)
    written = any(without_written_tags(cell.text) != cell.text for cell in wanted_document.cells())
    document, wanted = read_tables(prediction, keep_written_tags=written), show(wanted_document)
    found = show(document, wanted.limits)
    amounts = measure(reference, wanted_document, 0)
    parts["gate"] = _table_gate(measure(prediction, document, amounts.blank_cells), amounts, config)
    parts["closed"] = 0 < document.opened <= document.closed
    parts |= {"ref_rows": wanted.shape.rows, "ref_cols": wanted.shape.columns}
    if not list(document.cells()):
        plain = text_similarity(document.stray_text, " ".join(wanted.texts)) if document.stray_text else 0.0
        open_tables = document.opened > document.closed
        factor = parts["gate"] * (config.unclosed_factor if open_tables else 1)
        return _without_cells(plain, config, parts) * factor
    factor = parts["gate"] * (1 if parts["closed"] else config.unclosed_factor)
    if wanted.texts and not found.texts:
        _without_cells(0.0, config, parts)
        parts["parsed"] = True
        return 0.0
    parts |= {"rows": found.shape.rows, "cols": found.shape.columns}
    surplus = 0 if wanted.limits.blanks_count else max(0, found.blanks - wanted.blanks)
    distance = apted_distance(found.tree, wanted.tree)
    parts["teds_s"] = max(0, 1 - distance / max(wanted.nodes, found.nodes - surplus)) * found.share
    alike = [cell_similarity(found.texts, wanted.texts)]
    if len(wanted.texts) < len(wanted.cells):
        alike.append(cell_similarity(found.cells, wanted.cells))
    parts["s_cell"] = min(alike) * found.share
    excess = _excess(found.rows, wanted.rows, config)
    return _combined(excess, excess + wanted.shape.rows, config, parts) * factor


def _shown_gate(found: Shown, wanted: Shown, config: RewardConfig) -> float:
    unseen = max(found.free, wanted.unseen)
    return min(gate(found.text, wanted.text, config), unseen / max(unseen, found.unseen))


def _table_gate(found: Amounts, wanted: Amounts, config: RewardConfig) -> float:
    free = config.gate_repeat_free
    unseen = max(found.free, wanted.unseen)
    return min(
        gate(found.cells, wanted.cells, config),
        gate(found.outside, wanted.outside, config),
        free / max(free, found.blanks - wanted.blanks),
        unseen / max(unseen, found.unseen),
    )


def text_similarity(left: str, right: str) -> float:
    """Of two cell texts: with or without spaces, whichever is less."""
    return min(similarity(left, right), similarity(left.replace(" ", ""), right.replace(" ", "")))


def cell_similarity(found: Sequence[str], wanted: Sequence[str]) -> float:
    """1 - cost of the cheapest alignment of all cells / number of cells in the longer sequence."""
    costs = [[float(i + j) if i * j == 0 else 0.0 for j in range(len(wanted) + 1)] for i in range(len(found) + 1)]
    for i, a in enumerate(found, 1):
        for j, b in enumerate(wanted, 1):
            paired = costs[i - 1][j - 1] + 1 - text_similarity(a, b)
            costs[i][j] = min(costs[i - 1][j] + 1, costs[i][j - 1] + 1, paired)
    longer = max(len(found), len(wanted))
    return 1 - costs[-1][-1] / longer if longer else 1.0


def _without_cells(plain: float, config: RewardConfig, parts: Parts) -> float:
    parts |= dict.fromkeys(("rows", "cols", "teds_s", "s_cell", "p_row", "p_loop", "bonus"), 0)
    parts |= {"parsed": False, "similarity": plain}
    return config.unparsed_weight * plain


def _excess(rows: Sequence[tuple[str, ...]], wanted: Sequence[tuple[str, ...]], config: RewardConfig) -> int:
    """How many rows occurred before as often as they may."""
    allowed = [max(config.loop_min_allowance, wanted.count(row) + config.loop_extra_allowance) for row in rows]
    return sum(rows[:index].count(row) >= allowed[index] for index, row in enumerate(rows))


def _combined(excess: int, among: int, config: RewardConfig, parts: Parts) -> float:
    rows, wanted = parts["rows"], parts["ref_rows"]
    parts["parsed"] = True
    parts["similarity"] = config.teds_weight * parts["teds_s"] + config.cell_weight * parts["s_cell"]
    parts["p_row"] = config.row_penalty * min(1, abs(rows - wanted) / max(wanted, config.row_penalty_min_rows))
    loop = config.loop_penalty_base + config.loop_penalty_slope * excess / max(among, 1)
    parts["p_loop"] = min(1, loop) if excess else 0
    same = [rows == wanted, parts["cols"] == parts["ref_cols"]]
    parts["bonus"] = config.shape_bonus * sum(same)
    r = min(1, max(0, parts["similarity"] * (1 - parts["p_row"]) * (1 - parts["p_loop"])))
    return r + parts["bonus"] * (1 - r)


def longest_run(text: str) -> int:
    return max((length for start in range(len(text)) for length in [_run_at(text, start)]), default=0)


def _run_at(text: str, start: int) -> int:
    end = start
    while end < len(text) and text[end] == text[start]:
        end += 1
    return end - start


def rho8(text: str, config: RewardConfig) -> float:
    tokens, n = text.split(), config.gate_ngram
    if len(tokens) < config.gate_min_tokens:
        return 1.0
    grams = [tokens[start : start + n] for start in range(len(tokens) - n + 1)]
    return sum(gram not in grams[:index] for index, gram in enumerate(grams)) / len(grams)


def gate(prediction: str, reference: str, config: RewardConfig) -> float:
    if config.profile == "robust":
        return min(1.0, _robust_g(prediction, config) / _robust_g(reference, config))
    run_term = 1 - (longest_run(prediction) - config.gate_run_free) / config.gate_run_span
    return min(1.0, rho8(prediction, config), max(0.0, run_term))


def _robust_g(text: str, config: RewardConfig) -> float:
    free = config.gate_repeat_free
    as_written = [unit for unit, _ in _units(text)]
    shapes = [shape for _, shape in _units(text)]
    repeats = _repeats(as_written, config.gate_ngram) + _repeats(shapes, config.gate_ngram)
    return free / max(free, repeats)


def _repeats(units: list[Hashable], n: int) -> int:
    """How many n-grams occurred at least twice before."""
    grams = [units[start : start + n] for start in range(len(units) - n + 1)]
    return sum(grams[:index].count(gram) >= 2 for index, gram in enumerate(grams))


def _units(text: str) -> list[tuple[Hashable, Hashable]]:
    """The units of a text, each as it is written and by its shape, found character by character."""
    units: list[tuple[Hashable, Hashable]] = []
    open_tags: list[str] = []
    last_number = 0
    position = 0
    while position < len(text):
        char = text[position]
        end = _tag_end(text, position)
        if end:
            tag = text[position:end]
            name = _tag_name(tag)
            if not tag.startswith("</"):
                open_tags.append(name)
                units.append((tag, ("opens", name)))
            elif name in open_tags:
                open_tags.remove(name)
            else:
                units.append((tag, ("closes", name)))
        elif char.isdecimal():
            end = position
            while end < len(text) and text[end].isdecimal():
                end += 1
            digits = text[position:end]
            if len(digits) <= 18:
                units.append((("step", int(digits) - last_number), "number"))
                last_number = int(digits)
            else:
                units += [(digit, digit) for digit in digits]
        elif _label_end(text, position):
            end = _label_end(text, position)
            units.append((text[position:end], "number"))
        elif char in _DOTS:
            dots, end = [], position
            while end < len(text) and (text[end] in _DOTS or text[end].isspace()):
                dots += [text[end]] if text[end] in _DOTS else []
                end += 1
            units += [("leader", "leader")] if 3 <= len(dots) <= 100 else [(dot, dot) for dot in dots]
        else:
            end = position + 1
            if not char.isspace():
                units.append((char, char))
        position = end
    return units


def _tag_end(text: str, start: int) -> int:
    """Where the tag that begins at a position ends; 0 if none begins there."""
    if text[start] != "<":
        return 0
    name = start + 2 if text[start + 1 : start + 2] == "/" else start + 1
    letter = text[name : name + 1]
    if not (letter.isascii() and letter.isalpha()):
        return 0
    end = name + 1
    while end < len(text) and end - name <= 15 and text[end] not in "<>/" and not text[end].isspace():
        end += 1
    attributes = end
    while end < len(text) and end - attributes < 112 and text[end] not in "<>":
        end += 1
    return end + 1 if text[end : end + 1] == ">" else 0


def _tag_name(tag: str) -> str:
    inside = tag[1:-1].removeprefix("/")
    for length, char in enumerate(inside):
        if char == "/" or char.isspace() or length > 15:
            return inside[:length].lower()
    return inside.lower()


def _label_end(text: str, start: int) -> int:
    """Where the label of a list item (`a` in `a)`) that begins at a position ends; 0 if none begins there."""
    before = text[start - 1 : start] if start else ""
    if before.isalnum() or before == "_":
        return 0
    end = start
    while end < len(text) and text[end].isascii() and text[end].isalpha():
        end += 1
    return end if 1 <= end - start <= 4 and text[end : end + 1] in (".", ")") else 0
