"""Compare the speed of training and evaluation with Hugging Face's TransfoXLLMHeadModel (`make bench`).

Worker processes take turns, so that other load on the machine affects all of them. Only the ratios within a round
compare implementations; tokens per second depend on the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from benchmarks.page import PAGE, ROOT, aligned, spread, versions, write_section
from benchmarks.rounds import PYTHONS, measure
from benchmarks.worker import CLIP, WORKLOADS, BenchmarkCase
from txl_lightning.reporting.machine import processor

TINY = BenchmarkCase(n_layer=2, d_model=32, n_head=4, d_inner=64, segment=16, memory=16, batch_size=4, steps=5)
SMALL = BenchmarkCase(n_layer=4, d_model=128, n_head=8, d_inner=512, segment=64, memory=64, batch_size=16, steps=5)
LARGE = BenchmarkCase(n_layer=6, d_model=256, n_head=8, d_inner=1024, segment=128, memory=128, batch_size=16, steps=2)
BASE = BenchmarkCase(n_layer=12, d_model=512, n_head=8, d_inner=2048, segment=128, memory=3800, batch_size=1, steps=2)
CASES = {
    "training": {"tiny": TINY, "small": SMALL, "large": LARGE},
    "evaluation": {
        "tiny": TINY,
        "segment": BASE,
        "token": replace(BASE, segment=1, steps=5),
        "tokens": replace(BASE, segment=1, batch_size=8, steps=2),
    },
}
NAMES = sorted({name for cases in CASES.values() for name in cases})
CUDA_STEPS = 20  # a round on CUDA has this many times the steps
TURNS = (
    "Each implementation is a process; they take turns. Speeds are medians of {rounds} rounds, ratios are medians of "
    "the ratios within a round. Above 1, ours is faster."
)

Choice = TypeVar("Choice")


def training_section(results: Sequence[dict[str, Any]], turns: str) -> list[str]:
    """Return title, method and table of the training speeds."""
    names = list(results[0]["workers"])
    labels = {"ours": "ours", "huggingface": "Hugging Face"}
    header = ["case", "dropout", *(f"{labels[name]}, tokens/s" for name in names)]
    rows = [
        header
        + ["ours / Hugging Face (min–max)"] * (len(names) > 1)
        + [f"parameters, {labels[name]}" for name in names]
    ]
    for result in results:
        rows.append(
            [result["case"], f"{result['setup']['dropout']:g}"]
            + [f"{median(result['tokens_per_second'][name]):,.0f}" for name in names]
            + [spread(ratios) for ratios in result["ratios"].values()]
            + [f"{result['workers'][name]['parameters']:,}" for name in names]
        )
    method = (
        "A step is the forward pass with memory, the mean loss, the backward pass, clipping at "
        f"{CLIP} and an update of fused Adam."
    )
    return ["## Training speed", "", textwrap.fill(f"{method} {turns}", 110), "", aligned(rows)]


def evaluation_section(results: Sequence[dict[str, Any]], turns: str) -> list[str]:
    """Return title, method and table of the evaluation speeds."""
    names = list(results[0]["workers"])
    labels = {"ours": "ours, cached", "hidden": "ours, hidden states", "huggingface": "Hugging Face"}
    header = ["case", "unit", *(labels[name] for name in names)]
    rows = [header + [f"cached / {labels[name]} (min–max)" for name in results[0]["ratios"]]]
    for result in results:
        setup = result["setup"]
        speeds = {name: median(values) for name, values in result["tokens_per_second"].items()}
        if setup["segment"] == 1:
            shown = ["ms a step", *(f"{1000 * setup['batch_size'] / speed:,.1f}" for speed in speeds.values())]
        else:
            shown = ["tokens/s", *(f"{speed:,.0f}" for speed in speeds.values())]
        rows.append([result["case"], *shown, *(spread(ratios) for ratios in result["ratios"].values())])
    method = (
        "A step is the forward pass of one segment with a full memory, up to the log-probabilities of all tokens. Our "
        "memory holds keys and values (`CachedTransformerXL`), or hidden states as Hugging Face's does."
    )
    return ["## Evaluation speed", "", textwrap.fill(f"{method} {turns}", 110), "", aligned(rows, n_left=2)]


SECTIONS = {"training": training_section, "evaluation": evaluation_section}


def section(report: dict[str, Any]) -> str:
    """Return the section of a report, for the terminal and BENCHMARKS.md."""
    results, setup = report["results"], report["results"][0]["setup"]
    cases = {
        result["case"]: "- {case}: {n_layer} layers, d_model {d_model}, {n_head} heads, d_inner {d_inner}, "
        "segment {segment}, memory {memory}, batch {batch_size}, {steps} steps a round".format(
            **result, **result["setup"]
        )
        for result in results
    }
    facts = {
        "date": report["date"],
        "CPU": f"{report['processor']}, {setup['threads']} threads",
        "device": ", ".join(filter(None, [setup["device"], *versions(results, "accelerator"), setup["precision"]])),
        "torch": " and ".join(versions(results, "torch")),
        "transformers": " and ".join(versions(results, "transformers")) or "not measured",
        "command": f"`{report['command']}`",
    }
    body = SECTIONS[report["section"]](results, TURNS.format(rounds=report["rounds"]))
    return "\n".join([*body, "", *cases.values(), "", *(f"- {name}: {fact}" for name, fact in facts.items())])


def _values(convert: Callable[[str], Choice], allowed: Sequence[Choice] = ()) -> Callable[[str], list[Choice]]:
    """Return an argparse type: a list of values with commas, each once."""

    def parse(text: str) -> list[Choice]:
        values = list(dict.fromkeys(convert(part) for part in text.split(",")))
        for value in values:
            if allowed and value not in allowed:
                raise argparse.ArgumentTypeError(f"{value!r}: must be of {', '.join(map(str, allowed))}")
        return values

    return parse


def _at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type: an integer >= minimum."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r}: must be an integer >= {minimum}")
        return int(text)

    return parse


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("python -m benchmarks.bench", description=description, allow_abbrev=False)
    add = parser.add_argument
    add("sections", nargs="*", type=_values(str, list(SECTIONS)), help=f"{' '.join(SECTIONS)}; all by default")
    add("--implementations", type=_values(str, list(PYTHONS)), default=",".join(PYTHONS), metavar="NAME,…")
    add("--cases", type=_values(str, NAMES), metavar="NAME,…", help=f"{', '.join(NAMES)}; by default all but tiny")
    add("--dropout", type=_values(float), default="0.1,0", metavar="P,…", help="in training")
    add("--rounds", type=_at_least(1), default=7)
    add("--warmup", type=_at_least(0), default=2, help="rounds before the measured ones")
    add(
        "--steps",
        type=_at_least(1),
        help=f"steps a round; default: the case's, on cuda {CUDA_STEPS} times as many",
    )
    add("--threads", type=_at_least(1), default=2)
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--precision", choices=("float32", "bf16"), default="float32", help="bf16: autocast")
    add("--markdown", type=Path, default=PAGE, help="file whose sections are rewritten")
    add("--output", type=Path, help="file for everything measured, as JSON")
    return parser


def main() -> int:
    """Measure, print and write; return 2 if an environment is missing."""
    parser = arguments()
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    if options.precision == "bf16" and options.device == "cpu":
        parser.error("--precision bf16: needs --device cuda, Hugging Face's loss cannot autocast on CPU")
    sections = [name for names in options.sections or [list(SECTIONS)] for name in names]
    for name in options.implementations:
        if not PYTHONS[name].exists():
            print(f"bench: {PYTHONS[name].relative_to(ROOT)} is missing; `make bench` builds it", file=sys.stderr)
            return 2
    for name in sections:
        if not set(options.cases or CASES[name]) & set(CASES[name]):
            parser.error(f"--cases: must be of {', '.join(CASES[name])} for {name}")
        if not set(options.implementations) & set(WORKLOADS[name].implementations):
            parser.error(f"--implementations: {name} has {', '.join(WORKLOADS[name].implementations)}")

    reports = []
    for name in sections:
        report = run_section(name, options)
        text = section(report)
        print(text, flush=True)
        write_section(options.markdown, name, text)
        reports.append(report)
    if options.output:
        options.output.write_text(json.dumps(reports, indent=2) + "\n", encoding="utf-8")
    return 0


def run_section(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases of one section and return its report."""
    cases = CASES[name]
    implementations = [x for x in WORKLOADS[name].implementations if x in options.implementations]
    results = []
    for case in [x for x in cases if x in (options.cases or set(cases) - {"tiny"})]:
        for dropout in options.dropout if name == "training" else [0.0]:
            print(f"bench: {name}, {case}, dropout {dropout:g} …", file=sys.stderr)
            sizes = replace(
                cases[case],
                dropout=dropout,
                threads=options.threads,
                device=options.device,
                precision=options.precision,
                steps=options.steps or cases[case].steps * (CUDA_STEPS if options.device == "cuda" else 1),
            )
            results.append({"case": case, **measure(name, implementations, sizes, options.rounds, options.warmup)})
    return {
        "section": name,
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "command": " ".join(["python -m benchmarks.bench", *given(sys.argv[1:])]),
        "rounds": options.rounds,
        "results": results,
    }


def given(words: Sequence[str]) -> list[str]:
    """Return the command line without the options that name output files."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--markdown")
    parser.add_argument("--output")
    return parser.parse_known_args(words)[1]


if __name__ == "__main__":
    sys.exit(main())
