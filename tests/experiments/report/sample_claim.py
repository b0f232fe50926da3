"""Claims as `results.json` has them."""

from typing import Any


def claim(mark: str | None, relative: float = 4.2, theirs: float | None = 2.7, state: str = "final") -> dict[str, Any]:
    """Claim of one part named after its mark, with an effect of 0.1 bpc; without a mark it is pending."""
    named, numbers = mark or "pending", {"unit": "bpc", "relative_paper": theirs, "mark": mark}
    numbers |= {"effect": 0.1, "low": 0.05, "high": 0.15, "margin": 0.05, "power": None if theirs is None else 0.8}
    numbers |= {"relative": relative, "relative_low": relative - 1, "relative_high": relative + 1}
    if mark is None:
        numbers = dict.fromkeys(numbers)
    return {
        "id": f"{named} {relative:g}".replace(" ", "_"),
        "short": f"short {named}",
        "claim": f"The claim {named}.",
        "paper": "Table 6: numbers",
        "rule": "One minus other.",
        "evidence": "one − other: +0.100 bpc",
        **numbers,
        "state": state if mark else "pending",
        "smallest": 0.05 if mark else None,
        "part": "one − other" if mark else "",
        "parts": [{**numbers, "key": "claim/one", "title": "one − other", "pending": 0 if mark else 2}],
        "n_parts": 1,
        "n_holding": int(mark == "holds"),
        "sentence": "" if mark in ("holds", None) else f"Sentence of {mark}.",
        "tables": ["table_6"],
    }
