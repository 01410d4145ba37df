//! Data augmentation: images as float32 in [-1, 1], randomly cropped, resized and mirrored.

use super::config::{CHANNELS, SIDE};
use super::device_images::CROP;
use crate::random::Stream;
use pawl_contract::settings::MemoryFormat;

/// Smallest area of a crop, as a fraction of the image's.
const SMALLEST: f64 = 0.8;
/// Largest aspect ratio of a crop; the smallest is its inverse.
const RATIO: f64 = 4.0 / 3.0;

/// A crop that is resized to the whole image by bilinear interpolation; beyond the border, the border pixels are
/// repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crop {
    /// Width and height, as fractions of the image's.
    pub size: [f64; 2],
    /// Centre, right and down.
    pub centre: [f64; 2],
    /// Whether left and right are exchanged.
    pub mirrored: bool,
}

impl Crop {
    /// The crop drawn from `stream`: area, aspect ratio, place right and down, mirroring. Sides longer than the image's
    /// are cut to it.
    pub fn draw(stream: Stream) -> Self {
        let area = SMALLEST + (1.0 - SMALLEST) * stream.uniform(0);
        let ratio = ((2.0 * stream.uniform(1) - 1.0) * RATIO.ln()).exp();
        let size = [(area * ratio).sqrt().min(1.0), (area / ratio).sqrt().min(1.0)];
        let place = |axis: usize| (1.0 - size[axis]) * (2.0 * stream.uniform(2 + axis as u64) - 1.0);
        Self { size, centre: [place(0), place(1)], mirrored: stream.uniform(4) < 0.5 }
    }

    /// Size right (negative when mirrored) and down, centre right and down: the crop for a program, see
    /// [`device_images`](super::device_images).
    pub fn numbers(&self) -> [f32; CROP] {
        let sign = if self.mirrored { -1.0 } else { 1.0 };
        [sign * self.size[0], self.size[1], self.centre[0], self.centre[1]].map(|number| number as f32)
    }

    /// For each pixel along an axis (0: right, 1: down): the pixel before, the one after it, and the weight of the
    /// latter.
    fn taps(&self, axis: usize) -> [(usize, usize, f32); SIDE] {
        let half = SIDE as f64 / 2.0;
        let sign = if axis == 0 && self.mirrored { -1.0 } else { 1.0 };
        std::array::from_fn(|i| {
            let centred = (2 * i + 1) as f64 / SIDE as f64 - 1.0;
            let at = sign * self.size[axis] * centred + self.centre[axis];
            let pixel = ((at + 1.0) * half - 0.5).clamp(0.0, (SIDE - 1) as f64);
            let before = pixel.floor() as usize;
            (before, (before + 1).min(SIDE - 1), (pixel - pixel.floor()) as f32)
        })
    }
}

/// Writes the image `pixels` (the planes of its channels) to `out` in the memory format, cropped if there is a crop.
pub fn write(pixels: &[u8], crop: Option<Crop>, format: MemoryFormat, out: &mut [f32]) {
    let taps = crop.map(|crop| [crop.taps(0), crop.taps(1)]);
    for (channel, plane) in pixels.chunks_exact(SIDE * SIDE).enumerate() {
        for y in 0..SIDE {
            let row = match &taps {
                Some([columns, rows]) => interpolated(plane, columns, rows[y]),
                None => std::array::from_fn(|x| f32::from(plane[y * SIDE + x])),
            };
            let normalized = row.map(|value| (value / 255.0 - 0.5) / 0.5);
            match format {
                MemoryFormat::ChannelsFirst => {
                    out[(channel * SIDE + y) * SIDE..][..SIDE].copy_from_slice(&normalized);
                }
                MemoryFormat::ChannelsLast => {
                    let pixels = out[y * SIDE * CHANNELS..][..SIDE * CHANNELS].chunks_exact_mut(CHANNELS);
                    pixels.zip(normalized).for_each(|(pixel, value)| pixel[channel] = value);
                }
            }
        }
    }
}

/// A row of a cropped plane.
fn interpolated(plane: &[u8], columns: &[(usize, usize, f32); SIDE], row: (usize, usize, f32)) -> [f32; SIDE] {
    let (above, below, weight) = row;
    let [above, below] = [above, below].map(|y| &plane[y * SIDE..(y + 1) * SIDE]);
    let blended: [f32; SIDE] =
        std::array::from_fn(|x| f32::from(above[x]) * (1.0 - weight) + f32::from(below[x]) * weight);
    std::array::from_fn(|x| {
        let (before, after, weight) = columns[x];
        blended[before] * (1.0 - weight) + blended[after] * weight
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> Vec<u8> {
        (0..CHANNELS * SIDE * SIDE).map(|i| (i % SIDE * 4 + i / SIDE % SIDE * 3) as u8).collect()
    }

    fn written(crop: Option<Crop>, format: MemoryFormat) -> Vec<f32> {
        let mut out = vec![f32::NAN; CHANNELS * SIDE * SIDE];
        write(&ramp(), crop, format, &mut out);
        out
    }

    #[test]
    fn the_whole_image_is_unchanged_and_mirrored_from_the_other_side() {
        let whole = Crop { size: [1.0, 1.0], centre: [0.0, 0.0], mirrored: false };
        let plain = written(None, MemoryFormat::ChannelsFirst);
        assert_eq!(written(Some(whole), MemoryFormat::ChannelsFirst), plain);
        assert_eq!((plain[0], plain[SIDE]), (-1.0, (3.0 / 255.0 - 0.5) / 0.5));
        let mirrored = written(Some(Crop { mirrored: true, ..whole }), MemoryFormat::ChannelsFirst);
        let rows = mirrored.chunks_exact(SIDE).zip(plain.chunks_exact(SIDE));
        assert!(rows.into_iter().all(|(a, b)| a.iter().eq(b.iter().rev())));
    }

    #[test]
    fn formats_hold_the_same_values() {
        let crop = Some(Crop::draw(Stream::new(1, 2)));
        let (first, last) = (written(crop, MemoryFormat::ChannelsFirst), written(crop, MemoryFormat::ChannelsLast));
        for (index, value) in last.into_iter().enumerate() {
            assert_eq!(value, first[index % CHANNELS * SIDE * SIDE + index / CHANNELS]);
        }
    }

    #[test]
    fn crops_stay_inside_the_image_and_differ() {
        let crops: Vec<Crop> = (0..2000).map(|n| Crop::draw(Stream::new(3, 4).fork(n))).collect();
        for Crop { size, centre, .. } in &crops {
            for axis in 0..2 {
                assert!((0.77..=1.0).contains(&size[axis]) && centre[axis].abs() + size[axis] <= 1.0 + 1e-12);
            }
            assert!(size[0] * size[1] > 0.68 && size[0] / size[1] < 4.0 / 3.0 + 1e-9);
        }
        let mirrored = crops.iter().filter(|crop| crop.mirrored).count();
        assert!((900..1100).contains(&mirrored), "{mirrored}");
    }
}
