"""Make vocabularies by counting a training split, chunk by chunk, or from published lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from txl_lightning.data.reading import Part, cut_after, decoded, read
from txl_lightning.data.vocabulary import (
    END_OF_LINE,
    SENTENCE,
    UNKNOWN,
    UNKNOWN_OF_LM1B,
    Vocabulary,
    code_points,
    words_of_lines,
)
from txl_lightning.errors import UserError

N_CODE_POINTS = 0x110000
# Rarer words of the One Billion Word benchmark are <UNK>.
LEAST_COUNT_OF_LM1B = 3
# Count of <unk> in WikiText-103, which its list of word counts lacks.
UNKNOWN_IN_WIKITEXT_103 = 441_959
PADDING = "madeupword"


def all_bytes(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of all 256 bytes, whatever the text."""
    return Vocabulary("byte")


def bytes_with_newlines(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of the bytes that occur, most frequent first."""
    return Vocabulary("byte", _most_common(np.frombuffer(chunk, np.uint8) for chunk in chunks))


def bytes_without_newlines(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of the bytes that occur, without the line break: the paper's enwik8."""
    symbols = bytes_with_newlines(chunks).symbols
    return Vocabulary("byte", tuple(symbol for symbol in symbols if symbol != "\n"))


def characters(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of the characters that occur, most frequent first, without `<unk>`."""
    return Vocabulary("char", _most_common(code_points(text) for text in decoded(chunks)))


def characters_and_unknown(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of `<unk>` and the characters that occur, by code point."""
    found = np.zeros(N_CODE_POINTS, dtype=bool)
    for text in decoded(chunks):
        found[code_points(text)] = True
    return Vocabulary("char", (UNKNOWN, *map(chr, np.flatnonzero(found).tolist())))


def words(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of `<eos>` and the words that occur, most frequent first, ties by first appearance.

    Case is kept. `<unk>` is placed by its count; if the text has none, it is the last entry.
    """
    counts = _count_words(chunks, END_OF_LINE)
    counts.setdefault(UNKNOWN, 0)
    del counts[END_OF_LINE]
    return Vocabulary("word", (END_OF_LINE, *(word for word, _ in counts.most_common())))


def words_of_sentences(chunks: Iterable[bytes]) -> Vocabulary:
    """Return the vocabulary of `<S>`, `<UNK>` and the words that occur at least three times (lm1b's rule)."""
    counts = _count_words(chunks, SENTENCE)
    for special in (SENTENCE, UNKNOWN_OF_LM1B):
        counts.pop(special, None)
    frequent = (word for word, count in counts.most_common() if count >= LEAST_COUNT_OF_LM1B)
    return Vocabulary("word", (SENTENCE, UNKNOWN_OF_LM1B, *frequent))


def words_of_count_file(part: Part) -> Vocabulary:
    """Read WikiText-103's vocabulary from a file with a word and its count on every line, most frequent first.

    Such a file has neither `<eos>` nor `<unk>`, and ends with padding words that never occur.

    Raises:
        UserError: a line is not a word and a count.
    """
    symbols = [END_OF_LINE]
    has_unknown = False
    for number, line in enumerate(_lines(part), start=1):
        word, _, count = line.rpartition(" ")
        if not word or not count.isdigit():
            raise UserError(f"{part.path}, line {number}: {line!r} is not a word and its count")
        if not has_unknown and int(count) < UNKNOWN_IN_WIKITEXT_103:
            has_unknown = True
            symbols.append(UNKNOWN)
        if not (word.startswith(PADDING) and count == "0"):
            symbols.append(word)
    return Vocabulary("word", tuple(symbols))


def words_of_list(part: Part) -> Vocabulary:
    """Read lm1b's vocabulary from its published list: the first word of every line.

    Raises:
        UserError: the list lacks `<S>` or `<UNK>`.
    """
    vocabulary = Vocabulary("word", tuple(dict.fromkeys(line.split()[0] for line in _lines(part) if line.strip())))
    for special in (SENTENCE, UNKNOWN_OF_LM1B):
        if special not in vocabulary.numbers:
            raise UserError(f"{part.path}: is not the vocabulary of lm1b, {special} is not in it")
    return vocabulary


def _lines(part: Part) -> Iterator[str]:
    for text in decoded(cut_after(read([part]), b"\n")):
        yield from text.removesuffix("\n").split("\n")


def _count_words(chunks: Iterable[bytes], mark: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in decoded(cut_after(chunks, b"\n")):
        counts.update(words_of_lines(text, mark))
    counts.setdefault(mark, 0)
    return counts


def _most_common(chunks: Iterable[np.ndarray]) -> tuple[str, ...]:
    """Return the symbols of code points (or Latin-1 bytes), most frequent first, ties by first appearance."""
    counts = np.zeros(N_CODE_POINTS, dtype=np.int64)
    order: list[int] = []
    for chunk in chunks:
        in_chunk = np.bincount(chunk)
        new = [value for value in np.flatnonzero(in_chunk).tolist() if counts[value] == 0]
        order += sorted(new, key=lambda value: int((chunk == value).argmax()))
        counts[: len(in_chunk)] += in_chunk
    return tuple(chr(value) for value in sorted(order, key=lambda value: -int(counts[value])))
