"""What a LaTeX command draws, once its arguments are read.

Commands that only set a font or a kind of atom draw their argument; fractions, roots and accents are braced
canonically; what is set above or below an atom becomes its script.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rewards.latex.items import Item, Letter, Nucleus, braced, flatten, leaves
from rewards.latex.tables import FONTS, WRAPPERS

# The name of an operator has at most so many letters.
_MAX_OPERATOR = 32
_BOLD = {"normal": "bold", "rm": "bf", "bf": "bf"}


@dataclass(slots=True)
class Command:
    """A command that waits for its arguments. Content inside them starts with `font`."""

    name: str
    need: int
    font: str
    arguments: list[Nucleus] = field(default_factory=list)
    option: list[Item] = field(default_factory=list)


def built(command: Command) -> Nucleus:
    """What a command with all of its arguments draws."""
    name, last = command.name, command.arguments[-1]
    if name in FONTS or name in WRAPPERS:
        return last
    if name == r"\operatorname" or (name == r"\mathop" and (last.movable or _is_name(last, at_least=1))):
        last.movable = last.item is not None
        return last
    if name == r"\mathop":
        return Nucleus(last.items() or None, mathop=True)
    items = [argument.items() for argument in command.arguments]
    if name in (r"\overset", r"\underset"):
        last.movable |= _is_name(last, at_least=2)
        return last.stack("^" if name == r"\overset" else "_", items[0])
    if name in (r"\pmod", r"\pod", r"\mod"):
        return Nucleus(_modulus(name, items[0]))
    if name == r"\not":
        return Nucleus([name, *items[0]])
    if name == r"\genfrac":
        return Nucleus(_general_fraction(items))
    if command.option:
        return Nucleus(braced(name + "[]", command.option, *items))
    return Nucleus(braced(name, *items))


def combined_font(outer: str, font: str) -> str:
    """The font inside another one. `bold` (`\\boldsymbol`) adds to others, and they to it."""
    inherits = outer == "bold" or outer.startswith("bold ")
    if font == "bold":
        return outer if inherits else _BOLD.get(outer, f"bold {outer}")
    return _BOLD.get(font, f"bold {font}") if inherits else font


def _is_name(nucleus: Nucleus, at_least: int) -> bool:
    """Whether an atom is a name in upright letters, as of an operator."""
    found = leaves(nucleus.items(), _MAX_OPERATOR)
    return len(found) >= at_least and all(isinstance(leaf, Letter) and leaf.font == "rm" for leaf in found)


def _modulus(name: str, argument: list[Item]) -> list[Item]:
    word: list[Item] = [] if name == r"\pod" else [Letter("rm", char) for char in "mod"]
    return [*word, *argument] if name == r"\mod" else ["(", *word, *argument, ")"]


def _general_fraction(items: list[list[Item]]) -> list[Item]:
    """amsmath's `\\genfrac{left}{right}{thickness}{style}{numerator}{denominator}`."""
    left, right, thickness, _, numerator, denominator = items
    if not thickness:
        return [*left, *braced(r"\frac", numerator, denominator), *right]
    if (flatten(left), flatten(right)) == (["("], [")"]):
        return braced(r"\binom", numerator, denominator)
    return [*left, *braced(r"\atop", numerator, denominator), *right]
