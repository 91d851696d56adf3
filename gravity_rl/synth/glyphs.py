"""Which glyph lies in which square of a crop: the column ``glyphs`` of the dataset contract (``docs/DATA.md``).

The vision warm-up loss of a training from nothing asks every merged image token for the glyph in its square.
"""

from __future__ import annotations

from collections.abc import Iterable

from gravity_rl.synth.draw import Glyph

BLANK = " "


def glyph_string(glyphs: Iterable[Glyph], width: int, height: int, side: int) -> str:
    """The character drawn in each square of a crop, row by row from the top left; a space where there is none.

    Of several glyphs with their centres in one square, the one nearest to the square's centre counts.

    Args:
        glyphs: what was drawn, in pixels.
        width, height: size of the crop in pixels.
        side: side of a square in pixels.

    Raises:
        ValueError: the squares do not fill the crop.
    """
    if width % side or height % side:
        raise ValueError(f"a crop of {width}x{height} pixels is not made of squares of {side}x{side}")
    columns, rows = width // side, height // side
    squares = [BLANK] * (columns * rows)
    nearest: dict[int, float] = {}
    for glyph in glyphs:
        column, row = int(glyph.x // side), int(glyph.y // side)
        if not (0 <= column < columns and 0 <= row < rows):
            continue
        square = row * columns + column
        distance = abs(glyph.x - (column + 0.5) * side) + abs(glyph.y - (row + 0.5) * side)
        if square not in nearest or distance < nearest[square]:
            nearest[square], squares[square] = distance, glyph.char
    return "".join(squares)
