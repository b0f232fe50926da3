"""Texts that are typed: encoded as a corpus is, though they go on."""

from __future__ import annotations

from txl_lightning.data.vocabulary import END_OF_LINE, SENTENCE, Vocabulary, close_sentences


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
    return tokens.tolist()
