# mypy: disallow-untyped-defs=False, check-untyped-defs=False
"""Triton kernels of relative attention: forward, and backward by blocks of queries and by blocks of keys.

Matrix x = h·B + b of a grid is head h of stream b. Query i is token K - T + i, so its distance to key j is
K - T + i - j, and its score of that distance stands in column T - i + j of row i of P.

Sizes, `first_key` and `attention_len` are values: a memory that fills compiles nothing again.
"""

import triton
import triton.language as tl

VALUES = ["n_streams", "n_queries", "n_keys", "first_key", "attention_len", "stride_ph", "stride_pb", "stride_pt"]


@triton.jit
def _matrix(pointer, x, n_streams, stride_h, stride_b):
    """Pointer to matrix x of a tensor whose first dimensions are heads and streams."""
    return pointer + (x // n_streams).to(tl.int64) * stride_h + (x % n_streams).to(tl.int64) * stride_b


@triton.jit
def _load(matrix, rows, n_rows, stride, HEAD: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a matrix, zero beyond its end and beyond the head's size."""
    e = tl.arange(0, WIDTH)
    inside = (rows < n_rows)[:, None] & (e < HEAD)[None, :]
    return tl.load(matrix + rows[:, None] * stride + e[None, :], mask=inside, other=0.0)


@triton.jit
def _store(matrix, rows, n_rows, stride, values, HEAD: tl.constexpr, WIDTH: tl.constexpr):
    e = tl.arange(0, WIDTH)
    inside = (rows < n_rows)[:, None] & (e < HEAD)[None, :]
    tl.store(matrix + rows[:, None] * stride + e[None, :], values.to(matrix.dtype.element_ty), mask=inside)


@triton.jit
def _seen(i, j, n_queries, n_keys, first_key, attention_len):
    """Whether query i may attend to key j."""
    distance = (n_keys - n_queries + i)[:, None] - j[None, :]
    inside = (i < n_queries)[:, None] & (j >= first_key)[None, :]
    return inside & (distance >= 0) & (distance < attention_len)


@triton.jit
def _by_distance(matrix, i, j, n_queries, stride):
    """Pointers to the scores by distance of queries i and keys j."""
    return matrix + i[:, None] * stride + (n_queries - i)[:, None] + j[None, :]


@triton.jit
def _scores(
    q, k, p, i, j, seen, n_queries, stride_pt, CONTENT: tl.constexpr, POSITION: tl.constexpr, PRECISION: tl.constexpr
):
    """Scores of queries i and keys j, -inf where hidden."""
    scores = tl.where(seen, 0.0, float("-inf"))
    if CONTENT:
        scores += tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if POSITION:
        scores += tl.load(_by_distance(p, i, j, n_queries, stride_pt), mask=seen, other=0.0).to(tl.float32)
    return scores


@triton.jit
def _kept(seed, x, i, j, n_keys, dropout):
    """1 / (1 - dropout) where a probability is kept, 0 where it is dropped; equal in forward and backward."""
    random = tl.rand(seed + x, i[:, None] * n_keys + j[None, :])
    return tl.where(random >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def _first_key_of(first_row, n_queries, n_keys, first_key, attention_len, BLOCK_K: tl.constexpr):
    """First key, rounded down to a block, that a block of queries sees; blocks before it are skipped."""
    nearest = n_keys - n_queries + first_row - attention_len + 1
    return tl.maximum(nearest, first_key) // BLOCK_K * BLOCK_K


@triton.jit(do_not_specialize=VALUES)
def forward_kernel(
    Q, K, V, P, OUT, LOGSUM, SEED, dropout,
    stride_qh, stride_qb, stride_qt, stride_kh, stride_kb, stride_kt, stride_oh, stride_ob, stride_ot,
    stride_ph, stride_pb, stride_pt,
    n_streams, n_queries, n_keys, first_key, attention_len,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    CONTENT: tl.constexpr, POSITION: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of a block of queries: softmax over blocks of keys, one pass."""
    x, first_row = tl.program_id(1), tl.program_id(0) * BLOCK_T
    i = first_row + tl.arange(0, BLOCK_T)
    k_matrix = _matrix(K, x, n_streams, stride_kh, stride_kb)
    v_matrix = _matrix(V, x, n_streams, stride_kh, stride_kb)
    p = _matrix(P, x, n_streams, stride_ph, stride_pb)
    q = _load(_matrix(Q, x, n_streams, stride_qh, stride_qb), i, n_queries, stride_qt, HEAD, WIDTH)
    if DROPOUT:
        seed = tl.load(SEED)
    largest = tl.full([BLOCK_T], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_T], tl.float32)
    out = tl.zeros([BLOCK_T, WIDTH], tl.float32)
    start = _first_key_of(first_row, n_queries, n_keys, first_key, attention_len, BLOCK_K)
    stop = tl.minimum(n_keys, n_keys - n_queries + first_row + BLOCK_T)
    for first in range(start, stop, BLOCK_K):
        j = first + tl.arange(0, BLOCK_K)
        seen = _seen(i, j, n_queries, n_keys, first_key, attention_len)
        k = _load(k_matrix, j, n_keys, stride_kt, HEAD, WIDTH)
        scores = _scores(q, k, p, i, j, seen, n_queries, stride_pt, CONTENT, POSITION, PRECISION)
        larger = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(larger == float("-inf"), 0.0, larger)  # -inf: nothing seen so far
        weights = tl.exp(scores - shift[:, None])
        shrink = tl.exp(largest - shift)
        total = total * shrink + tl.sum(weights, 1)
        if DROPOUT:
            weights *= _kept(seed, x, i, j, n_keys, dropout)
        v = _load(v_matrix, j, n_keys, stride_kt, HEAD, WIDTH)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = larger
    total = tl.where(i < n_queries, total, 1.0)
    out /= total[:, None]
    _store(_matrix(OUT, x, n_streams, stride_oh, stride_ob), i, n_queries, stride_ot, out, HEAD, WIDTH)
    tl.store(LOGSUM + x.to(tl.int64) * n_queries + i, largest + tl.log(total), mask=i < n_queries)


@triton.jit
def _score_gradient(
    scores, logsum, delta, d_out, v, seed, x, i, j, n_keys, dropout, DROPOUT: tl.constexpr, PRECISION: tl.constexpr
):
    """Probabilities times the dropout's factors, and the gradient of the scores.

    With o_i = Σ_j P_ij D_ij v_j:  dA_ij = P_ij (D_ij do_i·v_j - delta_i),  delta_i = do_i·o_i
    """
    probabilities = tl.exp(scores - logsum[:, None])
    gradient = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
    weights = probabilities
    if DROPOUT:
        kept = _kept(seed, x, i, j, n_keys, dropout)
        weights = probabilities * kept
        gradient = gradient * kept
    return weights, probabilities * (gradient - delta[:, None])


@triton.jit(do_not_specialize=VALUES)
def backward_queries_kernel(
    Q, K, V, P, D_OUT, LOGSUM, DELTA, D_Q, D_P, SEED, dropout,
    stride_qh, stride_qb, stride_qt, stride_kh, stride_kb, stride_kt, stride_oh, stride_ob, stride_ot,
    stride_ph, stride_pb, stride_pt,
    n_streams, n_queries, n_keys, first_key, attention_len,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    CONTENT: tl.constexpr, POSITION: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries and of their scores by distance, each of which is written once."""
    x, first_row = tl.program_id(1), tl.program_id(0) * BLOCK_T
    i = first_row + tl.arange(0, BLOCK_T)
    k_matrix = _matrix(K, x, n_streams, stride_kh, stride_kb)
    v_matrix = _matrix(V, x, n_streams, stride_kh, stride_kb)
    p = _matrix(P, x, n_streams, stride_ph, stride_pb)
    d_p = D_P + x.to(tl.int64) * n_queries * (n_keys + 1)
    q = _load(_matrix(Q, x, n_streams, stride_qh, stride_qb), i, n_queries, stride_qt, HEAD, WIDTH)
    d_out = _load(_matrix(D_OUT, x, n_streams, stride_oh, stride_ob), i, n_queries, stride_ot, HEAD, WIDTH)
    logsum = tl.load(LOGSUM + x.to(tl.int64) * n_queries + i, mask=i < n_queries, other=0.0)
    delta = tl.load(DELTA + x.to(tl.int64) * n_queries + i, mask=i < n_queries, other=0.0)
    seed = tl.load(SEED)
    d_q = tl.zeros([BLOCK_T, WIDTH], tl.float32)
    start = _first_key_of(first_row, n_queries, n_keys, first_key, attention_len, BLOCK_K)
    stop = tl.minimum(n_keys, n_keys - n_queries + first_row + BLOCK_T)
    for first in range(start, stop, BLOCK_K):
        j = first + tl.arange(0, BLOCK_K)
        seen = _seen(i, j, n_queries, n_keys, first_key, attention_len)
        k = _load(k_matrix, j, n_keys, stride_kt, HEAD, WIDTH)
        v = _load(v_matrix, j, n_keys, stride_kt, HEAD, WIDTH)
        scores = _scores(q, k, p, i, j, seen, n_queries, stride_pt, CONTENT, POSITION, PRECISION)
        _, d_scores = _score_gradient(
            scores, logsum, delta, d_out, v, seed, x, i, j, n_keys, dropout, DROPOUT, PRECISION
        )
        if CONTENT:
            d_q += tl.dot(d_scores.to(k.dtype), k, input_precision=PRECISION)
        if POSITION:
            pointers = _by_distance(d_p, i, j, n_queries, n_keys + 1)
            tl.store(pointers, d_scores.to(D_P.dtype.element_ty), mask=seen)
    if CONTENT:
        _store(D_Q + x.to(tl.int64) * n_queries * HEAD, i, n_queries, HEAD, d_q, HEAD, WIDTH)


@triton.jit(do_not_specialize=VALUES)
def backward_keys_kernel(
    Q, K, V, P, D_OUT, LOGSUM, DELTA, D_K, D_V, SEED, dropout,
    stride_qh, stride_qb, stride_qt, stride_kh, stride_kb, stride_kt, stride_oh, stride_ob, stride_ot,
    stride_ph, stride_pb, stride_pt,
    n_streams, n_queries, n_keys, first_key, attention_len,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    CONTENT: tl.constexpr, POSITION: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values, over the blocks of queries that see one of them."""
    x, first_column = tl.program_id(1), tl.program_id(0) * BLOCK_K
    j = first_column + tl.arange(0, BLOCK_K)
    q_matrix = _matrix(Q, x, n_streams, stride_qh, stride_qb)
    d_out_matrix = _matrix(D_OUT, x, n_streams, stride_oh, stride_ob)
    p = _matrix(P, x, n_streams, stride_ph, stride_pb)
    k = _load(_matrix(K, x, n_streams, stride_kh, stride_kb), j, n_keys, stride_kt, HEAD, WIDTH)
    v = _load(_matrix(V, x, n_streams, stride_kh, stride_kb), j, n_keys, stride_kt, HEAD, WIDTH)
    seed = tl.load(SEED)
    d_k = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    d_v = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    n_memory = n_keys - n_queries
    start = tl.maximum(0, first_column - n_memory) // BLOCK_T * BLOCK_T
    stop = tl.minimum(n_queries, first_column + BLOCK_K - 1 - n_memory + attention_len)
    stop = tl.where(first_column + BLOCK_K > first_key, stop, 0)
    for first in range(start, stop, BLOCK_T):
        i = first + tl.arange(0, BLOCK_T)
        seen = _seen(i, j, n_queries, n_keys, first_key, attention_len)
        q = _load(q_matrix, i, n_queries, stride_qt, HEAD, WIDTH)
        d_out = _load(d_out_matrix, i, n_queries, stride_ot, HEAD, WIDTH)
        logsum = tl.load(LOGSUM + x.to(tl.int64) * n_queries + i, mask=i < n_queries, other=0.0)
        delta = tl.load(DELTA + x.to(tl.int64) * n_queries + i, mask=i < n_queries, other=0.0)
        scores = _scores(q, k, p, i, j, seen, n_queries, stride_pt, CONTENT, POSITION, PRECISION)
        weights, d_scores = _score_gradient(
            scores, logsum, delta, d_out, v, seed, x, i, j, n_keys, dropout, DROPOUT, PRECISION
        )
        d_v += tl.dot(tl.trans(weights).to(d_out.dtype), d_out, input_precision=PRECISION)
        if CONTENT:
            d_k += tl.dot(tl.trans(d_scores).to(q.dtype), q, input_precision=PRECISION)
    _store(D_V + x.to(tl.int64) * n_keys * HEAD, j, n_keys, HEAD, d_v, HEAD, WIDTH)
    if CONTENT:
        _store(D_K + x.to(tl.int64) * n_keys * HEAD, j, n_keys, HEAD, d_k, HEAD, WIDTH)
