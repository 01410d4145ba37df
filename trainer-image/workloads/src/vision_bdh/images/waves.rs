//! Generated images: each class has three plane waves per channel; an image is their sum, shifted at random, with
//! noise.

use super::BYTES;
use crate::random::Stream;
use crate::store::OnProgress;
use crate::vision_bdh::config::{CHANNELS, CLASSES, SIDE};
use rayon::prelude::*;
use std::f64::consts::TAU;
use std::sync::atomic::{AtomicU64, Ordering};

/// Waves of a class and channel.
const WAVES: usize = 3;
/// All waves.
const ALL: usize = CLASSES * CHANNELS * WAVES;
/// Stream of the waves.
const WAVE_STREAM: u64 = 1;
/// Stream of the images: two numbers for the shift, then one for each byte.
const IMAGE_STREAM: u64 = 2;
/// Images between reports of progress.
const PIECE: usize = 512;

/// A plane wave: `amplitude * sin(2 pi (x_frequency x + y_frequency y) + phase)`.
#[derive(Clone, Copy, Debug)]
struct Wave {
    x_frequency: f64,
    y_frequency: f64,
    amplitude: f64,
    phase: f64,
}

/// `count` images and their labels: image i is a function of the seed and i, and has label i mod 10.
pub fn generate(count: usize, seed: u64, progress: OnProgress<'_>) -> (Vec<u8>, Vec<u8>) {
    let waves: Vec<Wave> = (0..ALL).map(|index| wave(seed, index as u64)).collect();
    let mut pixels = vec![0; count * BYTES];
    let done = AtomicU64::new(0);
    pixels.par_chunks_mut(PIECE * BYTES).enumerate().for_each(|(piece, pixels)| {
        for (index, image) in pixels.chunks_exact_mut(BYTES).enumerate() {
            let number = piece * PIECE + index;
            let first = number % CLASSES * CHANNELS * WAVES;
            draw(&waves[first..first + CHANNELS * WAVES], seed, number as u64, image);
        }
        let images = done.fetch_add((pixels.len() / BYTES) as u64, Ordering::Relaxed);
        progress("generating images", images + (pixels.len() / BYTES) as u64, count as u64);
    });
    let labels = (0..count).map(|number| (number % CLASSES) as u8).collect();
    (pixels, labels)
}

/// Wave `index`, counted over classes, channels and waves: all frequencies are drawn first, then all amplitudes, then
/// all phases.
fn wave(seed: u64, index: u64) -> Wave {
    let (stream, all) = (Stream::new(seed, WAVE_STREAM), ALL as u64);
    let frequency = |axis: u64| stream.below(2 * index + axis, 4) as f64 + 1.0;
    Wave {
        x_frequency: frequency(0),
        y_frequency: frequency(1),
        amplitude: stream.uniform(2 * all + index),
        phase: TAU * stream.uniform(3 * all + index),
    }
}

/// Image `number` of the class with `waves`.
fn draw(waves: &[Wave], seed: u64, number: u64, image: &mut [u8]) {
    let stream = Stream::new(seed, IMAGE_STREAM);
    let first = number * (2 + BYTES as u64);
    let [row_shift, column_shift] = [0, 1].map(|axis| 0.25 * stream.uniform(first + axis));
    let fraction = |index: usize, shift: f64| index as f64 / SIDE as f64 + shift;
    for (channel, (plane, waves)) in image.chunks_exact_mut(SIDE * SIDE).zip(waves.chunks_exact(WAVES)).enumerate() {
        let mut sums = [0.0; SIDE * SIDE];
        for wave in waves {
            // sin(a + b) from the angles of rows and columns: two functions per row and column, not one per pixel.
            let column: [(f64, f64); SIDE] =
                std::array::from_fn(|x| libm::sincos(TAU * wave.x_frequency * fraction(x, column_shift)));
            for (y, sums) in sums.chunks_exact_mut(SIDE).enumerate() {
                let (sin, cos) = libm::sincos(TAU * wave.y_frequency * fraction(y, row_shift) + wave.phase);
                for (sum, (column_sin, column_cos)) in sums.iter_mut().zip(column) {
                    *sum += wave.amplitude * (sin * column_cos + cos * column_sin);
                }
            }
        }
        let noise = first + 2 + (channel * SIDE * SIDE) as u64;
        for ((pixel, sum), index) in plane.iter_mut().zip(sums).zip(noise..) {
            let value = 127.5 + 45.0 * sum + 80.0 * (stream.uniform(index) - 0.5);
            *pixel = value.round_ties_even().clamp(0.0, 255.0) as u8;
        }
    }
}
