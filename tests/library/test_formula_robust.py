"""The robust formula reward: which formulas are equal, what is malformed, and that nothing crashes or stalls it."""

from __future__ import annotations

import json
import math
import random
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rewards import RewardConfig, score
from rewards.latex.reader import ROBUST_CHECKS, read_formula

ROBUST = RewardConfig(profile="robust")
ORACLE = Path(__file__).parents[3] / "shared" / "data" / "oracle" / "formulas.jsonl"


def pairs(text: str) -> list[tuple[str, str]]:
    """One pair a line."""
    return [tuple(line.split(" ;; ")) for line in text.strip("\n").splitlines()]  # type: ignore[misc]


# By rule. In each rule the published form takes at least one pair for different.
EQUAL = {
    "scripts": r"""
x^b_a ;; x_{a}^{b}
x'^2 ;; x^{\prime 2}
{x'}^2 ;; x^{\prime 2}
x_a' ;; x'_a
f'' ;; f^{\prime\prime}
f'' ;; f^{''}
x\sp2\sb{a} ;; x_a^2
x_{a}{}^{b} ;; {x_a}^b
x_a\,^b ;; x_a{}^b
{{x}_{1}} ;; x_1
x^{}_{a} ;; x_a
90^{{}^\circ} ;; 90^\circ""",
    "aliases": r"""
a\le b\ge c\ne d ;; a\leq b\geq c\neq d
a \to b\gets c ;; a \rightarrow b \leftarrow c
a\implies b\iff c ;; a\Longrightarrow b\Longleftrightarrow c
a\land\lnot b ;; a\wedge\neg b
a \bot b ;; a\perp b
a \cdotp b ;; a \cdot b
x^{*} ;; x^\ast
\lbrace a \rbrace ;; \{a\}
a\colon b ;; a:b
a:=b ;; a\coloneqq b
\pmod{n} ;; (\mathrm{mod}\ n)""",
    "negations": r"""
a \not\in B ;; a \notin B
a \not= B ;; a \neq B
a \not\subseteq B ;; a\nsubseteq B
a \not\mid b ;; a\nmid b""",
    "dots": r"""
\ldots ;; ...
1,\ldots,n ;; 1,\dots,n
a+\cdots+b ;; a+\dots+b
a\cdot\cdot\cdot b ;; a\cdots b
\dotsc\dotsb ;; \ldots\cdots""",
    "vertical bars": r"""
\vert x \vert ;; |x|
\lvert x\rvert ;; |x|
\lVert x\rVert ;; \left\|x\right\|
a\mid b ;; a|b""",
    "delimiters": r"""
\left(a+b\right) ;; (a+b)
\Big( a \Big) ;; ( a )
\left<x\right> ;; \langle x \rangle
\bigl< x \bigr> ;; \langle x\rangle
P\left(A\,\middle\vert\,B\right) ;; P(A|B)
\left.x\right|_{a} ;; x|_a
\left[\begin{matrix}a&b\\c&d\end{matrix}\right] ;; \begin{bmatrix}a&b\\c&d\end{bmatrix}""",
    "functions": r"""
\operatorname{sin} x ;; \sin x
\operatorname { s i n } x ;; \sin x
\operatorname* { m a x } _ { x } ;; \max_x
\mathop{\rm lim}\limits_{x\to0} ;; \lim_{x\to 0}
\underset{x\to 0}{\mathop{\lim }}\,f ;; \lim_{x\to 0}f
\underset{i=1}{\overset{n}{\mathop \sum }}\,x_i ;; \sum_{i=1}^n x_i
\limsup ;; \lim\sup
\underset { T } { \mathrm { a r g m i n ~ } } ;; \operatorname*{argmin}_T
\arg \operatorname* { m a x } _ { k } ;; \arg\max_k
\mathrm{Tr} ;; \operatorname{Tr}""",
    "fonts": r"""
{\rm d} x ;; \mathrm{d}x
{\cal L} ;; \mathcal{L}
{\bf x} ;; \mathbf{x}
\bm{x} ;; \boldsymbol x
\mathbf{ab} ;; \mathbf{a}\mathbf{b}
\text{if $x$} ;; \text{if }x
\mathrm { ~ a n d ~ } ;; \text{ and }
\hat{\mathbf{x}} ;; \mathbf{\hat{x}}
\boldsymbol{\mathrm{x}} ;; \mathbf x
\mathrm{H_2O} ;; \mathrm{H}_2\mathrm{O}
\mathrm{\mu m} ;; \mu\mathrm{m}""",
    "fractions and roots": r"""
\frac12 ;; \tfrac{1}{2}
{a \over b} ;; \frac{a}{b}
\left( a \over b \right) ;; \left(\frac{a}{b}\right)
{n \choose k} ;; \binom{n}{k}
\genfrac{(}{)}{0pt}{}{n}{k} ;; \binom{n}{k}
\genfrac{}{}{0pt}{}{n}{k} ;; {n \atop k}
x^\frac12 ;; x^{\frac{1}{2}}
\root 3 \of x ;; \sqrt[3]{x}
\hat x\dot{y} ;; \hat{x}\dot y""",
    "above and below": r"""
\stackrel{def}{=} ;; \overset{def}{=}
\mathop{=}\limits^{def} ;; \overset{def}{=}
\buildrel def \over = ;; \overset{def}{=}
\overset{a}{\underset{b}{X}} ;; \underset{b}{\overset{a}{X}}
\xrightarrow [b] {a} ;; \xrightarrow[{b}]a""",
    "matrices": r"""
\left(\begin{array}{cc}a&b\\c&d\end{array}\right) ;; \begin{pmatrix}a&b\\c&d\end{pmatrix}
\left|\begin{array}{cc}a&b\\c&d\end{array}\right| ;; \begin{vmatrix}a&b\\c&d\end{vmatrix}
\pmatrix{a & b \cr c & d \cr} ;; \begin{pmatrix}a&b\\c&d\end{pmatrix}
\begin{matrix}a&b\\[2pt]c&d\\\end{matrix} ;; \begin{matrix}a&b\\c&d\end{matrix}
\begin{array}[t]{@{}*{2}{c}@{}}a&b\\c&d\end{array} ;; \begin{matrix}a&b\\c&d\end{matrix}
\begin{array}{cccc}a&b\\c&d\end{array} ;; \begin{matrix}a&b\\c&d\end{matrix}
\begin{bmatrix*}[r]a\\b\end{bmatrix*} ;; \left[\begin{array}{r}a\\b\end{array}\right]
\sum_{\substack{a\\b}} ;; \sum_{\begin{subarray}{c}a\\b\end{subarray}}""",
    "cases": r"""
\begin{cases} a & b \\ c & d \end{cases} ;; \left\{ \begin{array}{l@{\quad}l} a & b \\ c & d \end{array} \right.
\left\{ \begin{aligned} & a \\ & b \end{aligned} \right. ;; \begin{cases}a\\b\end{cases}
\begin{cases}a\\[2pt]b\end{cases} ;; \begin{dcases}a\\b\\\end{dcases}""",
    "alignments": r"""
\begin{eqnarray} a &=& b \\ c &=& d \end{eqnarray} ;; \begin{aligned} a &= b \\ c &= d\end{aligned}
\begin{array}{rcl} a &=& b \\ c &=& d \end{array} ;; \begin{align*} a &= b \\ c &= d\end{align*}
\begin{array} { r l } { { a } } & { { = b } } \\ c & { = d } \end{array} ;; \begin{split} a &= b \\ c &= d\end{split}
\begin{align} x+y \end{align} ;; x+y
\begin{equation*} \begin{split} a &= b \end{split}\tag{1} \end{equation*} ;; a=b
\begin{gather*} a \\ b \end{gather*} ;; \begin{array}{c}a\\b\end{array}""",
    "what isn't drawn": r"""
x \kern-0.5em y \hskip 1cm z\hspace*{2pt} ;; xyz
\displaystyle\sum\limits_i ;; \sum_i
E=mc^2 \label{eq:1}\nonumber ;; E=mc^2
\color{red}x\textcolor{blue}{y}\phantom{z} ;; xy
50\% % of all ;; 50\%
\smash[b]{x}\mathstrut ;; x
x \\ ;; x""",
    "Unicode": r"""
x² ;; x^2
x₁²³ ;; x_1^{23}
x⁻¹ ;; x^{-1}
30° ;; 30^{\circ}
30\degree ;; 30^\circ
25℃ ;; 25^{\circ}\mathrm{C}
α≤β≠γ→∞ ;; \alpha\leq\beta\neq\gamma\rightarrow\infty
f′ ;; f'
√2 ;; \sqrt 2
ℝ𝐱 ;; \mathbb{R}\mathbf{x}
（a，b） ;; (a,b)
\text{ﬁ} ;; \text{fi}
\text{é} ;; \text{\'e}
½ ;; \frac{1}{2}""",
}
# In each rule the published form takes at least one pair for equal, or the robust one has to keep them apart.
DIFFERENT = {
    "scripts": r"""
x_12 ;; x_{12}
x^12 ;; x^{12}
{x_a}^b ;; x_a^b
T^{a}{}_{b} ;; T^a_b
x_{a_b} ;; x_{ab}
x_{a}b ;; x_{ab}
2_2 ;; 2^2
x'' ;; x'
x\prime ;; x'
30^{\circ} ;; 30^{0}""",
    "braces": r"""
\sqrt{x}y ;; \sqrt{xy}
\frac{a}{b}c ;; \frac{a}{bc}
\hat{a}b ;; \hat{ab}
\unknown{x}y ;; \unknown{xy}
\overset{a}{xy} ;; x\overset{a}{y}""",
    "fonts": r"""
R ;; \mathbb{R}
L ;; \mathcal{L}
\mathcal{L} ;; \mathscr{L}
g ;; \mathfrak{g}
x ;; \mathbf{x}
\mathbf{x} ;; \boldsymbol{x}
\mathbf{x}2 ;; \mathbf{x2}
\mathbf{x}\alpha ;; \boldsymbol{x\alpha}
x ;; \mathrm{x}
sin x ;; \sin x
\mathrm{a}b ;; \mathrm{ab}""",
    "commands": r"""
\alpha x ;; \alphax
a \leftarrow b ;; a \rightarrow b
a \leftarrow b ;; ab
\gamma ;; \Gamma
\epsilon ;; \varepsilon
\phi ;; \varphi
\cdots ;; \ldots
\Rightarrow ;; \rightarrow
\int ;; \oint
\bar{x} ;; \overline{x}
|x| ;; \|x\|
\langle x\rangle ;; <x>
a\not= b ;; a= b
\sqrt[2]{x} ;; \sqrt{x}
\cfrac{a}{b} ;; \frac{a}{b}
{a\atop b} ;; \frac{a}{b}
\overset{a}{X} ;; X^a
\overset{a}{\mathrm{X}} ;; \mathrm{X}^a
\mathop{X}\limits^{a} ;; X^a
a\&b ;; ab
\{a\} ;; a
x=X ;; X=x
{a+b}^2 ;; (a+b)^2""",
    "environments": r"""
\begin{vmatrix}a&b\\c&d\end{vmatrix} ;; \begin{pmatrix}a&b\\c&d\end{pmatrix}
\begin{cases}a\\b\end{cases} ;; \begin{matrix}a\\b\end{matrix}
\begin{matrix}a&b\\c&d\end{matrix} ;; \begin{matrix}a&b&c&d\end{matrix}
\begin{matrix}a&c\\b&d\end{matrix} ;; \begin{matrix}a&b\\c&d\end{matrix}
\begin{array}{c|c}a&b\\c&d\end{array} ;; \begin{array}{cc}a&b\\c&d\end{array}
\begin{array}{l}a\\bc\end{array} ;; \begin{array}{c}a\\bc\end{array}
\begin{smallmatrix}a&b\end{smallmatrix} ;; \begin{matrix}a&b\end{matrix}
a\\b ;; ab""",
}


def cases(table: dict[str, str]) -> list:
    return [pytest.param(*pair, id=f"{rule}-{pair[0]}") for rule, text in table.items() for pair in pairs(text)]


@pytest.mark.parametrize(("latex", "other"), cases(EQUAL))
def test_equal_drawings_score_one(latex: str, other: str) -> None:
    assert read_formula(latex).tokens == read_formula(other).tokens
    for prediction, reference in ((latex, other), (other, latex)):
        scored = score("formula", prediction, reference, ROBUST)
        assert scored.value == 1.0
        assert all(scored.parts[name] is True for name in ROBUST_CHECKS)


@pytest.mark.parametrize(("latex", "other"), cases(DIFFERENT))
def test_different_drawings_score_less(latex: str, other: str) -> None:
    value = score("formula", latex, other, ROBUST).value
    assert value < 1.0
    assert value == score("formula", other, latex, ROBUST).value


@pytest.mark.parametrize("rule", EQUAL)
def test_the_published_form_misses_equal_drawings(rule: str) -> None:
    assert min(score("formula", *pair).value for pair in pairs(EQUAL[rule])) < 1.0


@pytest.mark.parametrize("rule", sorted(set(DIFFERENT) - {"environments"}))
def test_the_published_form_takes_different_drawings_for_equal(rule: str) -> None:
    assert max(score("formula", *pair).value for pair in pairs(DIFFERENT[rule])) == 1.0


MALFORMED = [
    (r"\left( a", r"\left( a \right)", {"left_right"}),
    (r"\right) a \left(", r"\left( a \right)", {"left_right"}),
    (r"\left a \right)", r"\left( a \right)", {"left_right"}),
    (r"{\left( a } \right)", r"\left( a \right)", {"left_right"}),
    (r"\frac{a}{b", r"\frac{a}{b}", {"braces"}),
    (r"a } b", "ab", {"braces"}),
    (r"\left( \frac{a}{b \right)", r"\left( \frac{a}{b} \right)", {"braces"}),
    (r"\begin{matrix}a{b\end{matrix}", r"\begin{matrix}ab\end{matrix}", {"braces"}),
    (r"\begin{matrix}a", r"\begin{matrix}a\end{matrix}", {"environments"}),
    (r"\begin{matrix}a\end{array}", r"\begin{matrix}a\end{matrix}", {"environments"}),
    (r"a\end{matrix}", "a", {"environments"}),
    (r"\begin a", "a", {"environments"}),
    ("$a", "$a$", {"dollars"}),
    ("a\\", "a", {"trailing_backslash"}),
    ("a & b", "ab", {"ampersand"}),
    (r"\begin{equation}a & b\end{equation}", "ab", {"ampersand"}),
    (r"\frac{a}", r"\frac{a}{b}", {"arguments"}),
    (r"x^", "x", {"arguments"}),
    (r"{x_}y", "xy", {"arguments"}),
    (r"\begin{matrix}\sqrt & b\end{matrix}", r"\begin{matrix}a & b\end{matrix}", {"arguments"}),
    (r"A \stackrel", r"A \stackrel{def}{=} B", {"arguments"}),
    (r"\begin{array}a\end{array}", "a", {"arguments"}),
    (r"\sqrt[3{x}", r"\sqrt[3]{x}", {"arguments"}),
    (r"x_a_b", "x_{ab}", {"double_scripts"}),
    (r"x^a_b^c", "x_b^{ac}", {"double_scripts"}),
    (r"x^2'", "x'^2", {"double_scripts"}),
    (r"x^{\prime}^2", "x'^2", {"double_scripts"}),
    (r"\[a", "a", {"display"}),
    (r"a\)", "a", {"display"}),
    (r"\(a\]", "a", {"display"}),
]


@pytest.mark.parametrize(("prediction", "reference", "fails"), MALFORMED)
def test_each_check_fails_alone_and_costs_its_factor(prediction: str, reference: str, fails: set[str]) -> None:
    for latex in (prediction, f"x+{prediction}" if not prediction.startswith("$") else prediction):
        assert {name for name, passes in read_formula(latex).checks.items() if not passes} == fails
    parts = score("formula", prediction, reference, ROBUST).parts
    assert parts["violations"] == len(fails)
    expected = parts["similarity"] * 0.6 ** len(fails) * parts["gate"]
    assert score("formula", prediction, reference, ROBUST).value == pytest.approx(expected, abs=1e-12)
    assert score("formula", prediction, prediction, ROBUST).value == 1.0  # the reference fails it too


@pytest.mark.parametrize(
    "latex",
    [
        r"x'^2",
        r"{x_a}_b",
        r"x_a{}_b",
        r"\{ a \&\% \$ \\",
        r"\left. a \right\} \left[0,1\right)",
        r"\substack{a & b \\ c}",
        r"\begin{align}\begin{cases}a&b\end{cases}&=c\end{align}",
        r"\sqrt[\frac{1}{2}]{x} \hat x x^\frac12 x_\mathrm{a}",
        r"a % } \right) & ^",
        r"\text{if $x$ holds} \\[2pt] [a, b]",
        r"\frac{}{} {}^{}",
    ],
)
def test_well_formed_latex_passes_every_check(latex: str) -> None:
    assert all(read_formula(latex).checks.values())


PIECES = r"""
    \frac \sqrt \sqrt[ \left \right \begin \end {array} {cases} {align*} {ll} { } { } { } [ ] ( ) | < . $ & \\ \\[
    ^ _ ^ _ ' % \over \choose \rm \bf \mathbf \text \operatorname \mathop \limits \not \overset \substack \matrix
    \label \kern \big \root \of \buildrel \genfrac \alpha \sum \dots \quad \unknown x 1 + ² ₂ ° é √ 𝐱 ``` \
    """
pieces = st.sampled_from([*PIECES.split(), "\n", "\u0301"])
any_text = st.text(st.characters(exclude_categories=()), max_size=40)
latex_text = st.lists(pieces | any_text, max_size=25).map("".join)


@settings(deadline=None, max_examples=100)
@given(latex_text | any_text, latex_text | any_text)
def test_any_strings_have_a_finite_symmetric_score(prediction: str, reference: str) -> None:
    assume(read_formula(reference).tokens and read_formula(prediction).tokens)
    scored = score("formula", prediction, reference, ROBUST)
    assert 0.0 <= scored.value <= 1.0
    assert all(math.isfinite(part) for part in scored.parts.values())
    assert scored.parts["similarity"] == score("formula", reference, prediction, ROBUST).parts["similarity"]
    assert score("formula", reference, reference, ROBUST).value == 1.0


@settings(deadline=None, max_examples=100)
@given(latex_text | any_text)
def test_a_reference_is_usable_if_it_draws_something(reference: str) -> None:
    if read_formula(reference).tokens:
        assert score("formula", reference, reference, ROBUST).value == 1.0
    else:
        with pytest.raises(ValueError, match=r"^reference holds no formula"):
            score("formula", "x", reference, ROBUST)


atoms = st.sampled_from(
    ["x", "1", "+", r"\alpha", r"\leq", r"\mathbf{y}", r"\sin", "f'", r"\frac{1}{2}", r"\sum_{i}^{n}"]
)
formulas = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        inner.map(r"\sqrt{{{}}}".format),
        inner.map("({})".format),
        st.tuples(inner, inner).map(lambda two: rf"\frac{{{two[0]}}}{{{two[1]}}}"),
        st.tuples(atoms, inner).map(lambda two: f"{{{two[0]}}}_{{{two[1]}}}"),
        st.tuples(inner, inner).map(lambda two: rf"\begin{{matrix}}{two[0]}&{two[1]}\\{two[1]}&1\end{{matrix}}"),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(formulas, st.sampled_from([r"\,", r"\quad ", "~", " ", "\n", "% comment\n", "{}"]))
def test_spaces_braces_and_sizes_change_nothing(formula: str, space: str) -> None:
    tokens = read_formula(formula).tokens
    assert tokens and all(read_formula(formula).checks.values())
    for same in (
        formula.replace(" ", space + " "),
        f"{{{{{formula}}}}}",
        f"$${formula}$$",
        rf"\[{formula}\]",
        rf"\begin{{align*}}{formula}\end{{align*}}",
        rf"\left.{formula}\right.",
        formula.replace("(", r"\left(").replace(")", r"\right)"),
        formula.replace("(", r"\bigl( ").replace(")", r"\bigr)"),
        formula.replace(r"\frac", r"\displaystyle\dfrac"),
        formula.replace("matrix}", "array}").replace(r"\begin{array}", r"\begin{array}{cc}"),
        formula + r"\label{a}\quad",
    ):
        assert read_formula(same).tokens == tokens
    assert read_formula(formula + "z").tokens != tokens


LENGTH = 34_000
HOSTILE = [r"\frac{", "{", "x^", r"\left(", r"\left", r"\begin{array}", r"\begin{array}{cl}a&", r"\over", "_^", "^{'"]
HOSTILE += [
    "'",
    "²",
    "^{²",
    "₂²",
    "é",
    "\u0301",
    "𝐱",
    r"\sqrt[",
    r"\label{",
    r"\tag[",
    r"\substack{",
    r"x\mathop{",
    "&",
]
HOSTILE += [
    r"\underset{a}",
    r"\unknown{",
    r"\begin{a}\end{b}",
    r"\hat\bf ",
    r"\[",
    r"\\[",
    r"\kern1",
    r"\lim_{",
    r"\dots",
]
HOSTILE += [
    r"\begin{array}{*{99}{*{99}{c}}}",
    r"\begin{align}a&=b\\c&=d\end{align}",
    "a&",
    r"a\\",
    r"\text{$",
    "]",
    "}",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_no_completion_stalls_the_reader(unit: str) -> None:
    latex = unit * (LENGTH // len(unit))
    start = time.process_time()
    value = score("formula", latex, r"x^{2}+y", ROBUST).value
    assert time.process_time() - start < 3.0  # about 0.5 s at most on an idle core
    assert 0.0 <= value < 0.2


@pytest.mark.parametrize("latex", [r"\frac{" * 5000, "{" * 10_000 + "x" + "}" * 10_000, "a&" * 9000 + r"b\\" * 5000])
def test_memory_is_bounded(latex: str) -> None:
    tracemalloc.start()
    score("formula", latex, r"x^{2}+y", ROBUST)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000


def test_rows_and_columns_of_a_grid_are_not_multiplied() -> None:
    latex = r"\begin{matrix}" + "a&" * 9000 + r"a\\" * 5000 + r"\end{matrix}"
    start = time.process_time()
    assert len(read_formula(latex).tokens) > 20_000
    assert time.process_time() - start < 3.0  # 0.1 s on an idle core


def test_an_oversized_prediction_is_not_read() -> None:
    scored = score("formula", "x" * 100_001, "x", ROBUST)
    assert scored.value == 0.0
    assert not any(scored.parts[name] for name in ROBUST_CHECKS)


# Spacing alone differs, which no formula reward compares.
SPACING_ONLY = {"spaces_thin", "hspace", "operatorname_star"}


@pytest.mark.skipif(not ORACLE.exists(), reason="the oracle is not part of the repository")
def test_equal_pairs_of_the_oracle_are_equal_and_others_are_not() -> None:
    rows = [json.loads(line) for line in ORACLE.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        if not row["ref"]:
            continue  # refused: nothing is drawn
        value = score("formula", row["pred"], row["ref"], ROBUST).value
        assert (value == 1.0) == (row["intended"] == "equal" or row["kind"] in SPACING_ONLY), row["id"]


def numbered(pattern: str, numbers: range, separator: str = "") -> str:
    """Copies of a pattern with numbers for `#`."""
    return separator.join(pattern.replace("#", str(number)) for number in numbers)


def matrix(pattern: str, size: int) -> str:
    return r" \\ ".join(" & ".join(pattern.replace("#", f"{i} {j}") for j in range(size)) for i in range(size))


RESPELLED = {
    "braces of scripts": (
        numbered("x_{#}", range(1, 13), "+"),
        numbered("x_#", range(1, 10), "+") + "+x_{10}+x_{11}+x_{12}",
    ),
    "sizes": (numbered(r"\left(\frac{a_#}{b_#}\right)", range(6)), numbered(r"(\frac{a_#}{b_#})", range(6))),
    "an array in parentheses": (
        r"\left( \begin{array} { c c c c c c } " + matrix("{ # }", 6) + r" \end{array} \right)",
        r"\begin{pmatrix}" + matrix("#", 6) + r"\end{pmatrix}",
    ),
    "styles in an array": (
        r"\left[ \begin{array} { c c c c } " + matrix(r"{ \displaystyle a _ { # } }", 4) + r" \end{array} \right]",
        r"\begin{bmatrix}" + matrix("a_{#}", 4) + r"\end{bmatrix}",
    ),
    "rows": (
        r"\begin{array} { r l } "
        + numbered(r"{ { x _ { # } } } & { { } = \displaystyle \frac { a } { # } }", range(8), r" \\ ")
        + r" \end{array}",
        r"\begin{aligned}" + numbered(r"x_# &= \frac{a}{#}", range(8), r"\\") + r"\end{aligned}",
    ),
    "cases": (
        r"\left\{ \begin{array} { l l } "
        + numbered("{ # , } & { x = # , }", range(8), r" \\ ")
        + r" \end{array} \right.",
        r"\begin{cases}" + numbered("#,&x=#,", range(8), r"\\") + r"\end{cases}",
    ),
    "fonts": (numbered(r"\mathbf{W}_{#} ", range(1, 7)), numbered(r"{\bf W}_#", range(1, 7))),
    "words": (r"\mathrm { ~ t h e ~ } " * 14, r"\text{" + "the " * 14 + "}"),
    "a font for each letter": (r"\boldsymbol { x } " * 40, r"\boldsymbol{" + "x" * 40 + "}"),
}


@pytest.mark.parametrize("name", RESPELLED)
def test_another_spelling_of_a_repetitive_formula_costs_nothing(name: str) -> None:
    left, right = RESPELLED[name]
    assert score("formula", left, right, ROBUST).value == 1.0
    assert score("formula", right, left, ROBUST).value == 1.0


FORMULA = r"E = \frac{a_1 + b_2}{\sqrt{x^2 + y^2}} \leq \sum_{i=1}^{n} c_i"


def junk(number: int, length: int) -> str:
    return "".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        (FORMULA + "".join(f"\\quad%{junk(number, 8)}\n" for number in range(300)), FORMULA),
        (FORMULA + "%" + junk(0, 1600), FORMULA),
        (FORMULA + r"\phantom{" + junk(0, 3200) + "}", FORMULA),
        (FORMULA + "\u200b" * 30_000, FORMULA),
        (FORMULA + "{}" * 1600, FORMULA),
        (FORMULA + r"\displaystyle" * 3200, FORMULA),
        ("A " + r"\! " * 300 + "p_j", "A p_j"),
        ("a+b=c+d-e " + r"\quad " * 80, "a+b=c+d-e"),
    ],
)
def test_what_is_not_drawn_costs_where_there_is_much_of_it(prediction: str, reference: str) -> None:
    scored = score("formula", prediction, reference, ROBUST)
    assert scored.parts["similarity"] == 1.0
    assert scored.value == scored.parts["gate"] < 0.2
    assert score("formula", prediction, prediction, ROBUST).value == 1.0


def test_what_is_not_drawn_does_not_hide_a_loop() -> None:
    looped = score("formula", "x+" * 60, FORMULA, ROBUST).value
    padded = "".join(f"x+%{junk(number, 2)}\n" for number in range(60))
    assert score("formula", padded, FORMULA, ROBUST).value <= looped
    assert score("formula", FORMULA + "% a comment\n\\label{eq:1}\\quad", FORMULA, ROBUST).value == 1.0


@settings(deadline=None, max_examples=100)
@given(formulas, st.lists(st.sampled_from([r"\quad ", "{}", "%ab\n", "\u200b", r"\, "]), max_size=200).map("".join))
def test_unseen_tokens_never_pay(formula: str, unseen: str) -> None:
    assert score("formula", formula + unseen, FORMULA, ROBUST).value <= score("formula", formula, FORMULA, ROBUST).value
