"""Vocabulary: symbols and their token numbers, counted in a text or by byte-level BPE; encoding and decoding."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, repeat
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from txl_lightning.errors import OptionError, UserError

Level = Literal["byte", "char", "word", "bpe", "ids"]
LEVELS: tuple[Level, ...] = ("byte", "char", "word", "bpe")  # of texts
KEPT_LEVELS = ("bpe", "ids")  # read with the vocabulary of a checkpoint, which is not made from the text again
UNKNOWN = "<unk>"
END_OF_LINE = "<eos>"
SENTENCE, UNKNOWN_OF_LM1B = "<S>", "<UNK>"
# Rarer words of the One Billion Word benchmark are <UNK>.
LEAST_COUNT_OF_LM1B = 3
# Count of <unk> in WikiText-103, which its list of word counts lacks.
UNKNOWN_IN_WIKITEXT_103 = 441_959
PADDING = "madeupword"
# Share of rare words and mean bytes of a word: beyond these white space does not divide a text of enough words.
MOST_UNKNOWN, LONGEST_WORD, ENOUGH_WORDS = 0.5, 30, 10_000
N_BYTES = 256
LEAST_COUNT = 2  # a pair that occurs once is not merged
LONGEST_PIECE = 1 << 16
PIECES_AT_ONCE = 1 << 10
LINE_START = re.compile(r"(?<=\n)(?=\S)", re.ASCII)
# Byte-level tokenizers write a byte as the character of its number if that is printable, others as these from 256 on.
PRINTABLE = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
OTHERS = [byte for byte in range(N_BYTES) if byte not in PRINTABLE]
BYTE_OF_CHARACTER = {chr(byte if byte in PRINTABLE else N_BYTES + OTHERS.index(byte)): byte for byte in range(N_BYTES)}


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
    """

    level: Level
    symbols: tuple[str, ...] = ()
    tokenizer: str = ""
    lenient: bool = field(default=False, compare=False)

    def __len__(self) -> int:
        return len(self.symbols) or 256

    @classmethod
    def of_tokenizer(cls, tokenizer: str) -> Vocabulary:
        """Return the vocabulary of a byte-level `tokenizer.json`.

        Raises:
            UserError: it is not byte-level, or not readable.
        """
        return cls("bpe", tuple(content.decode("latin-1") for content in BytePairs(tokenizer).contents), tokenizer)

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
        return [symbol.encode(encoding) for symbol in self.symbols or map(chr, range(256))]

    def count_bytes(self, tokens: np.ndarray) -> int | None:
        """Return the number of bytes that tokens stand for; None if it is not known (words, ids, `<unk>`)."""
        if self.byte_lengths is None:
            return None
        lengths = self.byte_lengths[tokens]
        return int(lengths.sum()) if lengths.min(initial=0) >= 0 else None

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
        if self.level == "bpe":
            return (tokens.astype(self.dtype) for tokens in self._byte_pairs.encode_chunks(chunks))
        if self.level == "byte":
            return map(self._encode_bytes, chunks)
        if self.level == "char":
            return (self._look_up(code_points(text)) for text in decoded(chunks))
        return (self._encode_lines(text) for text in _lines(chunks))

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the text of token numbers; bytes that are not UTF-8 become replacement characters."""
        if self.consists_of_bytes:
            return self.decode_bytes(tokens).decode("utf-8", errors="replace")
        decoder = StreamDecoder(self)
        return decoder.feed(tokens) + decoder.finish()

    def decode_bytes(self, tokens: Sequence[int] | np.ndarray) -> bytes:
        """Return the bytes of token numbers: those that were encoded, UTF-8 or not."""
        return b"".join(self._bytes[int(token)] for token in tokens)

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers for a checkpoint."""
        state: dict[str, Any] = {"level": self.level, "symbols": list(self.symbols)}
        return state | {name: value for name in ("tokenizer", "lenient") if (value := getattr(self, name))}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Vocabulary:
        """Restore a vocabulary from its `state_dict`.

        Raises:
            UserError: it is not one, or its symbols are not of its level.
        """
        try:
            further = {name: state[name] for name in ("tokenizer", "lenient") if name in state}
            vocabulary = cls(state["level"], tuple(state["symbols"]), **further)
            level, symbols, text = vocabulary.level, vocabulary.symbols, "".join(vocabulary.symbols)
            text.encode("latin-1" if vocabulary.consists_of_bytes else "utf-8")
            valid = level in get_args(Level) and (level == "byte" or text != "")
            if level in ("byte", "char"):
                valid &= all(len(symbol) == 1 or (symbol == UNKNOWN and level == "char") for symbol in symbols)
            valid = valid and (level != "bpe" or cls.of_tokenizer(vocabulary.tokenizer).symbols == symbols)
        except (AttributeError, KeyError, TypeError, UnicodeEncodeError):
            valid = False
        if not valid:
            raise UserError("its vocabulary must have a level, and symbols of that level")
        return vocabulary

    @cached_property
    def _byte_pairs(self) -> BytePairs:
        return BytePairs(self.tokenizer)

    @cached_property
    def _table(self) -> np.ndarray:
        """Token number by code point; the last entry is for all larger code points."""
        characters = {ord(symbol): number for symbol, number in self.numbers.items() if len(symbol) == 1}
        table = np.full(max(characters, default=0) + 2, self.unknown if self.lenient else -1, dtype=np.int32)
        table[list(characters)] = list(characters.values())
        return table

    def _encode_bytes(self, chunk: bytes) -> np.ndarray:
        if not self.symbols:
            return np.frombuffer(chunk, np.uint8)
        kept = chunk if "\n" in self.numbers else chunk.replace(b"\n", b"")
        return self._look_up(np.frombuffer(kept, np.uint8))

    def _look_up(self, values: np.ndarray) -> np.ndarray:
        # In int64, since the index of the last entry may not fit into a byte.
        tokens = self._table[np.minimum(values.astype(np.int64), len(self._table) - 1)]
        return self._known(tokens, lambda place: chr(int(values[place])))

    def _encode_lines(self, text: str) -> np.ndarray:
        mark = SENTENCE if self.starts_sentences else END_OF_LINE
        found = text.split() if self.level == "ids" else words_of_lines(text, mark)
        tokens = np.fromiter(map(self.numbers.get, found, repeat(self.unknown)), dtype=np.int32, count=len(found))
        return self._known(tokens, lambda place: found[place])

    def _known(self, tokens: np.ndarray, symbol_at: Callable[[int], str]) -> np.ndarray:
        """Return the tokens in `dtype`; a symbol that is unknown without an `<unk>` is an error."""
        tokens = tokens[tokens >= 0] if self.lenient else tokens
        if tokens.min(initial=0) < 0:
            symbol = symbol_at(int(tokens.argmin()))
            raise UserError(f"{symbol!r} is not among the {len(self)} symbols of the training split")
        return tokens.astype(self.dtype)


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


def code_points(text: str) -> np.ndarray:
    """Return the code points of a text's characters."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)


def mark(tokens: np.ndarray, places: Any) -> NDArray[np.int32]:
    """Return the tokens with those at `places` as -1 - token, which tells the model that a document begins there."""
    marked = tokens.astype(np.int32)
    marked[places] = ~marked[places]
    return marked


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


def words_of_count_file(chunks: Iterable[bytes]) -> Vocabulary:
    """Read WikiText-103's vocabulary from a list with a word and its count on every line, most frequent first.

    The list has neither `<eos>` nor `<unk>`, and ends with padding words that never occur.
    """
    lines = [line.rpartition(" ") for text in _lines(chunks) for line in text.removesuffix("\n").split("\n")]
    listed = [word for word, _, count in lines if not (word.startswith(PADDING) and count == "0")]
    place = sum(int(count) >= UNKNOWN_IN_WIKITEXT_103 for _, _, count in lines)
    return Vocabulary("word", (END_OF_LINE, *listed[:place], UNKNOWN, *listed[place:]))


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


def cut_after(chunks: Iterable[bytes], separators: bytes) -> Iterator[bytes]:
    """Yield the same bytes in chunks that end with one of the separators (except perhaps the last chunk)."""
    rest: list[bytes] = []
    for chunk in chunks:
        end = 1 + max(chunk.rfind(separators[i : i + 1]) for i in range(len(separators)))
        if end:
            yield b"".join([*rest, chunk[:end]])
            rest = []
        rest.append(chunk[end:])
    if last := b"".join(rest):
        yield last


def decoded(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decode UTF-8 from chunks that may end inside a character.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    try:
        yield from codecs.iterdecode(chunks, "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text ({error.reason}): use data.level=byte, or convert the file") from error


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the text in chunks of whole lines."""
    return decoded(cut_after(chunks, b"\n"))


def _counted(chunks: Iterable[Iterable[Any]]) -> Counter[Any]:
    """Count the members of all chunks, in the order of their first appearance."""
    return Counter(chain.from_iterable(chunks))


class BytePairs:
    """Tokens of UTF-8 text by a byte-level tokenizer.

    Text is encoded piece by piece (see `pieces`), so that tokens do not depend on how a file is read.

    Args:
        tokenizer: contents of a `tokenizer.json`.

    Attributes:
        contents: bytes of every token, by number.

    Raises:
        UserError: it is not a byte-level tokenizer with a token for every byte and all numbers from 0 on.
    """

    def __init__(self, tokenizer: str) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer)
            added = self._tokenizer.get_added_tokens_decoder().items()
            found = {number: token.content.encode() for number, token in added}
            for text, number in self._tokenizer.get_vocab(with_added_tokens=False).items():
                if number not in found:
                    found[number] = bytes(BYTE_OF_CHARACTER[character] for character in text)
            self.contents = tuple(found[number] for number in range(len(found)))
            if missing := {bytes([byte]) for byte in range(N_BYTES)} - {*self.contents}:
                raise ValueError(f"it has no token for {min(missing)!r}")
        except Exception as error:  # the library raises a plain Exception for a file that it cannot read
            raise UserError(f"is not a tokenizer.json of a byte-level tokenizer, like GPT-2's ({error!r})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yield the token numbers of a text in chunks, which may end anywhere.

        Raises:
            UserError: the bytes are not UTF-8, or the tokens do not give back the text, since the tokenizer changes it
                (normalizer, added spaces).
        """
        texts = pieces(decoded(chunks))
        while held := list(islice(texts, PIECES_AT_ONCE)):
            encodings = self._tokenizer.encode_batch_fast(held, add_special_tokens=False)
            tokens = np.concatenate([encoding.ids for encoding in encodings]).astype(np.int64)
            if b"".join(self.contents[token] for token in tokens.tolist()) != "".join(held).encode():
                raise UserError("the tokenizer changes the text: it must have no normalizer and add no spaces")
            yield tokens


def train_byte_pairs(chunks: Iterable[bytes], vocab_size: int, least: int = N_BYTES) -> str:
    """Train byte-level BPE on a text and return its `tokenizer.json`: 256 bytes and at most `vocab_size` - 256 merges.

    The regular expression of GPT-2 cuts the text into words, which no merge crosses. Equal texts give equal merges.

    Raises:
        OptionError: it has fewer than `least` tokens, as the text is too short.
        UserError: the bytes are not UTF-8.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST_COUNT,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces(decoded(chunks)), trainer)
    if tokenizer.get_vocab_size() < least:
        allowed = f"must be in {N_BYTES} … {tokenizer.get_vocab_size()}"
        allowed += f": no other pair of tokens occurs {LEAST_COUNT} times in the training split"
        raise OptionError("data.vocab_size", vocab_size, allowed)
    return str(tokenizer.to_str())


def pieces(texts: Iterable[str]) -> Iterator[str]:
    """Cut a text before every line that does not begin with white space; a function of the text, not of its chunks.

    A longer piece than `LONGEST_PIECE` characters is cut before the last space in these, or after them without one.
    """
    rest = ""
    for text in texts:
        *complete, rest = LINE_START.split(rest + text)
        for piece in complete:
            yield from _shorter(piece)
        *complete, rest = _shorter(rest)
        yield from complete
    if rest:
        yield rest


def _shorter(piece: str) -> Iterator[str]:
    start = 0
    while len(piece) - start > LONGEST_PIECE:
        space = piece.rfind(" ", start + 1, start + LONGEST_PIECE)
        end = space if space > 0 else start + LONGEST_PIECE
        yield piece[start:end]
        start = end
    yield piece[start:]
