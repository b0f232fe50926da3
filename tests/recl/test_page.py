"""The page of txl recl: its data, its escapes and size, and a token's curve in a browser."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.recall_oracle import RecallOracle
from txl_lightning.data.recall import Recall
from txl_lightning.recl import page as recl_page
from txl_lightning.recl.comparison import compare
from txl_lightning.recl.results import group_results

HOSTILE = [
    "</script><script>alert(1)</script>",
    "a&b",
    '"',
    "'",
    "\n",
    "\t",
    "\x07",
    "\x85",
    "\u202eabc",
]
HOSTILE += ["שלום", "<!--", ""]
CONTEXTS = [4, 8, 12]


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    data: dict[str, Any] = json.loads(text)
    return data


def scored(data: dict[str, Any]) -> list[Any]:
    return [item for passage in data["passages"] for item in passage if not isinstance(item, str)]


def drawn(n: int, contexts: list[int], models: int = 1) -> tuple[str, dict[str, np.ndarray]]:
    """The page of random losses at neighbouring positions whose texts are hostile."""
    losses = {
        f"<model {i}>": np.random.default_rng(i).random((len(contexts), n)) * 9
        for i in range(models)
    }
    t, blocks = np.arange(n) + contexts[-1], np.arange(n) // 700
    results = group_results(losses, contexts, t, blocks, "ppl", bootstrap=0)
    results |= {"split": "whole", "corpus": {"name": "<corpus>", "level": "token"}}
    for model in results["models"]:
        model |= {"kind": "random", "limit": None, "scoring": "one pass"}

    def spell(begin: int, stop: int) -> list[str]:
        return [HOSTILE[at % len(HOSTILE)] for at in range(begin, stop)]

    return recl_page.page(results, losses, t, blocks, spell), losses


def test_every_scored_token_has_its_text_and_losses_and_no_text_becomes_markup() -> None:
    page, losses = drawn(90, CONTEXTS, models=2)
    data = data_of(page)
    bits = np.stack([*losses.values()]) / np.log(2)
    tokens = scored(data)
    assert [position for _, position, _ in tokens] == [*range(12, 102)]
    expected = [HOSTILE[at % len(HOSTILE)] for at in range(12, 102)]
    assert [text for text, _, _ in tokens] == expected
    np.testing.assert_allclose(
        np.array([of for *_, of in tokens]) / 100, bits.transpose(2, 0, 1), atol=0.0051
    )
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched"


def test_a_large_page_has_whole_passages_spread_over_the_text_and_says_so() -> None:
    page, _ = drawn(30_000, [*range(1, 80)], models=3)
    data = data_of(page)
    assert 1_500_000 < len(page.encode()) <= 2_000_000
    assert len(data["shown"]) == 79
    n, total = (
        len(scored(data)),
        sum(-(-of_block // 64) for of_block in np.bincount(np.arange(30_000) // 700)),
    )
    assert data["sample"].startswith(
        f"{n:,} of 30,000 scored tokens, in {len(data['passages'])} of {total} "
    )
    firsts = [passage[-1][1] for passage in data["passages"]]
    assert firsts == sorted(firsts)
    distances = np.diff([0, *firsts, 30_000])
    assert distances.max() < 3 * 30_000 / len(firsts)


def test_the_oracles_page_shows_the_step_at_the_known_distance_also_of_a_function() -> None:
    recall = Recall(distances=(48,), repeats=0.9, symbols=8)
    text = recall.text(20_000, seed=2)
    oracle, contexts = RecallOracle(recall), [*range(24, 97, 24)]
    models = {
        "exact": oracle,
        "array": lambda x_BT: oracle.score(x_BT[:, :-1], x_BT[:, 1:])[0].numpy(),
    }
    results, page = compare(
        models, np.frombuffer(text.encode(), np.uint8), contexts, 300, texts=text
    )
    curve, other = data_of(page)["models"]
    assert [curve["name"], other["name"]] == [*models]
    assert np.argmin(np.diff(curve["y"])) + 1 == contexts.index(48)
    ours, theirs = results["models"]
    assert ours["recl"]["1.0"]["value"] == 48
    assert (theirs["nll"], theirs["recl"]) == (ours["nll"], ours["recl"])
    for shown, position, ((*bits,), _) in scored(data_of(page)):
        first, *others = -np.diff(bits)  # from 24 tokens to 48, and further
        assert (shown, any(others), first > 0) == (
            text[position],
            False,
            text[position] == text[position - 48],
        )


Shown = Callable[[str, str], str]


@pytest.fixture
def shown_in_chromium(tmp_path: Path) -> Shown:
    """A function of a page and a fragment: the document after the page's scripts have run."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("needs Chromium")

    def dumped(page: str, fragment: str) -> str:
        path = tmp_path / "recl.html"
        path.write_text(page, "utf-8")
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=2000",
            "--dump-dom",
        ]
        command = [
            chromium,
            *words,
            f"--user-data-dir={tmp_path}/profile",
            f"{path.as_uri()}{fragment}",
        ]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=True
        ).stdout

    return dumped


def test_a_token_in_focus_shows_its_curve(shown_in_chromium: Shown) -> None:
    page, losses = drawn(90, CONTEXTS, models=2)
    shown = shown_in_chromium(page, "#t36").split("<script")[
        0
    ]  # at position 36: the first of the hostile texts
    card = shown[shown.index('<div id="card"') : shown.index("<noscript>")]
    assert "hidden" not in card[:60]
    assert "<bdi>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;</bdi>" in card
    before, after = losses["<model 0>"][[0, -1], 36 - 12] / np.log(2)
    assert f"{before:.2f} → {after:.2f} bits" in card
    assert card.count("<circle") == 2 * len(CONTEXTS)
    assert shown.count('<section class="passage"') == 2
    assert shown.count('tabindex="0"') == 1 + len(data_of(page)["tables"]), (
        "one stop in the text, one for each table"
    )
    assert "⟨U+202E⟩abc" in shown
    assert "\u202e" not in shown


def test_a_page_without_a_token_in_focus_hides_the_card(shown_in_chromium: Shown) -> None:
    shown = shown_in_chromium(drawn(90, CONTEXTS)[0], "")
    assert re.search(r'<div id="card"[^>]*hidden', shown)
    assert shown.count('<li><a href="#t') == 24


NARROW = """<!doctype html><iframe id="frame" width="360" height="640" srcdoc="{}"></iframe><script>onload = () => {{
  const inside = frame.contentDocument, tokens = [...inside.querySelectorAll(".token")];
  const place = element => element.getBoundingClientRect();
  const seen = tokens.map(token => (token.focus(), place(token).bottom <= place(inside.querySelector("#card")).top));
  const {{ scrollWidth, clientWidth }} = inside.documentElement, n = seen.filter(Boolean).length;
  document.body.append(`${{scrollWidth - clientWidth}} too wide, ${{n}} of ${{seen.length}} seen`);
}}</script>"""


def test_a_narrow_page_fits_and_its_card_never_covers_the_token_in_focus(
    shown_in_chromium: Shown,
) -> None:
    page, _ = drawn(90, CONTEXTS, models=3)
    shown = shown_in_chromium(NARROW.format(html.escape(page)), "")
    assert re.findall(r"\d+ too wide, \d+ of \d+ seen", shown) == ["0 too wide, 270 of 270 seen"]
