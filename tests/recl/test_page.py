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
from txl_lightning.recl.comparison import compare
from txl_lightning.recl.loss_by_context import group_results
from txl_lightning.recl.page import page

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
    "שלום",
    "<!--",
    "",
]

CONTEXTS = [4, 8, 12]


def data_of(html_page: str) -> dict[str, Any]:
    pattern = r'<script type="application/json" id="data">(.*?)</script>'
    (text,) = re.findall(pattern, html_page, re.DOTALL)
    return json.loads(text)


def scored(data: dict[str, Any]) -> list[Any]:
    """Text, position and losses of every scored token."""
    tokens = []
    for passage in data["passages"]:
        for position, losses in zip(passage["positions"], passage["hundredths"], strict=True):
            text = passage["texts"][position - passage["start"]]
            tokens.append((text, position, losses))
    return tokens


def drawn(n: int, contexts: list[int], models: int = 1) -> tuple[str, dict[str, np.ndarray]]:
    """The page of random losses at neighbouring positions whose texts are hostile."""
    losses = {}
    for i in range(models):
        generator = np.random.default_rng(i)
        losses[f"<model {i}>"] = 9 * generator.random((len(contexts), n))
    positions = np.arange(n) + contexts[-1]
    blocks = np.arange(n) // min(700, n // 2)
    results = group_results(losses, contexts, positions, blocks, "token", bootstrap=0)
    results["split"] = "whole"
    results["corpus"] = {"name": "<corpus>", "level": "token"}

    def spell(begin, stop):
        return [HOSTILE[at % len(HOSTILE)] for at in range(begin, stop)]

    losses_ICP = np.stack([*losses.values()])
    return page(results, losses_ICP, positions, blocks, spell), losses


def test_every_scored_token_has_its_text_and_losses_and_no_text_becomes_markup():
    html_page, losses = drawn(90, CONTEXTS, models=2)
    bits_ICP = np.stack([*losses.values()]) / np.log(2)
    tokens = scored(data_of(html_page))
    for p, (text, position, hundredths) in enumerate(tokens):
        assert position == p + 12
        assert text == HOSTILE[position % len(HOSTILE)]
        assert np.array(hundredths) / 100 == pytest.approx(
            bits_ICP[:, :, p],
            abs=0.0051,
        )
    assert len(tokens) == 90
    assert html_page.count("<script") == html_page.count("</script>") == 2
    assert "http" not in html_page.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched"


@pytest.mark.slow
def test_a_large_page_has_whole_passages_spread_over_the_text():
    html_page, _ = drawn(
        30_000,
        [*range(1, 80)],
        models=3,
    )
    data = data_of(html_page)
    assert 1_500_000 < len(html_page.encode()) <= 2_000_000
    assert data["n_passages"] == 42 * 11 + 10  # of 42 blocks of 700 positions, and 600
    firsts = [passage["positions"][0] for passage in data["passages"]]
    distances = np.diff([0, *firsts, 30_000])
    assert 0 < distances.min() <= distances.max() < 3 * 30_000 / len(firsts)


def test_the_oracles_page_shows_the_step_at_the_known_distance_also_of_a_function():
    recall = Recall(distances=(48,), repeats=0.9, symbols=8)
    text = recall.text(20_000, seed=2)
    tokens = np.frombuffer(text.encode(), np.uint8)
    oracle = RecallOracle(recall)

    def losses(tokens_BT):
        nll_BT, _ = oracle.score(
            tokens_BT[:, :-1],
            tokens_BT[:, 1:],
        )
        return nll_BT.numpy()

    models = {"exact": oracle, "array": losses}
    results, html_page = compare(
        models,
        tokens,
        [24, 48, 72, 96],
        300,
        texts=text,
    )
    exact, array = results["models"]
    assert exact["recl"]["1.0"]["value"] == 48
    assert (array["nll"], array["recl"]) == (exact["nll"], exact["recl"])
    for shown, position, (hundredths, _) in scored(data_of(html_page)):
        steps = np.diff(hundredths)
        assert shown == text[position]
        assert (steps[0] < 0) == (text[position] == text[position - 48])
        assert not steps[1:].any()


Shown = Callable[[str, str], str]


@pytest.fixture
def shown_in_chromium(tmp_path: Path) -> Shown:
    """A function of a page and a fragment: the document after the page's scripts have run."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browsers = [path for path in map(shutil.which, names) if path]
    if not browsers:
        pytest.skip("needs Chromium")
    options = "--headless --no-sandbox --disable-gpu --virtual-time-budget=2000 --dump-dom"

    def dumped(html_page, fragment):
        path = tmp_path / "recl.html"
        path.write_text(html_page, "utf-8")
        command = [
            browsers[0],
            *options.split(),
            f"--user-data-dir={tmp_path}/profile",
        ]
        command.append(path.as_uri() + fragment)
        return subprocess.check_output(
            command,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=120,
        )

    return dumped


def test_a_token_in_focus_shows_its_curve(shown_in_chromium):
    html_page, losses = drawn(90, CONTEXTS, models=2)
    document = shown_in_chromium(html_page, "#t36")  # the first of the hostile texts
    shown = document.split("<script")[0]
    card = shown[shown.index('<div id="card"') : shown.index("<noscript>")]
    assert "hidden" not in card[:60]
    assert "<bdi>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;</bdi>" in card
    bits_C = losses["<model 0>"][:, 36 - 12] / np.log(2)
    assert f"{bits_C[0]:.2f} → {bits_C[-1]:.2f} bits" in card
    assert card.count("<circle") == 2 * len(CONTEXTS)
    assert "&lt;corpus&gt;, whole: 90 positions in 2 blocks." in shown
    assert "90 of 90 scored tokens, in 2 of 2 passages spread over the text." in shown
    chart = shown[shown.index('<div id="curves"') : shown.index('<div id="tables"')]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", chart)
    assert texts[-5:] == ["4", "8", "12", "perplexity", "tokens of context"]
    loss = np.exp(losses["<model 0>"][0].mean())
    assert f"perplexity {loss:.2f} at 4 tokens" in chart
    assert ">ppl at 12 tokens</th>" in shown
    assert "⟨U+202E⟩abc" in shown
    assert "\u202e" not in shown


IN_A_FRAME = """<!doctype html><iframe id="frame" width="{}" height="{}" srcdoc="{}"></iframe><script>onload = () => {{
  const inside = frame.contentDocument, view = frame.contentWindow, tokens = [...inside.querySelectorAll(".token")];
  const seen = tokens.map(token => {{
    token.focus();
    const a = token.getClientRects()[0], b = inside.querySelector("#card").getBoundingClientRect();
    const apart = a.bottom <= b.top || a.top >= b.bottom || a.right <= b.left || a.left >= b.right;
    return apart && b.top >= 0 && b.left >= 0 && b.bottom <= view.innerHeight && b.right <= view.innerWidth;
  }});
  const {{ scrollWidth, clientWidth }} = inside.documentElement, n = seen.filter(Boolean).length;
  document.body.append(`${{scrollWidth - clientWidth}} too wide, ${{n}} of ${{seen.length}} seen`);
}}</script>"""


@pytest.mark.parametrize(
    ("width", "height"),
    [(360, 640), (390, 844), (1366, 768)],
)
def test_a_page_fits_and_its_card_is_whole_and_covers_no_token_in_focus(
    width,
    height,
    shown_in_chromium,
):
    html_page, _ = drawn(90, CONTEXTS, models=3)
    shown = shown_in_chromium(
        IN_A_FRAME.format(width, height, html.escape(html_page)),
        "",
    )
    assert re.findall(r"\d+ too wide, \d+ of \d+ seen", shown) == ["0 too wide, 270 of 270 seen"]
