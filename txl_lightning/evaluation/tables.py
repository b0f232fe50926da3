"""One score for every line, document or token in a text: `txl evaluate per=line`.

The table `PERs_SPLIT.tsv` has a row for each unit, in text order

    place       number of the line, document or token in the split, from 1
    text        as the vocabulary decodes it, without the line break at its end; backslash, tab, LF and CR as in C
    tokens      number of scored tokens: not the first one of a stream
    nats        sum of their losses; empty if none is scored
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from txl_lightning.data.corpus import Corpus
from txl_lightning.data.vocabulary import END_OF_LINE, Vocabulary, without_marks
from txl_lightning.errors import require
from txl_lightning.evaluation.losses import Integers, TokenLosses, text_units
from txl_lightning.files import write_text

ESCAPES = str.maketrans(
    {
        "\\": r"\\",
        "\t": r"\t",
        "\n": r"\n",
        "\r": r"\r",
    }
)


def write_units(per: str, corpus: Corpus, split: str, losses: TokenLosses, directory: Path) -> str:
    """Write the table with a split's lines, documents or tokens; return the file name.

    Raises:
        OptionError: the tokens have no line breaks.
    """
    vocabulary = corpus.vocabulary
    tokens = without_marks(corpus.splits[split])
    sentences = corpus.sentences.get(split)
    positions = losses.positions
    if per == "token":
        texts = token_texts(vocabulary, tokens)
        units = positions % len(tokens)  # the `<S>` after the last sentence is the first token
    elif sentences is not None:
        texts = texts_from_starts(vocabulary, tokens, sentences)
        units, _ = text_units(positions, sentences, block_len=1)
    elif per == "document":
        starts = corpus.documents[split]
        texts = texts_from_starts(vocabulary, tokens, starts)
        units = np.searchsorted(starts, positions, side="right") - 1
    else:
        units = lines_of_tokens(vocabulary, tokens)[positions]
        text = vocabulary.decode(tokens).replace("\r\n", "\n").removesuffix("\n")
        texts = text.split("\n")
    counts = np.bincount(units, minlength=len(texts)).tolist()
    sums = np.bincount(
        units,
        losses.nll,
        len(texts),
    ).tolist()
    rows = []
    for place, text in enumerate(texts):
        nats = sums[place] if counts[place] else ""
        rows.append([place + 1, text, counts[place], nats])
    name = f"{per}s_{split}.tsv"
    write_tsv(directory / name, ["place", "text", "tokens", "nats"], rows)
    return name


def token_texts(vocabulary: Vocabulary, tokens: Integers) -> list[str]:
    """Return every token's text; bytes that are no whole character are escaped."""
    texts = []
    for token in range(len(vocabulary)):
        symbol = vocabulary.decode_bytes([token])
        texts.append(symbol.decode(errors="backslashreplace"))
    return [texts[token] for token in tokens.tolist()]


def texts_from_starts(vocabulary: Vocabulary, tokens: Integers, starts: np.ndarray) -> list[str]:
    """Return the text from every start to the next."""
    return [vocabulary.decode(part).strip("\n") for part in np.split(tokens, starts[1:])]


def lines_of_tokens(vocabulary: Vocabulary, tokens: Integers) -> Integers:
    """Return the line number, from 0, in which every token begins.

    Raises:
        OptionError: ids have no lines, or the vocabulary has no line break.
    """
    require(
        vocabulary.level != "ids", "per", "line", "must be document or token: ids have no lines"
    )
    breaks_V = np.zeros(len(vocabulary), dtype=np.int64)
    if vocabulary.level == "word":
        breaks_V[vocabulary.numbers[END_OF_LINE]] = 1
    else:
        for token in range(len(vocabulary)):
            breaks_V[token] = vocabulary.decode_bytes([token]).count(b"\n")
    require(
        bool(breaks_V.any()),
        "per",
        "line",
        "must be token: the vocabulary of the checkpoint has no line break",
    )
    breaks_K = breaks_V[tokens]
    return np.cumsum(breaks_K) - breaks_K


def write_tsv(path: Path, header: list[str], rows: Iterable[list[object]]) -> None:
    """Write a table with a tab between cells, special characters in them escaped."""
    lines = ["\t".join(header)]
    for row in rows:
        cells = [str(cell).translate(ESCAPES) for cell in row]
        lines.append("\t".join(cells))
    write_text(path, "\n".join(lines) + "\n")
