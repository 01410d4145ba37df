// Shared by the attention kernels on tensor cores. No headers: NVRTC has the vector types and intrinsics built in.
// The generated head #defines every extent and stride; ELEMENT is the PTX name of the 16-bit type.
typedef unsigned int u32;
typedef unsigned short u16;
#define DEVICE __device__ __forceinline__
#define LOG2E 1.4426950408889634f
#define INF __int_as_float(0x7f800000)

#define VECTORS (D / 8)       // 16-byte vectors in a row of a head
#define STEPS (D / 16)        // steps of a product over the width of a head
#define ROW (D + 8)           // padded row in shared memory: ldmatrix without bank conflicts

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#if HALF
#define ONES 0x3c003c00u
DEVICE u32 pack(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEVICE float low_of(u32 v) {
    float r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(r) : "r"(v));
    return r;
}
DEVICE float high_of(u32 v) {
    float r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(r) : "r"(v));
    return r;
}
#else
#define ONES 0x3f803f80u
DEVICE u32 pack(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEVICE float low_of(u32 v) { return __uint_as_float(v << 16); }
DEVICE float high_of(u32 v) { return __uint_as_float(v & 0xffff0000u); }
#endif
// Sum of the products of eight pairs.
DEVICE float dot8(uint4 a, uint4 b, float sum) {
    sum = fmaf(low_of(a.x), low_of(b.x), sum);
    sum = fmaf(high_of(a.x), high_of(b.x), sum);
    sum = fmaf(low_of(a.y), low_of(b.y), sum);
    sum = fmaf(high_of(a.y), high_of(b.y), sum);
    sum = fmaf(low_of(a.z), low_of(b.z), sum);
    sum = fmaf(high_of(a.z), high_of(b.z), sum);
    sum = fmaf(low_of(a.w), low_of(b.w), sum);
    return fmaf(high_of(a.w), high_of(b.w), sum);
}
// The same of eight 16-bit numbers and eight float32.
DEVICE float dot8(uint4 a, const float *b) {
    const float4 x = *(const float4 *)b, y = *(const float4 *)(b + 4);
    float sum = fmaf(low_of(a.x), x.x, high_of(a.x) * x.y);
    sum = fmaf(low_of(a.y), x.z, fmaf(high_of(a.y), x.w, sum));
    sum = fmaf(low_of(a.z), y.x, fmaf(high_of(a.z), y.y, sum));
    return fmaf(low_of(a.w), y.z, fmaf(high_of(a.w), y.w, sum));
}

// Four 8x8 matrices; `_transposed` transposes each.
DEVICE void matrices(u32 *r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
DEVICE void matrices_transposed(u32 *r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
// c[16][8] += a[16][16] b[16][8]
DEVICE void multiply(float *c, const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Addresses for ldmatrix of a 16x16 block. A kept as [m][k]; B kept as [n][k]; B kept as [k][n] (transposed); A kept as [k][m] (transposed).
#define A_MK(s, ld, m0, k0) shared_address((s) + ((m0) + (lane & 15)) * (ld) + (k0) + (lane >> 4) * 8)
#define B_NK(s, ld, n0, k0) shared_address((s) + ((n0) + (lane >> 4) * 8 + (lane & 7)) * (ld) + (k0) + ((lane >> 3) & 1) * 8)
#define B_KN(s, ld, k0, n0) shared_address((s) + ((k0) + ((lane >> 3) & 1) * 8 + (lane & 7)) * (ld) + (n0) + (lane >> 4) * 8)
#define A_KM(s, ld, k0, m0) shared_address((s) + ((k0) + (lane >> 4) * 8 + (lane & 7)) * (ld) + (m0) + ((lane >> 3) & 1) * 8)

// Copies 16 bytes to shared memory asynchronously; zeros where `there` is false.
DEVICE void copy16(u16 *to, const u16 *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0));
}
DEVICE void copy4(float *to, const float *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0));
}
DEVICE void commit() { asm volatile("cp.async.commit_group;"); }
#define WAIT(groups) asm volatile("cp.async.wait_group %0;" :: "n"(groups))

// Loads `rows` rows of a head from global memory; rows from `valid` on are zeros.
template <int rows> DEVICE void load_rows(u16 *to, const u16 *from, long long stride, int valid) {
    for (int i = threadIdx.x; i < rows * VECTORS; i += 32 * WARPS) {
        const int r = i / VECTORS, c = i % VECTORS;
        const bool there = r < valid;
        copy16(to + r * ROW + 8 * c, from + (there ? r : 0) * stride + 8 * c, there);
    }
}
// 16 rows of a head from one warp's accumulators into shared memory.
DEVICE void put_rows(u16 *to, float (*c)[4], int lane) {
    #pragma unroll
    for (int j = 0; j < D / 8; j++) {
        *(u32 *)(to + (lane >> 2) * ROW + 8 * j + (lane & 3) * 2) = pack(c[j][0], c[j][1]);
        *(u32 *)(to + ((lane >> 2) + 8) * ROW + 8 * j + (lane & 3) * 2) = pack(c[j][2], c[j][3]);
    }
}
// 16 rows from shared to global memory by one warp, of which `valid` are written.
DEVICE void store_rows(u16 *to, const u16 *from, long long stride, int valid, int lane) {
    for (int i = lane; i < 16 * VECTORS; i += 32) {
        const int r = i / VECTORS, c = i % VECTORS;
        if (r < valid) *(uint4 *)(to + r * stride + 8 * c) = *(const uint4 *)(from + r * ROW + 8 * c);
    }
}
// Whether query i sees key j.
DEVICE bool visible(int i, int j) { return i < T && j < S && (!CAUSAL || j <= i + S - T); }

// The rest works on a warp's accumulators: 16 rows, of which a thread holds rows lane / 4 and lane / 4 + 8, two of every eight columns.
// Macros where a function would make NVRTC compute addresses and sums in another order.
// s[16][16 blocks] += a[16][D] b[16 blocks][D]^T, from row `m` of `a` and row `n` of `b`.
#define SCORES(blocks, s, a, m, b, n)                         \
    _Pragma("unroll")                                         \
    for (int x_ = 0; x_ < STEPS; x_++) {                      \
        u32 a_[4];                                            \
        matrices(a_, A_MK(a, ROW, m, 16 * x_));               \
        _Pragma("unroll")                                     \
        for (int n_ = 0; n_ < (blocks); n_++) {               \
            u32 r_[4];                                        \
            matrices(r_, B_NK(b, ROW, n + 16 * n_, 16 * x_)); \
            multiply(s[2 * n_], a_, r_[0], r_[1]);            \
            multiply(s[2 * n_ + 1], a_, r_[2], r_[3]);        \
        }                                                     \
    }
// The same of two pairs at once: s += a b^T, p += e f^T.
#define SCORES_OF_PAIRS(blocks, s, a, b, p, e, f, m, n)       \
    _Pragma("unroll")                                         \
    for (int x_ = 0; x_ < STEPS; x_++) {                      \
        u32 a_[4], e_[4];                                     \
        matrices(a_, A_MK(a, ROW, m, 16 * x_));               \
        matrices(e_, A_MK(e, ROW, m, 16 * x_));               \
        _Pragma("unroll")                                     \
        for (int n_ = 0; n_ < (blocks); n_++) {               \
            u32 r_[4];                                        \
            matrices(r_, B_NK(b, ROW, n + 16 * n_, 16 * x_)); \
            multiply(s[2 * n_], a_, r_[0], r_[1]);            \
            multiply(s[2 * n_ + 1], a_, r_[2], r_[3]);        \
            matrices(r_, B_NK(f, ROW, n + 16 * n_, 16 * x_)); \
            multiply(p[2 * n_], e_, r_[0], r_[1]);            \
            multiply(p[2 * n_ + 1], e_, r_[2], r_[3]);        \
        }                                                     \
    }
// 16 columns as the left operand of a product.
DEVICE void pack_columns(u32 *a, float (*s)[4]) {
    a[0] = pack(s[0][0], s[0][1]);
    a[1] = pack(s[0][2], s[0][3]);
    a[2] = pack(s[1][0], s[1][1]);
    a[3] = pack(s[1][2], s[1][3]);
}
// acc[16][D] += a[16][16] b[16][D], from row `k` of `b`.
#define ACCUMULATE(acc, a, b, k)                           \
    _Pragma("unroll")                                      \
    for (int d_ = 0; d_ < STEPS; d_++) {                   \
        u32 r_[4];                                         \
        matrices_transposed(r_, B_KN(b, ROW, k, 16 * d_)); \
        multiply(acc[2 * d_], a, r_[0], r_[1]);            \
        multiply(acc[2 * d_ + 1], a, r_[2], r_[3]);        \
    }
// The same of two pairs at once: x += a b, y += e f.
#define ACCUMULATE_PAIRS(x, a, b, y, e, f, k)              \
    _Pragma("unroll")                                      \
    for (int d_ = 0; d_ < STEPS; d_++) {                   \
        u32 r_[4];                                         \
        matrices_transposed(r_, B_KN(b, ROW, k, 16 * d_)); \
        multiply(x[2 * d_], a, r_[0], r_[1]);              \
        multiply(x[2 * d_ + 1], a, r_[2], r_[3]);          \
        matrices_transposed(r_, B_KN(f, ROW, k, 16 * d_)); \
        multiply(y[2 * d_], e, r_[0], r_[1]);              \
        multiply(y[2 * d_ + 1], e, r_[2], r_[3]);          \
    }
// The maximum of each row, from the maximum of each thread.
#define LARGEST_OF_ROWS(x, y)                      \
    _Pragma("unroll")                              \
    for (int d_ = 1; d_ < 4; d_ <<= 1) {           \
        x = fmaxf(x, __shfl_xor_sync(~0u, x, d_)); \
        y = fmaxf(y, __shfl_xor_sync(~0u, y, d_)); \
    }
// The sum of each row, from the partial sum of each thread.
#define SUMS_OF_ROWS(x, y)                \
    _Pragma("unroll")                     \
    for (int d_ = 1; d_ < 4; d_ <<= 1) {  \
        x += __shfl_xor_sync(~0u, x, d_); \
        y += __shfl_xor_sync(~0u, y, d_); \
    }
// Scores to weights, exp2((s - m) c) with the maximum m of each row; adds them to each thread's partial sums.
#define EXPONENTIALS(blocks, s, m0, m1, c, l0, l1) \
    _Pragma("unroll")                              \
    for (int n_ = 0; n_ < (blocks); n_++) {        \
        s[n_][0] = exp2_fast((s[n_][0] - m0) * c); \
        s[n_][1] = exp2_fast((s[n_][1] - m0) * c); \
        s[n_][2] = exp2_fast((s[n_][2] - m1) * c); \
        s[n_][3] = exp2_fast((s[n_][3] - m1) * c); \
        l0 += s[n_][0] + s[n_][1];                 \
        l1 += s[n_][2] + s[n_][3];                 \
    }
DEVICE void scale_rows(float (*acc)[4], float f0, float f1) {
    #pragma unroll
    for (int d = 0; d < D / 8; d++) {
        acc[d][0] *= f0;
        acc[d][1] *= f0;
        acc[d][2] *= f1;
        acc[d][3] *= f1;
    }
}
// Scores to weights, given the negative log2 of each row's sum; and gradients of weights to gradients of scores.
DEVICE void weights(float *s, float c, float l0, float l1, float l2, float l3) {
    s[0] = exp2_fast(fmaf(s[0], c, l0));
    s[1] = exp2_fast(fmaf(s[1], c, l1));
    s[2] = exp2_fast(fmaf(s[2], c, l2));
    s[3] = exp2_fast(fmaf(s[3], c, l3));
}
DEVICE void slopes(float *p, const float *s, float d0, float d1, float d2, float d3) {
    p[0] = s[0] * (p[0] - d0) * SCALE;
    p[1] = s[1] * (p[1] - d1) * SCALE;
    p[2] = s[2] * (p[2] - d2) * SCALE;
    p[3] = s[3] * (p[3] - d3) * SCALE;
}
