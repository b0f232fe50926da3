"""Small results with every kind of cell, invented numbers under "here", and text that tries to become markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.paper import TABLE_6, TABLE_8
from experiments.report.sections import (
    Figure,
    Number,
    Sample,
    Section,
    Table,
    Text,
    cell,
    label,
    ours,
    over_seeds,
    paper,
)
from experiments.report.text import RULE
from txl_lightning.reporting.canvas import new_figure, save_figure

HOSTILE = "<script>alert('x')</script> | *a* `b` [c](d) & \\"


def sample_results(directory: Path) -> dict[str, Any]:
    """Complete results; their two figures are drawn into `directory`."""
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    for name in ("table_6", "recl"):
        figure = new_figure()
        figure.add_subplot().plot([1, 2], [2, 1])
        save_figure(figure, directory / "figures" / name)
    return {
        "schema_version": 1,
        "profile": "laptop",
        "rule": RULE,
        "note": "These are small models; their metrics are not the paper's.",
        "command": "make reproduce ARGS='data=file data.path=a|b.txt'",
        "started": "2026-11-20T16:00:00+00:00",
        "seconds": {"wall": 1523.4, "training": 2411.7, "rest": 305.2},
        "machine": {
            "processor": "AMD EPYC 7763",
            "cores": 2,
            "gpus": [],
            "python": "3.11.7",
            "platform": "Linux-6.1-x86_64",
        },
        "versions": {"torch": "2.13.0+cpu", "txl_lightning": "0.1.0"},
        "code": "c0de" * 16,
        "corpora": [
            {"name": "python-stdlib 3.11.7", "level": "byte", "sha256": "bc88" * 16, "used_by": ["table_6", "table_8"]},
            {"name": "enwik8, first 1 MB", "level": "char", "sha256": "0a1b" * 16, "used_by": ["samples"]},
        ],
        "settings": [["model", "3 layers, width 96, 6 heads of 16, inner width 384"], ["segment", "32"]],
        "runs": _runs(),
        "sections": (_table_6(), _table_8(), _samples()),
        "claims": [
            claim("within noise"),
            claim("holds", -153.0, None),
            claim("within noise", 1.0) | {"claim": f"A claim with {HOSTILE}", "tables": []},
        ],
    }


def claim(mark: str, relative: float = 4.2, theirs: float | None = 2.7) -> dict[str, Any]:
    """Claim named after its mark, with an effect of 0.1 bpc."""
    return {
        "id": f"{mark} {relative:g}".replace(" ", "_"),
        "short": f"short {mark}",
        "claim": f"The claim {mark}.",
        "paper": "Table 6: numbers",
        "rule": "One minus other.",
        "evidence": "one − other: +0.100 bpc",
        "mark": mark,
        "effect": 0.1,
        "low": 0.05,
        "high": 0.15,
        "smallest": 0.05,
        "unit": "bpc",
        "relative": relative,
        "relative_low": relative - 1,
        "relative_high": relative + 1,
        "relative_paper": theirs,
        "part": "one − other",
        "tables": ["table_6"],
    }


def _table_6() -> Section:
    rows = {}
    for i, row in enumerate(TABLE_6):
        seeds = {1: 2.581 + 0.021 * i, 2: 2.589 + 0.02 * i, 3: 2.590 + 0.021 * i}
        best = {seed: value - 0.004 * (9 - i) for seed, value in seeds.items()}
        rows[f"{row.recurrence}-{row.encoding}-{row.loss}"] = {
            "arm": Text(f"{'with' if row.recurrence else 'without'} recurrence, {row.encoding}"),
            "loss": Text(row.loss),
            "init": over_seeds(seeds, 3),
            "best": over_seeds(dict(list(best.items())[: 1 if i == 8 else 3]), 3),
            "length": Number(96 + 8 * i, 0, low=64, high=160, at_least=None if i else True),
            "paper_init": Number(row.ppl_init, 2),
            "paper_length": cell(row.attention_length if i != 4 else None, 0),
        }
    columns = (
        label("arm"),
        label("loss", "loss"),
        ours("init", "init", "bpc"),
        ours("best", "best", "bpc"),
        ours("length", "attention length", "bytes"),
        paper("paper_init", "init", "ppl"),
        paper("paper_length", "attention length", "words"),
    )
    table = Table("table_6", "Table 6: test loss by encoding, recurrence and loss", columns, rows, ("A note.",))
    figure = Figure("figures/table_6.png", "figures/table_6.svg", "Loss by attention length.", "Lines that fall.")
    title = "Table 6: recurrence, encodings and the two losses"
    return Section("table_6", title, "Recurrence helps.", "Nine arms.", (table,), (figure,))


def _table_8() -> Section:
    rows = {
        f"{i}": {"model": Text(row.model), "here": Number(row.recl[0.1] / 8, 0), "paper": Number(row.recl[0.1], 0)}
        for i, row in enumerate(TABLE_8)
    }
    rows["hostile"] = {"model": Text(HOSTILE), "here": Text("not run"), "paper": None}
    columns = (label("model", "model"), ours("here", "r = 0.1", "bytes"), paper("paper", "r = 0.1", "words"))
    table = Table("table_8", "Table 8: RECL by fraction r", columns, rows)
    figure = Figure("figures/recl.png", None, "Context curves, Figure 3.", "Three falling lines.")
    return Section("table_8", "Table 8: effective context", "It looks further.", "In bytes.", (table,), (figure,))


def _samples() -> Section:
    context = "\n    def read(self, size=-1):\n        if size < 0:\n            return self.readall()\n"
    ends = ("", f"```\n{HOSTILE}\n", "\x00\x1b[31m é ␣ \ud800" + "=" * 120)
    samples = [
        Sample(f"sample {i}", context, "        b = bytearray(size)\n", f"while size:\n\t    size -= 1\n{end}")
        for i, end in enumerate(ends)
    ]
    return Section("samples", "Appendix E: text from the model", "Articles.", "As drawn.", samples=tuple(samples))


def _runs() -> dict[str, Any]:
    runs: dict[str, Any] = {}
    for i, row in enumerate(TABLE_6[:2]):
        name = f"{'recurrence' if row.recurrence else 'segments'}-{row.encoding}-{row.loss}-2"
        runs[name] = {
            "command": "train",
            "arm": f"recurrence, {row.encoding}, {row.loss} loss",
            "seed": 2,
            "sections": ["table_6", "table_8"],
            "overrides": ["memory=on", f"encoding={row.encoding}", f"loss={row.loss}", "profile=laptop"],
            "key": f"{i:02x}" * 32,
            "seconds": 75.1 + i,
            "directory": f"runs/{name}",
            "parameters": 387040,
            "steps": 1500,
            "tokens": 768000,
        }
    recl = {"command": "recl", "arm": HOSTILE, "seed": None, "sections": ["table_8"], "overrides": ["step=8"]}
    runs["recl"] = recl | {"key": "ff" * 32, "seconds": 61.3, "directory": "runs/recl"}
    return runs
