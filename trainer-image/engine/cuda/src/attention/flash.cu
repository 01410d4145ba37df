// Attention of any length on tensor cores, a block of keys (or queries) at a time; scores are never in memory.
// Backward is two kernels, each with its own sums in registers: deterministic, without atomics.
#define HEADS_OF_GROUP (HEADS / GROUPS)
#define SHIFT (S - T)         // causal: query i sees the keys up to i + SHIFT
#define OWN (16 * WARPS)      // rows that a block owns: queries, or keys in the gradient of keys and values

// Keys that the queries below `end` see.
DEVICE int seen(int end) {
    if (!CAUSAL) return S;
    const int n = (end < T ? end : T) + SHIFT;
    return n < 0 ? 0 : n < S ? n : S;
}

#if PART == 0
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_flash_forward(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v,
                        u16 *__restrict__ o, float *__restrict__ lse) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sq = shared, *skv = sq + OWN * ROW;
    const int tiles = (T + OWN - 1) / OWN;
    // The longest rows of a causal mask first.
    const int q0 = (CAUSAL ? tiles - 1 - (int)(blockIdx.x % tiles) : (int)(blockIdx.x % tiles)) * OWN;
    const int b = blockIdx.x / tiles / HEADS, h = blockIdx.x / tiles % HEADS, g = h / HEADS_OF_GROUP;
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int keys = seen(q0 + OWN), steps = (keys + CHUNK - 1) / CHUNK;
    const u16 *hk = k + b * K_B + g * K_H, *hv = v + b * V_B + g * V_H;
    load_rows<OWN>(sq, q + b * Q_B + h * Q_H + q0 * Q_T, Q_T, T - q0);
    if (steps) {
        load_rows<CHUNK>(skv, hk, K_T, S);
        load_rows<CHUNK>(skv + CHUNK * ROW, hv, V_T, S);
    }
    commit();
    const float c = SCALE * LOG2E;
    const int row = q0 + 16 * w + (lane >> 2);
    float m0 = -INF, m1 = -INF, l0 = 0, l1 = 0;
    float acc[D / 8][4] = {};
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int j0 = step * CHUNK;
        u16 *sk = skv + (step & 1) * 2 * CHUNK * ROW, *sv = sk + CHUNK * ROW;
        if (step + 1 < steps) {
            u16 *next = skv + (~step & 1) * 2 * CHUNK * ROW;
            load_rows<CHUNK>(next, hk + (j0 + CHUNK) * K_T, K_T, S - j0 - CHUNK);
            load_rows<CHUNK>(next + CHUNK * ROW, hv + (j0 + CHUNK) * V_T, V_T, S - j0 - CHUNK);
        }
        commit();
        WAIT(1);
        __syncthreads();
        float s[CHUNK / 8][4] = {};
        #pragma unroll
        for (int x = 0; x < STEPS; x++) {
            u32 a[4];
            matrices(a, A_MK(sq, ROW, 16 * w, 16 * x));
            #pragma unroll
            for (int n = 0; n < CHUNK / 16; n++) {
                u32 r[4];
                matrices(r, B_NK(sk, ROW, 16 * n, 16 * x));
                multiply(s[2 * n], a, r[0], r[1]);
                multiply(s[2 * n + 1], a, r[2], r[3]);
            }
        }
        if (j0 + CHUNK > S || (CAUSAL && j0 + CHUNK - 1 > q0 + 16 * w + SHIFT)) {
            #pragma unroll
            for (int n = 0; n < CHUNK / 8; n++) {
                const int j = j0 + 8 * n + (lane & 3) * 2;
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int jj = j + (e & 1), i = row + (e >> 1) * 8;
                    if (jj >= S || (CAUSAL && jj > i + SHIFT)) s[n][e] = -INF;
                }
            }
        }
        float n0 = m0, n1 = m1;
        #pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) {
            n0 = fmaxf(n0, fmaxf(s[n][0], s[n][1]));
            n1 = fmaxf(n1, fmaxf(s[n][2], s[n][3]));
        }
        #pragma unroll
        for (int x = 1; x < 4; x <<= 1) {
            n0 = fmaxf(n0, __shfl_xor_sync(~0u, n0, x));
            n1 = fmaxf(n1, __shfl_xor_sync(~0u, n1, x));
        }
        // Rows that have seen no key yet: any finite number will do.
        const float u0 = n0 == -INF ? 0 : n0, u1 = n1 == -INF ? 0 : n1;
        const float f0 = exp2_fast((m0 - u0) * c), f1 = exp2_fast((m1 - u1) * c);
        m0 = n0;
        m1 = n1;
        l0 *= f0;
        l1 *= f1;
        #pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) {
            s[n][0] = exp2_fast((s[n][0] - u0) * c);
            s[n][1] = exp2_fast((s[n][1] - u0) * c);
            s[n][2] = exp2_fast((s[n][2] - u1) * c);
            s[n][3] = exp2_fast((s[n][3] - u1) * c);
            l0 += s[n][0] + s[n][1];
            l1 += s[n][2] + s[n][3];
        }
        #pragma unroll
        for (int d = 0; d < D / 8; d++) {
            acc[d][0] *= f0;
            acc[d][1] *= f0;
            acc[d][2] *= f1;
            acc[d][3] *= f1;
        }
        #pragma unroll
        for (int x = 0; x < CHUNK / 16; x++) {
            u32 a[4] = {pack(s[2 * x][0], s[2 * x][1]), pack(s[2 * x][2], s[2 * x][3]), pack(s[2 * x + 1][0], s[2 * x + 1][1]), pack(s[2 * x + 1][2], s[2 * x + 1][3])};
            #pragma unroll
            for (int d = 0; d < STEPS; d++) {
                u32 r[4];
                matrices_transposed(r, B_KN(sv, ROW, 16 * x, 16 * d));
                multiply(acc[2 * d], a, r[0], r[1]);
                multiply(acc[2 * d + 1], a, r[2], r[3]);
            }
        }
        __syncthreads();        // the next step's copies overwrite what was read here
    }
    WAIT(0);
    __syncthreads();
    #pragma unroll
    for (int x = 1; x < 4; x <<= 1) {
        l0 += __shfl_xor_sync(~0u, l0, x);
        l1 += __shfl_xor_sync(~0u, l1, x);
    }
    const float i0 = l0 > 0 ? 1.0f / l0 : 0, i1 = l1 > 0 ? 1.0f / l1 : 0;
    #pragma unroll
    for (int d = 0; d < D / 8; d++) {
        acc[d][0] *= i0;
        acc[d][1] *= i0;
        acc[d][2] *= i1;
        acc[d][3] *= i1;
    }
    put_rows(sq + 16 * w * ROW, acc, lane);
    #if KEEP
    if ((lane & 3) == 0) {
        float *to = lse + b * L_B + h * L_H;
        if (row < T) to[row * L_T] = l0 > 0 ? m0 * SCALE + logf(l0) : -INF;
        if (row + 8 < T) to[(row + 8) * L_T] = l1 > 0 ? m1 * SCALE + logf(l1) : -INF;
    }
    #endif
    __syncwarp();
    store_rows(o + b * O_B + h * O_H + (q0 + 16 * w) * O_T, sq + 16 * w * ROW, O_T, T - q0 - 16 * w, lane);
}

#elif PART == 1
// The gradient of the queries; and, for the kernel that follows, the sums of o times its gradient: `delta` [b, h, t].
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_flash_queries(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v, const u16 *__restrict__ o,
                        const float *__restrict__ lse, const u16 *__restrict__ grad, u16 *__restrict__ dq, float *__restrict__ delta) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sq = shared, *sg = sq + OWN * ROW, *skv = sg + OWN * ROW;
    float *sd = (float *)(skv + 4 * CHUNK * ROW);
    const int tiles = (T + OWN - 1) / OWN;
    const int q0 = (CAUSAL ? tiles - 1 - (int)(blockIdx.x % tiles) : (int)(blockIdx.x % tiles)) * OWN;
    const int b = blockIdx.x / tiles / HEADS, h = blockIdx.x / tiles % HEADS, g = h / HEADS_OF_GROUP;
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int keys = seen(q0 + OWN), steps = (keys + CHUNK - 1) / CHUNK;
    const u16 *hk = k + b * K_B + g * K_H, *hv = v + b * V_B + g * V_H;
    load_rows<OWN>(sq, q + b * Q_B + h * Q_H + q0 * Q_T, Q_T, T - q0);
    load_rows<OWN>(sg, grad + b * G_B + h * G_H + q0 * G_T, G_T, T - q0);
    if (steps) {
        load_rows<CHUNK>(skv, hk, K_T, S);
        load_rows<CHUNK>(skv + CHUNK * ROW, hv, V_T, S);
    }
    commit();
    {
        const int r = threadIdx.x >> 1, half = threadIdx.x & 1;
        float sum = 0;
        if (q0 + r < T) {
            const u16 *x = o + b * O_B + h * O_H + (q0 + r) * O_T + half * (D / 2), *y = grad + b * G_B + h * G_H + (q0 + r) * G_T + half * (D / 2);
            #pragma unroll
            for (int i = 0; i < VECTORS / 2; i++) sum = dot8(*(const uint4 *)(x + 8 * i), *(const uint4 *)(y + 8 * i), sum);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        if (!half) {
            sd[r] = sum;
            if (q0 + r < T) delta[((long long)b * HEADS + h) * T + q0 + r] = sum;
        }
    }
    __syncwarp();               // a warp reads the sums of its own rows only
    const float c = SCALE * LOG2E;
    const int own = 16 * w + (lane >> 2), row = q0 + own;
    const float d0 = sd[own], d1 = sd[own + 8];
    const float *hl = lse + b * L_B + h * L_H;
    const float e0 = row < T ? hl[row * L_T] * LOG2E : INF, e1 = row + 8 < T ? hl[(row + 8) * L_T] * LOG2E : INF;
    float acc[D / 8][4] = {};
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int j0 = step * CHUNK;
        u16 *sk = skv + (step & 1) * 2 * CHUNK * ROW, *sv = sk + CHUNK * ROW;
        if (step + 1 < steps) {
            u16 *next = skv + (~step & 1) * 2 * CHUNK * ROW;
            load_rows<CHUNK>(next, hk + (j0 + CHUNK) * K_T, K_T, S - j0 - CHUNK);
            load_rows<CHUNK>(next + CHUNK * ROW, hv + (j0 + CHUNK) * V_T, V_T, S - j0 - CHUNK);
        }
        commit();
        WAIT(1);
        __syncthreads();
        const bool edge = j0 + CHUNK > S || (CAUSAL && j0 + CHUNK - 1 > q0 + 16 * w + SHIFT);
        #pragma unroll 1
        for (int k0 = 0; k0 < CHUNK; k0 += 32) {
            float s[4][4] = {}, p[4][4] = {};
            #pragma unroll
            for (int x = 0; x < STEPS; x++) {
                u32 a[4], e[4];
                matrices(a, A_MK(sq, ROW, 16 * w, 16 * x));
                matrices(e, A_MK(sg, ROW, 16 * w, 16 * x));
                #pragma unroll
                for (int n = 0; n < 2; n++) {
                    u32 r[4];
                    matrices(r, B_NK(sk, ROW, k0 + 16 * n, 16 * x));
                    multiply(s[2 * n], a, r[0], r[1]);
                    multiply(s[2 * n + 1], a, r[2], r[3]);
                    matrices(r, B_NK(sv, ROW, k0 + 16 * n, 16 * x));
                    multiply(p[2 * n], e, r[0], r[1]);
                    multiply(p[2 * n + 1], e, r[2], r[3]);
                }
            }
            #pragma unroll
            for (int n = 0; n < 4; n++) {
                s[n][0] = exp2_fast(fmaf(s[n][0], c, -e0));
                s[n][1] = exp2_fast(fmaf(s[n][1], c, -e0));
                s[n][2] = exp2_fast(fmaf(s[n][2], c, -e1));
                s[n][3] = exp2_fast(fmaf(s[n][3], c, -e1));
                if (edge) {
                    const int j = j0 + k0 + 8 * n + (lane & 3) * 2;
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!visible(row + (e >> 1) * 8, j + (e & 1))) s[n][e] = 0;
                }
                p[n][0] = s[n][0] * (p[n][0] - d0) * SCALE;
                p[n][1] = s[n][1] * (p[n][1] - d0) * SCALE;
                p[n][2] = s[n][2] * (p[n][2] - d1) * SCALE;
                p[n][3] = s[n][3] * (p[n][3] - d1) * SCALE;
            }
            #pragma unroll
            for (int x = 0; x < 2; x++) {
                u32 a[4] = {pack(p[2 * x][0], p[2 * x][1]), pack(p[2 * x][2], p[2 * x][3]), pack(p[2 * x + 1][0], p[2 * x + 1][1]), pack(p[2 * x + 1][2], p[2 * x + 1][3])};
                #pragma unroll
                for (int d = 0; d < STEPS; d++) {
                    u32 r[4];
                    matrices_transposed(r, B_KN(sk, ROW, k0 + 16 * x, 16 * d));
                    multiply(acc[2 * d], a, r[0], r[1]);
                    multiply(acc[2 * d + 1], a, r[2], r[3]);
                }
            }
        }
        __syncthreads();
    }
    WAIT(0);
    __syncthreads();
    put_rows(sq + 16 * w * ROW, acc, lane);
    __syncwarp();
    store_rows(dq + b * DQ_B + h * DQ_H + (q0 + 16 * w) * DQ_T, sq + 16 * w * ROW, DQ_T, T - q0 - 16 * w, lane);
}

#else
// The gradients of keys and values: a warp owns 16 keys, for all queries of all heads of the group in order.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_flash_keys(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v, const float *__restrict__ lse,
                     const u16 *__restrict__ grad, const float *__restrict__ delta, u16 *__restrict__ dk, u16 *__restrict__ dv) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sk = shared, *sv = sk + OWN * ROW, *stage = sv + OWN * ROW;
    float *sl = (float *)(stage + 4 * CHUNK * ROW);       // two stages of (lse, delta)
    const int tiles = (S + OWN - 1) / OWN;
    const int j0 = (int)(blockIdx.x % tiles) * OWN;
    const int b = blockIdx.x / tiles / GROUPS, g = blockIdx.x / tiles % GROUPS;
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // The first query that sees a key of this block, down to a whole chunk.
    const int first = CAUSAL && j0 > SHIFT ? (j0 - SHIFT) / CHUNK * CHUNK : 0;
    const int of_head = first < T ? (T - first + CHUNK - 1) / CHUNK : 0, steps = of_head * HEADS_OF_GROUP;
    const float c = SCALE * LOG2E;
    load_rows<OWN>(sk, k + b * K_B + g * K_H + j0 * K_T, K_T, S - j0);
    load_rows<OWN>(sv, v + b * V_B + g * V_H + j0 * V_T, V_T, S - j0);
    auto load = [&](int step) {
        const int h = g * HEADS_OF_GROUP + step / of_head, q0 = first + step % of_head * CHUNK;
        u16 *to = stage + (step & 1) * 2 * CHUNK * ROW;
        float *stats = sl + (step & 1) * 2 * CHUNK;
        load_rows<CHUNK>(to, q + b * Q_B + h * Q_H + q0 * Q_T, Q_T, T - q0);
        load_rows<CHUNK>(to + CHUNK * ROW, grad + b * G_B + h * G_H + q0 * G_T, G_T, T - q0);
        for (int i = threadIdx.x; i < 2 * CHUNK; i += 32 * WARPS) {
            const int r = q0 + i % CHUNK;
            const bool there = r < T;
            const float *from = i < CHUNK ? lse + b * L_B + h * L_H + (there ? r : 0) * L_T : delta + ((long long)b * HEADS + h) * T + (there ? r : 0);
            copy4(stats + i, from, there);
        }
    };
    if (steps) load(0);
    commit();
    float av[D / 8][4] = {}, ak[D / 8][4] = {};
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) load(step + 1);
        commit();
        WAIT(1);
        __syncthreads();
        const u16 *sq = stage + (step & 1) * 2 * CHUNK * ROW, *sg = sq + CHUNK * ROW;
        const float *stats = sl + (step & 1) * 2 * CHUNK;
        const int q0 = first + step % of_head * CHUNK;
        const bool edge = q0 + CHUNK > T || j0 + OWN > S || (CAUSAL && j0 + 16 * w + 15 > q0 + SHIFT);
        #pragma unroll 1
        for (int i0 = 0; i0 < CHUNK; i0 += 32) {
            float s[4][4] = {}, p[4][4] = {};
            #pragma unroll
            for (int x = 0; x < STEPS; x++) {
                u32 a[4], e[4];
                matrices(a, A_MK(sk, ROW, 16 * w, 16 * x));
                matrices(e, A_MK(sv, ROW, 16 * w, 16 * x));
                #pragma unroll
                for (int n = 0; n < 2; n++) {
                    u32 r[4];
                    matrices(r, B_NK(sq, ROW, i0 + 16 * n, 16 * x));
                    multiply(s[2 * n], a, r[0], r[1]);
                    multiply(s[2 * n + 1], a, r[2], r[3]);
                    matrices(r, B_NK(sg, ROW, i0 + 16 * n, 16 * x));
                    multiply(p[2 * n], e, r[0], r[1]);
                    multiply(p[2 * n + 1], e, r[2], r[3]);
                }
            }
            #pragma unroll
            for (int n = 0; n < 4; n++) {
                const int i = i0 + 8 * n + (lane & 3) * 2;
                const float2 l = *(const float2 *)(stats + i), d = *(const float2 *)(stats + CHUNK + i);
                s[n][0] = exp2_fast(fmaf(s[n][0], c, -l.x * LOG2E));
                s[n][1] = exp2_fast(fmaf(s[n][1], c, -l.y * LOG2E));
                s[n][2] = exp2_fast(fmaf(s[n][2], c, -l.x * LOG2E));
                s[n][3] = exp2_fast(fmaf(s[n][3], c, -l.y * LOG2E));
                if (edge) {
                    const int j = j0 + 16 * w + (lane >> 2);
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!visible(q0 + i + (e & 1), j + (e >> 1) * 8)) s[n][e] = 0;
                }
                p[n][0] = s[n][0] * (p[n][0] - d.x) * SCALE;
                p[n][1] = s[n][1] * (p[n][1] - d.y) * SCALE;
                p[n][2] = s[n][2] * (p[n][2] - d.x) * SCALE;
                p[n][3] = s[n][3] * (p[n][3] - d.y) * SCALE;
            }
            #pragma unroll
            for (int x = 0; x < 2; x++) {
                u32 a[4] = {pack(s[2 * x][0], s[2 * x][1]), pack(s[2 * x][2], s[2 * x][3]), pack(s[2 * x + 1][0], s[2 * x + 1][1]), pack(s[2 * x + 1][2], s[2 * x + 1][3])};
                u32 e[4] = {pack(p[2 * x][0], p[2 * x][1]), pack(p[2 * x][2], p[2 * x][3]), pack(p[2 * x + 1][0], p[2 * x + 1][1]), pack(p[2 * x + 1][2], p[2 * x + 1][3])};
                #pragma unroll
                for (int d = 0; d < STEPS; d++) {
                    u32 r[4];
                    matrices_transposed(r, B_KN(sg, ROW, i0 + 16 * x, 16 * d));
                    multiply(av[2 * d], a, r[0], r[1]);
                    multiply(av[2 * d + 1], a, r[2], r[3]);
                    matrices_transposed(r, B_KN(sq, ROW, i0 + 16 * x, 16 * d));
                    multiply(ak[2 * d], e, r[0], r[1]);
                    multiply(ak[2 * d + 1], e, r[2], r[3]);
                }
            }
        }
        __syncthreads();
    }
    WAIT(0);
    __syncthreads();
    put_rows(sv + 16 * w * ROW, av, lane);
    put_rows(sk + 16 * w * ROW, ak, lane);
    __syncwarp();
    store_rows(dv + b * DV_B + g * DV_H + (j0 + 16 * w) * DV_T, sv + 16 * w * ROW, DV_T, S - j0 - 16 * w, lane);
    store_rows(dk + b * DK_B + g * DK_H + (j0 + 16 * w) * DK_T, sk + 16 * w * ROW, DK_T, S - j0 - 16 * w, lane);
}
#endif
