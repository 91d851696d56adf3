"""Sources that `datasets` memory-maps: Parquet files, saved datasets, and datasets from the hub.

Only their text columns are read into memory. Embedded image bytes stay on disk in the Arrow file until a
row is used; Parquet is unpacked to such a file in the cache of `datasets` first.
"""

import glob
from collections.abc import Sequence
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.exceptions import DatasetGenerationError

from gravity_rl.data.contract import (
    ALIASES,
    REQUIRED_COLUMNS,
    TEXT_COLUMNS,
    Problem,
    Record,
    parse_record,
    shorten,
)
from gravity_rl.data.images import IMAGE_STORAGE, encode_image, image_dataset
from gravity_rl.data.rows import Source, SourceError


def read_parquet(name: str, path: Path, cache_dir: str | None) -> Source:
    """Read one Parquet file; image paths in it are relative to its folder.

    Raises:
        SourceError: the file is damaged or lacks a required column.
    """
    try:
        columns = pq.read_schema(path).names
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError("unreadable Parquet file", shorten(str(error), 200)) from error
    _require_columns(columns)
    wanted = [column for column in columns if column in ("image", *TEXT_COLUMNS)]
    try:
        dataset = datasets.Dataset.from_parquet(glob.escape(str(path.absolute())), cache_dir=cache_dir, columns=wanted)
    except (DatasetGenerationError, pa.ArrowInvalid) as error:
        raise SourceError("unreadable Parquet file", shorten(str(error.__cause__ or error), 200)) from error
    source = _from_dataset(name, dataset, path.absolute().parent)
    source.ignored = set(columns) - set(wanted)
    return source


def read_saved(name: str, path: Path, split: str | None) -> Source:
    """Read a folder written by `save_to_disk`; image paths in it are relative to the folder.

    Raises:
        SourceError: the folder is damaged, lacks a required column, or leaves open which split is meant.
    """
    try:
        dataset = datasets.load_from_disk(str(path))
    except (OSError, ValueError, pa.ArrowInvalid, KeyError) as error:
        raise SourceError("unreadable saved dataset", shorten(str(error), 200)) from error
    return _from_dataset(name, _choose_split(dataset, split), path.absolute())


def read_hub(name: str, repository: str, split: str | None, cache_dir: str | None) -> Source:
    """Download a dataset from the hub, or take it from the cache. Its images must be embedded.

    Raises:
        SourceError: it cannot be reached, lacks a required column, or leaves open which split is meant.
    """
    try:
        dataset = datasets.load_dataset(repository, cache_dir=cache_dir)
    except (OSError, ValueError, DatasetGenerationError) as error:
        message = "no such file or folder, and not available as a dataset from the hub"
        raise SourceError(message, shorten(str(error), 200)) from error
    return _from_dataset(name, _choose_split(dataset, split), folder=None)


def _choose_split(dataset: datasets.Dataset | datasets.DatasetDict, split: str | None) -> datasets.Dataset:
    if isinstance(dataset, datasets.Dataset):
        if split is not None:
            raise SourceError("has no splits", f"asked for {split!r}")
        return dataset
    if split is None and len(dataset) == 1:
        return next(iter(dataset.values()))
    if split not in dataset:
        raise SourceError("name the split as in name:split", f"it has {', '.join(map(str, dataset))}")
    return dataset[split]


def _from_dataset(name: str, dataset: datasets.Dataset, folder: Path | None) -> Source:
    """Read the text columns of an Arrow dataset and leave its images where they are."""
    _require_columns(dataset.column_names)
    text = [column for column in dataset.column_names if column in TEXT_COLUMNS]
    images, problems = _image_column(name, dataset, folder)
    records: list[Record] = []
    for row, values in enumerate(dataset.select_columns(text).to_list(), start=1):
        record, found = parse_record(values, name, row)
        records.append(record)
        problems += found
    problems.sort(key=lambda problem: problem.row or 0)
    return Source(name, records, images, problems, set(dataset.column_names) - {"image", *text})


def _require_columns(columns: Sequence[str]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in columns and ALIASES.get(name) not in columns]
    if missing:
        raise SourceError(f"lacks the column {' and '.join(missing)}", f"it has {', '.join(columns)}")


def _image_column(name: str, dataset: datasets.Dataset, folder: Path | None) -> tuple[datasets.Dataset, list[Problem]]:
    """Return the images in the storage of `datasets.Image`: bytes untouched, paths made absolute."""
    images = dataset.select_columns("image")
    kind = images.features.arrow_schema.field("image").type
    holds_paths = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    holds_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    holds_both = pa.types.is_struct(kind) and {child.name for child in kind} <= {"bytes", "path"}
    if not (holds_paths or holds_bytes or holds_both):
        raise SourceError("column image holds neither paths nor bytes nor images", f"its type is {kind}")
    images = images.cast_column("image", IMAGE_STORAGE)
    problems: list[Problem] = []
    chunks: list[pa.StructArray] = []
    row, resolved = 0, False
    for chunk in images.data.column("image").chunks:
        contents, stored_paths = chunk.flatten()
        paths = stored_paths.to_pylist()
        for index, embedded in enumerate(contents.is_valid().to_pylist()):
            row += 1
            if embedded:
                continue
            resolved = True
            path, paths[index] = paths[index], None
            try:
                paths[index] = encode_image(path, folder)["path"]
            except ValueError as error:
                problems.append(Problem(name, row, "image", str(error), "" if path is None else shorten(path)))
        chunks.append(pa.StructArray.from_arrays([contents, pa.array(paths, pa.string())], ["bytes", "path"]))
    # A column of embedded bytes is left as it is, because it is memory-mapped.
    return (image_dataset(pa.chunked_array(chunks)) if resolved else images), problems
