"""Texts that are typed: encoded as a corpus is, though they go on, and divided into documents."""

from __future__ import annotations

import re
from itertools import pairwise

from txl_lightning.data.vocabulary import END_OF_LINE, SENTENCE, Vocabulary, close_sentences
from txl_lightning.evaluation.trained import TrainedModel

Pattern = re.Pattern[bytes]


def encode_open(vocabulary: Vocabulary, text: str, closed: bool = False) -> list[int]:
    """Encode a text that goes on: words end their line only if the text ends with a line break.

    Args:
        vocabulary: vocabulary of the checkpoint.
        text: the text.
        closed: put `<S>` at the ends of sentences too.

    Raises:
        UserError: the vocabulary lacks a character, and has no `<unk>`.
    """
    if not text:
        return []
    tokens = vocabulary.encode(text.encode())
    if closed:
        tokens, _ = close_sentences(tokens, vocabulary.numbers[SENTENCE])
    ends_its_line = closed or (vocabulary.level == "word" and END_OF_LINE in vocabulary.numbers)
    if ends_its_line and not text.endswith("\n"):
        tokens = tokens[:-1]
    return [int(token) for token in tokens]


def document_pattern(trained: TrainedModel) -> Pattern | None:
    """Return `data.document_start` of a run with `memory.reset=document`; None where documents have no pattern."""
    start = trained.config.data.document_start
    if trained.config.memory.reset != "document" or start is None:
        return None
    return re.compile(start.encode(), re.MULTILINE)


def split_documents(text: str, pattern: Pattern | None) -> list[str]:
    """Divide a text before every line, but for the first, in which a match of the pattern begins."""
    if pattern is None:
        return [text]
    content = text.encode()
    starts = {0}
    for match in pattern.finditer(content):
        starts.add(content.rfind(b"\n", 0, match.start()) + 1)
    edges = [*sorted(starts), len(content)]
    return [content[start:stop].decode() for start, stop in pairwise(edges)]


class OpenDocument:
    """Tokens of the document that is being written: all that a model sees which resets its memory.

    A drawn line that matches `data.document_start` begins a document once it is complete; an id that matches, at once.

    Args:
        tokens: tokens of a prompt; negative ones, -1 - token, begin a document.
        vocabulary: vocabulary of the tokens.
        pattern: pattern of `data.document_start`.
    """

    def __init__(self, tokens: list[int], vocabulary: Vocabulary, pattern: Pattern) -> None:
        self.vocabulary = vocabulary
        self.pattern = pattern
        self.tokens: list[int] = []
        self.line_start = 0
        for token in tokens:
            if token < 0:
                self.tokens = []
                self.line_start = 0
                token = -1 - token
            self.tokens.append(token)
            if self._ends_line(token):
                self.line_start = len(self.tokens)

    def add(self, token: int) -> bool:
        """Add a drawn token; return whether a document has begun, so that `tokens` are shorter."""
        self.tokens.append(token)
        if self.vocabulary.level == "ids":
            names = {str(token), self.vocabulary.decode([token])}
            if not any(self.pattern.fullmatch(name.encode()) for name in names):
                return False
            self.tokens = [token]
            return True
        if not self._ends_line(token):
            return False
        line = self.vocabulary.decode(self.tokens[self.line_start :]).encode()
        begins = self.line_start > 0 and self.pattern.search(line) is not None
        if begins:
            self.tokens = self.tokens[self.line_start :]
        self.line_start = len(self.tokens)
        return begins

    def _ends_line(self, token: int) -> bool:
        return self.vocabulary.level != "ids" and self.vocabulary.decode([token]).endswith("\n")
