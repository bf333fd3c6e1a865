"""The words of captions exactly as the field's reference cuts them, without Java.

pycocoevalcap hands captions to the Penn Treebank tokenizer of Stanford CoreNLP 3.4.1, lower-cases its tokens and drops
punctuation; published CIDEr, BLEU, METEOR and ROUGE values are of those words. This is that tokenizer in Python: its words, its
kinds of characters and its rules, for a longest-match lexer (``tellapart.metrics.lexer``), and a short cut for the captions
that are nothing but letters, commas and a final dot.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from string import ascii_lowercase

from tellapart.metrics.lexer import Lexer, Rule

# The words the reference tokenizer has listed, found by asking it about every word of up to five letters.

MAY_END = """
al co ct ga jr ky md mo rd rt sq sr va vt ala apr aug bhd cos dak dec esq est etc ext feb fla fri inc ind jan jul jun
kan ltd mar mon neb nev nov oct plc sep seq sys tel thu tue wed wis wyo ariz assn bldg blvd bros colo conn corp intl
kans mich minn mont okla penn sept tenn tues univ wisc calif thurs bancorp ed.d ph.d non-u.s
"""
"""Abbreviations that may end a sentence: before a capital their dot is also the sentence's."""

MAY_END_CAPITALISED = "az la pa ark del ill ore tex mass miss wash"
"""The same, but words of their own unless they begin with a capital."""

TITLES = """
cf dr ft lt mr ms mt ph st vs wm adj adm adv ave cie col cpl det drs ens gen gov hon jos maj mme mrs pfc pvt rep rev sen
sfc sgt spc ste alex asst atty brig capt cmdr dept elec govs insp invt mlle msgr natl pres prof reps sens supt assoc
attys comdr lieut profs supts treas messrs
"""
"""Abbreviations that never end one."""

BEFORE_NUMBERS = "ca no op pp art fig nos figs prop"

STARTERS = """
a about according additionally after an as at but earlier he her here however if in it last many more now once one other
our she since so some such that the their then there these they this we what when while yet you
mr. ms.
"""
"""Words that, with a capital and behind initials ("the U.S. The"), show that a sentence ended."""

FILE_ENDINGS = """
c h x gz pl ps py bat bmp cgi cpp dll doc exe gif htm jar jpg mov mp3 pdf php png ppt sql tar txt wav xml zip docx html
java jpeg class
"""

SPLIT_IN_TWO = {"can": "not", "gon": "na", "wan": "na", "got": "ta", "lem": "me", "gim": "me"}


# What kind of character each character is to the reference tokenizer.
#
# It knows the letters, marks, symbols and digits of the Unicode of 2009; what came later, and everything beyond the first
# 65,536 characters (emoji), is nothing to it. Python's own tables are newer, and change with its version, so the ranges
# are written out here, hexadecimal and inclusive.

LINE_SEPARATORS = "\n\r\v\f\u2028\u2029"
LOWER, UPPER, MARK, DIGIT, SYMBOL = "é", "É", "˂", "٣", "§"
"""One character replaces all of its kind outside ASCII."""
CAPITAL_SYMBOL, SPACE, NOTHING, CAPITAL_NOTHING = "Ⓐ", "\u2003", "\x01", "Ⅰ"
"""Circled capitals are symbols, roman numerals are nothing, but both count as a capital after a dot."""
SMALL_DIGIT = "²"

_THEMSELVES = "\t\x80\x85\x91\x92\x93\x94\x96\x97\xa0\xad¢£¤«»¼½¾\u058a٫٬\u2010\u2011–—―‘’‚‛“”„‟…‹›⁄₠€⅓⅔⁺⁻₊₋"
_SPECIAL = {
    SPACE: "2000-200a 3000",
    CAPITAL_NOTHING: "2160-216f",
    CAPITAL_SYMBOL: "24b6-24cf",
    SMALL_DIGIT: "b2-b3 b9 2070 2074-2079 2080-2089",
}
_LETTERS = """
aa b5 ba c0-d6 d8-f6 f8-2c1 2c6-2d1 2e0-2e4 2ec 2ee 370-374 376-377 37a-37d 386 388-38a 38c 38e-3a1 3a3-3f5 3f7-481
48a-527 531-556 559 561-587 5d0-5ea 5f0-5f2 620-64a 66e-66f 671-6d3 6d5 6e5-6e6 6ee-6ef 6fa-6fc 6ff 710 712-72f
74d-7a5 7b1 7ca-7ea 7f4-7f5 7fa 800-815 81a 824 828 840-858 8a0 8a2-8ac 904-939 93d 950 958-961 971-977 979-97f
985-98c 98f-990 993-9a8 9aa-9b0 9b2 9b6-9b9 9bd 9ce 9dc-9dd 9df-9e1 9f0-9f1 a05-a0a a0f-a10 a13-a28 a2a-a30 a32-a33
a35-a36 a38-a39 a59-a5c a5e a72-a74 a85-a8d a8f-a91 a93-aa8 aaa-ab0 ab2-ab3 ab5-ab9 abd ad0 ae0-ae1 b05-b0c b0f-b10
b13-b28 b2a-b30 b32-b33 b35-b39 b3d b5c-b5d b5f-b61 b71 b83 b85-b8a b8e-b90 b92-b95 b99-b9a b9c b9e-b9f ba3-ba4
ba8-baa bae-bb9 bd0 c05-c0c c0e-c10 c12-c28 c2a-c33 c35-c39 c3d c58-c59 c60-c61 c85-c8c c8e-c90 c92-ca8 caa-cb3
cb5-cb9 cbd cde ce0-ce1 cf1-cf2 d05-d0c d0e-d10 d12-d3a d3d d4e d60-d61 d7a-d7f d85-d96 d9a-db1 db3-dbb dbd dc0-dc6
e01-e30 e32-e33 e40-e46 e81-e82 e84 e87-e88 e8a e8d e94-e97 e99-e9f ea1-ea3 ea5 ea7 eaa-eab ead-eb0 eb2-eb3 ebd
ec0-ec4 ec6 edc-edf f00 f40-f47 f49-f6c f88-f8c 1000-102a 103f 1050-1055 105a-105d 1061 1065-1066 106e-1070 1075-1081
108e 10a0-10c5 10c7 10cd 10d0-10fa 10fc-1248 124a-124d 1250-1256 1258 125a-125d 1260-1288 128a-128d 1290-12b0
12b2-12b5 12b8-12be 12c0 12c2-12c5 12c8-12d6 12d8-1310 1312-1315 1318-135a 1380-138f 13a0-13f4 1401-166c 166f-167f
1681-169a 16a0-16ea 1700-170c 170e-1711 1720-1731 1740-1751 1760-176c 176e-1770 1780-17b3 17d7 17dc 1820-1877
1880-18a8 18aa 18b0-18f5 1900-191c 1950-196d 1970-1974 1980-19ab 19c1-19c7 1a00-1a16 1a20-1a54 1aa7 1b05-1b33
1b45-1b4b 1b83-1ba0 1bae-1baf 1bba-1be5 1c00-1c23 1c4d-1c4f 1c5a-1c7d 1ce9-1cec 1cee-1cf1 1cf5-1cf6 1d00-1dbf
1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4
1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2071 207f 2090-209c 2102 2107 210a-2113 2115 2119-211d
2124 2126 2128 212a-212d 212f-2139 213c-213f 2145-2149 214e 2183-2184 2c00-2c2e 2c30-2c5e 2c60-2ce4 2ceb-2cee
2cf2-2cf3 2d00-2d25 2d27 2d2d 2d30-2d67 2d6f 2d80-2d96 2da0-2da6 2da8-2dae 2db0-2db6 2db8-2dbe 2dc0-2dc6 2dc8-2dce
2dd0-2dd6 2dd8-2dde 2e2f 3005-3006 3031-3035 303b-303c 3041-3096 309d-309f 30a1-30fa 30fc-30ff 3105-312d 3131-318e
31a0-31ba 31f0-31ff 3400-4db5 4e00-9fcc a000-a48c a4d0-a4fd a500-a60c a610-a61f a62a-a62b a640-a66e a67f-a697
a6a0-a6e5 a717-a71f a722-a788 a78b-a78e a790-a793 a7a0-a7aa a7f8-a801 a803-a805 a807-a80a a80c-a822 a840-a873
a882-a8b3 a8f2-a8f7 a8fb a90a-a925 a930-a946 a960-a97c a984-a9b2 a9cf aa00-aa28 aa40-aa42 aa44-aa4b aa60-aa76 aa7a
aa80-aaaf aab1 aab5-aab6 aab9-aabd aac0 aac2 aadb-aadd aae0-aaea aaf2-aaf4 ab01-ab06 ab09-ab0e ab11-ab16 ab20-ab26
ab28-ab2e abc0-abe2 ac00-d7a3 d7b0-d7c6 d7cb-d7fb f900-fa6d fa70-fad9 fb00-fb06 fb13-fb17 fb1d fb1f-fb28 fb2a-fb36
fb38-fb3c fb3e fb40-fb41 fb43-fb44 fb46-fbb1 fbd3-fd3d fd50-fd8f fd92-fdc7 fdf0-fdfb fe70-fe74 fe76-fefc ff21-ff3a
ff41-ff5a ff66-ffbe ffc2-ffc7 ffca-ffcf ffd2-ffd7 ffda-ffdc
"""
_MARKS = """
2c2-2c5 2d2-2df 2e5-2eb 2ed 2ef-36f 375 378-379 384-385 3f6 483-487 55a-55f 591-5bd 5bf 5c1-5c2 5c4-5c5 5c7 615-61a
64b-65e 670 6d6-6e4 6e7-6ed 6fd-6fe 70f 711 730-74c 7a6-7b0 7eb-7f3 900-903 93c 93e-94e 951-955 962-963 981-983 9bc
9be-9c4 9c7-9c8 9cb-9cd 9d7 9e2-9e3 a01-a03 a3c a3e-a4f a81-a83 abc abe-acf b82 bbe-bc2 bc6-bc8 bca-bcd c01-c03
c3e-c56 d3e-d44 d46-d48 e31 e34-e3a e47-e4e eb1 eb4-ebc ec8-ecd
"""
_SYMBOLS = """
a1 a5-a9 ac ae-b1 b4 b6-b8 bf d7 f7 37e 387 589 5be 5c0 5c3 5c6 5f3-5f4 600-603 606-60c 614 61b 61e-61f 66a 66d 6d4
700-70d 7f6-7f8 964-965 e3f e4f 1fbd 2016-2017 2020-2023 2030-2038 203b 203e-2042 207a-207e 208a-208e 20a4 2100-2101
2103-2106 2108-2109 2114 2116-2118 211e-2123 2125 2127 2129 212e 213a-213b 2140-2144 214a-214d 214f 2155-215e
2190-24b5 24d0-2bff 3001-3002 3012 30fb ff01-ff0f ff1a-ff20 ff3b-ff40 ff5b-ff65 ffe0-ffe1 ffe5-ffe6
"""
_DIGITS = """
660-669 6f0-6f9 7c0-7c9 966-96f 9e6-9ef a66-a6f ae6-aef b66-b6f be6-bef c66-c6f ce6-cef d66-d6f e50-e59 ed0-ed9
f20-f29 1040-1049 1090-1099 17e0-17e9 1810-1819 1946-194f 19d0-19d9 1a80-1a89 1a90-1a99 1b50-1b59 1bb0-1bb9 1c40-1c49
1c50-1c59 a620-a629 a8d0-a8d9 a900-a909 a9d0-a9d9 aa50-aa59 abf0-abf9 ff10-ff19
"""


def _ranges(text: str) -> list[tuple[int, int]]:
    """``"41-5a 61"`` -> ``[(0x41, 0x5a), (0x61, 0x61)]``."""
    return [(int(low, 16), int(high or low, 16)) for low, _, high in (part.partition("-") for part in text.split())]


class Kinds(dict[int, str]):
    """For ``str.translate``: maps every character to the one that represents its kind, looked up once per character.

    ASCII stays itself, and so does a line feed, which ends a caption; control characters are nothing.
    """

    def __init__(self) -> None:
        tables = {LOWER: _LETTERS, MARK: _MARKS, SYMBOL: _SYMBOLS, DIGIT: _DIGITS, **_SPECIAL}
        rows = sorted((*pair, kind) for kind, text in tables.items() for pair in _ranges(text))
        self._lows = [low for low, _, _ in rows]
        self._rows = rows
        super().__init__({code: chr(code) for code in range(0x20, 0x7F)})
        self.update({ord(character): character for character in _THEMSELVES + "\n"})

    def __missing__(self, code: int) -> str:
        row = bisect_right(self._lows, code) - 1
        kind = self._rows[row][2] if row >= 0 and code <= self._rows[row][1] else NOTHING
        # Cherokee became a script with capitals only in 2015.
        if kind == LOWER and chr(code).isupper() and not 0x13A0 <= code <= 0x13F4:
            kind = UPPER
        self[code] = kind
        return kind


# The kinds of tokens, as regular expressions in order of precedence.
#
# Written from the tokenizer's documentation, Penn Treebank conventions and what it does to probes; the tests ask it. The
# patterns see captions whose characters were replaced by their kinds, and behind them the next line. Several oddities below
# are the reference's own: captions are scored as it cuts them.


def _words(text: str) -> str:
    """The words of a text as alternatives, in capitals or not."""
    return "|".join("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in text.split()).replace(
        ".", "\\."
    )


def _capitalised(text: str) -> str:
    """The same, but every word begins with a capital."""
    return "|".join(word[0].upper() + _words(word[1:]) for word in text.split())


# Sets of characters, for use inside brackets, and single characters with their spellings.
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
MAIL = f"(<|&lt;)?[a-zA-Z0-9][^{STOP}\xa0{{}}]*@([^{STOP}\xa0{{}}.]+\\.)*[^{STOP}\xa0{{}}.]+(>|&gt;)?"

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
    Rule("word", WORD, f"{APOSTROPHE}{CONTRACTED}"),
    Rule("contraction", f"[nN]{ANY_APOSTROPHE}[tT]"),
    Rule("contraction", f"{APOSTROPHE}{CONTRACTED}", "[^A-Za-z]"),
    Rule("contraction", f"{APOSTROPHE}[sSmMdD]"),
    Rule("contraction", f"{CURLY}{CONTRACTED}"),
    # Addresses.
    Rule("kept", f"{URL}|{WWW}|{SITE}|{MAIL}"),
    Rule("kept", "@[a-zA-Z_][a-zA-Z0-9_]*"),
    Rule("kept", f"#([{LETTER}{SOFT}{MARK}]|{ACCENTED})+"),
    # Plain words, abbreviations and initials.
    Rule("word", WORD),
    Rule("shared dot", f"({ENDING})\\.", f"[{BLANK}{BREAK}]([{BLANK}{BREAK}{CAPITAL}]|{TAG})"),
    Rule("word", f"({ENDING})\\.", "(.|\n)(.|\n)"),
    Rule("shared dot", f"({ENDING})\\."),
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
    # Compounds, numbers.
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


# The tokenizer.

DROPPED = frozenset(("''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"))
"""Tokens pycocoevalcap removes. It also lists brackets, in capitals, which lower-cased tokens never equal: a bracket
stays, as the word ``-lrb-``."""

_PLAIN = re.compile(r"[A-Za-z, ]*\.?[ ]*").fullmatch
_DOTTED = f"{MAY_END} {MAY_END_CAPITALISED} {TITLES} {BEFORE_NUMBERS} pte pty ptes ptys ppte ppty pptes pptys mfg mtg"
_KEEPS_DOT = frozenset([*_DOTTED.split(), *ascii_lowercase])
"""Words whose final dot the short cut leaves to the lexer."""
_SPLIT = frozenset(first + second for first, second in SPLIT_IN_TWO.items())
_NEXT = "A x"
"""What the lexer sees behind a caption that is read alone."""
_SPACES = str.maketrans(dict.fromkeys(LINE_SEPARATORS, " "))

_SIGNS = str.maketrans(
    dict.fromkeys("€¤₠\x80", "$")
    | dict.fromkeys("–—―\x96\x97", "--")
    | dict.fromkeys("‘‛‹\x91", "`")
    | dict.fromkeys("’›\x92", "'")
    | dict.fromkeys("“«\x93", "``")
    | dict.fromkeys("”»\x94", "''")
    | dict.fromkeys("…\x85", "...")
    | {"¢": "cents", "£": "#", "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
    | {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
)
_FACES = str.maketrans({" ": "\xa0", "(": "-lrb-", ")": "-rrb-"})
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&ndash;": "--", "&mdash;": "--", "&md;": "--"}
_AMPERSAND = re.compile("&amp;", re.IGNORECASE)


def ptb_tokenize(captions: Iterable[str], *, alone: bool = False) -> list[str]:
    """Captions -> their Penn Treebank tokens in lower case without punctuation, joined by single spaces.

    Equal to pycocoevalcap 1.2's ``PTBTokenizer`` called with the same captions in the same order. It writes the captions
    as the lines of one file, so the next caption can decide about a dot at the end of a caption. An initial loses its dot
    if the next caption begins with "A", "The" or another of ``STARTERS``. Otherwise, and at the end of the file, it
    keeps the dot: "a sign with a K." is ``... a k`` before "The ...", else ``... a k.``. "No." keeps its dot before a digit.

    Differences:

    - A caption with a line separator (carriage return, form feed, U+2028, ...) is one caption, the separator a space. There, it
      becomes two, and all captions behind it go to the wrong image. There, tags and numbers also reach across lines.
    - Rare text is cut or written otherwise: a capital sigma next to a digit, hyphen or mark ("E7Σ", lower-cased by
      Python's rules instead of Java's), an address of one emoji ("http://😀"). ``test_ptb_reference.py`` has both.

    Args:
        captions: any text; empty captions are fine.
        alone: treat each caption as if the next one began with "A", as most captions do, so that its tokens do not
            depend on its neighbours and "... on a." ends in ``a``. Rewards need this: a batch is not a file.

    Returns:
        One string per caption, in order; empty where nothing but punctuation was said.
    """
    if alone:
        return [_plain(text, (text, _NEXT), 0) if _PLAIN(text) else _any((text, _NEXT), 0) for text in captions]
    return list(ptb_lines(list(captions)))


def ptb_lines(captions: Sequence[str]) -> Iterator[str]:
    """What ``ptb_tokenize`` makes of the captions of a file, one at a time."""
    return (_plain(text, captions, n) if _PLAIN(text) else _any(captions, n) for n, text in enumerate(captions))


def _plain(text: str, captions: Sequence[str], place: int) -> str:
    """The short cut, for letters, commas, spaces and a final dot."""
    words = text.lower().replace(",", " ").split()
    if not words:
        return ""
    last = words[-1]
    if last[-1] == ".":
        if last[:-1] in _KEEPS_DOT:
            return _any(captions, place)
        if last == ".":
            words.pop()
        else:
            words[-1] = last[:-1]
    return " ".join(words) if _SPLIT.isdisjoint(words) else _any(captions, place)


def _any(captions: Sequence[str], place: int) -> str:
    caption = captions[place].translate(_SPACES)
    line = " ".join(_tokens(caption, _behind(captions, place, caption))).rstrip()
    return " ".join(token for token in line.split(" ") if token not in DROPPED)


def _behind(captions: Sequence[str], place: int, caption: str) -> str:
    """The text after a caption in the file of all captions, as far as its tokens can depend on it."""
    lines: list[str] = []
    if caption.rstrip().endswith("."):  # only then does any rule look beyond the end of the line
        for following in map(captions.__getitem__, range(place + 1, len(captions))):
            lines.append(following.translate(_SPACES))
            if following.strip():
                break
    ended = place + len(lines) == len(captions) - 1
    return "".join(f"\n{line}" for line in lines) + ("" if ended else "\n")


def _tokens(line: str, behind: str) -> list[str]:
    """All tokens of a line, punctuation included, as the reference prints them."""
    lexer, kinds = _tables()
    scan = lexer.scan(line.translate(kinds) + behind.translate(kinds))
    found: list[str] = []
    position, end = 0, len(line)
    while position < end:
        rule, after = scan.match(position)
        if rule < 0:  # the reference warns and drops the character
            position += 1
            continue
        kind = lexer.rules[rule].kind
        if kind != "nothing":
            found.append(_WRITTEN[kind](line[position:after]).lower())
        # A dot that also ends the sentence is read twice.
        position = after - 1 if kind == "shared dot" else after
    return found


@cache
def _tables() -> tuple[Lexer, Kinds]:
    return Lexer(RULES), Kinds()


def _word(text: str) -> str:
    return text.replace(SOFT, "") or "-"


def _double_quote(sign: str) -> Callable[[str], str]:
    return lambda text: sign if text in ('"', "&quot;") else text


_WRITTEN: dict[str, Callable[[str], str]] = {
    "word": _word,
    "shared dot": _word,
    "company": lambda text: _AMPERSAND.sub("&", _word(text)),
    "contraction": lambda text: _word(text).replace("&apos;", "'").translate(_SIGNS),
    "kept": str,
    "tag": lambda text: text.replace(" ", "\xa0"),
    "spaced": lambda text: text.translate(_FACES),
    "opening": _double_quote("``"),
    "closing": _double_quote("''"),
    "single opening": lambda text: "`",
    "sign": lambda text: text.translate(_SIGNS),
    "dots": lambda text: "...",
    "dash": lambda text: "--",
    "entity": lambda text: "'" if text == "&apos;" else _ENTITIES.get(text.lower(), text),
}
"""How the text of a token of some kind is written, before it is lower-cased."""
