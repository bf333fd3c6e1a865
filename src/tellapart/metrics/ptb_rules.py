"""The kinds of tokens, as regular expressions in order of precedence.

Written from the tokenizer's documentation, Penn Treebank conventions and what it does to probes; the tests ask it. The
patterns see captions whose characters were replaced by their kinds (:mod:`tellapart.metrics.ptb_characters`) and that
end with a line feed. Several oddities below are the reference's own: captions are scored as it cuts them.
"""

from __future__ import annotations

from tellapart.metrics.ptb_automaton import Rule
from tellapart.metrics.ptb_characters import (
    CAPITAL_NOTHING,
    CAPITAL_SYMBOL,
    DIGIT,
    LOWER,
    MARK,
    SMALL_DIGIT,
    SPACE,
    SYMBOL,
    UPPER,
)
from tellapart.metrics.ptb_words import (
    BEFORE_NUMBERS,
    FILE_ENDINGS,
    MAY_END,
    MAY_END_CAPITALISED,
    SPLIT_IN_TWO,
    STARTERS,
    TITLES,
)


def _words(text: str) -> str:
    """The words of a text as alternatives, in capitals or not."""
    return "|".join("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in text.split()).replace(
        ".", "\\."
    )


def _capitalised(text: str) -> str:
    """The same, but every word begins with a capital."""
    return "|".join(word[0].upper() + _words(word[1:]) for word in text.split())


# Sets of characters, to stand inside brackets, and single characters with their spellings.
BLANK = f" \t\xa0{SPACE}"
BREAK = "\n\x85"
"""What ends a line to the reference when it looks ahead."""
SOFT = "\xad"
LETTER = f"A-Za-z{LOWER}{UPPER}"
NUMERAL = f"0-9{DIGIT}"
CAPITAL = f"A-Z{UPPER}{CAPITAL_SYMBOL}{CAPITAL_NOTHING}"
CURLY = "(’|\x92|&[aA][pP][oO][sS];)"
APOSTROPHE = f"('|{CURLY})"
ANY_APOSTROPHE = f"([`‘\x91‛]|{APOSTROPHE})"
JOINER = "[-_\u058a\u2010\u2011]"
AND = "(&|&[aA][mM][pP];|\\+)"

# Words: letters, then letters and numerals, also with a stop inside ("parked.The").
ACCENTED = f"&[aeiouAEIOU]({_words('acute grave uml')});"
PLAIN = f"([{LETTER}{SOFT}{MARK}]|{ACCENTED})([{LETTER}{SOFT}{MARK}{NUMERAL}]|{ACCENTED})*"
WORD = f"{PLAIN}([.!?]{PLAIN})*"
CONTRACTED = "([sSmMdD]|[lL][lL]|[rR][eE]|[vV][eE])"
INITIALS = "[A-Za-z](\\.[A-Za-z])+"
COMPANY = f"[A-Z]+({AND}[A-Z]+)+"

# Compounds: letters and numerals joined by hyphens, with a French or Irish article anywhere ("jack-o'lantern").
ARTICLE = f"([dDlLoO]{ANY_APOSTROPHE}[{LETTER}{NUMERAL}])?"
PIECE = f"{ARTICLE}[{LETTER}{NUMERAL}]+"
COMPOUND = f"{PIECE}({JOINER}{PIECE})*"
DOTTED_COMPOUND = f"[a-zA-Z0-9][a-zA-Z0-9.,{SOFT}]*(-([a-zA-Z0-9{SOFT}]+|([a-zA-Z]\\.){{2,}}))+"
SIDE = "[a-zA-Z0-9]+(-[a-zA-Z]+){0,2}"
FILE = f"[{LETTER}{NUMERAL}]+(\\.[{LETTER}{NUMERAL}]+)*\\.({_words(FILE_ENDINGS)})"

# Numbers.
WHOLE = f"[{NUMERAL}]({SOFT}?[{NUMERAL}])*"
NUMBER = f"[-+]?[:,.٫٬{SOFT}]?{WHOLE}([.:,٫٬]{WHOLE})*"
DATE = f"[{NUMERAL}]{{1,2}}[-/][{NUMERAL}]{{1,2}}[-/][{NUMERAL}]{{2,4}}"
AREA = "\\([0-9]{2,3}\\)[ \xa0]?|(\\+\\+?)?([0-9]{2,4}[- \xa0])?[0-9]{2,4}[- \xa0]"
PHONE = f"({AREA})[0-9]{{3,4}}[- \xa0]?[0-9]{{3,5}}"
FRACTION = f"([{NUMERAL}]{{1,4}}[- \xa0])?[{NUMERAL}]{{1,4}}(\\\\?/|⁄)[{NUMERAL}]{{1,4}}"

# Abbreviations.
ENDING = f"{_words(MAY_END)}|{_capitalised(MAY_END_CAPITALISED)}|[pP]?[pP]t[ey]s?"
TITLE = f"{_words(TITLES)}|[mM][ft]g"

# Addresses.
STOP = ' \t\n"<>|()'
PATH = f"(/[^{STOP}]+[^{STOP}.!?,{{}}-])?"
URL = f"[hH][tT][tT][pP][sS]?://[^{STOP}{{}}]+[^{STOP}{{}}.!?,-]"
WWW = f"[wW][wW][wW]\\.([^{STOP},.!?{{}}]+\\.)+[a-zA-Z]{{2,4}}{PATH}"
SITE = f"([^{STOP}'`!$,-_{{}}]+\\.)+({_words('com net org edu')}){PATH}"
MAIL = f"<?[a-zA-Z0-9][^{STOP}\xa0{{}}]*@([^{STOP}\xa0{{}}.]+\\.)*[^{STOP}\xa0{{}}.]+>?"

# Tags and faces.
NAME = "[A-Za-z][A-Za-z0-9_:.-]*"
ATTRIBUTE = f" +{NAME}( *= *('[^'\n]*'|\"[^\"\n]*\"))?"
TAG = f"<{NAME}({ATTRIBUTE})* */? *>|</{NAME} *>|<[!?][A-Za-z-][^>\n]*>"
SENTENCE = f"[{BLANK}{BREAK}]+({_capitalised(STARTERS)}|{TAG})[{BLANK}{BREAK}]"
"""What shows that a dot behind initials ended a sentence."""
EYE = "[-^~<>='x]"
FACE = f"{EYE}_{EYE}|\\({EYE}[-_.]?{EYE}\\)"
SMILEY = "[<>]?[:;=][-*'o]?[\\][()DPOdp|@{\\\\]"

RULES = (
    Rule("tag", TAG),
    Rule("word", f"{SOFT}+"),
    Rule("nothing", "&[nN][bB][sS][pP];"),
    # Two words written as one, and words before a contracted one.
    *(Rule("word", _words(first), _words(second)) for first, second in SPLIT_IN_TWO.items()),
    Rule("word", "'[tT]", _words("is was")),
    Rule("word", f"[A-Za-z{SOFT}]*[A-MO-Za-mo-z{SOFT}]", f"[nN]{ANY_APOSTROPHE}[tT]"),
    Rule("word", PLAIN, f"{APOSTROPHE}{CONTRACTED}"),
    Rule("contraction", f"[nN]{ANY_APOSTROPHE}[tT]"),
    Rule("contraction", f"{APOSTROPHE}{CONTRACTED}", "[^A-Za-z]"),
    Rule("contraction", f"{CURLY}{CONTRACTED}"),
    # Addresses.
    Rule("kept", f"{URL}|{WWW}|{SITE}|{MAIL}"),
    Rule("kept", "@[a-zA-Z_][a-zA-Z0-9_]*"),
    Rule("kept", f"#([{LETTER}{SOFT}{MARK}]|{ACCENTED})+"),
    # Abbreviations and initials.
    Rule("shared dot", f"({ENDING})\\.", f"[{BLANK}{BREAK}]([{BLANK}{BREAK}{CAPITAL}]|{TAG})"),
    Rule("word", f"({ENDING})\\.", f"(.|\n)[{BLANK}{BREAK}.,?!]?|[^{LETTER}{NUMERAL}{MARK}]."),
    Rule("word", f"({TITLE})\\."),
    Rule("word", f"({_words(BEFORE_NUMBERS)})\\.", f"[{BLANK}{BREAK}]?[{NUMERAL}]"),
    Rule("shared dot", f"{INITIALS}\\.", SENTENCE),
    Rule("word", f"{INITIALS}\\.?"),
    Rule("word", _words("non-u.s u.s.-u.k"), f"[{BLANK}{BREAK}]"),
    Rule("word", "[A-Za-z]", f"\\.{SENTENCE}"),
    Rule("word", "[A-Za-z]\\."),
    # Words with an apostrophe inside, or at an end.
    Rule("word", f"[dlnoA-HJ-XZ]{ANY_APOSTROPHE}[{LETTER}]{{2,}}"),
    Rule("word", f"[{LETTER}]+[aeiouyAEIOUY]{ANY_APOSTROPHE}[aeiouA-Z][{LETTER}]*"),
    Rule("word", f"[yY]{APOSTROPHE}", f"[{LETTER}{SOFT}{MARK}]"),
    Rule("word", f"[oO]{ANY_APOSTROPHE}[oO]"),
    Rule("word", f"{APOSTROPHE}[nN]{APOSTROPHE}?|([dDjJlL]|[oO][lL]){APOSTROPHE}"),
    Rule("word", f"{APOSTROPHE}({_words('em til till cause')})"),
    Rule("word", _words("ev'ry nat'l c'mon s'mores e'er") + f"|[cC]{APOSTROPHE}{_words('est')}"),
    Rule("word", f"{APOSTROPHE}[0-9][0-9]", f"[{BLANK}{BREAK}]"),
    Rule("word", f"{APOSTROPHE}[2-9]0[sS]"),
    # Plain words, compounds, numbers.
    Rule("word", WORD),
    Rule("company", COMPANY),
    Rule("word", COMPOUND),
    Rule("word", DOTTED_COMPOUND),
    Rule("company", f"({WORD}|{COMPANY}|{COMPOUND}|{DOTTED_COMPOUND})\\.", "[,:;]"),
    Rule("word", f"{SIDE}(\\\\?/{SIDE}){{1,2}}"),
    Rule("word", FILE, f"[{BLANK}{BREAK}.,?!]"),
    Rule("word", f"{DATE}|{NUMBER}"),
    Rule("spaced", f"{PHONE}|{FRACTION}"),
    Rule("kept", f"[⁺⁻₊₋]?{SMALL_DIGIT}+"),
    Rule("kept", "[A-Z]+\\$|[cC]\\+\\+|[cCfF]#"),
    # Signs.
    Rule("opening", '"|&[qQ][uU][oO][tT];', "[A-Za-z0-9$]"),
    Rule("closing", '"|&[qQ][uU][oO][tT];'),
    Rule("single opening", "'", "[A-Za-z][^ \t\xa0\n]"),
    Rule("sign", "``|''|[`‘’‚‛“”„‟‹›«»\x91-\x94]{1,2}"),
    Rule("spaced", SMILEY, "[^A-Za-z0-9]"),
    Rule("spaced", FACE),
    Rule("dots", "[.]{3,5}|[.]([ \xa0][.]){2,4}"),
    Rule("kept", "\\\\\\*|[!?]+|\\*+|@+|#+|__+|-----+|<<|>>"),
    Rule("entity", f"&({_words('lt gt amp apos ndash mdash md')});"),
    Rule("kept", f"-({_words('lrb rrb lsb rsb lcb rcb')})-"),
    Rule("kept", f"&(#[0-9]+|{_words('ht tl ur lr qc ql qr odq cdq')});"),
    Rule("dash", "--|---|----"),
    Rule("sign", f"[!-/:-@\\][{{}}\\\\^_`|~{SYMBOL}{CAPITAL_SYMBOL}{SMALL_DIGIT}]"),
    Rule("sign", "[\x80\x85\x96\x97¢£¤¼½¾–—―…⁄₠€⅓⅔⁺⁻₊₋]"),
    Rule("nothing", f"[{BLANK}]+"),
)
"""The last rules make sure that every character but those of kind nothing starts some token."""
