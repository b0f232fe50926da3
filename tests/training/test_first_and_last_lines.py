"""Output of a training: four lines, its progress on any terminal, and one line at the end."""

import re

from tests.in_process import success
from tests.training.small_run import TINY, tiny_config
from txl_lightning.training.callbacks import Progress
from txl_lightning.training.run import train


def test_a_run_says_at_once_what_it_does_and_at_the_end_which_way_is_better(tmp_path):
    tiny_config(tmp_path)
    lines = [f"word{i} and and {i % 7}\n" for i in range(900)]
    (tmp_path / "text.txt").write_text("".join(lines))
    paths = (
        f"data.path={tmp_path}/text.txt",
        f"data.cache_dir={tmp_path}/cache",
        f"hydra.run.dir={tmp_path}/run",
    )
    ended = success(
        "train",
        *TINY,
        "data.level=word",
        "trainer.precision=32-true",
        *paths,
    )
    first = [line for line in ended.err.splitlines() if re.match("model|data|device|steps", line)]
    splits = r"train [0-9,]+ with [0-9.]+% <unk> \([0-9,]+\), valid .*<unk>.*, test .*<unk> .*"
    assert re.fullmatch(
        r"model: txl_smoke, [0-9,]+ parameters; relative, recurrence, full loss", first[0]
    )
    assert re.fullmatch(rf"data: text.txt, level word, vocabulary \d+; tokens: {splits}", first[1])
    assert re.fullmatch(r"device: 1 × cpu, precision 32-true, 1 of \d+ CPU threads", first[2])
    assert first[3] == "steps: 12, each of 32 tokens (4 streams of 8 tokens)"
    held = "metrics.json, config.yaml, validation.jsonl and checkpoints"
    best = f"{tmp_path}/run/checkpoints/best.ckpt"
    following = f"next: txl evaluate checkpoint={best} or txl generate checkpoint={best}"
    files = f"lower is better; {held} are in {tmp_path}/run"
    assert ended.out.splitlines()[-3:] == [files, following, f"{tmp_path}/run"]
    assert re.search(r"^test/nll [0-9.]+, test/ppl .*, val/nll", ended.out, re.MULTILINE)


def test_progress_goes_on_through_validation_and_test(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Progress, "_is_due", lambda self: True)
    config = tiny_config(tmp_path, "trainer.progress_bar=true", "trainer.log_every_n_steps=1")

    train(config, tmp_path / "run")

    said = capsys.readouterr().err
    assert re.search(
        r"^7/12 steps, 0:00:0\d left, train/bpb \d\.\d{3}, [0-9,]+ tokens/s$", said, re.MULTILINE
    )
    assert re.search(r"^validation: segment 2 of \d+$", said, re.MULTILINE)
    assert re.search(r"^step 5: val/bpb \d\.\d{3}$", said, re.MULTILINE)
    assert re.search(r"^best weights, validation split: val/bpb", said, re.MULTILINE)
    assert re.search(r"^test: segment 2 of \d+$", said, re.MULTILINE)
