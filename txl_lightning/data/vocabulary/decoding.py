"""Tokens to text as they come, one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from txl_lightning.data.vocabulary.symbols import END_OF_LINE, SENTENCE, Vocabulary


class StreamDecoder:
    """`Vocabulary.decode` in pieces: what `feed` and `finish` return is, put together, the text of all tokens.

    Bytes wait until their UTF-8 character is complete; those that cannot be part of one become replacement
    characters. A word brings the space in front of it.

    Args:
        vocabulary: of the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._end = SENTENCE if vocabulary.starts_sentences else END_OF_LINE
        self._space = ""  # what stands in front of the next word

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that is certain now and was not before."""
        return "".join(self._piece(int(token)) for token in tokens)

    def finish(self) -> str:
        """What is left of a character that was never completed."""
        return self._characters.decode(b"", final=True) if self.vocabulary.level == "byte" else ""

    def _piece(self, token: int) -> str:
        if self.vocabulary.level == "byte":
            symbols = self.vocabulary.symbols
            return self._characters.decode(symbols[token].encode("latin-1") if symbols else bytes([token]))
        symbol = self.vocabulary.symbols[token]
        if self.vocabulary.level == "char":
            return symbol
        if symbol == self._end:
            self._space = ""
            return "\n"
        piece, self._space = self._space + symbol, " "
        return piece
