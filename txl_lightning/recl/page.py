"""Tables of `txl recl`, and its page: curves, tables, and the text coloured by what long context gives each token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.recl.effective_context import Array

Table = Sequence[Mapping[str, object]]
TEMPLATE = Path(__file__).with_name("page.html")
MOST_BYTES = 1_900_000  # of passages
PASSAGE = 64  # positions
BEFORE = 64  # most text, in tokens, before a scored token
MOST_LETTERS = 200  # of a token
CUT = "\ufffd"  # the rest of a character
MOST_VALUES = 512  # losses of a token
LAST_DOUBLINGS = 3  # in the table


def page(
    results: dict[str, Any],
    losses: Mapping[str, Array],
    positions: np.ndarray,
    blocks: np.ndarray,
    spell: Callable[[int, int], list[str]],
) -> str:
    """Return one HTML file of at most 2 MB. Passages that do not fit are left out, evenly over the text.

    Args:
        results: contents of `recl.json`.
        losses: l(c, t) of every model, [C, P], in nats.
        positions: t, ascending.
        blocks: block of each position.
        spell: returns the text of every token from one position to before another.
    """
    bits_ICP = np.stack([*losses.values()]) / np.log(2)
    _, C, P = bits_ICP.shape
    shown_C = np.unique(np.linspace(0, C - 1, max(2, min(C, MOST_VALUES // len(losses)))).astype(int))
    hundredths_ICP = np.rint(100 * bits_ICP[:, shown_C]).astype(int)
    _, first_B, place_P = np.unique(blocks, return_index=True, return_inverse=True)
    passages = np.split(np.arange(P), np.flatnonzero((np.arange(P) - first_B[place_P]) % PASSAGE == 0)[1:])
    encoded, size = dict[int, str](), 0
    for k in np.argsort(np.arange(len(passages)) * 0.618034 % 1).tolist():  # any first ones are spread evenly
        passage = _encode(_passage(positions[passages[k]], hundredths_ICP[:, :, passages[k]], spell))
        size += len(passage.encode())
        if encoded and size > MOST_BYTES:
            break
        encoded[k] = passage
    shown, unit, contexts = sum(len(passages[k]) for k in encoded), results["context_unit"], results["contexts"]
    facts = {
        "about": f"{results['corpus']['name']}, {results['split']}: {P:,} positions in {len(first_B)} blocks.",
        "sample": f"{shown:,} of {P:,} scored {unit}s, in {len(encoded)} of {len(passages)} passages spread over the "
        f"text. A colour is the loss with {contexts[0]} {unit}s of context minus that with {contexts[-1]}.",
        **{"unit": unit, "step": results["step"], "contexts": contexts, "shown": [contexts[c] for c in shown_C]},
        "tables": [[title, [*rows[0]], [[*row.values()] for row in rows]] for title, rows in tables(results).items()],
        "notes": notes(results),
    }
    facts["models"] = [{"name": one["name"], "nll": one["nll"]} for one in results["models"]]
    for of_page, model in zip(facts["models"], results["models"], strict=True):
        of_page["error"] = np.nan_to_num(model["nll_standard_error"]).tolist()
    data = f'{_encode(facts)[:-1]},"passages":[{",".join(encoded[k] for k in sorted(encoded))}]}}'
    return TEMPLATE.read_text("utf-8").replace("$data", data, 1)


def _encode(value: Any) -> str:
    """Return JSON that cannot end the element of a page that it stands in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _passage(positions: np.ndarray, hundredths_ICP: np.ndarray, spell: Callable[[int, int], list[str]]) -> list[Any]:
    """Return texts, and scored tokens as text, position, and the loss by model and context in hundredths of bits."""
    end = start = max(0, int(positions[0]) - BEFORE)
    texts = [text[:MOST_LETTERS] for text in spell(start, int(positions[-1]) + 1)]
    items: list[Any] = []
    for p, t in enumerate(positions.tolist()):
        begin = max(end, t - BEFORE)
        before = "".join(texts[begin - start : t - start])
        before = f"…{before.lstrip(CUT)}" if begin > end or not items else before
        items += [before] if before else []
        items.append([texts[t - start], t, hundredths_ICP[:, :, p].tolist()])
        end = t + 1
    return items


def tables(results: dict[str, Any]) -> dict[str, Table]:
    """Return tables by title, each a list of rows: losses and gains by context, Table 8, differences of two models."""
    grouped = "; ".join(", ".join(group["models"]) for group in results["groups"])
    found: dict[str, Table] = {
        "Loss by context and its gain, without a group:": [_gains(model, results) for model in results["models"]],
        f"RECL in the group of: {grouped}": [_table_8(model, results) for model in results["models"]],
        "Differences": [_difference(one, results) for one in results["differences"]],
    }
    return {title: rows for title, rows in found.items() if rows}


def _difference(one: dict[str, Any], results: dict[str, Any]) -> dict[str, object]:
    """Return the difference of two models at the longest context."""
    difference, low, high = (f"{one[name][-1]:+.4f}" for name in ("nll", "low", "high"))
    title = f"nats at {results['contexts'][-1]} {results['context_unit']}s, 95 % interval"
    return {
        "difference, paired by position": f"{one['model']} − {one['minus']}",
        title: f"{difference} [{low}, {high}]",
    }


def _gains(model: dict[str, Any], results: dict[str, Any]) -> dict[str, object]:
    """Return what needs no group: losses at both ends of the grid, and what more context gains."""
    unit, context_unit, contexts, limit = results["unit"], results["context_unit"], results["contexts"], model["limit"]
    chain = {contexts[0] << k for k in range(32)}
    doublings = [found for found in model["doublings"] if found["from"] in chain][-LAST_DOUBLINGS:]
    losses, errors = model[unit], model[f"{unit}_standard_error"]
    values = {f"{unit} at {contexts[end]} {context_unit}s": (losses[end], errors[end]) for end in (0, -1)}
    values |= {f"bits {found['from']} → {found['to']}": (found["bits"], found["standard_error"]) for found in doublings}
    sees = f"{limit} tokens" if limit and context_unit == "byte" else str(limit or "–")
    cells = {title: f"{value:.3f} ± {error:.3f}" for title, (value, error) in values.items()}
    row = {"model": model["name"], "kind": model["kind"], "sees at most": sees, **cells}
    return {**row, "within 1 %": str(model["within_1_percent"])}


def _table_8(model: dict[str, Any], results: dict[str, Any]) -> dict[str, object]:
    """Return RECL with its interval, and guarded RECL."""
    row, guarded = {"model": model["name"]}, dict[str, str]()
    if len(results["groups"]) > 1:
        row["group"] = model["group"]
    for r in (str(float(r)) for r in results["fractions"]):
        found = model["recl"][r]
        interval = f" [{found['low']}, {_bounded(found, 'high', 'high_at_least')}]" if results["bootstrap"] else ""
        row[f"RECL r = {r}"] = _bounded(found) + interval
        guarded[f"guarded r = {r}"] = _bounded(found, "guarded", "guarded_at_least")
    return row | guarded


def _bounded(length: dict[str, Any], value: str = "value", at_least: str = "at_least") -> str:
    return f"{'≥ ' if length[at_least] else ''}{length[value]}"


def notes(results: dict[str, Any]) -> list[str]:
    """Describe the measurement, its precision and the signs of the table."""
    contexts, models = results["contexts"], results["models"]
    corpus, positions, longest = results["corpus"], results["positions"], f"{contexts[-1]} {results['context_unit']}s"
    key = {model["name"]: found for model in models if (found := model["key_tokens"])}
    shares = ", ".join(f"{name} {found['share']:.1%} ({found['share_of_rises']:.1%})" for name, found in key.items())
    own = {one["name"]: nats for one in models if one["scoring"] == "direct" and (nats := one["one_pass_difference"])}
    a, b = results["key_contexts"]
    applies: dict[str, Any] = {
        f"{positions['number']:,} positions of {corpus['name']} ({results['split']}) in {positions['blocks']} blocks "
        f"spread evenly over the text; ± over blocks. A step from a context of the grid to the next counts if its "
        f"relative gain is at least {results['threshold']:.3g}.": True,
        f"Within 1 %: the first context whose loss is at most 1 % above that at {longest}. Sees at most: the positions "
        "that a model has or was trained with.": True,
        "Contexts are bytes of text, cut to whole tokens; losses are per byte of the pieces of text that all "
        "tokenizers have in common.": results["context_unit"] == "byte",
        f"{positions['cut']:,} positions have fewer than {longest} of context, because their document is shorter "
        "(documents=respect).": positions["cut"],
        f"In brackets: 95 % interval over {results['bootstrap']:,} resamples of the blocks. ≥: steps still counted at "
        f"{longest}, where the grid ends (max_context).": results["bootstrap"],
        "RECL at r is of the share r of positions that are hardest; r = 1.0 is of all.": True,
        "Guarded: a step must also lower the model's own mean loss, over all and over hard positions.": True,
        f"Key tokens, whose loss falls (rises) by more than {results['key_gain']:g} nats from {a} to {b} tokens: "
        f"{shares}.": key,
    }
    for name, nats in own.items():
        applies[f"{name} is read in windows of exactly c tokens: one pass differs by up to {nats:.3g} nats."] = True
    return [note for note, here in applies.items() if here]
