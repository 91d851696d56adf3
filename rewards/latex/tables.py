"""What the robust formula reward knows about LaTeX commands: aliases, arguments, fonts, environments, symbols.

Data only, read by `rewards.latex.lexer`, `rewards.latex.reader` and `rewards.latex.grid`. A command means what LaTeX
with amsmath, amssymb and mathtools draws, plus what plain TeX, KaTeX and MathJax add. `docs/REWARDS.md` has the same
tables in readable form.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A control word, a control symbol, a comment with its line end, or one character.
TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|%[^\n\r]*[\n\r]*|.", re.DOTALL)


def _words(text: str) -> frozenset[str]:
    """Control words from their names; a name that does not start with a letter is a control symbol."""
    return frozenset("\\" + name for name in text.split())


def _aliases(text: str) -> dict[str, tuple[str, ...]]:
    """Lines `names = replacement`: each of the control sequences stands for the tokens of the replacement."""
    table: dict[str, tuple[str, ...]] = {}
    for line in text.strip().splitlines():
        names, replacement = line.split(" = ")
        table.update(dict.fromkeys(_words(names), tuple(TOKEN.findall(replacement))))
    return table


FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arsinh arcosh "
    "artanh log ln lg exp lim limsup liminf max min sup inf det dim ker deg gcd lcm arg argmax argmin hom Pr sgn sign "
    "tr rank tg ctg cotg arctg arcctg cosec sh ch th cth injlim projlim plim"
)
# The same drawing up to spacing, size and the place of limits.
ALIASES = _aliases(r"""
le = \leq
ge = \geq
lt = <
gt = >
ne neq = {\not=}
notin nin = {\not\in}
notni = {\not\ni}
nleq = {\not\leq}
ngeq = {\not\geq}
nless = {\not<}
ngtr = {\not>}
nmid = {\not|}
nparallel = {\not\|}
nexists = {\not\exists}
nsim = {\not\sim}
ncong = {\not\cong}
nsubseteq = {\not\subseteq}
nsupseteq = {\not\supseteq}
nprec = {\not\prec}
nsucc = {\not\succ}
nrightarrow = {\not\rightarrow}
nleftarrow = {\not\leftarrow}
nRightarrow = {\not\Rightarrow}
nLeftarrow = {\not\Leftarrow}
nleftrightarrow = {\not\leftrightarrow}
nLeftrightarrow = {\not\Leftrightarrow}
nsubset = {\not\subset}
nsupset = {\not\supset}
npreceq = {\not\preceq}
nsucceq = {\not\succeq}
nvdash = {\not\vdash}
nequiv = {\not\equiv}
vDash = \models
Box = \square
slashed = \not
to = \rightarrow
gets = \leftarrow
implies = \Longrightarrow
impliedby = \Longleftarrow
iff = \Longleftrightarrow
leadsto = \rightsquigarrow
land = \wedge
lor = \vee
lnot = \neg
owns = \ni
dag = \dagger
ddag = \ddagger
bot = \perp
doteqdot = \Doteq
cdotp centerdot = \cdot
colon ratio vcentcolon = :
ast = *
backslash textbackslash = \setminus
vert lvert rvert mid textbar = |
Vert lVert rVert parallel = \|
lbrace = \{
rbrace = \}
lbrack = [
rbrack = ]
lparen = (
rparen = )
coloneqq coloneq = :=
eqqcolon = =:
dblcolon = ::
ldots dotsc dotso hdots mathellipsis textellipsis = \ldots
dotsb dotsm dotsi = \cdots
iint = {\int\int}
iiint = {\int\int\int}
iiiint = {\int\int\int\int}
omicron = o
bmod = \operatorname{mod}
varlimsup = {\overline{\operatorname{lim}}}
varliminf = {\underline{\operatorname{lim}}}
degree textdegree = °
celsius = ^{\circ}\mathrm{C}
dprime = ''
dfrac tfrac = \frac
dbinom tbinom = \binom
stackrel = \overset
fbox = \boxed
sp textsuperscript = ^
sb textsubscript = _
operatornamewithlimits = \operatorname
intop = \int
cr newline tabularnewline = \\
' Acute = \acute
` Grave = \grave
^ Hat = \hat
" Ddot = \ddot
~ Tilde = \tilde
= Bar = \bar
. Dot = \dot
Check v = \check
Breve u = \breve
Vec = \vec
r = \mathring
AA = {\mathring{A}}
aa = {\mathring{a}}
textless = <
textgreater = >
textunderscore = \_
textdollar = \$
textquoteright textquotesingle = '
""") | {"\\" + name: ("\\operatorname", "{", *name, "}") for name in FUNCTIONS.split()}

SPACING = {"~", "\\ ", "\\\t", "\\\n", "\\\r"} | _words(
    ", : ; ! > / - space nobreakspace quad qquad enspace enskip thinspace medspace thickspace negthinspace "
    "negmedspace negthickspace hfill hfil hss smallskip medskip bigskip null"
)
# Style, size and layout: nothing of their own is drawn.
INVISIBLE = _words(
    "displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits displaylimits nonumber notag allowbreak "
    "nobreak break mathstrut strut relax protect centering raggedright raggedleft noindent par crcr tiny scriptsize "
    "footnotesize small normalsize large Large LARGE huge Huge"
)
DELIMITER_SIZES = _words("big Big bigg Bigg bigl Bigl biggl Biggl bigr Bigr biggr Biggr bigm Bigm biggm Biggm middle")
DELIMITERS = frozenset("()[]|/.") | _words(
    r"{ } | langle rangle lfloor rfloor lceil rceil lgroup rgroup lmoustache rmoustache ulcorner urcorner llcorner "
    r"lrcorner uparrow downarrow updownarrow Uparrow Downarrow Updownarrow setminus llbracket rrbracket"
)
ANGLES = {"<": r"\langle", ">": r"\rangle"}

# Commands with all of their arguments dropped, and how many these are.
DROPPED = {
    **dict.fromkeys(_words("label tag hspace vspace mspace phantom hphantom vphantom color textcolor colorbox"), 1),
    **dict.fromkeys(_words("raisebox noalign pagecolor"), 1),
    **dict.fromkeys(_words("rule setlength addtolength renewcommand fcolorbox fontsize"), 2),
}
# Commands followed by a TeX length such as `=1.5pt`.
LENGTHS = _words("kern mkern hskip mskip vskip raise lower moveleft moveright arraycolsep jot")

# Font of the argument, and of the rest of the group.
FONTS = {
    **dict.fromkeys(_words("mathrm textrm text textnormal mbox hbox textup mathup symup symrm"), "rm"),
    **dict.fromkeys(_words("mathbf textbf bold symbf mathbfup"), "bf"),
    **dict.fromkeys(_words("boldsymbol bm pmb mathbold symbfit mathbfit"), "bold"),
    **dict.fromkeys(_words("mathit textit mathnormal emph symit symnormal"), "normal"),
    **dict.fromkeys(_words("mathbb Bbb mathbbm mathds symbb"), "bb"),
    **dict.fromkeys(_words("mathcal symcal"), "cal"),
    **dict.fromkeys(_words("mathscr symscr"), "scr"),
    **dict.fromkeys(_words("mathfrak frak symfrak"), "frak"),
    **dict.fromkeys(_words("mathsf textsf symsf"), "sf"),
    **dict.fromkeys(_words("mathtt texttt symtt"), "tt"),
    **dict.fromkeys(_words("textsc"), "sc"),
}
FONT_SWITCHES = {
    r"\rm": "rm",
    r"\bf": "bf",
    r"\bfseries": "bf",
    r"\boldmath": "bold",
    r"\it": "normal",
    r"\itshape": "normal",
    r"\mit": "normal",
    r"\sl": "normal",
    r"\cal": "cal",
    r"\sf": "sf",
    r"\tt": "tt",
    r"\sc": "sc",
}
# Inside these, `$` goes back to math.
TEXT_COMMANDS = _words("text textrm textnormal mbox hbox textup textbf textit emph textsf texttt textsc")
# Commands of one argument that draw just the argument.
WRAPPERS = _words(
    "mathrel mathbin mathord mathopen mathclose mathpunct mathinner ensuremath smash mathclap mathllap mathrlap llap "
    "rlap clap vcenter lefteqn"
)

# Commands that draw something around their arguments, and how many arguments these are.
ARGUMENTS = {
    **dict.fromkeys(
        _words(
            "sqrt hat widehat tilde widetilde bar overline underline vec dot ddot dddot ddddot acute grave check "
            "widecheck breve mathring overrightarrow overleftarrow overleftrightarrow underrightarrow underleftarrow "
            "underleftrightarrow overbrace underbrace overbracket underbracket overparen underparen wideparen "
            "overarc boxed cancel bcancel xcancel sout underbar not xrightarrow xleftarrow xleftrightarrow "
            "xRightarrow xLeftarrow xLeftrightarrow xhookrightarrow xhookleftarrow xmapsto xlongequal "
            "xrightleftharpoons xleftrightharpoons overrightharpoon overleftharpoon utilde operatorname mathop "
            "pmod pod mod"
        ),
        1,
    ),
    **dict.fromkeys(("^", "_"), 1),
    **dict.fromkeys([*FONTS, *WRAPPERS], 1),
    **dict.fromkeys(_words("frac cfrac binom overset underset sfrac nicefrac sideset"), 2),
    r"\genfrac": 6,
}
# Those that may have an argument in brackets first.
OPTIONAL = _words(
    "sqrt cfrac xrightarrow xleftarrow xleftrightarrow xRightarrow xLeftarrow xLeftrightarrow xhookrightarrow "
    "xhookleftarrow xmapsto xlongequal xrightleftharpoons xleftrightharpoons"
)
# Infix fractions: what is drawn before and after, and the command with the two halves as arguments.
INFIX = {
    r"\over": ("", r"\frac", ""),
    r"\atop": ("", r"\atop", ""),
    r"\choose": ("", r"\binom", ""),
    r"\brace": (r"\{", r"\atop", r"\}"),
    r"\brack": ("[", r"\atop", "]"),
}


class Layout(NamedTuple):
    """How an environment lays out its cells.

    `columns` are the alignments, the last pattern repeated; empty where an argument of the environment has them.
    `arguments` counts the braced arguments, `small` says that it is set in script size.
    """

    left: str
    right: str
    columns: str
    arguments: int = 0
    small: bool = False


_MATRICES = {
    "matrix": ("", ""),
    "pmatrix": ("(", ")"),
    "bmatrix": ("[", "]"),
    "Bmatrix": (r"\{", r"\}"),
    "vmatrix": ("|", "|"),
    "Vmatrix": (r"\|", r"\|"),
}
GRIDS = {
    **{name: Layout(*sides, "c") for name, sides in _MATRICES.items()},
    **{name.replace("matrix", "smallmatrix"): Layout(*sides, "c", 0, True) for name, sides in _MATRICES.items()},
    **dict.fromkeys(("cases", "dcases"), Layout(r"\{", "", "l")),
    **dict.fromkeys(("rcases", "drcases"), Layout("", r"\}", "l")),
    **dict.fromkeys(("align", "aligned", "split", "flalign", "eqalign"), Layout("", "", "rl")),
    **dict.fromkeys(("alignat", "alignedat", "xalignat"), Layout("", "", "rl", 1)),
    "eqnarray": Layout("", "", "rcl"),
    **dict.fromkeys(("gather", "gathered", "displaylines"), Layout("", "", "c")),
    **dict.fromkeys(("multline", "multlined"), Layout("", "", "m")),
    **dict.fromkeys(("array", "darray", "tabular", "IEEEeqnarray"), Layout("", "", "", 1)),
    "subarray": Layout("", "", "", 1, True),
    "substack": Layout("", "", "c", 0, True),
}
# Commands whose braced argument is such a grid.
GRID_COMMANDS = _words("substack matrix pmatrix cases eqalign displaylines")
# Environments that only open display math.
PLAIN_ENVIRONMENTS = frozenset({"equation", "displaymath", "math", "subequations", "dmath"})

# Symbols that carry bold, beside letters and digits.
BOLD_SYMBOLS = _words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa varkappa lambda mu nu xi pi varpi "
    "rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi "
    "Psi Omega varGamma varDelta varTheta varLambda varXi varPi varSigma varUpsilon varPhi varPsi varOmega nabla "
    "partial ell hbar imath jmath infty"
)
RELATIONS = frozenset("=<>:|") | _words(
    r"leq geq leqslant geqslant leqq geqq ll gg lll ggg lesssim gtrsim lessapprox gtrapprox lessgtr gtrless approx "
    r"approxeq equiv sim simeq backsim cong propto varpropto asymp doteq Doteq doteqdot triangleq bumpeq Bumpeq circeq "
    r"eqcirc in ni subset subseteq subseteqq subsetneq subsetneqq supset supseteq supseteqq supsetneq supsetneqq "
    r"Subset Supset sqsubset sqsubseteq sqsupset sqsupseteq prec preceq preccurlyeq succ succeq succcurlyeq perp | "
    r"vdash dashv models vDash Vdash Vvdash bowtie Join frown smile between pitchfork therefore because "
    r"trianglelefteq trianglerighteq vartriangleleft vartriangleright "
    r"rightarrow leftarrow leftrightarrow Rightarrow Leftarrow Leftrightarrow longrightarrow longleftarrow "
    r"longleftrightarrow Longrightarrow Longleftarrow Longleftrightarrow mapsto longmapsto hookrightarrow "
    r"hookleftarrow rightharpoonup rightharpoondown leftharpoonup leftharpoondown rightleftharpoons "
    r"leftrightharpoons rightsquigarrow leftrightsquigarrow rightrightarrows leftleftarrows rightleftarrows "
    r"leftrightarrows twoheadrightarrow twoheadleftarrow rightarrowtail leftarrowtail nearrow searrow swarrow nwarrow "
    r"dashrightarrow dashleftarrow Rrightarrow Lleftarrow multimap upharpoonleft upharpoonright downharpoonleft "
    r"downharpoonright uparrow downarrow updownarrow Uparrow Downarrow Updownarrow upuparrows downdownarrows Lsh Rsh "
    r"circlearrowleft circlearrowright curvearrowleft curvearrowright not"
)
BINARIES = frozenset("+-*") | _words(
    "pm mp times div cdot star circ bullet cap cup uplus sqcap sqcup vee wedge setminus smallsetminus wr diamond "
    "bigtriangleup bigtriangledown triangleleft triangleright oplus ominus otimes oslash odot dagger ddagger amalg "
    "ltimes rtimes leftthreetimes rightthreetimes barwedge veebar boxplus boxminus boxtimes boxdot Cap Cup dotplus "
    "divideontimes circledast circledcirc circleddash intercal lhd rhd unlhd unrhd bigcirc"
)
# Big operators, whose scripts are drawn above and below in display style.
OPERATORS = _words(
    "sum prod coprod int oint oiint oiiint bigcup bigcap bigsqcup bigvee bigwedge bigoplus bigotimes bigodot biguplus"
)
# All commands without arguments: a brace group after one of them is no argument of it.
SYMBOLS = (
    BOLD_SYMBOLS
    | RELATIONS
    | BINARIES
    | OPERATORS
    | DELIMITERS
    | _words(
        "ldots cdots dots vdots ddots iddots prime forall exists nexists neg emptyset varnothing Re Im aleph beth "
        "gimel daleth wp hslash complement mho eth digamma angle measuredangle sphericalangle triangle triangledown "
        "vartriangle blacktriangle blacktriangledown square Box blacksquare Diamond lozenge blacklozenge bigstar "
        "diamondsuit heartsuit clubsuit spadesuit flat natural sharp surd top checkmark maltese backprime diagup "
        "diagdown Bbbk circledR circledS yen pounds copyright S P dagger ddagger hline % & # _ $ smallint Finv Game "
        "item ss o O ae AE oe OE l L i j"
    )
)
