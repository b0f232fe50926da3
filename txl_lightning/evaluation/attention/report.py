"""Report of `txl attention`: Figures 5, 6 and 7 and a table of all heads, in files and in Weights & Biases."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.attention.figures import distance_figure, text_figure
from txl_lightning.evaluation.attention.maps import ALL_TERMS, Array
from txl_lightning.evaluation.attention.text_attention import TextAttention
from txl_lightning.files import write_text
from txl_lightning.reporting.tables import markdown_table

HEADER = ["layer", "head", "entropy (bits)", "mean distance (tokens)", "in the segment (%)", "in the memory (%)"]
MOST_PRINTED = 3
SCORES = {"a": "(a) content", "b": "(b) content and position", "d": "(d) position"}


def write_report(
    results: dict[str, Any],
    by_distance: dict[str, Array],
    text: TextAttention,
    directory: Path,
    logger: LoggerConfig,
    config: dict[str, Any] | None = None,
) -> list[str]:
    """Write `attention.md`, `heads.csv`, and as SVG and PNG `by_distance` (Figure 5), `text` (6), `terms` (7).

    Args:
        results: contents of `attention.json`.
        by_distance: contents of `attention.npz`: rows of Figure 5 (`all`) and Figure 7 (a, b, d).
        text: attention of Figure 6.
        directory: folder for the files.
        logger: logger options; `wandb` gets the figures as images, and the table.
        config: configuration to show beside the W&B run.

    Returns:
        Lines to print: the heads with the largest and the smallest mean distance, and notes.
    """
    heads = results["heads"]
    rows = [_cells(head) for head in heads]
    explained = _notes(results)
    with (directory / "heads.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(heads[0]))
        writer.writeheader()
        writer.writerows(heads)
    write_text(directory / "attention.md", "\n".join([markdown_table(HEADER, rows), *explained]) + "\n")

    figures = _draw(results, by_distance, text, directory)
    if logger.name == "wandb":
        from txl_lightning.reporting.wandb_panels import log_image, log_table, wandb_run

        with wandb_run(directory, logger, "attention", {**(config or {}), "corpus": results["corpus"]}) as run:
            log_table(run, "attention/heads", HEADER, rows)
            for name, caption in figures.items():
                log_image(run, f"attention/{name}", directory / f"{name}.png", caption)
    ranked = sorted(heads, key=lambda head: head["mean_distance"])
    farthest, nearest = ranked[: -MOST_PRINTED - 1 : -1], ranked[:MOST_PRINTED]
    few = heads if len(heads) <= 2 * MOST_PRINTED else [*farthest, *reversed(nearest)]
    title = f"The {MOST_PRINTED} heads with the largest and the smallest mean distance, of {len(heads)}:"
    table = markdown_table(HEADER, [_cells(head) for head in few]).splitlines()
    return [*([] if few is heads else [title]), *table, "", *explained]


def _draw(
    results: dict[str, Any], by_distance: dict[str, Array], text: TextAttention, directory: Path
) -> dict[str, str]:
    """Draw the figures and return their titles by name."""
    n_head = results["heads"][-1]["head"]
    where = f"{results['corpus']['name']} ({results['split']})"
    averaged = f"average over {results['queries']:,} tokens of {where}"
    titles = {"by_distance": f"Where {len(results['heads'])} heads attend: {averaged}"}
    distance_figure(directory / "by_distance", {"": by_distance[ALL_TERMS]}, n_head, titles["by_distance"])
    titles["text"] = f"Attention on the memory, from token {text.position:,} of {where} on"
    names = {(n, h): f"layer {n + 1}, head {h + 1}" for n, h in text.weights}
    weights = {names[head]: of_head for head, of_head in text.weights.items()}
    marked = {names[head]: of_head for head, of_head in text.marked.items()}
    text_figure(directory / "text", weights, marked, text.targets, text.context, titles["text"])
    terms = {f"softmax of {SCORES[term]}": rows for term, rows in by_distance.items() if term != ALL_TERMS}
    if terms:
        titles["terms"] = f"Single terms of the score: {averaged}"
        distance_figure(directory / "terms", terms, n_head, titles["terms"])
    return titles


def _cells(head: dict[str, Any]) -> list[str]:
    shares = [f"{100 * head[name]:.1f}" for name in ("in_segment", "in_memory")]
    return [
        str(head["layer"]),
        str(head["head"]),
        f"{head['entropy_bits']:.2f}",
        f"{head['mean_distance']:.1f}",
        *shares,
    ]


def _notes(results: dict[str, Any]) -> list[str]:
    """Describe the averages, and the terms that the model lacks."""
    lengths, L = results["evaluation"], results["distances"]
    lines = [
        f"Average over the {results['queries']:,} tokens of {results['corpus']['name']} ({results['split']}) that see "
        f"all {L} relative positions 0 … −{L - 1}; 0 is the query itself, the last token read. Memory "
        f"{lengths['mem_len']}, segments of {lengths['segment_len']}, {lengths['batch_size']} streams.",
    ]
    beyond = max(head["beyond"] for head in results["heads"])
    if beyond > 0:
        kind = "same_length=true gives every token the same number" if lengths["mem_len"] else "the other half segment"
        lines.append(
            f"Figure 5 leaves out farther tokens, at most {beyond:.1%} of a head's attention ({kind}); "
            "entropy, distance and shares include them."
        )
    for term in results["missing_terms"]:
        lines.append(
            f"Figure 7: the model has no term ({term}) (encoding={results['encoding']}, terms={results['terms']!r})."
        )
    return lines
