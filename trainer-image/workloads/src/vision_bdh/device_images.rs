//! Images on the device: bytes in words, which programs convert to float32 and augment.

use super::config::{CHANNELS, ImageInput, SIDE};
use super::images::BYTES;
use super::model::{DECODING, Model};
use pawl_contract::settings::MemoryFormat;
use pawl_graph::graph::{Builder, DType, Init, Meta, Role, StateDecl, Var, concat};

/// State that holds all images: (images, [`WORDS`]), U32.
pub const IMAGES: &str = "data.images";
/// Bytes in a word.
const LANES: usize = 4;
/// Words of an image.
pub const WORDS: usize = BYTES / LANES;
/// Numbers that describe a crop: see [`Crop::numbers`](super::augment::Crop::numbers).
pub const CROP: usize = 4;

/// Writes the bytes of an image as words: byte k of word i is byte `k * WORDS + i`, so that unpacking moves whole rows.
pub fn packed(pixels: &[u8], words: &mut [u32]) {
    for (i, word) in words.iter_mut().enumerate() {
        *word = u32::from_le_bytes(std::array::from_fn(|lane| pixels[lane * WORDS + i]));
    }
}

impl Model<'_> {
    /// `batch` images in the memory format, float32, from the inputs that `input` needs. With `cropped`, each is
    /// changed by a row of the input `crops` (batch, [`CROP`]), float32.
    pub(super) fn input_images<'b>(&self, b: &'b Builder, batch: usize, input: ImageInput, cropped: bool) -> Var<'b> {
        let words = match input {
            ImageInput::Prepared => return b.input("images", DType::F32, self.images(batch)),
            ImageInput::Bytes => b.input("pixels", DType::U32, [batch, WORDS]),
            ImageInput::Resident { images } => {
                let meta = Meta::new(DType::U32, [images, WORDS]);
                let all = StateDecl { name: IMAGES.into(), meta, role: Role::Data, init: Init::Fill(0.0) };
                b.state(all).gather(0, b.input("items", DType::U32, [batch]))
            }
        };
        let crops = cropped.then(|| b.input("crops", DType::F32, [batch, CROP]));
        b.scope(DECODING, || {
            let planes = unpacked(words).reshape([batch, CHANNELS, SIDE, SIDE]);
            // (batch, rows, channels, columns)
            let rows = planes.permute([0, 2, 1, 3]);
            let rows = crops.map_or(rows, |crops| resampled(rows, crops));
            let normalized = (rows / 255.0 - 0.5) / 0.5;
            normalized.permute(match self.memory_format {
                MemoryFormat::ChannelsFirst => [0, 2, 1, 3],
                MemoryFormat::ChannelsLast => [0, 1, 3, 2],
            })
        })
    }
}

/// The bytes of `words` (batch, [`WORDS`]) in their order, float32.
fn unpacked(words: Var<'_>) -> Var<'_> {
    let number = |value: u32| words.builder().scalar(f64::from(value), DType::U32);
    let lanes: Vec<Var<'_>> = (0..LANES)
        .map(|lane| {
            // Integer division shifts; what lies above the byte is taken away.
            let low = if lane == 0 { words } else { words / number(1 << (8 * lane)) };
            let above = |low| low - words / number(1 << (8 * (lane + 1))) * number(256);
            (if lane + 1 == LANES { low } else { above(low) }).cast(DType::F32)
        })
        .collect();
    concat(&lanes, 1)
}

/// Bilinear interpolation as two products: each row and each column of the result is a mean of two, with the weights of
/// a hat function.
fn resampled<'b>(rows: Var<'b>, crops: Var<'b>) -> Var<'b> {
    let (b, batch) = (rows.builder(), rows.dim(0));
    // (batch, SIDE, SIDE): the weight of each source pixel in each pixel of the result.
    let weights = |axis: usize| {
        let number = |index: usize| crops.slice(1, index, 1).reshape([batch, 1, 1]);
        let [size, centre] = [number(axis), number(2 + axis)];
        let index = |axis: usize| b.iota(axis, [1, SIDE, SIDE]).cast(DType::F32);
        let centred = (index(1) * 2.0 + 1.0) / SIDE as f64 - 1.0;
        let pixel = (size * centred + centre + 1.0) * (SIDE as f64 / 2.0) - 0.5;
        let distance = (pixel.maximum(0.0).minimum((SIDE - 1) as f64) - index(2)).abs();
        (-distance + 1.0).maximum(0.0)
    };
    let blended = weights(1).matmul(rows.reshape([batch, SIDE, CHANNELS * SIDE]));
    let columns = blended.reshape([batch, SIDE * CHANNELS, SIDE]).matmul_t(weights(0));
    columns.reshape([batch, SIDE, CHANNELS, SIDE])
}

#[cfg(test)]
mod tests {
    use super::super::augment::{self, Crop};
    use super::super::config::Config;
    use super::*;
    use crate::random::Stream;
    use pawl_contract::settings::ParameterLayout;
    use pawl_cpu::GraphCpu;
    use pawl_graph::array::{Array, Data, View};
    use pawl_graph::executor::{ExecOptions, Executor};
    use pawl_graph::graph::DType;
    use serde_json::json;

    /// Images of the device: of 6 images, numbers 4, 0 and 3, each changed by its crop if there are crops.
    fn on_device(pixels: &[u8], crops: Option<&[Crop]>, format: MemoryFormat, input: ImageInput) -> Vec<f64> {
        let config = Config::parse(json!({"preset": "smoke"}).as_object().unwrap(), &Default::default()).unwrap();
        let model = Model {
            config: &config.model,
            input,
            cropped: crops.is_some(),
            memory_format: format,
            parameter_layout: ParameterLayout::Raw,
            rope_cached: true,
            products: DType::F32,
        };
        let b = Builder::new("images");
        b.output("images", model.input_images(&b, 3, input, crops.is_some()));
        let program = b.finish().unwrap();
        let mut words = vec![0; 6 * WORDS];
        for (image, words) in pixels.chunks_exact(BYTES).zip(words.chunks_exact_mut(WORDS)) {
            packed(image, words);
        }
        let chosen: Vec<u32> = [4, 0, 3].iter().flat_map(|&n| words[n * WORDS..(n + 1) * WORDS].to_vec()).collect();
        let mut run = GraphCpu::default().compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        let source = match input {
            ImageInput::Resident { .. } => {
                run.write_state(IMAGES, &Array::new([6, WORDS], Data::U32(words)).unwrap()).unwrap();
                Array::new([3], Data::U32(vec![4, 0, 3])).unwrap()
            }
            _ => Array::new([3, WORDS], Data::U32(chosen)).unwrap(),
        };
        let numbers = crops
            .map(|crops| Array::new([3, CROP], Data::F32(crops.iter().flat_map(Crop::numbers).collect())).unwrap());
        let views: Vec<View<'_>> = std::iter::once(&source).chain(&numbers).map(Array::view).collect();
        run.run(0, &views).unwrap();
        run.output(0, 0).unwrap().to_f64()
    }

    #[test]
    fn images_of_the_device_are_those_of_the_loader_up_to_rounding() {
        let noise = Stream::new(7, 1);
        let pixels: Vec<u8> = (0..6 * BYTES as u64).map(|i| noise.below(i, 256) as u8).collect();
        let mut crops: Vec<Crop> = (0..3).map(|n| Crop::draw(Stream::new(8, 2).fork(n))).collect();
        (crops[0].mirrored, crops[1].mirrored) = (true, false);
        for format in [MemoryFormat::ChannelsFirst, MemoryFormat::ChannelsLast] {
            for crops in [None, Some(&crops[..])] {
                let mut wanted = vec![0.0; 3 * BYTES];
                for ((place, number), out) in [4, 0, 3].into_iter().enumerate().zip(wanted.chunks_exact_mut(BYTES)) {
                    let crop = crops.map(|crops| crops[place]);
                    augment::write(&pixels[number * BYTES..(number + 1) * BYTES], crop, format, out);
                }
                for input in [ImageInput::Bytes, ImageInput::Resident { images: 6 }] {
                    let got = on_device(&pixels, crops, format, input);
                    // Neighbouring pixels of noise differ by up to 2: an error of 1e-5 pixels would be one of 2e-5.
                    let worst = got.iter().zip(&wanted).map(|(a, &b)| (a - f64::from(b)).abs()).fold(0.0, f64::max);
                    assert!(got.len() == wanted.len() && worst < 2e-5, "{format:?} {input:?}: {worst}");
                }
            }
        }
    }

    #[test]
    fn packing_keeps_every_byte() {
        let pixels: Vec<u8> = (0..BYTES).map(|i| (i * 7 % 256) as u8).collect();
        let mut words = vec![0; WORDS];
        packed(&pixels, &mut words);
        for (i, pixel) in pixels.iter().enumerate() {
            assert_eq!(words[i % WORDS].to_le_bytes()[i / WORDS], *pixel, "byte {i}");
        }
    }
}
