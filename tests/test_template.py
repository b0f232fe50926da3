"""What users of lightning-hydra-template expect: each row is a command of a small run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from tests import small_multirun, wandb_files
from tests.in_process import refusal, run_txl, success
from tests.training.small_run import TEXT, TINY, tiny_config
from txl_lightning.config.schemas import CONF
from txl_lightning.evaluation.trained import read_file
from txl_lightning.training.run import make_data


def choices(group: str) -> list[str]:
    """Return the names of the files of a group of `conf`, with their folders."""
    names = []
    for path in sorted((CONF / group).rglob("*.yaml")):
        names.append(path.relative_to(CONF / group).with_suffix("").as_posix())
    return names


def words(directory: Path, *arguments: str) -> list[str]:
    """Return the words of `txl train` on a small text; its folder is `run`."""
    (directory / "text.txt").write_text(TEXT)
    paths = ["data.path=text.txt", "data.cache_dir=cache", "hydra.run.dir=run"]
    return ["train", *TINY, *paths, *arguments]


def train(directory: Path, *arguments: str) -> dict[str, Any]:
    """Run `txl train` on a small text and return `metrics.json`."""
    success(*words(directory, *arguments), directory=directory)
    return metrics(directory / "run")


def metrics(run: Path) -> dict[str, Any]:
    """Return the results of a run."""
    content: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return content


def validations(directory: Path) -> list[int]:
    """Return the steps after which the run was validated."""
    lines = (directory / "run/validation.jsonl").read_text().splitlines()
    return [json.loads(line)["steps"] for line in lines]


def test_fast_dev_run(tmp_path: Path) -> None:
    assert train(tmp_path, "trainer.fast_dev_run=true")["steps"] == 1


EPOCH = (
    "trainer.max_epochs=1",
    "trainer.max_steps=1000",
    "trainer.limit_train_batches=8",
    "trainer.val_every_n_steps=null",
)


@pytest.mark.parametrize(("more", "steps"), [("1.0", [8]), ("0.5", [4, 8])])
def test_an_epoch_is_validated_at_its_end_or_twice(
    tmp_path: Path, more: str, steps: list[int]
) -> None:
    assert train(tmp_path, *EPOCH, f"trainer.val_check_interval={more}")["steps"] == 8
    assert validations(tmp_path) == steps


def test_arguments_of_the_trainer_are_options(tmp_path: Path) -> None:
    profiler = "lightning.pytorch.profilers.SimpleProfiler"
    result = train(
        tmp_path,
        "trainer.limit_train_batches=3",
        "trainer.num_sanity_val_steps=2",
        "trainer.detect_anomaly=true",
        "trainer.gradient_clip_val=0.5",
        "trainer.max_time=00:00:10:00",
        "trainer.val_every_n_steps=null",
        f"trainer.profiler={{_target_: {profiler}, dirpath: profile, filename: times}}",
    )
    assert result["steps"] == 12
    assert "run_training_epoch" in (tmp_path / "profile/fit-times.txt").read_text()
    assert validations(tmp_path) == [3, 6, 9, 12]  # three batches are an epoch
    assert "limit_train_batches: 3" in (tmp_path / "run/config.yaml").read_text()


def test_lightnings_names_of_our_options(tmp_path: Path) -> None:
    result = train(
        tmp_path,
        "trainer.enable_checkpointing=false",
        "trainer.enable_progress_bar=false",
        "trainer.limit_val_batches=2",
        "trainer.limit_test_batches=3",
        "trainer.check_val_every_n_epoch=2",
        "trainer.limit_train_batches=3",
        "trainer.max_time={minutes: 5}",
        "trainer.profiler=simple",
        "trainer.strategy=auto",
    )
    assert result["evaluation"]["max_segments"] == 3
    assert validations(tmp_path) == [6, 12]  # an epoch is three batches
    config = OmegaConf.load(tmp_path / "run/config.yaml")
    assert config.checkpoint.enabled is False
    assert config.trainer.val_max_segments == 2
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            "trainer.limit_trian_batches=3",
            "no such option, did you mean trainer.limit_train_batches?",
        ),
        ("trainer.num_thread=3", "no such option, did you mean trainer.num_threads?"),
        (
            "trainer.limit_val_batches=0.5",
            "trainer.val_max_segments=0.5: Value '0.5' of type 'float' could not be converted",
        ),
        ("trainer.plugins=[]", "is set by txl train: a run has its own plugins"),
        ("trainer.strategy=fsdp", "trainer.strategy=fsdp: must be auto or ddp"),
        ("trainer.profiler=fast", "trainer.profiler=fast: Lightning refuses it: "),
        (
            "optimizer._target_=torch.nn.Linear",
            "optimizer._target_=torch.nn.Linear: is no Optimizer",
        ),
        ("trainer.barebones=true", "trainer.barebones=True: Lightning refuses it: "),
        (
            "optimizer.momentum=0.9",
            "optimizer.momentum=0.9: no such option without optimizer._target_=CLASS",
        ),
        (
            "optimizer._target_=torch.optim.Sgd",
            "optimizer._target_=torch.optim.Sgd: cannot be made",
        ),
        (
            "callbacks.early.patience=3",
            "callbacks.early=None: must be {_target_: MODULE.CLASS, …}",
        ),
        (
            "callbacks.made={_target_: os.mkdir, path: made}",
            "callbacks.made=os.mkdir: cannot be made: ",
        ),
        ("train=false", "train=False: needs ckpt_path=FILE"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(
    tmp_path: Path, argument: str, said: str
) -> None:
    done = run_txl(*words(tmp_path, argument), directory=tmp_path)
    assert done.status == 2
    assert said in done.err.splitlines()[-1]
    assert not (tmp_path / "made").exists()


def test_several_callbacks_are_joined_and_their_arguments_are_options(tmp_path: Path) -> None:
    result = train(
        tmp_path,
        "callbacks=[early_stopping,timer]",
        "callbacks.early_stopping.patience=1",
        "callbacks.early_stopping.min_delta=100",
        "callbacks.timer=null",
        "callbacks.mine={_target_: lightning.pytorch.callbacks.LambdaCallback}",
        "trainer.val_every_n_steps=2",
    )
    assert "EarlyStopping" in result["ended_by"]
    config = OmegaConf.load(tmp_path / "run/config.yaml")
    assert list(config.callbacks) == ["early_stopping", "timer", "mine"]


def test_an_optimizer_of_any_class_trains_and_resumes(tmp_path: Path) -> None:
    given = ("optimizer._target_=torch.optim.SGD", "optimizer.momentum=0.9", "optimizer.lr=0.1")
    train(tmp_path, *given)
    group = read_file(tmp_path / "run/checkpoints/last.ckpt")["optimizer_states"][0][
        "param_groups"
    ][0]
    assert (group["momentum"], group["initial_lr"]) == (0.9, 0.1)
    assert train(tmp_path, *given, "trainer.max_steps=14", "resume=auto")["steps"] == 14


def test_loggers_are_named_and_joined_and_their_arguments_are_options(tmp_path: Path) -> None:
    mine = "logger.mine={_target_: lightning.pytorch.loggers.CSVLogger, name: mine}"
    train(tmp_path, "logger=csv", "logger.csv.name=curves", mine, "trainer.log_every_n_steps=4")
    assert (tmp_path / "run/curves/version_0/metrics.csv").is_file()
    assert (tmp_path / "run/mine/version_0/metrics.csv").is_file()


def test_extras_print_the_config_and_hide_warnings(tmp_path: Path) -> None:
    given = words(
        tmp_path,
        "extras.print_config=true",
        "extras.enforce_tags=true",
        "extras.ignore_warnings=true",
        "tags=[a,b]",
        "trainer.max_steps=2",
    )
    done = success(*given, directory=tmp_path)
    assert "tags:\n- a\n- b\n" in done.out
    assert list(OmegaConf.load(tmp_path / "run/config.yaml").tags) == ["a", "b"]


@pytest.mark.parametrize("group", ["experiment", "logger", "callbacks"])
def test_a_group_may_be_null(tmp_path: Path, group: str) -> None:
    assert train(tmp_path, f"{group}=null", "trainer.max_steps=2")["steps"] == 2


def test_without_a_test_the_test_split_is_not_read(tmp_path: Path) -> None:
    result = train(tmp_path, "test=false")
    assert "val/nll" in result
    assert "test/nll" not in result


def test_a_checkpoint_is_evaluated_without_training(tmp_path: Path) -> None:
    trained = train(tmp_path)
    only_evaluated = words(tmp_path, "train=false", "ckpt_path=run/checkpoints/best.ckpt")
    assert "holds a finished run" in refusal(*only_evaluated, directory=tmp_path)
    success(*only_evaluated, "hydra.run.dir=evaluated", directory=tmp_path)
    evaluated = metrics(tmp_path / "evaluated")
    assert evaluated["val/nll"] == pytest.approx(trained["val/nll"], rel=1e-6)
    assert evaluated["test/nll"] == pytest.approx(trained["test/nll"], rel=1e-6)
    assert evaluated["weights_step"] == trained["weights_step"]


def test_a_name_of_the_task_is_a_folder(tmp_path: Path) -> None:
    given = words(tmp_path, "task_name=first", "trainer.max_steps=2")
    given.remove("hydra.run.dir=run")
    success(*given, directory=tmp_path)
    assert len(list(tmp_path.glob("outputs/first/*/*/metrics.json"))) == 1


def test_the_datamodule_has_loaders_of_its_splits(tmp_path: Path) -> None:
    data = make_data(tiny_config(tmp_path))
    loaders = [data.train_dataloader(), data.val_dataloader(), data.test_dataloader()]
    for loader, n_streams in zip(loaders, (4, 2, 2), strict=True):
        batch = next(iter(loader))
        assert batch.tokens.shape == batch.targets.shape == (n_streams, 8)
        assert batch.tokens.dtype == torch.int64


@pytest.mark.slow
@pytest.mark.parametrize("name", choices("debug"))
def test_every_choice_of_debug_runs(tmp_path: Path, name: str) -> None:
    lengths = ("trainer.max", "trainer.val", "evaluation.max")
    given = [word for word in words(tmp_path) if not word.startswith(lengths)]
    success(*given, f"debug={name}", directory=tmp_path)
    assert (tmp_path / "run/metrics.json").exists()


SMALL_MODEL = (
    "model.n_layer=2",
    "model.d_model=16",
    "model.n_head=2",
    "model.d_head=8",
    "model.d_inner=16",
    "model.cutoffs=[]",
    "model.d_embed=null",
    "model.div_val=1",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in choices("experiment") if not name.startswith("published/")]
)
def test_every_experiment_trains_for_two_steps(tmp_path: Path, name: str) -> None:
    """Each has its kind of model and recipe, at a small size."""
    given = words(
        tmp_path,
        f"experiment={name}",
        "trainer=cpu",
        "trainer.precision=32-true",
        "trainer.max_steps=2",
        "optimizer.warmup_steps=0",
        "context_curve.every_n_steps=null",
    )
    given.remove("profile=smoke")
    if name.startswith(("paper/", "recall")):
        given += SMALL_MODEL
    success(*given, directory=tmp_path)
    assert metrics(tmp_path / "run")["steps"] == 2


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    assert train(tmp_path, "trainer.devices=2", "trainer.strategy=ddp")["processes"] == 2


@pytest.mark.slow
def test_a_longer_run_resumes_and_its_best_checkpoint_is_evaluated(tmp_path: Path) -> None:
    train(tmp_path, "trainer.max_steps=6")
    last = "ckpt_path=run/checkpoints/last.ckpt"
    assert train(tmp_path, "trainer.max_steps=12", last)["steps"] == 12
    best = "checkpoint=run/checkpoints/best.ckpt"
    success("evaluate", best, "hydra.run.dir=evaluated", directory=tmp_path)
    assert (tmp_path / "evaluated/evaluation.json").exists()


@pytest.mark.slow
def test_a_grid_sweep(tmp_path: Path) -> None:
    grid = ("hydra/launcher=basic", "optimizer.lr=1e-3,2e-3", "memory=on,off")
    success(*small_multirun.words(tmp_path, *grid), directory=tmp_path)
    assert len(small_multirun.written(tmp_path)) == 4


def search(directory: Path, *arguments: str) -> dict[str, float]:
    """Run `hparams_search=optuna`, check its best trial, and return the loss of every job by folder."""
    optuna = ("hparams_search=optuna", "hydra.sweeper.n_trials=2")
    success(*small_multirun.words(directory, *optuna, *arguments), directory=directory)
    losses = {}
    for path in directory.glob("sweep/*/metrics.json"):
        losses[path.parent.name] = metrics(path.parent)["val/bpb"]
    best = OmegaConf.load(directory / "sweep/optimization_results.yaml")
    assert set(best.best_params) == {"optimizer.lr", "model.dropout"}
    assert best.best_value == min(losses.values())
    return losses


@pytest.mark.slow
def test_a_search_with_optuna_and_a_seed_continues(tmp_path: Path) -> None:
    before = search(tmp_path, "hydra/launcher=basic")
    after = search(tmp_path, "hydra/launcher=basic", "hydra.sweeper.n_trials=3")
    assert len(after) == 3
    assert after.items() >= before.items()


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        "hydra.launcher.max_parallel=2",
        pytest.param("hydra/launcher=basic", marks=pytest.mark.full),
        pytest.param("hydra/launcher=submitit_local", marks=pytest.mark.full),
    ],
)
def test_a_search_with_optuna_and_two_processes_a_trial(tmp_path: Path, launcher: str) -> None:
    for job in search(tmp_path, "trainer.devices=2", "trainer.strategy=ddp", launcher):
        assert metrics(tmp_path / "sweep" / job)["processes"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["process", "basic"])
def test_a_search_with_a_storage_continues_its_study(tmp_path: Path, launcher: str) -> None:
    """The second call adds two trials; the first two do not run again."""
    study = (
        f"hydra.sweeper.storage='sqlite:///{tmp_path}/study.db'",
        "hydra.sweeper.study_name=lr",
    )
    given = (*study, "hydra.sweeper.sampler.seed=null", f"hydra/launcher={launcher}")
    before = search(tmp_path, *given)
    written = small_multirun.written(tmp_path)
    after = search(tmp_path, *given)
    assert len(after) == 4
    assert after.items() >= before.items()
    assert small_multirun.written(tmp_path).items() >= written.items()


@pytest.mark.slow
def test_tags_are_tags_of_the_run_in_wandb(tmp_path: Path) -> None:
    wandb = ("logger=wandb", "logger.mode=offline")
    train(tmp_path, *wandb, "tags=[first,tiny]", "trainer.max_steps=2")
    (run,) = wandb_files.run_files(tmp_path / "run")
    assert {"first", "tiny"} <= set(wandb_files.summary(run)["tags"])
