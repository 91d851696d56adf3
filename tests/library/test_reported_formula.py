"""Formulas from public bug reports, under the robust reward: the value each must have, and the checks that must fail.

The published reward drops braces and knows no aliases, so it differs on many of them by its formula.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import pytest

from rewards import RewardConfig, Score, score

ROBUST = RewardConfig(profile="robust")


class Case(NamedTuple):
    """A value between `low` and `high`, and the checks that fail. `why` gives the reason of a policy."""

    name: str
    prediction: str
    reference: str
    low: float
    high: float
    fails: tuple[str, ...] = ()
    why: str = ""


CASES = [
    Case("A7-2", r"\sqrt{18}=\sqrt{3^2\times 2}", r"\sqrt{18}=\sqrt{3^2\times 2}", 1, 1),
    Case("B1-1", "2_2", "2^2", 0, 0.89),
    Case("B1-2", "22", "2^2", 0, 0.89),
    Case("B2-1", r"\mathrm{\frac{利润}{成本}\times 100\%}", r"\mathrm{\frac{利润}{成本}\times 100\%}", 1, 1),
    Case("B2-2", r"\sum_{\begin{subarray}{c}i>0\\ j<n\end{subarray}}x_i", r"\sum_{\substack{i>0\\ j<n}}x_i", 1, 1),
    Case(
        "B3-1",
        r"\undefinedmacro{x}",
        "x",
        0,
        0.99,
        why="policy: an unknown command is compared as it is written; no parse can fail, so nothing counts failed ones",
    ),
    Case("B4-1", "x+1", "x+1", 1, 1),
    Case("B5-1", "x^2", "x^{2}", 1, 1),
    Case("B5-2", r"{a \over b}", r"\frac{a}{b}", 1, 1),
    Case("B5-3", r"\left(a+b\right)", "(a+b)", 1, 1),
    Case("B5-4", r"\dfrac{1}{2}", r"\frac{1}{2}", 1, 1),
    Case("B5-5", r"a\le b\ne c", r"a\leq b\neq c", 1, 1),
    Case("B6-1", "x_12", "x_{12}", 0, 0.99),
    Case("B6-2", "R", r"\mathbb{R}", 0, 0.99),
    Case("B6-3", r"\Big( a \Big)", "( a )", 1, 1),
    Case("B7-1", r"a \leftarrow b", r"a \rightarrow b", 0, 0.99),
    Case("B7-2", r"\gamma", r"\Gamma", 0, 0.99),
    Case("B7-3", "x=X", "X=x", 0, 0.99),
    Case("B7-4", r"\begin{vmatrix}a&b\\c&d\end{vmatrix}", r"\begin{pmatrix}a&b\\c&d\end{pmatrix}", 0, 0.99),
    Case("B8-1", "\nabla f = \tau", r"\nabla f = \tau", 0, 0.79),
    Case("B9-1", r"A_{ab} \stackrel", r"A_{ab} \stackrel{def}{=} B", 0, 0.89, fails=("arguments",)),
    Case("B10-1", r"\operatorname{s i n} \theta \, \operatorname{c o s} \phi", r"\sin\theta\cos\phi", 1, 1),
    Case("B10-2", r"\operatorname*{lim}_{x\to 0}", r"\lim_{x \rightarrow 0}", 1, 1),
    Case("B11-1", "abc } def", "abc def", 0.5, 0.95, fails=("braces",)),
    Case("B11-2", r"\let\aaa\textbf", "x", 0, 0.05, fails=("arguments",)),
    Case("B11-3", r"\begin \item {1.} x \end", "x", 0, 0.3, fails=("environments",)),
    Case(
        "B11-4",
        "{" * 900 + "x" + "}" * 900,
        "x",
        0,
        0.99,
        why="the braces draw nothing, but the gate takes them for a loop",
    ),
    Case("B12-1", "x_{a}_{b}", "x_{ab}", 0, 0.89, fails=("double_scripts",)),
    Case(
        "B12-2",
        r"\left{ a \right}",
        r"\left\{ a \right\}",
        0,
        0.99,
        fails=(
            "left_right",
            "braces",
        ),
    ),
    Case("B12-3", r"\left( a + b", r"\left( a + b \right)", 0, 0.99, fails=("left_right",)),
    Case("B12-4", r"\frac{a}{b", r"\frac{a}{b}", 0.5, 0.99, fails=("braces",)),
    Case("B13-1", r"480~\mathrm{cm^{-1}}", r"480\;\mathrm{cm}^{-1}", 1, 1),
    Case("B14-1", r"\[x+1\]", "$$x+1$$", 1, 1),
    Case("B14-2", r"\(x+1\)", "x+1", 1, 1),
    Case("B14-3", "$x$ and $y$", "$x$", 0, 0.99),
    Case("B16-1", "f'(x)", r"f^{\prime}(x)", 1, 1),
    Case("B16-2", r"\alpha中", r"\alpha 中", 1, 1),
    Case("B16-3", r"\begin{cases}a\\[2pt]b\end{cases}", r"\begin{cases}a\\b\end{cases}", 1, 1),
    Case("E18-3", r"\quad", r"\frac{a}{b}", 0, 0.01),
]


def robust(prediction: str, reference: str) -> Score:
    return score("formula", prediction, reference, ROBUST)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_reported_formula(case: Case) -> None:
    start = time.process_time()
    scored = robust(case.prediction, case.reference)
    assert time.process_time() - start < 1.0
    assert case.low <= scored.value <= case.high, case.why
    assert {name for name, part in scored.parts.items() if part is False} == set(case.fails)
    assert scored.parts["violations"] == len(case.fails)
    assert robust(case.reference, case.reference).value == 1.0
    assert robust(case.prediction, case.reference) == scored  # nothing is left over from the calls before


def test_formulas_are_scored_alike_in_any_thread() -> None:
    alone = [robust(case.prediction, case.reference) for case in CASES]
    results: dict[int, list[Score]] = {}

    def work(number: int) -> None:
        results[number] = [robust(case.prediction, case.reference) for case in CASES]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[number] for number in range(4)] == [alone] * 4
