# mypy: allow-untyped-defs
"""Attention with Transformer-XL's scores in one Triton kernel, forward and backward: no score is ever stored.

    A_ij = ((a·q_i + u)·k_j + (b·q_i + v)·r_{i-j} + bias_{i-j}) / sqrt(E)        Y_i = Σ_j softmax_j(A_i) value_j

a and b are 1 or 0 (terms (a) and (b)); u, v, r and the bias may be missing. Key j stands before query i, or belongs to
the same token: the last among the K = M + T keys belong to the queries, so the distance is M + i - j. A mask may hide
more keys: memory that was not written, a window (`same_length`), other documents. Shapes, by the letters H heads, B
streams, T queries, K keys, S = K + 1 distances, E numbers per head:

    q_HBTE   k_HBKE, values_HBKE   r_HSE, bias_HS (distances K, …, 0)   u_HE, v_HE   mask_TK or mask_BTK (0 or -inf)

**By distance to by key.** A tile with n queries (rows x, from i0) and n keys (columns y, from j0) needs 2n - 1
distances: r's rows T + j0 - i0 - n, … The products of position and r come as tiles by distance, n columns each. A tile
by key needs two neighbours: key y in row x is column y - x in the later one, or, where that is negative, column y - x +
n in the earlier one. Both are (y - x) mod n. So the two are merged first, by one comparison, and then every row is
turned by its number:

    by_key[x, y] = merged[x, (y - x) mod n]        merged[x, c] = later[x, c] where x + c < n, else earlier[x, c]

The backward pass turns the other way. There are three known ways to do this inside a kernel. A reshape needs tiles
whose width is no power of two, and Triton has none; a buffer in global memory costs a round trip through L2 and a
barrier; `tl.gather` (Triton 3.2 and later) turns the rows within a warp, so it is used here. A loop over keys keeps the
later tile, because it is the next keys' earlier one: the products cost T·K·E, not twice that.

**Softmax** is online (Milakov and Gimelshein 2018; Dao et al. 2022). For each row it keeps the logarithm of its sum, in
base 2. The backward pass computes the weights from it again, in three passes without atomics, so each run gives the
same bits: over queries (q, u, v), over keys (k, values), over distances (r, bias).

**Dropout** on the weights is a function of a seed and (h, b, i, j), by the Philox generator; the seed is on the device,
so a CUDA graph draws a new one in each replay.

Products have the inputs' type and sum in float32; scores, softmax and sums are in float32.
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
def _down(first, BLOCK: tl.constexpr):
    """Return the numbers from `first` on, a row each."""
    return first + tl.arange(0, BLOCK)[:, None]


@triton.jit
def _across(first, BLOCK: tl.constexpr):
    """Return the numbers from `first` on, a column each."""
    return first + tl.arange(0, BLOCK)[None, :]


@triton.jit
def _places(first, n, stride, E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return where BLOCK rows of a matrix [n, E] lie, from row `first` on, and which places exist."""
    rows = _down(first, BLOCK)
    columns = _across(0, WIDTH)
    inside = (rows >= 0) & (rows < n) & (columns < E)
    return rows * stride + columns, inside


@triton.jit
def _rows(x, first, n, stride, E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load BLOCK rows of a matrix [n, E], from `first` on; zeros outside it."""
    places, inside = _places(first, n, stride, E, WIDTH, BLOCK)
    return tl.load(x + places, mask=inside, other=0.0)


@triton.jit
def _write(x, tile, first, n, stride, E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Store what `_rows` loads."""
    places, inside = _places(first, n, stride, E, WIDTH, BLOCK)
    tl.store(x + places, tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _numbers(x, first, n, BLOCK: tl.constexpr):
    """Load BLOCK numbers of n as float32, zeros outside."""
    places = first + tl.arange(0, BLOCK)
    inside = (places >= 0) & (places < n)
    return tl.load(x + places, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _write_sum(x, tile, E: tl.constexpr, WIDTH: tl.constexpr):
    """Store the sum over a tile's rows."""
    columns = tl.arange(0, WIDTH)
    tl.store(x + columns, tl.sum(tile, 0), mask=columns < E)


@triton.jit
def _product(x, y, PRECISION: tl.constexpr):
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def _with_vector(query, vector, h, READ: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr):
    """Return q_i + u, or q_i + v; without q_i where its term is off."""
    sums = query.to(tl.float32) if READ else tl.zeros(query.shape, tl.float32)
    if vector is not None:
        sums += _numbers(vector + h * E, 0, E, WIDTH)[None, :]
    return sums.to(query.dtype)


@triton.jit
def _queries(
    q,
    u,
    v,
    h,
    i0,
    T,
    q_t,
    READ_A: tl.constexpr,
    READ_B: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return a tile of content queries, q_i + u, and of position queries, q_i + v."""
    query = _rows(q, i0, T, q_t, E, WIDTH, BLOCK)
    content = _with_vector(query, u, h, READ_A, E, WIDTH)
    position = _with_vector(query, v, h, READ_B, E, WIDTH)
    return content, position


@triton.jit
def _by_distance(
    position,
    r,
    bias,
    h,
    first,
    S,
    PRECISION: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return terms (b) and (d) for a tile of queries, at the BLOCK distances from r's row `first` on."""
    scores = tl.zeros((BLOCK, BLOCK), tl.float32)
    if r is not None:
        distances = _rows(r + h * S * E, first, S, E, E, WIDTH, BLOCK)
        scores += _product(position, tl.trans(distances), PRECISION)
    if bias is not None:
        scores += _numbers(bias + h * S, first, S, BLOCK)[None, :]
    return scores


@triton.jit
def _turned(tile, BACK: tl.constexpr, BLOCK: tl.constexpr):
    """Turn row x by x places to the right; BACK: to the left."""
    x = _down(0, BLOCK)
    y = _across(0, BLOCK)
    source = y + x if BACK else y - x
    return tl.gather(tile, source & (BLOCK - 1), 1)


@triton.jit
def _is_later(BLOCK: tl.constexpr):
    """Return where a turned-back tile, by distance, belongs to r's later rows."""
    x = _down(0, BLOCK)
    y = _across(0, BLOCK)
    return x + y < BLOCK


@triton.jit
def _sees(i, j, T, K, mask, of_stream):
    """Return whether query i may attend to key j; `of_stream` is where the stream's mask begins."""
    inside = (i < T) & (j >= 0) & (j <= K - T + i)
    if mask is not None:
        hidden = tl.load(mask + of_stream + i * K + j, mask=inside, other=-1.0)
        inside &= hidden == 0.0
    return inside


@triton.jit
def _first_key(first, b, i0, T, K, BLOCK: tl.constexpr):
    """Return the key tile where a query tile begins to see."""
    begin = 0
    if first is not None:
        places = i0 + tl.arange(0, BLOCK)
        keys = tl.load(first + b * T + places, mask=places < T, other=K)
        begin = tl.min(keys) // BLOCK * BLOCK
    return begin


@triton.jit
def _kept(seed, hb, i, j, K, p):
    """Return which weights dropout keeps."""
    return tl.rand(tl.load(seed) + hb, i * K + j) >= p


@triton.jit
def _tile_of_matrix(B, BLOCK: tl.constexpr):
    """Return where this program's tile begins, its matrix number, its head and its stream."""
    begin = tl.program_id(0) * BLOCK
    hb = tl.program_id(1).to(tl.int64)
    return begin, hb, hb // B, hb % B


@triton.jit
def _scores(
    content,
    position,
    key,
    earlier,
    r,
    bias,
    h,
    nearest,
    S,
    PRECISION: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return a tile's scores by key, and its later tile by distance: the next keys' earlier one."""
    scores = _product(content, tl.trans(key), PRECISION)
    if r is not None or bias is not None:
        later = _by_distance(position, r, bias, h, nearest, S, PRECISION, E, WIDTH, BLOCK)
        merged = tl.where(_is_later(BLOCK), later, earlier)
        scores += _turned(merged, False, BLOCK)
        earlier = later
    return scores, earlier


@triton.jit
def _forward(
    q,
    k,
    values,
    r,
    u,
    v,
    bias,
    mask,
    first,
    seed,
    heads,
    log_sums,
    q_h,
    q_b,
    q_t,
    k_h,
    k_b,
    k_t,
    mask_b,
    H,
    B,
    T,
    K,
    scale,
    p,
    READ_A: tl.constexpr,
    READ_B: tl.constexpr,
    PRECISION: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Heads [B, T, H, E] and `log_sums` [H, B, T] for a query tile in one matrix (h, b)."""
    i0, hb, h, b = _tile_of_matrix(B, BLOCK)
    S = K + 1
    of_keys = h * k_h + b * k_b
    queries = q + h * q_h + b * q_b
    content, position = _queries(queries, u, v, h, i0, T, q_t, READ_A, READ_B, E, WIDTH, BLOCK)

    begin = _first_key(first, b, i0, T, K, BLOCK)
    end = tl.minimum(K, K - T + i0 + BLOCK)
    before = T + begin - i0 - BLOCK
    earlier = _by_distance(position, r, bias, h, before, S, PRECISION, E, WIDTH, BLOCK)
    places = i0 + tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    sums = tl.zeros((BLOCK, WIDTH), tl.float32)
    for j0 in range(begin, end, BLOCK):
        i = places[:, None]
        j = _across(j0, BLOCK)
        key = _rows(k + of_keys, j0, K, k_t, E, WIDTH, BLOCK)
        nearest = T + j0 - i0
        scores, earlier = _scores(
            content,
            position,
            key,
            earlier,
            r,
            bias,
            h,
            nearest,
            S,
            PRECISION,
            E,
            WIDTH,
            BLOCK,
        )
        sees = _sees(i, j, T, K, mask, b * mask_b)
        scores = tl.where(sees, scores * (scale * LOG2_E), -float("inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(highest == -float("inf"), 0.0, highest)
        weights = tl.exp2(scores - finite[:, None])
        decay = tl.exp2(top - finite)
        total = total * decay + tl.sum(weights, 1)
        top = highest
        if seed is not None:
            kept = _kept(seed, hb, i, j, K, p)
            weights = tl.where(kept, weights / (1.0 - p), 0.0)
        value = _rows(values + of_keys, j0, K, k_t, E, WIDTH, BLOCK)
        sums = sums * decay[:, None] + _product(weights.to(value.dtype), value, PRECISION)

    total = tl.where(total > 0.0, total, 1.0)
    of_heads = (b * T * H + h) * E
    _write(heads + of_heads, sums / total[:, None], i0, T, H * E, E, WIDTH, BLOCK)
    tl.store(log_sums + hb * T + places, top + tl.log2(total), mask=places < T)


@triton.jit
def _gradient_of_scores(
    scores,
    of_weights,
    i,
    j,
    hb,
    T,
    K,
    mask,
    of_stream,
    seed,
    log_sum,
    delta,
    scale,
    p,
):
    """Return the weights behind dropout and the scores' gradient.

        P = exp(A/sqrt(E)) / Σ        dA = P ∘ (Z ∘ (dY · valueᵀ) - delta)        delta_i = Σ_e dY_ie Y_ie

    Z is what dropout multiplies the weights with. `of_weights` is dY · valueᵀ. A factor 1/sqrt(E) is left out.
    """
    exponents = scores * (scale * LOG2_E) - log_sum[:, None]
    sees = _sees(i, j, T, K, mask, of_stream)
    weights = tl.exp2(tl.where(sees, exponents, -float("inf")))
    dropped = weights
    if seed is not None:
        kept = _kept(seed, hb, i, j, K, p)
        factor = tl.where(kept, 1.0 / (1.0 - p), 0.0)
        dropped = weights * factor
        of_weights = of_weights * factor
    return dropped, weights * (of_weights - delta[:, None])


@triton.jit
def _by_later_distances(gradient, waiting, BLOCK: tl.constexpr):
    """Return the earlier distances' finished gradient, and what waits for the next key tile.

    What a tile by key gives to its later distances waits for what the next tile gives to the same distances.
    """
    turned = _turned(gradient, True, BLOCK)
    finished = waiting + tl.where(_is_later(BLOCK), 0.0, turned)
    waiting = tl.where(_is_later(BLOCK), turned, 0.0)
    return finished, waiting


@triton.jit
def _backward_of_queries(
    q,
    k,
    values,
    r,
    u,
    v,
    bias,
    mask,
    first,
    seed,
    heads,
    log_sums,
    output,
    deltas,
    q_grad,
    u_grad,
    v_grad,
    q_h,
    q_b,
    q_t,
    k_h,
    k_b,
    k_t,
    mask_b,
    H,
    B,
    T,
    K,
    scale,
    p,
    READ_A: tl.constexpr,
    READ_B: tl.constexpr,
    PRECISION: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradient for a query tile, its part of u's and v's gradients, and `deltas`."""
    i0, hb, h, b = _tile_of_matrix(B, BLOCK)
    S = K + 1
    of_keys = h * k_h + b * k_b
    k += of_keys
    values += of_keys
    queries = q + h * q_h + b * q_b
    content, position = _queries(queries, u, v, h, i0, T, q_t, READ_A, READ_B, E, WIDTH, BLOCK)
    of_heads = (b * T * H + h) * E
    out = _rows(output + of_heads, i0, T, H * E, E, WIDTH, BLOCK)
    head = _rows(heads + of_heads, i0, T, H * E, E, WIDTH, BLOCK)
    delta = tl.sum(out.to(tl.float32) * head.to(tl.float32), 1)
    places = i0 + tl.arange(0, BLOCK)
    tl.store(deltas + hb * T + places, delta, mask=places < T)
    log_sum = _numbers(log_sums + hb * T, i0, T, BLOCK)

    begin = _first_key(first, b, i0, T, K, BLOCK)
    end = tl.minimum(K, K - T + i0 + BLOCK)
    nearest = T + begin - i0
    before = nearest - BLOCK
    earlier = _by_distance(position, r, bias, h, before, S, PRECISION, E, WIDTH, BLOCK)
    waiting = tl.zeros((BLOCK, BLOCK), tl.float32)
    by_content = tl.zeros((BLOCK, WIDTH), tl.float32)
    by_position = tl.zeros((BLOCK, WIDTH), tl.float32)
    for j0 in range(begin, end, BLOCK):
        i = _down(i0, BLOCK)
        j = _across(j0, BLOCK)
        key = _rows(k, j0, K, k_t, E, WIDTH, BLOCK)
        value = _rows(values, j0, K, k_t, E, WIDTH, BLOCK)
        nearest = T + j0 - i0
        scores, earlier = _scores(
            content,
            position,
            key,
            earlier,
            r,
            bias,
            h,
            nearest,
            S,
            PRECISION,
            E,
            WIDTH,
            BLOCK,
        )
        of_weights = _product(out, tl.trans(value), PRECISION)
        _, gradient = _gradient_of_scores(
            scores, of_weights, i, j, hb, T, K, mask, b * mask_b, seed, log_sum, delta, scale, p
        )
        by_content += _product(gradient.to(key.dtype), key, PRECISION)
        if r is not None:
            finished, waiting = _by_later_distances(gradient, waiting, BLOCK)
            distances = _rows(r + h * S * E, nearest - BLOCK, S, E, E, WIDTH, BLOCK)
            by_position += _product(finished.to(key.dtype), distances, PRECISION)
    if r is not None:
        distances = _rows(r + h * S * E, nearest, S, E, E, WIDTH, BLOCK)
        by_position += _product(waiting.to(content.dtype), distances, PRECISION)

    by_content *= scale
    by_position *= scale
    sums = tl.where(READ_A, by_content, 0.0) + tl.where(READ_B, by_position, 0.0)
    _write(q_grad + hb * T * E, sums, i0, T, E, E, WIDTH, BLOCK)
    part = (hb * tl.num_programs(0) + tl.program_id(0)) * E
    if u_grad is not None:
        _write_sum(u_grad + part, by_content, E, WIDTH)
    if v_grad is not None:
        _write_sum(v_grad + part, by_position, E, WIDTH)


@triton.jit
def _backward_of_keys(
    q,
    k,
    values,
    r,
    u,
    v,
    bias,
    mask,
    seed,
    log_sums,
    output,
    deltas,
    k_grad,
    values_grad,
    q_h,
    q_b,
    q_t,
    k_h,
    k_b,
    k_t,
    mask_b,
    H,
    B,
    T,
    K,
    scale,
    p,
    READ_A: tl.constexpr,
    READ_B: tl.constexpr,
    PRECISION: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradients for a tile of keys and their values: [H, B, K, E]."""
    j0, hb, h, b = _tile_of_matrix(B, BLOCK)
    S = K + 1
    q += h * q_h + b * q_b
    output += (b * T * H + h) * E
    of_keys = h * k_h + b * k_b
    key = _rows(k + of_keys, j0, K, k_t, E, WIDTH, BLOCK)
    value = _rows(values + of_keys, j0, K, k_t, E, WIDTH, BLOCK)

    begin = tl.maximum(0, j0 - (K - T)) // BLOCK * BLOCK
    by_key = tl.zeros((BLOCK, WIDTH), tl.float32)
    by_value = tl.zeros((BLOCK, WIDTH), tl.float32)
    for i0 in range(begin, T, BLOCK):
        i = _down(i0, BLOCK)
        j = _across(j0, BLOCK)
        content, position = _queries(q, u, v, h, i0, T, q_t, READ_A, READ_B, E, WIDTH, BLOCK)
        before = T + j0 - i0 - BLOCK
        earlier = _by_distance(position, r, bias, h, before, S, PRECISION, E, WIDTH, BLOCK)
        nearest = T + j0 - i0
        scores, _ = _scores(
            content,
            position,
            key,
            earlier,
            r,
            bias,
            h,
            nearest,
            S,
            PRECISION,
            E,
            WIDTH,
            BLOCK,
        )
        out = _rows(output, i0, T, H * E, E, WIDTH, BLOCK)
        log_sum = _numbers(log_sums + hb * T, i0, T, BLOCK)
        delta = _numbers(deltas + hb * T, i0, T, BLOCK)
        of_weights = _product(out, tl.trans(value), PRECISION)
        weights, gradient = _gradient_of_scores(
            scores, of_weights, i, j, hb, T, K, mask, b * mask_b, seed, log_sum, delta, scale, p
        )
        by_value += _product(tl.trans(weights.to(out.dtype)), out, PRECISION)
        by_key += _product(tl.trans(gradient.to(content.dtype)), content, PRECISION)
    _write(k_grad + hb * K * E, by_key * scale, j0, K, E, E, WIDTH, BLOCK)
    _write(values_grad + hb * K * E, by_value, j0, K, E, E, WIDTH, BLOCK)


@triton.jit
def _with_two_tiles(
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
    """Return the products with keys, or values, from j0 on where column ≥ row, else with the next tile's."""
    near = _rows(y, j0, K, k_t, E, WIDTH, BLOCK)
    next_tile = _rows(y, j0 + BLOCK, K, k_t, E, WIDTH, BLOCK)
    with_near = _product(x, tl.trans(near), PRECISION)
    with_next = _product(x, tl.trans(next_tile), PRECISION)
    row = _down(0, BLOCK)
    column = _across(0, BLOCK)
    return tl.where(column < row, with_next, with_near)


@triton.jit
def _backward_of_distances(
    q,
    k,
    values,
    r,
    u,
    v,
    bias,
    mask,
    seed,
    log_sums,
    output,
    deltas,
    r_grad,
    bias_grad,
    q_h,
    q_b,
    q_t,
    k_h,
    k_b,
    k_t,
    mask_b,
    H,
    B,
    T,
    K,
    scale,
    p,
    READ_A: tl.constexpr,
    READ_B: tl.constexpr,
    PRECISION: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradients for a tile of r's rows and biases, from every n-th stream: [n, H, S, E] and [n, H, S].

    The score tile has only the rows' distances, turned: key y in row x belongs to the keys from j0 on where y ≥ x, else
    to the next ones.
    """
    shift = (tl.program_id(0) - tl.cdiv(T, BLOCK)) * BLOCK
    h = tl.program_id(1).to(tl.int64)
    group = tl.program_id(2).to(tl.int64)
    first = T + shift
    S = K + 1
    x = _down(0, BLOCK)
    y = _across(0, BLOCK)
    by_r = tl.zeros((BLOCK, WIDTH), tl.float32)
    by_bias = tl.zeros((BLOCK,), tl.float32)
    for b in range(group, B, tl.num_programs(2)):
        hb = h * B + b
        of_keys = h * k_h + b * k_b
        queries = q + h * q_h + b * q_b
        of_heads = (b * T * H + h) * E
        for i0 in range(tl.maximum(0, -shift - BLOCK), tl.minimum(T, K - shift), BLOCK):
            j0 = i0 + shift
            i = i0 + x
            j = j0 + y + tl.where(y < x, BLOCK, 0)
            content, position = _queries(
                queries, u, v, h, i0, T, q_t, READ_A, READ_B, E, WIDTH, BLOCK
            )
            out = _rows(output + of_heads, i0, T, H * E, E, WIDTH, BLOCK)
            scores = _with_two_tiles(content, k + of_keys, j0, K, k_t, PRECISION, E, WIDTH, BLOCK)
            by_distance = _by_distance(position, r, bias, h, first, S, PRECISION, E, WIDTH, BLOCK)
            scores += _turned(by_distance, False, BLOCK)
            of_weights = _with_two_tiles(
                out, values + of_keys, j0, K, k_t, PRECISION, E, WIDTH, BLOCK
            )
            log_sum = _numbers(log_sums + hb * T, i0, T, BLOCK)
            delta = _numbers(deltas + hb * T, i0, T, BLOCK)
            _, gradient = _gradient_of_scores(
                scores, of_weights, i, j, hb, T, K, mask, b * mask_b, seed, log_sum, delta, scale, p
            )
            gradient = _turned(gradient, True, BLOCK)
            by_bias += tl.sum(gradient, 0)
            if r_grad is not None:
                by_r += _product(tl.trans(gradient.to(position.dtype)), position, PRECISION)
    part = group * tl.num_programs(1) + h
    rows = first + tl.arange(0, BLOCK)
    if r_grad is not None:
        _write(r_grad + part * S * E, by_r * scale, first, S, E, E, WIDTH, BLOCK)
    if bias_grad is not None:
        inside = (rows >= 0) & (rows < S)
        tl.store(bias_grad + part * S + rows, by_bias * scale, mask=inside)


def tile_of(dtype: torch.dtype, E: int, is_hopper: bool) -> int:
    """Return n, queries and keys per tile: as many as the compiler finds registers for."""
    if dtype.itemsize > 2 or E > 64:
        return 16
    if is_hopper:
        return 64
    return 32


def _constants_for(q: Tensor, terms: str) -> dict[str, Any]:
    """Return what the kernels are compiled for."""
    E = q.shape[-1]
    is_hopper = q.is_cuda and torch.cuda.get_device_capability(q.device) >= (9, 0)
    n = tile_of(q.dtype, E, is_hopper)
    is_exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "READ_A": "a" in terms,
        "READ_B": "b" in terms,
        "PRECISION": "ieee" if is_exact else "tf32",
        "E": E,
        "WIDTH": max(16, triton.next_power_of_2(E)),
        "BLOCK": n,
        "num_warps": 8 if n == 64 else 4,
        "num_stages": 2,
    }


def _numbers_of(q: Tensor, k: Tensor, mask: Tensor | None, p: float) -> tuple[Any, ...]:
    """Return strides, sizes, scale and p, as every kernel takes them."""
    H, B, T, E = q.shape
    K = k.shape[2]
    mask_b = 0
    if mask is not None and mask.ndim == 3:
        mask_b = T * K
    strides = (*q.stride()[:3], *k.stride()[:3], mask_b)
    return (*strides, H, B, T, K, E**-0.5, p)


def _first_keys(q: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return the first key that each query sees, [B, T]; None without a mask."""
    if mask is None:
        return None
    first = (mask == 0).int().argmax(-1).int()
    return first.expand(q.shape[1:3]).contiguous()


def _empty_heads(q: Tensor) -> Tensor:
    """Return [H, B, T, E], in memory [B, T, H, E], as the output's projection reads it."""
    H, B, T, E = q.shape
    return q.new_empty(B, T, H, E).permute(2, 0, 1, 3)


def _attended(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Return the heads, and the sums' logarithms, from what GIVEN names, p and the terms."""
    *tensors, seed, p, terms = inputs
    q, k = tensors[:2]
    mask = tensors[-1]
    H, B, T, _ = q.shape
    fixed = _constants_for(q, terms)
    heads = _empty_heads(q)
    log_sums = q.new_empty((H, B, T), dtype=torch.float32)
    first = _first_keys(q, mask)
    numbers = _numbers_of(q, k, mask, p)
    grid = (triton.cdiv(T, fixed["BLOCK"]), H * B)
    _forward[grid](*tensors, first, seed, heads, log_sums, *numbers, **fixed)
    return heads, log_sums


def _parts(x: Tensor | None, *shape: int) -> Tensor | None:
    """Return a place for a gradient's parts, in float32; None without the tensor."""
    if x is None:
        return None
    return x.new_empty(shape, dtype=torch.float32)


def _sum_of_parts(x: Tensor | None, parts: Tensor | None, axis: int, q: Tensor) -> Tensor:
    """Return a tensor's gradient from its parts; empty where there is none."""
    if x is None or parts is None:
        return q.new_empty(0)
    return parts.sum(axis, dtype=x.dtype)


def _gradients_of_distances(
    tensors: list[Any], kept: tuple[Any, ...], numbers: tuple[Any, ...], fixed: dict[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the parts of r's and the biases' gradients."""
    q, k, _, r, _, _, bias, _ = tensors
    H, B, T, E = q.shape
    K = k.shape[2]
    n = fixed["BLOCK"]
    n_distances = triton.cdiv(T, n) + (K - T) // n + 1
    groups = min(B, max(1, PROGRAMS // (n_distances * H)))
    r_grad = _parts(r, groups, H, K + 1, E)
    bias_grad = _parts(bias, groups, H, K + 1)
    grid = (n_distances, H, groups)
    _backward_of_distances[grid](*tensors, *kept, r_grad, bias_grad, *numbers, **fixed)
    return r_grad, bias_grad


def _gradients(*inputs: Any) -> list[Tensor]:
    """Return the gradients for q, k, values, r, u, v and bias from `output`, the heads' gradient; empty for none."""
    *tensors, seed, p, terms, heads, log_sums, output, of_distances = inputs
    q, k, values, r, u, v, bias, mask = tensors
    H, B, T, E = q.shape
    K = k.shape[2]
    fixed = _constants_for(q, terms)
    n = fixed["BLOCK"]
    first = _first_keys(q, mask)
    numbers = _numbers_of(q, k, mask, p)
    if output.stride() != heads.stride():
        output = torch.empty_like(heads).copy_(output)
    kept = (log_sums, output, torch.empty_like(log_sums))

    n_tiles = triton.cdiv(T, n)
    q_grad = q.new_empty(q.shape)
    u_grad = _parts(u, H, B * n_tiles, E)
    v_grad = _parts(v, H, B * n_tiles, E)
    results = (q_grad, u_grad, v_grad)
    grid = (n_tiles, H * B)
    _backward_of_queries[grid](*tensors, first, seed, heads, *kept, *results, *numbers, **fixed)

    k_grad = k.new_empty(k.shape)
    values_grad = values.new_empty(values.shape)
    grid = (triton.cdiv(K, n), H * B)
    _backward_of_keys[grid](*tensors, seed, *kept, k_grad, values_grad, *numbers, **fixed)

    r_grad = None
    bias_grad = None
    if of_distances:
        r_grad, bias_grad = _gradients_of_distances(tensors, (seed, *kept), numbers, fixed)
    return [
        q_grad,
        k_grad,
        values_grad,
        _sum_of_parts(r, r_grad, 0, q),
        _sum_of_parts(u, u_grad, 1, q),
        _sum_of_parts(v, v_grad, 1, q),
        _sum_of_parts(bias, bias_grad, 0, q),
    ]


# Torch operations, so torch.compile takes them as they are.
GIVEN = "Tensor q, Tensor k, Tensor values, Tensor? r, Tensor? u, Tensor? v, Tensor? bias, Tensor? mask, Tensor? seed"
KEPT = "Tensor heads, Tensor log_sums, Tensor output, bool of_distances"
_attention = torch.library.custom_op(
    "txl::relative_attention",
    _attended,
    mutates_args=(),
    schema=f"({GIVEN}, float p, str terms) -> (Tensor, Tensor)",
)
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
    if not of_distances:
        r = None
        bias = None
    gradients = []
    for x in (q, k, values, r, u, v, bias):
        shape = 0 if x is None else x.shape
        gradients.append(q.new_empty(shape))
    return gradients


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.p, ctx.terms = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, output: Tensor, _: Any) -> tuple[Any, ...]:
    *tensors, heads, log_sums = ctx.saved_tensors
    of_distances = ctx.needs_input_grad[3] or ctx.needs_input_grad[6]
    gradients: list[Tensor | None] = []
    for x in _attention_backward(*tensors, ctx.p, ctx.terms, heads, log_sums, output, of_distances):
        gradients.append(x if x.numel() else None)
    of_others = (None, None, None, None)  # mask, seed, p, terms
    return (*gradients, *of_others)


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
        r_HSE: vectors for the distances K, …, 0; None for none.
        u_HE: content bias, term (c).
        v_HE: position bias, term (d).
        values_HBKE: values; all products and the result have their type.
        visible: `mask_TK` is 0 where a query may attend to a key and -inf elsewhere, [T, K] or [B, T, K]; with
            `sees_memory` it is the causal mask, and is not read.
        dropout: dropout for the weights; only its `p` and `training` are read.
        bias_HS: biases by distance, instead of v·r; None for none.
        terms: the terms' letters; only a and b are read.

    Raises:
        ValueError: queries may see later keys.
    """
    if not visible.causal:
        raise ValueError("the relative kernel is for causal masks: a later key has no distance")
    dtype = values_HBKE.dtype
    q = q_HBTE.to(dtype)
    if q.stride(-1) != 1:
        q = q.contiguous()
    k = k_HBKE.to(dtype)
    values = values_HBKE
    if k.stride() != values.stride() or k.stride(-1) != 1:
        k = k.contiguous()
        values = values.contiguous()
    r = None
    if r_HSE is not None:
        r = r_HSE.to(dtype).contiguous()
    vectors = []
    for x in (u_HE, v_HE, bias_HS):
        vectors.append(x if x is None else x.contiguous())
    mask = None
    if not visible.sees_memory or visible.mask_TK.ndim == 3:
        mask = visible.mask_TK.contiguous()
    p = 0.0
    seed = None
    if dropout.training and dropout.p:
        p = float(dropout.p)  # type: ignore[arg-type]
        seed = torch.randint(1 << 62, (1,), device=q.device)
    heads_HBTE, _ = _attention(q, k, values, r, *vectors, mask, seed, p, terms)
    return heads_HBTE
