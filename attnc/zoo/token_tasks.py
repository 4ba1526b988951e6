"""The token tasks of the zoo: programs and the mechanism of each in words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnc import tokens

LETTERS = "abcdefghijklmnopqrstuvwxyz"
Vocabulary = Sequence[str] | Sequence[int]
Program = tuple[tokens.ProgramBuilder, tokens.Variable]  # with its output


@dataclass(frozen=True, repr=False)
class TokenTask:
    """A task: how to build its program for a vocabulary and a length, what it computes, how, and an example."""

    build: Callable[[Vocabulary, int], Program]
    vocabulary: int
    length: int
    computes: str
    mechanism: str
    example: tuple[int, ...]  # places of tokens in the vocabulary
    symbols: Vocabulary = LETTERS  # the vocabulary is its beginning
    fixed_vocabulary: bool = False

    @property
    def tokens(self) -> tuple[str | int, ...]:
        """The tokens of the example."""
        return tuple(self.symbols[j] for j in self.example)

    def program(self, vocabulary: int | None = None, length: int | None = None) -> Program:
        """The program and its output, for so many tokens and a length; by default for its own."""
        size = self.vocabulary if vocabulary is None else vocabulary
        return self.build(self.symbols[:size], self.length if length is None else length)

    def __repr__(self) -> str:
        return f"TokenTask({self.computes}; {self.vocabulary} tokens, length <= {self.length})"


def copy_previous(vocab: Vocabulary, max_len: int) -> Program:
    """The token before each position."""
    p = tokens.program(vocab, max_len, causal=True)
    return p, p.get(p.indices == p.indices.q - 1, p.tokens, default="-", name="previous")


def reverse(vocab: Vocabulary, max_len: int) -> Program:
    """The sequence backwards."""
    p = tokens.program(vocab, max_len)
    return p, p.get(p.indices == p.length.q - 1 - p.indices.q, p.tokens, name="opposite")


def histogram(vocab: Vocabulary, max_len: int) -> Program:
    """How often the token of each position occurs."""
    p = tokens.program(vocab, max_len)
    return p, p.count(p.tokens == p.tokens.q, name="occurrences")


def double_histogram(vocab: Vocabulary, max_len: int) -> Program:
    """At how many positions the token occurs as often as the one here."""
    p = tokens.program(vocab, max_len)
    occurrences = p.count(p.tokens == p.tokens.q, name="occurrences")
    return p, p.count(occurrences == occurrences.q, name="as frequent")


def sort(vocab: Vocabulary, max_len: int) -> Program:
    """The tokens in order, with duplicates."""
    p = tokens.program(vocab, max_len)
    t, i = p.tokens, p.indices
    smaller = p.count(t < t.q, name="smaller")
    equal = p.count((t == t.q) & (i < i.q), name="equal before")
    rank = p.named("rank", smaller + equal)
    return p, p.get(rank == i.q, t, default="-", tie="last", name="sorted")


def induction(vocab: Vocabulary, max_len: int) -> Program:
    """The token that followed the last earlier occurrence of the present token."""
    p = tokens.program(vocab, max_len, causal=True)
    previous = p.get(p.indices == p.indices.q - 1, p.tokens, default="-", name="previous")
    return p, p.get(previous == p.tokens.q, p.tokens, default="-", tie="last", name="induction")


def dyck_1(vocab: Vocabulary, max_len: int) -> Program:
    """Whether brackets of one kind are balanced."""
    p = tokens.program(vocab, max_len)
    height = p.tokens.map({"(": 1, ")": -1}.__getitem__, name="height")
    balance = p.mean(p.indices <= p.indices.q, height, name="mean height up to here")
    total = p.mean(True, height, name="mean height")
    negative = p.named("below 0", balance.map(lambda x: x < 0))
    never = ~p.exists(negative, name="some below 0")
    return p, p.named("balanced", never & p.named("total is 0", total == 0))


def dyck_2(vocab: Vocabulary, max_len: int) -> Program:
    """Whether brackets of two kinds are balanced and matched.

    A closing bracket at depth d matches the last position before it at depth d that opens."""
    p = tokens.program(vocab, max_len)
    t, i = p.tokens, p.indices
    opening = p.named("opens", t.map(lambda x: x in "(["))
    before = p.count(opening & (i < i.q), name="opened before")
    after = p.count(opening & (i <= i.q), name="opened")
    depth = p.named("depth", (before + after - i).map(lambda d: max(-1, min(d, max_len))))
    partner = p.get((depth == depth.q) & (i < i.q) & opening, t, default="-", tie="last", name="partner")
    pairs = {")": "(", "]": "["}
    wrong = p.map(lambda x, y: x in pairs and y != pairs[x], t, partner)
    height = t.map(lambda x: 1 if x in "([" else -1, name="height")
    total = p.mean(True, height, name="mean height")
    never = ~p.exists(p.named("mismatch", wrong), name="some mismatch")
    return p, p.named("balanced", never & p.named("total is 0", total == 0))


def modular_addition(vocab: Vocabulary, max_len: int) -> Program:
    """(previous token + token) mod V, the first token alone."""
    p = tokens.program(vocab, max_len, causal=True)
    previous = p.get(p.indices == p.indices.q - 1, p.tokens, default=0, name="previous")
    return p, p.named("sum mod", p.named("sum", previous + p.tokens) % len(vocab))


def parity(vocab: Vocabulary, max_len: int) -> Program:
    """The parity of the ones up to each position."""
    p = tokens.program(vocab, max_len, causal=True)
    ones = p.count(p.tokens == 1, name="ones")
    return p, p.named("parity", ones % 2)


def most_frequent(vocab: Vocabulary, max_len: int) -> Program:
    """The most frequent token; of several, the first in the vocabulary."""
    p = tokens.program(vocab, max_len)
    occurrences = p.count(p.tokens == p.tokens.q, name="occurrences")
    order = p.named("order", occurrences * len(vocab) - p.tokens.map(vocab.index))
    return p, p.get(True, p.tokens, prefer=order, tie="first", name="most frequent")


def random_table(vocab: Vocabulary, max_len: int) -> Program:
    """A fixed random function of the previous token and the token."""
    draw = random.Random(0)
    p = tokens.program(vocab, max_len, causal=True)
    table = {(a, b): draw.choice(vocab) for a in vocab for b in vocab}
    previous = p.get(p.indices == p.indices.q - 1, p.tokens, default="a", name="previous")
    return p, p.map(lambda a, b: table[a, b], previous, p.tokens, name="table")


TASKS: dict[str, TokenTask] = {
    "copy-previous": TokenTask(
        copy_previous, 4, 9, "the token before each position, '-' at the first",
        "One head compares indices: the key with the index before that of the query scores highest. At the first position no key "
        "is selected and BOS, which carries '-', wins.",
        (0, 1, 2, 3),
    ),
    "reverse": TokenTask(
        reverse, 4, 9, "the sequence backwards",
        "The first head averages the index over all positions, which is (length - 1)/2. The second scores -(k - s)² for the "
        "key's index k and s = length - 1 - index, up to a term that all keys share: the opposite position wins.",
        (0, 1, 2, 3),
    ),
    "histogram": TokenTask(
        histogram, 4, 9, "how often the token of each position occurs in the sequence",
        "Keys with the same token tie with BOS, which gets the weight 1/(1 + count). The unembedding is a family of lines in "
        "this number: the line of the right count is the highest.",
        (0, 1, 0, 0, 2),
    ),
    "double-histogram": TokenTask(
        double_histogram, 4, 9, "at how many positions the token occurs as often as the one here",
        "The head of the histogram writes 1/(1 + count). In the next layer positions are anchors for counts, BOS for 0 and the "
        "position with index j for j + 1: each query attends to the anchor of its count, which holds the count as one-hot. Then "
        "the head of the histogram again, on counts.",
        (0, 1, 0, 1, 2),
    ),
    "sort": TokenTask(
        sort, 4, 8, "the tokens in order, duplicates included",
        "Two heads count the smaller tokens and the equal ones before. Two heads over anchors turn the numbers 1/(1 + count) "
        "into exact counts. Step heads write the bits [rank >= k] of their sum, the rank. The last head reads the differences of "
        "neighbouring bits, and copies the token whose rank is the index of the query.",
        (3, 0, 2, 0),
    ),
    "induction": TokenTask(
        induction, 4, 9, "the token that followed the last earlier occurrence of the present token, '-' if there is none",
        "The first head copies the previous token. The second selects the last key whose previous token is the query's token, "
        "and copies the key's token.",
        (0, 1, 2, 0, 1),
    ),
    "dyck-1": TokenTask(
        dyck_1, 2, 16, "at every position, whether the brackets of the whole sequence are balanced",
        "Two heads average +1 for '(' and -1 for ')': up to each position, and over all. Step heads compare with 0. A third "
        "layer looks for a position below 0. The unembedding combines both answers.",
        (0, 0, 1, 1, 0, 1), symbols="()", fixed_vocabulary=True,
    ),
    "dyck-2": TokenTask(
        dyck_2, 4, 8, "at every position, whether the brackets of the whole sequence, of two kinds, are balanced and matched",
        "Heads count opening brackets before and up to each position. Heads over anchors make the counts exact, step heads turn "
        "them into the depth. One head finds the partner of a bracket: the last opening one before it at the same depth. "
        "Further heads look for a mismatch, and whether the total is 0. They read (token, partner) as the number 5·token + "
        "partner, with the tokens ( ) [ ] as 0 to 3 and the partners ( ) - [ ] as 0 to 4. Steps for depths below 1 and above 5 "
        "change no output: eight brackets with more than four open ones, or with one closed too many, are unbalanced in any "
        "case. The step depth >= 5 matters through BOS alone: at BOS every step is 1, and without it BOS is selected in place of "
        "the partner at depth 4.",
        (0, 2, 3, 1), symbols="()[]", fixed_vocabulary=True,
    ),
    "add-mod-7": TokenTask(
        modular_addition, 7, 2, "(previous token + token) mod 7",
        "One head copies the previous token. Its number and that of the token add up to s. One step head tells whether s >= 7, "
        "and the unembedding reads s - 7·[s >= 7].",
        (5, 6), symbols=range(7), fixed_vocabulary=True,
    ),
    "add-mod-113": TokenTask(
        modular_addition, 113, 2, "(previous token + token) mod 113",
        "As add-mod-7: two layers of one head each.",
        (100, 50), symbols=range(113), fixed_vocabulary=True,
    ),
    "parity": TokenTask(
        parity, 2, 16, "the parity of the ones up to each position",
        "Ones tie with BOS, whose weight is s = 1/(1 + count). In the second layer positions are anchors for counts: BOS for 0, "
        "the position with index j for j + 1. The head scores -(s - κ)² for the anchor's κ = 1/(1 + count), up to a term that "
        "all keys share: each query attends to the anchor of its count, which holds the parity.",
        (1, 0, 1, 1), symbols=range(2), fixed_vocabulary=True,
    ),
    "most-frequent": TokenTask(
        most_frequent, 4, 9, "the most frequent token, at every position; of several, the first in the vocabulary",
        "The head of the histogram and a head over anchors give exact counts. The last head prefers large counts, then small "
        "tokens, then early positions, all in one whole number.",
        (1, 0, 1, 2),
    ),
    "random-table": TokenTask(
        random_table, 6, 4, "a fixed random function of the previous token (at first 'a') and the token",
        "One head copies the previous token. Both tokens are one number, 6·token + previous, with a = 0 to f = 5. One step head "
        "for each change of the function along this number: 26 in (token, previous) >= 26 is the token e and the previous c.",
        (0, 5, 3),
    ),
}  # fmt: skip
