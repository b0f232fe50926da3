"""One score for every line, document or token of a text, with the memory carried or each from a fresh one.

The table `PERs_SPLIT.tsv` or `.parquet` has a row for each unit, in text order

    place       number of the line, document or token in the split, from 1
    text        without the line break at its end; in TSV backslash, tab, LF and CR are written as in C
    tokens      those that are scored: not the first one of a stream or, from a fresh memory, of the unit
    nats        sum of their losses; empty if none is scored
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from txl_lightning.data.corpus import WHOLE, Corpus, corpus_source, id_documents, split_documents, start_pattern
from txl_lightning.data.vocabulary import SENTENCE, Vocabulary, close_sentences, without_marks
from txl_lightning.errors import notice, require
from txl_lightning.evaluation.losses import SEGMENT_TOKENS, TokenLosses, device_of
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocols import Carried
from txl_lightning.files import write_atomically, write_text
from txl_lightning.runs.hardware import autocast
from txl_lightning.runs.trained import TrainedModel, text_options

LINE = re.compile(rb"[^\n]*\n|[^\n]+")
ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
MOST_SHOWN = 5  # characters that the vocabulary lacks


@dataclass(frozen=True)
class Units:
    """Lines, documents or tokens of a split.

    Args:
        texts: of every unit, U.
        tokens: of every unit alone; empty if only `bounds` are needed.
        bounds: position in the split of the first token of every unit, and the number of all tokens, [U + 1].
        closing: `<S>` that begins the next sentence, which counts to the one before; empty without.
    """

    texts: list[str]
    tokens: list[np.ndarray]
    bounds: np.ndarray
    closing: np.ndarray

    def write(self, losses: TokenLosses, path: Path) -> None:
        """Write the table of these losses, in the format of the path's ending."""
        unit_P = np.searchsorted(self.bounds, losses.positions - len(self.closing), side="right") - 1
        tokens, sums = (np.bincount(unit_P, of, len(self.texts)).tolist() for of in (None, losses.nll))
        nats = [total if n else None for total, n in zip(sums, tokens, strict=True)]
        columns = {"place": range(1, len(nats) + 1), "text": self.texts, "tokens": tokens, "nats": nats}
        if path.suffix == ".parquet":
            import pyarrow.parquet  # comes with `datasets`; few need it

            write_atomically(path, partial(pyarrow.parquet.write_table, pyarrow.table(columns)))
            return
        rows = (["" if value is None else str(value) for value in row] for row in zip(*columns.values(), strict=True))
        lines = ("\t".join(value.translate(ESCAPES) for value in row) for row in [columns, *rows])
        write_text(path, "".join(f"{line}\n" for line in lines))


def units_of(trained: TrainedModel, corpus: Corpus, split: str, options: EvaluateOptions) -> Units:
    """Return the lines, documents or tokens of a split; name the characters that the vocabulary lacks.

    Raises:
        OptionError: ids have no lines.
    """
    vocabulary, data, none = trained.vocabulary, trained.config.data, np.zeros(0, np.int64)
    if options.data_path is not None:
        data = text_options(trained, options.data_path)
    parts, pattern = corpus_source(data, split == WHOLE)[0].parts[split], start_pattern(data.document_start)
    closing = np.array([vocabulary.numbers[SENTENCE]]) if vocabulary.starts_sentences else none
    read_K, contents = without_marks(corpus.splits[split]), []
    if vocabulary.level == "ids":
        require(options.per != "line", "per", "line", "must be document or token: ids have no lines")
    else:
        contents = [*split_documents(parts, pattern)]
        _report_missing(vocabulary, b"".join(contents), f"{corpus.name}, {split}")
    if options.per == "token":
        shown_V = [vocabulary.decode_bytes([token]) for token in range(len(vocabulary))]
        texts = [shown_V[token].decode(errors="backslashreplace") for token in [*read_K.tolist(), *closing.tolist()]]
        return Units(texts, [], np.arange(len(texts) + 1), none)
    if vocabulary.level == "ids":
        lengths, begins = zip(*((len(ids), at) for ids, at in id_documents(parts, vocabulary, pattern)), strict=True)
        starts = np.concatenate([at + before for at, before in zip(begins, accumulate((0, *lengths)), strict=False)])
        tokens = np.split(read_K, starts[1:])
        return Units(list(map(vocabulary.decode, tokens)), tokens, np.append(starts, len(read_K)), none)
    if options.per == "line":
        contents = [line for document in contents for line in LINE.findall(document)]
    texts = [content.decode(errors="replace").removesuffix("\n").removesuffix("\r") for content in contents]
    if vocabulary.level == "bpe" and options.unit_memory == "carried":  # a token counts where it begins
        bytes_K = vocabulary.byte_lengths[read_K]  # type: ignore[index]
        bounds = np.searchsorted(np.cumsum(bytes_K) - bytes_K, np.cumsum([0, *map(len, contents)]))
        return Units(texts, [], bounds, none)
    tokens = list(map(vocabulary.encode, contents))
    if trained.closed_sentences:
        tokens = [close_sentences(of_unit, closing[0])[0] for of_unit in tokens]
    return Units(texts, tokens, np.cumsum([0, *map(len, tokens)]), closing)


def context_of(vocabulary: Vocabulary, context: str | None) -> np.ndarray:
    """Return the tokens of a text to read before units, none without a text; of a symbol of the vocabulary its number.

    Raises:
        OptionError: the text has no token, or units begin with `<S>` anyway.
    """
    if context is None:
        return np.zeros(0, np.int64)
    require(not vocabulary.starts_sentences, "unit_context", context, f"must be null: sentences begin with {SENTENCE}")
    number = vocabulary.numbers.get(context)
    tokens = vocabulary.encode(context.encode()) if number is None else [number]
    require(len(tokens) > 0, "unit_context", context, "has no token of the vocabulary")
    return np.asarray(tokens, dtype=np.int64)


def _report_missing(vocabulary: Vocabulary, content: bytes, name: str) -> None:
    if vocabulary.level in ("byte", "char") and vocabulary.symbols:
        counts = Counter(content.decode("utf-8" if vocabulary.level == "char" else "latin-1"))
        missing = Counter({symbol: n for symbol, n in counts.items() if symbol not in vocabulary.numbers})
        shown = ", ".join(f"{symbol!r} {n:,}" for symbol, n in missing.most_common(MOST_SHOWN))
        how = "left out" if vocabulary.unknown < 0 else "read as <unk>"
        if missing:
            notice(f"{name}: {missing.total():,} characters are not in the vocabulary, {how}; such as {shown}")


@dataclass(frozen=True)
class Fresh:
    """Protocol in which every unit is a stream of its own: its losses are those of a text that is this unit.

    Args:
        carried: lengths and precision.
        units: of every split.
        per: name of a unit.
        before: tokens read before every unit, K: its first token is then scored too.
    """

    carried: Carried
    units: dict[str, Units]
    per: str
    before: np.ndarray

    def corpus(self, corpus: Corpus) -> Corpus:
        """Return the corpus with the tokens of every unit alone, one unit after another."""
        return replace(corpus, splits={split: np.concatenate(of.tokens) for split, of in self.units.items()})

    def losses(self, corpus: Corpus, split: str) -> TokenLosses:
        """Score the units of a split."""
        with torch.no_grad(), autocast(self.carried.precision, device_of(self.carried.trained.model)):
            return self._losses(self.carried.model(), split)

    def _losses(self, model: Any, split: str) -> TokenLosses:
        started, units, given = time.perf_counter(), self.units[split], self.carried.evaluation
        T, lengths, most = given.segment_len, self.carried.lengths, given.max_segments
        whole = (np.concatenate([self.before, of_unit, units.closing]) for of_unit in units.tokens)
        texts = [torch.from_numpy(tokens.astype(np.int64)) for tokens in whole]
        K, unscored = len(self.before), max(0, len(self.before) - 1)  # the first targets are of the context
        firsts_U, targets_U = units.bounds[:-1] - K, np.array([max(unscored, len(text) - 1) for text in texts])
        scored_U = targets_U - unscored
        targets_U *= scored_U > 0
        allowed = f"no {self.per} of {split} has two tokens, to score the second: unit_context= scores the first"
        require(bool(targets_U.any()), "per", self.per, allowed)
        n_U = targets_U * (firsts_U + K < (np.inf if most is None else most * T * given.batch_size))
        nll_P = torch.zeros(int(units.bounds[-1]) + len(units.closing), dtype=torch.float64)
        scored_P = torch.zeros(len(nll_P), dtype=torch.bool)
        for members in _batches(n_U, T + (lengths.memory or 0), model.takes_lengths):
            text_BT = pad_sequence([texts[unit] for unit in members], batch_first=True).to(device_of(model))
            n_B, first_B = torch.from_numpy(n_U[members]), torch.from_numpy(firsts_U[members])
            memory: Any = None
            for start in range(0, int(n_B[-1]), T):
                if start and n_B[0] <= start:  # those that ended are not read on
                    going = (n_B > start).nonzero().squeeze(1)
                    text_BT, n_B, first_B = text_BT[going], n_B[going], first_B[going]
                    memory = memory.select(going.to(text_BT.device))
                begin, stop = max(0, start - lengths.extended), min(start + T, int(n_B[-1]))
                lengths_B = (n_B - begin).clamp(max=stop - begin)
                unequal = [lengths_B.to(text_BT.device)] if int(lengths_B[0]) < stop - begin else []
                segment = text_BT[:, begin:stop], text_BT[:, start + 1 : stop + 1]
                nll_BT, memory = model.score(*segment, memory, *unequal)
                places_T = torch.arange(start, stop)
                real_BT = (places_T >= unscored) & (places_T < n_B[:, None])
                at = (first_B[:, None] + 1 + places_T)[real_BT]
                nll_P[at], scored_P[at] = nll_BT.cpu().double()[real_BT], True
        positions = scored_P.nonzero().squeeze(1).numpy()
        left_out = {"first_of_streams": len(nll_P) - int(scored_U.sum()), "trimmed": 0}
        left_out["max_segments"] = int((scored_U * (n_U == 0)).sum())
        return TokenLosses(nll_P.numpy()[positions], positions, left_out, time.perf_counter() - started)

    def settings(self) -> dict[str, Any]:
        """Return all lengths and the precision (`Protocol`)."""
        own = {"batch_size": None, "fresh_for": self.per, "unit_context": self.before.tolist()}
        return {**self.carried.settings(), **own}


def _batches(n_U: np.ndarray, longest: int, together: bool) -> Iterator[np.ndarray]:
    """Yield units by length, of equal length unless `together`; those without targets are left out."""
    order = np.argsort(n_U, kind="stable")
    order = order[n_U[order] > 0]
    while len(order):
        n_O = n_U[order[:SEGMENT_TOKENS]]
        fits = np.minimum(n_O, longest) * np.arange(1, len(n_O) + 1) <= SEGMENT_TOKENS
        size = max(1, int((fits & (together | (n_O == n_O[0]))).sum()))
        yield order[:size]
        order = order[size:]
