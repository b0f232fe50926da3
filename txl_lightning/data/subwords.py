"""Subwords: the tokens that `Tokenizer.encode` gives whole documents, however they are read; training of BPE."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from txl_lightning.errors import OptionError, UserError

N_BYTES = 256
LEAST_COUNT = 2  # a pair that occurs once is not merged
LONGEST_WORD = 1024  # training is quadratic in the length of a word, so longer ones are cut
# Byte-level tokenizers write a byte as the character of its number if that is printable, others as these from 256 on.
PRINTABLE = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
OTHERS = [byte for byte in range(N_BYTES) if byte not in PRINTABLE]
BYTE_OF_CHARACTER = {
    chr(byte if byte in PRINTABLE else N_BYTES + OTHERS.index(byte)): byte
    for byte in range(N_BYTES)
}
WORD_START = "▁"  # stands for a space in tokenizers like those of SentencePiece
# White space before other characters: GPT-2's expression always divides a text before a run of it. Python's white space
# is that of the expression but for the separators 1c to 1f.
WORD = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+")
BEFORE_WORD = re.compile(r"(?<=[^\s\x1c-\x1f])(?=[ \n])")
MOST_WORDS = 1 << 18  # words whose tokens are remembered
# Long documents are encoded in parts. A place to cut is before a space between letters, or after a line break.
CUT = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])|(?<=\S\n)(?=\S)")
PART_CHARACTERS = 1 << 16
CONTEXT_CHARACTERS = 256
BATCH_TEXTS = 1000
BATCH_CHARACTERS = 1 << 20

Texts = list[str]  # the first continues the document before it, every further one begins a document
Tokens = tuple[NDArray[Any], NDArray[np.int64]]  # and the positions in them where documents begin


class Subwords:
    """Tokens of UTF-8 text by a tokenizer that keeps its bytes: the ids of `Tokenizer.encode` of each whole document.

    Documents are encoded in batches. A long document is cut into parts where its ids do not change: the ids of the 256
    characters before a cut must begin the ids of the 512 characters around it, and each part is encoded behind such a
    context. Tokenizers that divide a text like GPT-2's encode every word once.

    Args:
        tokenizer: contents of a `tokenizer.json`.

    Attributes:
        contents: bytes of every token, by number.

    Raises:
        UserError: its tokens are no bytes of text.
    """

    def __init__(self, tokenizer: str) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer)
            state = json.loads(tokenizer)
            added = self._tokenizer.get_added_tokens_decoder()
            contents = _contents(
                self._tokenizer.get_vocab(with_added_tokens=False), state, set(added)
            )
        except (
            Exception
        ) as error:  # the library raises a plain Exception for a file that it cannot read
            reason = str(error) if isinstance(error, UserError) else repr(error)
            raise UserError(
                f"is not a tokenizer.json of tokens that are bytes, like GPT-2's ({reason})"
            ) from error
        for number, token in added.items():
            contents.setdefault(number, token.content.encode())
        self.contents = tuple(contents.get(number, b"") for number in range(1 + max(contents)))
        self._unknown = _unknown_of(state["model"])
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._has_words = _divides_words(state, [token.content for token in added.values()])
        self._ids_of_word: dict[str, bytes] = {}

    def encode(self, chunks: Iterable[Texts]) -> Iterator[Tokens]:
        """Yield the tokens of documents in chunks, which may end anywhere, and the positions where documents begin.

        Raises:
            UserError: the tokens do not give back the text.
        """
        parts: list[tuple[str, str]] = []
        begins: list[int] = []
        n_characters = 0
        for context, text, is_first in self._parts(chunks):
            if is_first:
                begins.append(len(parts))
            parts.append((context, text))
            n_characters += len(text)
            if len(parts) >= BATCH_TEXTS or n_characters >= BATCH_CHARACTERS:
                yield self._encode_batch(parts, begins)
                parts, begins, n_characters = [], [], 0
        yield self._encode_batch(parts, begins)

    def _parts(self, chunks: Iterable[Texts]) -> Iterator[tuple[str, str, bool]]:
        """Yield (context, text, whether it begins a further document): whole documents, or parts of long ones."""
        context = ""
        rest = ""
        is_first = False
        for texts in chunks:
            for number, text in enumerate(texts):
                if number > 0:
                    yield context, rest, is_first
                    context, rest, is_first = "", "", True
                rest += text
            start = 0
            for cut in self._cuts(rest):
                yield context, rest[start:cut], is_first
                context = rest[max(0, cut - CONTEXT_CHARACTERS) : cut]
                start = cut
                is_first = False
            rest = rest[start:]
        yield context, rest, is_first

    def _cuts(self, text: str) -> Iterator[int]:
        """Yield places to cut a text, at least `PART_CHARACTERS` apart, where the ids of the text do not change."""
        start = 0
        while len(text) - start > 2 * PART_CHARACTERS:
            place = CUT.search(text, start + PART_CHARACTERS, len(text) - CONTEXT_CHARACTERS)
            while place is not None and not self._is_cut(text, place.start()):
                place = CUT.search(
                    text, place.start() + CONTEXT_CHARACTERS, len(text) - CONTEXT_CHARACTERS
                )
            if place is None:
                return
            start = place.start()
            yield start

    def _is_cut(self, text: str, place: int) -> bool:
        before = text[place - CONTEXT_CHARACTERS : place]
        after = text[place : place + CONTEXT_CHARACTERS]
        ids, ids_of_both = self._ids([before, before + after])
        return ids_of_both[: len(ids)] == ids

    def _encode_batch(self, parts: list[tuple[str, str]], begins: list[int]) -> Tokens:
        contexts = iter(self._ids([context for context, _ in parts if context]))
        encoded = self._ids([context + text for context, text in parts])
        for number, (context, _) in enumerate(parts):
            if context:
                ids = next(contexts)
                if not encoded[number].startswith(ids):
                    raise UserError(
                        "the tokenizer reads a long run of this text as one word: put spaces into it"
                    )
                encoded[number] = encoded[number][len(ids) :]
        tokens = np.frombuffer(b"".join(encoded), np.int32)
        self._compare(tokens, "".join(text for _, text in parts))
        ends = np.cumsum([0, *map(len, encoded)]) // tokens.itemsize
        return tokens, ends[begins].astype(np.int64)

    def _ids(self, texts: list[str]) -> list[bytes]:
        """Return the ids of each text as bytes of int32."""
        if not self._has_words:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            return [array("i", encoding.ids).tobytes() for encoding in encodings]
        words_of_texts = [WORD.findall(text) for text in texts]
        if len(self._ids_of_word) > MOST_WORDS:
            self._ids_of_word = {}
        new = list(set(chain.from_iterable(words_of_texts)).difference(self._ids_of_word))
        for word, encoding in zip(
            new, self._tokenizer.encode_batch_fast(new, add_special_tokens=False), strict=True
        ):
            self._ids_of_word[word] = array("i", encoding.ids).tobytes()
        return [b"".join(map(self._ids_of_word.__getitem__, words)) for words in words_of_texts]

    def _compare(self, tokens: NDArray[Any], text: str) -> None:
        if b"".join(map(self.contents.__getitem__, tokens.tolist())) != text.encode():
            raise UserError(self._loss(text))

    def _loss(self, text: str) -> str:
        """Return why the tokens of a text do not give it back."""
        lost = []
        n_bytes = 0
        for character in sorted(set(text)):
            content = character.encode()
            (ids,) = self._ids([character])
            decoded = b"".join(self.contents[number] for number in array("i", ids))
            if decoded.removeprefix(b" ") in (b"", self._unknown) and character != " ":
                lost.append(repr(character))
                n_bytes += text.count(character) * len(content)
        if lost:
            return f"the tokenizer has no token for {n_bytes:,} bytes of the text: {', '.join(lost[:8])}"
        return "the tokenizer changes the text: it must have no normalizer and add no spaces"


def _divides_words(state: dict[str, Any], added: list[str]) -> bool:
    """Return whether a tokenizer is known to divide a text before a run of white space, like GPT-2's expression."""
    before = state.get("pre_tokenizer") or {}
    is_gpt2 = (
        before.get("type") == "ByteLevel"
        and before.get("use_regex", True)
        and not before["add_prefix_space"]
    )
    normalizer = state.get("normalizer") or {"type": "NFC"}
    if not is_gpt2 or normalizer["type"] != "NFC":
        return False
    if any(token["rstrip"] for token in state.get("added_tokens", ())):
        return False
    return all(len(WORD.findall(content)) == 1 for content in added)


def _unknown_of(model: dict[str, Any]) -> bytes:
    """Return the text of the token that stands for characters without a token; nothing if there is none."""
    if model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0]).encode()
    return str(model.get("unk_token") or "").encode()


def _contents(
    vocabulary: dict[str, int], state: dict[str, Any], added: set[int]
) -> dict[int, bytes]:
    """Return the bytes of every token by number, without those that are added to a text as they are."""
    kinds = set()
    for name in ("pre_tokenizer", "decoder"):
        outer = state.get(name) or {}
        for part in [outer, *outer.get("pretokenizers", ()), *outer.get("decoders", ())]:
            kinds.add(part.get("type"))
    model = state["model"]
    contents: dict[int, bytes] = {}
    if "ByteLevel" in kinds:
        for text, number in vocabulary.items():
            if number in added:
                continue
            if not set(text) <= set(BYTE_OF_CHARACTER):
                raise UserError(f"its token {text!r} has characters that stand for no byte")
            contents[number] = bytes(map(BYTE_OF_CHARACTER.__getitem__, text))
        return contents
    if model.get("type", "BPE") not in ("BPE", "Unigram") or not kinds & {
        "Metaspace",
        "ByteFallback",
        "Replace",
    }:
        raise UserError("it is neither byte-level nor of SentencePiece's kind")
    for text, number in vocabulary.items():
        byte = re.fullmatch("<0x([0-9A-F]{2})>", text)
        if byte and model.get("byte_fallback"):
            contents[number] = bytes.fromhex(byte[1])
        elif number not in added or not text.strip(WORD_START):  # Gemma adds runs of spaces too
            contents[number] = text.replace(WORD_START, " ").encode()
    return contents


def train_byte_pairs(texts: Iterable[str], vocab_size: int, least: int = N_BYTES) -> str:
    """Train byte-level BPE on a text and return its `tokenizer.json`: 256 bytes and at most `vocab_size` - 256 merges.

    The regular expression of GPT-2 cuts the text into words, which no merge crosses; a word of more than
    `LONGEST_WORD` bytes is cut for the training. Equal texts give equal merges.

    Args:
        texts: the text in chunks, which may end anywhere.
        vocab_size: most tokens.
        least: fewest tokens.

    Raises:
        OptionError: it has fewer than `least` tokens, as the text is too short.
    """
    by_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [by_words, pre_tokenizers.FixedLength(LONGEST_WORD)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST_COUNT,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_whole_words(texts), trainer)
    if tokenizer.get_vocab_size() < least:
        allowed = f"must be in {N_BYTES} … {tokenizer.get_vocab_size()}"
        allowed += f": no other pair of tokens occurs {LEAST_COUNT} times in the training split"
        raise OptionError("data.vocab_size", vocab_size, allowed)
    tokenizer.pre_tokenizer = by_words
    return str(tokenizer.to_str())


def _whole_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield the same text, cut only before a space or line break after other characters."""
    pending: list[str] = []
    for text in texts:
        cuts = [
            match.start()
            for match in BEFORE_WORD.finditer(text, max(0, len(text) - PART_CHARACTERS))
        ]
        if cuts:
            yield "".join([*pending, text[: cuts[-1]]])
            pending = [text[cuts[-1] :]]
        else:
            pending.append(text)
    yield "".join(pending)
