"""Vocabulary: symbols and their token numbers, counted in a text or by byte-level BPE; encoding and decoding."""

from __future__ import annotations

import codecs
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, repeat
from typing import Any, Literal

import numpy as np

from txl_lightning.data.subwords import N_BYTES, Positions, Subwords, Tokens
from txl_lightning.errors import UserError

Level = Literal["byte", "char", "word", "bpe", "ids"]
LEVELS: tuple[Level, ...] = ("byte", "char", "word", "bpe")  # for texts
# Read with a checkpoint's vocabulary instead of making one from the text again.
KEPT_LEVELS = ("bpe", "ids")
UNKNOWN = "<unk>"
END_OF_LINE = "<eos>"
SENTENCE = "<S>"
UNKNOWN_OF_LM1B = "<UNK>"
LEAST_COUNT_OF_LM1B = 3  # the One Billion Word benchmark's rarer words are <UNK>


@dataclass(frozen=True)
class Vocabulary:
    """A corpus's symbols; a symbol's token number is its index.

    Byte level: without symbols all 256 bytes, numbered by value; with symbols (Latin-1 characters) only those, and line
    breaks are dropped if they are not among them, as the paper reads enwik8. Word level: `<eos>` ends every line; if
    `<eos>` is not a symbol, `<S>` begins every sentence instead (lm1b). Out-of-vocabulary words become `<unk>` or
    `<UNK>`. BPE: symbols are each token's bytes as Latin-1 characters. Ids: symbols are names, or the numbers
    themselves; text is names between white space.

    Args:
        level: byte, char, word, bpe or ids.
        symbols: ordered by number; empty for all bytes.
        tokenizer: contents of level bpe's `tokenizer.json`.
        lenient: an unknown character is `<unk>` instead of an error.
        closed: sentences have `<S>` at their ends too, if they begin with it.
    """

    level: Level
    symbols: tuple[str, ...] = ()
    tokenizer: str = ""
    lenient: bool = field(default=False, compare=False)
    closed: bool = field(default=False, compare=False)

    def __len__(self) -> int:
        return len(self.symbols) or N_BYTES

    @classmethod
    def of_tokenizer(cls, tokenizer: str) -> Vocabulary:
        """Return the vocabulary in a `tokenizer.json` whose tokens are bytes of text.

        Raises:
            UserError: they are not, or it is not readable.
        """
        symbols = [content.decode("latin-1") for content in Subwords(tokenizer).contents]
        return cls("bpe", tuple(symbols), tokenizer)

    @property
    def consists_of_bytes(self) -> bool:
        """True if symbols are bytes, at levels byte and bpe; false if they are characters or words."""
        return self.level in ("byte", "bpe")

    @cached_property
    def byte_lengths(self) -> np.ndarray | None:
        """Every token's number of bytes, in UTF-8 for characters, [V]; -1 for `<unk>`. None for words, ids.

        A word's bytes are unknown: white space is not kept. Dropped bytes, such as enwik8's line breaks, are not
        counted.
        """
        if self.level in ("word", "ids"):
            return None
        lengths = np.array(
            [len(content) for content in self._bytes],
            dtype=np.int64,
        )
        if self.level == "char" and self.unknown >= 0:
            lengths[self.unknown] = -1
        return lengths

    @cached_property
    def _bytes(self) -> list[bytes]:
        """Every token's bytes, in UTF-8 for characters and words."""
        encoding = "latin-1" if self.consists_of_bytes else "utf-8"
        return [symbol.encode(encoding) for symbol in self._symbols]

    @property
    def _symbols(self) -> Iterable[str]:
        return self.symbols or map(chr, range(N_BYTES))

    def count_bytes(self, tokens: np.ndarray) -> int | None:
        """Return how many bytes the tokens stand for; None if it is not known (words, ids, `<unk>`)."""
        if self.byte_lengths is None:
            return None
        lengths = self.byte_lengths[tokens]
        if lengths.min(initial=0) < 0:
            return None
        return int(lengths.sum())

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Every symbol's number."""
        return {symbol: number for number, symbol in enumerate(self._symbols)}

    @cached_property
    def unknown(self) -> int:
        """Number for `<unk>` or `<UNK>`; -1 without either."""
        return self.numbers.get(UNKNOWN, self.numbers.get(UNKNOWN_OF_LM1B, -1))

    @property
    def starts_sentences(self) -> bool:
        """True if sentences begin with `<S>` instead of ending with `<eos>`."""
        return self.level == "word" and END_OF_LINE not in self.numbers

    @property
    def dtype(self) -> np.dtype:
        """Type for encoded tokens: the smallest that fits for all levels except words (int32)."""
        if self.level == "word" or len(self) > 1 << 16:
            return np.dtype(np.int32)
        return np.min_scalar_type(len(self) - 1)

    def encode(self, content: bytes) -> np.ndarray:
        """Return the token numbers for UTF-8 text, or for any bytes at byte level.

        Raises:
            UnicodeDecodeError: the bytes are not UTF-8.
            UserError: a symbol is unknown and the vocabulary has no `<unk>`.
        """
        tokens = [chunk for chunk, _ in self.encode_documents([[content]])]
        return np.concatenate(tokens)

    def encode_documents(self, chunks: Iterable[list[Any]]) -> Iterator[Tokens]:
        """Yield the documents' token numbers in chunks, and the positions in them where documents begin.

        Args:
            chunks: lists with text in whole characters or, for words, lines; or with id arrays. A list's first one
                continues the document before it, or begins the first one; every further one begins a document.

        Raises:
            UnicodeDecodeError: the bytes are not UTF-8.
            UserError: a symbol is unknown and the vocabulary has no `<unk>`.
        """
        if self.level == "bpe":
            texts = ([*map(bytes.decode, contents)] for contents in chunks)
            for tokens, begins in self._subwords.encode(texts):
                yield tokens.astype(self.dtype), begins
            return
        for contents in chunks:
            if self.level in ("byte", "char"):
                yield self._look_up(contents)
            elif isinstance(contents[0], np.ndarray):
                yield np.concatenate(contents), _begins(contents)
            else:
                yield self._encode_words([*map(bytes.decode, contents)])

    def _look_up(self, contents: list[bytes]) -> Tokens:
        """Encode bytes or characters by their code points."""
        if self.level == "char":
            texts = [*map(bytes.decode, contents)]
            points = np.frombuffer(
                "".join(texts).encode("utf-32-le"),
                np.uint32,
            )
            return self._known(self._table[points], points), _begins(texts)
        if "\n" not in self.numbers:
            contents = [content.replace(b"\n", b"") for content in contents]
        points = np.frombuffer(b"".join(contents), np.uint8)
        return self._known(self._table[points], points), _begins(contents)

    def _encode_words(self, texts: list[str]) -> Tokens:
        mark = SENTENCE if self.starts_sentences else END_OF_LINE
        if self.level == "ids":
            documents = [text.split() for text in texts]
        else:
            documents = [words_of_lines(text, mark) for text in texts]
        symbols = list(chain.from_iterable(documents))
        numbers = map(self.numbers.get, symbols, repeat(self.unknown))
        tokens = self._known(
            np.fromiter(numbers, np.int32, len(symbols)),
            symbols,
        )
        if not self.starts_sentences:
            return tokens, _begins(documents)
        sentence = self.numbers[SENTENCE]
        if self.closed:
            return close_sentences(tokens, sentence)
        return tokens, np.flatnonzero(tokens == sentence)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the text for token numbers; bytes that are not UTF-8 become replacement characters."""
        decoder = StreamDecoder(self)
        return decoder.feed(tokens) + decoder.finish()

    def decode_bytes(self, tokens: Sequence[int] | np.ndarray) -> bytes:
        """Return the bytes for token numbers, as they were encoded, UTF-8 or not."""
        return b"".join(self._bytes[int(token)] for token in tokens)

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers for a checkpoint."""
        return {
            "level": self.level,
            "symbols": list(self.symbols),
            "tokenizer": self.tokenizer,
            "lenient": self.lenient,
            "by_line": False,  # version 0.5 expects it
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Vocabulary:
        """Restore a vocabulary from its `state_dict`.

        Raises:
            UserError: its subwords were cut line by line, as before version 0.5.0.
        """
        level = state["level"]
        if level == "bpe" and state.get("by_line", True):
            raise UserError(
                "its subwords were cut line by line, as before version 0.5.0; that version reads them"
            )
        return cls(
            level,
            tuple(state["symbols"]),
            state.get("tokenizer", ""),
            state.get("lenient", False),
        )

    @cached_property
    def _subwords(self) -> Subwords:
        return Subwords(self.tokenizer)

    @cached_property
    def _table(self) -> np.ndarray:
        """Token number of every code point."""
        missing = self.unknown if self.lenient else -1
        table = np.full(sys.maxunicode + 1, missing, np.int32)
        for symbol, number in self.numbers.items():
            if len(symbol) == 1:
                table[ord(symbol)] = number
        return table

    def _known(self, tokens: np.ndarray, symbols: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Return the tokens in `dtype`; a symbol that is unknown without an `<unk>` is an error."""
        if tokens.min(initial=0) < 0:
            symbol = symbols[int(tokens.argmin())]
            if not isinstance(symbol, str):
                symbol = chr(symbol)
            reason = f"is not among the {len(self)} symbols of the training split"
            raise UserError(f"{symbol!r} {reason}")
        return tokens.astype(self.dtype)


class StreamDecoder:
    """Incremental `Vocabulary.decode`: the results of `feed` and `finish`, joined, are the text for all tokens.

    Bytes are held back until their UTF-8 character is complete; invalid bytes become replacement characters. A space
    is returned together with the word after it.

    Args:
        vocabulary: the tokens' vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._end = SENTENCE if vocabulary.starts_sentences else END_OF_LINE
        self._space = ""  # before the next word

    def feed(self, tokens: Iterable[int]) -> str:
        """Return the text that these tokens complete."""
        return "".join(self._piece(int(token)) for token in tokens)

    def finish(self) -> str:
        """Return the replacement character for an incomplete character at the end, or an empty string."""
        return self._characters.decode(b"", final=True)

    def _piece(self, token: int) -> str:
        if self.vocabulary.consists_of_bytes:
            return self._characters.decode(self.vocabulary.decode_bytes([token]))
        symbol = self.vocabulary.symbols[token]
        if self.vocabulary.level == "char":
            return symbol
        if symbol == self._end:
            self._space = ""
            return "\n"
        piece = self._space + symbol
        self._space = " "
        return piece


def words_of_lines(text: str, mark: str) -> list[str]:
    """Split complete lines into words as the original does: at Unicode white space, with any line break.

    Args:
        text: complete lines.
        mark: `<eos>` is put after every line, also blank ones; `<S>` before every line with a word.
    """
    words = []
    for line in io.StringIO(text, newline=None):
        words_of_line = line.split()
        if mark == END_OF_LINE:
            words += [*words_of_line, mark]
        elif words_of_line:
            words += [mark, *words_of_line]
    return words


def _begins(documents: Sequence[Sequence[Any]]) -> Positions:
    """Return where each further document begins, when these follow one another."""
    return np.array(
        [*accumulate(map(len, documents[:-1]))],
        np.int64,
    )


def without_marks(tokens: np.ndarray) -> Positions:
    """Return the token numbers, whether tokens are marked or not."""
    plain = tokens.astype(np.int64)
    return np.maximum(plain, ~plain)


def close_sentences(tokens: np.ndarray, sentence: int) -> tuple[np.ndarray, Positions]:
    """Return tokens for whole sentences with `<S>` at their ends too, and each sentence's first position.

    Args:
        tokens: token numbers for sentences that begin with `<S>`.
        sentence: token number for `<S>`.
    """
    starts = np.flatnonzero(tokens == sentence)
    ends = [*starts[1:], len(tokens)][: len(starts)]
    return np.insert(
        tokens,
        ends,
        sentence,
    ), starts + np.arange(len(starts))


def all_bytes(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary with all 256 bytes, whatever the text."""
    return Vocabulary("byte")


def bytes_with_newlines(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary with the bytes that occur, most frequent first, ties by first appearance."""
    return Vocabulary(
        "byte",
        tuple(map(chr, _by_count(_counted(chunks)))),
    )


def bytes_without_newlines(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary with the bytes that occur, without the line break: the paper's enwik8."""
    symbols = bytes_with_newlines(chunks).symbols
    return Vocabulary("byte", tuple(symbol for symbol in symbols if symbol != "\n"))


def characters(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary with the characters that occur, most frequent first, without `<unk>`."""
    return Vocabulary(
        "char",
        tuple(_by_count(_counted(map(bytes.decode, chunks)))),
    )


def characters_and_unknown(chunks: Iterable[bytes], min_count: int = 1) -> Vocabulary:
    """Return the vocabulary with `<unk>` and the characters that occur so often, by code point."""
    counts = _counted(map(bytes.decode, chunks))
    frequent = sorted(symbol for symbol, count in counts.items() if count >= min_count)
    return Vocabulary("char", (UNKNOWN, *frequent))


def words(chunks: Iterable[bytes], min_count: int = 1) -> Vocabulary:
    """Return the vocabulary with `<eos>` and a text's words, most frequent first, ties by appearance.

    Case is kept. `<unk>` is placed by its count, including words rarer than `min_count`; if there are none, it is the
    last entry.
    """
    counts = _counted(chunk.decode().split() for chunk in chunks)
    counts.pop(END_OF_LINE, None)
    counts[UNKNOWN] += 0
    rare = [word for word, count in counts.items() if count < min_count and word != UNKNOWN]
    for word in rare:
        counts[UNKNOWN] += counts.pop(word)
    return Vocabulary("word", (END_OF_LINE, *_by_count(counts)))


def words_of_sentences(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary with `<S>`, `<UNK>` and the words that occur at least three times (lm1b's rule)."""
    counts = _counted(chunk.decode().split() for chunk in chunks)
    frequent = [word for word in _by_count(counts) if counts[word] >= LEAST_COUNT_OF_LM1B]
    return Vocabulary(
        "word",
        tuple(dict.fromkeys((SENTENCE, UNKNOWN_OF_LM1B, *frequent))),
    )


def _counted(chunks: Iterable[Iterable[Any]]) -> Counter[Any]:
    """Count the members in all chunks, ordered by first appearance."""
    return Counter(chain.from_iterable(chunks))


def _by_count(counts: Counter[Any]) -> list[Any]:
    """Return what was counted, most frequent first, ties by first appearance."""
    return [symbol for symbol, _ in counts.most_common()]
