"""The DataModule: streams of one corpus for training and evaluation."""

from __future__ import annotations

import lightning as L

from txl_lightning.config.lengths import evaluation_extended_context
from txl_lightning.config.schemas import DataConfig, EvaluationConfig
from txl_lightning.data.corpora.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.data.streams.ordered import OrderedStreams, Streams
from txl_lightning.data.streams.shuffled import ShuffledStreams
from txl_lightning.errors import OptionError


class StreamsDataModule(L.LightningDataModule):
    """Streams of the training split at training lengths, of the others at evaluation lengths.

    A corpus of unordered sentences (lm1b) has shuffled streams: another order in every epoch of training,
    the text's own in evaluation, sentences never cut at a column's start.

    Args:
        data: corpus, batch size and segment length of training.
        evaluation: batch size and segment length of validation and test, and their extended context if it is
            another.
        ext_len: extended context of every segment.
    """

    def __init__(self, data: DataConfig, evaluation: EvaluationConfig, ext_len: int = 0) -> None:
        super().__init__()
        self.data, self.evaluation, self.ext_len = data, evaluation, ext_len
        self.corpus: Corpus = load_corpus(data)
        self._check_lengths()

    def streams(self, split: str) -> Streams:
        """Streams of a split for this process."""
        place = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        if split != "train":
            return evaluation_streams(self.corpus, split, self.evaluation, self.ext_len, *place)
        sizes = (self.data.batch_size, self.data.segment_len, self.ext_len, *place)
        tokens, sentences = self.corpus.splits[split], self.corpus.sentences.get(split)
        try:
            if sentences is None:
                return OrderedStreams(tokens, *sizes)
            return ShuffledStreams(tokens, sentences, *sizes, seed=self.data.seed)
        except OptionError as error:
            raise error.within("data") from error

    def train_dataloader(self) -> Streams:
        """Training streams."""
        return self.streams("train")

    def val_dataloader(self) -> Streams:
        """Validation streams."""
        return self.streams("valid")

    def test_dataloader(self) -> Streams:
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
        for split in SPLITS:
            self.streams(split)


def evaluation_streams(
    corpus: Corpus,
    split: str,
    evaluation: EvaluationConfig,
    models_own_ext_len: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> Streams:
    """Streams of any split at evaluation lengths, in the text's own order.

    Raises:
        OptionError: naming the option of `evaluation` that the split is too short for.
    """
    ext_len = evaluation_extended_context(evaluation, models_own_ext_len)
    sizes = (evaluation.batch_size, evaluation.segment_len, ext_len, rank, world_size)
    tokens, sentences = corpus.splits[split], corpus.sentences.get(split)
    try:
        if sentences is None:
            return OrderedStreams(tokens, *sizes)
        return ShuffledStreams(tokens, sentences, *sizes, shuffle=False)
    except OptionError as error:
        raise error.within("evaluation") from error
