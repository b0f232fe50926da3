"""Claims as `results.json` has them."""

from typing import Any


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
