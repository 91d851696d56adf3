"""Draws sampled content into grey-level images and says where each glyph went.

Text and tables are drawn glyph by glyph with PIL from the fonts that matplotlib ships; formulas by matplotlib's
mathtext. Glyph centres are kept, because the tiny model's vision warm-up needs them.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from matplotlib import font_manager
from matplotlib.mathtext import MathTextParser
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from gravity_rl.synth.knobs import CropKnobs
from gravity_rl.synth.table import Cell, Table


@dataclass(frozen=True)
class Glyph:
    """A drawn character and the pixel coordinates of its centre.

    In formulas the character is the code of the glyph in its font, which for the symbols of Computer Modern is not
    their Unicode code point, and the centre is that of a lower-case letter in its place.
    """

    char: str
    x: float
    y: float


@dataclass(frozen=True)
class Drawing:
    """An 8-bit grey image (0 is black) and its glyphs."""

    image: Image.Image
    glyphs: tuple[Glyph, ...]


@lru_cache(maxsize=256)
def load_font(family: str, size_px: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """A font that matplotlib finds; a missing family is an error, never a silent replacement."""
    wanted = font_manager.FontProperties(family=family, weight="bold" if bold else "regular")
    return ImageFont.truetype(font_manager.findfont(wanted, fallback_to_default=False), size_px)


@dataclass(frozen=True)
class _Pitch:
    """How glyphs and lines are spaced: by the font, or on a square grid (``grid`` > 0)."""

    grid: int

    def advance(self, text: str, font: ImageFont.FreeTypeFont) -> float:
        """Width of a run of glyphs."""
        return self.grid * len(text) if self.grid else font.getlength(text)

    def line(self, font: ImageFont.FreeTypeFont, leading: float) -> float:
        """Distance between two baselines."""
        return self.grid or round(sum(font.getmetrics()) * leading)

    def snap(self, length: float) -> float:
        """The next grid line at or after ``length``."""
        return math.ceil(length / self.grid) * self.grid if self.grid else length


class _Pen:
    """Draws runs of glyphs on one canvas with the spacing and the jitter of the knobs."""

    def __init__(self, canvas: ImageDraw.ImageDraw, rng: random.Random, knobs: CropKnobs):
        self.canvas, self.rng, self.jitter = canvas, rng, knobs.glyph_jitter
        self.pitch, self.ink = _Pitch(knobs.grid_px), rng.randint(*knobs.ink)
        self.glyphs: list[Glyph] = []

    def run(self, text: str, left: float, middle: float, font: ImageFont.FreeTypeFont) -> None:
        """One line of text from ``left``, vertically centred on ``middle``."""
        top = middle - sum(font.getmetrics()) / 2
        for char in text:
            advance = self.pitch.advance(char, font)
            if char != " ":
                x = left + advance / 2 + self.rng.uniform(-self.jitter, self.jitter)
                dy = self.rng.uniform(-self.jitter, self.jitter)
                self.canvas.text((x - font.getlength(char) / 2, top + dy), char, font=font, fill=self.ink)
                self.glyphs.append(Glyph(char, x, middle + dy))
            left += advance


def _margins(rng: random.Random, knobs: CropKnobs) -> tuple[int, int, int, int]:
    """Left, top, right and bottom margin."""
    left, top, right, bottom = (rng.randint(*knobs.margin) for _ in range(4))
    return left, top, right, bottom


def _canvas(width: float, height: float) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("L", (math.ceil(width), math.ceil(height)), 255)
    return image, ImageDraw.Draw(image)


def draw_text(lines: list[str], rng: random.Random, knobs: CropKnobs) -> Drawing:
    """Left-aligned lines."""
    font = load_font(rng.choice(knobs.fonts), rng.randint(*knobs.font_px))
    spacing = _Pitch(knobs.grid_px)
    pitch = spacing.line(font, rng.uniform(1.0, 1.15))
    left, top, right, bottom = _margins(rng, knobs)
    width = max(spacing.advance(line, font) for line in lines)
    image, canvas = _canvas(left + width + right, top + pitch * len(lines) + bottom)
    pen = _Pen(canvas, rng, knobs)
    for number, line in enumerate(lines):
        pen.run(line, left, top + (number + 0.5) * pitch, font)
    return Drawing(image, tuple(pen.glyphs))


def _column_edges(table: Table, fonts: dict[bool, ImageFont.FreeTypeFont], pad: float, spacing: _Pitch) -> list[float]:
    """Left edge of each column, and the right edge of the last; wide spans widen their last column."""
    minimum = spacing.advance("00", fonts[False]) + 2 * pad
    edges = [0.0]
    for col in range(table.cols):
        edge = edges[-1] + minimum
        for cell in table.cells:
            if cell.col + cell.colspan - 1 == col:
                edge = max(edge, edges[cell.col] + spacing.advance(cell.text, fonts[cell.header]) + 2 * pad)
        edges.append(spacing.snap(edge))
    return edges


def _rules(style: str, table: Table, cell: Cell, box: tuple[float, float, float, float], canvas: ImageDraw.ImageDraw,
           ink: int) -> None:  # fmt: skip
    """Draws the lines of one cell: a box when ruled, a line under the header for ``header`` style."""
    x0, y0, x1, y1 = box
    if style == "ruled":
        canvas.rectangle([x0, y0, x1, y1], outline=ink)
    elif style == "header":
        if cell.row == 0:
            canvas.line([x0, y0, x1, y0], fill=ink)
            canvas.line([x0, y1, x1, y1], fill=ink)
        if cell.row + cell.rowspan == table.rows:
            canvas.line([x0, y1, x1, y1], fill=ink)


def draw_table(table: Table, rng: random.Random, knobs: CropKnobs) -> Drawing:
    """A table, ruled, with lines around the header only, or borderless."""
    family, size = rng.choice(knobs.fonts), rng.randint(*knobs.font_px)
    fonts = {False: load_font(family, size), True: load_font(family, size, bold=True)}
    spacing = _Pitch(knobs.grid_px)
    pad = spacing.grid / 2 or max(3, round(size * rng.uniform(0.25, 0.45)))
    pitch = spacing.line(fonts[False], rng.uniform(1.1, 1.3))
    draw = rng.random()
    style = "ruled" if draw < knobs.ruled else "header" if draw < (1 + knobs.ruled) / 2 else "borderless"
    left, top, right, bottom = _margins(rng, knobs)
    edges = _column_edges(table, fonts, pad, spacing)
    image, canvas = _canvas(left + edges[-1] + right, top + pitch * table.rows + bottom)
    pen = _Pen(canvas, rng, knobs)
    centred = rng.random() < 0.5
    for cell in table.cells:
        x0, x1 = left + edges[cell.col], left + edges[cell.col + cell.colspan]
        y0, y1 = top + cell.row * pitch, top + (cell.row + cell.rowspan) * pitch
        font = fonts[cell.header]
        slack = x1 - x0 - spacing.advance(cell.text, font)
        pen.run(cell.text, x0 + (spacing.snap(slack / 2) if centred else pad), (y0 + y1) / 2, font)
        box = (x0, y0, min(x1, image.width - 1), min(y1, image.height - 1))
        _rules(style, table, cell, box, canvas, pen.ink)
    return Drawing(image, tuple(pen.glyphs))


@lru_cache(maxsize=1)
def _math_parsers() -> tuple[MathTextParser, MathTextParser]:
    return MathTextParser("agg"), MathTextParser("path")


def draw_formula(latex: str, rng: random.Random, knobs: CropKnobs) -> Drawing:
    """A formula in Computer Modern, drawn by mathtext at one point a pixel."""
    raster_parser, path_parser = _math_parsers()
    prop = font_manager.FontProperties(size=rng.randint(*knobs.formula_px), math_fontfamily="cm")
    raster = raster_parser.parse(f"${latex}$", dpi=72, prop=prop)
    coverage = np.asarray(raster.image)
    left, top, right, bottom = _margins(rng, knobs)
    image, _ = _canvas(left + coverage.shape[1] + right, top + coverage.shape[0] + bottom)
    ink = rng.randint(*knobs.ink)
    grey = 255 - coverage.astype(np.float32) * ((255 - ink) / 255)
    image.paste(Image.fromarray(grey.round().astype(np.uint8)), (left, top))
    vector = path_parser.parse(f"${latex}$", dpi=72, prop=prop)
    glyphs = tuple(
        Glyph(chr(code), left + x + 0.25 * size, top + (raster.image.shape[0] - raster.depth) - y - 0.3 * size)
        for _, size, code, x, y in ((g[0], g[1], g[2], g[-2], g[-1]) for g in vector.glyphs)
    )
    return Drawing(image, glyphs)


def _rotated(drawing: Drawing, degrees: float) -> Drawing:
    """Rotates about the centre, enlarging the canvas so that nothing is cut."""
    if degrees == 0:
        return drawing
    image = drawing.image.rotate(degrees, resample=Image.Resampling.BICUBIC, expand=True, fillcolor=255)
    radians = math.radians(degrees)
    cx, cy = drawing.image.width / 2, drawing.image.height / 2
    moved = tuple(
        replace(
            g,
            x=image.width / 2 + (g.x - cx) * math.cos(radians) + (g.y - cy) * math.sin(radians),
            y=image.height / 2 - (g.x - cx) * math.sin(radians) + (g.y - cy) * math.cos(radians),
        )
        for g in drawing.glyphs
    )
    return Drawing(image, moved)


def degrade(drawing: Drawing, rng: random.Random, knobs: CropKnobs) -> Drawing:
    """Rotation, blur, noise and padding to the size multiple, in this order."""
    drawing = _rotated(drawing, rng.uniform(-knobs.rotation_deg, knobs.rotation_deg) if knobs.rotation_deg else 0.0)
    image = drawing.image
    if knobs.blur:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.0, knobs.blur)))
    width, height = (math.ceil(side / knobs.size_multiple) * knobs.size_multiple for side in image.size)
    padded = Image.new("L", (width, height), 255)
    padded.paste(image, (0, 0))
    if knobs.noise:
        noise = np.random.default_rng(rng.getrandbits(63)).normal(0.0, knobs.noise, (height, width))
        padded = Image.fromarray(np.clip(np.asarray(padded, np.float64) + noise, 0, 255).astype(np.uint8))
    return Drawing(padded, drawing.glyphs)
