"""Subwords: tokens of a `tokenizer.json`, those of the whole text however it is read; training of byte-level BPE."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from txl_lightning.errors import OptionError, UserError

N_BYTES = 256
LEAST_COUNT = 2  # a pair that occurs once is not merged
# Byte-level tokenizers write a byte as the character of its number if that is printable, others as these from 256 on.
PRINTABLE = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
OTHERS = [byte for byte in range(N_BYTES) if byte not in PRINTABLE]
BYTE_OF_CHARACTER = {chr(byte if byte in PRINTABLE else N_BYTES + OTHERS.index(byte)): byte for byte in range(N_BYTES)}
WORD_START = "▁"  # stands for a space in tokenizers like those of SentencePiece
# White space before other characters: GPT-2's expression always divides a text before a run of it. Python's white space
# is that of the expression but for the separators 1c to 1f.
WORD = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+")
LINE_START = re.compile(r"(?<=\n)(?=\S)", re.ASCII)
# Of more than 65,536 characters: before the last space in these, or after them without one.
LONG_LINE = re.compile(r".{1,65536}\Z|.{1,65535}(?= )|.{65536}", re.DOTALL)
WORDS_AT_ONCE = 1 << 16
PIECES_AT_ONCE = 512
MOST_KNOWN = 1 << 18  # pieces whose tokens are remembered
WINDOW, OVERLAP, WINDOWS_AT_ONCE = 1 << 18, 1 << 14, 16

Texts = list[str]  # the first continues the document before it, every further one begins a document
Tokens = tuple[NDArray[Any], NDArray[np.int64]]  # and the positions in them where documents begin
Window = tuple[NDArray[np.int64], NDArray[np.int64]]  # tokens, and the end of each in bytes of the text


class Changed(Exception):  # noqa: N818 - caught here
    """Raised where tokens do not give back the text."""


class Subwords:
    """Tokens of UTF-8 text by a tokenizer that keeps its bytes: the ids of `Tokenizer.encode` of each whole document.

    Where the tokenizer is known to divide a text before a run of white space (GPT-2's expression), pieces between these
    places are encoded once each. Any other tokenizer encodes windows that overlap, joined where both have the same
    tokens; where windows do not agree they are made larger.

    Args:
        tokenizer: contents of a `tokenizer.json`.
        by_line: encode lines one by one, as versions before 0.5.0 did: white space at the end of a line is then read
            otherwise than inside a text.

    Attributes:
        contents: bytes of every token, by number.

    Raises:
        UserError: its tokens are no bytes of text.
    """

    def __init__(self, tokenizer: str, by_line: bool = False) -> None:
        try:
            self._tokenizer, state = Tokenizer.from_str(tokenizer), json.loads(tokenizer)
            if getattr(self._tokenizer.model, "dropout", None):
                self._tokenizer.model.dropout = None
            added = self._tokenizer.get_added_tokens_decoder()
            numbers = {number: token.content.encode() for number, token in added.items()}
            numbers |= _contents(self._tokenizer.get_vocab(with_added_tokens=False), state, {*numbers})
        except Exception as error:  # the library raises a plain Exception for a file that it cannot read
            reason = str(error) if isinstance(error, UserError) else repr(error)
            raise UserError(f"is not a tokenizer.json of tokens that are bytes, like GPT-2's ({reason})") from error
        self.contents = tuple(numbers.get(number, b"") for number in range(1 + max(numbers)))
        self.lengths = np.array(list(map(len, self.contents)), dtype=np.int64)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._known: dict[str, int] = {}  # number of a piece, whose tokens are those from one end to the next
        self._tokens, self._ends = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._by_line = by_line
        before, changes = state.get("pre_tokenizer") or {}, state.get("normalizer") or {"type": "NFC"}
        divides = before.get("type") == "ByteLevel" and before.get("use_regex", True) and not before["add_prefix_space"]
        divides &= changes["type"] == "NFC"
        divides &= not any(token.rstrip or len(WORD.findall(token.content)) > 1 for token in added.values())
        self._pieces: Callable[[str], list[str]] | None = _lines if by_line else WORD.findall if divides else None

    def encode(self, chunks: Iterable[Texts]) -> Iterator[Tokens]:
        """Yield the tokens of documents in chunks, which may end anywhere, and the positions where documents begin.

        Raises:
            UserError: the tokens do not give back the text.
        """
        lost = np.zeros(N_BYTES, np.int64)
        counted = self._count_lost(chunks, lost)
        try:
            yield from self._encode_windows(counted) if self._pieces is None else self._encode_pieces(counted)
        except Changed as error:
            deque(counted, maxlen=0)  # the rest of the text counts too
            which = ", ".join(f"{byte:02x}" for byte in np.flatnonzero(lost)[:8])
            of_bytes = f"has no token for {lost.sum():,} bytes of the text: {which}"
            changes = "changes the text: it must have no normalizer and add no spaces"
            raise UserError(f"the tokenizer {of_bytes if lost.any() else changes}") from error

    def _count_lost(self, chunks: Iterable[Texts], lost: NDArray[np.int64]) -> Iterator[Texts]:
        lacking = sorted({*range(N_BYTES)} - {one[0] for one in self.contents if len(one) == 1})
        for texts in chunks:
            if lacking:
                counts = np.bincount(np.frombuffer("".join(texts).encode(), np.uint8), minlength=N_BYTES)
                lost[lacking] += counts[lacking]
            yield texts

    def _encode_pieces(self, chunks: Iterable[Texts]) -> Iterator[Tokens]:
        cut: Callable[[str], list[str]] = self._pieces  # type: ignore[assignment]
        rest = ""
        for texts in chain(chunks, [None]):
            pieces: list[str] = []
            begins: list[int] = []
            for number, text in enumerate(texts or [""]):
                if number:
                    pieces += [rest] if rest else []
                    begins.append(len(pieces))
                    rest = ""
                *complete, rest = cut(rest + text) or [""]
                pieces += complete
            pieces += [rest] if texts is None and rest else []
            numbers = self._look_up(pieces)
            first_P, last_P = self._ends[numbers], self._ends[numbers + 1]
            ends_P = np.cumsum(np.append(0, last_P - first_P))
            places = np.arange(ends_P[-1]) + np.repeat(first_P - ends_P[:-1], last_P - first_P)
            yield self._tokens[places], ends_P[begins].astype(np.int64)

    def _look_up(self, pieces: list[str]) -> NDArray[np.int64]:
        """Return the numbers of pieces among those that are known, after the encoding of those that are new."""
        if len(self._known) > MOST_KNOWN:
            self._known, self._tokens, self._ends = {}, self._tokens[:0], self._ends[:1]
        new = {*pieces}.difference(self._known)
        # One text of many words is faster than a text of each; the tokenizer divides it before each.
        words = [piece for piece in new if not self._by_line and piece[0].isspace() and not piece[-1].isspace()]
        alone = [*new.difference(words)]
        texts = ["".join(words[at : at + PIECES_AT_ONCE]) for at in range(0, len(words), PIECES_AT_ONCE)] + alone
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        tokens = np.fromiter(chain.from_iterable(encoding.ids for encoding in found), np.int64)
        self._compare(tokens, "".join(texts).encode())
        bytes_P = np.cumsum([len(piece.encode()) for piece in chain(words, alone)])
        ends_P = np.searchsorted(np.cumsum(self.lengths[tokens]), bytes_P, side="right")
        self._known |= zip(chain(words, alone), range(len(self._known), len(self._known) + len(new)), strict=True)
        self._ends = np.append(self._ends, len(self._tokens) + ends_P)
        self._tokens = np.append(self._tokens, tokens)
        return np.fromiter(map(self._known.__getitem__, pieces), np.int64, len(pieces))

    def _compare(self, tokens: NDArray[np.int64], content: bytes) -> None:
        if b"".join(map(self.contents.__getitem__, tokens.tolist())) != content:
            raise Changed

    def _encode_windows(self, chunks: Iterable[Texts]) -> Iterator[Tokens]:
        held, at = "", 0  # text whose tokens are to come, from `at` on in bytes
        for texts in chain(chunks, [None]):
            tokens, begins = [np.zeros(0, np.int64)], []
            for number, text in enumerate(texts or []):
                if number:
                    tokens.append(self._windows(held, at, True, WINDOW)[0])
                    begins.append(sum(map(len, tokens)))
                    held, at = "", 0
                held += text
            if texts is None or len(held) > WINDOW * WINDOWS_AT_ONCE:
                more, held, at = self._windows(held, at, texts is None, WINDOW)
                tokens.append(more)
            yield np.concatenate(tokens), np.array(begins, np.int64)

    def _windows(self, text: str, at: int, last: bool, size: int) -> tuple[NDArray[np.int64], str, int]:
        """Return the tokens of a text from byte `at` on, by windows; unless it is the last, the last window is left.

        Returns:
            tokens; the text that is left; its first byte whose tokens are to come.

        Raises:
            UserError: windows that were joined do not agree with more of the text.
        """
        starts = [0, *range(size, len(text) - OVERLAP, size)]
        texts = [text[start : start + size + OVERLAP] for start in starts]
        before_W = [0, *accumulate(len(text[a:b].encode()) for a, b in pairwise(starts))]
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        windows: list[Window] = []
        for chars, before, encoding in zip(texts, before_W, found, strict=True):
            tokens, n_bytes = np.array(encoding.ids, np.int64), len(chars.encode())
            ends = np.cumsum(self.lengths[tokens])
            if not n_bytes <= (of_tokens := int(ends[-1:].sum())) <= n_bytes + 1:
                raise Changed
            # Counted from the end: a space that the tokenizer puts in front is before the window.
            windows.append((tokens, before + n_bytes - of_tokens + ends))
        joins = [at, *(_agreement(left, right) for left, right in pairwise(windows))]
        if joins != sorted(joins):
            return self._windows(text, at, last, 2 * size)
        if at and at not in windows[0][1]:
            raise UserError("the tokenizer reads a long run of this text as one word: put spaces or lines into it")
        content = text.encode()
        stops, parts = [*joins[1:], *[len(content)] * last], [np.zeros(0, np.int64)]
        for (tokens, ends), begin, stop in zip(windows, joins, stops, strict=False):
            first, end = np.searchsorted(ends, [begin, stop], side="right")
            parts.append(tokens[first if begin else 0 : end])
        tokens = np.concatenate(parts)
        self._compare(tokens, content[at : [at, *stops][-1]])
        return (tokens, "", 0) if last else (tokens, text[starts[-1] :], joins[-1] - before_W[-1])


def _agreement(left: Window, right: Window) -> int:
    """Return the end of a token in the middle of what two windows share; -1 if their tokens around it differ."""
    (tokens, ends), (others, other_ends) = left, right
    quarter = (int(ends[-1]) - int(other_ends[0])) // 4
    around = [int(other_ends[0]) + quarter, int(ends[-1]) - quarter]
    (a, b), (c, d) = np.searchsorted(ends, around), np.searchsorted(other_ends, around)
    same = np.array_equal(ends[a:b], other_ends[c:d]) and np.array_equal(tokens[a + 1 : b], others[c + 1 : d])
    return int(ends[(a + b) // 2]) if same and b - a > 1 else -1


def _contents(vocabulary: dict[str, int], state: dict[str, Any], added: set[int]) -> dict[int, bytes]:
    """Return the bytes of every token by number, without those that are added to a text as they are."""
    outer = [state.get(name) or {} for name in ("pre_tokenizer", "decoder")]
    inner = [part for parts in outer for name in ("pretokenizers", "decoders") for part in parts.get(name, ())]
    kinds, model = {part.get("type") for part in outer + inner}, state["model"]
    if "ByteLevel" in kinds:
        found = {number: text for text, number in vocabulary.items() if number not in added}
        if strange := [text for text in found.values() if not {*text} <= {*BYTE_OF_CHARACTER}]:
            raise UserError(f"its token {strange[0]!r} has characters that stand for no byte")
        return {number: bytes(map(BYTE_OF_CHARACTER.__getitem__, text)) for number, text in found.items()}
    if model.get("type", "BPE") not in ("BPE", "Unigram") or not kinds & {"Metaspace", "ByteFallback", "Replace"}:
        raise UserError("it is neither byte-level nor of SentencePiece's kind")
    contents: dict[int, bytes] = {}
    for text, number in vocabulary.items():
        if model.get("byte_fallback") and (byte := re.fullmatch("<0x([0-9A-F]{2})>", text)):
            contents[number] = bytes.fromhex(byte[1])
        elif number not in added or not text.strip(WORD_START):  # Gemma adds runs of spaces too
            contents[number] = text.replace(WORD_START, " ").encode()
    return contents


def _lines(text: str) -> list[str]:
    """Cut a text before every line that does not begin with white space, and a very long line before spaces."""
    return [part for line in LINE_START.split(text) for part in LONG_LINE.findall(line) or [line]]


def train_byte_pairs(texts: Iterable[str], vocab_size: int, least: int = N_BYTES) -> str:
    """Train byte-level BPE on a text and return its `tokenizer.json`: 256 bytes and at most `vocab_size` - 256 merges.

    The regular expression of GPT-2 cuts the text into words, which no merge crosses. Equal texts give equal merges.

    Args:
        texts: the text in chunks, which may end anywhere.
        vocab_size: most tokens.
        least: fewest tokens.

    Raises:
        OptionError: it has fewer than `least` tokens, as the text is too short.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=LEAST_COUNT, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_whole_words(texts), trainer)
    if tokenizer.get_vocab_size() < least:
        allowed = f"must be in {N_BYTES} … {tokenizer.get_vocab_size()}"
        allowed += f": no other pair of tokens occurs {LEAST_COUNT} times in the training split"
        raise OptionError("data.vocab_size", vocab_size, allowed)
    return str(tokenizer.to_str())


def _whole_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield the same text cut where GPT-2's expression cuts it."""
    rest = ""
    for text in texts:
        *words, rest = WORD.findall(rest + text) or [""]
        yield from ("".join(words[at : at + WORDS_AT_ONCE]) for at in range(0, len(words), WORDS_AT_ONCE))
    yield rest
