"""Texts that are typed or drawn: encoded as a corpus is, though they go on, and where a document begins in them."""

from __future__ import annotations

import re

from txl_lightning.data.vocabulary import END_OF_LINE, SENTENCE, Vocabulary, close_sentences
from txl_lightning.evaluation.trained import TrainedModel

Pattern = re.Pattern[bytes]


def encode_open(vocabulary: Vocabulary, text: str, closed: bool = False) -> list[int]:
    """Encode a text that goes on: words end their line only if the text ends with a line break.

    Args:
        vocabulary: the checkpoint's vocabulary.
        text: the text.
        closed: put `<S>` at sentence ends too.

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
    """Return `data.document_start` for a run with `memory.reset=document`; None where documents have no pattern."""
    start = trained.config.data.document_start
    if trained.config.memory.reset != "document" or start is None:
        return None
    return re.compile(start.encode(), re.MULTILINE)


def last_document(text: str, pattern: Pattern | None) -> str:
    """Return the text from the last line in which a match of the pattern begins."""
    if pattern is None:
        return text
    content = text.encode()
    start = 0
    for match in pattern.finditer(content):
        start = content.rfind(b"\n", 0, match.start()) + 1
    return content[start:].decode()


def begun_document(
    document: list[int], vocabulary: Vocabulary, pattern: Pattern | None
) -> list[int]:
    """Return the tokens of the document that begins at the end of a document; none if it goes on.

    A line that matches `data.document_start` begins a document once it is complete; an id that matches, at once.
    """
    last = document[-1:]
    text = vocabulary.decode(last)
    if pattern is None or (vocabulary.level != "ids" and not text.endswith("\n")):
        return []
    if vocabulary.level == "ids":
        names = (text, str(last[0]))
        is_start = any(pattern.fullmatch(name.encode()) for name in names)
        return last if is_start else []
    start = len(document) - 1
    while start > 0 and not vocabulary.decode(document[start - 1 : start]).endswith("\n"):
        start -= 1
    line = document[start:]
    if start > 0 and pattern.search(vocabulary.decode(line).encode()):
        return line
    return []
