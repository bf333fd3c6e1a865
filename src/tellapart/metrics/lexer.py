"""A longest-match lexer: rules are regular expressions, the longest match wins, among equals the rule that comes first.

That is what lexer generators do, and what ``re`` cannot: an alternation of ``re`` takes the first branch that
matches. The rules become one nondeterministic automaton; its deterministic states are made when a text first needs
them, so that building is cheap and scanning is one dictionary look-up a character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple


class Rule(NamedTuple):
    """One kind of token."""

    kind: str
    """What becomes of the matched text, in the lexer's user's words."""
    pattern: str
    """Never matches nothing. Literals, ``[sets]``, ``.``, ``(groups)``, ``|``, ``*``, ``+``, ``?``, ``{m,n}`` and escapes."""
    context: str = ""
    """What has to follow. It counts for the length of the match but is not part of the token."""


class _Node:
    """A state of the nondeterministic automaton: edges that read a character, edges that do not."""

    __slots__ = ("accepts", "reached", "reads", "skips")

    def __init__(self) -> None:
        self.reads: list[tuple[frozenset[str], bool, _Node]] = []
        self.skips: list[_Node] = []
        self.accepts = -1
        self.reached: frozenset[_Node] | None = None

    def without_reading(self) -> frozenset[_Node]:
        """The nodes that matter among this one and all that can be reached from it without reading."""
        if self.reached is None:
            waiting, members = [self], {self}
            while waiting:
                for node in waiting.pop().skips:
                    if node not in members:
                        members.add(node)
                        waiting.append(node)
            self.reached = frozenset(node for node in members if node.reads or node.accepts >= 0)
        return self.reached


class _State:
    """A state of the deterministic automaton; ``moves`` fills up as texts are read, None where nothing can follow."""

    __slots__ = ("accepts", "moves", "nodes")

    def __init__(self, nodes: frozenset[_Node]) -> None:
        self.nodes = nodes
        self.moves: dict[str, _State | None] = {}
        self.accepts = min((node.accepts for node in nodes if node.accepts >= 0), default=-1)


class Lexer:
    """Finds the next token of a text.

    Args:
        rules: in order of precedence among matches of equal length.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        start = _Node()
        for number, rule in enumerate(rules):
            first, last = _Parser(f"({rule.pattern})({rule.context})").parse()
            start.skips.append(first)
            last.accepts = number
        self.start = _State(start.without_reading())
        self._known = {self.start.nodes: self.start}
        self._tokens: dict[int, Lexer] = {}

    def scan(self, text: str) -> Scan:
        """A reader of one text, whose tokens together take time linear in its length."""
        return Scan(self, text)

    def ends(self, text: str, start: int, end: int) -> list[int]:
        """Where tokens that start at a position and lie before ``end`` can end, the last first."""
        found: list[int] = []
        state = self.start
        for position in range(start, end):
            following = self.step(state, text[position])
            if following is None:
                break
            state = following
            if state.accepts >= 0:
                found.append(position + 1)
        return found[::-1]

    def cut(self, rule: int, text: str, start: int, end: int) -> int:
        """Where the token of a match ends and its context begins: as late as it can."""
        _, pattern, context = self.rules[rule]
        if rule not in self._tokens:
            self._tokens[rule] = Lexer([Rule("", pattern)])
        behind = re.compile(context, re.DOTALL)
        return next(cut for cut in self._tokens[rule].ends(text, start, end) if behind.fullmatch(text, cut, end))

    def step(self, state: _State, character: str) -> _State | None:
        """The state behind one more character; none where nothing can follow."""
        if character not in state.moves:
            state.moves[character] = self._move(state, character)
        return state.moves[character]

    def _move(self, state: _State, character: str) -> _State | None:
        targets = {
            target
            for node in state.nodes
            for characters, inside, target in node.reads
            if (character in characters) is inside
        }
        return self._state(frozenset().union(*(target.without_reading() for target in targets))) if targets else None

    def _state(self, nodes: frozenset[_Node]) -> _State:
        known = self._known.get(nodes)
        return known if known is not None else self._known.setdefault(nodes, _State(nodes))


class Scan:
    """Finds the tokens of one text.

    To know that a token is the longest, a lexer reads on until nothing can follow; over ``&&&&...``, which might yet become an
    address, that is to the end of the text for every token. So the states are remembered from which reading on found nothing,
    and no position is read twice in the same state.

    Args:
        lexer: the rules.
        text: the text.

    Source:
        Reps, "Maximal-Munch" Tokenization in Linear Time, TOPLAS 20(2), 1998.
    """

    def __init__(self, lexer: Lexer, text: str) -> None:
        self._lexer, self._text = lexer, text
        self._vain: set[tuple[_State, int]] = set()

    def match(self, start: int) -> tuple[int, int]:
        """The longest token at a position.

        Returns:
            The number of its rule and where the token ends (its context is behind that); (-1, start) if no rule fits.
        """
        lexer, text, vain = self._lexer, self._text, self._vain
        state, rule, end = lexer.start, -1, start
        read: list[_State] = []  # since the last acceptance
        for position in range(start, len(text)):
            try:
                following = state.moves[text[position]]
            except KeyError:
                following = lexer.step(state, text[position])
            if following is None:
                break
            state = following
            if state.accepts >= 0:
                rule, end = state.accepts, position + 1
                if read:
                    read.clear()
            elif vain and (state, position) in vain:
                break
            else:
                read.append(state)
        if read:
            vain.update(zip(read, range(end, len(text)), strict=False))
        return rule, lexer.cut(rule, text, start, end) if lexer.rules[rule].context and rule >= 0 else end


_COUNTS = {"*": (0, True), "+": (1, True), "?": (0, False)}


def _repeat(begin: _Node, end: _Node, least: int, endless: bool) -> tuple[_Node, _Node]:
    """``least`` (0 or 1) to one copy, or to any number."""
    first, last = _Node(), _Node()
    first.skips.append(begin)
    end.skips.append(last)
    if least == 0:
        first.skips.append(last)
    if endless:
        end.skips.append(begin)
    return first, last


class _Parser:
    """Reads a pattern into nodes (Thompson's construction)."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def parse(self) -> tuple[_Node, _Node]:
        first, last = self._alternatives()
        if self._at != len(self._pattern):
            raise ValueError(f"unbalanced pattern {self._pattern!r}")
        return first, last

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1]

    def _alternatives(self) -> tuple[_Node, _Node]:
        first, last = _Node(), _Node()
        while True:
            begin, end = self._sequence()
            first.skips.append(begin)
            end.skips.append(last)
            if self._next() != "|":
                return first, last
            self._take()

    def _sequence(self) -> tuple[_Node, _Node]:
        first = last = _Node()
        while self._next() not in ("", "|", ")"):
            begin, end = self._repeated()
            last.skips.append(begin)
            last = end
        return first, last

    def _repeated(self) -> tuple[_Node, _Node]:
        """An atom and what repeats it. A counted atom is read again from the pattern for each of its copies."""
        origin = self._at
        first, last = self._atom()
        suffix = self._next()
        if suffix != "{":
            if suffix in _COUNTS:
                self._take()
                return _repeat(first, last, *_COUNTS[suffix])
            return first, last
        after = self._pattern.index("}", self._at) + 1
        low, comma, high = self._pattern[self._at + 1 : after - 1].partition(",")
        required, endless = int(low), bool(comma) and not high
        copies = [(first, last)]
        while len(copies) < (int(high) if high else required + endless):
            self._at = origin
            copies.append(self._atom())
        self._at = after
        for number in range(required, len(copies)):
            copies[number] = _repeat(*copies[number], 0, endless)
        for (_, end), (begin, _) in pairwise(copies):
            end.skips.append(begin)
        return copies[0][0], copies[-1][1]

    def _atom(self) -> tuple[_Node, _Node]:
        character = self._take()
        if character == "(":
            if self._pattern.startswith("?:", self._at):
                self._at += 2
            inner = self._alternatives()
            if self._take() != ")":
                raise ValueError(f"unbalanced pattern {self._pattern!r}")
            return inner
        if character == "[":
            after = _CLASS_END.match(self._pattern, self._at).end()  # type: ignore[union-attr]
            characters, inside = _class(self._pattern[self._at : after - 1])
            self._at = after
        elif character == ".":
            characters, inside = frozenset("\n"), False
        else:
            characters, inside = frozenset(self._take() if character == "\\" else character), True
        first, last = _Node(), _Node()
        first.reads.append((characters, inside, last))
        return first, last


_CLASS_END = re.compile(r"(?:[^\]\\]|\\.)*\]", re.DOTALL)
_CLASS_MEMBER = re.compile(r"\\?(.)(?:-\\?(.))?", re.DOTALL)


@cache
def _class(text: str) -> tuple[frozenset[str], bool]:
    """The characters between brackets, and whether they are the ones meant or the ones excluded."""
    members: set[str] = set()
    for low, high in _CLASS_MEMBER.findall(text.removeprefix("^")):
        members.update(map(chr, range(ord(low), ord(high or low) + 1)))
    return frozenset(members), not text.startswith("^")
