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
    ("options", "lacks"),
    [
        (("data.level=word",), {"verse", "circle", "Ü", "zero"}),
        (
            ("data.level=word", "model.cutoffs=[12]", "model.div_val=2"),
            {"verse", "circle", "Ü", "zero"},
        ),
        (("data.level=char",), {"v", "c", "z", "Ü"}),
        (("data.level=bpe", "data.vocab_size=270"), set()),
        (("data.level=byte",), set()),
    ],
)
def test_a_vocabulary_is_kept(
    tmp_path: Path, capsys: Output, options: tuple[str, ...], lacks: set[str]
) -> None:
    steps = (
        *options,
        "trainer.max_steps=3",
        "trainer.val_every_n_steps=3",
        "trainer.val_max_segments=null",
    )
    train(tiny_config(tmp_path, *steps), tmp_path / "run")
    path = tmp_path / "run/checkpoints/best.ckpt"
    (tmp_path / "new.txt").write_text(NEW_TEXT)
    new = f"data.path={tmp_path / 'new.txt'}"
    first = train(tiny_config(tmp_path, *steps, new, f"initial_weights={path}"), tmp_path / "tuned")
    said = capsys.readouterr().err
    before, after = load_trained(path), load_trained(tmp_path / "tuned/checkpoints/best.ckpt")
    assert after.vocabulary == before.vocabulary
    assert (
        f"initial_weights={path}: its vocabulary of {len(before.vocabulary)} tokens is kept" in said
    )
    assert ("data.vocab_size without effect" in said) == ("data.level=bpe" in options)
    splits = checkpoint_corpus(after, path).splits
    read = np.concatenate([splits[split] for split in ("train", "valid", "test")])
    if lacks:
        symbols = [word for line in NEW_TEXT.splitlines() for word in (*line.split(), "<eos>")]
        symbols = symbols if "data.level=word" in options else list(NEW_TEXT)
        assert lacks <= set(symbols) - set(before.vocabulary.symbols)
        expected = [
            symbol if symbol in before.vocabulary.numbers else "<unk>" for symbol in symbols
        ]
        assert [after.vocabulary.symbols[token] for token in read] == expected
        share = expected[: len(splits["train"])].count("<unk>") / len(splits["train"])
        assert f"out-of-vocabulary tokens become <unk>: {share:.1%} of train, " in said
    else:
        assert after.vocabulary.decode(read) == NEW_TEXT
        assert "<unk>" not in said
    # The run is evaluated, resumed and fine-tuned again with this vocabulary.
    found = evaluated(tmp_path / "tuned/checkpoints/best.ckpt", tmp_path, splits=["valid"])
    assert found["valid"]["nll"] == pytest.approx(first["val/nll"], rel=1e-6)
    train(
        tiny_config(tmp_path, *steps, new, "trainer.max_steps=4", "resume=auto"), tmp_path / "tuned"
    )
    again = load_trained(tmp_path / "tuned/checkpoints/last.ckpt")
    assert (again.vocabulary, again.step) == (before.vocabulary, 4)
    assert again.vocabulary.lenient == (
        "data.level=word" in options or "data.level=char" in options
    )


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
        OptionError, match=r"^initial_weights=.*: was trained at level char: none of its tokens is"
    ):
        train(tiny_config(tmp_path, *steps, *tuning, "data.level=byte"), tmp_path / "t")
    with pytest.raises(OptionError, match=r"^resume=.*: was trained on another vocabulary"):
        train(
            tiny_config(tmp_path, *steps, "trainer.max_steps=2", tuning[0], f"resume={path}"),
            tmp_path / "t",
        )
