//! Counter-based random numbers: every draw is a pure function of its stream and index, so recomputation and resumption
//! are exact.
//!
//! SplitMix64 in counter form (Steele, Lea, Flood 2014): element i of a stream is `mix(stream + (i + 1) * GOLDEN)`.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream named by a seed and a name.
pub fn stream(seed: u64, name: &str) -> u64 {
    name.bytes().fold(mix(seed.wrapping_add(GOLDEN)), |state, byte| mix(state.wrapping_mul(GOLDEN) ^ u64::from(byte)))
}

/// Element `index` of `stream`: 64 uniformly distributed bits.
pub fn bits(stream: u64, index: u64) -> u64 {
    mix(stream.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// Element `index` of `stream`, uniform in [0, 1) with 53 bits.
pub fn uniform_f64(stream: u64, index: u64) -> f64 {
    (bits(stream, index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Element `index` of `stream`, standard normal (Box-Muller, cosine branch; one draw takes bits 2i and 2i + 1).
pub fn normal_f64(stream: u64, index: u64) -> f64 {
    let (u, v) = (uniform_f64(stream, 2 * index), uniform_f64(stream, 2 * index + 1));
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// The stream of [`Op::Random`](crate::graph::Op::Random) with `key` at `counter`.
pub fn draw_stream(key: u64, counter: u32) -> u64 {
    mix(key ^ mix(u64::from(counter).wrapping_add(GOLDEN)))
}

/// Element `index` of a draw of [`Op::Random`](crate::graph::Op::Random): uniform in [0, 1) with 24 bits. Elements 2i
/// and 2i + 1 use the lower and the upper half of the same 64 bits, which doubles the speed of dropout on GPUs that mix
/// bits more slowly than they read memory.
pub fn uniform_f32(stream: u64, index: u64) -> f32 {
    let pair = bits(stream, index / 2);
    let half = if index.is_multiple_of(2) { pair as u32 } else { (pair >> 32) as u32 };
    (half >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}
