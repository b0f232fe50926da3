"""Byte-level BPE: the tokens of any bytes by a tokenizer of Hugging Face's `tokenizers`, and its training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from txl_lightning.errors import UserError

N_BYTES = 256
LEAST_COUNT = 2  # a pair that occurs once is not merged
LONGEST_PIECE = 1 << 16
BYTES_AT_ONCE = 1 << 20
LINE_START = re.compile(rb"(?<=\n)(?=\S)")
# Bytes that are not UTF-8, as Python's `surrogateescape` decodes them.
NOT_UTF_8 = re.compile("([\udc80-\udcff]+)")


class BytePairs:
    """Tokens of any bytes by a byte-level tokenizer.

    Text is encoded piece by piece (see `pieces`), so that tokens do not depend on how a file is read. Bytes that are
    not UTF-8 become one token each.

    Args:
        tokenizer: contents of a `tokenizer.json`.

    Raises:
        UserError: it is not a byte-level tokenizer with a token for every byte.
    """

    def __init__(self, tokenizer: str) -> None:
        try:
            self._tokenizer: Any = _library().Tokenizer.from_str(tokenizer)
            self.contents = tuple(_contents(json.loads(tokenizer)))
        except UserError:
            raise
        except Exception as error:  # the library raises a plain Exception for a file that it cannot read
            raise UserError(f"is not a tokenizer.json of the library tokenizers ({error})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        numbers = {content: number for number, content in enumerate(self.contents)}
        missing = [byte for byte in range(N_BYTES) if bytes([byte]) not in numbers]
        if missing:
            raise UserError(f"is not a byte-level tokenizer: it has no token for byte {missing[0]}")
        self._of_byte = np.array([numbers[bytes([byte])] for byte in range(N_BYTES)])

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yield the token numbers of a text in chunks, which may end anywhere.

        Raises:
            UserError: the tokens do not give back the text, since the tokenizer changes it (normalizer, added spaces).
        """
        held: list[bytes] = []
        size = 0
        for piece in pieces(chunks):
            held.append(piece)
            size += len(piece)
            if size >= BYTES_AT_ONCE:
                yield self._encode(held)
                held, size = [], 0
        if held:
            yield self._encode(held)

    def _encode(self, texts: list[bytes]) -> np.ndarray:
        parts = [part for text in texts for part in runs(text)]
        valid = [part for part in parts if isinstance(part, str)]
        encodings = iter(self._tokenizer.encode_batch_fast(valid, add_special_tokens=False))
        tokens = np.concatenate(
            [next(encodings).ids if isinstance(part, str) else self._of_byte[list(part)] for part in parts]
        ).astype(np.int64)
        if b"".join(self.contents[token] for token in tokens.tolist()) != b"".join(texts):
            raise UserError("the tokenizer changes the text: it must have no normalizer and add no spaces")
        return tokens


def train_byte_pairs(chunks: Iterable[bytes], vocab_size: int) -> str:
    """Train byte-level BPE on a text and return its `tokenizer.json`: 256 bytes and `vocab_size` - 256 merges.

    The regular expression of GPT-2 cuts the text into words, which no merge crosses. Bytes that are not UTF-8 are left
    out. Equal texts give equal merges.

    Raises:
        UserError: the text has fewer merges.
    """
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST_COUNT,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    valid = (part for piece in pieces(chunks) for part in runs(piece) if isinstance(part, str))
    tokenizer.train_from_iterator(valid, trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        allowed = f"must be in {N_BYTES} … {tokenizer.get_vocab_size()}"
        raise UserError(f"{allowed}: no other pair of tokens occurs {LEAST_COUNT} times in the training split")
    return str(tokenizer.to_str())


def pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a text before every line that does not begin with white space; a function of the text, not of its chunks.

    A longer piece than `LONGEST_PIECE` bytes is cut before the last space in these bytes, or after them without one.
    """
    rest = b""
    for chunk in chunks:
        *complete, rest = LINE_START.split(rest + chunk)
        for piece in complete:
            yield from _shorter(piece)
        *complete, rest = _shorter(rest)
        yield from complete
    if rest:
        yield rest


def _shorter(piece: bytes) -> Iterator[bytes]:
    start = 0
    while len(piece) - start > LONGEST_PIECE:
        space = piece.rfind(b" ", start + 1, start + LONGEST_PIECE)
        end = space if space > 0 else start + LONGEST_PIECE
        yield piece[start:end]
        start = end
    yield piece[start:]


def runs(piece: bytes) -> Iterator[str | bytes]:
    """Yield the parts of a text that are UTF-8 as str, and the bytes between them as bytes."""
    for part in NOT_UTF_8.split(piece.decode("utf-8", errors="surrogateescape")):
        if part:
            yield part.encode("utf-8", errors="surrogateescape") if NOT_UTF_8.match(part) else part


def _contents(description: dict[str, Any]) -> Iterator[bytes]:
    """Yield the bytes of every token of a `tokenizer.json`, by number.

    Raises:
        UserError: a token is not written in the alphabet of byte-level tokenizers, or a number is missing.
    """
    values = {character: byte for byte, character in enumerate(_alphabet())}
    found = {number: text for text, number in dict(description["model"]["vocab"]).items()}
    added = {int(token["id"]): str(token["content"]) for token in description["added_tokens"]}
    for number in range(len(found | added)):
        if number in added:
            yield added[number].encode()
        elif number not in found:
            raise UserError(f"must number its tokens from 0 without gaps: {number} is missing")
        elif foreign := set(found[number]) - values.keys():
            raise UserError(f"is not a byte-level tokenizer: token {found[number]!r} has {min(foreign)!r}")
        else:
            yield bytes(values[character] for character in found[number])


def _alphabet() -> list[str]:
    """Return the character by which byte-level tokenizers write each byte: a printable one for every byte."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(N_BYTES) if byte not in printable]
    return [chr(byte if byte in printable else N_BYTES + others.index(byte)) for byte in range(N_BYTES)]


def _library() -> Any:
    import tokenizers

    return tokenizers
