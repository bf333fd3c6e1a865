# ruff: noqa: E501  (a table of pieces reads best with one class a line)
"""Captions full of what COCO lacks, made from a seed, to hold against the reference tokenizer.

Each line carries the name of the class its odd piece comes from, so that disagreement can be counted by class.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

_WORDS = (
    "a the man woman dog's two people red bus on near of with is are Street Main The A Boston it They running playing table "
    "close-up sitting white old kite 3 it's don't"
)

_PIECES: dict[str, str] = {
    "curly quotes": "“hi” ‘hi’ „hi“ ‚hi‘ «hi» ‹hi› it’s dogs’ ’tis don’t ’90s “a ” ‘n’ rock’n’roll l’été “It’s”, ’em",
    "straight quotes": "\"hi\" 'hi' ''hi'' ``hi'' \"a\"b \"( 5' 6\" 5'10\" \"$5\" '\"hi\"' \"'hi'\" ' \" '90s 'til 'em `hi` \"-\"",
    "dashes": "– — ― a–b a—b a--b a---b -- --- ----- -a a- 5–6 a‐b a‑b - −5 ‒ ⸺ word— —word",
    "accents": "café Café naïve Ångström señor Zoë's résumé-like cafe\u0301 n\u0303o Éa. É. straße ŒUVRE ĳ ǆ ẞ İstanbul d'été",
    "other scripts": "東京 日本語。 слон СЛОН слон-с ελλάδα شارع ٣٤ ४५ 한국어 ไทย עברית 東京tower 『本』 １２ ＡＢ ｶﾅ ՀԱՅ",
    "emoji": "😀 👍🏽 a😀b ❤️ ☺ ♥ ★ 🇫🇷 👨‍👩‍👧 :) :-( ;) :D =) <3 ^_^ -_- o_O (^_^) >_< :P :-/ 8-) :'( x_x xD",
    "currency": "$5 $5.00 US$5 C$5 £5 €5 5€ ¥500 5¢ ₹5 $.50 $-5 -$5 $1,000 $5m $5-million £5.5m 5$ A$ a$ ₩ ¤ R$5 $$",
    "addresses": "http://a.b/c https://www.x.com/a?b=c&d=e#f www.abc.com www.a-b.co.uk/de x.com/abc Amazon.com's a@b.c me@x.com, "
    "mailto:a@b.c <a@b.c> foo.org/bar. bit.ly/abc ftp://x.y http://localhost:80/ http://x (www.abc.com) a.jpg img_1.jpg 6.png, t.co",
    "compounds": "well-known x-ray T-shirt 5-year-old mother-in-law a_b a-b-c- -a-b U.S.-based non-U.S. jack-o'-lantern 21st-century "
    "A-b.c a.b-c 1,000-year F-16s will-o'-the-wisp x-é é-x co-op's 2-3-4 5.5-inch twenty-",
    "abbreviations": "Mr. Mrs. Dr. St. st. Ave. vs. etc. Inc. inc. Co. Corp. Ltd. Jr. Jan. Sept. Mass. wash. Wash. No. no. No.5 p. "
    "fig. Fig.2 Mt. Ph.D. ph.d U.S. U.K. U.S.A. u.s. a.m. p.m. e.g. i.e. D.C. J. J.R.R. B.C. T.V. t.v a.k.a. approx. "
    "ft. lbs. oz. Ca. Prof. gov't nat'l Pty. mfg. Messrs. ed.d. i. I. A.",
    "fractions": "1/2 22 3/4 1-1/2 1½ ½ ¾ ⅓ ⅔ ⅛ 1⁄2 3/4ths 1/2-inch 5/6/7 1000/2000 12345/6 1\\/2 ½-cup x/2 ¼. 3/4, 1/2's 5 1/2",
    "decades": "1990s 1990's '90s 90s 90's the80s '80s-style 80s-era '05 '5 '500 '00s ’80s 1950ies mid-90s 20's, '60s.",
    "ellipses": "... .. .... ..... ...... . . . … …. a… a... ...a a..b a...b . . .. ?.. ..? !... Mr... no... U.S...",
    "brackets": "( ) [ ] { } (a) [a] {a} ((a)) (a b) [5] (s) man(s) a)b a(b -LRB- <a> <b> </b> <br/> < > << >> (5) (?) [sic] ()",
    "contractions": "can't won't isn't cannot gonna gotta wanna gimme lemme Cannot GONNA I'm I've he'd they'll she's y'all o'clock "
    "ma'am O'Neil d'Artagnan rock'n'roll 'n' 'twas 'tis dont don´t don`t could've wouldn't've ain't' n't s'more s'mores "
    "qu'il hawai'i ho'ohu c'mon e'er ol' fishin' 'cause 'bout it'S CAN'T dogs' toys whatcha d'ye jack's-in-law I'd've",
    "control characters": "\x01 \x07 \x1b[0m a\x02b \x7f \x08 \x1c a\x1fb \t \x85 \x80 \x91a\x92 \x93a\x94 \x96 \x99 \ufeff \u200b a\u200bb \u2060 \ufffd",
    "soft hyphens": "a\u00adb \u00ad a\u00ad \u00ada a\u00ad-b co\u00adop 5\u00ad5 a-\u00ad \u00ad\u00ad (\u00ad) 12\u00ad.5 é\u00adé",
    "spaces": "\u00a0 a\u00a0b \u2003 \u2009 \u3000 5\u00a0000 \u202f \u1680 1\u00a01/2 St.\u00a0A a.\u00a0The \u205f",
    "entities": "&amp; &lt;b&gt; &quot;hi&quot; don&apos;t &#39; &nbsp; &mdash; &eacute; caf&eacute; &copy; A&amp;B a&amp;b &amp &#x27; &AMP; "
    "&hellip; &rsquo; it&#39;s &#8217;s R&amp;B &QUOT;",
    "tags": '<b class="x"> <a href=\'y\'>z</a> <br /> <!-- x --> <?xml?> <!DOCTYPE html> <unk> <s> </s> <|end|> [CLS] <PERSON> <x <5 >3 '
    "<person_1> <i>x</i> <b c=d> <start>",
    "hashtags": "#41 #1 #tag #TagTwo5 @user @user_name5 @5 # ## #a-b #é RT@a @a: a#b C# C++ c# F# #a_b .@a @ a@b a@ @@",
    "phones": "555-1234 555-123-4567 (555) 123-4567 (555)123-4567 +1 555 123 4567 +44 20 7123 4567 1-800-FLOWERS 555.123.4567 020 7123 4567 "
    "555 123456 1-800-555-1234 (212) 555-1212, 00 44 123 4567 x55",
    "dates": "2014-01-02 01/02/03 11.01.2009 10-29-2011 12/25 Jan-05 Jan. 5 5/6 9/11 24/7 2014/1/2 1.2.09 Dec. 25th, Sept 11th 12-Jan-99",
    "acronyms": "A&E AT&T at&t B&W R&B's Q&A A+B D&D. NASA NBA's BBC1 U.N.'s U.S.,  I.B.M. IBM. a.b.c A.B.C.d C.I.A. TV-14 M&Ms P&L5 b&w",
    "numbers": "1,000 1,000,000.50 5. 5.5. .5 -5 +5 5% 5.5% 1,23 12,34 1.2.3 007 1e5 5x5 10km/h 3D 2nd 5th. 10,000km 5'6 #5 5,5,5 v1.0 ±5 5°C "
    "x² m³ H₂O 10⁻³ 5:1 1:2:3 5: :5 ;5 5; 4x4's 1000s -.5 No.7 1.a 5.x",
    "slashes": "and/or a/b/c a/b/c/d w/ w/o / // a/ /a his/her's a/5 5/a TV/VCR a\\b \\ é/a a/b-c A/C c/o km/h 1/a/2 //a",
    "apostrophes": "dogs' ' '' a' 'a a'b 'ab' 'a' ab'cd' o'b''c it' 's 'd d' l'a j'ai a'' ''a 'll 're've n' x's' 's's aa'aa",
    "times": "12:43 12:43pm 5pm 5 p.m. 5 a.m. 12:43:01 5:00. 5:00am-6:00pm 7 o'clock 24h 10:30, 12h30 5ish :30 4:",
    "punctuation": "! ? !! ?! !?!? ; : , ,, ;; :: !a a!b a?b a,b a;b a:b .a a.b a.B ?a * ** *a* ~ ^ | _ __ a_ _a = == + ++ % & && • · § © ® ™ ° ¶ † … ¿que? ¡a!",
}  # fmt: skip

_ENDS = ["", "", "", ".", ".", " .", "!", "?", ",", ")", '"', "'", "’", "”", ";", ":", "...", "-", "'s", " "]
_ALPHABET = [*string.printable[:95], *"éÉñß日слΩ²½€£¢“”‘’–—…«»\u00a0\u00ad\u2009😀\u200b٣"]


def _mutated(rng: random.Random, piece: str) -> str:
    """The piece as it is, in other case, with an end, glued to itself or with one character changed."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice((piece.upper(), piece.lower(), piece.capitalize(), piece.swapcase()))
    if kind == 1:
        at = rng.randrange(len(piece) + 1)
        return piece[:at] + rng.choice(_ALPHABET) + piece[at:]
    if kind == 2 and len(piece) > 1:
        at = rng.randrange(len(piece))
        return piece[:at] + piece[at + 1 :]
    return piece + rng.choice(_ENDS)


def _soup(rng: random.Random) -> str:
    return "".join(rng.choices(_ALPHABET, k=rng.randint(1, 12)))


def odd_captions(count: int, seed: int, captions: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Odd lines, none with a line separator.

    Args:
        count: how many.
        seed: the same seed makes the same lines.
        captions: real ones; given, half of the lines are one of them with odd pieces put in.

    Returns:
        (class, caption) pairs.
    """
    rng = random.Random(seed)
    choices = {name: _split(name, text) for name, text in _PIECES.items()}
    names = [*choices, "any characters"]
    lines = []
    for number in range(count):
        name = names[number % len(names)]
        plain = captions and rng.random() < 0.5
        words = rng.choice(captions).split() if plain else rng.choices(_WORDS.split(), k=rng.randint(0, 7))
        for other in [name, *rng.choices(names, k=rng.choice((0, 0, 1, 2)))]:
            at = rng.randint(0, len(words))
            words.insert(at, _mutated(rng, rng.choice(choices[other])) if other in choices else _soup(rng))
        glue = "" if rng.random() < 0.1 else " "
        line = " ".join(words[:-1]) + glue + words[-1] + rng.choice(_ENDS)
        lines.append((name, line))
    return lines


def _split(name: str, text: str) -> list[str]:
    """Pieces are separated by spaces; some contain one."""
    whole = text.split(" ")
    if name in ("phones", "fractions", "times", "ellipses", "tags", "abbreviations", "dates"):
        whole += [" ".join(whole[i : i + 2]) for i in range(len(whole) - 1)]
        whole += [" ".join(whole[i : i + 4]) for i in range(len(whole) - 3)]
    return [piece for piece in whole if piece]
