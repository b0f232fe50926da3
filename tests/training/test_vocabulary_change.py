"""Fine-tuning with another vocabulary: known tokens keep their rows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.small_run import tiny_config
from txl_lightning.data.vocabulary import Vocabulary, characters_and_unknown, train_byte_pairs
from txl_lightning.errors import OptionError, UserError
from txl_lightning.measure.perplexity import EvaluateOptions
from txl_lightning.measure.perplexity.command import run as evaluate
from txl_lightning.model import TransformerXL, TransformerXLConfig
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import checkpoint_corpus, load_trained
from txl_lightning.training.checkpointing import describe_change, keep_known_tokens
from txl_lightning.training.run import train

SIZES = {"n_layer": 1, "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 8, "mem_len": 4}
OLD = Vocabulary("word", ("<eos>", "the", "cat", "sat", "on", "a", "mat"))
NEW = Vocabulary("word", ("<eos>", "a", "dog", "the", "sat", "mat", "hat", "on"))


def model_of(vocabulary: Vocabulary, **options: object) -> TransformerXL:
    return TransformerXL(TransformerXLConfig(vocab_size=len(vocabulary), **SIZES, **options))


def row(weights: dict[str, torch.Tensor], vocabulary: Vocabulary, word: str, cutoffs: tuple[int, ...]) -> torch.Tensor:
    number = vocabulary.numbers[word]
    cluster = sum(number >= cut for cut in cutoffs)
    first = (0, *cutoffs)[cluster]
    return torch.cat([weights[f"embedding.tables.{cluster}"][number - first], weights["softmax.bias"][number, None]])


@pytest.mark.parametrize(
    ("options", "known"),
    [({}, {"<eos>", "a", "the", "sat", "on", "mat"}), ({"cutoffs": (4,), "div_val": 2}, {"<eos>", "the", "mat", "on"})],
    ids=["one table", "clusters"],
)
def test_known_words_keep_their_rows_and_new_ones_are_named(options: dict, known: set[str]) -> None:
    before, after = model_of(OLD, **options), model_of(NEW, **options)
    fresh = {name: tensor.clone() for name, tensor in after.state_dict().items()}
    after.load_state_dict(keep_known_tokens(before.state_dict(), OLD, NEW, after))
    cutoffs = options.get("cutoffs", ())
    for word in NEW.symbols:
        source, vocabulary = (before.state_dict(), OLD) if word in known else (fresh, NEW)
        expected = row(source, vocabulary, word, cutoffs)
        assert torch.equal(row(after.state_dict(), NEW, word, cutoffs), expected), word
    others = [name for name in fresh if not name.startswith(("embedding.tables", "softmax.bias"))]
    assert all(torch.equal(after.state_dict()[name], before.state_dict()[name]) for name in others)
    new = ", ".join(repr(word) for word in NEW.symbols if word not in known)
    expected = f"{len(known)} of 8 tokens are known and keep their weights, {8 - len(known)} are new: {new}"
    assert describe_change(OLD, NEW, after) == expected


def test_bytes_are_known_to_byte_pairs_and_characters_are_not() -> None:
    pairs = Vocabulary.of_tokenizer(train_byte_pairs([b"a rose is a rose is a rose\n" * 9], 260))
    before, after = model_of(Vocabulary("byte")), model_of(pairs)
    weights = keep_known_tokens(before.state_dict(), Vocabulary("byte"), pairs, after)
    tables = weights["embedding.tables.0"], before.state_dict()["embedding.tables.0"]
    assert all(torch.equal(tables[0][pairs.numbers[chr(byte)]], tables[1][byte]) for byte in range(256))
    assert (describe_change(Vocabulary("byte"), pairs, after) or "").startswith("256 of 260 tokens are known")
    with pytest.raises(UserError, match="was trained at level char"):
        keep_known_tokens(before.state_dict(), characters_and_unknown([b"ab"]), pairs, after)


def test_a_run_starts_from_weights_of_another_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ("data.level=char", "trainer.max_steps=1", "optimizer.lr=1e-30")
    train(tiny_config(tmp_path, *steps), tmp_path / "run")
    path = tmp_path / "run/checkpoints/last.ckpt"
    config = tiny_config(tmp_path, *steps, f"initial_weights={path}", "seed=5", "new_vocabulary=true")
    (tmp_path / "text.txt").write_text((tmp_path / "text.txt").read_text().replace("q", "Q"))
    train(config, tmp_path / "tuned")
    assert "are new: 'Q'" in capsys.readouterr().err
    before, after = load_trained(path), load_trained(tmp_path / "tuned/checkpoints/last.ckpt")
    assert after.vocabulary != before.vocabulary
    tables = [trained.model.embedding.tables[0] for trained in (before, after)]
    numbers = [trained.vocabulary.numbers["s"] for trained in (before, after)]
    assert torch.equal(tables[0][numbers[0]], tables[1][numbers[1]])
    with pytest.raises(OptionError, match="was trained on another vocabulary"):
        train(tiny_config(tmp_path, *steps, "trainer.max_steps=2", f"resume={path}"), tmp_path / "resumed")


NEW_TEXT = "".join(f"verse {i}: the circle of {i} is zero Ü\n" for i in range(60))
CUT_OFF = ("model.cutoffs=[12]", "model.div_val=2")


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        (("data.level=word",), {"verse", "circle", "Ü", "zero"}),
        (("data.level=word", *CUT_OFF), {"verse", "circle", "Ü", "zero"}),
        (("data.level=char",), {"v", "c", "z", "Ü"}),
        (("data.level=bpe", "data.vocab_size=270"), set()),
        (("data.level=byte",), set()),
    ],
    ids=["words", "cut-offs", "characters", "bpe", "bytes"],
)
def test_a_vocabulary_is_kept_and_what_it_lacks_is_unknown_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], lacks: set[str]
) -> None:
    steps = (*options, "trainer.max_steps=3", "trainer.val_every_n_steps=3", "trainer.val_max_segments=null")
    train(tiny_config(tmp_path, *steps), tmp_path / "run")
    path = tmp_path / "run/checkpoints/best.ckpt"
    (tmp_path / "new.txt").write_text(NEW_TEXT)
    tuning = (*steps, f"data.path={tmp_path / 'new.txt'}", f"initial_weights={path}")
    capsys.readouterr()
    first = train(tiny_config(tmp_path, *tuning), tmp_path / "tuned")
    said = capsys.readouterr().err
    before, after = load_trained(path), load_trained(tmp_path / "tuned/checkpoints/best.ckpt")
    assert after.vocabulary == before.vocabulary
    kept = f"initial_weights={path}: its vocabulary of {len(before.vocabulary)} tokens is kept (new_vocabulary=true "
    assert kept in said
    assert ("data.vocab_size without effect" in said) == ("data.level=bpe" in options)
    assert "are known and keep their weights" not in said
    splits = checkpoint_corpus(after, path).splits
    read = np.concatenate([splits[split] for split in ("train", "valid", "test")])
    if lacks:
        symbols = [word for line in NEW_TEXT.splitlines() for word in (*line.split(), "<eos>")]
        symbols = symbols if "data.level=word" in options else list(NEW_TEXT)
        assert lacks <= set(symbols) - set(before.vocabulary.symbols)
        expected = [symbol if symbol in before.vocabulary.numbers else "<unk>" for symbol in symbols]
        assert [after.vocabulary.symbols[token] for token in read] == expected
        share = expected[: len(splits["train"])].count("<unk>") / len(splits["train"])
        assert f"what the vocabulary lacks is <unk>: {share:.1%} of train, " in said
    else:
        assert after.vocabulary.decode(read) == NEW_TEXT
        assert "<unk>" not in said
    # The run is evaluated, resumed and fine-tuned again with this vocabulary.
    evaluate(EvaluateOptions(str(tmp_path / "tuned/checkpoints/best.ckpt"), splits=["valid"]), tmp_path)
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["valid"]["nll"] == pytest.approx(first["val/nll"], rel=1e-6)
    resumed = (*tuning[:-1], "trainer.max_steps=4", f"resume={tmp_path / 'tuned/checkpoints/last.ckpt'}")
    train(tiny_config(tmp_path, *resumed), tmp_path / "resumed")
    again = load_trained(tmp_path / "resumed/checkpoints/last.ckpt")
    assert (again.vocabulary, again.step) == (before.vocabulary, 4)
    assert again.vocabulary.lenient == ("data.level=word" in options or "data.level=char" in options)


def test_new_tokens_of_a_new_vocabulary_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ("data.level=word", "trainer.max_steps=1")
    train(tiny_config(tmp_path, *steps), tmp_path / "run")
    (tmp_path / "new.txt").write_text(NEW_TEXT)
    tuning = (f"data.path={tmp_path / 'new.txt'}", f"initial_weights={tmp_path / 'run/checkpoints/last.ckpt'}")
    train(tiny_config(tmp_path, *steps, *tuning, "new_vocabulary=true"), tmp_path / "tuned")
    assert "tokens are known and keep their weights, " in capsys.readouterr().err
    assert "circle" in load_trained(tmp_path / "tuned/checkpoints/last.ckpt").vocabulary.numbers


def test_a_character_without_unk_is_refused_after_the_line_that_says_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ("data.level=char", "trainer.max_steps=1")
    train(tiny_config(tmp_path, *steps), tmp_path / "run")
    path = tmp_path / "run/checkpoints/last.ckpt"
    contents = torch.load(path, weights_only=True)
    vocabulary = contents["txl_lightning"]["vocabulary"]
    vocabulary["symbols"][vocabulary["symbols"].index("<unk>")] = "#"
    write_checkpoint(contents, path)
    (tmp_path / "new.txt").write_text(NEW_TEXT)
    with pytest.raises(UserError, match=r"new\.txt: 'v' is not among the \d+ symbols"):
        train(
            tiny_config(tmp_path, *steps, f"data.path={tmp_path / 'new.txt'}", f"initial_weights={path}"),
            tmp_path / "t",
        )
    assert "(new_vocabulary=true makes one of the text)" in capsys.readouterr().err
