"""The module in a user's own Trainer: its arguments mean what Lightning's documentation says."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, TensorDataset

from tests.fixtures import Output, Patch
from tests.training.small_run import csv_rows, evaluated, tiny_config, trained
from txl_lightning import LanguageModelModule, load_trained
from txl_lightning.data.streams import Batch, Streams
from txl_lightning.errors import UserError, notice
from txl_lightning.training.run import make_data

RUN = ("model.dropout=0", "trainer.max_steps=6", "trainer.val_every_n_steps=6")
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
    "num_sanity_val_steps": 0,
}
B, T, N = 4, 8, 6  # streams, segment, segments of an epoch
pytestmark = [  # what Lightning says to any of its users
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path.*:UserWarning"),
]


def checkpoint() -> Path:
    return trained(*RUN) / "run/checkpoints/last.ckpt"


def new_module(**options: Any) -> LanguageModelModule:
    torch.manual_seed(1)
    return LanguageModelModule.load_from_checkpoint(checkpoint(), **options)


def streams(batch_size: int = B) -> Streams:
    tokens = torch.arange(B * (N * T + 1)).mul(7).remainder(97).numpy()
    return Streams(tokens, batch_size, T)


def make_trainer(folder: Path, **options: Any) -> L.Trainer:
    defaults = {"logger": False, "enable_checkpointing": False, "default_root_dir": folder}
    return L.Trainer(**{**QUIET, **defaults, **options})


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_epochs": 3}, 3 * N),
        ({"max_epochs": 3, "limit_train_batches": 4}, 3 * 4),
        ({"max_epochs": 2, "overfit_batches": 2}, 2 * 2),
        ({"max_epochs": 2, "accumulate_grad_batches": 2}, 2 * N // 2),
        ({"max_epochs": 3, "max_steps": 7}, 7),
    ],
)
def test_a_trainer_trains_all_steps(tmp_path: Path, options: dict[str, Any], steps: int) -> None:
    trainer = make_trainer(tmp_path, **options)
    trainer.fit(new_module(), streams())
    assert trainer.global_step == steps


@pytest.mark.parametrize("options", [{"max_epochs": 5}, {"max_steps": 30}])
def test_the_schedule_is_the_trainers(tmp_path: Path, options: dict[str, int]) -> None:
    """The checkpoint's run had 6 steps; a cosine over 30 is at a half after 15."""
    rates = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    module = new_module()
    make_trainer(tmp_path, **options, callbacks=[Watch()]).fit(module, streams())
    assert len(rates) == 30
    assert rates[14] == pytest.approx(module.config.optimizer.lr / 2)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)


def test_without_a_number_of_steps_the_rate_stays_and_a_line_says_so(
    tmp_path: Path, capsys: Output
) -> None:
    notice.cache_clear()
    module = new_module()
    trainer = make_trainer(tmp_path, max_epochs=-1, max_time={"seconds": 2})
    trainer.fit(module, streams())
    assert trainer.optimizers[0].param_groups[0]["lr"] == module.config.optimizer.lr
    assert (
        "has no number of steps (max_steps or max_epochs): the learning rate stays constant"
        in capsys.readouterr().err
    )


def test_a_warm_up_longer_than_the_run_is_said(tmp_path: Path, capsys: Output) -> None:
    notice.cache_clear()
    module = new_module()
    module.config.optimizer.warmup_steps = 50
    make_trainer(tmp_path, max_epochs=1).fit(module, streams())
    assert "optimizer.warmup_steps=50 is longer than the run" in capsys.readouterr().err


def test_loggers_and_the_results_of_test_have_all_values(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="mine")
    trainer = make_trainer(tmp_path, max_epochs=2, logger=logger, log_every_n_steps=3)
    module = new_module()
    trainer.fit(module, streams(), streams())
    (results,) = trainer.test(module, streams(), verbose=False)
    assert results["test/nll"] == module.metrics["test/nll"]
    (results,) = trainer.validate(module, streams(), verbose=False)
    assert results["val/nll"] == module.metrics["val/nll"]
    rows = csv_rows(tmp_path / "mine/version_0/metrics.csv")
    assert [(row["step"], float(row["tokens"])) for row in rows if row["train/nll"]] == [
        (str(step), step * B * T) for step in (3, 6, 9, 12)
    ]
    assert [row["step"] for row in rows if row["val/nll"]] == ["6", "12", "12"]
    assert [row["step"] for row in rows if row["test/nll"]] == ["12"]


def test_every_checkpoint_of_a_users_callback_opens_everywhere(tmp_path: Path) -> None:
    keep = ModelCheckpoint(
        tmp_path / "kept", monitor="val/nll", save_weights_only=True, filename="weights"
    )
    other = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=4, filename="all")
    module = new_module()
    trainer = make_trainer(
        tmp_path, max_epochs=1, enable_checkpointing=True, callbacks=[keep, other]
    )
    trainer.fit(module, streams(), streams())
    for name, step in (("weights", 6), ("all", 4)):
        path = tmp_path / f"kept/{name}.ckpt"
        assert load_trained(path).step == step
        assert LanguageModelModule.load_from_checkpoint(
            path, map_location="cpu", strict=True, weights_only=True
        )
        assert evaluated(path, tmp_path / name, max_segments=1, num_threads=1)["step"] == step


class Breaks(L.Callback):
    """Raises in the middle of the step of this number, from 0 on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("in the middle of a step")


def losses_of(module: LanguageModelModule, patch: Patch) -> list[float]:
    losses: list[float] = []
    score = type(module).scaled_loss

    def scaled_loss(module: LanguageModelModule, batch: Batch) -> torch.Tensor:
        loss = score(module, batch)
        losses.append(float(loss.detach()))
        return loss

    patch.setattr(type(module), "scaled_loss", scaled_loss)
    return losses


@pytest.mark.parametrize(
    "options", [{"max_epochs": 3}, {"max_steps": 12, "limit_train_batches": 4}]
)
@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_run_resumes_where_it_was_also_after_an_error_in_a_step(
    tmp_path: Path, monkeypatch: Patch, options: dict[str, int], at: int
) -> None:
    """Without dropout: the masks of the broken step were drawn."""
    module = new_module()
    losses = losses_of(module, monkeypatch)
    make_trainer(tmp_path, **options).fit(module, streams())
    expected = list(losses)
    broken = new_module()
    resumed = new_module()
    callbacks = [Breaks(at), OnExceptionCheckpoint(tmp_path, "broken")]
    trainer = make_trainer(tmp_path, **options, callbacks=callbacks, enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="in the middle"):
        trainer.fit(broken, streams())
    losses.clear()
    make_trainer(tmp_path, **options).fit(resumed, streams(), ckpt_path=tmp_path / "broken.ckpt")
    assert losses == expected[at:]


def test_another_batch_size_resumes_with_a_line(tmp_path: Path, capsys: Output) -> None:
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=2, filename="two")
    make_trainer(tmp_path, max_steps=2, enable_checkpointing=True, callbacks=[keep]).fit(
        new_module(), streams()
    )
    trainer = make_trainer(tmp_path, max_steps=5)
    trainer.fit(new_module(), streams(batch_size=2), ckpt_path=tmp_path / "two.ckpt")
    assert trainer.global_step == 5
    assert (
        "no training memory (it was saved with 4 streams, now there are 2)"
        in capsys.readouterr().err
    )


def test_a_broken_off_validation_leaves_nothing_to_the_next(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    module = new_module()
    trainer = make_trainer(tmp_path)
    (expected,) = trainer.validate(module, streams(), verbose=False)
    step = LanguageModelModule.validation_step

    def breaks(
        module: LanguageModelModule, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        step(module, batch, batch_idx)
        if batch_idx == 3:
            raise RuntimeError("broken off")

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModelModule, "validation_step", breaks)
        with pytest.raises(RuntimeError, match="broken off"):
            trainer.validate(module, streams(), verbose=False)
    (again,) = trainer.validate(module, streams(), verbose=False)
    assert again["val/nll"] == expected["val/nll"]


class WithOptimizer(LanguageModelModule):
    """Has an optimizer and a schedule of its own."""

    kind = "sgd"

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        if self.kind == "sgd":
            return optimizer
        if self.kind == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, patience=0, threshold=100
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": "val/nll"},
            }
        every = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        frequency = 2 if self.kind == "frequency" else 1
        interval = "step" if self.kind == "frequency" else "epoch"
        schedule = {"scheduler": every, "interval": interval, "frequency": frequency}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


@pytest.mark.parametrize(
    ("kind", "rate"), [("sgd", 0.1), ("plateau", 1e-4), ("epoch", 0.0125), ("frequency", 0.1 / 512)]
)
def test_own_optimizers_and_schedules_work(
    tmp_path: Path, monkeypatch: Patch, kind: str, rate: float
) -> None:
    monkeypatch.setattr(WithOptimizer, "kind", kind)
    module = WithOptimizer.load_from_checkpoint(checkpoint())
    trainer = make_trainer(tmp_path, max_epochs=3)
    trainer.fit(module, streams(), streams())
    assert trainer.global_step == 3 * N
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(rate)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_the_trainers_clipping_counts(tmp_path: Path, algorithm: str) -> None:
    largest = []

    class Watch(L.Callback):
        def on_before_zero_grad(self, trainer: L.Trainer, module: Any, optimizer: Any) -> None:
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            if gradients and algorithm == "norm":
                largest.append(float(torch.nn.utils.get_total_norm(gradients)))
            elif gradients:
                largest.append(max(float(gradient.abs().max()) for gradient in gradients))

    options = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": algorithm}
    make_trainer(tmp_path, max_epochs=1, **options, callbacks=[Watch()]).fit(
        new_module(), streams()
    )
    assert largest
    assert max(largest) == pytest.approx(1e-3, rel=1e-3)


def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(batch.tokens, batch.targets) for batch in streams()]


@pytest.mark.parametrize("kind", ["tuples", "dicts", "batches"])
def test_loaders_of_tuples_dicts_and_batches_are_accepted(
    tmp_path: Path, monkeypatch: Patch, kind: str
) -> None:
    module = new_module()
    losses = losses_of(module, monkeypatch)
    data: dict[str, Any] = {
        "tuples": pairs(),
        "dicts": [{"tokens": tokens, "targets": targets} for tokens, targets in pairs()],
        "batches": list(streams()),
    }
    state = torch.get_rng_state()
    make_trainer(tmp_path, max_epochs=2).fit(module, DataLoader(data[kind], batch_size=None))
    ours = list(losses)
    losses.clear()
    torch.set_rng_state(state)
    make_trainer(tmp_path, max_epochs=2).fit(new_module(), streams())
    assert len(ours) == 2 * N
    assert ours[0] == pytest.approx(losses[0], rel=0.1)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (
            list(Streams(torch.arange(100).numpy(), 2, 8)),
            {},
            r"DataLoader\(batch_size=1\): must be batch_size=None",
        ),
        ([torch.ones(2, 3)], {"batch_size": None}, r"a batch is a Tensor: a loader yields Batch"),
        ([{"x": torch.ones(2, 3)}], {"batch_size": None}, r"a batch is a dict: a loader yields"),
    ],
)
def test_other_loaders_are_refused_in_one_line(
    tmp_path: Path, data: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        make_trainer(tmp_path, max_epochs=1).fit(new_module(), DataLoader(data, **options))
    with pytest.raises(UserError, match=words):
        make_trainer(tmp_path).validate(new_module(), DataLoader(data, **options), verbose=False)


@pytest.mark.parametrize("kind", [list, dict])
def test_two_loaders_of_validation_are_refused_in_one_line(tmp_path: Path, kind: type) -> None:
    loaders = kind(enumerate([streams(), streams()]))
    if kind is list:
        loaders = [streams(), streams()]
    with pytest.raises(
        UserError, match=r"^2 validation loaders: give one, and call validate for each further one$"
    ):
        make_trainer(tmp_path).validate(new_module(), loaders, verbose=False)


def test_a_checkpoint_within_an_accumulation_says_what_it_lacks(
    tmp_path: Path, capsys: Output
) -> None:
    notice.cache_clear()
    options = {"max_epochs": 1, "accumulate_grad_batches": 3, "enable_checkpointing": True}

    class BreaksWithin(L.Callback):
        def on_train_batch_start(
            self, trainer: L.Trainer, module: Any, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx == 4:
                raise RuntimeError("within")

    with pytest.raises(RuntimeError, match="within"):
        make_trainer(
            tmp_path,
            **options,
            callbacks=[BreaksWithin(), OnExceptionCheckpoint(tmp_path, "broken")],
        ).fit(new_module(), streams())
    assert (
        "checkpoint within an accumulation: the gradients of 1 batches are not in it"
        in capsys.readouterr().err
    )


def test_a_learning_rate_monitor_logs_every_interval(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="mine")
    options: dict[str, Any] = {
        "logger": logger,
        "log_every_n_steps": 2,
        "callbacks": [LearningRateMonitor()],
    }
    make_trainer(tmp_path, max_epochs=1, **options).fit(new_module(), streams())
    rows = csv_rows(tmp_path / "mine/version_0/metrics.csv")
    assert len([row for row in rows if row.get("lr-Adam")]) == 3


def test_groups_of_streams_are_batches_with_a_memory_each(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "trainer.stream_groups=2", "data.batch_size=5")
    batches = list(make_data(config).train_dataloader())
    assert [(batch.number, batch.group, len(batch.targets)) for batch in batches[:4]] == [
        (0, 0, 3),
        (0, 1, 2),
        (1, 0, 3),
        (1, 1, 2),
    ]


def saved(folder: Path, after: int, batch_size: int = B, **options: Any) -> Path:
    """Return a checkpoint of a new run in a user's Trainer after some steps."""
    keep = ModelCheckpoint(folder, every_n_train_steps=after, filename="saved")
    trainer = make_trainer(
        folder, max_steps=after, callbacks=[keep], enable_checkpointing=True, **options
    )
    trainer.fit(new_module(), streams(batch_size))
    return folder / "saved.ckpt"


@pytest.mark.parametrize("after", [5, 6, 7, 11, 12])
@pytest.mark.parametrize(("before", "now"), [(2, 4), (4, 2)])
def test_another_batch_size_resumes_anywhere_in_an_epoch(
    tmp_path: Path, after: int, before: int, now: int
) -> None:
    """An epoch then has half, or twice, as many batches."""
    path = saved(tmp_path, after, before)
    trainer = make_trainer(tmp_path, max_steps=after + 9)
    trainer.fit(new_module(), streams(now), ckpt_path=path)
    assert trainer.global_step == after + 9


def test_another_segment_length_resumes_with_a_line(tmp_path: Path, capsys: Output) -> None:
    path = saved(tmp_path, after=5)
    longer = Streams(streams().tokens, B, 2 * T)
    trainer = make_trainer(tmp_path, max_steps=8)
    trainer.fit(new_module(), longer, ckpt_path=path)
    assert trainer.global_step == 8
    assert "it was saved before segment 5, not 2" in capsys.readouterr().err


class Rates(L.Callback):
    """Notes the learning rate of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, module: Any, optimizer: Any) -> None:
        self.values.append(optimizer.param_groups[0]["lr"])


def test_a_resumed_run_follows_the_schedule_of_more_steps_at_once(tmp_path: Path) -> None:
    path = saved(tmp_path, after=6)
    resumed = Rates()
    whole = Rates()
    make_trainer(tmp_path, max_steps=12, callbacks=[resumed]).fit(
        new_module(), streams(), ckpt_path=path
    )
    make_trainer(tmp_path, max_steps=12, callbacks=[whole]).fit(new_module(), streams())
    assert resumed.values == whole.values[6:]


def test_the_rate_that_a_finder_suggests_is_trained_with(tmp_path: Path) -> None:
    module = new_module()
    rates = Rates()
    trainer = make_trainer(tmp_path, max_epochs=20, enable_checkpointing=True, callbacks=[rates])
    found = Tuner(trainer).lr_find(module, streams(), num_training=40)
    assert found is not None
    trainer.fit(module, streams())
    assert rates.values[0] == module.lr == found.suggestion()
    assert module.tokens == 20 * N * B * T


def test_an_optimizer_may_score_a_batch_several_times(tmp_path: Path) -> None:
    class WithLBFGS(LanguageModelModule):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)

    module = WithLBFGS.load_from_checkpoint(checkpoint())
    make_trainer(tmp_path, max_epochs=2).fit(module, streams())
    assert module.tokens == 2 * N * B * T


def test_two_optimizers_are_refused_by_lightning_and_work_by_hand(tmp_path: Path) -> None:
    class Two(LanguageModelModule):
        def configure_optimizers(self) -> Any:
            first, *others = self.parameters()
            return [torch.optim.SGD([first], 0.1), torch.optim.SGD(others, 0.1)]

    class ByHand(Two):
        automatic_optimization = False  # type: ignore[assignment]

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            optimizers: Any = self.optimizers()
            self.manual_backward(loss)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            return loss

    with pytest.raises(RuntimeError, match="multiple optimizers"):
        make_trainer(tmp_path, max_epochs=1).fit(Two.load_from_checkpoint(checkpoint()), streams())
    module = ByHand.load_from_checkpoint(checkpoint())
    make_trainer(tmp_path, max_epochs=2).fit(module, streams())
    assert module.tokens == 2 * N * B * T


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # a skipped first step
def test_a_gradient_scaler_of_the_trainer_skips_its_overflows(tmp_path: Path) -> None:
    """16-mixed needs a GPU in Lightning, but its plugin does not; gradients times 2^60 are infinite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    module = new_module()
    make_trainer(tmp_path, max_epochs=2, plugins=[plugin]).fit(module, streams())
    assert scaler.get_scale() < 2.0**60
    assert bool(module.finite)


def test_a_replaced_model_is_trained(tmp_path: Path) -> None:
    module = new_module()
    module.model = deepcopy(module.model)
    before = deepcopy(dict(module.named_parameters()))
    make_trainer(tmp_path, max_epochs=1).fit(module, streams())
    for name, parameter in module.named_parameters():
        assert not torch.equal(parameter, before[name])


@pytest.mark.parametrize("place", [torch.device("cpu"), {"cuda:0": "cpu"}, lambda x, _: x])
def test_every_map_location_of_lightning_is_accepted(place: Any) -> None:
    assert new_module(map_location=place).device.type == "cpu"


def test_a_shuffling_loader_is_refused_in_one_line(tmp_path: Path) -> None:
    tokens = torch.zeros(4 * B, T, dtype=torch.int64)
    loader = DataLoader(TensorDataset(tokens, tokens), batch_size=B, shuffle=True)
    with pytest.raises(UserError, match=r"^DataLoader\(shuffle=True\): must be False"):
        make_trainer(tmp_path, max_epochs=1).fit(new_module(), loader)


def test_loggers_get_the_config_and_the_version(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="mine")
    make_trainer(tmp_path, max_epochs=1, logger=logger).fit(new_module(), streams())
    shown = (tmp_path / "mine/version_0/hparams.yaml").read_text()
    assert "warmup_steps: 0" in shown
    assert "version: " in shown
