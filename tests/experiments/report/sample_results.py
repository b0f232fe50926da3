"""Complete results of the size of a real report, with invented numbers under "here"."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.paper import TABLE_6, TABLE_8
from experiments.report.view import RULE
from txl_lightning.reporting.canvas import COLOURS, save_figure

HOSTILE = "<script>alert('x')</script> | *a* `b` [c](d) & \\"
ENCODINGS = {"relative": "relative", "shaw": "Shaw et al.", "absolute": "absolute", "al_rfou": "Al-Rfou et al."}


def sample_results(directory: Path) -> dict[str, Any]:
    """Complete results; their two figures are drawn into `directory`."""
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    for name in ("table_6", "recl"):
        _draw(directory / "figures" / name)
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
        "versions": {"torch": "2.13.0+cpu", "lightning": "2.6.6", "txl_lightning": "0.1.0"},
        "code": "c0de" * 16,
        "corpora": [
            {"name": "python-stdlib 3.11.7", "level": "byte", "sha256": "bc88" * 16, "used_by": ["table_6", "table_8"]},
            {"name": "enwik8, first 1 MB", "level": "char", "sha256": "0a1b" * 16, "used_by": ["samples"]},
        ],
        "settings": [
            ["model", "3 layers, width 96, 6 heads of 16, inner width 384, dropout 0.0"],
            ["segment", "32"],
            ["memory in training", "32"],
            ["optimiser", "adam, learning rate 1e-3, 100 steps of warm-up, cosine to 0 in 1,500 steps"],
            ["evaluation", "test split, first 262,144 bytes, 16 streams that start without context"],
        ],
        "runs": _runs(),
        "sections": [_table_6(), _table_8(), _samples()],
        "claims": _claims(),
    }


def _table_6() -> dict[str, Any]:
    rows = []
    for i, row in enumerate(TABLE_6):
        seeds = {"1": 2.581 + 0.021 * i, "2": 2.589 + 0.02 * i, "3": 2.590 + 0.021 * i}
        best = {seed: value - 0.004 * (9 - i) for seed, value in seeds.items()}
        rows.append(
            {
                "arm": {"text": f"{'with' if row.recurrence else 'without'} recurrence, {ENCODINGS[row.encoding]}"},
                "loss": {"text": row.loss},
                "init": _mean(seeds) | {"difference": sum(seeds.values()) / 3 - 2.5867},
                "best": _mean(dict(list(best.items())[: 1 if i == 8 else 3])),
                "length": {"value": 96 + 8 * i, "digits": 0, "low": 64, "high": 160}
                | ({"at_least": True} if not i else {}),
                "paper_init": {"value": row.ppl_init, "digits": 2},
                "paper_best": {"value": row.ppl_best, "digits": 2},
                "paper_length": {"value": row.attention_length, "digits": 0} if i != 4 else None,
            }
        )
    columns = [
        _column("arm", "", "label"),
        _column("loss", "loss", "label"),
        _column("init", "init", "ours", "bpc"),
        _column("best", "best", "ours", "bpc"),
        _column("length", "attention length", "ours", "bytes"),
        _column("paper_init", "init", "paper", "ppl"),
        _column("paper_best", "best", "paper", "ppl"),
        _column("paper_length", "attention length", "paper", "words"),
    ]
    return {
        "id": "table_6",
        "title": "Table 6: recurrence, encodings and the two losses",
        "paper": "On WikiText-103 with 128M parameters, recurrence and the relative encoding each help, and only the "
        "relative encoding keeps gaining from attention lengths beyond training's.",
        "here": "The same nine arms with 0.4M parameters on 0.8 MB of Python source, three seeds each, loss in bits "
        "per byte; the attention length is the shortest within 0.1 % of the best.",
        "tables": [
            {
                "id": "table_6",
                "caption": "Table 6: test loss by encoding, recurrence and loss, at training's lengths and at the best",
                "columns": columns,
                "rows": rows,
                "notes": ["Differences: from the first row, with recurrence and the relative encoding."],
            }
        ],
        "figures": [
            {
                "png": "figures/table_6.png",
                "svg": "figures/table_6.svg",
                "caption": "Test loss of each arm by attention length at evaluation.",
                "alt": "Lines that fall with the attention length and flatten at about 100 bytes.",
            }
        ],
        "samples": [],
    }


def _table_8() -> dict[str, Any]:
    rows = []
    for i, row in enumerate(TABLE_8):
        cells: dict[str, Any] = {"model": {"text": row.model}, "group": {"text": f"{row.group}"}}
        for r in (0.1, 0.5, 1.0):
            value = max(8, round(row.recl[r] / 8))
            cells[f"here_{r}"] = {"value": value, "digits": 0, "low": value - 8, "high": value + 16} | (
                {"at_least": True} if i == 0 else {}
            )
            cells[f"paper_{r}"] = {"value": row.recl[r], "digits": 0}
        rows.append(cells)
    rows.append(dict.fromkeys(rows[0], None) | {"model": {"text": HOSTILE}, "here_0.1": {"text": "not run"}})
    columns = [_column("model", "model", "label"), _column("group", "group", "label")]
    columns += [_column(f"here_{r}", f"r = {r}", "ours", "bytes") for r in (0.1, 0.5, 1.0)]
    columns += [_column(f"paper_{r}", f"r = {r}", "paper", "words") for r in (0.1, 0.5, 1.0)]
    return {
        "id": "table_8",
        "title": "Table 8: relative effective context length",
        "paper": "Transformer-XL looks 80 % further than recurrent networks, 450 % further than a vanilla Transformer.",
        "here": "The same definition (appendix C) with threshold 1 %, in bytes, at 5,000 positions.",
        "tables": [
            {"id": "table_8", "caption": "Table 8: RECL by fraction r", "columns": columns, "rows": rows, "notes": []}
        ],
        "figures": [
            {
                "png": "figures/recl.png",
                "svg": None,
                "caption": "Context curves, Figure 3.",
                "alt": "Three falling lines.",
            }
        ],
    }


def _samples() -> dict[str, Any]:
    context = "\n    def read(self, size=-1):\n        if size < 0:\n            return self.readall()\n"
    written = (
        "        return self._read(size)\n\n    def _read(self, size=None):\n        if self.closed:\n            "
        "raise ValueError('I/O operation on closed file')\n        while size:\n\t    size -= len(self.buffer)\n"
    )
    return {
        "id": "samples",
        "title": "Appendix E: text from the model",
        "paper": "A model trained on WikiText-103 writes articles of thousands of words that stay on their subject.",
        "here": "Drawn as they are, top-k 40, none was picked; 1,000 bytes in generation.json.",
        "tables": [],
        "samples": [
            {
                "title": f"{title}, seed {i}",
                "context": context,
                "truth": "        b = bytearray(size)\n",
                "text": written + end,
            }
            for i, (title, end) in enumerate(
                [
                    ("with recurrence", ""),
                    ("without", f"```\n{HOSTILE}\n"),
                    ("control signs", "\x00\x1b[31m é ␣ \ud800" + "=" * 120),
                ]
            )
        ],
    }


def _claims() -> list[dict[str, Any]]:
    words = [
        ("recurrence_helps", "Recurrence helps.", "holds", "table_6"),
        ("relative_beats_shaw", "The relative encoding beats Shaw et al.'s.", "holds", "table_6"),
        ("relative_generalises", "Only the relative encoding gains from longer attention.", "within noise", "table_6"),
        ("full_loss", "The full loss beats the half loss with recurrence.", "does not hold", "table_6"),
        ("absolute_half", "Absolute encodings need the half loss.", "holds", "table_6"),
        ("recl_rnn", "It looks further than recurrent networks.", "does not hold", "table_8"),
        ("recl_vanilla", "It looks further than a vanilla Transformer.", "holds", "table_8"),
        ("hostile", f"A claim with {HOSTILE}", "within noise", ""),
    ]
    return [
        {
            "id": name,
            "claim": claim,
            "paper": "Table 6: 27.02 against 29.59 perplexity on WikiText-103, one run each.",
            "rule": "holds if every seed with it is better than every seed without; within noise if the seeds overlap; "
            "does not hold if every seed with it is worse.",
            "mark": mark,
            "evidence": "2.581, 2.589, 2.590 against 2.704, 2.700, 2.711 bpc",
            "tables": [table] if table else [],
        }
        for name, claim, mark, table in words
    ]


def _runs() -> dict[str, Any]:
    runs: dict[str, Any] = {}
    for i, row in enumerate(TABLE_6):
        for seed in (1, 2):
            name = f"{'recurrence' if row.recurrence else 'segments'}-{row.encoding}-{row.loss}-{seed}"
            memory = "on" if row.recurrence else "off"
            runs[name] = {
                "command": "train",
                "arm": f"{'recurrence' if row.recurrence else 'no recurrence'}, {row.encoding}, {row.loss} loss",
                "seed": seed,
                "sections": ["table_6", "table_8"],
                "overrides": [
                    f"memory={memory}",
                    f"encoding={row.encoding}",
                    f"loss={row.loss}",
                    f"seed={seed}",
                    "profile=laptop",
                ],
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


def _mean(by_seed: dict[str, float]) -> dict[str, Any]:
    values, n = list(by_seed.values()), len(by_seed)
    mean = sum(values) / n
    cell: dict[str, Any] = {"value": mean, "digits": 3, "by_seed": by_seed}
    if n > 1:
        cell["standard_error"] = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return cell


def _column(key: str, title: str, of: str, unit: str | None = None) -> dict[str, Any]:
    return {"key": key, "title": title, "of": of, "unit": unit}


def _draw(stem: Path) -> None:
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lengths = [2**i for i in range(3, 9)]
    for i, colour in enumerate(COLOURS):
        axes.plot(
            lengths, [2.5 + 0.03 * i + 2 / length for length in lengths], color=colour, marker="o", label=f"arm {i}"
        )
    axes.set(xlabel="attention length (bytes)", ylabel="test loss (bpc)", xscale="log")
    axes.legend(frameon=False)
    save_figure(figure, stem)
