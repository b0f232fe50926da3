"""Vocabulary: symbols and their token numbers, counted in a text or by byte-level BPE; encoding and decoding."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from txl_lightning.data.subwords import N_BYTES, Subwords, Tokens
from txl_lightning.errors import UserError

Level = Literal["byte", "char", "word", "bpe", "ids"]
LEVELS: tuple[Level, ...] = ("byte", "char", "word", "bpe")  # of texts
KEPT_LEVELS = ("bpe", "ids")  # read with the vocabulary of a checkpoint, which is not made from the text again
UNKNOWN = "<unk>"
END_OF_LINE = "<eos>"
SENTENCE, UNKNOWN_OF_LM1B = "<S>", "<UNK>"
# Rarer words of the One Billion Word benchmark are <UNK>.
LEAST_COUNT_OF_LM1B = 3
# Share of rare words and mean bytes of a word: beyond these white space does not divide a text of enough words.
MOST_UNKNOWN, LONGEST_WORD, ENOUGH_WORDS = 0.5, 30, 10_000


@dataclass(frozen=True)
class Vocabulary:
    """Symbols of a corpus; the token number of a symbol is its index.

    Byte level: without symbols all 256 bytes, numbered by value; with symbols (Latin-1 characters) only those, and
    line breaks are dropped if they are not among them, as the paper reads enwik8. Word level: `<eos>` ends every
    line; if `<eos>` is not a symbol, `<S>` begins every sentence instead (lm1b). Unknown words become `<unk>` or
    `<UNK>`. BPE: symbols are the bytes of each token as Latin-1 characters. Ids: symbols are names, or the
    numbers themselves; text is names between white space.

    Args:
        level: byte, char, word, bpe or ids.
        symbols: in the order of their numbers; empty for all bytes.
        tokenizer: contents of the `tokenizer.json` of level bpe.
        lenient: an unknown character or byte is `<unk>`, or left out if there is none, instead of an error.
        by_line: the tokenizer reads line by line, as in checkpoints of versions before 0.5.0 (see `Subwords`).
    """

    level: Level
    symbols: tuple[str, ...] = ()
    tokenizer: str = ""
    lenient: bool = field(default=False, compare=False)
    by_line: bool = False

    def __len__(self) -> int:
        return len(self.symbols) or 256

    @classmethod
    def of_tokenizer(cls, tokenizer: str) -> Vocabulary:
        """Return the vocabulary of a `tokenizer.json` whose tokens are bytes of text.

        Raises:
            UserError: they are not, or it is not readable.
        """
        return cls("bpe", tuple(content.decode("latin-1") for content in Subwords(tokenizer).contents), tokenizer)

    @property
    def consists_of_bytes(self) -> bool:
        """True if symbols are bytes, at levels byte and bpe; false if they are characters or words."""
        return self.level in ("byte", "bpe")

    @cached_property
    def byte_lengths(self) -> np.ndarray | None:
        """Number of bytes of every token, in UTF-8 for characters, [V]; -1 for `<unk>`. None for words, ids.

        Words have no bytes of their own: white space is not kept. Bytes that are dropped, as the line breaks of enwik8,
        are not counted.
        """
        if self.level in ("word", "ids"):
            return None
        lengths = np.array([len(content) for content in self._bytes], dtype=np.int64)
        if self.level == "char" and self.unknown >= 0:
            lengths[self.unknown] = -1
        return lengths

    @cached_property
    def _bytes(self) -> list[bytes]:
        """Bytes of every token, in UTF-8 for characters and words."""
        encoding = "latin-1" if self.consists_of_bytes else "utf-8"
        return [symbol.encode(encoding) for symbol in self.symbols or map(chr, range(N_BYTES))]

    def count_bytes(self, tokens: np.ndarray) -> int | None:
        """Return the number of bytes that tokens stand for; None if it is not known (words, ids, `<unk>`)."""
        if self.byte_lengths is None:
            return None
        lengths = self.byte_lengths[tokens]
        return int(lengths.sum()) if lengths.min(initial=0) >= 0 else None

    def count_words(self, tokens: np.ndarray, before: np.ndarray) -> int | None:
        """Return the number of words and line ends that begin in tokens, as papers count the tokens of WikiText.

        Words are what ASCII white space divides; the end of a line counts as one (`<eos>`). None for words and ids.

        Args:
            tokens: token numbers.
            before: the token before each.
        """
        if self.level in ("word", "ids"):
            return None
        words_V, first_V, last_V = self._words
        return int(words_V[tokens].sum() + (first_V[tokens] & ~last_V[before]).sum())

    @cached_property
    def _words(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Words that begin inside each token and its line ends; whether its first and last bytes are of words, [V]."""
        first, last = (np.array([bool(one[at : at + 1 or None].strip()) for one in self._bytes]) for at in (0, -1))
        inside = np.array([len(content.split()) + content.count(b"\n") for content in self._bytes], np.int64)
        return inside - first, first, last

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of every symbol."""
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    @cached_property
    def unknown(self) -> int:
        """Number of `<unk>` or `<UNK>`; -1 without either."""
        return self.numbers.get(UNKNOWN, self.numbers.get(UNKNOWN_OF_LM1B, -1))

    @property
    def starts_sentences(self) -> bool:
        """True if sentences begin with `<S>` instead of ending with `<eos>`."""
        return self.level == "word" and END_OF_LINE not in self.numbers

    @property
    def dtype(self) -> np.dtype:
        """Type of encoded tokens: the smallest that fits for all levels but words, which have int32."""
        small = self.level != "word"
        return np.dtype(np.uint8 if small and len(self) <= 256 else np.uint16 if small and len(self) <= 65536 else "i4")

    def encode(self, content: bytes) -> np.ndarray:
        """Return the token numbers of UTF-8 text, or of any bytes at byte level.

        Raises:
            UserError: the bytes are not UTF-8, or a symbol is unknown and the vocabulary has no `<unk>`.
        """
        return np.concatenate([np.empty(0, self.dtype), *self.encode_chunks([content])])

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yield the token numbers of text in chunks, which may end anywhere (see `encode`)."""
        return (tokens for tokens, _ in self.encode_documents([chunk] for chunk in chunks))

    def encode_documents(self, chunks: Iterable[list[bytes]]) -> Iterator[Tokens]:
        """Yield the token numbers of documents in chunks, and the positions in them where documents begin.

        Args:
            chunks: lists of text. The first of a list continues the document before it, or begins the first one; every
                further one begins a document. The last may end anywhere.

        Raises:
            UserError: the bytes are not UTF-8, or a symbol is unknown and the vocabulary has no `<unk>`.
        """
        if self.level == "bpe":
            for tokens, begins in self._subwords.encode(_decoded_documents(chunks)):
                yield tokens.astype(self.dtype), begins
        elif self.level == "byte":
            for contents in chunks:
                if self.symbols and "\n" not in self.numbers:
                    contents = [content.replace(b"\n", b"") for content in contents]
                yield self._look_up(np.frombuffer(b"".join(contents), np.uint8), _begins(contents))
        elif self.level == "char":
            for texts in _decoded_documents(chunks):
                yield self._look_up(code_points("".join(texts)), _begins(texts))
        else:
            mark = SENTENCE if self.starts_sentences else END_OF_LINE
            for texts in _whole_lines(_decoded_documents(chunks)):
                found = [text.split() if self.level == "ids" else words_of_lines(text, mark) for text in texts]
                words = [*chain.from_iterable(found)]
                tokens = np.fromiter(map(self.numbers.get, words, repeat(self.unknown)), np.int32, len(words))
                yield self._known(tokens, _begins(found), words.__getitem__)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the text of token numbers; bytes that are not UTF-8 become replacement characters."""
        decoder = StreamDecoder(self)
        return decoder.feed(tokens) + decoder.finish()

    def decode_bytes(self, tokens: Sequence[int] | np.ndarray) -> bytes:
        """Return the bytes of token numbers: those that were encoded, UTF-8 or not."""
        return b"".join(self._bytes[int(token)] for token in tokens)

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers for a checkpoint."""
        state: dict[str, Any] = {"level": self.level, "symbols": list(self.symbols)}
        state |= {name: value for name in ("tokenizer", "lenient") if (value := getattr(self, name))}
        return state | ({"by_line": self.by_line} if self.level == "bpe" else {})

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Vocabulary:
        """Restore a vocabulary from its `state_dict`."""
        by_line = state["level"] == "bpe" and state.get("by_line", True)  # before 0.5.0 always
        return cls(**{**state, "symbols": tuple(state["symbols"]), "by_line": by_line})

    @cached_property
    def _subwords(self) -> Subwords:
        return Subwords(self.tokenizer, self.by_line)

    @cached_property
    def _table(self) -> np.ndarray:
        """Token number by code point; the last entry is for all larger code points."""
        characters = {ord(symbol): number for symbol, number in self.numbers.items() if len(symbol) == 1}
        table = np.full(max(characters, default=0) + 2, self.unknown if self.lenient else -1, dtype=np.int32)
        table[list(characters)] = list(characters.values())
        return table

    def _look_up(self, values: np.ndarray, begins: NDArray[np.int64]) -> Tokens:
        if self.level == "byte" and not self.symbols:
            return values, begins
        # In int64, since the index of the last entry may not fit into a byte.
        tokens = self._table[np.minimum(values.astype(np.int64), len(self._table) - 1)]
        return self._known(tokens, begins, lambda place: chr(int(values[place])))

    def _known(self, tokens: np.ndarray, begins: NDArray[np.int64], symbol_at: Callable[[int], str]) -> Tokens:
        """Return the tokens in `dtype`; a symbol that is unknown without an `<unk>` is left out, or an error."""
        if tokens.min(initial=0) < 0:
            if not self.lenient:
                symbol = symbol_at(int(tokens.argmin()))
                raise UserError(f"{symbol!r} is not among the {len(self)} symbols of the training split")
            kept = tokens >= 0
            tokens, begins = tokens[kept], np.append(0, np.cumsum(kept))[begins]
        return tokens.astype(self.dtype), begins


class StreamDecoder:
    """Incremental `Vocabulary.decode`: the results of `feed` and `finish`, joined, are the text of all tokens.

    Bytes are held back until their UTF-8 character is complete; invalid bytes become replacement characters. A space
    is returned together with the word after it.

    Args:
        vocabulary: vocabulary of the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._end = SENTENCE if vocabulary.starts_sentences else END_OF_LINE
        self._space = ""  # in front of the next word

    def feed(self, tokens: Iterable[int]) -> str:
        """Return the text that these tokens complete."""
        return "".join(self._piece(int(token)) for token in tokens)

    def finish(self) -> str:
        """Return the replacement character of an incomplete character at the end, or an empty string."""
        return self._characters.decode(b"", final=True) if self.vocabulary.consists_of_bytes else ""

    def _piece(self, token: int) -> str:
        if self.vocabulary.consists_of_bytes:
            return self._characters.decode(self.vocabulary.decode_bytes([token]))
        symbol = self.vocabulary.symbols[token]
        if self.vocabulary.level == "char":
            return symbol
        if symbol == self._end:
            self._space = ""
            return "\n"
        piece, self._space = self._space + symbol, " "
        return piece


def words_of_lines(text: str, mark: str) -> list[str]:
    """Split complete lines into words as the original does: at Unicode white space, with any line break.

    Args:
        text: complete lines.
        mark: `<eos>` is put at the end of every line, blank ones too; `<S>` at the start of every line with a word.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n") if text else []
    if mark == END_OF_LINE:
        return [word for line in lines for word in (*line.split(), mark)]
    return [word for line in lines if line.strip() for word in (mark, *line.split())]


def _begins(documents: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    """Return the position where each further document begins, of these one after the other."""
    return np.array([*accumulate(map(len, documents[:-1]))], np.int64)


def code_points(text: str) -> np.ndarray:
    """Return the code points of a text's characters."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)


class SplitTokens:
    """Token numbers of a split in a file, read by slice or position.

    Args:
        tokens: token numbers, memory-mapped.
        starts: positions of first tokens of documents, to be marked: read as -1 - token, which tells the model that a
            document begins there. None marks none.
        path: file that is not ours and must stay as it is; None does not look.

    Raises:
        UserError: when tokens are read and the file has changed since it was opened.
    """

    def __init__(self, tokens: np.ndarray, starts: np.ndarray | None = None, path: Path | None = None) -> None:
        self.tokens, self.starts, self.path, self.dtype = tokens, starts, path, np.dtype(np.int64)
        self._status = self._look()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, places: Any) -> Any:
        return self.take(np.arange(*places.indices(len(self))) if isinstance(places, slice) else places)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(np.int64 if dtype is None else dtype)

    def astype(self, dtype: Any) -> np.ndarray:
        """Return all token numbers in memory."""
        return np.asarray(self, dtype)

    def take(self, positions: Any, mode: Any = "raise") -> NDArray[np.int64]:
        """Return the token numbers at positions, as `numpy.take`."""
        if self._look() != self._status:
            raise UserError(f"{self.path}: has changed since it was opened; its ids must stay as they are")
        found = self.tokens.take(positions, mode=mode).astype(np.int64)
        if self.starts is not None:
            at = np.asarray(positions) % len(self) if mode == "wrap" else np.asarray(positions)
            place = np.minimum(np.searchsorted(self.starts, at), len(self.starts) - 1)
            found = np.where(self.starts[place] == at, ~found, found)
        return found

    def _look(self) -> tuple[int, int] | None:
        """Return size and time of the file."""
        status = self.path.stat() if self.path is not None and self.path.exists() else None
        return status and (status.st_size, status.st_mtime_ns)


def without_marks(tokens: np.ndarray) -> NDArray[np.int64]:
    """Return the token numbers of tokens of which some are marked."""
    plain = tokens.astype(np.int64)
    return np.maximum(plain, ~plain)


def close_sentences(tokens: np.ndarray, sentence: int) -> tuple[np.ndarray, NDArray[np.int64]]:
    """Return tokens of whole sentences with `<S>` at their ends too, and the position of each sentence's first token.

    Args:
        tokens: token numbers of sentences that begin with `<S>`.
        sentence: token number of `<S>`.
    """
    starts = np.flatnonzero(tokens == sentence)
    ends = [*starts[1:], len(tokens)][: len(starts)]
    return np.insert(tokens, ends, sentence), starts + np.arange(len(starts))


def all_bytes(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of all 256 bytes, whatever the text."""
    return Vocabulary("byte")


def bytes_with_newlines(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of the bytes that occur, most frequent first, ties by first appearance."""
    return Vocabulary("byte", tuple(chr(value) for value, _ in _counted(chunks).most_common()))


def bytes_without_newlines(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of the bytes that occur, without the line break: the paper's enwik8."""
    symbols = bytes_with_newlines(chunks).symbols
    return Vocabulary("byte", tuple(symbol for symbol in symbols if symbol != "\n"))


def characters(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of the characters that occur, most frequent first, without `<unk>`."""
    return Vocabulary("char", tuple(symbol for symbol, _ in _counted(decoded(chunks)).most_common()))


def characters_and_unknown(chunks: Iterable[bytes], min_count: int = 1) -> Vocabulary:
    """Return the vocabulary of `<unk>` and the characters that occur so often, by code point."""
    counts = _counted(decoded(chunks))
    return Vocabulary("char", (UNKNOWN, *sorted(symbol for symbol, count in counts.items() if count >= min_count)))


def words(chunks: Iterable[bytes], min_count: int | None = None) -> Vocabulary:
    """Return the vocabulary of `<eos>` and the words of a text, most frequent first, ties by appearance.

    Case is kept. `<unk>` is placed by its count, with those of rarer words than `min_count`; if there are none, it is
    the last entry.

    Args:
        chunks: text.
        min_count: for a text of the user, whose words are checked; None for a published one, which keeps all words.

    Raises:
        UserError: white space does not divide the user's text: its words are longer than those of any language, or
            most are rare.
    """
    published = min_count is None
    counts = _counted(text.split() if published else words_of_lines(text, END_OF_LINE) for text in _lines(chunks))
    n_lines = counts.pop(END_OF_LINE, 0)
    if min_count is not None:
        n_words, n_bytes = max(1, counts.total()), sum((1 + len(word.encode())) * n for word, n in counts.items())
        rare = [word for word, count in counts.items() if count < min_count and word != UNKNOWN]
        n_rare = sum(map(counts.pop, rare))
        counts[UNKNOWN] += n_rare
        reason = f"a word has {n_bytes / n_words:.0f} bytes on average" if n_bytes > LONGEST_WORD * n_words else ""
        told = n_words >= ENOUGH_WORDS or n_words < 1.5 * n_lines  # a short text of sentences has many rare words too
        if told and n_rare > MOST_UNKNOWN * n_words:
            reason = f"{n_rare:,} of {n_words:,} training words are <unk>, as rarer than data.min_count"
        if reason:
            raise UserError(f"data.level=word: {reason}; use data.level=bpe, char or byte")
    counts[UNKNOWN] += 0
    return Vocabulary("word", (END_OF_LINE, *(word for word, _ in counts.most_common())))


def words_of_sentences(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of `<S>`, `<UNK>` and the words that occur at least three times (lm1b's rule)."""
    counts = _counted(text.split() for text in _lines(chunks)).most_common()
    frequent = (word for word, count in counts if count >= LEAST_COUNT_OF_LM1B)
    return Vocabulary("word", tuple(dict.fromkeys((SENTENCE, UNKNOWN_OF_LM1B, *frequent))))


def words_of_list(chunks: Iterable[bytes]) -> Vocabulary:
    """Read lm1b's vocabulary from its published list: the first word of every line.

    Raises:
        UserError: the list lacks `<S>` or `<UNK>`.
    """
    lines = (line.split() for text in _lines(chunks) for line in text.split("\n"))
    symbols = tuple(dict.fromkeys(line[0] for line in lines if line))
    if not {SENTENCE, UNKNOWN_OF_LM1B} <= set(symbols):
        raise UserError(f"1b_word_vocab.txt must have {SENTENCE} and {UNKNOWN_OF_LM1B}")
    return Vocabulary("word", symbols)


def decoded(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decode UTF-8 from chunks that may end inside a character.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    return (text for (text,) in _decoded_documents([chunk] for chunk in chunks))


def _decoded_documents(chunks: Iterable[list[bytes]]) -> Iterator[list[str]]:
    """Decode chunks of documents (see `Vocabulary.encode_documents`)."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for contents in chunks:
            first, *others = contents
            texts = [decoder.decode(first, final=bool(others)), *map(bytes.decode, others[:-1])]
            yield [*texts, *map(decoder.decode, others[-1:])]
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text ({error.reason}): use data.level=byte, or convert the file") from error


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the text in chunks of whole lines."""
    return (lines for (lines,) in _whole_lines([text] for text in decoded(chunks)) if lines)


def _whole_lines(chunks: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield chunks of documents that end with whole lines; a document's last line may lack its line break."""
    rest = ""
    for texts in chunks:
        lines: list[str] = []
        for number, text in enumerate(texts):
            if number:
                lines[-1] += rest
            text = text if number else rest + text
            end = text.rfind("\n") + 1
            lines.append(text[:end])
            rest = text[end:]
        yield lines
    yield [rest]


def _counted(chunks: Iterable[Iterable[Any]]) -> Counter[Any]:
    """Count the members of all chunks, in the order of their first appearance."""
    return Counter(chain.from_iterable(chunks))
