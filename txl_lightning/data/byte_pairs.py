"""Byte-level BPE: the tokens of any bytes by a tokenizer of Hugging Face's `tokenizers`, and its training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from txl_lightning.errors import OptionError, UserError

N_BYTES = 256
LEAST_COUNT = 2  # a pair that occurs once is not merged
LONGEST_PIECE = 1 << 16
PIECES_AT_ONCE = 1 << 10
LINE_START = re.compile(rb"(?<=\n)(?=\S)")
# Bytes that are not UTF-8, as Python's `surrogateescape` decodes them.
NOT_UTF_8 = re.compile("([\udc80-\udcff]+)")
# Byte-level tokenizers write a byte as the character of its number if that is printable, others as these from 256 on.
PRINTABLE = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
OTHERS = [byte for byte in range(N_BYTES) if byte not in PRINTABLE]
BYTE_OF_CHARACTER = {chr(byte if byte in PRINTABLE else N_BYTES + OTHERS.index(byte)): byte for byte in range(N_BYTES)}


class BytePairs:
    """Tokens of any bytes by a byte-level tokenizer.

    Text is encoded piece by piece (see `pieces`), so that tokens do not depend on how a file is read. Bytes that are
    not UTF-8 become one token each.

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
            description = json.loads(tokenizer)
            found = {int(token["id"]): str(token["content"]).encode() for token in description["added_tokens"]}
            for text, number in dict(description["model"]["vocab"]).items():
                if number not in found:
                    found[number] = bytes(BYTE_OF_CHARACTER[character] for character in text)
            self.contents = tuple(found[number] for number in range(len(found)))
            numbers = {content: number for number, content in enumerate(self.contents)}
            self._of_byte = np.array([numbers[bytes([byte])] for byte in range(N_BYTES)])
        except Exception as error:  # the library raises a plain Exception for a file that it cannot read
            raise UserError(f"is not a tokenizer.json of a byte-level tokenizer, like GPT-2's ({error!r})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yield the token numbers of a text in chunks, which may end anywhere.

        Raises:
            UserError: the tokens do not give back the text, since the tokenizer changes it (normalizer, added spaces).
        """
        texts = pieces(chunks)
        while held := list(islice(texts, PIECES_AT_ONCE)):
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
        OptionError: the text has fewer merges.
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
    valid = (part for piece in pieces(chunks) for part in runs(piece) if isinstance(part, str))
    tokenizer.train_from_iterator(valid, trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        allowed = f"must be in {N_BYTES} … {tokenizer.get_vocab_size()}"
        allowed += f": no other pair of tokens occurs {LEAST_COUNT} times in the training split"
        raise OptionError("data.vocab_size", vocab_size, allowed)
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
