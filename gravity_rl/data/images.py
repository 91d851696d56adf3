"""Images of the dataset: one RGB conversion for training and validation, and the checks made before training.

An image is kept as the storage of `datasets.Image`, a dictionary of `path` and `bytes`, until the moment a
row is read, so a set of 100,000 crops needs memory for its paths only. `to_rgb` then puts it on white
paper, which is what a page is: Pillow's own conversion turns transparent pixels black and clips 16-bit
scans to white.
"""

import stat
import struct
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
from datasets.table import InMemoryTable

from gravity_rl.data.contract import is_encodable, join_path

IMAGE_STORAGE = datasets.Image(decode=False)

# Image processors of the GLM and Qwen families refuse anything longer.
MAX_ASPECT_RATIO = 200
# Pillow's own threshold for a possible decompression bomb.
MAX_DECODED_PIXELS = 89_478_485
# Raster formats only: Pillow would otherwise hand EPS files to Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
# What Pillow's decoders raise on damaged files.
_DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    OverflowError,
    struct.error,
    zlib.error,
)


def to_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    """Convert an image of any mode to 8-bit RGB, transparent parts on white, 16-bit greys scaled.

    Raises:
        ValueError: the mode has no defined brightness range (32-bit float, or integers beyond 16 bits).
    """
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise ValueError("integer pixels beyond 16 bits")
        return PIL.Image.fromarray(np.round(grey / 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels have no defined range")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        page = PIL.Image.new("RGBA", layer.size, "white")
        return PIL.Image.alpha_composite(page, layer).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def decode_rgb(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Transform of the training dataset: decoded images in, RGB images out; other columns pass through."""
    if "image" in batch:
        batch["image"] = [to_rgb(image) for image in batch["image"]]
    return batch


def encode_image(value: Any, folder: str | Path | None) -> dict[str, Any]:
    """Bring an image as a row gives it into the storage of `datasets.Image`.

    Args:
        value: path (relative to `folder`), bytes, PIL image, or a dictionary of `path` and `bytes`.
        folder: what relative paths refer to; None if there is no such folder.

    Returns:
        `{"path": str | None, "bytes": bytes | None}` with an absolute path wherever there are no bytes.

    Raises:
        ValueError: the value is none of these; the text says why.
    """
    if isinstance(value, PIL.Image.Image):
        return {"path": None, "bytes": _png(value)}
    if isinstance(value, bytes | bytearray):
        return {"path": None, "bytes": bytes(value)}
    if isinstance(value, Mapping):
        if isinstance(value.get("bytes"), bytes):
            return {"path": None, "bytes": value["bytes"]}
        if value.get("bytes") is not None:
            raise ValueError("image bytes cannot be given as text; use a path, Parquet, or a saved dataset")
        value = value.get("path")
    if isinstance(value, Path):
        value = str(value)
    if value is None:
        raise ValueError("missing")
    if not isinstance(value, str):
        raise ValueError("not a path, bytes or image")
    if value.startswith("data:"):
        raise ValueError("image bytes cannot be given as text; use a path, Parquet, or a saved dataset")
    if not value.strip() or not is_encodable(value) or "\0" in value:
        raise ValueError("not a usable path")
    return {"path": join_path(folder, value), "bytes": None}


def _png(image: PIL.Image.Image) -> bytes:
    buffer = BytesIO()
    try:
        to_rgb(image).save(buffer, format="PNG")
    except OSError as error:  # opened lazily from a damaged file
        raise ValueError(f"unreadable image: {error}") from error
    return buffer.getvalue()


def image_dataset(images: Sequence[dict[str, Any] | None] | pa.ChunkedArray) -> datasets.Dataset:
    """Build a dataset with the single column `image` from encoded images, without touching the files."""
    column = images if isinstance(images, pa.ChunkedArray) else pa.array(images, type=IMAGE_STORAGE.pa_type)
    return datasets.Dataset(
        InMemoryTable(pa.table({"image": column})),
        info=datasets.DatasetInfo(features=datasets.Features({"image": IMAGE_STORAGE})),
    )


def image_problem(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """Check one encoded image by decoding all of it the way training does.

    Returns:
        None if the image is usable, else the message and the detail of a `Problem`.
    """
    path, data = value["path"], value["bytes"]
    where = "embedded bytes" if data is not None else path
    if data is None:
        problem = _file_problem(path)
        if problem is not None:
            return problem, where
    elif not data:
        return "empty image", where
    try:
        with PIL.Image.open(path if data is None else BytesIO(data), formats=FORMATS) as header:
            width, height = header.size
        if width * height > MAX_DECODED_PIXELS:
            return "too many pixels, possible decompression bomb", f"{width} x {height}, {where}"
        if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
            return f"aspect ratio over {MAX_ASPECT_RATIO}", f"{width} x {height}, {where}"
        to_rgb(datasets.Image().decode_example(dict(value)))
    except PIL.Image.DecompressionBombError as error:
        return "too many pixels, possible decompression bomb", f"{error}, {where}"
    except PIL.UnidentifiedImageError:
        return "not an image, or an unsupported format", where
    except _DECODE_ERRORS as error:
        return "unreadable image", f"{error or type(error).__name__}, {where}"
    return None


def _file_problem(path: str) -> str | None:
    try:
        status = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return "image file not found"
    except OSError as error:
        return f"image file not accessible: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "image path is not a regular file"
    return "empty image" if status.st_size == 0 else None
