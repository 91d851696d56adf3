"""Samples formulas from a small LaTeX grammar that matplotlib's mathtext can draw.

The grammar covers scripts, fractions, roots, accents, sums and integrals with limits, relations, Greek letters and
``\\left … \\right`` pairs. Output is LaTeX with every script braced, so that a formula has one spelling.
"""

from __future__ import annotations

import random

GREEK = [
    "\\alpha",
    "\\beta",
    "\\gamma",
    "\\delta",
    "\\theta",
    "\\lambda",
    "\\mu",
    "\\pi",
    "\\sigma",
    "\\omega",
]
RELATIONS = ["=", "<", ">", "\\leq", "\\geq", "\\neq"]
OPERATORS = ["+", "-", "\\times", "\\cdot"]
BIG = ["\\sum", "\\int"]
ACCENTS = ["\\hat", "\\bar"]
FUNCTIONS = ["\\sin", "\\cos", "\\log"]
#: every LaTeX command that the grammar can emit
COMMANDS = frozenset(
    [
        *GREEK,
        *RELATIONS[3:],
        *OPERATORS[2:],
        *BIG,
        *ACCENTS,
        *FUNCTIONS,
        "\\frac",
        "\\sqrt",
        "\\left",
        "\\right",
    ]
)
LETTERS = "abcdefghkmnpqrstuvwxyz"


def symbol(rng: random.Random) -> str:
    """One letter, digit or Greek letter."""
    draw = rng.random()
    if draw < 0.55:
        return rng.choice(LETTERS)
    if draw < 0.85:
        return str(rng.randint(1, 9)) if rng.random() < 0.6 else str(rng.randint(10, 99))
    return rng.choice(GREEK)


def atom(rng: random.Random, depth: int) -> str:
    """A symbol, possibly with scripts, an accent, a root, a fraction or a bracketed sum around it."""
    draw = rng.random()
    if depth <= 0 or draw < 0.36:
        return symbol(rng)
    if draw < 0.52:
        return f"{rng.choice(LETTERS)}^{{{expression(rng, 0, 1)}}}"
    if draw < 0.64:
        return f"{rng.choice(LETTERS)}_{{{symbol(rng)}}}"
    if draw < 0.80:
        return f"\\frac{{{expression(rng, 0, 2)}}}{{{expression(rng, 0, 2)}}}"
    if draw < 0.88:
        return f"\\sqrt{{{expression(rng, 0, 2)}}}"
    if draw < 0.92:
        return f"{rng.choice(ACCENTS)}{{{rng.choice(LETTERS)}}}"
    if draw < 0.96:
        return f"{rng.choice(FUNCTIONS)} {rng.choice(LETTERS)}"
    return f"\\left({expression(rng, 0, 2)}\\right)"


def _join(left: str, operator: str, right: str) -> str:
    """Concatenates; a space only where a command would otherwise run into a letter."""
    gap = " " if operator.startswith("\\") and right[:1].isalpha() else ""
    return f"{left}{operator}{gap}{right}"


def expression(rng: random.Random, depth: int, max_terms: int) -> str:
    """Up to ``max_terms`` atoms joined by operators."""
    out = atom(rng, depth)
    for _ in range(rng.randint(1, max_terms) - 1):
        out = _join(out, rng.choice(OPERATORS), atom(rng, depth))
    return out


def sample_formula(rng: random.Random, *, terms: int = 3, depth: int = 1) -> str:
    """A formula: a relation between two expressions, or an expression with a big operator in front."""
    if rng.random() < 0.15:
        limits = f"_{{{rng.choice(LETTERS)}=1}}^{{{symbol(rng)}}}"
        body = expression(rng, depth, max(1, terms - 1))
        return f"{rng.choice(BIG)}{limits} {body}" if body[:1].isalpha() else f"{rng.choice(BIG)}{limits}{body}"
    left = expression(rng, depth, max(1, terms - 1))
    return _join(left, rng.choice(RELATIONS), expression(rng, depth, max(1, terms - 1)))
