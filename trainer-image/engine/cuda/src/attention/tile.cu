// Attention whose queries and keys each fit one tile of 128 rows, on tensor cores.
// One block per batch and head (backward: per batch and head of the keys). The backward pass needs no sum across
// tiles, hence no workspace and no atomics: it is deterministic.
//
// NORMED: queries and keys are normalised in shared memory; the gain of both is multiplied into the keys. The bias of the values is added to the
// output, because the weights of a row sum to 1. The backward pass sums the gradients of biases and gain over this head's rows.
#define TQ ((T + 15) / 16 * 16)
#define TK ((S + 15) / 16 * 16)
#define QUERIES (TQ + 8)      // padded row of the transposed scores

#if NORMED
#define VECTORS_OF_HEADS , const float *__restrict__ bias_q, const float *__restrict__ bias_k, const float *__restrict__ bias_v, const float *__restrict__ gain
// Loads the vectors of head h into shared memory: biases of queries, keys and values, then the gain.
DEVICE void load_vectors(float *to, const float *bias_q, const float *bias_k, const float *bias_v, const float *gain, int h) {
    for (int i = threadIdx.x; i < D; i += 32 * WARPS) {
        to[i] = bias_q[h * D + i];
        to[D + i] = bias_k[h * D + i];
        to[2 * D + i] = bias_v[h * D + i];
        to[3 * D + i] = gain[i];
    }
}
// Adds the bias to the rows of a head in shared memory, normalises them and multiplies them by the gain: two threads per row. Rows from `valid` on
// stay zero. `factors`, unless null, receives the factor of each row; `normal`, unless null, the normalised rows without the gain.
template <bool gained> DEVICE void normalise(u16 *rows, int padded, int valid, const float *bias, const float *gain, float *factors, u16 *normal) {
    for (int r = threadIdx.x >> 1; r < padded; r += 16 * WARPS) {
        const int at = (threadIdx.x & 1) * (D / 2);
        float x[D / 2], square = 0;
        #pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const uint4 bits = *(const uint4 *)(rows + r * ROW + at + 8 * i);
            const u32 pairs[4] = {bits.x, bits.y, bits.z, bits.w};
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 plus = *(const float2 *)(bias + at + 8 * i + 2 * j);
                const float low = low_of(pairs[j]) + plus.x, high = high_of(pairs[j]) + plus.y;
                x[8 * i + 2 * j] = low;
                x[8 * i + 2 * j + 1] = high;
                square = fmaf(low, low, fmaf(high, high, square));
            }
        }
        square += __shfl_xor_sync(~0u, square, 1);
        const float factor = r < valid ? rsqrtf(fmaf(square, 1.0f / D, EPSILON)) : 0;
        if (factors && !at) factors[r] = factor;
        #pragma unroll
        for (int i = 0; i < D / 16; i++) {
            u32 plain[4], scaled[4];
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                const float low = x[8 * i + 2 * j] * factor, high = x[8 * i + 2 * j + 1] * factor;
                plain[j] = pack(low, high);
                if (gained) {
                    const float2 times = *(const float2 *)(gain + at + 8 * i + 2 * j);
                    scaled[j] = pack(low * times.x, high * times.y);
                }
            }
            const uint4 p = make_uint4(plain[0], plain[1], plain[2], plain[3]);
            if (gained && normal) *(uint4 *)(normal + r * ROW + at + 8 * i) = p;
            *(uint4 *)(rows + r * ROW + at + 8 * i) = gained ? make_uint4(scaled[0], scaled[1], scaled[2], scaled[3]) : p;
        }
    }
}
#else
#define VECTORS_OF_HEADS
#endif

#if FORWARD
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_tile_forward(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v,
                       u16 *__restrict__ o, float *__restrict__ lse VECTORS_OF_HEADS) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sq = shared, *sk = sq + TQ * ROW, *sv = sk + TK * ROW;
    const int b = blockIdx.x / HEADS, h = blockIdx.x % HEADS, g = h / (HEADS / GROUPS);
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    load_rows<TQ>(sq, q + b * Q_B + h * Q_H, Q_T, T);
    load_rows<TK>(sk, k + b * K_B + g * K_H, K_T, S);
    commit();
    load_rows<TK>(sv, v + b * V_B + g * V_H, V_T, S);
    commit();
    #if NORMED
    float *vectors = (float *)(sv + TK * ROW);
    load_vectors(vectors, bias_q, bias_k, bias_v, gain, h);
    #endif
    WAIT(1);
    __syncthreads();
    #if NORMED
    normalise<false>(sq, TQ, T, vectors, nullptr, nullptr, nullptr);
    normalise<true>(sk, TK, S, vectors + D, vectors + 3 * D, nullptr, nullptr);
    __syncthreads();
    #endif
    // Each warp owns 16 queries, whose scores all stay in registers.
    float s[TK / 8][4] = {};
    SCORES(TK / 16, s, sq, 16 * w, sk, 0)
    const int row = 16 * w + (lane >> 2);
    float m0 = -INF, m1 = -INF, l0 = 0, l1 = 0;
    #pragma unroll
    for (int n = 0; n < TK / 8; n++) {
        #if CAUSAL || S % 16
        const int j = 8 * n + (lane & 3) * 2;
        #pragma unroll
        for (int e = 0; e < 4; e++) if (!(j + (e & 1) < S && (!CAUSAL || j + (e & 1) <= row + (e >> 1) * 8 + S - T))) s[n][e] = -INF;
        #endif
        m0 = fmaxf(m0, fmaxf(s[n][0], s[n][1]));
        m1 = fmaxf(m1, fmaxf(s[n][2], s[n][3]));
    }
    LARGEST_OF_ROWS(m0, m1)
    #if CAUSAL && T > S
    if (m0 == -INF) m0 = 0;     // no key is seen
    if (m1 == -INF) m1 = 0;
    #endif
    const float c = SCALE * LOG2E;
    EXPONENTIALS(TK / 8, s, m0, m1, c, l0, l1)
    SUMS_OF_ROWS(l0, l1)
    WAIT(0);
    __syncthreads();
    float acc[D / 8][4] = {};
    #pragma unroll
    for (int x = 0; x < TK / 16; x++) {
        u32 a[4];
        pack_columns(a, s + 2 * x);
        ACCUMULATE(acc, a, sv, 16 * x)
    }
    const float i0 = l0 > 0 ? 1.0f / l0 : 0, i1 = l1 > 0 ? 1.0f / l1 : 0;
    scale_rows(acc, i0, i1);
    #if NORMED
    #pragma unroll
    for (int d = 0; d < D / 8; d++) {
        const float2 plus = *(const float2 *)(vectors + 2 * D + 8 * d + (lane & 3) * 2);
        if (l0 > 0) acc[d][0] += plus.x, acc[d][1] += plus.y;
        if (l1 > 0) acc[d][2] += plus.x, acc[d][3] += plus.y;
    }
    #endif
    // Only this warp reads these rows of q.
    put_rows(sq + 16 * w * ROW, acc, lane);
    #if KEEP
    if ((lane & 3) == 0) {
        float *to = lse + b * L_B + h * L_H;
        if (row < T) to[row * L_T] = m0 * SCALE + logf(l0);
        if (row + 8 < T) to[(row + 8) * L_T] = m1 * SCALE + logf(l1);
    }
    #endif
    __syncwarp();
    store_rows(o + b * O_B + h * O_H + 16 * w * O_T, sq + 16 * w * ROW, O_T, T - 16 * w, lane);
}
#else
#if NORMED
#define SUMS_OF_HEADS , float *__restrict__ sums_q, float *__restrict__ sums_k, float *__restrict__ sums_v, float *__restrict__ sums_gain
// Turns the gradient of 16 normalised rows, in one warp's accumulators, into that of the rows before normalisation.
DEVICE void through_norm(float (*g)[4], const u16 *normal, const float *factors, int lane) {
    const u16 *first = normal + (lane >> 2) * ROW + (lane & 3) * 2, *second = first + 8 * ROW;
    float m0 = 0, m1 = 0;
    #pragma unroll
    for (int j = 0; j < D / 8; j++) {
        const u32 x = *(const u32 *)(first + 8 * j), y = *(const u32 *)(second + 8 * j);
        m0 = fmaf(g[j][0], low_of(x), fmaf(g[j][1], high_of(x), m0));
        m1 = fmaf(g[j][2], low_of(y), fmaf(g[j][3], high_of(y), m1));
    }
    SUMS_OF_ROWS(m0, m1)
    m0 *= -1.0f / D;
    m1 *= -1.0f / D;
    const float f0 = factors[lane >> 2], f1 = factors[(lane >> 2) + 8];
    #pragma unroll
    for (int j = 0; j < D / 8; j++) {
        const u32 x = *(const u32 *)(first + 8 * j), y = *(const u32 *)(second + 8 * j);
        g[j][0] = f0 * fmaf(low_of(x), m0, g[j][0]);
        g[j][1] = f0 * fmaf(high_of(x), m0, g[j][1]);
        g[j][2] = f1 * fmaf(low_of(y), m1, g[j][2]);
        g[j][3] = f1 * fmaf(high_of(y), m1, g[j][3]);
    }
}
// Column sums of 16 rows in shared memory, by one warp: of every eight columns, a thread gets columns 2 (lane % 4) and 2 (lane % 4) + 1.
DEVICE void column_sums(float (*sums)[2], const u16 *rows, int lane) {
    const u32 ones[4] = {ONES, ONES, ONES, ONES};
    #pragma unroll
    for (int d = 0; d < STEPS; d++) {
        u32 r[4];
        matrices_transposed(r, B_KN(rows, ROW, 0, 16 * d));
        float c[4] = {}, e[4] = {};
        multiply(c, ones, r[0], r[1]);
        multiply(e, ones, r[2], r[3]);
        sums[2 * d][0] = c[0], sums[2 * d][1] = c[1];
        sums[2 * d + 1][0] = e[0], sums[2 * d + 1][1] = e[1];
    }
}
DEVICE void put_sums(float *to, float (*sums)[2], int lane) {
    if (lane >= 4) return;
    #pragma unroll
    for (int n = 0; n < D / 8; n++) *(float2 *)(to + 8 * n + 2 * lane) = make_float2(sums[n][0], sums[n][1]);
}
#else
#define SUMS_OF_HEADS
#endif
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_tile_backward(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v, const u16 *__restrict__ o,
                        const float *__restrict__ lse, const u16 *__restrict__ grad,
                        u16 *__restrict__ dq, u16 *__restrict__ dk, u16 *__restrict__ dv VECTORS_OF_HEADS SUMS_OF_HEADS) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sq = shared, *sg = sq + TQ * ROW, *sk = sg + TQ * ROW, *sv = sk + TK * ROW, *ss = sv + TK * ROW;
    float *sl = (float *)(ss + TK * QUERIES), *sd = sl + TQ;
    const int b = blockIdx.x / GROUPS, g = blockIdx.x % GROUPS;
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float c = SCALE * LOG2E;
    load_rows<TK>(sk, k + b * K_B + g * K_H, K_T, S);
    load_rows<TK>(sv, v + b * V_B + g * V_H, V_T, S);
    #if NORMED
    float *factors = sd + TQ, *vectors = factors + TQ + TK;
    u16 *sn = (u16 *)(vectors + 4 * D);
    // Column sums of each warp: those of the queries reuse the memory of their gradient, the three of keys and values reuse that of the keys.
    float *sums_of_q = (float *)sg, *sums_of_k = (float *)sk;
    load_vectors(vectors, bias_q, bias_k, bias_v, gain, g);
    __syncthreads();
    #endif
    float av[D / 8][4] = {}, ak[D / 8][4] = {};
    #pragma unroll 1
    for (int h = g * (HEADS / GROUPS); h < (g + 1) * (HEADS / GROUPS); h++) {
        load_rows<TQ>(sq, q + b * Q_B + h * Q_H, Q_T, T);
        load_rows<TQ>(sg, grad + b * G_B + h * G_H, G_T, T);
        commit();
        {   // Row sums of o times its gradient: two threads per row. Rows from T on get weights of zero.
            const int r = threadIdx.x >> 1, half = threadIdx.x & 1;
            float delta = 0;
            if (r < T) {
                const u16 *x = o + b * O_B + h * O_H + r * O_T + half * (D / 2), *y = grad + b * G_B + h * G_H + r * G_T + half * (D / 2);
                #pragma unroll
                for (int i = 0; i < VECTORS / 2; i++) {
                    const uint4 of_o = *(const uint4 *)(x + 8 * i), of_grad = *(const uint4 *)(y + 8 * i);
                    delta = dot8(of_o, of_grad, delta);
                    #if NORMED
                    // o without the bias of the values.
                    delta -= dot8(of_grad, vectors + 2 * D + half * (D / 2) + 8 * i);
                    #endif
                }
            }
            delta += __shfl_xor_sync(~0u, delta, 1);
            if (!half && r < TQ) {
                sd[r] = delta;
                sl[r] = r < T ? lse[b * L_B + h * L_H + r * L_T] * LOG2E : INF;
            }
        }
        WAIT(0);
        __syncthreads();
        #if NORMED
        normalise<false>(sq, TQ, T, vectors, nullptr, factors, nullptr);
        normalise<true>(sk, TK, S, vectors + D, vectors + 3 * D, factors + TQ, sn);
        __syncthreads();
        #endif
        if (16 * w < TK) {
            #pragma unroll 1
            for (int q0 = 0; q0 < TQ; q0 += CHUNK) {
                // Transposed: this warp owns 16 keys, and takes CHUNK queries at a time.
                float s[CHUNK / 8][4] = {}, p[CHUNK / 8][4] = {};
                SCORES_OF_PAIRS(CHUNK / 16, s, sk, sq, p, sv, sg, 16 * w, q0)
                #pragma unroll
                for (int n = 0; n < CHUNK / 8; n++) {
                    const int i = q0 + 8 * n + (lane & 3) * 2;
                    const float2 l = *(const float2 *)(sl + i), d = *(const float2 *)(sd + i);
                    weights(s[n], c, -l.x, -l.y, -l.x, -l.y);
                    #if CAUSAL || S % 16
                    const int j = 16 * w + (lane >> 2);
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!visible(i + (e & 1), j + (e >> 1) * 8)) s[n][e] = 0;
                    #endif
                    slopes(p[n], s[n], d.x, d.y, d.x, d.y);
                }
                #pragma unroll
                for (int x = 0; x < CHUNK / 16; x++) {
                    u32 a[4];
                    pack_columns(a, s + 2 * x);
                    u32 e[4];
                    pack_columns(e, p + 2 * x);
                    u16 *to = ss + (16 * w + (lane >> 2)) * QUERIES + q0 + 16 * x + (lane & 3) * 2;
                    *(u32 *)to = e[0];
                    *(u32 *)(to + 8 * QUERIES) = e[1];
                    *(u32 *)(to + 8) = e[2];
                    *(u32 *)(to + 8 * QUERIES + 8) = e[3];
                    ACCUMULATE_PAIRS(av, a, sg, ak, e, sq, q0 + 16 * x)
                }
            }
        }
        __syncthreads();        // ss is complete; sq and sg are no longer read
        if (16 * w < TQ) {
            float aq[D / 8][4] = {};
            #pragma unroll
            for (int x = 0; x < TK / 16; x++) {
                u32 a[4];
                matrices_transposed(a, A_KM(ss, QUERIES, 16 * x, 16 * w));
                ACCUMULATE(aq, a, sk, 16 * x)
            }
            #if NORMED
            through_norm(aq, sq + 16 * w * ROW, factors + 16 * w, lane);
            __syncwarp();
            #endif
            put_rows(sq + 16 * w * ROW, aq, lane);
            __syncwarp();
            #if NORMED
            float sums[D / 8][2];
            column_sums(sums, sq + 16 * w * ROW, lane);
            put_sums(sums_of_q + w * D, sums, lane);
            #endif
            store_rows(dq + b * DQ_B + h * DQ_H + 16 * w * DQ_T, sq + 16 * w * ROW, DQ_T, T - 16 * w, lane);
        }
        __syncthreads();
    }
    #if NORMED
    float of_k[D / 8][2], of_v[D / 8][2], of_gain[D / 8][2];
    #endif
    if (16 * w < TK) {
        #if NORMED
        u16 *normal = sn + 16 * w * ROW;
        float product[D / 8][4];
        #pragma unroll
        for (int j = 0; j < D / 8; j++) {
            const u16 *at = normal + (lane >> 2) * ROW + 8 * j + (lane & 3) * 2;
            const u32 x = *(const u32 *)at, y = *(const u32 *)(at + 8 * ROW);
            const float2 times = *(const float2 *)(vectors + 3 * D + 8 * j + (lane & 3) * 2);
            product[j][0] = ak[j][0] * low_of(x);
            product[j][1] = ak[j][1] * high_of(x);
            product[j][2] = ak[j][2] * low_of(y);
            product[j][3] = ak[j][3] * high_of(y);
            ak[j][0] *= times.x;
            ak[j][1] *= times.y;
            ak[j][2] *= times.x;
            ak[j][3] *= times.y;
        }
        through_norm(ak, normal, factors + TQ + 16 * w, lane);
        __syncwarp();
        put_rows(normal, product, lane);
        #endif
        put_rows(sv + 16 * w * ROW, av, lane);
        put_rows(sk + 16 * w * ROW, ak, lane);
        __syncwarp();
        #if NORMED
        column_sums(of_k, sk + 16 * w * ROW, lane);
        column_sums(of_v, sv + 16 * w * ROW, lane);
        column_sums(of_gain, normal, lane);
        #endif
        store_rows(dv + b * DV_B + g * DV_H + 16 * w * DV_T, sv + 16 * w * ROW, DV_T, S - 16 * w, lane);
        store_rows(dk + b * DK_B + g * DK_H + 16 * w * DK_T, sk + 16 * w * ROW, DK_T, S - 16 * w, lane);
    }
    #if NORMED
    __syncthreads();        // keys and values are no longer read
    if (16 * w < TK) {
        put_sums(sums_of_k + w * D, of_k, lane);
        put_sums(sums_of_k + (WARPS + w) * D, of_v, lane);
        put_sums(sums_of_k + (2 * WARPS + w) * D, of_gain, lane);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * D; i += 32 * WARPS) {
        const int which = i / D, column = i % D, warps = which ? TK / 16 : TQ / 16;
        const float *from = which ? sums_of_k + (which - 1) * WARPS * D : sums_of_q;
        float sum = 0;
        for (int x = 0; x < warps; x++) sum += from[x * D + column];
        float *to = which == 0 ? sums_q : which == 1 ? sums_k : which == 2 ? sums_v : sums_gain;
        to[(b * GROUPS + g) * D + column] = sum;
    }
    #endif
}
#endif
