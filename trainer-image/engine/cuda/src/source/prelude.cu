// Shared by all generated kernels. No headers: NVRTC has the vector types and intrinsics built in.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define DEV static __device__ __forceinline__
#define UNROLL _Pragma("unroll")

// Element types in memory. Values are computed as float (F32, BF16, F16, E4M3, E5M2), double, u32 or bool.
struct F64 { static constexpr int bytes = 8; typedef double value; };
struct F32 { static constexpr int bytes = 4; typedef float value; };
struct BF16 { static constexpr int bytes = 2; typedef float value; };
struct F16 { static constexpr int bytes = 2; typedef float value; };
struct E4M3 { static constexpr int bytes = 1; typedef float value; };
struct E5M2 { static constexpr int bytes = 1; typedef float value; };
struct U32 { static constexpr int bytes = 4; typedef u32 value; };
struct Bool { static constexpr int bytes = 1; typedef bool value; };
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

// B bytes in registers, a power of two.
template <int B> struct Raw { u32 w[(B + 3) / 4]; };

// For data that is read once: bypasses the first-level cache. The kernel must not write it.
template <int B> DEV Raw<B> load_once(const void* p) {
    Raw<B> r;
    if constexpr (B >= 16) {
        UNROLL for (int i = 0; i < B / 16; i++)
            asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(r.w[4 * i]), "=r"(r.w[4 * i + 1]), "=r"(r.w[4 * i + 2]), "=r"(r.w[4 * i + 3]) : "l"((const uint4*)p + i));
    } else if constexpr (B == 8) {
        asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(r.w[0]), "=r"(r.w[1]) : "l"(p));
    } else if constexpr (B == 4) {
        asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(r.w[0]) : "l"(p));
    } else if constexpr (B == 2) {
        r.w[0] = __ldg((const u16*)p);
    } else {
        r.w[0] = __ldg((const u8*)p);
    }
    return r;
}

// For data that many threads read: through the first-level cache. The kernel must not write it.
template <int B> DEV Raw<B> load_shared(const void* p) {
    Raw<B> r;
    if constexpr (B >= 16) {
        UNROLL for (int i = 0; i < B / 16; i++) {
            uint4 v = __ldg((const uint4*)p + i);
            r.w[4 * i] = v.x; r.w[4 * i + 1] = v.y; r.w[4 * i + 2] = v.z; r.w[4 * i + 3] = v.w;
        }
    } else if constexpr (B == 8) {
        uint2 v = __ldg((const uint2*)p);
        r.w[0] = v.x; r.w[1] = v.y;
    } else if constexpr (B == 4) {
        r.w[0] = __ldg((const u32*)p);
    } else if constexpr (B == 2) {
        r.w[0] = __ldg((const u16*)p);
    } else {
        r.w[0] = __ldg((const u8*)p);
    }
    return r;
}

// For data that the kernel also writes.
template <int B> DEV Raw<B> load_written(const void* p) {
    Raw<B> r;
    if constexpr (B >= 16) {
        UNROLL for (int i = 0; i < B / 16; i++) {
            uint4 v = ((const uint4*)p)[i];
            r.w[4 * i] = v.x; r.w[4 * i + 1] = v.y; r.w[4 * i + 2] = v.z; r.w[4 * i + 3] = v.w;
        }
    } else if constexpr (B == 8) {
        uint2 v = *(const uint2*)p;
        r.w[0] = v.x; r.w[1] = v.y;
    } else if constexpr (B == 4) {
        r.w[0] = *(const u32*)p;
    } else if constexpr (B == 2) {
        r.w[0] = *(const u16*)p;
    } else {
        r.w[0] = *(const u8*)p;
    }
    return r;
}

template <int B> DEV void store(void* p, const Raw<B>& r) {
    if constexpr (B >= 16) {
        UNROLL for (int i = 0; i < B / 16; i++)
            ((uint4*)p)[i] = make_uint4(r.w[4 * i], r.w[4 * i + 1], r.w[4 * i + 2], r.w[4 * i + 3]);
    } else if constexpr (B == 8) {
        *(uint2*)p = make_uint2(r.w[0], r.w[1]);
    } else if constexpr (B == 4) {
        *(u32*)p = r.w[0];
    } else if constexpr (B == 2) {
        *(u16*)p = (u16)r.w[0];
    } else {
        *(u8*)p = (u8)r.w[0];
    }
}

DEV float widen_bf16(u32 bits) { return __uint_as_float(bits << 16); }
DEV float widen_f16(u32 bits) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((u16)bits)); return x; }
// Converts in pairs, even a single value: single conversions run on the special function unit, which is slow and busy.
DEV u32 pair_bf16(float low, float high) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
DEV u32 pair_f16(float low, float high) {
    u32 r;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#else
    asm("{ .reg .f16 h, l; cvt.rn.f16.f32 h, %1; cvt.rn.f16.f32 l, %2; mov.b32 %0, {l, h}; }" : "=r"(r) : "f"(high), "f"(low));
#endif
    return r;
}

// 8-bit floats; what is too large becomes the largest number. Older cards have no kernels with them.
#if __CUDA_ARCH__ >= 890
DEV u32 pair_e4m3(float low, float high) { u16 r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low)); return r; }
DEV u32 pair_e5m2(float low, float high) { u16 r; asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low)); return r; }
DEV float widen_e4m3(u32 code) { u32 r; asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((u16)code)); return widen_f16(r & 0xffffu); }
#else
DEV u32 pair_e4m3(float, float) { __trap(); return 0; }
DEV u32 pair_e5m2(float, float) { __trap(); return 0; }
DEV float widen_e4m3(u32) { __trap(); return 0.0f; }
#endif
DEV float widen_e5m2(u32 code) { return widen_f16(code << 8); }

// Element j of a vector; j is a constant once loops are unrolled.
template <class T, int B> DEV typename T::value get(const Raw<B>& r, int j) {
    if constexpr (same<T, F64>) return __hiloint2double((int)r.w[2 * j + 1], (int)r.w[2 * j]);
    else if constexpr (same<T, F32>) return __uint_as_float(r.w[j]);
    else if constexpr (same<T, U32>) return r.w[j];
    else if constexpr (same<T, Bool>) return ((r.w[j / 4] >> (8 * (j % 4))) & 255u) != 0;
    else if constexpr (same<T, E4M3>) return widen_e4m3((r.w[j / 4] >> (8 * (j % 4))) & 255u);
    else if constexpr (same<T, E5M2>) return widen_e5m2((r.w[j / 4] >> (8 * (j % 4))) & 255u);
    else if constexpr (same<T, BF16>) return j % 2 ? __uint_as_float(r.w[j / 2] & 0xffff0000u) : widen_bf16(r.w[j / 2]);
    else return widen_f16(r.w[j / 2] >> (16 * (j % 2)));
}

// A vector of N values.
template <class T, int N> DEV Raw<T::bytes * N> pack(const typename T::value (&v)[N]) {
    Raw<T::bytes * N> r;
    if constexpr (same<T, F64>) {
        UNROLL for (int j = 0; j < N; j++) { r.w[2 * j] = (u32)__double2loint(v[j]); r.w[2 * j + 1] = (u32)__double2hiint(v[j]); }
    } else if constexpr (same<T, F32>) {
        UNROLL for (int j = 0; j < N; j++) r.w[j] = __float_as_uint(v[j]);
    } else if constexpr (same<T, U32>) {
        UNROLL for (int j = 0; j < N; j++) r.w[j] = v[j];
    } else if constexpr (same<T, Bool>) {
        UNROLL for (int j = 0; j < (N + 3) / 4; j++) r.w[j] = 0;
        UNROLL for (int j = 0; j < N; j++) r.w[j / 4] |= (v[j] ? 1u : 0u) << (8 * (j % 4));
    } else if constexpr (same<T, E4M3> || same<T, E5M2>) {
        UNROLL for (int j = 0; j < (N + 3) / 4; j++) r.w[j] = 0;
        UNROLL for (int j = 0; j < N; j += 2) {
            float next = j + 1 < N ? v[(j + 1) % N] : 0.0f;
            r.w[j / 4] |= (same<T, E4M3> ? pair_e4m3(v[j], next) : pair_e5m2(v[j], next)) << (8 * (j % 4));
        }
    } else if constexpr (N == 1) {
        r.w[0] = same<T, BF16> ? pair_bf16(v[0], 0.0f) : pair_f16(v[0], 0.0f);
    } else {
        UNROLL for (int j = 0; j < N; j += 2) r.w[j / 2] = same<T, BF16> ? pair_bf16(v[j], v[j + 1]) : pair_f16(v[j], v[j + 1]);
    }
    return r;
}

DEV float round_bf16(float x) { return __uint_as_float(pair_bf16(0.0f, x)); }
DEV float round_f16(float x) { return widen_f16(pair_f16(x, 0.0f)); }
DEV float round_e4m3(float x) { return widen_e4m3(pair_e4m3(x, 0.0f) & 255u); }
DEV float round_e5m2(float x) { return widen_e5m2(pair_e5m2(x, 0.0f) & 255u); }
// Rounds to odd, so that a second rounding to 16 bits gives the same result as a single one.
DEV float narrow_odd(double x) {
    float y = __double2float_rz(x);
    return (double)y == x || (__float_as_uint(y) & 0x7f800000u) == 0x7f800000u ? y : __uint_as_float(__float_as_uint(y) | 1u);
}

// Elementary functions. FAST: kernels that read or write 16-bit values; absolute errors below 2e-7.
#if FAST
DEV float exp_(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f)); return y; }
DEV float recip_(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEV float div_(float a, float b) { return __fdividef(a, b); }
DEV float sqrt_(float x) { float y; asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// Abramowitz and Stegun 7.1.26: shares e^(-x^2) with the derivative.
DEV float erf_(float x) {
    float a = fabsf(x), t = recip_(fmaf(0.3275911f, a, 1.0f));
    float p = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f), t, 0.254829592f) * t;
    return copysignf(1.0f - p * exp_(-(x * x)), x);
}
DEV float tanh_(float x) { float e = exp_(2.0f * fabsf(x)); return copysignf(1.0f - 2.0f * recip_(e + 1.0f), x); }
DEV float sigmoid_(float x) { return recip_(1.0f + exp_(-x)); }
#else
DEV float exp_(float x) { return expf(x); }
DEV float recip_(float x) { return 1.0f / x; }
DEV float div_(float a, float b) { return a / b; }
DEV float sqrt_(float x) { return sqrtf(x); }
DEV float erf_(float x) { return erff(x); }
DEV float tanh_(float x) { return tanhf(x); }
DEV float sigmoid_(float x) { return 1.0f / (1.0f + expf(-x)); }
#endif
DEV float log_(float x) { return logf(x); }
DEV float rsqrt_(float x) { return rsqrtf(x); }
DEV float sin_(float x) { return sinf(x); }
DEV float cos_(float x) { return cosf(x); }
DEV float abs_(float x) { return fabsf(x); }
DEV float floor_(float x) { return floorf(x); }
DEV float sign_(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
DEV bool finite_(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
DEV float max_(float a, float b) { return fmaxf(a, b); }
DEV float min_(float a, float b) { return fminf(a, b); }
DEV double exp_(double x) { return exp(x); }
DEV double recip_(double x) { return 1.0 / x; }
DEV double div_(double a, double b) { return a / b; }
DEV double sqrt_(double x) { return sqrt(x); }
DEV double erf_(double x) { return erf(x); }
DEV double tanh_(double x) { return tanh(x); }
DEV double sigmoid_(double x) { return 1.0 / (1.0 + exp(-x)); }
DEV double log_(double x) { return log(x); }
DEV double rsqrt_(double x) { return 1.0 / sqrt(x); }
DEV double sin_(double x) { return sin(x); }
DEV double cos_(double x) { return cos(x); }
DEV double abs_(double x) { return fabs(x); }
DEV double floor_(double x) { return floor(x); }
DEV double sign_(double x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0; }
DEV bool finite_(double x) { return (__double2hiint(x) & 0x7ff00000) != 0x7ff00000; }
DEV double max_(double a, double b) { return fmax(a, b); }
DEV double min_(double a, double b) { return fmin(a, b); }
DEV u32 div_(u32 a, u32 b) { return a / b; }
DEV u32 max_(u32 a, u32 b) { return a > b ? a : b; }
DEV u32 min_(u32 a, u32 b) { return a < b ? a : b; }
DEV bool max_(bool a, bool b) { return a || b; }
DEV bool min_(bool a, bool b) { return a && b; }

// Counter-based random numbers: SplitMix64, as on every executor.
#define GOLDEN 0x9E3779B97F4A7C15ull
DEV u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
DEV u64 draw_stream(u64 key, u32 counter) { return mix(key ^ mix((u64)counter + GOLDEN)); }
// Random number of element `first + j`, where `first` is even or `j` zero; neighbours share 64 bits, which are mixed once where j is a constant.
DEV float uniform(u64 stream, u64 first, u32 j) {
    u64 pair = mix(stream + (first / 2 + j / 2 + 1ull) * GOLDEN);
    u32 half = (first + j) % 2 ? (u32)(pair >> 32) : (u32)pair;
    return (float)(half >> 8) * (1.0f / 16777216.0f);
}

// Reductions.
struct Sum {
    template <class T> DEV T identity() { return T(0); }
    template <class T> DEV T join(T a, T b) { return a + b; }
};
struct Max {
    template <class T> DEV T identity() {
        if constexpr (same<T, float>) return __uint_as_float(0xff800000u);
        else if constexpr (same<T, double>) return __hiloint2double((int)0xfff00000, 0);
        else return T(0);
    }
    template <class T> DEV T join(T a, T b) { return max_(a, b); }
};

// Over the G neighbouring lanes (a power of two up to 32) that share a row.
template <class Op, int G, class T> DEV T over_lanes(T x) {
    UNROLL for (int o = G / 2; o; o /= 2) x = Op::join(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

// Over all threads of a block of W warps; every thread gets the result.
template <class Op, int W, class T> DEV T over_block(T x, T* shared) {
    x = over_lanes<Op, 32>(x);
    if constexpr (W == 1) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    T all = shared[0];
    UNROLL for (int w = 1; w < W; w++) all = Op::join(all, shared[w]);
    return all;
}

// Column of `width` over `count` partial results, for a block of 32 x 32 threads: valid in its first 32 threads, one column each.
template <class Op, class T> DEV T over_partials(const T* part, u32 count, u32 width, u32 first) {
    __shared__ T table[32][33];
    u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    T sum = Op::template identity<T>();
    if (first + x < width)
        for (u32 r = y; r < count; r += 32) sum = Op::join(sum, part[(u64)r * width + first + x]);
    __syncthreads();
    table[y][x] = sum;
    __syncthreads();
    sum = over_lanes<Op, 32>(table[x][y]);
    __syncthreads();
    if (x == 0) table[0][y] = sum;
    __syncthreads();
    return table[0][x];
}
