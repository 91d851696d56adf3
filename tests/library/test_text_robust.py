"""The robust text reward: each rule of its form, next to what the published form makes of it, and what always holds."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import text_reward
from rewards.text_form import robust_text_form
from rewards.types import ROBUST

SIMILAR = 0.999  # at most this where the drawing differs

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
marks = st.sampled_from(
    [
        *r"$\()_*^{}[].·…‧・¥＄＼（．²₂∘5a好あé",
        *("\u0301", "\u3099", "\u00ad", "\u200b", "\ufe0f", "\u00a0", "\u3000", "\n", " ", "\ufb03", "\ufefb"),
        *("$$", r"\alpha", r"\frac", r"\(", r"\)", "x^2", r"\$", r"\text", r"\\", "|", "#", "\ud800", "\x00"),
    ]
)
texts = st.lists(marks | any_text, max_size=14).map("".join)

BLIND_SPOTS = {
    "a decimal point": ("1.5", "15"),
    "a minus sign": ("-5", "5"),
    "a comma": ("1,234", "1234"),
    "a slash that deletes a letter": ("and/to", "ando"),
    "a slash before n": ("on/now", "onow"),
    "a backslash that deletes a letter": (r"C:\temp", "C:emp"),
    "a space": ("no where", "nowhere"),
    "a line break": ("no\nwhere", "nowhere"),
    "a tab": ("no\twhere", "nowhere"),
    "a question": ("Ready?", "Ready."),
    "quotation marks": ('"so called"', "so called"),
    "a range": ("10-20", "1020"),
    "a percent sign": ("5%", "5"),
    "a currency": ("$5", "€5"),
    "a degree sign": ("20°", "20"),
    "an accent": ("x\u0302", "x"),
    "a Devanagari vowel": ("कि", "क"),
    "an Arabic vowel": ("كَ", "ك"),
    "full-width punctuation": ("你好？", "你好！"),
    "an emoji": ("yes 👍", "yes 👎"),
    "brackets": ("f(x)", "f[x]"),
    "a power": ("$x^2$ m", "x2 m"),
}


@pytest.mark.parametrize("name", BLIND_SPOTS)
def test_what_the_published_form_does_not_see(name: str) -> None:
    left, right = BLIND_SPOTS[name]
    for prediction, reference in ((left, right), (right, left)):
        assert text_reward(prediction, reference).value == 1.0
        assert 0.0 <= text_reward(prediction, reference, ROBUST).value <= SIMILAR


# What is drawn alike, and the published form takes for different.
ALIKE = {
    "full-width digits": ("１２", "12"),
    "full-width letters": ("ＡＢ", "AB"),
    "half-width kana": ("ｶﾞｲﾄﾞ", "ガイド"),
    "half-width Hangul": ("ﾡ", "ㄱ"),
    "Arabic presentation forms": ("\ufefb", "لا"),
    "Arabic initial, medial and final forms": ("\ufeb3\ufee0\ufee2", "سلم"),
    "an Arabic word as one character": ("\ufdf2", "الله"),
    "a Latin ligature": ("o\ufb03ce", "office"),
    "an Armenian ligature": ("\ufb13", "մն"),
    "composition": ("e\u0301", "é"),
    "composition of Hangul": ("\u1112\u1161\u11ab", "한"),
    "a compatibility ideograph": ("\uf900", "豈"),
    "an Arabic filler between letters": ("a\u034fb", "ab"),
    "a Hangul filler": ("a\u3164b", "ab"),
    "an escaped underscore before math": (r"a\_b", "a_b"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_drawn_alike(name: str) -> None:
    left, right = ALIKE[name]
    assert text_reward(left, right, ROBUST).value == text_reward(right, left, ROBUST).value == 1.0


# In both profiles, or by rules about characters that the published form deletes.
SAME = {
    "soft hyphen": ("co\u00adoperate", "cooperate"),
    "zero-width space": ("zero\u200bwidth", "zerowidth"),
    "zero-width joiner": ("👩\u200d💻", "👩💻"),
    "direction marks": ("\u200fسلام\u200e", "سلام"),
    "direction isolates": ("\u2067سلام\u2069", "سلام"),
    "byte order mark": ("\ufefftext", "text"),
    "control characters": ("te\x00x\x07t", "text"),
    "variation selector": ("❤\ufe0f", "❤"),
    "no-break space": ("5\u00a0kg", "5 kg"),
    "narrow no-break space": ("5\u202fkg", "5 kg"),
    "line separator": ("a\u2028b", "a b"),
    "carriage return": ("a\r\nb", "a b"),
    "spaces at the ends": ("\n a b\u3000", "a b"),
    "no-break hyphen": ("Jean\u2011Luc", "Jean-Luc"),
    "hyphen": ("Jean\u2010Luc", "Jean-Luc"),
    "full-width punctuation": ("（１）：ａ", "(1):a"),
    "small punctuation": ("a\ufe50b", "a,b"),
    "vertical punctuation": ("\ufe35a\ufe36", "(a)"),
    "Chinese over two lines": ("你好\n世界", "你好世界"),
    "Chinese punctuation over two lines": ("你好，\n世界", "你好，世界"),
    "Chinese and ASCII punctuation": ("你好 (世界)\n你好, 世界", "你好(世界)你好,世界"),
    "Japanese": ("これ は 本", "これは本"),
    "dot leaders of any length": ("Chapter 1 ···· 9", "Chapter 1 ............ 9"),
    "spaced dot leaders": ("Chapter 1 . . . . . . 9", "Chapter 1 .... 9"),
    "dot leaders of other dots": ("第一章 ・・・・・ 9", "第一章 …… 9"),
    "dot leaders without spaces around": ("Chapter 1....9", "Chapter 1 ............ 9"),
    "an ellipsis": ("wait... what", "wait … what"),
    "LaTeX in a text": (r"angle $\alpha$", "angle α"),
    "powers": (r"5 $m^2$, $10^{-5}$, m$^{2}$", "5 m², 10⁻⁵, m²"),
    "indices": (r"H$_2$O, $x_{10}$", "H₂O, x₁₀"),
    "degrees": (r"$30^\circ$C, $30^{\circ}$", "30°C, 30°"),
    "LaTeX in parentheses": (r"angle \(\alpha\)", "angle α"),
    "LaTeX in two dollar signs": (r"angle $$\alpha$$", "angle α"),
    "a letter as math": ("where $x$ and $ y_1 $ are", "where x and y_1 are"),
    "a letter as math in parentheses": (r"where \(x\) is", "where x is"),
    "Markdown escapes": (r"1\. \*a\* \[b\] \#c \|d", "1. *a* [b] #c |d"),
    "escaped dollar signs": (r"from \$5 to \$6", "from $5 to $6"),
    "escaped parentheses": (r"f\(x\)", "f(x)"),
    "two prices": ("from $5 to $6", "from ＄5 to ＄6"),
}


@pytest.mark.parametrize("name", SAME)
def test_what_no_reader_can_see(name: str) -> None:
    left, right = SAME[name]
    assert robust_text_form(left) == robust_text_form(right)
    assert text_reward(left, right, ROBUST).value == 1.0


DIFFERENT = {
    "superscript": ("5 m²", "5 m2"),
    "subscript": ("H₂O", "H2O"),
    "circled digit": ("①", "1"),
    "long s": ("ſuch", "such"),
    "ligature with a long s": ("\ufb05", "st"),
    "fraction": ("½", "1/2"),
    "Roman number": ("Ⅳ", "IV"),
    "trade mark": ("™", "TM"),
    "unit in one character": ("㎏", "kg"),
    "letter case": ("Polish", "polish"),
    "dash": ("1–2", "1-2"),
    "number sign around digits": ("\u06dd١", "١"),
    "two dots": ("a..", "a."),
    "a sentence end": ("a.", "a…"),
    "Korean spaces": ("나 무", "나무"),
    "space between scripts": ("共 3 页", "共3页"),
    "price and no price": ("$5 or $6", "5 or 6"),
    "a path": (r"C:\new", "C:new"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_stays_different(name: str) -> None:
    left, right = DIFFERENT[name]
    assert text_reward(left, right, ROBUST).value <= SIMILAR
    assert text_reward(right, left, ROBUST).value <= SIMILAR


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", ""),
        (" \n\u00a0\u200b", ""),
        ("Total:\u3000１２，３００", "Total: 12,300"),
        (r"area $5\,\mathrm{m}^2$", "area 5 m^2"),
        (r"$\frac{1}{2}$", "1/2"),
        (r"broken $\frac{1$", r"broken ＄\frac{1＄"),
        ("$5 or $6", "＄5 or ＄6"),
        ("$5-$6", "＄5-＄6"),
        ("10⁻⁵ m² H₂O", "10^-5 m^2 H_2O"),
        ("\\²", "^2"),
        (r"\\\_", "_"),
        (r"a\b", r"a\b"),
        ("a . b . . c", "a . b . . c"),
        ("a . . . b", "a…b"),
        ("好 . . . 9", "好…9"),
        ("第 一\n章 a", "第一章 a"),
        ("나무 숲", "나무 숲"),
    ],
)
def test_the_form(text: str, form: str) -> None:
    assert robust_text_form(text) == form


@settings(deadline=None, max_examples=400)
@given(texts)
def test_the_form_is_idempotent(text: str) -> None:
    form = robust_text_form(text)
    assert robust_text_form(form) == form


@settings(deadline=None, max_examples=100)
@given(texts)
def test_a_copy_has_reward_1(text: str) -> None:
    assert text_reward(text, text, ROBUST).value == 1.0


@settings(deadline=None, max_examples=100)
@given(texts, texts)
def test_similarity_is_in_bounds_and_symmetric(left: str, right: str) -> None:
    there, back = text_reward(left, right, ROBUST), text_reward(right, left, ROBUST)
    assert 0.0 <= there.value <= there.parts["similarity"] <= 1.0
    assert there.parts["similarity"] == back.parts["similarity"]
    assert there.parts["ned"] == 1.0 - there.parts["similarity"]
    assert set(there.parts) == {"similarity", "gate", "rho8", "longest_run", "ned"}


@settings(deadline=None, max_examples=100)
@given(texts, st.data())
def test_invisible_characters_do_not_matter(text: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(text)))
    invisible = data.draw(st.sampled_from("\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u202e\u2066\ufe0e\u034f\x00\x7f"))
    assert robust_text_form(text[:position] + invisible + text[position:]) == robust_text_form(text)


@settings(deadline=None, max_examples=100)
@given(
    texts.filter(lambda text: "$" not in text and r"\(" not in text), st.sampled_from("\t\r\u00a0\u2009\u3000\u2028")
)
def test_the_kind_and_number_of_spaces_do_not_matter(text: str, space: str) -> None:
    form = robust_text_form(text)
    assert robust_text_form(text.replace(" ", space)) == form
    assert robust_text_form(text.replace(" ", "\n \n")) == form
    assert robust_text_form(space + text + "\n") == form


def test_math_ends_with_its_line() -> None:
    assert robust_text_form("$a_1\nb_2$") == "＄a_1 b_2＄"


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u00a0", "\u200b\ufeff", "\x00", "\u3000\u200f"])
def test_a_blank_reference_wants_a_blank_prediction(blank: str) -> None:
    for prediction in ("", " ", "\u200b"):
        assert text_reward(prediction, blank, ROBUST).value == 1.0
        assert text_reward("x", blank, ROBUST).value == text_reward(".", blank, ROBUST).value == 0.0
        assert text_reward(prediction, "x y", ROBUST).value == 0.0


def test_a_form_of_nothing_is_compared_raw() -> None:
    assert robust_text_form("\u3164") == robust_text_form(r"$\,$") == ""
    assert text_reward("\u3164", "\u3164", ROBUST).value == 1.0
    assert text_reward("\u3164", r"$\,$", ROBUST).value == 0.0


def test_the_gate_of_the_profile_counts() -> None:
    looped = text_reward("Open. " * 100, "Open.", ROBUST)
    assert looped.value == looped.parts["similarity"] * looped.parts["gate"]
    assert looped.parts["gate"] < 0.2
    page = "Name ..................................... 9\n" * 20
    assert text_reward(page, page).value < 1.0
    assert text_reward(page, page, ROBUST).value == 1.0


@pytest.mark.parametrize(
    "unit",
    [
        *("$ ", "$a", "$a_1 $ ", "$$", r"\$", r"\(", r"\(a", "\\", r"\_", ". ", "… .", "x. ", "好 ", "a \n"),
        *("e\u0301\u0323", "\u0301", "ｶﾞ", "\u200b", "\ufdfa"),
    ],
)
def test_the_form_takes_linear_time(unit: str) -> None:
    text = (unit * 34_000)[:34_000]
    robust_text_form(r"warm $\alpha$ up")
    start = time.process_time()
    robust_text_form(text)
    assert time.process_time() - start < 1.5  # at most 0.45 s on an idle core
