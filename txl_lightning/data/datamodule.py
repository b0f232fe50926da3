"""The DataModule: ordered streams of one corpus for training and evaluation."""

from __future__ import annotations

import lightning as L

from txl_lightning.config import DataConfig, EvaluationConfig
from txl_lightning.data.corpora import Corpus, load_corpus
from txl_lightning.data.streams import OrderedStreams
from txl_lightning.errors import OptionError


class StreamsDataModule(L.LightningDataModule):
    """Streams of the training split at training lengths, of the others at evaluation lengths.

    Args:
        data: corpus, batch size and segment length of training.
        evaluation: batch size and segment length of validation and test.
        ext_len: extended context of every segment.
    """

    def __init__(self, data: DataConfig, evaluation: EvaluationConfig, ext_len: int = 0) -> None:
        super().__init__()
        self.data, self.evaluation, self.ext_len = data, evaluation, ext_len
        self.corpus: Corpus = load_corpus(data)
        self._check_lengths()

    def streams(self, split: str) -> OrderedStreams:
        """Streams of a split for this process."""
        config: DataConfig | EvaluationConfig = self.data if split == "train" else self.evaluation
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        try:
            return OrderedStreams(
                self.corpus.splits[split], config.batch_size, config.segment_len, self.ext_len, rank, world_size
            )
        except OptionError as error:
            raise error.within("data" if split == "train" else "evaluation") from error

    def train_dataloader(self) -> OrderedStreams:
        """Training streams."""
        return self.streams("train")

    def val_dataloader(self) -> OrderedStreams:
        """Validation streams."""
        return self.streams("valid")

    def test_dataloader(self) -> OrderedStreams:
        """Test streams."""
        return self.streams("test")

    def _check_lengths(self) -> None:
        """Refuse a corpus that cannot fill one segment per training stream."""
        n_tokens = len(self.corpus.splits["train"])
        needed = self.data.batch_size * (self.data.segment_len + 1)
        if n_tokens < needed:
            raise OptionError(
                "data.batch_size",
                self.data.batch_size,
                f"the training split of {self.corpus.name} has {n_tokens} tokens, shorter than one segment per "
                f"stream: batch_size x (segment_len + 1) = {needed} are needed",
            )
        for split in ("valid", "test"):
            self.streams(split)
