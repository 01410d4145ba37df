// Attention of any length on tensor cores, a block of keys (or queries) at a time; scores are never written to global memory.
// The backward pass is two kernels, each of which accumulates in registers: deterministic, without atomics.
#define HEADS_OF_GROUP (HEADS / GROUPS)
#define SHIFT (S - T)         // causal: query i sees the keys up to i + SHIFT
#define OWN (16 * WARPS)      // rows that a block owns: queries, or keys in the gradient of keys and values

// Number of keys that are visible to the queries below `end`.
DEVICE int seen(int end) {
    if (!CAUSAL) return S;
    const int n = (end < T ? end : T) + SHIFT;
    return n < 0 ? 0 : n < S ? n : S;
}

// Loads the keys and values of a head from row `j` into a stage.
#define LOAD_CHUNK(stage, j)                               \
    load_rows<CHUNK>(stage, hk + (j) * K_T, K_T, S - (j)); \
    load_rows<CHUNK>((stage) + CHUNK * ROW, hv + (j) * V_T, V_T, S - (j))

// Prologue of a block that owns queries, whose shared memory begins with `sq`: their first row `q0`, batch `b`, head `h`, group `g`; warp `w` and
// `lane`; the number of steps over the keys that these queries see, and the keys `hk` and values `hv` of the head. Starts to load the queries.
// Blocks with the most keys of a causal mask start first.
#define QUERIES_OF_BLOCK                                                                               \
    const int tiles = (T + OWN - 1) / OWN;                                                             \
    const int q0 = (CAUSAL ? tiles - 1 - (int)(blockIdx.x % tiles) : (int)(blockIdx.x % tiles)) * OWN; \
    const int b = blockIdx.x / tiles / HEADS, h = blockIdx.x / tiles % HEADS, g = h / HEADS_OF_GROUP;  \
    const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;                                           \
    const int keys = seen(q0 + OWN), steps = (keys + CHUNK - 1) / CHUNK;                               \
    const u16 *hk = k + b * K_B + g * K_H, *hv = v + b * V_B + g * V_H;                                \
    load_rows<OWN>(sq, q + b * Q_B + h * Q_H + q0 * Q_T, Q_T, T - q0);

// Starts to load the first keys and values.
#define FIRST_CHUNK         \
    if (steps) {            \
        LOAD_CHUNK(skv, 0); \
    }                       \
    commit();

// Begins step `step`: `sk` and `sv`, keys and values from row `j0`, are loaded; those of the next step are on their way to the other stage.
#define NEXT_CHUNK                                                        \
    const int j0 = step * CHUNK;                                          \
    u16 *sk = skv + (step & 1) * 2 * CHUNK * ROW, *sv = sk + CHUNK * ROW; \
    if (step + 1 < steps) {                                               \
        u16 *next = skv + (~step & 1) * 2 * CHUNK * ROW;                  \
        LOAD_CHUNK(next, j0 + CHUNK);                                     \
    }                                                                     \
    commit();                                                             \
    WAIT(1);                                                              \
    __syncthreads();

#if PART == 0
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_flash_forward(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v,
                        u16 *__restrict__ o, float *__restrict__ lse) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sq = shared, *skv = sq + OWN * ROW;
    QUERIES_OF_BLOCK
    FIRST_CHUNK
    const float c = SCALE * LOG2E;
    const int row = q0 + 16 * w + (lane >> 2);
    float m0 = -INF, m1 = -INF, l0 = 0, l1 = 0;
    float acc[D / 8][4] = {};
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {
        NEXT_CHUNK
        float s[CHUNK / 8][4] = {};
        SCORES(CHUNK / 16, s, sq, 16 * w, sk, 0)
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
        LARGEST_OF_ROWS(n0, n1)
        // For rows that have seen no key yet, any finite number will do.
        const float u0 = n0 == -INF ? 0 : n0, u1 = n1 == -INF ? 0 : n1;
        const float f0 = exp2_fast((m0 - u0) * c), f1 = exp2_fast((m1 - u1) * c);
        m0 = n0;
        m1 = n1;
        l0 *= f0;
        l1 *= f1;
        EXPONENTIALS(CHUNK / 8, s, u0, u1, c, l0, l1)
        scale_rows(acc, f0, f1);
        #pragma unroll
        for (int x = 0; x < CHUNK / 16; x++) {
            u32 a[4];
            pack_columns(a, s + 2 * x);
            ACCUMULATE(acc, a, sv, 16 * x)
        }
        __syncthreads();        // the next step's copies overwrite what was read here
    }
    WAIT(0);
    __syncthreads();
    SUMS_OF_ROWS(l0, l1)
    const float i0 = l0 > 0 ? 1.0f / l0 : 0, i1 = l1 > 0 ? 1.0f / l1 : 0;
    scale_rows(acc, i0, i1);
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
// Gradient of the queries; and `delta` [b, h, t], the row sums of o times its gradient, which the next kernel reads.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_flash_queries(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v, const u16 *__restrict__ o,
                        const float *__restrict__ lse, const u16 *__restrict__ grad, u16 *__restrict__ dq, float *__restrict__ delta) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *sq = shared, *sg = sq + OWN * ROW, *skv = sg + OWN * ROW;
    float *sd = (float *)(skv + 4 * CHUNK * ROW);
    QUERIES_OF_BLOCK
    load_rows<OWN>(sg, grad + b * G_B + h * G_H + q0 * G_T, G_T, T - q0);
    FIRST_CHUNK
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
        NEXT_CHUNK
        const bool edge = j0 + CHUNK > S || (CAUSAL && j0 + CHUNK - 1 > q0 + 16 * w + SHIFT);
        #pragma unroll 1
        for (int k0 = 0; k0 < CHUNK; k0 += 32) {
            float s[4][4] = {}, p[4][4] = {};
            SCORES_OF_PAIRS(2, s, sq, sk, p, sg, sv, 16 * w, k0)
            #pragma unroll
            for (int n = 0; n < 4; n++) {
                weights(s[n], c, -e0, -e0, -e1, -e1);
                if (edge) {
                    const int j = j0 + k0 + 8 * n + (lane & 3) * 2;
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!visible(row + (e >> 1) * 8, j + (e & 1))) s[n][e] = 0;
                }
                slopes(p[n], s[n], d0, d0, d1, d1);
            }
            #pragma unroll
            for (int x = 0; x < 2; x++) {
                u32 a[4];
                pack_columns(a, p + 2 * x);
                ACCUMULATE(acc, a, sk, k0 + 16 * x)
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
            SCORES_OF_PAIRS(2, s, sk, sq, p, sv, sg, 16 * w, i0)
            #pragma unroll
            for (int n = 0; n < 4; n++) {
                const int i = i0 + 8 * n + (lane & 3) * 2;
                const float2 l = *(const float2 *)(stats + i), d = *(const float2 *)(stats + CHUNK + i);
                weights(s[n], c, -l.x * LOG2E, -l.y * LOG2E, -l.x * LOG2E, -l.y * LOG2E);
                if (edge) {
                    const int j = j0 + 16 * w + (lane >> 2);
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!visible(q0 + i + (e & 1), j + (e >> 1) * 8)) s[n][e] = 0;
                }
                slopes(p[n], s[n], d.x, d.y, d.x, d.y);
            }
            #pragma unroll
            for (int x = 0; x < 2; x++) {
                u32 a[4];
                pack_columns(a, s + 2 * x);
                u32 e[4];
                pack_columns(e, p + 2 * x);
                ACCUMULATE_PAIRS(av, a, sg, ak, e, sq, i0 + 16 * x)
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
