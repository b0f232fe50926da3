# mypy: allow-untyped-defs
"""Attention with the scores of Transformer-XL in one Triton kernel, forward and backward: no score is ever stored.

    A_ij = ((a·q_i + u)·k_j + (b·q_i + v)·r_{i-j} + bias_{i-j}) / sqrt(E)        Y_i = Σ_j softmax_j(A_i) value_j

a and b are 1 or 0 (terms (a) and (b)); u, v, r and the bias may be missing. Key j stands before query i, or is its own:
the last of the K = M + T keys are those of the queries, so the distance is M + i - j. A mask may hide more keys:
memory that was not written, a window (`same_length`), other documents. Shapes, by the letters H heads, B streams, T
queries, K keys, S = K + 1 distances, E numbers of a head:

    q_HBTE   k_HBKE, values_HBKE   r_HSE, bias_HS (distances K, …, 0)   u_HE, v_HE   mask_TK or mask_BTK (0 or -inf)

**By distance to by key.** A tile of n queries (rows x, from i0) and n keys (columns y, from j0) needs 2n - 1 distances:
those of r's rows T + j0 - i0 - n, … The products of position and r come as tiles by distance, n columns each, of which
a tile by key needs two neighbours: key y of row x is column y - x of the later one, or, where that is negative, column
y - x + n of the earlier one. Both are (y - x) mod n. So the two are merged first, by one comparison, and then every row
is turned by its own number:

    by_key[x, y] = merged[x, (y - x) mod n]        merged[x, c] = later[x, c] where x + c < n, else earlier[x, c]

The backward pass turns the other way. Of the three known ways to do this inside a kernel, a reshape needs tiles whose
width is no power of two, which Triton has not; a buffer in global memory costs a round trip through L2 and a barrier;
`tl.gather` (Triton 3.2 and later) turns the rows within a warp, so it is the one here. A loop over keys keeps the later
tile, which is the earlier one of the next keys: the products cost T·K·E, not twice that.

**Softmax** is online (Milakov and Gimelshein 2018; Dao et al. 2022). It keeps of each row the logarithm of its sum, in
base 2, from which the backward pass computes the weights again, in three passes without atomics, so each run gives
the same bits: over queries (q, u, v), over keys (k, values), over distances (r, bias).

**Dropout** of the weights is a function of a seed and of (h, b, i, j), by the Philox generator; the seed is on the
device, so that a CUDA graph draws a new one in each replay.

Products take the type of the inputs and sum in float32; scores, softmax and sums are in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

if TYPE_CHECKING:
    from txl_lightning.model.positions import VisibleKeys

LOG2_E = tl.constexpr(1.4426950408889634)
PROGRAMS = 512  # the pass over distances divides the streams until it has so many: as many as keep any GPU busy


@triton.jit
def _rows(x, first, n, stride, E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load BLOCK rows of a matrix [n, E], from `first` on; zeros outside it."""
    rows, columns = first + tl.arange(0, BLOCK)[:, None], tl.arange(0, WIDTH)[None, :]
    return tl.load(
        x + rows * stride + columns, mask=(rows >= 0) & (rows < n) & (columns < E), other=0.0
    )


@triton.jit
def _write(x, tile, first, n, stride, E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Store what `_rows` loads."""
    rows, columns = first + tl.arange(0, BLOCK)[:, None], tl.arange(0, WIDTH)[None, :]
    inside = (rows >= 0) & (rows < n) & (columns < E)
    tl.store(x + rows * stride + columns, tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _numbers(x, first, n, BLOCK: tl.constexpr):
    """Load BLOCK numbers of n as float32, zeros outside."""
    places = first + tl.arange(0, BLOCK)
    return tl.load(x + places, mask=(places >= 0) & (places < n), other=0.0).to(tl.float32)


@triton.jit
def _with_vector(query, vector, h, READ: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr):
    """Return q_i + u, or q_i + v: the queries of `content` or of `position`; without q_i where its term is off."""
    sums = query.to(tl.float32) if READ else tl.zeros(query.shape, tl.float32)
    if vector is not None:
        sums += _numbers(vector + h * E, 0, E, WIDTH)[None, :]
    return sums.to(query.dtype)


@triton.jit
def _product(x, y, PRECISION: tl.constexpr):
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def _by_distance(
    position, r, bias, h, first, S,
    PRECISION: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return terms (b) and (d) of a tile of queries, for the BLOCK distances from row `first` of r on."""
    scores = tl.zeros((BLOCK, BLOCK), tl.float32)
    if r is not None:
        scores += _product(
            position, tl.trans(_rows(r + h * S * E, first, S, E, E, WIDTH, BLOCK)), PRECISION
        )
    if bias is not None:
        scores += _numbers(bias + h * S, first, S, BLOCK)[None, :]
    return scores


@triton.jit
def _turned(tile, BACK: tl.constexpr, BLOCK: tl.constexpr):
    """Turn row x by x places to the right; BACK: to the left."""
    x, y = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    return tl.gather(tile, ((y + x) if BACK else (y - x)) & (BLOCK - 1), 1)


@triton.jit
def _is_later(BLOCK: tl.constexpr):
    """Return where a turned-back tile, by distance, belongs to the later rows of r."""
    return tl.arange(0, BLOCK)[:, None] + tl.arange(0, BLOCK)[None, :] < BLOCK


@triton.jit
def _sees(i, j, T, K, mask, of_stream):
    """Return whether query i may attend to key j; `of_stream` is where the stream's mask begins."""
    inside = (i < T) & (j >= 0) & (j <= K - T + i)
    if mask is not None:
        inside &= tl.load(mask + of_stream + i * K + j, mask=inside, other=-1.0) == 0.0
    return inside


@triton.jit
def _kept(seed, hb, i, j, K, p):
    """Return which weights dropout keeps."""
    return tl.rand(tl.load(seed) + hb, i * K + j) >= p


@triton.jit
def _forward(
    q, k, values, r, u, v, bias, mask, first, seed, heads, log_sums,
    q_h, q_b, q_t, k_h, k_b, k_t, mask_b, H, B, T, K, scale, p,
    READ_A: tl.constexpr, READ_B: tl.constexpr, PRECISION: tl.constexpr,
    E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Heads [B, T, H, E] and `log_sums` [H, B, T] of a tile of queries of one matrix (h, b)."""
    i0, hb, S = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64), K + 1
    h, b = hb // B, hb % B
    k, values = k + h * k_h + b * k_b, values + h * k_h + b * k_b
    places = i0 + tl.arange(0, BLOCK)
    i = places[:, None]
    query = _rows(q + h * q_h + b * q_b, i0, T, q_t, E, WIDTH, BLOCK)
    content, position = (
        _with_vector(query, u, h, READ_A, E, WIDTH),
        _with_vector(query, v, h, READ_B, E, WIDTH),
    )

    begin, end = 0, tl.minimum(K, K - T + i0 + BLOCK)
    if first is not None:
        begin = tl.min(tl.load(first + b * T + places, mask=places < T, other=K)) // BLOCK * BLOCK
    earlier = _by_distance(
        position, r, bias, h, T + begin - i0 - BLOCK, S, PRECISION, E, WIDTH, BLOCK
    )
    top, total = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    sums = tl.zeros((BLOCK, WIDTH), tl.float32)
    for j0 in range(begin, end, BLOCK):
        j = j0 + tl.arange(0, BLOCK)[None, :]
        scores = _product(content, tl.trans(_rows(k, j0, K, k_t, E, WIDTH, BLOCK)), PRECISION)
        if r is not None or bias is not None:
            later = _by_distance(position, r, bias, h, T + j0 - i0, S, PRECISION, E, WIDTH, BLOCK)
            scores += _turned(tl.where(_is_later(BLOCK), later, earlier), False, BLOCK)
            earlier = later
        scores = tl.where(
            _sees(i, j, T, K, mask, b * mask_b), scores * (scale * LOG2_E), -float("inf")
        )
        highest = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(highest == -float("inf"), 0.0, highest)
        weights, decay = tl.exp2(scores - finite[:, None]), tl.exp2(top - finite)
        total, top = total * decay + tl.sum(weights, 1), highest
        if seed is not None:
            weights = tl.where(_kept(seed, hb, i, j, K, p), weights / (1.0 - p), 0.0)
        value = _rows(values, j0, K, k_t, E, WIDTH, BLOCK)
        sums = sums * decay[:, None] + _product(weights.to(value.dtype), value, PRECISION)

    total = tl.where(total > 0.0, total, 1.0)
    _write(heads + (b * T * H + h) * E, sums / total[:, None], i0, T, H * E, E, WIDTH, BLOCK)
    tl.store(log_sums + hb * T + places, top + tl.log2(total), mask=places < T)


@triton.jit
def _gradient_of_scores(scores, of_weights, sees, seed, hb, i, j, K, log_sum, delta, scale, p):
    """Return the weights behind dropout and the gradient of the scores.

        P = exp(A/sqrt(E)) / Σ        dA = P ∘ (Z ∘ (dY · valueᵀ) - delta)        delta_i = Σ_e dY_ie Y_ie

    Z is what dropout multiplies the weights with. `of_weights` is dY · valueᵀ. A factor 1/sqrt(E) is left out.
    """
    exponents = scores * (scale * LOG2_E) - log_sum[:, None]
    weights = tl.exp2(tl.where(sees, exponents, -float("inf")))
    dropped = weights
    if seed is not None:
        factor = tl.where(_kept(seed, hb, i, j, K, p), 1.0 / (1.0 - p), 0.0)
        dropped, of_weights = weights * factor, of_weights * factor
    return dropped, weights * (of_weights - delta[:, None])


@triton.jit
def _backward_of_queries(
    q, k, values, r, u, v, bias, mask, first, seed, heads, log_sums, output, deltas, q_grad, u_grad, v_grad,
    q_h, q_b, q_t, k_h, k_b, k_t, mask_b, H, B, T, K, scale, p,
    READ_A: tl.constexpr, READ_B: tl.constexpr, PRECISION: tl.constexpr,
    E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of queries, its part of those of u and v, and `deltas`, which the other passes read.

    What a tile by key gives to the later distances waits for what the next one gives to the same, its earlier ones.
    """
    i0, hb, S = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64), K + 1
    h, b = hb // B, hb % B
    k, values = k + h * k_h + b * k_b, values + h * k_h + b * k_b
    i, of_matrix = i0 + tl.arange(0, BLOCK)[:, None], (b * T * H + h) * E
    query = _rows(q + h * q_h + b * q_b, i0, T, q_t, E, WIDTH, BLOCK)
    content, position = (
        _with_vector(query, u, h, READ_A, E, WIDTH),
        _with_vector(query, v, h, READ_B, E, WIDTH),
    )
    out = _rows(output + of_matrix, i0, T, H * E, E, WIDTH, BLOCK)
    head = _rows(heads + of_matrix, i0, T, H * E, E, WIDTH, BLOCK)
    delta, places = tl.sum(out.to(tl.float32) * head.to(tl.float32), 1), i0 + tl.arange(0, BLOCK)
    tl.store(deltas + hb * T + places, delta, mask=places < T)
    log_sum = _numbers(log_sums + hb * T, i0, T, BLOCK)

    begin, end = 0, tl.minimum(K, K - T + i0 + BLOCK)
    if first is not None:
        begin = tl.min(tl.load(first + b * T + places, mask=places < T, other=K)) // BLOCK * BLOCK
    earlier = _by_distance(
        position, r, bias, h, T + begin - i0 - BLOCK, S, PRECISION, E, WIDTH, BLOCK
    )
    waiting = tl.zeros((BLOCK, BLOCK), tl.float32)
    by_content, by_position = (
        tl.zeros((BLOCK, WIDTH), tl.float32),
        tl.zeros((BLOCK, WIDTH), tl.float32),
    )
    for j0 in range(begin, end, BLOCK):
        j, key = j0 + tl.arange(0, BLOCK)[None, :], _rows(k, j0, K, k_t, E, WIDTH, BLOCK)
        scores = _product(content, tl.trans(key), PRECISION)
        if r is not None or bias is not None:
            later = _by_distance(position, r, bias, h, T + j0 - i0, S, PRECISION, E, WIDTH, BLOCK)
            scores += _turned(tl.where(_is_later(BLOCK), later, earlier), False, BLOCK)
            earlier = later
        value = _rows(values, j0, K, k_t, E, WIDTH, BLOCK)
        of_weights = _product(out, tl.trans(value), PRECISION)
        sees = _sees(i, j, T, K, mask, b * mask_b)
        _, gradient = _gradient_of_scores(
            scores, of_weights, sees, seed, hb, i, j, K, log_sum, delta, scale, p
        )
        by_content += _product(gradient.to(key.dtype), key, PRECISION)
        if r is not None:
            turned = _turned(gradient, True, BLOCK)
            waiting += tl.where(_is_later(BLOCK), 0.0, turned)
            distances = _rows(r + h * S * E, T + j0 - i0 - BLOCK, S, E, E, WIDTH, BLOCK)
            by_position += _product(waiting.to(key.dtype), distances, PRECISION)
            waiting = tl.where(_is_later(BLOCK), turned, 0.0)
    if r is not None:
        last = T - i0 + begin + (end - begin - 1) // BLOCK * BLOCK
        by_position += _product(
            waiting.to(query.dtype), _rows(r + h * S * E, last, S, E, E, WIDTH, BLOCK), PRECISION
        )

    by_content, by_position = by_content * scale, by_position * scale
    q_sums = tl.where(READ_A, by_content, 0.0) + tl.where(READ_B, by_position, 0.0)
    _write(q_grad + hb * T * E, q_sums, i0, T, E, E, WIDTH, BLOCK)
    columns, part = tl.arange(0, WIDTH), (hb * tl.num_programs(0) + tl.program_id(0)) * E
    if u_grad is not None:
        tl.store(u_grad + part + columns, tl.sum(by_content, 0), mask=columns < E)
    if v_grad is not None:
        tl.store(v_grad + part + columns, tl.sum(by_position, 0), mask=columns < E)


@triton.jit
def _backward_of_keys(
    q, k, values, r, u, v, bias, mask, first, seed, log_sums, output, deltas, k_grad, values_grad,
    q_h, q_b, q_t, k_h, k_b, k_t, mask_b, H, B, T, K, scale, p,
    READ_A: tl.constexpr, READ_B: tl.constexpr, PRECISION: tl.constexpr,
    E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and of their values: [H, B, K, E]."""
    j0, hb, S = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64), K + 1
    h, b = hb // B, hb % B
    q, output = q + h * q_h + b * q_b, output + (b * T * H + h) * E
    j = j0 + tl.arange(0, BLOCK)[None, :]
    key = _rows(k + h * k_h + b * k_b, j0, K, k_t, E, WIDTH, BLOCK)
    value = _rows(values + h * k_h + b * k_b, j0, K, k_t, E, WIDTH, BLOCK)

    begin, end = tl.maximum(0, j0 - (K - T)) // BLOCK * BLOCK, T
    if first is not None:  # the last query that may see a key of the tile
        end = begin
        for i0 in range(begin, T, BLOCK):
            places = i0 + tl.arange(0, BLOCK)
            seen = tl.load(first + b * T + places, mask=places < T, other=K) < j0 + BLOCK
            end = tl.maximum(end, tl.max(tl.where(seen, places + 1, 0)))
    by_key, by_value = tl.zeros((BLOCK, WIDTH), tl.float32), tl.zeros((BLOCK, WIDTH), tl.float32)
    for i0 in range(begin, end, BLOCK):
        i, query = i0 + tl.arange(0, BLOCK)[:, None], _rows(q, i0, T, q_t, E, WIDTH, BLOCK)
        content, position = (
            _with_vector(query, u, h, READ_A, E, WIDTH),
            _with_vector(query, v, h, READ_B, E, WIDTH),
        )
        scores = _product(content, tl.trans(key), PRECISION)
        if r is not None or bias is not None:
            later = _by_distance(position, r, bias, h, T + j0 - i0, S, PRECISION, E, WIDTH, BLOCK)
            earlier = _by_distance(
                position, r, bias, h, T + j0 - i0 - BLOCK, S, PRECISION, E, WIDTH, BLOCK
            )
            scores += _turned(tl.where(_is_later(BLOCK), later, earlier), False, BLOCK)
        out = _rows(output, i0, T, H * E, E, WIDTH, BLOCK)
        log_sum, delta = (
            _numbers(log_sums + hb * T, i0, T, BLOCK),
            _numbers(deltas + hb * T, i0, T, BLOCK),
        )
        of_weights = _product(out, tl.trans(value), PRECISION)
        sees = _sees(i, j, T, K, mask, b * mask_b)
        weights, gradient = _gradient_of_scores(
            scores, of_weights, sees, seed, hb, i, j, K, log_sum, delta, scale, p
        )
        by_value += _product(tl.trans(weights.to(out.dtype)), out, PRECISION)
        by_key += _product(tl.trans(gradient.to(query.dtype)), content, PRECISION)
    _write(k_grad + hb * K * E, by_key * scale, j0, K, E, E, WIDTH, BLOCK)
    _write(values_grad + hb * K * E, by_value, j0, K, E, E, WIDTH, BLOCK)


@triton.jit
def _backward_of_distances(
    q, k, values, r, u, v, bias, mask, seed, log_sums, output, deltas, r_grad, bias_grad,
    q_h, q_b, q_t, k_h, k_b, k_t, mask_b, H, B, T, K, scale, p,
    READ_A: tl.constexpr, READ_B: tl.constexpr, PRECISION: tl.constexpr,
    E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of r's rows and of the biases, of every n-th stream: [n, H, S, E] and [n, H, S].

    The tile of scores has the distances of the rows alone, turned: key y of row x is of the keys from j0 on where
    y ≥ x, else of the next ones.
    """
    shift, S = (tl.program_id(0) - tl.cdiv(T, BLOCK)) * BLOCK, K + 1
    h, group = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    x, y = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    by_r, by_bias = tl.zeros((BLOCK, WIDTH), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for b in range(group, B, tl.num_programs(2)):
        hb, of_keys = h * B + b, h * k_h + b * k_b
        for i0 in range(tl.maximum(0, -shift - BLOCK), tl.minimum(T, K - shift), BLOCK):
            j0 = i0 + shift
            i, j = i0 + x, j0 + y + tl.where(y < x, BLOCK, 0)
            query = _rows(q + h * q_h + b * q_b, i0, T, q_t, E, WIDTH, BLOCK)
            content, position = (
                _with_vector(query, u, h, READ_A, E, WIDTH),
                _with_vector(query, v, h, READ_B, E, WIDTH),
            )
            out = _rows(output + (b * T * H + h) * E, i0, T, H * E, E, WIDTH, BLOCK)
            scores = _of_both(content, k + of_keys, j0, K, k_t, PRECISION, E, WIDTH, BLOCK)
            by_distance = _by_distance(
                position, r, bias, h, T + shift, S, PRECISION, E, WIDTH, BLOCK
            )
            scores += _turned(by_distance, False, BLOCK)
            of_weights = _of_both(out, values + of_keys, j0, K, k_t, PRECISION, E, WIDTH, BLOCK)
            log_sum, delta = (
                _numbers(log_sums + hb * T, i0, T, BLOCK),
                _numbers(deltas + hb * T, i0, T, BLOCK),
            )
            sees = _sees(i, j, T, K, mask, b * mask_b)
            _, gradient = _gradient_of_scores(
                scores, of_weights, sees, seed, hb, i, j, K, log_sum, delta, scale, p
            )
            gradient = _turned(gradient, True, BLOCK)
            by_bias += tl.sum(gradient, 0)
            if r_grad is not None:
                by_r += _product(tl.trans(gradient.to(position.dtype)), position, PRECISION)
    part, rows = group * tl.num_programs(1) + h, T + shift + tl.arange(0, BLOCK)
    if r_grad is not None:
        _write(r_grad + part * S * E, by_r * scale, T + shift, S, E, E, WIDTH, BLOCK)
    if bias_grad is not None:
        tl.store(bias_grad + part * S + rows, by_bias * scale, mask=(rows >= 0) & (rows < S))


@triton.jit
def _of_both(
    x,
    y,
    j0,
    K,
    k_t,
    PRECISION: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the products with keys, or values, from j0 on where column ≥ row, else with those of the next tile."""
    at_j0 = _product(x, tl.trans(_rows(y, j0, K, k_t, E, WIDTH, BLOCK)), PRECISION)
    behind = _product(x, tl.trans(_rows(y, j0 + BLOCK, K, k_t, E, WIDTH, BLOCK)), PRECISION)
    return tl.where(tl.arange(0, BLOCK)[None, :] < tl.arange(0, BLOCK)[:, None], behind, at_j0)


def tile_of(dtype: torch.dtype, E: int, is_hopper: bool) -> int:
    """Return n, the queries and keys of a tile: as many as the compiler finds registers for."""
    if dtype.itemsize > 2 or E > 64:
        return 16
    return 64 if is_hopper else 32


def constants(dtype: torch.dtype, E: int, terms: str, is_hopper: bool) -> dict[str, Any]:
    """Return what the kernels are compiled for.

    Args:
        dtype: of queries, keys, values and r.
        E: numbers of a head.
        terms: letters of the terms, of which a and b are read.
        is_hopper: whether the GPU is of compute capability 9.0 or later.
    """
    n = tile_of(dtype, E, is_hopper)
    return {
        "READ_A": "a" in terms,
        "READ_B": "b" in terms,
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "E": E,
        "WIDTH": max(16, triton.next_power_of_2(E)),
        "BLOCK": n,
        "num_warps": 8 if n == 64 else 4,
        "num_stages": 2,
    }


def _constants_for(q: Tensor, terms: str) -> dict[str, Any]:
    is_hopper = q.is_cuda and torch.cuda.get_device_capability(q.device) >= (9, 0)
    return constants(q.dtype, q.shape[-1], terms, is_hopper)


def _numbers_of(
    q: Tensor, k: Tensor, mask: Tensor | None, p: float
) -> tuple[tuple[Any, ...], Tensor | None]:
    """Return strides, sizes, scale and p; and of each query the first key that it sees, [B, T]."""
    (H, B, T, E), K = q.shape, k.shape[2]
    first = None if mask is None else (mask == 0).int().argmax(-1).int().expand(B, T).contiguous()
    mask_b = 0 if mask is None or mask.ndim == 2 else T * K
    return (*q.stride()[:3], *k.stride()[:3], mask_b, H, B, T, K, E**-0.5, p), first


def _attended(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Return the heads, and the logarithms of the sums, from what GIVEN names, p and the terms."""
    q, k, values, r, u, v, bias, mask, seed, p, terms = inputs
    (H, B, T, _), fixed = q.shape, _constants_for(q, terms)
    heads, log_sums = _empty_heads(q), q.new_empty((H, B, T), dtype=torch.float32)
    numbers, first = _numbers_of(q, k, mask, p)
    _forward[triton.cdiv(T, fixed["BLOCK"]), H * B](
        q, k, values, r, u, v, bias, mask, first, seed, heads, log_sums, *numbers, **fixed
    )
    return heads, log_sums


def _empty_heads(q: Tensor) -> Tensor:
    """Return [H, B, T, E], in memory [B, T, H, E], as the output's projection reads it."""
    H, B, T, E = q.shape
    return q.new_empty(B, T, H, E).permute(2, 0, 1, 3)


def _gradients(*inputs: Any) -> list[Tensor]:
    """Return the gradients of q, k, values, r, u, v and bias from `output`, that of the heads; empty for none."""
    q, k, values, r, u, v, bias, mask, seed, p, terms, heads, log_sums, output, of_distances = (
        inputs
    )
    (H, B, T, E), K, fixed = q.shape, k.shape[2], _constants_for(q, terms)
    numbers, first = _numbers_of(q, k, mask, p)
    if output.stride() != heads.stride():
        output = torch.empty_like(heads).copy_(output)
    n = fixed["BLOCK"]
    n_tiles, n_distances = triton.cdiv(T, n), triton.cdiv(T, n) + (K - T) // n + 1
    groups = min(B, max(1, PROGRAMS // (n_distances * H)))

    def parts(x: Tensor | None, *shape: int) -> Tensor | None:
        return None if x is None else x.new_empty(shape, dtype=torch.float32)

    q_grad, k_grad, values_grad = (x.new_empty(x.shape) for x in (q, k, values))
    u_grad, v_grad = (parts(x, H, B * n_tiles, E) for x in (u, v))
    given, kept = (
        (q, k, values, r, u, v, bias, mask),
        (log_sums, output, torch.empty_like(log_sums)),
    )
    _backward_of_queries[n_tiles, H * B](
        *given, first, seed, heads, *kept, q_grad, u_grad, v_grad, *numbers, **fixed
    )
    _backward_of_keys[triton.cdiv(K, n), H * B](
        *given, first, seed, *kept, k_grad, values_grad, *numbers, **fixed
    )
    r_grad = bias_grad = None
    if of_distances:
        r_grad, bias_grad = parts(r, groups, H, K + 1, E), parts(bias, groups, H, K + 1)
        _backward_of_distances[n_distances, H, groups](
            *given, seed, *kept, r_grad, bias_grad, *numbers, **fixed
        )
    sums = zip((r, u, v, bias), (r_grad, u_grad, v_grad, bias_grad), (0, 1, 1, 0), strict=True)
    of_vectors = [
        q.new_empty(0) if x is None or y is None else y.sum(axis, dtype=x.dtype)
        for x, y, axis in sums
    ]
    return [q_grad, k_grad, values_grad, *of_vectors]


# Operations of torch, so that torch.compile takes them as they are.
GIVEN = "Tensor q, Tensor k, Tensor values, Tensor? r, Tensor? u, Tensor? v, Tensor? bias, Tensor? mask, Tensor? seed"
_attention = torch.library.custom_op(
    "txl::relative_attention",
    _attended,
    mutates_args=(),
    schema=f"({GIVEN}, float p, str terms) -> (Tensor, Tensor)",
)
KEPT = "Tensor heads, Tensor log_sums, Tensor output, bool of_distances"
_attention_backward = torch.library.custom_op(
    "txl::relative_backward",
    _gradients,
    mutates_args=(),
    schema=f"({GIVEN}, float p, str terms, {KEPT}) -> Tensor[]",
)


@_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@_attention_backward.register_fake
def _(
    q: Tensor, k: Tensor, values: Tensor, r: Any, u: Any, v: Any, bias: Any, *others: Any
) -> list[Tensor]:
    of_distances = others[-1]
    given = [q, k, values, r if of_distances else None, u, v, bias if of_distances else None]
    return [q.new_empty(0) if x is None else x.new_empty(x.shape) for x in given]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.p, ctx.terms = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, output: Tensor, _: Any) -> tuple[Any, ...]:
    *tensors, heads, log_sums = ctx.saved_tensors
    of_distances = ctx.needs_input_grad[3] or ctx.needs_input_grad[6]
    found = _attention_backward(*tensors, ctx.p, ctx.terms, heads, log_sums, output, of_distances)
    return *(x if x.numel() else None for x in found), None, None, None, None


_attention.register_autograd(_backward, setup_context=_keep)


def attend(
    q_HBTE: Tensor,
    k_HBKE: Tensor,
    r_HSE: Tensor | None,
    u_HE: Tensor | None,
    v_HE: Tensor | None,
    values_HBKE: Tensor,
    visible: VisibleKeys,
    dropout: nn.Module,
    bias_HS: Tensor | None = None,
    terms: str = "abcd",
) -> Tensor:
    """Return Σ_j softmax_j(A_i) value_j over the visible keys j, [H, B, T, E].

    Args:
        q_HBTE: queries.
        k_HBKE: keys.
        r_HSE: vectors of the distances K, …, 0; None for none.
        u_HE: content bias, term (c).
        v_HE: position bias, term (d).
        values_HBKE: values; their type is that of all products and of the result.
        visible: `mask_TK` is 0 where a query may attend to a key and -inf elsewhere, [T, K] or [B, T, K]; with
            `sees_memory` it is the causal mask, and is not read.
        dropout: that of the weights; only its `p` and `training` are read.
        bias_HS: biases of the distances, in place of v·r; None for none.
        terms: letters of the terms, of which a and b are read.

    Raises:
        ValueError: queries may see later keys.
    """
    if not visible.causal:
        raise ValueError("the relative kernel is for causal masks: a later key has no distance")
    mask: Tensor | None = visible.mask_TK.contiguous()
    if visible.sees_memory and visible.mask_TK.ndim == 2:
        mask = None
    p: Any = dropout.p if dropout.training else 0.0
    seed = torch.randint(1 << 62, (1,), device=q_HBTE.device) if p else None
    q, k, values = (x.to(values_HBKE.dtype) for x in (q_HBTE, k_HBKE, values_HBKE))
    if k.stride() != values.stride() or k.stride(-1) != 1:
        k, values = k.contiguous(), values.contiguous()
    q = q if q.stride(-1) == 1 else q.contiguous()
    r = None if r_HSE is None else r_HSE.to(values.dtype).contiguous()
    u, v, bias = (x if x is None else x.contiguous() for x in (u_HE, v_HE, bias_HS))
    heads_HBTE, _ = _attention(q, k, values, r, u, v, bias, mask, seed, float(p), terms)
    return heads_HBTE
