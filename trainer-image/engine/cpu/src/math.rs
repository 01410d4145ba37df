//! Elementary functions that compilers vectorise: no branches, no tables, no calls.
//!
//! Largest error over all of float32 (measured by the tests against float64, in units in the last place, with fused
//! multiply-add; one or so more without): exp, sigmoid 2; log 2; tanh 3; erf 2; sin and cos 2 (for |x| up to 1e5,
//! beyond it 1e-7 absolute up to 1e9).

/// `a * b + c`, in the way the processor does best.
pub(super) trait Arithmetic: Copy {
    /// `a * b + c`
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// One rounding.
#[derive(Clone, Copy)]
pub(super) struct OneRounding;

/// Two roundings: for processors without fused multiply-add, where it would be a slow call.
#[derive(Clone, Copy)]
pub(super) struct TwoRoundings;

impl Arithmetic for OneRounding {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Arithmetic for TwoRoundings {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

#[inline(always)]
fn polynomial<A: Arithmetic>(x: f32, coefficients: &[f32]) -> f32 {
    let mut sum = coefficients[0];
    for &c in &coefficients[1..] {
        sum = A::mul_add(sum, x, c);
    }
    sum
}

/// `2^n` for an integer-valued n in -126 ..= 127.
#[inline(always)]
fn power_of_two(n: f32) -> f32 {
    // The sum's low bits are the biased exponent: no conversion to an integer is needed.
    f32::from_bits((n + (127.0 + 12_582_912.0)).to_bits() << 23)
}

/// Rounds to an integer, for |x| below 2^22.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// `e^x`
#[inline(always)]
pub(super) fn exp<A: Arithmetic>(x: f32) -> f32 {
    let bounded = x.clamp(-105.0, 89.0);
    let n = nearest(bounded * std::f32::consts::LOG2_E);
    let r = A::mul_add(n, -0.693_359_4, bounded);
    let r = A::mul_add(n, 2.121_944_4e-4, r);
    let p = polynomial::<A>(r, &[1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5]);
    let value = A::mul_add(p * r, r, r) + 1.0;
    // In two steps: subnormal results and 2^128 have no single power of two.
    let half = nearest(n * 0.5);
    let value = value * power_of_two(half) * power_of_two(n - half);
    if x.is_nan() { x } else { value }
}

/// Natural logarithm (Cephes).
#[inline(always)]
pub(super) fn log<A: Arithmetic>(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let scaled = if small { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits();
    let exponent = ((bits >> 23) as i32 - 126) as f32 - if small { 23.0 } else { 0.0 };
    let fraction = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    let low = fraction < std::f32::consts::FRAC_1_SQRT_2;
    let m = if low { fraction + fraction - 1.0 } else { fraction - 1.0 };
    let e = if low { exponent - 1.0 } else { exponent };
    let z = m * m;
    let p = polynomial::<A>(
        m,
        &[
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let y = A::mul_add(e, -2.121_944_4e-4, p * m * z);
    let y = A::mul_add(-0.5, z, y);
    let value = A::mul_add(e, 0.693_359_4, m + y);
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    let value = if x == f32::INFINITY { x } else { value };
    if x < 0.0 || x.is_nan() { f32::NAN } else { value }
}

/// Gauss error function.
#[inline(always)]
pub(super) fn erf<A: Arithmetic>(x: f32) -> f32 {
    let (t, s) = (x.abs().min(4.0), x * x);
    let near = polynomial::<A>(
        s.min(1.0),
        &[-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_2e-1, -3.761_253_4e-1, 1.283_791_7e-1],
    );
    let near = A::mul_add(near, x, x);
    let far = polynomial::<A>(
        t,
        &[
            -1.728_534_7e-5,
            3.831_971_3e-4,
            -3.883_964_4e-3,
            2.425_462_2e-2,
            -1.067_778_8e-1,
            -6.348_467e-1,
            -1.287_175_1e-1,
        ],
    );
    let far = A::mul_add(far, t, -t);
    let far = (1.0 - exp::<A>(far)).copysign(x);
    let value = if t > 0.927_734_4 { far } else { near };
    if x.is_nan() { x } else { value }
}

/// Hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh<A: Arithmetic>(x: f32) -> f32 {
    let t = x.abs().min(10.0);
    let z = t * t;
    let near = polynomial::<A>(z, &[-5.704_988_7e-3, 2.063_909e-2, -5.373_971_4e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let near = A::mul_add(near * z, t, t);
    let far = 1.0 - 2.0 / (exp::<A>(t + t) + 1.0);
    let value = if t < 0.625 { near } else { far }.copysign(x);
    if x.is_nan() { x } else { value }
}

/// Logistic function.
#[inline(always)]
pub(super) fn sigmoid<A: Arithmetic>(x: f32) -> f32 {
    // From e^-|x|, which cannot overflow; small values keep their precision.
    let e = exp::<A>(-x.abs());
    let value = if x >= 0.0 { 1.0 } else { e } / (1.0 + e);
    if x.is_nan() { x } else { value }
}

/// Sine (`shift` 0) or cosine (`shift` 1); the argument is reduced in float64.
#[inline(always)]
pub(super) fn sine<A: Arithmetic>(x: f32, shift: i64) -> f32 {
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let wide = f64::from(x);
    let n = (wide * std::f64::consts::FRAC_2_PI + SHIFT) - SHIFT;
    let r = (wide - n * std::f64::consts::FRAC_PI_2 - n * 6.123_233_995_736_766e-17) as f32;
    let quadrant = ((n + SHIFT).to_bits() as i64).wrapping_add(shift);
    let z = r * r;
    let s = polynomial::<A>(z, &[-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
    let s = A::mul_add(s * z, r, r);
    let c = polynomial::<A>(z, &[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let c = A::mul_add(c * z, z, A::mul_add(-0.5, z, 1.0));
    let value = if quadrant & 1 == 0 { s } else { c };
    if quadrant & 2 == 0 { value } else { -value }
}

/// float32 rounded to bfloat16 (to nearest, ties to even), as float32.
#[inline(always)]
pub(super) fn round_bf16(x: f32) -> f32 {
    f32::from_bits(u32::from(bits_bf16(x)) << 16)
}

/// float32 rounded to bfloat16, as bits.
#[inline(always)]
pub(super) fn bits_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest error of `f` against `exact` over a sweep of bit patterns within `range`, in ulp of the exact result.
    fn worst(range: std::ops::Range<f32>, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for step in 0..(1u64 << 32) / 1021 {
            let x = f32::from_bits((step * 1021) as u32);
            if !range.contains(&x) {
                continue;
            }
            let (got, want) = (f64::from(f(x)), exact(f64::from(x)));
            if want.abs() > f64::from(f32::MAX) {
                assert!(got.is_infinite(), "{x}: {got} should overflow");
                continue;
            }
            let ulp = (want.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() - 23.0).exp2();
            let error = (got - want).abs() / ulp;
            if error.is_nan() || error > worst.0 {
                worst = (error, x);
            }
        }
        worst
    }

    fn bound(name: &str, limit: f64, found: (f64, f32)) {
        assert!(found.0 <= limit, "{name}: {} ulp at {}", found.0, found.1);
    }

    fn all<A: Arithmetic>(slack: f64) {
        bound("exp", 2.0 + slack, worst(-200.0..200.0, exp::<A>, f64::exp));
        bound("log", 2.0 + slack, worst(0.0..f32::MAX, log::<A>, f64::ln));
        bound("erf", 2.0 + slack, worst(-20.0..20.0, erf::<A>, libm::erf));
        bound("tanh", 3.0 + slack, worst(-50.0..50.0, tanh::<A>, f64::tanh));
        bound("sigmoid", 3.0 + slack, worst(-80.0..80.0, sigmoid::<A>, |x| 1.0 / (1.0 + (-x).exp())));
        bound("sin", 2.0 + slack, worst(-1e4..1e4, |x| sine::<A>(x, 0), f64::sin));
        bound("cos", 2.0 + slack, worst(-1e4..1e4, |x| sine::<A>(x, 1), f64::cos));
    }

    #[test]
    fn errors_are_within_the_documented_bounds() {
        all::<OneRounding>(0.0);
        all::<TwoRoundings>(1.5);
    }

    #[test]
    fn special_values() {
        type A = OneRounding;
        assert_eq!(exp::<A>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<A>(f32::INFINITY), f32::INFINITY);
        assert_eq!(log::<A>(0.0), f32::NEG_INFINITY);
        assert_eq!(log::<A>(f32::INFINITY), f32::INFINITY);
        assert!(log::<A>(-1.0).is_nan());
        for f in [exp::<A>, log::<A>, erf::<A>, tanh::<A>, sigmoid::<A>] {
            assert!(f(f32::NAN).is_nan());
        }
        assert_eq!((erf::<A>(f32::INFINITY), erf::<A>(f32::NEG_INFINITY)), (1.0, -1.0));
        assert_eq!((tanh::<A>(f32::INFINITY), tanh::<A>(-100.0)), (1.0, -1.0));
        assert_eq!((sigmoid::<A>(f32::INFINITY), sigmoid::<A>(f32::NEG_INFINITY)), (1.0, 0.0));
        for x in [0.0, 1.0, -3.140_625, 65_536.5, 1e-40, f32::MAX, f32::INFINITY] {
            assert_eq!(round_bf16(x), half::bf16::from_f32(x).to_f32());
        }
        assert!(round_bf16(f32::NAN).is_nan());
    }
}
