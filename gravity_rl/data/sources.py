"""Decides which reader a source needs: the single entry point from source names to `Source` objects."""

import glob
from collections.abc import Sequence
from pathlib import Path

from gravity_rl.data.arrow import read_hub, read_parquet, read_saved
from gravity_rl.data.contract import Problem
from gravity_rl.data.rows import Source, SourceError, read_jsonl

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet", ".pq")


def read_sources(specs: Sequence[str], cache_dir: str | None = None) -> tuple[list[Source], list[Problem]]:
    """Read all sources that the configuration names.

    Args:
        specs: files, glob patterns, folders, or hub names; see `docs/DATA.md`.
        cache_dir: where Parquet and hub data are unpacked; None for the default of `datasets`.

    Returns:
        The sources that could be read, and one problem for each that could not.
    """
    sources: dict[str, Source] = {}
    problems: list[Problem] = []
    for spec in specs:
        try:
            names = _expand(spec)
        except SourceError as error:
            problems.append(Problem(spec, None, "source", error.message, error.detail))
            continue
        for name in names:
            try:
                if name in sources:
                    raise SourceError("listed more than once")
                sources[name] = _read(name, cache_dir)
            except SourceError as error:
                problems.append(Problem(name, None, "source", error.message, error.detail))
    return list(sources.values()), problems


def _expand(spec: str) -> list[str]:
    """Replace a glob pattern by its files and a folder of Parquet files by these, in sorted order."""
    path = _local_path(spec)
    if path.is_dir() and not _is_saved_dataset(path):
        files = sorted(str(file) for suffix in PARQUET_SUFFIXES for file in path.glob(f"*{suffix}"))
        if not files:
            raise SourceError("folder holds neither a saved dataset nor Parquet files")
        return files
    if glob.has_magic(spec) and not path.exists():
        files = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207  (absolute patterns too)
        if not files:
            raise SourceError("pattern matches no file")
        return files
    return [spec]


def _local_path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        path.exists()
    except OSError as error:
        raise SourceError("path cannot be looked up", str(error.strerror)) from error
    except RuntimeError as error:  # there is no such user
        raise SourceError("path cannot be looked up", str(error)) from error
    return path


def _is_saved_dataset(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _read(name: str, cache_dir: str | None) -> Source:
    source = _read_any(name, cache_dir)
    if not source.records and not source.problems:
        raise SourceError("holds no rows")
    return source


def _read_any(name: str, cache_dir: str | None) -> Source:
    path = _local_path(name)
    if path.is_dir():
        return read_saved(name, path, split=None)
    if path.is_file():
        if path.suffix.lower() in JSONL_SUFFIXES:
            return read_jsonl(name, path)
        if path.suffix.lower() in PARQUET_SUFFIXES:
            return read_parquet(name, path, cache_dir)
        raise SourceError("unknown kind of file", f"expected {', '.join(JSONL_SUFFIXES + PARQUET_SUFFIXES)}")
    base, _, split = name.partition(":")
    if split and _local_path(base).is_dir():
        return read_saved(name, _local_path(base), split)
    names_a_file = path.suffix.lower() in JSONL_SUFFIXES + PARQUET_SUFFIXES
    if names_a_file or name.startswith((".", "/", "~")) or base.count("/") > 1:
        raise SourceError("file or folder not found")
    return read_hub(name, base, split or None, cache_dir)
