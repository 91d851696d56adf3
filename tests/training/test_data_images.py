"""Images: what training sees of each mode, and which files are refused before it starts."""

import os
import struct
import zlib
from io import BytesIO

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gravity_rl.data.images import decode_rgb, image_problem, to_rgb

WHITE, BLACK, RED = (255, 255, 255), (0, 0, 0), (255, 0, 0)


def encoded(image, file_format="PNG", **options):
    buffer = BytesIO()
    image.save(buffer, format=file_format, **options)
    return buffer.getvalue()


def reloaded(image, file_format="PNG", **options):
    """The image as training gets it, after a trip through a file."""
    data = encoded(image, file_format, **options)
    assert image_problem({"path": None, "bytes": data}) is None
    decoded = datasets.Image().decode_example({"path": None, "bytes": data})
    (result,) = decode_rgb({"image": [decoded]})["image"]
    assert result.mode == "RGB"
    return result


def page(mode, ink, paper):
    """Two pixels: ink, paper."""
    image = Image.new(mode, (2, 1), paper)
    image.putpixel((0, 0), ink)
    return image


def pixels(image):
    return [image.getpixel((x, 0)) for x in range(image.width)]


# Modes


def test_plain_modes():
    assert pixels(reloaded(page("RGB", RED, WHITE))) == [RED, WHITE]
    assert pixels(reloaded(page("L", 0, 255))) == [BLACK, WHITE]
    assert pixels(reloaded(page("1", 0, 1))) == [BLACK, WHITE]
    assert pixels(reloaded(page("RGB", RED, WHITE).quantize(4))) == [RED, WHITE]


@pytest.mark.parametrize("hidden", [BLACK, WHITE, RED])
def test_transparent_pixels_are_white_paper_whatever_colour_they_hide(hidden):
    assert pixels(reloaded(page("RGBA", (*RED, 255), (*hidden, 0)))) == [RED, WHITE]


def test_half_transparent_ink_is_blended_with_white():
    (first, _) = pixels(reloaded(page("LA", (0, 128), (0, 0))))
    assert first == (127, 127, 127)


def test_transparent_palette_entry_and_transparent_colour():
    palette = page("RGB", RED, BLACK).quantize(4)
    black = palette.getpixel((1, 0))
    assert pixels(reloaded(palette, transparency=black)) == [RED, WHITE]
    assert pixels(reloaded(palette, "GIF", transparency=black)) == [RED, WHITE]
    assert pixels(reloaded(page("RGB", RED, BLACK), transparency=BLACK)) == [RED, WHITE]
    assert pixels(reloaded(page("L", 7, 0), transparency=0)) == [(7, 7, 7), WHITE]


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "JPEG2000"])
def test_16_bit_scans_are_scaled_not_clipped(file_format):
    grey = np.array([[0, 128, 257 * 128, 65535]] * 4, dtype=np.uint16)
    expected = [BLACK, (0, 0, 0), (128, 128, 128), WHITE]
    assert pixels(reloaded(Image.fromarray(grey), file_format)) == expected


def test_16_bit_pgm():
    data = b"P5 3 1 65535\n" + struct.pack(">3H", 0, 257 * 128, 65535)
    assert image_problem({"path": None, "bytes": data}) is None
    assert pixels(to_rgb(Image.open(BytesIO(data)))) == [BLACK, (128, 128, 128), WHITE]


def test_cmyk_jpeg_is_not_inverted():
    ink = page("RGB", BLACK, WHITE).resize((16, 8), Image.Resampling.NEAREST).convert("CMYK")
    image = reloaded(ink, "JPEG", quality=95)
    assert max(image.getpixel((2, 4))) < 40
    assert min(image.getpixel((13, 4))) > 215


def test_exif_rotation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    assert reloaded(Image.new("RGB", (40, 10)), "JPEG", exif=exif).size == (10, 40)


@pytest.mark.parametrize("image", [Image.new("F", (2, 2)), Image.new("I", (2, 2), 70_000), Image.new("I", (2, 2), -1)])
def test_pixels_without_a_defined_range_are_refused(image):
    with pytest.raises(ValueError, match="pixels"):
        to_rgb(image)
    message, _ = image_problem({"path": None, "bytes": encoded(image, "TIFF")})
    assert message == "unreadable image"


def test_other_columns_pass_through():
    assert decode_rgb({"task": ["text"]}) == {"task": ["text"]}


# Files


def problem_of(path):
    found = image_problem({"path": str(path), "bytes": None})
    return None if found is None else found[0]


def test_files_that_are_no_images(tmp_path):
    (tmp_path / "zero.png").touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "text.png").write_text("not an image")
    os.mkfifo(tmp_path / "pipe.png")
    assert problem_of(tmp_path / "missing.png") == "image file not found"
    assert problem_of(tmp_path / "text.png" / "below.png") == "image file not found"
    assert problem_of(tmp_path / "dangling.png") == "image file not found"
    assert problem_of(tmp_path / "zero.png") == "empty image"
    assert problem_of(tmp_path / "folder.png") == "image path is not a regular file"
    assert problem_of(tmp_path / "pipe.png") == "image path is not a regular file"
    assert problem_of(tmp_path / "text.png") == "not an image, or an unsupported format"
    assert problem_of(tmp_path / "loop.png").startswith("image file not accessible")
    assert problem_of(tmp_path / ("x" * 5000)).startswith("image file not accessible")


def test_good_file_and_its_symlink(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "good.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "good.png")
    assert problem_of(tmp_path / "good.png") is None
    assert problem_of(tmp_path / "link.png") is None


def test_postscript_is_not_executed():
    eps = encoded(Image.new("RGB", (8, 8)), "EPS")
    assert image_problem({"path": None, "bytes": eps})[0] == "not an image, or an unsupported format"


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP"])
def test_truncated_image_is_found_although_its_header_is_whole(file_format):
    data = encoded(NOISE.resize((64, 64)), file_format)
    assert image_problem({"path": None, "bytes": data}) is None
    assert image_problem({"path": None, "bytes": data[: len(data) * 2 // 3]}) is not None


def test_empty_bytes():
    assert image_problem({"path": None, "bytes": b""}) == ("empty image", "embedded bytes")


def png_header(width, height):
    """A PNG that claims a size and holds almost no pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(10_000, 10_000), (60_000, 60_000)])
def test_decompression_bomb_is_refused_before_it_is_decoded(size):
    message, detail = image_problem({"path": None, "bytes": png_header(*size)})
    assert message == "too many pixels, possible decompression bomb"
    assert detail


def test_aspect_ratio_limit_of_the_image_processors():
    assert image_problem({"path": None, "bytes": encoded(Image.new("L", (400, 2)))}) is None
    message, detail = image_problem({"path": None, "bytes": encoded(Image.new("L", (2, 401)))})
    assert message == "aspect ratio over 200"
    assert detail.startswith("2 x 401")


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8))
SEEDS = {
    file_format: encoded(NOISE, file_format) for file_format in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "PPM", "JPEG2000")
}


@settings(deadline=None)
@given(
    st.sampled_from(sorted(SEEDS)),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8),
    st.floats(0, 1),
)
def test_damaged_bytes_are_a_problem_or_an_image_but_never_a_crash(file_format, edits, kept):
    data = bytearray(SEEDS[file_format])
    for position, value in edits:
        data[position % len(data)] = value
    value = {"path": None, "bytes": bytes(data[: round(kept * len(data))])}
    found = image_problem(value)
    if found is None:
        assert to_rgb(datasets.Image().decode_example(value)).mode == "RGB"
    else:
        assert found[0]
