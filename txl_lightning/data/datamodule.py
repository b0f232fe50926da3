"""DataModule: streams of one corpus for training and evaluation."""

from __future__ import annotations

import lightning as L

from txl_lightning.config.schemas import DataConfig, EvaluationConfig
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.data.streams import Batch, Streams, streams_of
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import UserError, require


class StreamsDataModule(L.LightningDataModule):
    """DataModule with streams of the training split at training lengths and of the others at evaluation lengths.

    A corpus of unordered sentences (lm1b) has `ShuffledStreams`: shuffled again in every epoch of training, in the
    corpus' order in evaluation. With `data.random_start` the training streams of other corpora begin where the seed
    says.

    Args:
        data: corpus, batch size and segment length of training.
        evaluation: batch size, segment length and, if given, extended context of validation and test.
        ext_len: tokens of extended context in front of every training segment.
        vocabulary: encode the corpus with this one instead of its own.
        marked: mark the first token of every document, for `memory.reset=document`.

    Raises:
        OptionError: a split is too short for the batch size and segment length, or has no documents to mark.
        UserError: the corpus cannot be loaded.
    """

    def __init__(
        self,
        data: DataConfig,
        evaluation: EvaluationConfig,
        ext_len: int = 0,
        vocabulary: Vocabulary | None = None,
        marked: bool = False,
    ) -> None:
        super().__init__()
        self.data, self.evaluation, self.ext_len = data, evaluation, ext_len
        self.corpus: Corpus = load_corpus(data, vocabulary, marked)
        if marked:
            allowed = "must match the first lines of documents: with memory.reset=document the training split needs at "
            several = len(self.corpus.documents["train"]) > 1
            require(
                several, "data.document_start", data.document_start, f"{allowed}least two documents"
            )
        n_tokens, needed = (
            len(self.corpus.splits["train"]),
            data.batch_size * (data.segment_len + 1),
        )
        if n_tokens < needed:
            most = n_tokens // (data.segment_len + 1)
            helps = (
                f"data.batch_size={most}"
                if most
                else f"data.batch_size=1 data.segment_len={n_tokens - 1}"
            )
            streams = (
                f"{data.batch_size} streams of a segment of {data.segment_len} tokens and a target"
            )
            short = f"the training split has {n_tokens:,} tokens, and {streams} need {needed:,}"
            raise UserError(f"{self.corpus.name} is short: {short}; {helps} fits")
        for split in SPLITS:
            self.streams(split)

    def streams(self, split: str) -> Streams:
        """Return the streams of a split for this process.

        Args:
            split: train, valid or test.
        """
        place = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        if split != "train":
            ext_len = self.ext_len if self.evaluation.ext_len is None else self.evaluation.ext_len
            return streams_of(self.corpus, split, self.evaluation, ext_len, *place)
        seed = self.data.seed if self.data.random_start or self.corpus.sentences else None
        return streams_of(self.corpus, split, self.data, self.ext_len, *place, seed)

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Copy a batch for a GPU into pinned memory, from which Lightning copies it while the GPU works on."""
        if self.trainer is None or self.trainer.strategy.root_device.type != "cuda":
            return batch
        # A view is made contiguous first: copying it would go through memory that is not pinned.
        tokens, targets = (part.contiguous().pin_memory() for part in (batch.tokens, batch.targets))
        return batch._replace(tokens=tokens, targets=targets, known_targets=batch.targets.numpy())

    def train_dataloader(self) -> Streams:
        return self.streams("train")

    def val_dataloader(self) -> Streams:
        return self.streams("valid")

    def test_dataloader(self) -> Streams:
        return self.streams("test")
