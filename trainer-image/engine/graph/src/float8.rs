//! 8-bit floats of the Open Compute Project's format "OFP8": storage formats of the operands of scaled products.
//!
//! | format | exponent, significand | largest | smallest normal | smallest | infinities |
//! |---|---|---|---|---|---|
//! | [`E4M3`] | 4, 3 bits | 448 | 2^-6 | 2^-9 | none |
//! | [`E5M2`] | 5, 2 bits | 57,344 | 2^-14 | 2^-16 | yes, never the result of a conversion |
//!
//! Conversions round to nearest, ties to even, and saturate: what is too large, infinities included, becomes the
//! largest number. NaN stays NaN. These are the conversions of NVIDIA's instruction `cvt.rn.satfinite`, bit for bit but
//! for the sign of a NaN.

/// Both formats' code for NaN.
const NAN: u8 = 0x7f;

/// 4 bits of exponent (bias 7), 3 of significand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct E4M3(pub u8);

/// 5 bits of exponent (bias 15), 2 of significand: float16 without its lower byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct E5M2(pub u8);

impl E4M3 {
    /// The largest number.
    pub const MAX: f32 = 448.0;

    /// The nearest number.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        Self(encode::<3, 7, 0x7e>(x))
    }

    /// The number, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        if self.0 & 0x7f == NAN {
            return f32::NAN;
        }
        // The exponent is that of float32 but for its bias; below the normal numbers both count in the smallest steps.
        let sign = u32::from(self.0 & 0x80) << 24;
        let magnitude = f32::from_bits(u32::from(self.0 & 0x7f) << 20) * power_of_two(127 - 7);
        f32::from_bits(sign | magnitude.to_bits())
    }
}

impl E5M2 {
    /// The largest number.
    pub const MAX: f32 = 57_344.0;

    /// The nearest number.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        Self(encode::<2, 15, 0x7b>(x))
    }

    /// The number, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        half::f16::from_bits(u16::from(self.0) << 8).to_f32()
    }
}

macro_rules! through_f32 {
    ($format:ident) => {
        impl $format {
            /// The nearest number.
            #[inline(always)]
            pub fn from_f64(x: f64) -> Self {
                Self::from_f32(to_odd(x))
            }

            /// The number, exactly.
            #[inline(always)]
            pub fn to_f64(self) -> f64 {
                f64::from(self.to_f32())
            }
        }
    };
}

through_f32!(E4M3);
through_f32!(E5M2);

/// The code of `x` in the format with `BITS` bits of significand and this bias, whose largest number has the code
/// `LARGEST`.
#[inline(always)]
fn encode<const BITS: u32, const BIAS: i32, const LARGEST: u32>(x: f32) -> u8 {
    let bits = x.to_bits();
    let (sign, magnitude) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
    if x.is_nan() {
        return NAN;
    }
    let dropped = 23 - BITS;
    // Of the smallest normal number.
    let smallest = ((128 - BIAS) as u32) << 23;
    let code = if magnitude < smallest {
        // In units of the smallest number: an integer after rounding. Adding 2^23 rounds to one, ties to even.
        let units = f32::from_bits(magnitude) * power_of_two(BIAS - 1 + BITS as i32);
        (units + 8_388_608.0).to_bits() & 0xff
    } else {
        let even = magnitude >> dropped & 1;
        let rounded = magnitude + ((1 << (dropped - 1)) - 1 + even);
        ((rounded >> dropped) - ((127 - BIAS) as u32) * (1 << BITS)).min(LARGEST)
    };
    sign | code as u8
}

/// `2^exponent`, a normal number.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// float64 as float32, rounded to odd: a second rounding, to fewer bits, then gives what a single one would.
#[inline(always)]
fn to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    if back == x || x.is_nan() || nearest.is_infinite() {
        return nearest;
    }
    // Towards zero, then the last bit set.
    let bits = nearest.to_bits() - u32::from(back.abs() > x.abs());
    f32::from_bits(bits | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    /// What the format's definition says of each code, in float64.
    fn defined(code: u8, bits: i32, bias: i32) -> f64 {
        let (exponent, fraction) = (i32::from(code & 0x7f) >> bits, f64::from(i32::from(code) & ((1 << bits) - 1)));
        let steps = f64::from(1 << bits);
        let magnitude = match exponent {
            0 => fraction / steps * 2f64.powi(1 - bias),
            _ => (1.0 + fraction / steps) * 2f64.powi(exponent - bias),
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The finite numbers of a format from zero up, by code.
    fn numbers(bits: i32, bias: i32, largest: u8) -> Vec<f64> {
        (0..=largest).map(|code| defined(code, bits, bias)).collect()
    }

    /// The code of the number nearest to `x`, of two the even one: by comparison with all of them.
    fn nearest(x: f64, numbers: &[f64]) -> u8 {
        let distance = |code: &usize| ((numbers[*code] - x.abs()).abs(), *code % 2);
        let code = (0..numbers.len()).min_by(|a, b| distance(a).partial_cmp(&distance(b)).expect("no NaN"));
        code.expect("there are numbers") as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn every_code_is_the_number_that_its_definition_says_and_comes_back() {
        for code in 0..=255u8 {
            let (four, five) = (E4M3(code), E5M2(code));
            if code & 0x7f == 0x7f {
                assert!(four.to_f32().is_nan());
            } else {
                assert_eq!(four.to_f64(), defined(code, 3, 7), "{code:#x}");
                assert_eq!(E4M3::from_f32(four.to_f32()), four, "{code:#x}");
            }
            match code & 0x7f {
                0x7d.. => assert!(five.to_f32().is_nan()),
                0x7c => assert!(five.to_f32().is_infinite()),
                _ => {
                    assert_eq!(five.to_f64(), defined(code, 2, 15), "{code:#x}");
                    assert_eq!(E5M2::from_f32(five.to_f32()), five, "{code:#x}");
                }
            }
        }
        assert_eq!((E4M3(0x7e).to_f32(), E5M2(0x7b).to_f32()), (E4M3::MAX, E5M2::MAX));
    }

    #[test]
    fn conversions_round_to_the_nearest_number_and_of_two_to_the_even_one() {
        let (four, five) = (numbers(3, 7, 0x7e), numbers(2, 15, 0x7b));
        let checked = |x: f64| {
            if (x as f32).is_finite() {
                let exact = f64::from(x as f32);
                assert_eq!(E4M3::from_f32(x as f32).0, nearest(exact, &four), "{x:e}");
                assert_eq!(E5M2::from_f32(x as f32).0, nearest(exact, &five), "{x:e}");
            }
            assert_eq!(E4M3::from_f64(x).0, nearest(x, &four), "{x:e}");
            assert_eq!(E5M2::from_f64(x).0, nearest(x, &five), "{x:e}");
        };
        // Numbers, what lies half-way, and the neighbours of both in float64 and float32.
        for list in [&four, &five] {
            for pair in list.windows(2) {
                for x in [pair[0], (pair[0] + pair[1]) / 2.0] {
                    let narrow = x as f32;
                    let near = [x.next_up(), x.next_down(), f64::from(narrow.next_up()), f64::from(narrow.next_down())];
                    near.into_iter().chain([x, x * 1.03]).for_each(|x| {
                        checked(x);
                        checked(-x);
                    });
                }
            }
        }
        // Random magnitudes from below the smallest number to above the largest.
        for i in 0..20_000 {
            let size = random::uniform_f64(1, i) * 44.0 - 22.0;
            checked((random::uniform_f64(2, i) * 2.0 - 1.0) * 2f64.powf(size));
        }
    }

    #[test]
    fn what_is_too_large_becomes_the_largest_number_and_nan_stays() {
        for large in [448.1, 464.0, 465.0, 1e30, f32::INFINITY] {
            assert_eq!((E4M3::from_f32(large).to_f32(), E4M3::from_f32(-large).to_f32()), (448.0, -448.0), "{large}");
        }
        for large in [57_345.0, 61_440.0, 70_000.0, f32::MAX, f32::INFINITY] {
            assert_eq!((E5M2::from_f32(large).0, E5M2::from_f32(-large).0), (0x7b, 0xfb), "{large}");
        }
        assert_eq!((E4M3::from_f64(1e300).0, E5M2::from_f64(f64::NEG_INFINITY).0), (0x7e, 0xfb));
        assert!(E4M3::from_f32(f32::NAN).to_f32().is_nan() && E5M2::from_f64(f64::NAN).to_f32().is_nan());
        // Subnormal float32 and negative zero.
        assert_eq!((E4M3::from_f32(f32::from_bits(1)).0, E5M2::from_f32(-f32::MIN_POSITIVE).0), (0, 0x80));
        assert_eq!(E4M3::from_f32(-0.0).0, 0x80);
    }
}
