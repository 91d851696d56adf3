"""Checks every row before a model is loaded, and reports all problems together.

Reading has already found malformed rows; here follow the checks that need other rows, a tokenizer, the
image files or the rewards. In a distributed run each rank decodes and scores its share of the rows, and all
ranks receive all problems, so they agree on which rows to use and start-up time shrinks with the number of
ranks.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import PIL.Image
import torch.distributed
from tqdm.auto import tqdm

from gravity_rl.data.contract import Problem, Record, shorten
from gravity_rl.data.images import image_problem
from gravity_rl.data.rows import Source
from rewards import Score

Scorer = Callable[[str, str, str], Score]
T = TypeVar("T")

GATED_REFERENCE = "repetitive: the degeneration gate holds even a perfect completion below 1"
SPECIAL_IN_PROMPT = "contains a special token"
_TOKENIZER_BATCH = 512
_TOLERANCE = 1e-9


@dataclass
class Validation:
    """Result of `validate_sources`.

    Attributes:
        problems: everything that is wrong, those found while reading included, in the order of the rows.
        warnings: references that are usable but cannot reach reward 1 under the published gate.
        token_counts: tokens of the reference of each usable record by (source, row), end token not counted;
            None without a tokenizer.
    """

    problems: list[Problem]
    warnings: list[Problem] = field(default_factory=list)
    token_counts: dict[tuple[str, int], int] | None = None

    @property
    def bad_rows(self) -> set[tuple[str, int]]:
        """(source, row) of every row that must not be used."""
        return {(problem.source, problem.row) for problem in self.problems if problem.row is not None}


def validate_sources(
    sources: Sequence[Source],
    *,
    image_workers: int,
    tokenizer: Any = None,
    max_completion_length: int | None = None,
    scorer: Scorer | None = None,
) -> Validation:
    """Check all rows of all sources.

    Args:
        sources: as read; their names must differ.
        image_workers: threads that decode images.
        tokenizer: counts reference tokens, and knows the special tokens that a prompt must not contain.
        max_completion_length: limit in tokens, the end token included; needs `tokenizer`.
        scorer: if given, every reference has to score 1 against itself; called as
            `scorer(task, prediction, reference)`.

    Raises:
        ValueError: a completion limit is given without a tokenizer, or two sources have the same name.
    """
    if max_completion_length is not None and tokenizer is None:
        raise ValueError("max_completion_length is counted in tokens: pass the tokenizer")
    place = {source.name: index for index, source in enumerate(sources)}
    if len(place) < len(sources):
        raise ValueError("two sources have the same name")
    records = [record for source in sources for record in source.records]
    result = Validation([problem for source in sources for problem in source.problems])
    malformed = result.bad_rows
    readable = [record for record in records if (record.origin, record.row) not in malformed]
    result.problems += _duplicate_ids(records)
    result.problems += _image_problems(sources, image_workers)
    if tokenizer is not None:
        result.problems += _prompt_problems(readable, tokenizer)
        result.token_counts = _count_tokens(readable, tokenizer)
        if max_completion_length is not None:
            result.problems += _length_problems(readable, result.token_counts, max_completion_length)
    if scorer is not None:
        found = _gather(list(_score_problems(readable, scorer)))
        result.problems += [problem for problem, is_warning in found if not is_warning]
        result.warnings += [problem for problem, is_warning in found if is_warning]
    for problems in (result.problems, result.warnings):
        problems.sort(key=lambda problem: (place[problem.source], problem.row or 0))
    return result


def special_tokens(tokenizer: Any) -> list[str]:
    """Return the tokens that a prompt must not spell out, such as the image placeholder."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def is_main_process() -> bool:
    """Whether this process should talk to the user: rank 0, or the only one."""
    return _rank_and_world()[0] == 0


def _duplicate_ids(records: Iterable[Record]) -> Iterator[Problem]:
    first: dict[str, Record] = {}
    for record in records:
        other = first.setdefault(record.id, record)
        if other is not record:
            detail = f"{shorten(record.id)} is also {other.origin}:{other.row}"
            yield Problem(record.origin, record.row, "id", "not unique", detail)


def _image_problems(sources: Sequence[Source], workers: int) -> list[Problem]:
    """Decode all images that the readers accepted, each rank its share."""
    rows = [(source, index) for source in sources for index in range(len(source.records))]

    def check(row: tuple[Source, int]) -> Problem | None:
        source, index = row
        image = source.images[index]["image"]
        if image is None or (image["path"] is None and image["bytes"] is None):
            return None  # reported when it was read
        found = image_problem(image)
        return None if found is None else Problem(source.name, source.records[index].row, "image", *found)

    share = _share(rows)
    PIL.Image.init()  # loads the decoders; left to the threads, they would race for it
    with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
        # Images over the limit are reported as problems; damaged metadata does not hurt the pixels.
        warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", module="PIL")
        results = _progress(pool.map(check, share), "checking images", len(share))
        found = [problem for problem in results if problem is not None]
    return _gather(found)


def _prompt_problems(records: Iterable[Record], tokenizer: Any) -> Iterator[Problem]:
    special = special_tokens(tokenizer)
    for record in records:
        inside = [token for token in special if token in (record.prompt or "")]
        if inside:
            yield Problem(record.origin, record.row, "prompt", SPECIAL_IN_PROMPT, ", ".join(inside))


def _count_tokens(records: Sequence[Record], tokenizer: Any) -> dict[tuple[str, int], int]:
    counts: dict[tuple[str, int], int] = {}
    starts = range(0, len(records), _TOKENIZER_BATCH)
    for start in _progress(starts, "counting tokens", len(starts)):
        batch = records[start : start + _TOKENIZER_BATCH]
        encoded = tokenizer([record.reference for record in batch], add_special_tokens=False)["input_ids"]
        for record, ids in zip(batch, encoded, strict=True):
            counts[record.origin, record.row] = len(ids)
    return counts


def _length_problems(
    records: Iterable[Record], counts: dict[tuple[str, int], int], max_completion_length: int
) -> Iterator[Problem]:
    for record in records:
        count = counts[record.origin, record.row] + 1
        if count > max_completion_length:
            detail = f"{count} tokens with the end token, limit {max_completion_length}"
            yield Problem(record.origin, record.row, "reference", "longer than the completion limit", detail)


def _score_problems(records: Sequence[Record], scorer: Scorer) -> Iterator[tuple[Problem, bool]]:
    """Score references against themselves, each rank its share; yield problems, and which are warnings."""
    share = _share(records)
    for record in _progress(share, "scoring references", len(share)):
        try:
            score = scorer(record.task, record.reference, record.reference)
        except ValueError as error:
            detail = shorten(str(error), 200)
            yield Problem(record.origin, record.row, "reference", "refused by the reward", detail), False
            continue
        if score.value >= 1 - _TOLERANCE:
            continue
        capped_by_gate = score.value >= score.parts["gate"] - _TOLERANCE
        message = GATED_REFERENCE if capped_by_gate else "does not score 1 against itself"
        yield Problem(record.origin, record.row, "reference", message, f"{score.value:.4f}"), capped_by_gate


def _progress(items: Iterable[T], what: str, total: int) -> Iterable[T]:
    return tqdm(items, desc=what, total=total, disable=not is_main_process(), leave=False)


def _rank_and_world() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _share(items: Sequence[T]) -> Sequence[T]:
    """Return the items that this rank works on."""
    rank, world = _rank_and_world()
    return items[rank::world]


def _gather(found: list[T]) -> list[T]:
    """Return what all ranks found, the same list on each of them."""
    _, world = _rank_and_world()
    if world == 1:
        return found
    gathered: list[Any] = [None] * world
    torch.distributed.all_gather_object(gathered, found)
    return [item for part in gathered for item in part]
