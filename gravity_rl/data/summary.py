"""One screen of text about the data of a run: where the rows come from, how they mix, how long they are."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from gravity_rl.data.contract import TASKS, Record
from gravity_rl.data.rows import Source

PRINTED_SOURCES = 12
_PERCENTILES = (50, 90, 99, 100)


def summarise(
    title: str,
    sources: Sequence[Source],
    usable: Sequence[Record],
    order: Sequence[int],
    token_counts: Mapping[tuple[str, int], int] | None,
) -> str:
    """Describe the dataset.

    Args:
        title: first words of the first line, such as `train data`.
        sources: as read.
        usable: records without problems.
        order: indices into `usable`, one per row of the final dataset.
        token_counts: tokens of each reference by (source, row), if they were counted.
    """
    read = sum(len(source.records) for source in sources)
    lines = [f"{title}: {len(order)} rows in all, from {len(usable)} usable of {read} readable rows"]
    lines += _source_table(sources, usable)
    lines += _mixture_table(usable, order)
    lines += _length_table(usable, token_counts)
    return "\n".join(lines)


def _source_table(sources: Sequence[Source], usable: Sequence[Record]) -> list[str]:
    counts = Counter((record.origin, record.task) for record in usable)
    shown = sources[:PRINTED_SOURCES]
    width = max([len("source"), *(len(source.name) for source in shown)])
    lines = [f"  {'source':<{width}}" + "".join(f"{task:>9}" for task in TASKS) + "  ignored columns"]
    for source in shown:
        row = "".join(f"{counts[source.name, task]:>9}" for task in TASKS)
        lines.append(f"  {source.name:<{width}}{row}  {', '.join(sorted(map(str, source.ignored))) or '-'}")
    if len(sources) > len(shown):
        lines.append(f"  ... and {len(sources) - len(shown)} more sources")
    return lines


def _mixture_table(usable: Sequence[Record], order: Sequence[int]) -> list[str]:
    available = Counter(record.task for record in usable)
    drawn = Counter(usable[index].task for index in order)
    lines = [f"  {'mixture':<9}{'rows':>9}{'share':>9}{'of each row':>13}"]
    for task in TASKS:
        if available[task]:
            share, passes = drawn[task] / len(order), drawn[task] / available[task]
            lines.append(f"  {task:<9}{drawn[task]:>9}{share:>9.1%}{passes:>12.2f}x")
    return lines


def _length_table(usable: Sequence[Record], token_counts: Mapping[tuple[str, int], int] | None) -> list[str]:
    header = "".join(f"{'max' if p == 100 else f'p{p}':>9}" for p in _PERCENTILES)
    lines = [f"  {'reference length':<20}{header}"]
    for task in TASKS:
        records = [record for record in usable if record.task == task]
        if not records:
            continue
        units = {"characters": [len(record.reference) for record in records]}
        if token_counts is not None:
            units["tokens"] = [token_counts[record.origin, record.row] for record in records]
        for unit, lengths in units.items():
            values = np.percentile(lengths, _PERCENTILES, method="nearest")
            lines.append(f"  {f'{task} {unit}':<20}" + "".join(f"{int(value):>9}" for value in values))
    return lines
