"""The knobs of the crop generator, and named settings of them.

A knob is a range or a probability; everything random is drawn from one seed, so a crop is a pure function of
(knobs, task, split, seed). ``PRESETS["tiny"]`` is what the shipped tiny model is trained on, ``"tiny-easy"`` what a
model that cannot read yet starts with; ``"standard"`` and ``"dense"`` go far beyond what a model of that size can read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class CropKnobs:
    """How crops look and how much they hold. Lengths are in pixels unless they say otherwise."""

    # Appearance
    fonts: tuple[str, ...] = ("DejaVu Sans Mono", "DejaVu Sans", "DejaVu Serif", "STIXGeneral")
    """font families to draw text and tables with; matplotlib ships these four"""
    font_px: tuple[int, int] = (14, 24)
    """smallest and largest font size"""
    grid_px: int = 0
    """if positive, text and tables are letter-spaced: every glyph is centred in a square of a grid of this pitch"""
    glyph_jitter: float = 0.7
    """largest shift of a single glyph, each way"""
    rotation_deg: float = 1.5
    """largest rotation of the crop, each way, in degrees"""
    noise: float = 12.0
    """standard deviation of the pixel noise, in grey levels of 255"""
    blur: float = 0.6
    """largest radius of the Gaussian blur"""
    ink: tuple[int, int] = (0, 90)
    """darkest and lightest grey level of the ink"""
    margin: tuple[int, int] = (4, 16)
    """smallest and largest white margin around the content"""
    size_multiple: int = 1
    """crop width and height are padded to a multiple of this"""

    # Text
    lines: tuple[int, int] = (1, 6)
    """fewest and most lines of a text crop"""
    line_chars: tuple[int, int] = (8, 48)
    """fewest and most characters a text line may have"""

    # Tables
    rows: tuple[int, int] = (2, 12)
    """fewest and most table rows, header included"""
    cols: tuple[int, int] = (2, 6)
    """fewest and most table columns"""
    cell_chars: tuple[int, int] = (1, 12)
    """fewest and most characters of a cell that is not empty"""
    empty_cell: float = 0.12
    """probability that a body cell is empty"""
    header: float = 0.6
    """probability that the first row is a header row (bold, ``th``)"""
    spans: float = 0.4
    """probability that a table has cells with rowspan or colspan"""
    ruled: float = 0.6
    """probability that a table is fully ruled; otherwise only header lines, or no line at all"""

    # Formulas
    formula_terms: int = 3
    """most terms on a side of a relation"""
    formula_depth: int = 2
    """how deeply fractions, roots and scripts may be nested"""
    formula_px: tuple[int, int] = (20, 28)
    """smallest and largest font size of a formula"""


_TINY = CropKnobs(
    fonts=("DejaVu Sans Mono",),
    font_px=(14, 16),
    grid_px=16,
    glyph_jitter=1.0,
    rotation_deg=0.0,
    noise=4.0,
    blur=0.0,
    ink=(0, 60),
    margin=(0, 0),
    size_multiple=16,
    lines=(1, 3),
    line_chars=(6, 13),
    rows=(2, 4),
    cols=(2, 3),
    cell_chars=(1, 3),
    formula_terms=2,
    formula_depth=1,
    formula_px=(24, 26),
)

PRESETS: dict[str, CropKnobs] = {
    "tiny": _TINY,
    "tiny-easy": replace(_TINY, lines=(1, 1), line_chars=(3, 8), rows=(1, 2), cols=(2, 2), formula_terms=1),
    "standard": CropKnobs(),
    "dense": CropKnobs(
        font_px=(11, 16),
        margin=(2, 24),
        lines=(4, 20),
        line_chars=(40, 90),
        rows=(20, 40),
        cols=(4, 9),
        formula_terms=5,
        formula_depth=3,
        formula_px=(16, 28),
    ),
}
