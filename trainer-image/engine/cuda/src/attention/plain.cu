// Attention of any shape, dtype and stride, without tensor cores: float32, float64, and what the other kernels do not support.
// Tiles of 32 queries and 32 keys; eight lanes of one warp share a row. Deterministic, without atomics or workspace.
#define TILE 32
#define ROW (D + 1)           // odd, so that rows fall into different banks
#define PER_LANE ((D + 7) / 8)
#define HEADS_OF_GROUP (HEADS / GROUPS)
#define DEVICE __device__ __forceinline__
typedef unsigned int u32;
typedef unsigned short u16;

#if ELEMENT == 0
typedef double element;
typedef double real;
#define INF __longlong_as_double(0x7ff0000000000000LL)
DEVICE real load(const element *p) { return *p; }
DEVICE void store(element *p, real x) { *p = x; }
#else
typedef float real;
#define INF __int_as_float(0x7f800000)
#if ELEMENT == 1
typedef float element;
DEVICE real load(const element *p) { return *p; }
DEVICE void store(element *p, real x) { *p = x; }
#elif ELEMENT == 2
typedef u16 element;
DEVICE real load(const element *p) {
    real r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(*p));
    return r;
}
DEVICE void store(element *p, real x) {
    u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    *p = r;
}
#else
typedef u16 element;
DEVICE real load(const element *p) { return __uint_as_float((u32)*p << 16); }
DEVICE void store(element *p, real x) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(0.0f), "f"(x));
    *p = (u16)r;
}
#endif
#endif
DEVICE real largest(real a, real b) { return a > b ? a : b; }
DEVICE real of_row(real x, bool sum) {
    #pragma unroll
    for (int d = 1; d < 8; d <<= 1) {
        const real y = __shfl_xor_sync(~0u, x, d);
        x = sum ? x + y : largest(x, y);
    }
    return x;
}
DEVICE bool visible(int i, int j) { return i < T && j < S && (!CAUSAL || j <= i + S - T); }
// Number of keys that are visible to the queries below `end`.
DEVICE int seen(int end) {
    if (!CAUSAL) return S;
    const int n = (end < T ? end : T) + S - T;
    return n < 0 ? 0 : n < S ? n : S;
}
// Loads a tile of rows; rows from `valid` on are zeros.
DEVICE void load_tile(real *to, const element *from, long long row, long long column, int valid) {
    for (int i = threadIdx.x; i < TILE * D; i += 256) {
        const int r = i / D, c = i % D;
        to[r * ROW + c] = r < valid ? load(from + r * row + c * column) : (real)0;
    }
}
DEVICE real dot(const real *a, const real *b) {
    real sum = 0;
    #pragma unroll 8
    for (int i = 0; i < D; i++) sum += a[i] * b[i];
    return sum;
}

#if PART == 0
extern "C" __global__ void __launch_bounds__(256)
attention_plain_forward(const element *__restrict__ q, const element *__restrict__ k, const element *__restrict__ v,
                        element *__restrict__ o, real *__restrict__ lse) {
    extern __shared__ __align__(16) real shared[];
    real *sq = shared, *sk = sq + TILE * ROW, *sv = sk + TILE * ROW, *sp = sv + TILE * ROW;
    const int tiles = (T + TILE - 1) / TILE, q0 = (int)(blockIdx.x % tiles) * TILE;
    const int b = blockIdx.x / tiles / HEADS, h = blockIdx.x / tiles % HEADS, g = h / HEADS_OF_GROUP;
    const int row = threadIdx.x / 8, lane = threadIdx.x % 8, keys = seen(q0 + TILE);
    load_tile(sq, q + b * Q_B + h * Q_H + q0 * Q_T, Q_T, Q_D, T - q0);
    real m = -INF, l = 0, acc[PER_LANE] = {};
    for (int j0 = 0; j0 < keys; j0 += TILE) {
        __syncthreads();
        load_tile(sk, k + b * K_B + g * K_H + j0 * K_T, K_T, K_D, S - j0);
        load_tile(sv, v + b * V_B + g * V_H + j0 * V_T, V_T, V_D, S - j0);
        __syncthreads();
        real s[TILE / 8], most = m;
        #pragma unroll
        for (int c = 0; c < TILE / 8; c++) {
            const int j = lane + 8 * c;
            s[c] = visible(q0 + row, j0 + j) ? dot(sq + row * ROW, sk + j * ROW) * (real)SCALE : -INF;
            most = largest(most, s[c]);
        }
        most = of_row(most, false);
        const real base = most == -INF ? 0 : most, factor = exp(m - base);
        real sum = 0;
        #pragma unroll
        for (int c = 0; c < TILE / 8; c++) {
            const real p = exp(s[c] - base);
            sp[row * (TILE + 1) + lane + 8 * c] = p;
            sum += p;
        }
        l = l * factor + of_row(sum, true);
        m = most;
        __syncwarp();
        #pragma unroll
        for (int e = 0; e < PER_LANE; e++) {
            if (lane + 8 * e >= D) break;
            real x = acc[e] * factor;
            for (int j = 0; j < TILE; j++) x += sp[row * (TILE + 1) + j] * sv[j * ROW + lane + 8 * e];
            acc[e] = x;
        }
    }
    const int i = q0 + row;
    if (i >= T) return;
    #pragma unroll
    for (int e = 0; e < PER_LANE; e++)
        if (lane + 8 * e < D) store(o + b * O_B + h * O_H + i * O_T + (lane + 8 * e) * O_D, l > 0 ? acc[e] / l : (real)0);
    #if KEEP
    if (lane == 0) lse[b * L_B + h * L_H + i * L_T] = l > 0 ? m + log(l) : -INF;
    #endif
}

#elif PART == 1
extern "C" __global__ void __launch_bounds__(256)
attention_plain_queries(const element *__restrict__ q, const element *__restrict__ k, const element *__restrict__ v, const element *__restrict__ o,
                        const real *__restrict__ lse, const element *__restrict__ grad, element *__restrict__ dq) {
    extern __shared__ __align__(16) real shared[];
    real *sq = shared, *sg = sq + TILE * ROW, *sk = sg + TILE * ROW, *sv = sk + TILE * ROW, *sp = sv + TILE * ROW;
    const int tiles = (T + TILE - 1) / TILE, q0 = (int)(blockIdx.x % tiles) * TILE;
    const int b = blockIdx.x / tiles / HEADS, h = blockIdx.x / tiles % HEADS, g = h / HEADS_OF_GROUP;
    const int row = threadIdx.x / 8, lane = threadIdx.x % 8, keys = seen(q0 + TILE), i = q0 + row;
    load_tile(sq, q + b * Q_B + h * Q_H + q0 * Q_T, Q_T, Q_D, T - q0);
    load_tile(sg, grad + b * G_B + h * G_H + q0 * G_T, G_T, G_D, T - q0);
    __syncthreads();
    real delta = 0;
    if (i < T) for (int d = lane; d < D; d += 8) delta += load(o + b * O_B + h * O_H + i * O_T + d * O_D) * sg[row * ROW + d];
    delta = of_row(delta, true);
    const real l = i < T ? lse[b * L_B + h * L_H + i * L_T] : INF;
    real acc[PER_LANE] = {};
    for (int j0 = 0; j0 < keys; j0 += TILE) {
        __syncthreads();
        load_tile(sk, k + b * K_B + g * K_H + j0 * K_T, K_T, K_D, S - j0);
        load_tile(sv, v + b * V_B + g * V_H + j0 * V_T, V_T, V_D, S - j0);
        __syncthreads();
        #pragma unroll
        for (int c = 0; c < TILE / 8; c++) {
            const int j = lane + 8 * c;
            real slope = 0;
            if (visible(i, j0 + j)) {
                const real p = exp(dot(sq + row * ROW, sk + j * ROW) * (real)SCALE - l);
                slope = p * (dot(sg + row * ROW, sv + j * ROW) - delta) * (real)SCALE;
            }
            sp[row * (TILE + 1) + j] = slope;
        }
        __syncwarp();
        #pragma unroll
        for (int e = 0; e < PER_LANE; e++) {
            if (lane + 8 * e >= D) break;
            real x = acc[e];
            for (int j = 0; j < TILE; j++) x += sp[row * (TILE + 1) + j] * sk[j * ROW + lane + 8 * e];
            acc[e] = x;
        }
    }
    if (i >= T) return;
    #pragma unroll
    for (int e = 0; e < PER_LANE; e++)
        if (lane + 8 * e < D) store(dq + b * DQ_B + h * DQ_H + i * DQ_T + (lane + 8 * e) * DQ_D, acc[e]);
}

#else
extern "C" __global__ void __launch_bounds__(256)
attention_plain_keys(const element *__restrict__ q, const element *__restrict__ k, const element *__restrict__ v, const element *__restrict__ o,
                     const real *__restrict__ lse, const element *__restrict__ grad, element *__restrict__ dk, element *__restrict__ dv) {
    extern __shared__ __align__(16) real shared[];
    real *sk = shared, *sv = sk + TILE * ROW, *sq = sv + TILE * ROW, *sg = sq + TILE * ROW;
    real *sp = sg + TILE * ROW, *ss = sp + TILE * (TILE + 1), *sl = ss + TILE * (TILE + 1), *sd = sl + TILE;
    const int tiles = (S + TILE - 1) / TILE, j0 = (int)(blockIdx.x % tiles) * TILE;
    const int b = blockIdx.x / tiles / GROUPS, g = blockIdx.x / tiles % GROUPS;
    const int row = threadIdx.x / 8, lane = threadIdx.x % 8, j = j0 + row;
    const int first = CAUSAL && j0 > S - T ? (j0 - (S - T)) / TILE * TILE : 0;
    load_tile(sk, k + b * K_B + g * K_H + j0 * K_T, K_T, K_D, S - j0);
    load_tile(sv, v + b * V_B + g * V_H + j0 * V_T, V_T, V_D, S - j0);
    real ak[PER_LANE] = {}, av[PER_LANE] = {};
    for (int h = g * HEADS_OF_GROUP; h < (g + 1) * HEADS_OF_GROUP; h++) {
        for (int q0 = first; q0 < T; q0 += TILE) {
            __syncthreads();
            load_tile(sq, q + b * Q_B + h * Q_H + q0 * Q_T, Q_T, Q_D, T - q0);
            load_tile(sg, grad + b * G_B + h * G_H + q0 * G_T, G_T, G_D, T - q0);
            __syncthreads();
            real delta = 0;
            if (q0 + row < T) for (int d = lane; d < D; d += 8) delta += load(o + b * O_B + h * O_H + (q0 + row) * O_T + d * O_D) * sg[row * ROW + d];
            delta = of_row(delta, true);
            if (lane == 0) {
                sd[row] = delta;
                sl[row] = q0 + row < T ? lse[b * L_B + h * L_H + (q0 + row) * L_T] : INF;
            }
            __syncthreads();
            #pragma unroll
            for (int c = 0; c < TILE / 8; c++) {
                const int i = lane + 8 * c;
                real p = 0, slope = 0;
                if (visible(q0 + i, j)) {
                    p = exp(dot(sk + row * ROW, sq + i * ROW) * (real)SCALE - sl[i]);
                    slope = p * (dot(sv + row * ROW, sg + i * ROW) - sd[i]) * (real)SCALE;
                }
                sp[row * (TILE + 1) + i] = p;
                ss[row * (TILE + 1) + i] = slope;
            }
            __syncwarp();
            #pragma unroll
            for (int e = 0; e < PER_LANE; e++) {
                if (lane + 8 * e >= D) break;
                real x = av[e], y = ak[e];
                for (int i = 0; i < TILE; i++) {
                    x += sp[row * (TILE + 1) + i] * sg[i * ROW + lane + 8 * e];
                    y += ss[row * (TILE + 1) + i] * sq[i * ROW + lane + 8 * e];
                }
                av[e] = x;
                ak[e] = y;
            }
        }
    }
    if (j >= S) return;
    #pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        if (lane + 8 * e >= D) break;
        store(dk + b * DK_B + g * DK_H + j * DK_T + (lane + 8 * e) * DK_D, ak[e]);
        store(dv + b * DV_B + g * DV_H + j * DV_T + (lane + 8 * e) * DV_D, av[e]);
    }
}
#endif
