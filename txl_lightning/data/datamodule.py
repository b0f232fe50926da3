"""DataModule: one corpus as streams for training and evaluation."""

from __future__ import annotations

import lightning as L

from txl_lightning.config.schemas import DataConfig, EvaluationConfig
from txl_lightning.data.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.data.streams import Batch, Streams, streams_of
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import require


class StreamsDataModule(L.LightningDataModule):
    """DataModule with training streams at training lengths and the other splits at evaluation lengths.

    A corpus of unordered sentences (lm1b) has `ShuffledStreams`: shuffled again in every training epoch, in the
    corpus's order in evaluation. With `data.random_start` other corpora's training streams begin where the seed says.

    Args:
        data: corpus, batch size and training segment length.
        evaluation: batch size, segment length and, if given, extended context for validation and test.
        ext_len: extended context before every training segment, in tokens.
        vocabulary: encode the corpus with this one instead of the one it makes.
        marked: mark each document's first token, for `memory.reset=document`.

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
        self.data = data
        self.evaluation = evaluation
        self.ext_len = ext_len
        self.corpus: Corpus = load_corpus(data, vocabulary, marked)
        require(
            len(self.corpus.documents["train"]) > 1 or not marked,
            "data.document_start",
            data.document_start,
            "must match the first lines of documents: the training split needs two at least",
        )
        n_tokens = len(self.corpus.splits["train"])
        most = n_tokens // (data.segment_len + 1)
        allowed = f"must be at most {most}: the training split has {n_tokens:,} tokens"
        require(
            data.batch_size <= most,
            "data.batch_size",
            data.batch_size,
            f"{allowed}, and a stream needs data.segment_len={data.segment_len} and a target",
        )
        for split in SPLITS:
            self.streams(split)

    def streams(self, split: str) -> Streams:
        """Return a split's streams for this process.

        Args:
            split: train, valid or test.
        """
        rank = 0
        world_size = 1
        if self.trainer:
            rank = self.trainer.global_rank
            world_size = self.trainer.world_size
        sizes: DataConfig | EvaluationConfig = self.evaluation
        ext_len = self.evaluation.ext_len
        seed = None
        if split == "train":
            sizes = self.data
            ext_len = None
            if self.data.random_start or self.corpus.sentences:
                seed = self.data.seed
        if ext_len is None:
            ext_len = self.ext_len
        return streams_of(self.corpus, split, sizes, ext_len, rank, world_size, seed)

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Copy a batch for a GPU into pinned memory, from which Lightning copies it while the GPU works on."""
        if self.trainer is None or self.trainer.strategy.root_device.type != "cuda":
            return batch
        # A view is made contiguous first: copying it would go through memory that is not pinned.
        tokens = batch.tokens.contiguous().pin_memory()
        targets = batch.targets.contiguous().pin_memory()
        return batch._replace(tokens=tokens, targets=targets, known_targets=batch.targets.numpy())

    def train_dataloader(self) -> Streams:
        return self.streams("train")

    def val_dataloader(self) -> Streams:
        return self.streams("valid")

    def test_dataloader(self) -> Streams:
        return self.streams("test")
