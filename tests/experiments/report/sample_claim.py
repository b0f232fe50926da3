"""Claims as `results.json` has them."""

from typing import Any

EMPTY = dict.fromkeys(("effect", "low", "high", "relative", "relative_low", "relative_high", "margin", "power"))


def claim(mark: str | None, relative: float = 4.2, theirs: float | None = 2.7, **changes: Any) -> dict[str, Any]:
    """Return a claim of one part named after its mark, with an effect of 0.1 bpc; with changes to both."""
    part = {
        "effect": 0.1,
        "low": 0.05,
        "high": 0.15,
        "unit": "bpc",
        "relative": relative,
        "relative_low": relative - 1,
        "relative_high": relative + 1,
        "relative_paper": theirs,
        "mark": mark,
        "margin": 0.05,
        "power": 0.84,
        **changes,
    }
    return {
        "id": f"{mark} {relative:g}".replace(" ", "_"),
        "short": f"short {mark}",
        "panel": "losses",
        "claim": f"The claim {mark}.",
        "paper": "Table 6: numbers",
        "rule": "One minus other.",
        "evidence": "one − other: +0.100 bpc",
        "state": "final",
        "part": "one − other",
        "parts": [{"key": "part", "title": f"one − other, {mark}", "pending": 0, **part}],
        "n_parts": 1,
        "n_holding": int(mark == "holds"),
        "sentence": f"Why it {mark}." if mark in ("does not hold", "within noise") else "",
        "tables": ["table_6"],
        **part,
    }


def pending_claim() -> dict[str, Any]:
    """Return a claim without any finished run; its part waits for two."""
    empty = claim(None) | EMPTY | {"state": "pending", "part": ""}
    return empty | {"parts": [{**part, **EMPTY, "pending": 2} for part in empty["parts"]]}
