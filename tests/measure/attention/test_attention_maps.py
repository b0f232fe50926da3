"""Streaming averages of attention against the same averages taken directly, query by query."""

import math

import numpy as np
import pytest
import torch

from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.data.streams import OrderedStreams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError
from txl_lightning.measure.attention.maps import (
    AttentionInputs,
    attention_maps,
    attention_reach,
    centred_logits,
    text_attention,
    watched,
)
from txl_lightning.model.attention import Attention
from txl_lightning.model.transformer_xl import TransformerXL

KINDS = {
    "relative": {},
    "same length": {"same_length": True},
    "zeros at the start": {"memory_start": "zeros", "same_length": True},
    "extended context": {"ext_len": 2},
    "no memory": {"mem_len": 0},
    "shaw, untied, pre-norm": {"encoding": "shaw", "table_len": 5, "pre_norm": True},
    "absolute": {"encoding": "absolute"},
    "no (d)": {"terms": "abc"},
    "forget gate": {"forget_gate": True},
    "forget gate, no encoding": {"encoding": "none", "forget_gate": True},
    "modern recipe": {"pre_norm": True, "final_norm": True, "norm": "rms", "feed_forward": "swiglu", "qk_norm": True},
}
SEGMENT, STREAMS = 3, 2


@torch.no_grad()
def direct(model: TransformerXL, streams: OrderedStreams, terms: str | None) -> dict[str, np.ndarray]:
    """All queries' weights in memory, one dictionary of distances each; averaged at the end, as the words say."""
    queries: dict[tuple[int, int], list[tuple[dict[int, float], int, int]]] = {}
    memory, read, reach = None, 0, attention_reach(model.config, SEGMENT)
    for segment in (streams[i] for i in range(len(streams))):
        T, targets = segment.tokens.shape[1], segment.targets.shape[1]
        caught: list[tuple[int, Attention, AttentionInputs]] = []
        with watched(model, lambda *seen, caught=caught: caught.append(seen)):
            _, memory = model(segment.tokens, memory)
        for n, attention, inputs in caught:
            weights = attention.logits(*inputs, terms=terms).softmax(-1)
            M = inputs.memory_BMD.shape[1]
            for h in range(weights.shape[0]):
                for b in range(weights.shape[1]):
                    for i in range(T - targets, T):
                        in_text = min(read, model.config.mem_len) + i + 1
                        if in_text >= reach:
                            row = {M + i - j: float(weights[h, b, i, j]) for j in range(M + i + 1)}
                            queries.setdefault((n, h), []).append((row, i, in_text))
        read += max(0, T - model.config.ext_len)
    averages: dict[str, list] = {"rows": []}
    for _, of_head in sorted(queries.items()):
        mean = {d: sum(row.get(d, 0.0) for row, *_ in of_head) / len(of_head) for d in range(40)}
        near = [mean[d] for d in range(reach)]
        averages["rows"].append([x / sum(near) for x in near])
        entropies = [-sum(p * math.log2(p) for p in row.values() if p) for row, *_ in of_head]
        in_memory = sum(p for row, i, _ in of_head for d, p in row.items() if d > i) / len(of_head)
        total = sum(mean.values())
        values = {
            "beyond": total - sum(near), "entropy_bits": sum(entropies) / len(of_head), "in_memory": in_memory,
            "in_segment": total - in_memory, "mean_distance": sum(d * p for d, p in mean.items()) / total,
        }  # fmt: skip
        for name, value in values.items():
            averages.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in averages.items()} | {"queries": np.array(len(of_head))}


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_sums_are_the_direct_average(kind: str) -> None:
    model = tiny_model(**KINDS[kind])
    streams = OrderedStreams(random_stream(1, 29)[0].numpy(), STREAMS, SEGMENT, model.config.ext_len)
    maps = attention_maps(model, streams)
    shown = "abcd" if model.config.forget_gate else "abd"
    present = [term for term in shown if term in model.config.logit_terms]
    centred = [f"{term}_centred" for term in shown] if model.config.active_terms == "abcd" else []
    assert list(maps.by_distance) == ["all", *present, *centred]
    for name, rows in maps.by_distance.items():
        if name in centred:
            continue
        expected = direct(model, streams, None if name == "all" else name)
        np.testing.assert_allclose(rows, expected.pop("rows"), rtol=0, atol=1e-12)
        if name == "all":
            assert maps.queries == expected.pop("queries")
            assert maps.averages.keys() == expected.keys()
            for average, values in maps.averages.items():
                np.testing.assert_allclose(values, expected[average], rtol=0, atol=1e-12)
    if KINDS[kind].get("same_length"):
        np.testing.assert_allclose(maps.averages["beyond"], 0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", ["relative", "extended context", "shaw, untied, pre-norm", "modern recipe", "forget gate"]
)
def test_the_centred_split_has_queries_of_mean_zero_and_the_same_sum(kind: str) -> None:
    """The rows again from queries, keys and distances written out, with the mean over the queries that count."""
    model = tiny_model(**KINDS[kind])
    streams = OrderedStreams(random_stream(1, 29)[0].numpy(), STREAMS, SEGMENT, model.config.ext_len)
    maps, reach = attention_maps(model, streams), attention_reach(model.config, SEGMENT)
    caught: list[tuple[int, Attention, AttentionInputs, torch.Tensor]] = []
    memory, read = None, 0
    for segment in (streams[i] for i in range(len(streams))):
        T, targets = segment.tokens.shape[1], segment.targets.shape[1]
        counts = [i >= T - targets and min(read, model.config.mem_len) + i + 1 >= reach for i in range(T)]
        with watched(model, lambda *seen, counts=counts: caught.append((*seen, torch.tensor(counts)))):
            _, memory = model(segment.tokens, memory)
        read += max(0, T - model.config.ext_len)
    for n in range(model.config.n_layer):
        of_layer = [seen for seen in caught if seen[0] == n]
        queries = [attention.project(inputs.hidden_BTD)[0][:, :, counts] for _, attention, inputs, counts in of_layer]
        mean_HE = torch.cat(queries, dim=2).mean(dim=(1, 2))
        assert mean_HE.abs().max() > 1e-3
        rows = {term: torch.zeros(model.config.n_head, reach, dtype=torch.float64) for term in "abd"}
        for _, attention, inputs, counts in of_layer:
            q, (k, _) = attention.project(inputs.hidden_BTD, inputs.memory_BMD)
            r, positions, scale = attention.distance_vectors(inputs.positions), inputs.positions, k.shape[-1] ** -0.5
            M, (T, K) = inputs.memory_BMD.shape[1], (q.shape[2], k.shape[2])
            places = [[K - max(0, M + i - j) for j in range(K)] for i in range(T)]  # of distance i - j in K, …, 0
            r_HTKE = r[:, places]
            own_v = 0 if positions.v_HE is None else positions.v_HE
            bias = 0 if positions.bias_HS is None else positions.bias_HS[:, None][..., places] * scale
            centred = q - mean_HE[:, None, None]
            parts = {
                "a": torch.einsum("hbte,hbke->hbtk", centred, k) * scale,
                "b": torch.einsum("hbte,htke->hbtk", centred, r_HTKE) * scale,
                "c": torch.einsum("he,hbke->hbk", positions.u_HE + mean_HE, k)[:, :, None] * scale,
                "d": torch.einsum("he,htke->htk", own_v + mean_HE, r_HTKE)[:, None] * scale + bias,
            }
            if attention.forget is not None:
                gates = attention.forget(torch.cat([inputs.memory_BMD, inputs.hidden_BTD], dim=1)).sigmoid()
                c_HBK = gates.log().cumsum(dim=1).permute(2, 0, 1)
                parts["c"] = parts["c"] + (c_HBK[:, :, -1:] - c_HBK)[:, :, None]
            hidden = inputs.visible.mask_TK != 0
            whole = attention.logits(*inputs)
            difference = (sum(parts.values()) - whole).masked_fill(hidden, 0)
            assert difference.abs().max() < 1e-12
            for terms in "abcd":
                ours = centred_logits(attention, inputs, mean_HE, terms)
                assert (ours - parts[terms]).masked_fill(hidden, 0).abs().max() < 1e-12
            for term in "abd":
                weights = parts[term].expand_as(whole).masked_fill(hidden, -torch.inf).softmax(-1)
                for i in counts.nonzero().flatten().tolist():
                    for distance in range(reach):
                        if M + i - distance >= 0:
                            rows[term][:, distance] += weights[:, :, i, M + i - distance].sum(dim=1)
        for term, of_heads in rows.items():
            found = maps.by_distance[f"{term}_centred"].reshape(model.config.n_layer, -1, reach)[n]
            np.testing.assert_allclose(found, of_heads / of_heads.sum(dim=1, keepdim=True), rtol=0, atol=1e-12)
            assert abs(found - maps.by_distance[term].reshape(model.config.n_layer, -1, reach)[n]).max() > 1e-4


def test_no_query_that_sees_less_than_the_others_counts() -> None:
    """Streams of 13 targets: with a memory of 4 those after the fourth count; without memory, two of every three."""
    tokens = random_stream(1, 2 * 14)[0].numpy()
    for mem_len, same_length, queries in ((4, False, 2 * 9), (4, True, 2 * 10), (0, False, 2 * 8)):
        model = tiny_model(mem_len=mem_len, same_length=same_length)
        assert attention_maps(model, OrderedStreams(tokens, STREAMS, SEGMENT)).queries == queries
    assert attention_maps(model, OrderedStreams(tokens, STREAMS, SEGMENT), max_segments=2).queries == 2 * 4


def test_queries_near_the_start_of_their_document_do_not_count() -> None:
    """Streams of 13 targets. With a memory of 4 a query sees 5 keys from the fifth token of its document on."""
    tokens = random_stream(1, 2 * 14)[0].numpy()
    tokens[[6, 14 + 1, 14 + 11]] = ~tokens[[6, 14 + 1, 14 + 11]]
    model = tiny_model(mem_len=4, memory_reset="document")
    maps = attention_maps(model, OrderedStreams(tokens, STREAMS, SEGMENT))
    assert maps.queries == (2 + 3) + (0 + 6 + 0)
    assert maps.by_distance["all"][:, :5].min() > 0
    tokens[1::2] = ~np.abs(tokens[1::2])
    with pytest.raises(OptionError, match="mem_len=4: must be shorter: no document lets a query see 5 keys"):
        attention_maps(model, OrderedStreams(tokens, STREAMS, SEGMENT))


def test_streams_shorter_than_the_memory_are_refused() -> None:
    streams = OrderedStreams(random_stream(1, 28)[0].numpy(), STREAMS, SEGMENT)
    with pytest.raises(OptionError, match="mem_len=13: must be at most 12: each stream has 13 tokens"):
        attention_maps(tiny_model(mem_len=13), streams)
    attention_maps(tiny_model(mem_len=6, same_length=True), streams, max_segments=2)
    with pytest.raises(OptionError, match="mem_len=6: must be at most 5: each stream has 6 tokens"):
        attention_maps(tiny_model(mem_len=6), streams, max_segments=2)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"same_length": True}, {"mem_len": 0}, {"ext_len": 2}])
def test_a_piece_of_text_has_the_attention_it_has_in_a_stream(options: dict) -> None:
    """The stream is cut so that one of its segments is the piece."""
    model, stream = tiny_model(**options), random_stream(1, 60)
    M, n_targets, position = model.config.mem_len, 3, 37
    piece = text_attention(model, stream[0].numpy(), LETTERS, position, n_targets, SEGMENT + 1)
    C = M or 1
    assert ("".join(piece.targets), "".join(piece.context)) == (
        LETTERS.decode(stream[0, 37:40]), LETTERS.decode(stream[0, 36 - C : 36])
    )  # fmt: skip
    memory, seen = None, []
    plain = model.with_lengths(ext_len=0)
    for start in range(0, 36, 4) if M else []:
        _, memory = plain(stream[:, start : start + 4], memory)
    with watched(plain, lambda n, *of_layer: seen.append(of_layer)):
        plain(stream[:, 36 if M else 35 : 39], memory)
    assert len(piece.weights) == model.config.n_layer * model.config.n_head
    for head, weights in piece.weights.items():
        n, h = (int(number) - 1 for number in head.split(":"))
        attention, inputs = seen[n]
        expected = attention.logits(*inputs)[h, 0].softmax(-1)[-3:, :C]
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)
        assert (weights[2, :2] == 0).all() == bool(options.get("same_length"))


LETTERS = Vocabulary("char", tuple("abcdefghijk"))


@pytest.mark.parametrize(
    ("mem_len", "position", "n_targets", "words"),
    [
        (4, 4, 2, r"text_position=4: must be in 5 … 58, the 60 tokens"),
        (0, 30, 4, r"text_tokens=4: must be in 1 … 3 \(segment_len=4\)"),
        (60, None, 2, "mem_len=60: must leave room for memory and piece in the 60 tokens"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused(mem_len: int, position: int | None, n_targets: int, words: str) -> None:
    tokens = random_stream(1, 60)[0].numpy()
    with pytest.raises(OptionError, match=words):
        text_attention(tiny_model(mem_len=mem_len), tokens, LETTERS, position, n_targets, 4)
