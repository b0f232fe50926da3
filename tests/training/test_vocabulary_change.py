"""Fine-tuning on another text: the vocabulary of the checkpoint is kept."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.small_run import evaluated, tiny_config, train_tiny
from txl_lightning.errors import UserError
from txl_lightning.evaluation.trained import checkpoint_corpus, load_trained, write_checkpoint
from txl_lightning.training.run import train

NEW_TEXT = "".join(f"verse {i}: the circle of {i} is zero Ü\n" for i in range(60))


@pytest.mark.parametrize(
    "options", ["data.level=word", "data.level=char", "data.level=bpe data.vocab_size=270"]
)
def test_a_vocabulary_is_kept(tmp_path, capsys, options):
    """The run is evaluated and resumed with it."""
    steps = (*options.split(), "trainer.val_every_n_steps=3", "trainer.val_max_segments=null")
    path, tuning = first_run(tmp_path, *steps, "trainer.max_steps=3")
    run = tmp_path / "tuned"

    metrics = train(
        tiny_config(tmp_path, *steps, *tuning, "trainer.max_steps=3"),
        run,
    )

    said = capsys.readouterr().err
    before = load_trained(path).vocabulary
    after = load_trained(run / "checkpoints/best.ckpt")
    assert after.vocabulary == before
    assert f"initial_weights={path}: its vocabulary of {len(before)} tokens" in said
    splits = checkpoint_corpus(after, path).splits
    tokens = np.concatenate([splits[split] for split in ("train", "valid", "test")])
    symbols = list(NEW_TEXT)
    if "word" in options:
        symbols = NEW_TEXT.replace("\n", " <eos> ").split()
    if "bpe" in options:
        assert before.decode(tokens) == NEW_TEXT
    else:
        expected = [symbol if symbol in before.numbers else "<unk>" for symbol in symbols]
        assert [before.symbols[token] for token in tokens] == expected
    found = evaluated(
        run / "checkpoints/best.ckpt",
        tmp_path,
        splits=["valid"],
    )
    assert found["valid"]["nll"] == pytest.approx(metrics["val/nll"], rel=1e-6)
    more = tiny_config(
        tmp_path,
        *steps,
        tuning[0],
        "trainer.max_steps=4",
        "resume=auto",
    )
    assert train(more, run)["steps"] == 4


def test_a_character_without_unk_and_another_level_are_refused(tmp_path):
    level = "data.level=char"
    path, tuning = first_run(tmp_path, level, "trainer.max_steps=1")
    contents = torch.load(path, weights_only=True)
    symbols = contents["txl_lightning"]["vocabulary"]["symbols"]
    symbols[symbols.index("<unk>")] = "#"
    write_checkpoint(contents, path)
    for words, said in (
        ((level, *tuning), r"new\.txt: 'v' is not among the \d+ symbols"),
        (
            ("data.level=byte", *tuning),
            r"^initial_weights=.*: was trained at level char and has no",
        ),
        ((level, tuning[0], f"resume={path}"), r"^resume=.*: was trained on another vocabulary"),
    ):
        with pytest.raises(UserError, match=said):
            train_tiny(tmp_path, *words, "trainer.max_steps=2", name="tuned")


def first_run(folder: Path, *words: str) -> tuple[Path, tuple[str, str]]:
    """Train, and return the best checkpoint and the options that tune it on another text."""
    train_tiny(folder, *words)
    path = folder / "run/checkpoints/best.ckpt"
    (folder / "new.txt").write_text(NEW_TEXT)
    return path, (f"data.path={folder / 'new.txt'}", f"initial_weights={path}")
