"""Documents of a text: where they begin, and the mark of the token that begins one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.data.own_files import chunks_of_ids, ids_of
from txl_lightning.data.sources import Part, read
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError

Pattern = re.Pattern[bytes]


def start_pattern(document_start: str | None) -> Pattern:
    """Compile the regular expression `data.document_start`, which matches nowhere if it is null.

    `^` and `$` are the ends of lines, with either line break.

    Raises:
        OptionError: it is not a regular expression.
    """
    try:
        return re.compile((document_start or "(?!)").encode(), re.MULTILINE)
    except re.error as error:
        raise OptionError("data.document_start", document_start, f"must be a regular expression ({error})") from error


def split_documents(parts: Iterable[Part], pattern: Pattern | None) -> Iterator[Iterable[bytes]]:
    """Yield the text of every document in chunks.

    A document begins with every part, and with every line in which a match of the pattern begins. With a pattern each
    file is held in memory at once.

    Raises:
        UserError: a file cannot be read.
    """
    for part in parts:
        if pattern is None:
            yield read([part])
        else:
            text = b"".join(read([part]))
            plain = text.replace(b"\r\n", b"\n")  # `$` is before either
            ends, of_plain = (np.flatnonzero(np.frombuffer(content, np.uint8) == 10) for content in (text, plain))
            lines = {int(np.searchsorted(of_plain, match.start())) for match in pattern.finditer(plain)}
            starts = {0, *(int(ends[line - 1]) + 1 for line in lines if line)}
            yield from ([text[start:stop]] for start, stop in pairwise([*sorted(starts), len(text)]))


def id_documents(
    parts: Iterable[Part], vocabulary: Vocabulary, pattern: Pattern | None
) -> Iterator[Iterator[np.ndarray]]:
    """Yield the ids of every document in chunks.

    A document begins with every part, and with every id whose number or name is a match of the pattern.
    """
    named = ((number, text.encode()) for number, name in enumerate(vocabulary.symbols) for text in (name, str(number)))
    first = [number for number, text in named if pattern and pattern.fullmatch(text)]
    for part in parts:
        ids = ids_of(part)
        starts = {0, *(np.flatnonzero(np.isin(ids, first)).tolist() if first else ())}
        yield from (chunks_of_ids(ids[start:stop]) for start, stop in pairwise([*sorted(starts), len(ids)]))


def mark(tokens: np.ndarray, places: Any) -> NDArray[np.int32]:
    """Return the tokens with those at `places` as -1 - token, which tells the model that a document begins there."""
    marked = tokens.astype(np.int32)
    marked[places] = ~marked[places]
    return marked


def without_marks(tokens: np.ndarray) -> NDArray[np.int64]:
    """Return the token numbers of tokens of which some are marked."""
    plain = tokens.astype(np.int64)
    return np.maximum(plain, ~plain)


def close_sentences(tokens: np.ndarray, sentence: int) -> tuple[np.ndarray, NDArray[np.int64]]:
    """Return tokens of whole sentences with `<S>` at their ends too, and the position of each sentence's first token.

    Args:
        tokens: token numbers of sentences that begin with `<S>`.
        sentence: token number of `<S>`.
    """
    starts = np.flatnonzero(tokens == sentence)
    ends = [*starts[1:], len(tokens)][: len(starts)]
    return np.insert(tokens, ends, sentence), starts + np.arange(len(starts))
