"""Beyond the paper: Table 6 with later encodings, gates, memories and recipes, on the same footing.

Paper: none of it. RoPE (Su et al. 2021), ALiBi (Press et al. 2022), no encoding at all (Haviv et al. 2022), forgetting
attention (Lin et al. 2025), gates behind attention (Qiu et al. 2025), GTrXL (Parisotto et al. 2019), the
Compressive Transformer (Rae et al. 2020), memory tokens (Bulatov et al. 2022), gradients through the memory, and the
parts of later recipes.
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
from experiments.tables.arms import Arm, Variant, kept, trainings
from experiments.tables.comparisons import Comparison, compare, comparisons_table, planned
from experiments.tables.length_sweep import OFF, ON, At, Evaluations, evaluations, loss_columns, with_sweeps
from experiments.tables.table_8 import recl_cell, recl_job
from txl_lightning.config.schemas import Config

TITLE = "Beyond the paper: later encodings, gates, memories and recipes"
PAPER = (
    "The paper has none of these. RoPE (Su et al. 2021) rotates queries and keys, ALiBi (Press et al. 2022) adds a "
    "penalty that grows with the distance; without any encoding a causal model can still learn positions (Haviv et al. "
    "2022). Forgetting attention (Lin et al. 2025) lets every head forget by gates that read the text, and needs no "
    "encoding. Gates behind attention (Qiu et al. 2025) scale its output; GTrXL (Parisotto et al. 2019) has gates in "
    "place of residual sums. The Compressive Transformer (Rae et al. 2020) reports 0.97 bpc on enwik8, where the paper "
    "has 0.99. The Recurrent Memory Transformer (Bulatov et al. 2022) hands on a few trained memory tokens; 10 of them "
    "did as well as 150 states. Its gradient flows through them; that of Transformer-XL stops at its memory."
)
LATER_ENCODINGS = ("rope", "alibi", "none")
RATE = 4  # states that become one compressed state
N_TOKENS = (4, 16)
MOST = max(N_TOKENS)
PARTS = ("pre-norm", "RMSNorm", "gated feed-forward", "QK-norm", "separate qkv")


def gated_width(d_inner: int) -> int:
    """Return the width that gives three matrices as many weights as two of `d_inner`, as a multiple of 8."""
    return max(8, 8 * round(2 * d_inner / 3 / 8))


def sized(config: Config, given: tuple[str, ...] = (), lacks: int = 0) -> tuple[str, ...]:
    """Return given overrides, and the feed-forward width that makes up for matrices of D·H·E weights in every layer.

    Args:
        config: that of profile and user.
        given: overrides of the arm.
        lacks: number of matrices that the arm has less, such as W_{k,R} without the relative encoding.
    """
    model: Any = config.model
    return (*given, f"model.d_inner={model.d_inner + lacks * model.n_head * model.d_head // 2}")


def gated_residual(config: Config) -> tuple[str, ...]:
    """Return GTrXL's residual in two thirds of the layers, with a feed-forward that makes them as large as all before.

    Its gates have 12·D² weights a layer, nearly as many as all other parts.
    """
    model: Any = config.model
    D, layers = model.d_model, round(2 * model.n_layer / 3)
    attention = 5 * D * model.n_head * model.d_head
    of_layer = model.n_layer * (attention + 2 * D * model.d_inner) // layers
    d_inner = (of_layer - attention - 12 * D * D) // (2 * D)
    return ("beyond=gru_residual", f"model.n_layer={layers}", f"model.d_inner={d_inner}")


def through(config: Config, segments: int) -> tuple[str, ...]:
    """Return the overrides of a gradient that flows through the memory of earlier segments, at equal tokens a step."""
    streams = max(1, config.data.batch_size // (segments + 1))
    return (f"memory.gradient_segments={segments}", f"data.batch_size={streams}")


def memory_tokens(config: Config, n: int, states: bool = False, segments: int = 1) -> tuple[str, ...]:
    """Return the overrides of memory tokens, with a memory of states or without."""
    memory = ("memory=tokens", f"memory.n_tokens={n}", f"memory.mem_len={config.memory.mem_len if states else 0}")
    return (*memory, *through(config, segments))


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


def changed(name: str, recipe: str | None, changes: Callable[..., tuple[str, ...]], **options: Any) -> Arm:
    """Return the arm with recurrence and the relative encoding that has a change, and its recipe."""
    return Arm(variant=Variant(name, partial(changes, **options), recipe))


AS_LARGE = partial(sized, lacks=1)
ROPE, ALIBI, NONE = (Arm(True, name, variant=Variant("equal parameters", AS_LARGE, name)) for name in LATER_ENCODINGS)
ROPE_OFF, NONE_OFF = (Arm(False, name, variant=Variant("equal parameters", AS_LARGE)) for name in ("rope", "none"))
GATE = ("beyond=forget_gate",)
FORGET = changed("forget gate", "forget_gate", sized, given=GATE)
FORGET_ALONE = Arm(True, "none", variant=Variant("forget gate", partial(AS_LARGE, given=GATE), "forget_gate_alone"))
HEAD_GATE = changed("gate of every head", "head_gate", sized, given=("beyond=attention_gate",))
ELEMENT_GATE = changed(
    "gate of every element", "element_gate", sized, given=("beyond=attention_gate", "beyond.gates=element"), lacks=-1
)
GATED_RESIDUAL = changed("gated residual", "gated_residual", gated_residual)
POOLED = changed("memory compressed by pooling", None, compressed, compression="mean")
CONVOLVED = changed("memory compressed by convolution", None, compressed, compression="conv")
EARLIER = {1: "1 earlier segment", 3: "3 earlier segments"}
THROUGH = {k: changed(f"gradient through {name}", "gradients", through, segments=k) for k, name in EARLIER.items()}
TOKENS = {n: changed(f"{n} memory tokens and no states", "memory_tokens", memory_tokens, n=n) for n in N_TOKENS}
BOTH = {n: changed(f"{n} memory tokens and states", "memory_tokens", memory_tokens, n=n, states=True) for n in N_TOKENS}
TOKENS_ALONE = changed(
    f"{MOST} memory tokens and no states or gradient", "memory_tokens", memory_tokens, n=MOST, segments=0
)
MODERN = changed("modern recipe", "modern", recipe)
WITHOUT = {part: changed(f"recipe without {part}", "modern", recipe, without=part) for part in PARTS}
ARMS = {  # names in the table and in the figures
    "relative": ON,
    "relative without memory": OFF,
    "RoPE": ROPE,
    "RoPE without memory": ROPE_OFF,
    "ALiBi": ALIBI,
    "no encoding": NONE,
    "no encoding or memory": NONE_OFF,
    "forget gate": FORGET,
    "forget gate, no encoding": FORGET_ALONE,
    "gate of every head": HEAD_GATE,
    "gate of every element": ELEMENT_GATE,
    "gated residual": GATED_RESIDUAL,
    "memory compressed by pooling": POOLED,
    "memory compressed by convolution": CONVOLVED,
    **{f"{n} memory tokens": arm for n, arm in TOKENS.items()},
    **{f"{n} memory tokens and states": arm for n, arm in BOTH.items()},
    f"{MOST} memory tokens, no gradient": TOKENS_ALONE,
    **{f"gradient through {name}": THROUGH[k] for k, name in EARLIER.items()},
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
    ("a_gate_replaces_an_encoding/none", FORGET_ALONE, NONE, "best"),
    ("a_gate_replaces_an_encoding/relative", FORGET_ALONE, ON, "best"),
    ("forgetting_helps/init", FORGET, ON, "init"),
    ("gates_behind_attention_help/head", HEAD_GATE, ON, "init"),
    ("gates_behind_attention_help/element", ELEMENT_GATE, ON, "init"),
    ("a_gated_residual_helps/init", GATED_RESIDUAL, ON, "init"),
    ("compression_pays/mean", POOLED, ON, "init"),
    ("compression_pays/conv", CONVOLVED, ON, "init"),
    *((f"memory_tokens_are_a_memory/{n}", arm, OFF, "init") for n, arm in TOKENS.items()),
    *((f"memory_tokens_replace_states/{n}", arm, ON, "init") for n, arm in TOKENS.items()),
    *((f"memory_tokens_add_to_states/{n}", arm, THROUGH[1], "init") for n, arm in BOTH.items()),
    ("memory_tokens_need_gradients/init", TOKENS[MOST], TOKENS_ALONE, "init"),
    *((f"gradients_help/{k}", arm, ON, "init") for k, arm in THROUGH.items()),
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
            "encoding where an encoding has none, and narrower by those of the gate of every element; with the gated "
            "residual the model has two thirds of the layers. The learning rate of every family was searched in "
            f"equally few trials ({config.optimizer.name}); the table has it. Losses are scored as in Table 6. A "
            f"compressed memory has as many states as the plain one; half of them hold {RATE} earlier states each. "
            "A gradient through the memory of k segments reads k + 1 segments a step, of fewer streams; with memory "
            "tokens k is 1. These have no attention length: their best length is training's. The modern recipe is "
            "pre-norm with a final norm, RMSNorm, a SwiGLU of 2/3 of the width, and QK-norm. Where Muon trains, "
            "queries, keys and values are separate matrices in every arm but one. RECL is that of one group, the first "
            "seed of each arm."
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
    """Return the trainings of every arm.

    With Adam a joint matrix of queries, keys and values has no other step: no arm for it.
    """
    muon = setup.config.optimizer.name == "muon"
    arms = [arm for arm in kept(NAMED.values(), setup) if muon or arm != WITHOUT["separate qkv"]]
    return {arm: trainings(arm, setup, compared=arm in ARMS.values()) for arm in arms}


def _recl(runs: dict[Arm, list[Job]], setup: Setup) -> Job:
    members = {name: runs[arm][0] for name, arm in ARMS.items() if arm in runs}
    return recl_job("recl-beyond", "beyond the paper", members, setup)


def _table(runs: dict[Arm, list[Job]], evaluated: Evaluations, recl: dict[str, Any], outcomes: Outcomes) -> Table:
    names = {arm: name for name, arm in NAMED.items() if arm in runs}
    lengths = {model["name"]: model["recl"]["0.1"] for model in recl["models"]}
    metrics = {arm: {run.seed or 0: outcomes.metrics(run) for run in arm_runs} for arm, arm_runs in runs.items()}

    configs = {arm: composed(arm_runs[0].overrides) for arm, arm_runs in runs.items()}

    def states(arm: Arm) -> int:
        memory = configs[arm].memory
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
            ours("tokens", "memory tokens"): lambda arm: cell(configs[arm].memory.n_tokens, 0),
            ours("lr", "learning rate"): lambda arm: cell(configs[arm].optimizer.lr, 4),
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
