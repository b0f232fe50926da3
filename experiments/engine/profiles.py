"""Profiles of the reproduction: seeds, grids, measurements and estimates; the settings of one reproduction.

Model, lengths and hardware of a training run are in `conf/profile/NAME.yaml`; here is only what that file cannot hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments.engine.jobs import composed
from txl_lightning.config.schemas import Config


@dataclass(frozen=True)
class Profile:
    """Numbers of a reproduction beside those of `conf/profile/NAME.yaml`.

    Args:
        name: name of the file in `conf/profile`.
        note: first sentence of the report: how far its numbers can be trusted.
        needs: hardware, time and data in words, for `--plan`.
        seeds: seeds of the relative encoding with the full loss, with and without recurrence, on the profile's text.
        seeds_others: seeds of the other arms that claims compare.
        seeds_uncompared: seeds of the arms whose losses no claim compares.
        seeds_absolute: seeds of the arms with an absolute encoding that claims compare; None for `seeds_others`.
        seeds_of: seeds of single arms by `Arm.key`, in place of all these.
        attention_lengths: grid of Table 6's evaluation, in tokens.
        recurrent: sizes of Table 8's baselines by model, for as many parameters as the Transformer-XL of its group 1.
        evaluate, recl, speed, attention, generate: overrides of these commands.
        absolute: overrides of the trainings with an absolute encoding, such as their own learning rate.
        tokens_per_second: estimated speed of one training.
        measured: origin of `tokens_per_second`.
        seconds: estimated seconds of one job by command; for `train` the time outside of its steps.
        devices: devices of one training.
        main: published models to train if their corpora are present, as files of `conf/experiment/paper`.
        main_warmup_steps: warm-up of those models when they train only as long as the profile's own runs;
            None for their published length.
        table_7: published model of Table 7, trained if its corpus is present, as a file of `conf/experiment/paper`;
            None for the profile's own model on shuffled lines.
        train: overrides of every training.
        leave_out: arms that are not run, by `Arm.key`; rows and comparisons that need one are left out.
    """

    name: str
    note: str
    needs: str
    seeds: tuple[int, ...]
    seeds_others: tuple[int, ...]
    attention_lengths: tuple[int, ...]
    recurrent: dict[str, tuple[str, ...]]
    evaluate: tuple[str, ...]
    recl: tuple[str, ...]
    speed: tuple[str, ...]
    attention: tuple[str, ...]
    generate: tuple[str, ...]
    tokens_per_second: float
    measured: str
    seconds: dict[str, float]
    seeds_uncompared: tuple[int, ...] = (1,)
    devices: int = 1
    main: tuple[str, ...] = ()
    main_warmup_steps: int | None = None
    table_7: str | None = None
    train: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    absolute: tuple[str, ...] = ()
    seeds_absolute: tuple[int, ...] | None = None
    seeds_of: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def accelerator(self) -> str:
        """Accelerator of `conf/profile/NAME.yaml`: cpu or gpu."""
        return self._training.trainer.accelerator

    @property
    def main_overrides(self) -> tuple[str, ...]:
        """Overrides of the published models: the length of the profile's own runs, or none."""
        if self.main_warmup_steps is None:
            return ()
        lengths = {name: getattr(self._training.trainer, name) for name in ("max_steps", "val_every_n_steps")}
        words = (f"trainer.{name}={value}" for name, value in lengths.items())
        return (*words, f"optimizer.warmup_steps={self.main_warmup_steps}")

    @property
    def _training(self) -> Config:
        return composed((f"profile={self.name}",))


ADAPTIVE = ("model.cutoffs=[20000,40000,200000]", "model.div_val=4")  # adaptive softmax for WikiText-103's words
DROPOUT = ("model.dropout=0.1", "model.hidden_dropout=0.1")

SMOKE = Profile(
    name="smoke",
    note="A smoke run: it shows that everything works; its numbers mean nothing.",
    needs="two CPU cores, 3 GB of memory, 0.2 GB of disk",
    seeds=(1,),
    seeds_others=(1,),
    attention_lengths=(32, 96),
    recurrent={"lstm": ("model.n_layer=1", "model.d_model=64"), "qrnn": ("model.d_model=48",)},
    evaluate=("max_segments=10",),
    recl=("first_context=8", "step=8", "max_context=24", "n_positions=60", "bootstrap=100"),
    speed=(
        *("levels=[char]", "n_layer=2", "d_model=32", "n_head=2", "d_inner=64"),
        *("attention_lengths=[50,100,200]", "rounds=3"),
    ),
    attention=("mem_len=32", "max_segments=8"),
    generate=("context=64", "n_tokens=80", "n_samples=1", "mem_len=64"),
    train=(
        *("trainer.max_steps=60", "trainer.val_every_n_steps=30"),
        *("trainer.val_max_segments=4", "evaluation.max_segments=10"),
    ),
    leave_out=(  # every section, encoding, loss and claim still has a run
        "recurrence-relative-half_loss",
        "no_recurrence-shaw-full_loss",
        "no_recurrence-shaw-half_loss",
        "no_recurrence-absolute-full_loss",
        "no_recurrence-relative-full_loss-longer_segments_equal_steps",
        "no_recurrence-relative-half_loss-longer_segments_equal_tokens",
        "no_recurrence-relative-half_loss-longer_segments_equal_steps",
        "shuffled_lines-recurrence-shaw-full_loss",
    ),
    tokens_per_second=15_000,
    measured="one of two cores of an AMD EPYC",
    seconds={"train": 4, "evaluate": 3, "recl": 4, "speed": 6, "attention": 8, "generate": 4},
)

LAPTOP = Profile(
    name="laptop",
    note="These are small models after a short training: they show the sign of a difference, not its size in the "
    "paper. Their numbers are not the paper's.",
    needs="two CPU cores, 4 GB of memory, 0.5 GB of disk",
    seeds=(1, 2, 3),
    seeds_others=(1, 2, 3),
    seeds_of={
        "no_recurrence-relative-full_loss-longer_segments_equal_tokens": (1, 2),  # two decided its claim before
        "shuffled_lines-recurrence-relative-full_loss": (1, 2, 3, 4),  # three left their claim within noise
        "shuffled_lines-no_recurrence-relative-full_loss": (1, 2, 3, 4),
    },
    attention_lengths=(32, 64, 128, 256, 384),
    recurrent={"lstm": ("optimizer.lr=3.5e-3",), "qrnn": ("optimizer.lr=3.5e-3",)},
    evaluate=("batch_size=32", "max_segments=1000000", "sweep_tokens=50000", "precision=auto"),  # all segments
    recl=(
        *("first_context=32", "step=32"),  # a tenth of the longest context, as the paper's 100 of 1,000
        "max_context=320",  # twice the tokens that a token saw in training
        "n_positions=10000",  # docs/effective-context.md has the intervals
        "position_windows=0",
        "precision=auto",
    ),
    speed=("levels=[char]", "n_layer=3", "d_model=96", "n_head=4", "d_inner=384", "rounds=5", "budget_seconds=70"),
    attention=("mem_len=128", "max_segments=40"),
    generate=("context=256", "n_tokens=500", "n_samples=2", "mem_len=128"),
    train=("evaluation.max_segments=20",),  # the tables score whole runs in jobs of their own
    absolute=("optimizer.lr=3.5e-3",),
    seeds_absolute=(1,),  # far from the other arms
    leave_out=(
        "recurrence-relative-half_loss",
        "no_recurrence-shaw-full_loss",
        "no_recurrence-relative-full_loss-longer_segments_equal_steps",
        "no_recurrence-relative-half_loss-longer_segments_equal_tokens",
        "no_recurrence-relative-half_loss-longer_segments_equal_steps",
        "shuffled_lines-recurrence-shaw-full_loss",
    ),
    tokens_per_second=20_000,
    measured="one of two cores of an Intel Xeon, bfloat16, two runs at once",
    seconds={"train": 8, "evaluate": 20, "recl": 85, "speed": 30, "attention": 15, "generate": 8},
)

# No claim compares the arms of `seeds_uncompared`, but three seeds of every row still fit into three hours.
EVENING = replace(
    LAPTOP,
    name="evening",
    needs="two CPU cores for up to three hours, 4 GB of memory, 1 GB of disk",
    seeds_of={},
    seeds_absolute=None,
    seeds_uncompared=(1, 2, 3),
    leave_out=(),
)

GPU = Profile(
    name="gpu",
    note="These models had a fraction of the paper's training: compare their order with the paper's, not their "
    "numbers.",
    needs="one GPU of 40 GB or more for a day, or two with all corpora, 32 GB of memory, 60 GB of disk, the corpora "
    "(TXL_DATA)",
    seeds=(1, 2, 3),
    seeds_others=(1, 2),
    attention_lengths=(120, 180, 260, 340, 420, 500, 640),
    recurrent={
        "lstm": ("model.n_layer=3", "model.d_model=1805", *ADAPTIVE, *DROPOUT, "optimizer.lr=1e-3"),
        "qrnn": ("model.n_layer=4", "model.d_model=1805", *ADAPTIVE, *DROPOUT, "optimizer.lr=1e-3"),
    },
    evaluate=("accelerator=gpu", "precision=auto"),
    recl=(
        *("first_context=100", "step=100", "max_context=1000", "n_positions=5000"),
        *("accelerator=gpu", "precision=auto"),
    ),
    speed=("levels=[char,word]", "n_layer=12", "d_model=512", "d_inner=2048", "accelerator=gpu"),
    attention=("mem_len=640", "split=valid", "accelerator=gpu"),
    generate=("context=512", "n_tokens=1000", "n_samples=3", "mem_len=1000", "accelerator=gpu"),
    tokens_per_second=90_000,
    measured="a guess for one H100, not measured: others report 60,000 for wt103 base on an A100 (mixed precision)",
    seconds={"train": 120, "evaluate": 400, "recl": 1200, "speed": 480, "attention": 120, "generate": 120},
    main=("wt103_base", "enwik8_base", "text8_base", "lm1b_base_paper"),
    main_warmup_steps=1000,
    table_7="table7",
)

PAPER = replace(
    GPU,
    name="paper",
    note="These are the published settings where there are any. The sizes of the ablation's and of Table 7's model and "
    "the baselines are ours.",
    needs="up to eight GPUs of 80 GB for weeks, or a cluster (--prefix 'srun …'); 200 GB of disk, all corpora",
    evaluate=("accelerator=gpu",),  # in float32, as the numbers of the paper
    attention_lengths=(120, 180, 256, 260, 300, 340, 400, 450, 460, 500, 640, 800),
    recl=("first_context=100", "step=100", "max_context=1200", "n_positions=10000", "accelerator=gpu"),
    speed=("levels=[char,word]", "n_layer=24", "d_model=1024", "d_inner=3072", "accelerator=gpu"),
    tokens_per_second=450_000,
    measured="wt103 base on eight A100, measured by others (mixed precision)",
    seconds={"train": 600, "evaluate": 1200, "recl": 7200, "speed": 480, "attention": 600, "generate": 300},
    devices=8,
    main=(
        *("wt103_base", "wt103_large", "enwik8_base", "enwik8_18l"),
        *("enwik8_large", "text8_large", "lm1b_base_paper", "lm1b_large"),
    ),
    main_warmup_steps=None,
)

PROFILES = {profile.name: profile for profile in (SMOKE, LAPTOP, EVENING, GPU, PAPER)}


@dataclass(frozen=True)
class Setup:
    """Settings of one reproduction.

    Args:
        profile: sizes, seeds and estimates.
        overrides: the user's, appended to every `txl train`.
        directory: folder of everything it writes.
        planning: only print a plan: nothing is written, and a corpus may be missing.
        sections: names of the chosen sections, in the report's order.
        parallel: jobs that run at once; None for one on each core, or on each GPU that a job does not share.
        logger: wandb, csv or none.
        prefix: words in front of every job's command, such as `srun --nodes 2`.
        command: command line that makes the same report.
    """

    profile: Profile
    overrides: tuple[str, ...]
    directory: Path
    planning: bool = False
    sections: tuple[str, ...] = ()
    parallel: int | None = None
    logger: str = "wandb"
    prefix: tuple[str, ...] = ()
    command: str = ""

    @property
    def runs(self) -> Path:
        """Folder of all runs."""
        return self.directory / "runs"

    @property
    def figures(self) -> Path:
        """Folder of the report's figures."""
        return self.directory / "figures"
