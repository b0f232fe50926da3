"""Sections of BENCHMARKS.md, each made of the records of its cases."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.cases import AXES, BF16, FLOAT32, LIMITS, BenchmarkCase, scaled, scaling_name
from benchmarks.commands import KEPT
from benchmarks.worker import CLIP
from txl_lightning.reporting.tables import markdown_table

Record = Mapping[str, Any]
Records = Mapping[str, Record]  # by section/case
NONE = "–"
WIDTH = 118  # of paragraphs
TEXTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
HEADER = "# Benchmarks\n\nRepeat them with `make bench`, which rewrites its sections of this file.\n"
OURS, THEIRS = "ours", "huggingface"
FACTS = {
    "clip": CLIP,
    "cpu": LIMITS["cpu"].matrix_size,
    "cuda": LIMITS["cuda"].matrix_size,
    "kept": KEPT,
    "turns": TEXTS["turns"],
}


def method(section: str, paragraph: str = "method", **facts: Any) -> str:
    """Return a paragraph of `bench_sections.yaml` with its facts filled in."""
    return textwrap.fill(TEXTS[section][paragraph].format(**FACTS, **facts), WIDTH)


def ratios(record: Record, ours: str, theirs: str) -> list[float]:
    """Return seconds of `theirs` / seconds of `ours` for each round; both are turns."""
    seconds = record["seconds"]
    return [b / a for a, b in zip(seconds.get(ours, ()), seconds.get(theirs, ()), strict=False)]


def shares_of_limit(record: Record, precision: str) -> list[float]:
    """Return, for each round, the needed work of our turn per second / the rate of the machine in that round."""
    seconds, sizes = record["seconds"], BenchmarkCase(**record["identity"]["sizes"])
    if f"matrix {precision}" in seconds:
        limit, needed = f"matrix {precision}", sizes.training_flops
    elif "bandwidth float32" in seconds:
        limit, needed = "bandwidth float32", sizes.step_bytes(2 if precision == BF16 else 4)
    else:
        return []
    work, ours = record["workers"][limit]["work"], seconds.get(f"{OURS} {precision}", ())
    return [needed * sizes.steps / own * of_limit / work for own, of_limit in zip(ours, seconds[limit], strict=False)]


def comparison_table(records: Records, in_steps: bool = False) -> str:
    """Return a table with one row for each case.

    Args:
        records: records of the cases, by name.
        in_steps: show milliseconds a step in place of tokens/s.
    """
    unit = "ms a step" if in_steps else "tokens/s"
    turns = [f"{name} {precision}" for name in (OURS, THEIRS) for precision in (FLOAT32, BF16)]
    pairs = [(turns[0], turns[2]), (turns[1], turns[3]), (turns[1], turns[2])]
    header = ["case", *(f"{turn.replace(THEIRS, 'Hugging Face')}, {unit}" for turn in turns)]
    header += ["ratio, float32", "ratio, bf16", "ours bf16 / Hugging Face float32"]
    rows = [[*header, "of the limit, float32", "of the limit, bf16", "memory"]]
    for name, record in records.items():
        sizes = BenchmarkCase(**record["identity"]["sizes"])
        per_step = {turn: median(taken) / sizes.steps for turn, taken in record["seconds"].items()}
        shown = {t: f"{1000 * s:,.1f}" if in_steps else f"{sizes.tokens / s:,.0f}" for t, s in per_step.items()}
        peaks = [record["peak_bytes"].get(turns[i]) for i in (0, 2)]
        shares = [shares_of_limit(record, precision) for precision in (FLOAT32, BF16)]
        rows.append(
            [name, *(shown.get(turn, NONE) for turn in turns)]
            + [spread(values) if (values := ratios(record, *pair)) else NONE for pair in pairs]
            + [f"{median(share):.0%}" if share else NONE for share in shares]
            + [f"{peaks[0] / peaks[1]:.2f}" if all(peaks) else NONE]
        )
    used = [column for column in zip(*rows, strict=True) if set(column[1:]) != {NONE}]
    return table(list(zip(*used, strict=True)))


def training_section(records: Records) -> list[str]:
    """Return method, table, sizes and the loader's share of the training speeds."""
    cases = of_section(records, "training")
    lines = sizes_of(cases)
    for name, record in cases.items():
        shares = [ratios(record, f"{OURS} {precision}", "loader float32") for precision in (FLOAT32, BF16)]
        if all(shares):
            of_step = " and ".join(f"{median(share):.3%}" for share in shares)
            lines.append(f"- the data loader takes {of_step} of a step of {name} in float32 and bf16")
    return [method("training"), comparison_table(cases), "\n".join([*lines, *limits(cases)])]


def evaluation_section(records: Records) -> list[str]:
    """Return methods, tables and sizes of evaluation, single tokens and generation."""
    parts = []
    for section in TEXTS["evaluation"]["cases"]:
        if cases := of_section(records, section):
            text = method("evaluation", "method" if section == "evaluation" else section)
            shown = comparison_table(cases, in_steps=section != "evaluation")
            parts += [text, shown, "\n".join([*sizes_of(cases), *limits(cases)])]
    return parts


def of_section(records: Records, section: str) -> dict[str, Record]:
    """Return the records of a section by the name of their case."""
    return {key.split("/")[1]: record for key, record in records.items() if key.startswith(f"{section}/")}


def sizes_of(cases: Records) -> list[str]:
    """Return a line for each case with its sizes, steps, rounds and parameters."""
    lines = []
    for name, record in cases.items():
        sizes = record["identity"]["sizes"]
        untimed = sizes.get("untimed", 0)
        counts = sorted({w["parameters"] for w in record["workers"].values() if "parameters" in w})
        lines.append(
            f"- {name}: "
            "{n_layer} layers, d_model {d_model}, {n_head} heads, d_inner {d_inner}, segment {segment}, "
            "memory {memory}, batch {batch_size}, ".format(**sizes)
            + (f"adaptive softmax of {sizes['vocab_size']:,} tokens, " if sizes["cutoffs"] else "")
            + f"{' and '.join(f'{count:,}' for count in counts)} parameters; {record['identity']['rounds']} rounds of "
            f"{sizes['steps']} steps" + (f" after {untimed} that is not timed" if untimed else "")
        )
    return lines


def limits(cases: Records) -> list[str]:
    """Return a line with the machine's rates: the medians over all cases."""
    units = {"matrix float32": "GFLOP/s in float32", "matrix bf16": "GFLOP/s in bf16", "bandwidth float32": "GB/s read"}
    shown = []
    for turn, unit in units.items():
        rates = [
            record["workers"][turn]["work"] / median(record["seconds"][turn])
            for record in cases.values()
            if turn in record["seconds"]
        ]
        if rates:
            shown.append(f"{median(rates) / 1e9:,.0f} {unit}")
    return [f"- limits of the machine: {', '.join(shown)}"] if shown else []


def scaling_section(records: Records) -> list[str]:
    """Return method and table of the cost of a training step against each size that has at least two records."""
    rows = [["size", "values", "ms a step", "slope", "slope at the end"]]
    cases = of_section(records, "scaling")
    for axis, values in AXES.items():
        sizes = [value for value in values if scaling_name(axis, value) in cases]
        if len(sizes) < 2:
            continue
        own = [cases[scaling_name(axis, value)] for value in sizes]
        seconds = [median(record["seconds"]["ours float32"]) / record["identity"]["sizes"]["steps"] for record in own]
        flops = [scaled(axis, value).training_flops for value in sizes]
        slopes = [f"{slope(sizes[i:], seconds[i:]):.2f} ({slope(sizes[i:], flops[i:]):.2f})" for i in (0, -2)]
        name = {"batch_size": "batch", "n_layer": "depth", "vocab_size": "vocabulary"}.get(axis, axis)
        shown = ", ".join(f"{size:,}" for size in sizes), ", ".join(f"{1000 * s:,.0f}" for s in seconds)
        rows.append([name, *shown, *slopes])
    return [method("scaling"), table(rows)]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of log y over log x between the first and the last point."""
    return math.log(y[-1] / y[0]) / math.log(x[-1] / x[0])


TIMED = (  # case, key in its record, command
    ("startup", "help", "`txl --help`"),
    ("startup", "first_step", "`txl train profile=laptop` to the end of its first step"),
    (
        "recl",
        "seconds",
        "`txl recl`, one model of `profile=laptop`, contexts 16–256 by 16, 1,000 positions, one thread",
    ),
)


def commands_section(records: Records) -> list[str]:
    """Return method and table of the seconds of whole commands."""
    rows = [["command", "seconds (min–max)", "peak memory, MiB"]]
    for case, key, what in TIMED:
        if case in records:
            rows.append([what, spread(records[case][key]), NONE])
    for corpus, measured in records.get("preparation", {}).get("corpora", {}).items():
        for when, words in (("first", "prepare"), ("cached", "read from the cache")):
            peak = f"{median(measured[f'{when}_peak']) / 2**20:,.0f}"
            rows.append([f"{words} {corpus}", spread(measured[when]), peak])
    return [method("commands"), table(rows)]


def training_costs_section(records: Records) -> list[str]:
    """Return method and table of the cost of checkpoints and of validation."""
    rows = [["what", "seconds without", "seconds with", "with / without (min–max)", "MB a checkpoint"]]
    for what, record in records.items():
        seconds = [f"{median(record[name]):.2f}" for name in ("without", "with")]
        shares = [a / b for a, b in zip(record["with"], record["without"], strict=True)]
        size = f"{record['bytes'] / 1e6:.1f}" if "bytes" in record else NONE
        rows.append([f"{what} every {record['every']} of {record['steps']} steps", *seconds, spread(shares), size])
    return [method("checkpoints"), table(rows)]


def recl_losses_section(records: Records) -> list[str]:
    """Return method and table of the losses by context, in one pass and directly."""
    record = records["recl_losses"]
    direct = record["seconds"]["direct float32"]
    rows = [["way", "seconds (min–max)", "share of the direct way"]]
    for name, seconds in record["seconds"].items():
        shares = [a / b for a, b in zip(seconds, direct, strict=True)]
        rows.append([name, spread(seconds), spread(shares)])
    facts = {name: record[name] for name in ("positions", "first", "last", "threads", "tenth")}
    return [method("recl_losses", **facts), table(rows)]


def profile_section(records: Records) -> list[str]:
    """Return method and table of the kinds of operations in a training step."""
    found = records["profile"]["shares"]
    kinds = [kind for kind in next(iter(found.values())) if kind != KEPT]
    rows = [["case", *kinds, KEPT]]
    rows += [[case, *(f"{shares[kind]:.1%}" for kind in (*kinds, KEPT))] for case, shares in found.items()]
    return [method("profile"), table(rows)]


SECTIONS: dict[str, Callable[[Records], list[str]]] = {
    "training": training_section,
    "evaluation": evaluation_section,
    "scaling": scaling_section,
    "commands": commands_section,
    "recl_losses": recl_losses_section,
    "profile": profile_section,
    "checkpoints": training_costs_section,
}


def section(name: str, records: Records) -> str:
    """Return one section of BENCHMARKS.md; empty if none of its cases is recorded."""
    title, groups = TEXTS[name]["title"], TEXTS[name]["cases"]
    own = {key: record for key, record in records.items() if key.split("/")[0] in groups}
    if not own:
        return ""
    return "\n\n".join([f"## {title}", *SECTIONS[name](own), "\n".join(facts(list(own.values()), groups))])


def facts(records: Sequence[Record], groups: Sequence[str]) -> list[str]:
    """Return lines with date, machine, versions and command."""
    workers = [worker for record in records for worker in record.get("workers", {}).values()]
    identities = [record["identity"] for record in records]
    threads = joined(f"{i['sizes']['threads']} threads" for i in identities if "sizes" in i)
    lines = {
        "date": joined(record["date"] for record in records),
        "CPU": ", ".join(filter(None, [joined(i["processor"] for i in identities), threads])),
        "GPU": joined(worker.get("accelerator") for worker in workers),
        "torch": joined(i["torch"] for i in identities),
        "transformers": joined(worker.get("transformers") for worker in workers),
        "command": f"`make bench ARGS='--only {','.join(groups)}'`",
    }
    return [f"- {name}: {fact}" for name, fact in lines.items() if fact]


def joined(values: Iterable[str | None]) -> str:
    """Return the different values, each once."""
    return " and ".join(sorted({value for value in values if value}))


def spread(ratios: Sequence[float]) -> str:
    """Return the median, lowest and highest ratio as text."""
    digits = 2 if median(ratios) < 10 else 1
    return f"{median(ratios):.{digits}f} ({min(ratios):.{digits}f}–{max(ratios):.{digits}f})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of a header and rows; all columns but the first are aligned to the right."""
    return markdown_table(rows[0], rows[1:], [False] + [True] * (len(rows[0]) - 1)).rstrip()


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers of a section, or append the section; the rest of the file stays.

    Raises:
        SystemExit: the end marker is missing; the file is unchanged.
    """
    begin_marker, end_marker = f"<!-- bench:{name} begin -->", f"<!-- bench:{name} end -->"
    page = path.read_text(encoding="utf-8") if path.exists() else HEADER
    before, begin, rest = page.partition(begin_marker)
    _, end, after = rest.partition(end_marker)
    if begin and not end:
        raise SystemExit(f"bench: {path} has {begin_marker} without {end_marker}; the file is unchanged")
    if not begin:
        before, after = before.rstrip() + "\n\n", "\n"
    path.write_text(f"{before}{begin_marker}\n{text}\n{end_marker}{after}", encoding="utf-8")
