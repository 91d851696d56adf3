"""The noisy teacher: label faults that a model picks up from imperfect transcriptions.

Real OCR models are trained on the output of other models and inherit their habits: tables left open, rows dropped
or repeated, text cut short or looped, formulas with unbalanced braces. The tiny model learns from such labels last,
so that GRPO with exact rewards starts from habits worth unlearning rather than from misread glyphs.
"""

from __future__ import annotations

import random
import re

from gravity_rl.synth.crops import Crop


def exact_teacher(crop: Crop, rng: random.Random) -> str:
    """The reference itself."""
    del rng
    return crop.reference


def noisy_table(html: str, rng: random.Random) -> str:
    """Drops a row (20%) or repeats one (20%), and leaves the table open (20%)."""
    rows = re.findall(r"<tr>.*?</tr>", html)
    draw = rng.random()
    if draw < 0.2 and len(rows) > 1:
        rows.pop(rng.randrange(len(rows)))
    elif draw < 0.4:
        row = rng.randrange(len(rows))
        rows[row:row] = [rows[row]] * rng.randint(1, 2)
    closing = "" if rng.random() < 0.2 else "</table>"
    return f"<table>{''.join(rows)}{closing}"


def noisy_text(text: str, rng: random.Random) -> str:
    """Ends early (30%) or repeats a line (25%); a single line is cut at a space or repeated whole."""
    lines = text.split("\n")
    draw = rng.random()
    if draw < 0.3:
        if len(lines) > 1:
            return "\n".join(lines[: rng.randint(1, len(lines) - 1)])
        return text.rsplit(" ", 1)[0]
    if draw < 0.55:
        row = rng.randrange(len(lines))
        lines[row:row] = [lines[row]] * rng.randint(1, 2)
    return "\n".join(lines)


def noisy_formula(latex: str, rng: random.Random) -> str:
    """Loses a closing brace (25%) or the part after the last operator or relation (20%)."""
    braces = [m.start() for m in re.finditer("}", latex)]
    draw = rng.random()
    if draw < 0.25 and braces:
        position = rng.choice(braces)
        return latex[:position] + latex[position + 1 :]
    if draw < 0.45:
        cuts = [m.start() for m in re.finditer(r"[-+=<>]|\\(?:leq|geq|neq|times|cdot)", latex) if m.start() > 0]
        if cuts:
            return latex[: cuts[-1]]
    return latex


def noisy_teacher(crop: Crop, rng: random.Random) -> str:
    """The reference of the crop with the teacher's faults for its task."""
    faults = {"text": noisy_text, "table": noisy_table, "formula": noisy_formula}
    return faults[crop.task](crop.reference, rng)
