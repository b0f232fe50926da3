"""A whole run: its files, its logs, resuming it, and that it learns."""

import pytest

from tests.training.small_run import patch_module, tiny_config, train_tiny, trained
from txl_lightning.errors import OptionError, UserError
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.training.run import make_data, train


def test_a_seed_repeats_a_run_however_often_validated(tmp_path, monkeypatch):
    losses = []
    patch_module(
        monkeypatch, "training_step", after=lambda module: losses.append(float(module.loss))
    )
    for every, seed in ((2, 1), (12, 1), (12, 2)):
        options = (
            f"trainer.val_every_n_steps={every}",
            "model.dropout=0.2",
            "checkpoint.enabled=false",
        )
        train(
            tiny_config(tmp_path, *options, f"seed={seed}"),
            tmp_path / f"{every}, {seed}",
        )
    assert losses[:12] == losses[12:24]
    assert losses[12] != losses[24]


def test_training_begins_where_its_seed_says_and_evaluation_at_the_first_token(tmp_path):
    firsts = []
    for words in ("seed=1", "data.random_start=true seed=1", "data.random_start=true seed=2"):
        data = make_data(tiny_config(tmp_path, *words.split()))
        assert data.streams("valid").positions(0)[0, 0] == 1
        firsts.append(int(data.streams("train").positions(0)[0, 0]))
    assert firsts[0] == 1
    assert len(set(firsts)) == 3


def test_another_text_of_the_same_bytes_is_refused(tmp_path):
    config = tiny_config(
        tmp_path, f"resume={trained() / 'run/checkpoints/last.ckpt'}", "trainer.max_steps=20"
    )
    (tmp_path / "text.txt").write_text(
        (tmp_path / "text.txt").read_text().replace("square", "SQUARE")
    )
    with pytest.raises(OptionError, match="was trained on another text than this corpus has now"):
        train(config, tmp_path / "b")


CHARACTERS = (
    "data.level=char model.ext_len=4 memory.start=zeros model.untie_biases=true optimizer=adamw"
)
ARMS = [
    *("encoding=shaw", "encoding=al_rfou loss=half", f"{CHARACTERS} optimizer.warmup_steps=3"),
    *(
        "model.cutoffs=[20,100] model.div_val=2",
        "model=lstm model.d_model=32 model.weight_dropout=0.2",
    ),
    "model=qrnn model.d_model=32",
]


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_trains_is_resumed_and_loaded(arm, tmp_path):
    options = (*arm.split(), "trainer.val_every_n_steps=30", "trainer.max_steps=10")
    first = train_tiny(tmp_path, *options, name="first")
    resume = f"resume={tmp_path / 'first/checkpoints/last.ckpt'}"
    second = train_tiny(
        tmp_path,
        *options[:-1],
        "trainer.max_steps=30",
        resume,
        name="second",
    )
    assert second["val/bpb"] < first["val/bpb"] < 8.5
    trained = load_trained(tmp_path / "second/checkpoints/best.ckpt")
    assert (
        sum(parameter.numel() for parameter in trained.model.parameters()) == second["parameters"]
    )


DIVERGED = r"val/(ppl|nll)=(inf|nan) after 2 steps: training diverged; lower optimizer.lr"


def test_a_run_that_diverged_ends_with_one_clear_line(tmp_path):
    steps = ("trainer.max_steps=2", "trainer.val_every_n_steps=2", "data.level=word")
    with pytest.raises(UserError, match=f"^{DIVERGED}"):
        train_tiny(tmp_path, "optimizer.lr=1e4", *steps)
    assert not (tmp_path / "run/metrics.json").exists()
