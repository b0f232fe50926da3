"""Bad options of every command: each is refused soon, in one line that names the option, without a traceback."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.in_process import run_txl
from tests.training.small_run import trained

TRAIN = "train data=recall profile=smoke logger=none hydra.run.dir=run"
# Words, and what the line names. CKPT is a checkpoint.
BAD = f"""
{TRAIN} trainer.num_threads=100000                       | trainer.num_threads=100000: must be at most
{TRAIN} trainer.num_threads=0                            | trainer.num_threads=0: must be an integer >= 1
{TRAIN} trainer.max_steps=0                              | trainer.max_steps=0
{TRAIN} trainer.max_steps=None                           | trainer.max_steps=null
{TRAIN} trainer.max_epochs=3                             | trainer.max_epochs=3: no such option
{TRAIN} trainer.accumulate_grad_batches=2                | here: trainer.stream_groups=N
{TRAIN} trainer.fast_dev_run=true                        | here: profile=smoke
{TRAIN} trainer.profiler=simple                          | trainer.profiler=simple: no such option
{TRAIN} trainer.devices=100000                           | trainer.devices=100000
{TRAIN} trainer.stream_groups=1000000000                 | trainer.stream_groups=1000000000
{TRAIN} trainer.precision=bf16                           | trainer.precision=bf16: must be one of
{TRAIN} trainer.precision=16-mixed                       | trainer.precision=16-mixed: needs a GPU
{TRAIN} trainer.accelerator=tpu                          | trainer.accelerator=tpu: must be one of
{TRAIN} trainer.kernel=flash                             | trainer.kernel=flash: must be one of sdpa, relative
{TRAIN} trainer.kernel=relative                          | trainer.kernel=relative: needs trainer.accelerator=gpu
{TRAIN} trainer.kernel=relative model=lstm               | trainer.kernel=relative: must be sdpa: model=lstm has no
{TRAIN} trainer.kernel=relative beyond=memory_tokens     | trainer.kernel=relative: must be sdpa with beyond
{TRAIN} trainer.callbacks=3                              | trainer.callbacks=3
{TRAIN} 'trainer.callbacks=[EarlyStopping]'              | trainer.callbacks=EarlyStopping: must be
{TRAIN} 'trainer.callbacks=[{{_target_: a.B}}]'          | trainer.callbacks=a.B: cannot be made
{TRAIN} logger=lightning logger._target_=a.B             | logger._target_=a.B: cannot be made
{TRAIN} logger=lightning logger._target_=a.B logger.arguments=3 | logger.arguments=3: must be
{TRAIN} logger=tensorboard logger._target_=a.B           | logger._target_=a.B: is of logger=lightning
{TRAIN} logger.mode=onlin                                | logger.mode=onlin: must be offline, online or disabled
{TRAIN} logger=mlflow                                    | logger=mlflow: must be one of
{TRAIN} data.segment_len=100000000                       | data.segment_len=359999 fits
{TRAIN} data.batch_size=100000000                        | data.batch_size=10909 fits
{TRAIN} data.n_tokens=100000000000000                    | data.n_tokens=100000000000000: needs at least
{TRAIN} data=nosuch                                      | data=nosuch: must be one of
{TRAIN} data.path=text.txt                               | data.path=text.txt: no such option, it is of data=file
{TRAIN} data=file data.path=text.txt data.fractions=[1,2]    | data.fractions=[1.0, 2.0]
{TRAIN} evaluation.batch_size=1000000000                 | evaluation.batch_size=1000000000
{TRAIN} evaluation.segment_len=0                         | evaluation.segment_len=0
{TRAIN} memory.mem_len=-1                                | memory.mem_len=-1
{TRAIN} memory.gradient_segments=1000000000              | memory.gradient_segments=1000000000: must be at most
{TRAIN} memory.gradient_segments=1 model=lstm            | memory.gradient_segments=1: must be 0: lstm stores no
{TRAIN} memory.reset=document memory.start=zeros         | memory.start=zeros: must be empty with memory_reset=document
{TRAIN} memory.reset=document model=lstm                 | memory.reset=document: must be never: lstm always carries
{TRAIN} model=lstm memory=off                            | memory.mem_len=0: must be > 0: lstm always carries its state
{TRAIN} data.batch_size=2 trainer.devices=3              | data.batch_size=2: must be at least the 3 processes of
{TRAIN} data.batch_size=5 trainer.devices=2 trainer.stream_groups=3 | times trainer.stream_groups=3
{TRAIN} data.batch_size=8 trainer.devices=4 evaluation.batch_size=2 | evaluation.batch_size=2: must be at least the 4
{TRAIN} checkpoint.enabled=false checkpoint.keep_every_n_steps=5 | keep_every_n_steps=5: needs checkpoint.enabled=true
{TRAIN} model.d_model=33                                 | model.d_model=33
{TRAIN} model.n_layer=1000000000                         | model.n_layer=1000000000
{TRAIN} model.d_model=100000000                          | model.d_model=100000000
{TRAIN} optimizer.lr=0                                   | optimizer.lr=0
{TRAIN} optimizer.lr=1e400                               | optimizer.lr=inf
{TRAIN} optimizer.lr=nan                                 | optimizer.lr=nan
{TRAIN} optimizer.clip_norm=-1                           | optimizer.clip_norm=-1
{TRAIN} optimizer.name=sgd                               | optimizer=sgd: must be one of adam, adamw, muon
{TRAIN} optimizer.min_lr=1                               | optimizer.min_lr=1.0: must be between 0 and optimizer.lr
{TRAIN} optimizer.name=adam optimizer.ns_precision=32-true | optimizer.ns_precision=32-true: is for optimizer=muon only
{TRAIN} loss=most                                        | loss=most: must be one of
{TRAIN} seed=99999999999                                 | seed=99999999999: must be
{TRAIN} resume=nosuch.ckpt                               | resume=nosuch.ckpt
{TRAIN} initial_weights=nosuch.ckpt                      | initial_weights=nosuch.ckpt
{TRAIN} -m hydra.sweep.dir=sweep seed=range(0,100000000) | seed=range(0,100000000): must be a shorter sweep
{TRAIN} -m hydra.sweep.dir=sweep seed=1,2 hydra.launcher.threads=100000 | hydra.launcher.threads=100000
{TRAIN} -m hydra.sweep.dir=sweep seed=1,2 hydra.launcher.max_parallel=0 | hydra.launcher.max_parallel=0
evaluate checkpoint=CKPT num_threads=100000              | num_threads=100000: must be at most
evaluate checkpoint=CKPT batch_size=1000000000           | batch_size=1000000000: must be at most 49
evaluate checkpoint=CKPT data_path=nosuch.txt            | data_path=nosuch.txt
evaluate checkpoint=CKPT logger=tensorboard              | logger=tensorboard: must be wandb or none
recl checkpoints=[CKPT] logger=none max_context=1000000000 | max_context=1000000000: gives
recl checkpoints=[CKPT] logger=none bootstrap=1000000000 step=4 max_context=20 | bootstrap=1000000000: must
recl checkpoints=[CKPT] logger=none n_positions=1000000000 step=4 max_context=20 | n_positions=1000000000
recl checkpoints=[] logger=none                          | checkpoints
generate checkpoint=CKPT prompt=a n_samples=1000000000   | n_samples=1000000000: must be at most
generate checkpoint=CKPT prompt_file=nosuch.txt          | prompt_file=nosuch.txt
speed segment_len=99999999                               | segment_len=99999999: must be at most 16,384
speed attention_lengths=[8,99999999]                     | attention_lengths=[8, 99999999]: must be at most
speed num_threads=100000                                 | num_threads=100000: must be at most
convert source=nosuch source_format=txl target=a target_format=huggingface | source=nosuch
"""
CASES = [re.split(r"\s+\| ", line) for line in BAD.strip().splitlines()]


@pytest.mark.slow
def test_bad_options_are_refused_in_one_line_that_names_them(tmp_path: Path) -> None:
    checkpoint = str(trained() / "run/checkpoints/best.ckpt")
    wrong = []
    for words, names in CASES:
        done = run_txl(*shlex.split(words.replace("CKPT", checkpoint)), directory=tmp_path)
        line = done.err.strip().splitlines()[-1] if done.err.strip() else ""
        clear = done.status in (1, 2) and names.rstrip() in line and line.startswith("txl ")
        if not clear or "Traceback" in done.err or (tmp_path / "run/metrics.json").exists():
            wrong.append((words, done.status, done.err[-300:]))
    assert not wrong, "\n".join(map(str, wrong))
    assert len(CASES) >= 60
