"""Subwords: the tokens that `Tokenizer.encode` gives for whole documents, however they are read; BPE training."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from txl_lightning.errors import OptionError, UserError

N_BYTES = 256
LEAST_COUNT = 2  # a pair that occurs once is not merged
LONGEST_WORD = 1024  # training is quadratic in the length of a word, so longer ones are cut
# Byte-level tokenizers write a printable byte as its own character, the others as the characters from 256 on.
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = sorted(range(N_BYTES), key=lambda byte: chr(byte) not in ALPHABET)
BYTE_OF_CHARACTER = dict(zip(ALPHABET, BYTES, strict=True))
WORD_START = "▁"  # stands for a space in SentencePiece's tokenizers
# White space before other characters: GPT-2's expression always divides a text before such a run. Python's white space
# equals the expression's, except for the separators 1c to 1f.
WORD = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+")
SPACED_WORD = re.compile(r"[^\S\x1c-\x1f]+[\S\x1c-\x1f]+")
BEFORE_WORD = re.compile(r"(?<=[^\s\x1c-\x1f])(?=[ \n])")
GPT_2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ID_BYTES = 4
MOST_WORDS = 1 << 18  # words whose tokens are remembered
# Long documents are encoded in parts. A place to cut is before a space between letters, or after a line break.
CUT = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])|(?<=\S\n)(?=\S)")
PART_CHARACTERS = 1 << 16
CONTEXT_CHARACTERS = 256
PLACES_CHARACTERS = 1 << 12  # before its end, in which a text is cut

Texts = list[str]  # the first continues the document before it, every further one begins a document
Positions = NDArray[np.int64]
Tokens = tuple[NDArray[Any], Positions]  # and the positions in them where documents begin


class Subwords:
    """UTF-8 text as tokens from a tokenizer that keeps its bytes: the ids from `Tokenizer.encode` for each whole
    document.

    A long document is cut into parts where its ids do not change: the ids for the 256 characters before a cut must
    begin the ids for the 512 characters around it, and each part is encoded behind such a context. Tokenizers that
    divide a text like GPT-2's encode every word once.

    Args:
        tokenizer: a `tokenizer.json`'s contents.

    Attributes:
        contents: every token's bytes, by number.

    Raises:
        UserError: its tokens are no bytes of text.
    """

    def __init__(self, tokenizer: str) -> None:
        try:
            state = json.loads(tokenizer)
            state["model"].pop("dropout", None)
            self._tokenizer = Tokenizer.from_str(json.dumps(state))
            self.contents = _contents(self._tokenizer, state)
        except Exception as error:  # the library raises a plain one for a file that it cannot read
            kind = "is not a byte-level tokenizer.json, like GPT-2's"
            raise UserError(f"{kind} ({error!r})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._has_words = _divides_words(state)
        self._ids_of_word: dict[str, bytes] = {}

    def encode(self, chunks: Iterable[Texts]) -> Iterator[Tokens]:
        """Yield the documents' tokens in chunks, which may end anywhere, and the positions where documents begin.

        Raises:
            UserError: the tokens do not give back the text.
        """
        context = ""
        rest = ""
        for texts in chunks:
            texts[0] = rest + texts[0]
            last = texts.pop()
            cut = self._find_cut(last)
            rest = last[cut:]
            yield self._encode_texts(context, [*texts, last[:cut]])
            if cut > 0:
                context = last[cut - CONTEXT_CHARACTERS : cut]
            elif texts:
                context = ""
        yield self._encode_texts(context, [rest])

    def _find_cut(self, text: str) -> int:
        """Return a place near a long text's end where its ids do not change, or 0."""
        if len(text) < PART_CHARACTERS:
            return 0
        end = len(text) - CONTEXT_CHARACTERS
        places = [
            match.start()
            for match in CUT.finditer(
                text,
                end - PLACES_CHARACTERS,
                end,
            )
        ]
        for place in reversed(places):
            before = text[place - CONTEXT_CHARACTERS : place]
            after = text[place : place + CONTEXT_CHARACTERS]
            ids, ids_of_both = self._ids([before, before + after])
            if ids_of_both.startswith(ids):
                return place
        return 0

    def _encode_texts(self, context: str, texts: Texts) -> Tokens:
        """Return the texts' tokens; the first text follows a context from the same document."""
        texts[0] = context + texts[0]
        ids_of_context, *encoded = self._ids([context, *texts])
        if not encoded[0].startswith(ids_of_context):
            reason = "reads a long run of this text as one word: put spaces into it"
            raise UserError(f"the tokenizer {reason}")
        encoded[0] = encoded[0].removeprefix(ids_of_context)
        ends = np.cumsum([len(ids) // ID_BYTES for ids in encoded])
        return np.frombuffer(
            b"".join(encoded),
            np.int32,
        ), ends[:-1]

    def _ids(self, texts: Texts) -> list[bytes]:
        """Return each text's ids as int32 bytes; a word by GPT-2's expression is encoded once."""
        if not self._has_words:
            return self._encode(texts)
        words_of_texts = [WORD.findall(text) for text in texts]
        if len(self._ids_of_word) > MOST_WORDS:
            self._ids_of_word = {}
        new = set(chain.from_iterable(words_of_texts)).difference(self._ids_of_word)
        spaced = list(filter(SPACED_WORD.fullmatch, new))
        others = [*new.difference(spaced)]
        ids_of_spaced, *ids_of_others = self._encode(["".join(spaced), *others])
        self._ids_of_word.update(zip(others, ids_of_others, strict=True))
        self._ids_of_word.update(
            zip(
                spaced,
                self._divided(ids_of_spaced, spaced),
                strict=True,
            )
        )
        return [b"".join(map(self._ids_of_word.__getitem__, words)) for words in words_of_texts]

    def _divided(self, ids: bytes, words: Texts) -> list[bytes]:
        """Divide the ids for words after white space, which are quicker encoded as one text."""
        lengths = [
            len(self.contents[token])
            for token in array(
                "i",
                ids,
            )
        ]
        ends_of_words = np.cumsum([len(word.encode()) for word in words])
        ends = ID_BYTES * np.searchsorted(
            np.cumsum(lengths),
            ends_of_words,
            side="right",
        )
        return [ids[start:stop] for start, stop in pairwise([0, *ends.tolist()])]

    def _encode(self, texts: Texts) -> list[bytes]:
        """Return each text's ids as int32 bytes, and compare their bytes with the texts.

        Raises:
            UserError: the tokens do not give back the texts.
        """
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        encoded = [array("i", encoding.ids).tobytes() for encoding in encodings]
        text = "".join(texts)
        if self._decode(array("i", b"".join(encoded))) != text.encode():
            raise UserError(self._loss(text))
        return encoded

    def _decode(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.contents.__getitem__, ids))

    def _loss(self, text: str) -> str:
        """Return why a text's tokens do not give it back."""
        for character in sorted(set(text)):
            content = character.encode()
            encoding = self._tokenizer.encode(character, add_special_tokens=False)
            if content not in self._decode(encoding.ids):
                size = len(content)
                return f"the tokenizer has no token for {character!r} ({size} bytes) of the text"
        return "the tokenizer changes the text: it must have no normalizer and add no spaces"


def _divides_words(state: dict[str, Any]) -> bool:
    """Return whether a tokenizer is known to divide a text before each run of white space, like GPT-2's expression."""
    before = {"use_regex": True, **(state.get("pre_tokenizer") or {}), "trim_offsets": True}
    for token in state.get("added_tokens", ()):
        if token["rstrip"] or not WORD.fullmatch(token["content"]):
            return False
    return before == GPT_2 and state.get("normalizer") in (None, {"type": "NFC"})


def _contents(tokenizer: Tokenizer, state: dict[str, Any]) -> tuple[bytes, ...]:
    """Return every token's bytes by number."""
    layout = json.dumps([state.get("pre_tokenizer"), state.get("decoder")])
    is_byte_level = '"ByteLevel"' in layout
    has_bytes = state["model"].get("byte_fallback")
    vocabulary = tokenizer.get_vocab()
    contents = [b""] * (1 + max(vocabulary.values()))
    added = tokenizer.get_added_tokens_decoder()
    for text, number in vocabulary.items():
        if is_byte_level and number in added:
            contents[number] = text.encode()
        elif is_byte_level:
            contents[number] = bytes(BYTE_OF_CHARACTER[character] for character in text)
        elif has_bytes and re.fullmatch("<0x[0-9A-F]{2}>", text):
            contents[number] = bytes.fromhex(text[3:5])
        else:
            contents[number] = text.replace(WORD_START, " ").encode()
    return tuple(contents)


def train_byte_pairs(texts: Iterable[str], vocab_size: int, least: int = N_BYTES) -> str:
    """Train byte-level BPE on a text and return its `tokenizer.json`: 256 bytes and at most `vocab_size` - 256 merges.

    GPT-2's regular expression cuts the text into words, and no merge crosses words. A word with more than
    `LONGEST_WORD` bytes is cut for training. Equal texts give equal merges.

    Args:
        texts: the text in chunks that may end anywhere.
        vocab_size: most tokens.
        least: fewest tokens.

    Raises:
        OptionError: it has fewer than `least` tokens, as the text is too short, or `least` is below 256.
    """
    by_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_length = pre_tokenizers.FixedLength(LONGEST_WORD)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_words, by_length])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST_COUNT,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_whole_words(texts), trainer)
    size = tokenizer.get_vocab_size()
    if not N_BYTES <= least <= size:
        reason = f"no other pair of tokens occurs {LEAST_COUNT} times in the training split"
        allowed = f"must be in {N_BYTES} … {size}: {reason}"
        raise OptionError("data.vocab_size", vocab_size, allowed)
    tokenizer.pre_tokenizer = by_words
    return str(tokenizer.to_str())


def _whole_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield the same text, cut only before a space or line break after other characters."""
    rest = ""
    for text in texts:
        rest += text
        cut = 0
        for match in BEFORE_WORD.finditer(rest, max(0, len(rest) - PLACES_CHARACTERS)):
            cut = match.start()
        yield rest[:cut]
        rest = rest[cut:]
    yield rest
