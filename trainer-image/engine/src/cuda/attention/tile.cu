// Attention whose queries and keys each fit one tile of 128 rows, on tensor cores.
// One block for each batch and head (backward: each batch and head of the keys). The backward pass needs no sum across
// tiles, hence no workspace and no atomics: it is deterministic.
#define TQ ((T + 15) / 16 * 16)
#define TK ((S + 15) / 16 * 16)
#define QUERIES (TQ + 8)      // padded row of the transposed scores

#if FORWARD
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_tile_forward(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v,
                       u16 *__restrict__ o, float *__restrict__ lse) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sq = shared, *sk = sq + TQ * ROW, *sv = sk + TK * ROW;
    const int b = blockIdx.x / HEADS, h = blockIdx.x % HEADS, g = h / (HEADS / GROUPS);
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    load_rows<TQ>(sq, q + b * Q_B + h * Q_H, Q_T, T);
    load_rows<TK>(sk, k + b * K_B + g * K_H, K_T, S);
    commit();
    load_rows<TK>(sv, v + b * V_B + g * V_H, V_T, S);
    commit();
    WAIT(1);
    __syncthreads();
    // Each warp owns 16 queries; all their scores stay in registers.
    float s[TK / 8][4] = {};
    #pragma unroll
    for (int x = 0; x < STEPS; x++) {
        u32 a[4];
        matrices(a, A_MK(sq, ROW, 16 * w, 16 * x));
        #pragma unroll
        for (int n = 0; n < TK / 16; n++) {
            u32 r[4];
            matrices(r, B_NK(sk, ROW, 16 * n, 16 * x));
            multiply(s[2 * n], a, r[0], r[1]);
            multiply(s[2 * n + 1], a, r[2], r[3]);
        }
    }
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
    #pragma unroll
    for (int x = 1; x < 4; x <<= 1) {
        m0 = fmaxf(m0, __shfl_xor_sync(~0u, m0, x));
        m1 = fmaxf(m1, __shfl_xor_sync(~0u, m1, x));
    }
    #if CAUSAL && T > S
    if (m0 == -INF) m0 = 0;     // no key is seen
    if (m1 == -INF) m1 = 0;
    #endif
    const float c = SCALE * LOG2E;
    #pragma unroll
    for (int n = 0; n < TK / 8; n++) {
        s[n][0] = exp2_fast((s[n][0] - m0) * c);
        s[n][1] = exp2_fast((s[n][1] - m0) * c);
        s[n][2] = exp2_fast((s[n][2] - m1) * c);
        s[n][3] = exp2_fast((s[n][3] - m1) * c);
        l0 += s[n][0] + s[n][1];
        l1 += s[n][2] + s[n][3];
    }
    #pragma unroll
    for (int x = 1; x < 4; x <<= 1) {
        l0 += __shfl_xor_sync(~0u, l0, x);
        l1 += __shfl_xor_sync(~0u, l1, x);
    }
    WAIT(0);
    __syncthreads();
    float acc[D / 8][4] = {};
    #pragma unroll
    for (int x = 0; x < TK / 16; x++) {
        u32 a[4] = {pack(s[2 * x][0], s[2 * x][1]), pack(s[2 * x][2], s[2 * x][3]), pack(s[2 * x + 1][0], s[2 * x + 1][1]), pack(s[2 * x + 1][2], s[2 * x + 1][3])};
        #pragma unroll
        for (int d = 0; d < STEPS; d++) {
            u32 r[4];
            matrices_transposed(r, B_KN(sv, ROW, 16 * x, 16 * d));
            multiply(acc[2 * d], a, r[0], r[1]);
            multiply(acc[2 * d + 1], a, r[2], r[3]);
        }
    }
    const float i0 = l0 > 0 ? 1.0f / l0 : 0, i1 = l1 > 0 ? 1.0f / l1 : 0;
    #pragma unroll
    for (int d = 0; d < D / 8; d++) {
        acc[d][0] *= i0;
        acc[d][1] *= i0;
        acc[d][2] *= i1;
        acc[d][3] *= i1;
    }
    // This warp alone read these rows of q.
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
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_tile_backward(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v, const u16 *__restrict__ o,
                        const float *__restrict__ lse, const u16 *__restrict__ grad,
                        u16 *__restrict__ dq, u16 *__restrict__ dk, u16 *__restrict__ dv) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sq = shared, *sg = sq + TQ * ROW, *sk = sg + TQ * ROW, *sv = sk + TK * ROW, *ss = sv + TK * ROW;
    float *sl = (float *)(ss + TK * QUERIES), *sd = sl + TQ;
    const int b = blockIdx.x / GROUPS, g = blockIdx.x % GROUPS;
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float c = SCALE * LOG2E;
    load_rows<TK>(sk, k + b * K_B + g * K_H, K_T, S);
    load_rows<TK>(sv, v + b * V_B + g * V_H, V_T, S);
    float av[D / 8][4] = {}, ak[D / 8][4] = {};
    #pragma unroll 1
    for (int h = g * (HEADS / GROUPS); h < (g + 1) * (HEADS / GROUPS); h++) {
        load_rows<TQ>(sq, q + b * Q_B + h * Q_H, Q_T, T);
        load_rows<TQ>(sg, grad + b * G_B + h * G_H, G_T, T);
        commit();
        {   // The sum of o times its gradient: two threads a row. Rows that are not there get weights of zero.
            const int r = threadIdx.x >> 1, half = threadIdx.x & 1;
            float delta = 0;
            if (r < T) {
                const u16 *x = o + b * O_B + h * O_H + r * O_T + half * (D / 2), *y = grad + b * G_B + h * G_H + r * G_T + half * (D / 2);
                #pragma unroll
                for (int i = 0; i < VECTORS / 2; i++) delta = dot8(*(const uint4 *)(x + 8 * i), *(const uint4 *)(y + 8 * i), delta);
            }
            delta += __shfl_xor_sync(~0u, delta, 1);
            if (!half && r < TQ) {
                sd[r] = delta;
                sl[r] = r < T ? lse[b * L_B + h * L_H + r * L_T] * LOG2E : INF;
            }
        }
        WAIT(0);
        __syncthreads();
        if (16 * w < TK) {
            #pragma unroll 1
            for (int q0 = 0; q0 < TQ; q0 += CHUNK) {
                // Transposed: this warp owns 16 keys, and takes CHUNK queries at a time.
                float s[CHUNK / 8][4] = {}, p[CHUNK / 8][4] = {};
                #pragma unroll
                for (int x = 0; x < STEPS; x++) {
                    u32 a[4], e[4];
                    matrices(a, A_MK(sk, ROW, 16 * w, 16 * x));
                    matrices(e, A_MK(sv, ROW, 16 * w, 16 * x));
                    #pragma unroll
                    for (int n = 0; n < CHUNK / 16; n++) {
                        u32 r[4];
                        matrices(r, B_NK(sq, ROW, q0 + 16 * n, 16 * x));
                        multiply(s[2 * n], a, r[0], r[1]);
                        multiply(s[2 * n + 1], a, r[2], r[3]);
                        matrices(r, B_NK(sg, ROW, q0 + 16 * n, 16 * x));
                        multiply(p[2 * n], e, r[0], r[1]);
                        multiply(p[2 * n + 1], e, r[2], r[3]);
                    }
                }
                #pragma unroll
                for (int n = 0; n < CHUNK / 8; n++) {
                    const int i = q0 + 8 * n + (lane & 3) * 2;
                    const float2 l = *(const float2 *)(sl + i), d = *(const float2 *)(sd + i);
                    s[n][0] = exp2_fast(fmaf(s[n][0], c, -l.x));
                    s[n][1] = exp2_fast(fmaf(s[n][1], c, -l.y));
                    s[n][2] = exp2_fast(fmaf(s[n][2], c, -l.x));
                    s[n][3] = exp2_fast(fmaf(s[n][3], c, -l.y));
                    #if CAUSAL || S % 16
                    const int j = 16 * w + (lane >> 2);
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!visible(i + (e & 1), j + (e >> 1) * 8)) s[n][e] = 0;
                    #endif
                    p[n][0] = s[n][0] * (p[n][0] - d.x) * SCALE;
                    p[n][1] = s[n][1] * (p[n][1] - d.y) * SCALE;
                    p[n][2] = s[n][2] * (p[n][2] - d.x) * SCALE;
                    p[n][3] = s[n][3] * (p[n][3] - d.y) * SCALE;
                }
                #pragma unroll
                for (int x = 0; x < CHUNK / 16; x++) {
                    u32 a[4] = {pack(s[2 * x][0], s[2 * x][1]), pack(s[2 * x][2], s[2 * x][3]), pack(s[2 * x + 1][0], s[2 * x + 1][1]), pack(s[2 * x + 1][2], s[2 * x + 1][3])};
                    u32 e[4] = {pack(p[2 * x][0], p[2 * x][1]), pack(p[2 * x][2], p[2 * x][3]), pack(p[2 * x + 1][0], p[2 * x + 1][1]), pack(p[2 * x + 1][2], p[2 * x + 1][3])};
                    u16 *to = ss + (16 * w + (lane >> 2)) * QUERIES + q0 + 16 * x + (lane & 3) * 2;
                    *(u32 *)to = e[0];
                    *(u32 *)(to + 8 * QUERIES) = e[1];
                    *(u32 *)(to + 8) = e[2];
                    *(u32 *)(to + 8 * QUERIES + 8) = e[3];
                    #pragma unroll
                    for (int d = 0; d < STEPS; d++) {
                        u32 r[4];
                        matrices_transposed(r, B_KN(sg, ROW, q0 + 16 * x, 16 * d));
                        multiply(av[2 * d], a, r[0], r[1]);
                        multiply(av[2 * d + 1], a, r[2], r[3]);
                        matrices_transposed(r, B_KN(sq, ROW, q0 + 16 * x, 16 * d));
                        multiply(ak[2 * d], e, r[0], r[1]);
                        multiply(ak[2 * d + 1], e, r[2], r[3]);
                    }
                }
            }
        }
        __syncthreads();        // ss is whole; nobody reads sq or sg any more
        if (16 * w < TQ) {
            float aq[D / 8][4] = {};
            #pragma unroll
            for (int x = 0; x < TK / 16; x++) {
                u32 a[4];
                matrices_transposed(a, A_KM(ss, QUERIES, 16 * x, 16 * w));
                #pragma unroll
                for (int d = 0; d < STEPS; d++) {
                    u32 r[4];
                    matrices_transposed(r, B_KN(sk, ROW, 16 * x, 16 * d));
                    multiply(aq[2 * d], a, r[0], r[1]);
                    multiply(aq[2 * d + 1], a, r[2], r[3]);
                }
            }
            put_rows(sq + 16 * w * ROW, aq, lane);
            __syncwarp();
            store_rows(dq + b * DQ_B + h * DQ_H + 16 * w * DQ_T, sq + 16 * w * ROW, DQ_T, T - 16 * w, lane);
        }
        __syncthreads();
    }
    if (16 * w < TK) {
        put_rows(sv + 16 * w * ROW, av, lane);
        put_rows(sk + 16 * w * ROW, ak, lane);
        __syncwarp();
        store_rows(dv + b * DV_B + g * DV_H + 16 * w * DV_T, sv + 16 * w * ROW, DV_T, S - 16 * w, lane);
        store_rows(dk + b * DK_B + g * DK_H + 16 * w * DK_T, sk + 16 * w * ROW, DK_T, S - 16 * w, lane);
    }
}
#endif
