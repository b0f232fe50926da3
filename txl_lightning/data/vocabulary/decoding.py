"""Decode a stream of tokens into text, token by token."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from txl_lightning.data.vocabulary.symbols import END_OF_LINE, SENTENCE, Vocabulary


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
