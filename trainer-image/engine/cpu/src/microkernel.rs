//! The innermost loops of matrix products: a tile of C in registers.

use super::lanes::Features;

/// Computes a tile `c (+)= a b` from packed panels: `a` holds `k` columns of `rows`, `b` holds `k` rows of `cols`; rows
/// of `c` are `stride` apart.
pub(super) type TileFn<E> = unsafe fn(k: usize, a: *const E, b: *const E, c: *mut E, stride: usize, add: bool);

/// Size of a tile, and how it is computed.
#[derive(Clone, Copy)]
pub(super) struct Tile<E> {
    pub rows: usize,
    pub cols: usize,
    pub run: TileFn<E>,
}

/// Elements that matrix products are computed in.
pub(super) trait Element: Copy + Default + PartialEq + std::ops::AddAssign + Send + Sync + 'static {
    /// The tile for a processor.
    fn tile(features: Features) -> Tile<Self>;
}

impl Element for f32 {
    fn tile(features: Features) -> Tile<f32> {
        match features {
            #[cfg(target_arch = "x86_64")]
            Features::Avx512 => Tile { rows: 12, cols: 32, run: x86::tile_avx512 },
            #[cfg(target_arch = "x86_64")]
            Features::Avx2 => Tile { rows: 6, cols: 16, run: x86::tile_avx2 },
            Features::Portable => Tile { rows: 4, cols: 8, run: portable::<f32, 4, 8> },
        }
    }
}

impl Element for f64 {
    fn tile(_features: Features) -> Tile<f64> {
        Tile { rows: 4, cols: 4, run: portable::<f64, 4, 4> }
    }
}

/// # Safety
/// Panels hold `k` columns and rows; `c` holds the tile.
unsafe fn portable<E, const M: usize, const N: usize>(
    k: usize,
    a: *const E,
    b: *const E,
    c: *mut E,
    stride: usize,
    add: bool,
) where
    E: Element + std::ops::Mul<Output = E>,
{
    let mut sums = [[E::default(); N]; M];
    for p in 0..k {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (&*a.add(p * M).cast::<[E; M]>(), &*b.add(p * N).cast::<[E; N]>()) };
        for (sums, &a) in sums.iter_mut().zip(a) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        let c = unsafe { &mut *c.add(row * stride).cast::<[E; N]>() };
        for (c, &sum) in c.iter_mut().zip(sums) {
            if add {
                *c += sum;
            } else {
                *c = sum;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// As [`super::portable`] with a tile of 12 x 32; the processor has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn tile_avx512(k: usize, a: *const f32, b: *const f32, c: *mut f32, stride: usize, add: bool) {
        let mut sums = [[_mm512_setzero_ps(); 2]; 12];
        for p in 0..k {
            // SAFETY: the caller's promise.
            unsafe {
                let (left, right) = (_mm512_loadu_ps(b.add(p * 32)), _mm512_loadu_ps(b.add(p * 32 + 16)));
                let a = a.add(p * 12);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = _mm512_set1_ps(*a.add(row));
                    sums[0] = _mm512_fmadd_ps(a, left, sums[0]);
                    sums[1] = _mm512_fmadd_ps(a, right, sums[1]);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (half, &sum) in sums.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let c = c.add(row * stride + half * 16);
                    let sum = if add { _mm512_add_ps(_mm512_loadu_ps(c), sum) } else { sum };
                    _mm512_storeu_ps(c, sum);
                }
            }
        }
    }

    /// # Safety
    /// As [`super::portable`] with a tile of 6 x 16; the processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn tile_avx2(k: usize, a: *const f32, b: *const f32, c: *mut f32, stride: usize, add: bool) {
        let mut sums = [[_mm256_setzero_ps(); 2]; 6];
        for p in 0..k {
            // SAFETY: the caller's promise.
            unsafe {
                let (left, right) = (_mm256_loadu_ps(b.add(p * 16)), _mm256_loadu_ps(b.add(p * 16 + 8)));
                let a = a.add(p * 6);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = _mm256_set1_ps(*a.add(row));
                    sums[0] = _mm256_fmadd_ps(a, left, sums[0]);
                    sums[1] = _mm256_fmadd_ps(a, right, sums[1]);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (half, &sum) in sums.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let c = c.add(row * stride + half * 8);
                    let sum = if add { _mm256_add_ps(_mm256_loadu_ps(c), sum) } else { sum };
                    _mm256_storeu_ps(c, sum);
                }
            }
        }
    }
}
