"""Beyond the paper: Table 6 with later encodings, a compressed memory and later recipes, on the same footing.

Paper: none of it. RoPE (Su et al. 2021), ALiBi (Press et al. 2022), no encoding at all (Haviv et al. 2022), the
Compressive Transformer (Rae et al. 2020), and the parts of later recipes.
Runs: the relative encoding with and without memory, which are Table 6's, and every other arm at equal parameters and
tokens; each is evaluated as Table 6's rows are, and `txl recl` has the first seed of each in one group.
Writes: the table with RECL, speed and memory of every arm, the differences, and the figures of RECL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.profiles import Setup
from experiments.report.sections import Number, Section, Table, cell, copied_figures, label, ours, over_seeds
from experiments.tables.arms import Arm, Variant, kept, training
from experiments.tables.comparisons import Comparison, compare, comparisons_table, planned
from experiments.tables.length_sweep import OFF, ON, At, Evaluations, evaluations, loss_columns, with_sweeps
from experiments.tables.table_8 import recl_cell, recl_job
from txl_lightning.config.schemas import Config

TITLE = "Beyond the paper: later encodings, memories and recipes"
PAPER = (
    "The paper has none of these. RoPE (Su et al. 2021) rotates queries and keys, ALiBi (Press et al. 2022) adds a "
    "penalty that grows with the distance; without any encoding a causal model can still learn positions (Haviv et al. "
    "2022). The Compressive Transformer (Rae et al. 2020) reports 0.97 bpc on enwik8, where the paper has 0.99."
)
RATE = 4  # states that become one compressed state
PARTS = ("pre-norm", "RMSNorm", "gated feed-forward", "QK-norm", "separate qkv")


def gated_width(d_inner: int) -> int:
    """Return the width that gives three matrices as many weights as two of `d_inner`, as a multiple of 8."""
    return max(8, 8 * round(2 * d_inner / 3 / 8))


def wider(config: Config) -> tuple[str, ...]:
    """Return the feed-forward width that has the weights of W_{k,R}, D·H·E a layer, which other encodings lack."""
    model: Any = config.model
    return (f"model.d_inner={model.d_inner + model.n_head * model.d_head // 2}",)


def recipe(config: Config, without: str = "") -> tuple[str, ...]:
    """Return the overrides of the modern recipe, as in `conf/experiment/laptop_modern.yaml`, or of all but one part."""
    model: Any = config.model
    parts = {
        "pre-norm": ("model.pre_norm=true", "model.final_norm=true"),
        "RMSNorm": ("model.norm=rms",),
        "gated feed-forward": ("model.feed_forward=swiglu", f"model.d_inner={gated_width(model.d_inner)}"),
        "QK-norm": ("model.qk_norm=true",),
    }
    words = tuple(word for name, part in parts.items() if name != without for word in part)
    return (*words, "optimizer.split_qkv=false") if without == "separate qkv" else words


def compressed(config: Config, compression: str) -> tuple[str, ...]:
    """Return the overrides of a memory of which half of the states are compressed, with as many states in all."""
    half = config.memory.mem_len // 2
    lengths = (f"memory.mem_len={config.memory.mem_len - half}", f"memory.compressed_len={half}")
    return ("memory=compressive", *lengths, f"memory.rate={RATE}", f"memory.compression={compression}")


WIDER = Variant("equal parameters", wider)
ROPE, ALIBI, NONE = (Arm(True, name, variant=WIDER) for name in ("rope", "alibi", "none"))
ROPE_OFF, NONE_OFF = (Arm(False, name, variant=WIDER) for name in ("rope", "none"))
POOLED = Arm(variant=Variant("memory compressed by pooling", partial(compressed, compression="mean")))
CONVOLVED = Arm(variant=Variant("memory compressed by convolution", partial(compressed, compression="conv")))
MODERN = Arm(variant=Variant("modern recipe", recipe))
WITHOUT = {part: Arm(variant=Variant(f"recipe without {part}", partial(recipe, without=part))) for part in PARTS}
ARMS = {  # names in the table and in the figures
    "relative": ON,
    "relative without memory": OFF,
    "RoPE": ROPE,
    "RoPE without memory": ROPE_OFF,
    "ALiBi": ALIBI,
    "no encoding": NONE,
    "no encoding or memory": NONE_OFF,
    "memory compressed by pooling": POOLED,
    "memory compressed by convolution": CONVOLVED,
    "modern recipe": MODERN,
}
NAMED = ARMS | {f"recipe without {part}": arm for part, arm in WITHOUT.items()}
COMPARED: tuple[tuple[str, Arm, Arm, At], ...] = (  # key, the arm that is lower if the claim is right, the other
    ("beyond/relative_memory", ON, OFF, "init"),
    ("memory_helps_with_rope/init", ROPE, ROPE_OFF, "init"),
    ("memory_helps_without_an_encoding/init", NONE, NONE_OFF, "init"),
    ("an_encoding_is_needed/relative", ON, NONE, "best"),
    ("later_encodings_are_better/rope", ROPE, ON, "best"),
    ("later_encodings_are_better/alibi", ALIBI, ON, "best"),
    ("compression_pays/mean", POOLED, ON, "init"),
    ("compression_pays/conv", CONVOLVED, ON, "init"),
    ("modern_recipe_helps/init", MODERN, ON, "init"),
)


def jobs(setup: Setup) -> list[Job]:
    """Return every run, its evaluation, and the RECL of all arms."""
    runs = _runs(setup)
    return [*with_sweeps(runs, setup), _recl(runs, setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the table, the differences and the figures."""
    runs = _runs(setup)
    evaluated = evaluations(runs, setup, outcomes)
    recl = outcomes.result(_recl(runs, setup), "recl.json")
    found = differences(evaluated, outcomes)
    config = composed(runs[ON][0].overrides)
    captions = {
        "gains_r0.1": ("Gain of a longer context, at the hardest tenth of positions.", "Gain by context"),
        "contexts": ("Loss by context, all positions.", "Loss by context, arms beyond the paper"),
        "differences": (
            "Loss minus that of the relative encoding, ± standard error of the difference.",
            "Difference of the loss by context, arms beyond the paper",
        ),
    }
    return Section(
        id="beyond",
        title=TITLE,
        paper=PAPER,
        here=(
            "Every arm has as many parameters as the first, within 1 % (the convolutions of the compressed memory come "
            "on top), and as many tokens of training: the feed-forward is wider by the weights of the relative "
            "encoding where an encoding has none. All arms have the recipe that was chosen for the paper's model "
            f"({config.optimizer.name}, learning rate {config.optimizer.lr:g}); nothing was searched for another arm. "
            "Losses are scored as in Table 6. A compressed memory has as many states as the plain one; half of them "
            f"hold {RATE} earlier states each. The modern recipe is pre-norm with a final norm, RMSNorm, a SwiGLU of "
            "2/3 of the width, and QK-norm. Where Muon trains, queries, keys and values are separate matrices in every "
            "arm but one. RECL is that of one group, the first seed of each arm."
        ),
        tables=(_table(runs, evaluated, recl, outcomes), comparisons_table("beyond", TITLE, outcomes.unit, 3, found)),
        figures=copied_figures(outcomes, _recl(runs, setup), captions),
    )


def differences(evaluated: Evaluations, outcomes: Outcomes) -> list[Comparison]:
    """Return the differences that claims are judged by, and what the recipe loses without each part."""
    parts: list[tuple[str, Arm, Arm, At]] = [(f"beyond/{arm.key}", MODERN, arm, "init") for arm in WITHOUT.values()]
    return [
        compare(key, better, worse, at, evaluated, outcomes)
        for key, better, worse, at in (*COMPARED, *parts)
        if planned(better, outcomes) and planned(worse, outcomes)
    ]


def _runs(setup: Setup) -> dict[Arm, list[Job]]:
    """Return the trainings of every arm: all seeds where a claim compares its losses.

    With Adam a joint matrix of queries, keys and values has no other step: no arm for it.
    """
    profile, compared = setup.profile, set(ARMS.values())
    muon = setup.config.optimizer.name == "muon"
    arms = [arm for arm in kept(NAMED.values(), setup) if muon or arm != WITHOUT["separate qkv"]]
    return {
        arm: [training(arm, seed, setup) for seed in (profile.seeds if arm in compared else profile.seeds_uncompared)]
        for arm in arms
    }


def _recl(runs: dict[Arm, list[Job]], setup: Setup) -> Job:
    members = {name: runs[arm][0] for name, arm in ARMS.items() if arm in runs}
    return recl_job("recl-beyond", "beyond the paper", members, setup)


def _table(runs: dict[Arm, list[Job]], evaluated: Evaluations, recl: dict[str, Any], outcomes: Outcomes) -> Table:
    names = {arm: name for name, arm in NAMED.items() if arm in runs}
    lengths = {model["name"]: model["recl"]["0.1"] for model in recl["models"]}
    metrics = {arm: {run.seed or 0: outcomes.metrics(run) for run in arm_runs} for arm, arm_runs in runs.items()}

    def states(arm: Arm) -> int:
        memory = composed(runs[arm][0].overrides).memory
        return memory.mem_len + memory.compressed_len

    def mean(arm: Arm, value: Callable[[dict[str, Any]], float]) -> Number:
        return over_seeds({seed: value(found) for seed, found in metrics[arm].items()}, 0)

    return Table.filled(
        "beyond",
        TITLE,
        {arm.key: arm for arm in names},
        {
            label("arm"): lambda arm: names[arm],
            **loss_columns(evaluated, outcomes.unit),
            ours("recl", "RECL at r = 0.1", "tokens"): lambda arm: (
                recl_cell(lengths[names[arm]]) if names[arm] in lengths else None
            ),
            ours("parameters", "parameters"): lambda arm: cell(next(iter(metrics[arm].values()))["parameters"], 0),
            ours("states", "memory, states of a layer"): lambda arm: cell(states(arm), 0),
            ours("speed", "training", "tokens/s"): lambda arm: mean(arm, lambda run: run["tokens"] / run["seconds"]),
            ours("peak", "peak memory of training", "MB"): lambda arm: mean(
                arm, lambda run: run["peak_memory_bytes"] / 2**20
            ),
        },
        notes=(
            "Peak memory: tensors on a GPU; on a CPU the whole process with its libraries. Speeds are of jobs that ran "
            "beside others.",
        ),
    )
