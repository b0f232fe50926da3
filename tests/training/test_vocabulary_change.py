"""Fine-tuning on another text: the vocabulary of the checkpoint is kept."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fixtures import Output
from tests.training.small_run import evaluated, tiny_config
from txl_lightning.errors import OptionError, UserError
from txl_lightning.evaluation.trained import checkpoint_corpus, load_trained, write_checkpoint
from txl_lightning.training.run import train

NEW_TEXT = "".join(f"verse {i}: the circle of {i} is zero Ü\n" for i in range(60))


@pytest.mark.parametrize(
    "options", ["data.level=word", "data.level=char", "data.level=bpe data.vocab_size=270"]
)
def test_a_vocabulary_is_kept(tmp_path: Path, capsys: Output, options: str) -> None:
    """The run is evaluated, resumed and fine-tuned again with it."""
    every = ("trainer.val_every_n_steps=3", "trainer.val_max_segments=null")
    steps = (*options.split(), "trainer.max_steps=3", *every)
    train(tiny_config(tmp_path, *steps), tmp_path / "run")
    path = tmp_path / "run/checkpoints/best.ckpt"
    (tmp_path / "new.txt").write_text(NEW_TEXT)
    new = f"data.path={tmp_path / 'new.txt'}"

    first = train(tiny_config(tmp_path, *steps, new, f"initial_weights={path}"), tmp_path / "tuned")

    said = capsys.readouterr().err
    before = load_trained(path)
    after = load_trained(tmp_path / "tuned/checkpoints/best.ckpt")
    assert after.vocabulary == before.vocabulary
    assert f"initial_weights={path}: its vocabulary of {len(before.vocabulary)} tokens" in said
    splits = checkpoint_corpus(after, path).splits
    read = np.concatenate([splits[split] for split in ("train", "valid", "test")])
    if "bpe" in options:
        assert after.vocabulary.decode(read) == NEW_TEXT
        assert "<unk>" not in said
    else:
        symbols = list(NEW_TEXT)
        if "word" in options:
            symbols = NEW_TEXT.replace("\n", " <eos> ").split()
        known = before.vocabulary.numbers
        expected = [symbol if symbol in known else "<unk>" for symbol in symbols]
        assert [after.vocabulary.symbols[token] for token in read] == expected
        share = expected[: len(splits["train"])].count("<unk>") / len(splits["train"])
        assert share > 0
        assert f"train {len(splits['train']):,} with {share:.1%} <unk>" in said
    found = evaluated(tmp_path / "tuned/checkpoints/best.ckpt", tmp_path, splits=["valid"])
    assert found["valid"]["nll"] == pytest.approx(first["val/nll"], rel=1e-6)
    more = tiny_config(tmp_path, *steps, new, "trainer.max_steps=4", "resume=auto")
    train(more, tmp_path / "tuned")
    again = load_trained(tmp_path / "tuned/checkpoints/last.ckpt")
    assert (again.vocabulary, again.step) == (before.vocabulary, 4)


def test_a_character_without_unk_and_another_level_are_refused(tmp_path: Path) -> None:
    steps = ("data.level=char", "trainer.max_steps=1")
    train(tiny_config(tmp_path, *steps), tmp_path / "run")
    path = tmp_path / "run/checkpoints/last.ckpt"
    contents = torch.load(path, weights_only=True)
    vocabulary = contents["txl_lightning"]["vocabulary"]
    vocabulary["symbols"][vocabulary["symbols"].index("<unk>")] = "#"
    write_checkpoint(contents, path)
    (tmp_path / "new.txt").write_text(NEW_TEXT)
    tuning = (f"data.path={tmp_path / 'new.txt'}", f"initial_weights={path}")
    with pytest.raises(UserError, match=r"new\.txt: 'v' is not among the \d+ symbols"):
        train(tiny_config(tmp_path, *steps, *tuning), tmp_path / "t")
    with pytest.raises(
        OptionError, match=r"^initial_weights=.*: was trained at level char and has no token"
    ):
        train(tiny_config(tmp_path, *steps, *tuning, "data.level=byte"), tmp_path / "t")
    with pytest.raises(OptionError, match=r"^resume=.*: was trained on another vocabulary"):
        train(
            tiny_config(tmp_path, *steps, "trainer.max_steps=2", tuning[0], f"resume={path}"),
            tmp_path / "t",
        )
