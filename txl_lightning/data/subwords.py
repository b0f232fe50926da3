"""Subwords: the tokens that `Tokenizer.encode` gives for whole documents, however they are read; BPE training."""

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
LONGEST_WORD = 1024  # training is quadratic in a word's length, so longer ones are cut
# Byte-level tokenizers write a byte as the character with its number if that is printable, else as one from 256 on.
PRINTABLE = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
OTHERS = [byte for byte in range(N_BYTES) if byte not in PRINTABLE]
BYTE_OF_CHARACTER = {chr(byte): byte for byte in PRINTABLE}
BYTE_OF_CHARACTER |= {chr(N_BYTES + n): byte for n, byte in enumerate(OTHERS)}
WORD_START = "▁"  # stands for a space in SentencePiece's tokenizers
# White space before other characters: GPT-2's expression always divides a text before such a run. Python's white space
# equals the expression's, except for the separators 1c to 1f.
WORD = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+")
BEFORE_WORD = re.compile(r"(?<=[^\s\x1c-\x1f])(?=[ \n])")
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
            self._tokenizer = Tokenizer.from_str(tokenizer)
            state = json.loads(tokenizer)
            contents = _contents(self._tokenizer, state)
        except Exception as error:  # the library raises a plain one for a file that it cannot read
            reason = str(error) if isinstance(error, UserError) else repr(error)
            kind = "is not a byte-level tokenizer.json, like GPT-2's"
            raise UserError(f"{kind} ({reason})") from error
        self.contents = tuple(contents.get(number, b"") for number in range(1 + max(contents)))
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
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
            texts = [rest + texts[0], *texts[1:]]
            last = texts[-1]
            cut = self._find_cut(last)
            rest = last[cut:]
            texts[-1] = last[:cut]
            yield self._encode_texts(context, texts)
            if cut > 0:
                context = last[cut - CONTEXT_CHARACTERS : cut]
            elif len(texts) > 1:
                context = ""
        yield self._encode_texts(context, [rest])

    def _find_cut(self, text: str) -> int:
        """Return a place near a long text's end where its ids do not change, or 0."""
        if len(text) < PART_CHARACTERS:
            return 0
        end = len(text) - CONTEXT_CHARACTERS
        places = [match.start() for match in CUT.finditer(text, end - PLACES_CHARACTERS, end)]
        for place in reversed(places):
            before = text[place - CONTEXT_CHARACTERS : place]
            after = text[place : place + CONTEXT_CHARACTERS]
            ids, ids_of_both = self._ids([before, before + after])
            if ids_of_both.startswith(ids):
                return place
        return 0

    def _encode_texts(self, context: str, texts: Texts) -> Tokens:
        """Return the texts' tokens; the first text follows a context from the same document."""
        encoded = self._ids([context + texts[0], *texts[1:]])
        (ids_of_context,) = self._ids([context])
        if not encoded[0].startswith(ids_of_context):
            reason = "reads a long run of this text as one word: put spaces into it"
            raise UserError(f"the tokenizer {reason}")
        encoded[0] = encoded[0][len(ids_of_context) :]
        tokens = np.frombuffer(b"".join(encoded), np.int32)
        ends = np.cumsum([len(ids) for ids in encoded], dtype=np.int64) // ID_BYTES
        return tokens, ends[:-1]

    def _ids(self, texts: Texts) -> list[bytes]:
        """Return each text's ids as int32 bytes; a word by GPT-2's expression is encoded once."""
        if not self._has_words:
            return self._encode(texts)
        words_of_texts = [WORD.findall(text) for text in texts]
        if len(self._ids_of_word) > MOST_WORDS:
            self._ids_of_word = {}
        new = set(chain.from_iterable(words_of_texts)).difference(self._ids_of_word)
        spaced = [word for word in new if word[0].isspace() and not word[-1].isspace()]
        self._remember(spaced)
        others = [*new.difference(spaced)]
        self._ids_of_word.update(zip(others, self._encode(others), strict=True))
        return [b"".join(map(self._ids_of_word.__getitem__, words)) for words in words_of_texts]

    def _remember(self, words: Texts) -> None:
        """Encode words after white space as one text (quicker); the tokenizer divides it before each."""
        (ids,) = self._encode(["".join(words)])
        lengths = [len(self.contents[token]) for token in array("i", ids)]
        ends = np.cumsum([len(word.encode()) for word in words])
        n_tokens = np.searchsorted(np.cumsum(lengths), ends, side="right")
        start = 0
        for word, stop in zip(words, (ID_BYTES * n_tokens).tolist(), strict=True):
            self._ids_of_word[word] = ids[start:stop]
            start = stop

    def _encode(self, texts: Texts) -> list[bytes]:
        """Return each text's ids as int32 bytes, and compare their bytes with the texts.

        Raises:
            UserError: the tokens do not give back the texts.
        """
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        encoded = [array("i", encoding.ids).tobytes() for encoding in encodings]
        contents = map(self.contents.__getitem__, array("i", b"".join(encoded)))
        text = "".join(texts)
        if b"".join(contents) != text.encode():
            raise UserError(self._loss(text))
        return encoded

    def _loss(self, text: str) -> str:
        """Return why a text's tokens do not give it back."""
        lost = []
        for character in sorted(set(text)):
            content = character.encode()
            ids = self._tokenizer.encode(character, add_special_tokens=False).ids
            decoded = b"".join(self.contents[number] for number in ids)
            if content not in decoded:
                lost.append(f"{character!r} ({len(content)} bytes)")
        if lost:
            return f"the tokenizer has no token for {', '.join(lost[:8])} of the text"
        return "the tokenizer changes the text: it must have no normalizer and add no spaces"


def _divides_words(state: dict[str, Any]) -> bool:
    """Return whether a tokenizer is known to divide a text before each run of white space, like GPT-2's expression."""
    before = state.get("pre_tokenizer") or {}
    is_gpt2 = before.get("type") == "ByteLevel" and before.get("use_regex", True)
    if not is_gpt2 or before["add_prefix_space"]:
        return False
    if state.get("normalizer") not in (None, {"type": "NFC"}):
        return False
    added = state.get("added_tokens", ())
    return all(WORD.fullmatch(token["content"]) and not token["rstrip"] for token in added)


def _contents(tokenizer: Tokenizer, state: dict[str, Any]) -> dict[int, bytes]:
    """Return every token's bytes by number."""
    layout = json.dumps([state.get("pre_tokenizer"), state.get("decoder")])
    is_byte_level = '"ByteLevel"' in layout
    is_like_sentencepiece = re.search('"(Metaspace|ByteFallback|Replace)"', layout)
    model = state["model"]
    is_known = model.get("type", "BPE") in ("BPE", "Unigram") and is_like_sentencepiece
    if not is_byte_level and not is_known:
        raise UserError("it is neither byte-level nor of SentencePiece's kind")
    contents: dict[int, bytes] = {}
    for number, token in tokenizer.get_added_tokens_decoder().items():
        contents[number] = token.content.encode()
    for text, number in tokenizer.get_vocab(with_added_tokens=False).items():
        byte = re.fullmatch("<0x([0-9A-F]{2})>", text)
        is_added = number in contents
        if is_byte_level and not is_added:
            contents[number] = bytes(BYTE_OF_CHARACTER[character] for character in text)
        elif byte and model.get("byte_fallback"):
            contents[number] = bytes.fromhex(byte[1])
        elif not is_added or not text.strip(WORD_START):  # Gemma adds runs of spaces too
            contents[number] = text.replace(WORD_START, " ").encode()
    return contents


def train_byte_pairs(texts: Iterable[str], vocab_size: int, least: int = N_BYTES) -> str:
    """Train byte-level BPE on a text and return its `tokenizer.json`: 256 bytes and at most `vocab_size` - 256 merges.

    GPT-2's regular expression cuts the text into words, and no merge crosses words. A word with more than
    `LONGEST_WORD` bytes is cut for training. Equal texts give equal merges.

    Args:
        texts: the text in chunks that may end anywhere.
        vocab_size: most tokens.
        least: fewest tokens.

    Raises:
        OptionError: it has fewer than `least` tokens, as the text is too short.
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
    if size < least:
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
