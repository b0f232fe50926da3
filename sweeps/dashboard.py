"""Dashboard as code: `python -m sweeps.dashboard [--project P] [--entity E] [--output FILE] [--push]`.

A W&B workspace with the ablation (runs grouped by arm), learning curves by arm, RECL and context
curves, speed and attention. Without `--push` the workspace is written as JSON, the same bytes every time, without a
network or a key. Panels show metrics that `txl train`, `evaluate`, `recl`, `speed` and `attention` log.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import wandb

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import UserError

try:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
except ImportError as error:
    sys.exit(f"dashboard: needs pip install 'txl_lightning[dashboard]' ({error})")

NAME = "Transformer-XL"
RUNSET_ID = "txl-runs"
BY_ARM: dict[str, Any] = {
    "groupby": wr.Config("arm"),
    "groupby_aggfunc": "mean",
    "groupby_rangefunc": "stderr",
}
UNITS = {"bpc": "bits per character", "bpb": "bits per byte", "ppl": "perplexity"}
FRACTIONS = ("0.1", "0.5", "1.0")  # r: share of hardest positions
PINNED = (
    *(
        "config:arm.value",
        "summary:final/test/bpc",
        "summary:final/test/bpb",
        "summary:final/test/ppl",
    ),
    *("summary:val/bpc.min", "summary:val/bpb.min", "summary:val/ppl.min"),
    *("config:memory.value.mem_len", "config:data.value.segment_len"),
    *(
        "config:optimizer.value.lr",
        "config:seed.value",
        "summary:final/parameters",
        "summary:final/tokens",
    ),
)


def workspace(entity: str, project: str) -> ws.Workspace:
    """Build the workspace; its ids depend on its content only."""
    built = ws.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=[
            ablation(),
            learning_curves(),
            recl_and_context(),
            speed(),
            attention(),
            sweep_results(),
        ],
        settings=ws.WorkspaceSettings(x_axis="tokens", max_runs=50),
        runset_settings=ws.RunsetSettings(groupby=[ws.Config("arm")], pinned_columns=list(PINNED)),
    )
    _fix_ids(built)
    return built


def _fix_ids(built: ws.Workspace) -> None:
    """Replace the random ids that W&B draws (`_internal_runset_id`, `_id`) by ids derived from the content."""
    built._internal_runset_id = RUNSET_ID
    for section in built.sections:
        panels: list[Any] = section.panels
        for i, panel in enumerate(panels):
            panel._id = f"{re.sub('[^a-z]+', '-', section.name.lower())}-{i}"


def section(name: str, panels: list[Any], columns: int = 3) -> ws.Section:
    """Build an open section; its curves have tokens on the x axis."""
    rows = max(1, -(-len(panels) // columns))
    layout = ws.SectionLayoutSettings(columns=columns, rows=rows)
    settings = ws.SectionPanelSettings(x_axis="tokens")
    return ws.Section(
        name=name, panels=panels, is_open=True, layout_settings=layout, panel_settings=settings
    )


def curve(metric: str, title: str, unit: str, **options: Any) -> Any:
    """Build a plot with a metric over tokens: one line for each arm, mean and standard error over its runs."""
    return wr.LinePlot(
        title=title, x="tokens", y=[metric], title_x="tokens", title_y=unit, **{**BY_ARM, **options}
    )


def ablation() -> ws.Section:
    """Build the section on Table 6: test loss by arm, attention lengths, and the options that differ between runs."""
    bars = [
        wr.BarPlot(
            title=f"Test {name}, best weights",
            metrics=[f"final/test/{unit}"],
            title_x=name,
            **BY_ARM,
        )
        for unit, name in UNITS.items()
    ]
    lengths = wr.MediaBrowser(
        title="Loss by attention length", media_keys=["evaluate/attention_lengths"]
    )
    return section("Ablation", [*bars, lengths, wr.RunComparer(diff_only="split")])


def learning_curves() -> ws.Section:
    """Build the section with losses by arm, and the metrics in which an unstable run shows first."""
    losses = [
        curve(f"{split}/{unit}", f"{title} loss", name)
        for split, title in (("val", "Validation"), ("train", "Training"))
        for unit, name in UNITS.items()
    ]
    others = [
        curve("train/learning_rate", "Learning rate", "learning rate"),
        curve("train/gradient_norm", "Gradient norm before clipping", "L2 norm"),
        curve("train/memory_length", "Memory", "tokens"),
    ]
    return section("Learning curves by arm", [*losses, *others], columns=2)


def recl_and_context() -> ws.Section:
    """Build the section on Table 8, Figures 3 and 4, and RECL during training."""
    gains = [f"recl/gains_r{r}" for r in FRACTIONS]
    figures = wr.MediaBrowser(
        title="Loss by context and gains", media_keys=["recl/contexts", *gains]
    )
    growth = [
        curve(f"recl/{r}", f"RECL of the model alone, r = {r}", "tokens of context")
        for r in FRACTIONS
    ]
    return section("RECL and context", [figures, *growth])


def speed() -> ws.Section:
    """Build the section on training speed by arm and Table 9."""
    trained = curve("train/tokens_per_second", "Training", "tokens/s")
    return section(
        "Speed",
        [trained, wr.MediaBrowser(title="Table 9: time per token", media_keys=["speed/speed"])],
    )


def attention() -> ws.Section:
    """Build the section on Figures 5 to 7."""
    figures = {
        "by_distance": "Figure 5: by distance",
        "text": "Figure 6: on a text",
        "terms": "Figure 7: by term",
    }
    images = [
        wr.MediaBrowser(title=title, media_keys=[f"attention/{name}"])
        for name, title in figures.items()
    ]
    return section("Attention", images, columns=2)


def sweep_results() -> ws.Section:
    """Build the section on this folder's sweeps: validation loss (nats per token) by option."""
    options = ("optimizer.lr", "memory.mem_len", "data.segment_len")
    columns = [wr.ParallelCoordinatesPlotColumn(metric=wr.Config(name)) for name in options]
    columns.append(wr.ParallelCoordinatesPlotColumn(metric="final/val/nll", inverted=True))
    coordinates = wr.ParallelCoordinatesPlot(title="Options and validation nll", columns=columns)
    importance = wr.ParameterImportancePlot(with_respect_to="final/val/nll")
    return section("Sweeps", [coordinates, importance], columns=2)


def as_json(entity: str, project: str) -> str:
    """Return the workspace in W&B's JSON format, with its entity and project."""
    view = workspace(entity, project)._to_model()  # there is no public way without an account
    spec = view.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    document = {
        "entity": entity,
        "project": project,
        "name": NAME,
        "type": "project-view",
        "spec": spec,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def push(entity: str, project: str) -> str:
    """Save the workspace as a new view in the project and return its address.

    Raises:
        UserError: there is no API key, or W&B refuses the request.
    """
    try:
        if wandb.login(prompt=False):
            return str(workspace(entity or wandb.Api().default_entity or "", project).save().url)
    except Exception as error:  # W&B's, requests' and GraphQL's errors share no base class
        lines: Iterable[str] = str(error).strip().splitlines()
        raise UserError(
            f"--push: Weights & Biases says: {next(iter(lines), type(error).__name__)}"
        ) from error
    raise UserError("--push: needs an API key: run `wandb login` or set WANDB_API_KEY")


def main(arguments: list[str] | None = None) -> int:
    """Write the JSON or push it; return 2 after one line on bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.dashboard", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--project", default=LoggerConfig.project, help="default: %(default)s, as logger.project"
    )
    parser.add_argument("--entity", default="", help="user or team; default: the key's own")
    parser.add_argument(
        "--output",
        type=Path,
        help="file for the JSON; default: the terminal, and nothing with --push",
    )
    parser.add_argument(
        "--push", action="store_true", help="save it as a view of the project; needs an API key"
    )
    options = parser.parse_args(arguments)
    try:
        if options.output is not None:
            options.output.write_text(as_json(options.entity, options.project))
        elif not options.push:
            sys.stdout.write(as_json(options.entity, options.project))
        if options.push:
            print(push(options.entity, options.project))
    except (UserError, OSError) as error:
        print(f"dashboard: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
