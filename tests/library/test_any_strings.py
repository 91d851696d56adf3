"""Nothing that a model writes crashes a reward: any two strings have a finite score in [0, 1].

`pytest -m nightly tests/library` runs the same search ten times as long.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import RewardConfig, score

CONFIGS = {profile: RewardConfig(profile=profile) for profile in ("published", "robust")}
REFERENCES = {
    "text": "Bolts, 12 pieces at $x_1^2$ each. 目次 ........ 9",
    "table": "<table><thead><tr><th colspan='2'>Item &amp; more</th></tr></thead>"
    "<tr><td>Bolt</td><td>12</td></tr></table>",
    "formula": r"\begin{cases}\frac{a}{b}=\left(x^{12}\right) & \text{if } x_i\leq 1\\ \sqrt[3]{y} & 0\end{cases}",
}

# Any code point: NUL, lone surrogates, combining marks, non-characters.
anything = st.text(st.characters(exclude_categories=()), max_size=40)
# fmt: off
html = st.sampled_from((
    "<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<th colspan='2'>", '<td rowspan="0">', "<tbody>", "<b>",
    "<br/>", "<!--", "-->", "<![CDATA[", "<?", "<td style=", '"', "'", ">", "<", "&", "&#", "&#x", ";", "&lt;td&gt;",
    "<math alttext=", "<span hidden>", "<script>", "</", '<td colspan="99999999999">', "<template>", "<caption>",
))
latex = st.sampled_from((
    r"\frac", r"\sqrt", r"\sqrt[", r"\left", r"\right", r"\left.", r"\begin{array}{c}", r"\end{array}", r"\begin", "{",
    "}", "[", "]", "$", "$$", "&", "\\", r"\\", "^", "_", "'", r"\(", r"\)", r"\[", "%", "~", r"\over", r"\not",
    r"\operatorname*{", r"\hspace{", r"\text", r"\mathbb R", r"\hat", r"\overset", r"\tag{", r"\prime", "\u00b2", "x",
))
# fmt: on
pieces = html | latex | anything | st.sampled_from((" ", "\n", "\t", "1", "9999999999", "é", "·", "…"))


@st.composite
def mutated(draw: st.DrawFn, source: str) -> str:
    """A usable string with pieces put in, and parts cut out or repeated."""
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(source)))
        end = draw(st.integers(start, min(len(source), start + 12)))
        middle = draw(pieces | st.just(source[start:end] * draw(st.integers(0, 30))))
        source = source[:start] + middle + source[end:]
    return source


strings = (
    anything | st.lists(pieces, max_size=14).map("".join) | st.sampled_from(list(REFERENCES.values())).flatmap(mutated)
)


def check(task: str, profile: str, prediction: str, reference: str) -> None:
    config = CONFIGS[profile]
    keys = set(score(task, REFERENCES[task], REFERENCES[task], config).parts)
    for wanted in (REFERENCES[task], reference):
        try:
            scored = score(task, prediction, wanted, config)
        except ValueError as error:  # a reference that holds nothing is a caller's bug
            assert wanted == reference and task != "text" and str(error).startswith("reference ")
            continue
        assert 0.0 <= scored.value <= 1.0
        assert set(scored.parts) == keys
        assert all(math.isfinite(part) for part in scored.parts.values())
        assert score(task, prediction, wanted, config) == scored
        identity = score(task, wanted, wanted, config)
        assert identity.value == (1.0 if profile == "robust" else identity.parts["gate"])


searched = given(st.sampled_from(list(REFERENCES)), st.sampled_from(list(CONFIGS)), strings, strings)


@settings(deadline=None, max_examples=2000)
@searched
def test_any_two_strings_have_a_score(task: str, profile: str, prediction: str, reference: str) -> None:
    check(task, profile, prediction, reference)


@pytest.mark.parametrize("start", range(0, 0x20000, 0x1000))
def test_every_character_has_a_score(start: int) -> None:
    step = 1 if start == 0x1D000 else 7  # the mathematical alphabets have gaps that are easy to fall into
    for char in map(chr, range(start, start + 0x1000, step)):
        for task in REFERENCES:
            assert 0.0 <= score(task, char, REFERENCES[task], CONFIGS["robust"]).value <= 1.0


@pytest.mark.nightly
@settings(deadline=None, max_examples=20_000)
@searched
def test_any_two_strings_have_a_score_in_a_long_search(
    task: str, profile: str, prediction: str, reference: str
) -> None:
    check(task, profile, prediction, reference)
