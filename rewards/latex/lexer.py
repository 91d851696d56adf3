"""LaTeX tokens for the robust formula reward: Unicode signs and aliases are replaced, what is invisible is gone.

`lex` is one pass over the characters, so its time is linear. It leaves structure (groups, scripts, environments)
to `rewards.latex.reader`.
"""

from __future__ import annotations

import re
import unicodedata

from rewards.latex.tables import ALIASES, BINARIES, OPERATORS, RELATIONS, TOKEN
from rewards.marks import without_mark_runs

_FENCE = re.compile(r"```[a-zA-Z]*")


def _pairs(text: str) -> dict[str, tuple[str, ...]]:
    """Alternating characters and what they stand for."""
    words = text.split()
    return {char: tuple(TOKEN.findall(latex)) for char, latex in zip(words[::2], words[1::2], strict=True)}


UNICODE = _pairs(r"""
α \alpha β \beta γ \gamma δ \delta ε \varepsilon ϵ \epsilon ζ \zeta η \eta θ \theta ϑ \vartheta ι \iota κ \kappa
ϰ \varkappa λ \lambda μ \mu µ \mu ν \nu ξ \xi ο o π \pi ϖ \varpi ρ \rho ϱ \varrho σ \sigma ς \varsigma τ \tau
υ \upsilon φ \varphi ϕ \phi χ \chi ψ \psi ω \omega Γ \Gamma Δ \Delta Θ \Theta Λ \Lambda Ξ \Xi Π \Pi Σ \Sigma
Υ \Upsilon Φ \Phi Ψ \Psi Ω \Omega ∆ \Delta ∇ \nabla ∂ \partial ℓ \ell ℏ \hbar ı \imath ȷ \jmath ∞ \infty
≤ \leq ≥ \geq ⩽ \leqslant ⩾ \geqslant ≦ \leqq ≧ \geqq ≪ \ll ≫ \gg ≲ \lesssim ≳ \gtrsim ≈ \approx ≡ \equiv
∼ \sim ≃ \simeq ≅ \cong ∝ \propto ≍ \asymp ≐ \doteq ≜ \triangleq ≔ := ∶ : ∈ \in ∋ \ni ⊂ \subset ⊆ \subseteq
⊊ \subsetneq ⊃ \supset ⊇ \supseteq ⊋ \supsetneq ≺ \prec ≻ \succ ⪯ \preceq ⪰ \succeq ⊥ \perp ⟂ \perp ⊢ \vdash
⊣ \dashv ⊨ \models ⊔ \sqcup ⊓ \sqcap ⊑ \sqsubseteq ⊒ \sqsupseteq ≶ \lessgtr ≷ \gtrless ⪅ \lessapprox ⪆ \gtrapprox
★ \bigstar ◦ \circ ○ \bigcirc ♠ \spadesuit ♡ \heartsuit ♢ \diamondsuit ♣ \clubsuit ⊳ \triangleright ⊲ \triangleleft
✓ \checkmark ħ \hbar £ \pounds € \euro ¥ \yen ∣ | ∥ \| ‖ \| ∴ \therefore ∵ \because
→ \rightarrow ← \leftarrow ↔ \leftrightarrow ⇒ \Rightarrow ⇐ \Leftarrow ⇔ \Leftrightarrow ⟶ \longrightarrow
⟵ \longleftarrow ⟷ \longleftrightarrow ⟹ \Longrightarrow ⟸ \Longleftarrow ⟺ \Longleftrightarrow ↦ \mapsto
⟼ \longmapsto ↪ \hookrightarrow ↩ \hookleftarrow ⇌ \rightleftharpoons ⇋ \leftrightharpoons ⇀ \rightharpoonup
↼ \leftharpoonup ↑ \uparrow ↓ \downarrow ↕ \updownarrow ⇑ \Uparrow ⇓ \Downarrow ↗ \nearrow ↘ \searrow ↙ \swarrow
↖ \nwarrow ⇄ \rightleftarrows ⇆ \leftrightarrows ⇝ \rightsquigarrow
± \pm ∓ \mp × \times ÷ \div ⋅ \cdot · \cdot ∙ \cdot • \bullet ∘ \circ ⋆ \star ∗ * ∖ \setminus ∩ \cap ∪ \cup
⊎ \uplus ∧ \wedge ∨ \vee ⊕ \oplus ⊖ \ominus ⊗ \otimes ⊘ \oslash ⊙ \odot † \dagger ‡ \ddagger ⋄ \diamond ⊞ \boxplus
⊠ \boxtimes ⋊ \rtimes ⋉ \ltimes − - ‐ - ‑ - – - ∕ / ⁄ /
∑ \sum ∏ \prod ∐ \coprod ∫ \int ∬ \iint ∭ \iiint ∮ \oint ∯ \oiint ⋃ \bigcup ⋂ \bigcap ⨁ \bigoplus ⨂ \bigotimes
⋁ \bigvee ⋀ \bigwedge √ \sqrt
∀ \forall ∃ \exists ¬ \neg ∅ \emptyset ∠ \angle ∡ \measuredangle △ \triangle □ \square ◻ \square ■ \blacksquare
♯ \sharp ♭ \flat ♮ \natural ⊤ \top ℜ \Re ℑ \Im ℵ \aleph ℘ \wp § \S ¶ \P
⟨ \langle ⟩ \rangle 〈 \langle 〉 \rangle ⌊ \lfloor ⌋ \rfloor ⌈ \lceil ⌉ \rceil ⟦ \llbracket ⟧ \rrbracket
… \ldots ⋯ \cdots ⋮ \vdots ⋱ \ddots ⋰ \iddots ′ ' ’ ' ″ '' ‴ ''' ℝ \mathbb{R} ℂ \mathbb{C} ℕ \mathbb{N}
ℤ \mathbb{Z} ℚ \mathbb{Q} ℙ \mathbb{P} ℍ \mathbb{H} ℋ \mathscr{H} ℒ \mathscr{L} ℱ \mathscr{F} ℰ \mathscr{E}
ℛ \mathscr{R} ℳ \mathscr{M} ℬ \mathscr{B} ℐ \mathscr{I} ½ \frac{1}{2} ⅓ \frac{1}{3} ⅔ \frac{2}{3} ¼ \frac{1}{4}
¾ \frac{3}{4} ⅛ \frac{1}{8} ℎ h
""")
SUPERSCRIPTS = _pairs(
    "⁰ 0 ¹ 1 ² 2 ³ 3 ⁴ 4 ⁵ 5 ⁶ 6 ⁷ 7 ⁸ 8 ⁹ 9 ⁺ + ⁻ - ⁼ = ⁽ ( ⁾ ) ⁿ n ⁱ i ᵀ T ᵃ a ᵇ b ᶜ c ᵈ d ᵏ k ᵐ m ᵗ t ˣ x ʸ y "
    r"° \circ º \circ"
)
SUBSCRIPTS = _pairs(
    r"₀ 0 ₁ 1 ₂ 2 ₃ 3 ₄ 4 ₅ 5 ₆ 6 ₇ 7 ₈ 8 ₉ 9 ₊ + ₋ - ₌ = ₍ ( ₎ ) ₐ a ₑ e ₒ o ₓ x ₕ h ₖ k ₗ l ₘ m ₙ n ₚ p ₛ s ₜ t ᵢ i "
    r"ⱼ j ᵣ r ᵤ u ᵥ v ᵦ \beta"
)
# Combining marks, after Unicode has taken a letter apart.
_COMBINING = {
    "\u0300": r"\grave",
    "\u0301": r"\acute",
    "\u0302": r"\hat",
    "\u0303": r"\tilde",
    "\u0304": r"\bar",
    "\u0305": r"\overline",
    "\u0306": r"\breve",
    "\u0307": r"\dot",
    "\u0308": r"\ddot",
    "\u030a": r"\mathring",
    "\u030c": r"\check",
    "\u0338": r"\not",
    "\u20d7": r"\vec",
}
# The alphabets of the block U+1D400, 52 letters each, in their order; None is a plain letter.
_ALPHABETS = (
    r"\mathbf",
    None,
    r"\boldsymbol",
    r"\mathscr",
    r"\boldsymbol\mathscr",
    r"\mathfrak",
    r"\mathbb",
    r"\boldsymbol\mathfrak",
    r"\mathsf",
    r"\mathsf",
    r"\mathsf",
    r"\mathsf",
    r"\mathtt",
)
# Tokens that carry no accent.
_NO_BASE = frozenset({"{", "}", "&", "^", "_", r"\\"})
_DOTS = {".": r"\ldots", r"\cdot": r"\cdots"}
# What `\dots` are centred before.
_CENTRED = (RELATIONS | BINARIES | OPERATORS) - {"|", ":", r"\|"}


def lex(latex: str) -> list[str]:
    """The tokens of a LaTeX string without comments, whitespace and control characters; never fails.

    Unicode signs and alias commands are replaced by what they stand for. Math delimiters stay. A code fence around
    the whole string goes.
    """
    lexer = _Lexer()
    for token in TOKEN.findall(unicodedata.normalize("NFC", without_mark_runs(_without_fence(latex)))):
        if token[0] != "%" and not token.isspace():
            for sign in _replaced(token):
                lexer.add(sign)
    return _with_dots(lexer.tokens)


class _Lexer:
    """Collects tokens. What a raised, lowered or combining sign becomes depends on those before it."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        # The number of tokens up to which signs that raise themselves (a prime, a degree) are in a superscript.
        self._raised = -1
        # The number of tokens where a script made from Unicode digits ends, and its mark.
        self._script_end, self._script_mark = -1, ""

    def add(self, sign: str) -> None:
        if sign == "'":
            self._prime()
        elif sign in SUPERSCRIPTS:
            self._superscript(sign)
        elif sign in SUBSCRIPTS:
            self._script("_", SUBSCRIPTS[sign])
        elif sign in _COMBINING:
            self._accent(_COMBINING[sign])
        else:
            self.tokens.append(sign)

    def _in_superscript(self) -> bool:
        """Whether a superscript has just begun: `^`, `^{`, or signs that raise themselves after these."""
        tokens = self.tokens
        return self._raised == len(tokens) or tokens[-1:] == ["^"] or tokens[-2:] == ["^", "{"]

    def _prime(self) -> None:
        raised = self._in_superscript()
        self.tokens.append(r"\prime" if raised else "'")
        self._raised = len(self.tokens) if raised else -1

    def _superscript(self, sign: str) -> None:
        if self._in_superscript():
            self.tokens.extend(SUPERSCRIPTS[sign])
            self._raised = len(self.tokens)
        else:
            self._script("^", SUPERSCRIPTS[sign])

    def _script(self, mark: str, content: tuple[str, ...]) -> None:
        """Into the script that such signs have just made, or a new one."""
        if self._script_end == len(self.tokens) and self._script_mark == mark:
            self.tokens.pop()
        else:
            self.tokens.extend((mark, "{"))
        self.tokens.extend((*content, "}"))
        self._script_end, self._script_mark = len(self.tokens), mark

    def _accent(self, command: str) -> None:
        """Over the token before, if that is a sign."""
        base = [self.tokens.pop()] if self.tokens and self.tokens[-1] not in _NO_BASE else []
        self.tokens.extend((command, "{", *base, "}"))


def _without_fence(latex: str) -> str:
    """The inside of a Markdown code fence that is around everything else."""
    stripped = latex.strip()
    if len(stripped) < 6 or not (stripped.startswith("```") and stripped.endswith("```")):
        return latex
    opening = _FENCE.match(stripped)
    assert opening is not None
    return stripped[opening.end() : -3]


def _replaced(token: str) -> tuple[str, ...]:
    """What a token stands for: nothing for a control character, else one or more tokens."""
    if len(token) > 1:
        return ALIASES.get(token, (token,))
    if " " <= token < "\x7f":
        return (token,)
    if token in UNICODE:
        return tuple(part for piece in UNICODE[token] for part in ALIASES.get(piece, (piece,)))
    if token == "℃":
        return ("°", r"\mathrm", "{", "C", "}")
    code = ord(token)
    if 0xFF01 <= code <= 0xFF5E:
        return (chr(code - 0xFEE0),)
    if 0x1D400 <= code <= 0x1D7FF:
        return _math_alphanumeric(token)
    if 0xFB00 <= code <= 0xFB06:  # ligatures
        return tuple(unicodedata.normalize("NFKC", token))
    if unicodedata.category(token) in ("Cc", "Cf"):
        return ()
    base, *marks = list(unicodedata.normalize("NFD", token))
    if marks and all(mark in _COMBINING for mark in marks):
        return (*_replaced(base), *marks)
    return (token,)


def _math_alphanumeric(char: str) -> tuple[str, ...]:
    """A letter or digit of the block U+1D400 as a plain one in a font."""
    letter = unicodedata.normalize("NFKC", char)
    if letter == char:  # one of the reserved places, whose letters are in other blocks
        return (char,)
    plain = _replaced(letter)
    alphabet, _ = divmod(ord(char) - 0x1D400, 52)
    if alphabet < len(_ALPHABETS):
        font = _ALPHABETS[alphabet]
    else:  # Greek letters and digits: the first alphabets and the first digits are bold
        font = r"\boldsymbol" if "BOLD" in unicodedata.name(char, "") else None
    if font is None:
        return plain
    return (*TOKEN.findall(font), "{", *plain, "}")


def _with_dots(tokens: list[str]) -> list[str]:
    """Three periods or centred dots in a row are dots; `\\dots` is the kind that what follows asks for."""
    result: list[str] = []
    for index, token in enumerate(tokens):
        if token == r"\dots":
            following = tokens[index + 1] if index + 1 < len(tokens) else ""
            token = r"\cdots" if following in _CENTRED else r"\ldots"
        result.append(token)
        if token in _DOTS and result[-3:] == [token] * 3 and result[-4:-3] not in ([r"\left"], [r"\right"]):
            result[-3:] = [_DOTS[token]]
    return result
