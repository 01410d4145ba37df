//! The frozen encoder: a field is cut into tiles, and each tile becomes a token by one fixed linear map.

use super::config::{Config, Task};
use crate::random::Stream;
use gemm::{Parallelism, gemm};
use std::f64::consts::TAU;

/// Positional channels of a tile: sine and cosine of two frequencies of its centre's x and y.
pub const COORDINATES: usize = 8;

/// Tiling of a grid of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Tiles from top to bottom.
    pub rows: usize,
    /// Tiles from left to right.
    pub columns: usize,
    /// Cell rows of a tile.
    pub height: usize,
    /// Cell columns of a tile.
    pub width: usize,
}

impl Tiling {
    /// The tiling of `task`'s grid under `config`.
    pub fn of(task: Task, config: &Config) -> Self {
        let tokens = config.operator.tokens;
        match task {
            Task::Advection1d => Self { rows: 1, columns: tokens, height: 1, width: config.advection.cells / tokens },
            Task::Darcy2d => {
                let ((rows, columns), grid) = (config.operator.darcy_tiles(), config.darcy.grid);
                Self { rows, columns, height: grid / rows, width: grid / columns }
            }
        }
    }

    /// Number of tiles.
    pub fn tokens(self) -> usize {
        self.rows * self.columns
    }

    /// Cells per tile.
    pub fn patch(self) -> usize {
        self.height * self.width
    }

    /// Cells of the grid, (height, width).
    pub fn grid(self) -> (usize, usize) {
        (self.rows * self.height, self.columns * self.width)
    }

    /// The coordinate channels of each tile, (tokens, 8): sin(2 pi f x) for f = 1, 2, the same of y, then the cosines.
    pub fn coordinates(self) -> Vec<f32> {
        let mut channels = Vec::with_capacity(self.tokens() * COORDINATES);
        for tile in 0..self.tokens() {
            let x = ((tile % self.columns) as f64 + 0.5) / self.columns as f64;
            let y = ((tile / self.columns) as f64 + 0.5) / self.rows as f64;
            for wave in [libm::sin as fn(f64) -> f64, libm::cos] {
                for centre in [x, y] {
                    channels.extend([1.0, 2.0].map(|frequency| wave(TAU * frequency * centre) as f32));
                }
            }
        }
        channels
    }

    /// Re-orders the cells of `field` (row-major over the grid) tile by tile: (tokens, patch).
    pub fn patches(self, field: &[f32], out: &mut Vec<f32>) {
        out.clear();
        let stride = self.columns * self.width;
        for tile in 0..self.tokens() {
            let corner = tile / self.columns * self.height * stride + tile % self.columns * self.width;
            for row in 0..self.height {
                let start = corner + row * stride;
                out.extend_from_slice(&field[start..start + self.width]);
            }
        }
    }
}

/// One task's frozen map from a normalised field to tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoder {
    tiling: Tiling,
    width: usize,
    /// (width, patch + 8) row-major.
    weight: Vec<f32>,
    /// (width).
    bias: Vec<f32>,
    /// What coordinates and bias add to each token: (tokens, width).
    offset: Vec<f32>,
}

impl Encoder {
    /// The encoder of `task`, drawn from the data seed like any linear layer: uniform in +-1/sqrt(inputs).
    pub fn new(task: Task, config: &Config) -> Self {
        let (tiling, width) = (Tiling::of(task, config), config.operator.width);
        let inputs = tiling.patch() + COORDINATES;
        let stream = Stream::named(config.data.seed, &format!("encoder.{}", task.name()));
        let bound = 1.0 / (inputs as f64).sqrt();
        let (mut weight, mut bias) = (vec![0.0; width * inputs], vec![0.0; width]);
        stream.fill_symmetric(0, bound, &mut weight);
        stream.fill_symmetric(weight.len() as u64, bound, &mut bias);
        Self::from_weights(tiling, weight, bias)
    }

    /// The encoder with these weights: `weight` (width, patch + 8) row-major, `bias` (width).
    ///
    /// # Panics
    /// When the sizes do not fit together.
    pub fn from_weights(tiling: Tiling, weight: Vec<f32>, bias: Vec<f32>) -> Self {
        let (width, inputs) = (bias.len(), tiling.patch() + COORDINATES);
        assert_eq!(weight.len(), width * inputs, "the weight must be ({width}, {inputs})");
        let mut offset = Vec::with_capacity(tiling.tokens() * width);
        for channels in tiling.coordinates().chunks_exact(COORDINATES) {
            for (row, bias) in weight.chunks_exact(inputs).zip(&bias) {
                let sum: f32 = row[tiling.patch()..].iter().zip(channels).map(|(w, c)| w * c).sum();
                offset.push(bias + sum);
            }
        }
        Self { tiling, width, weight, bias, offset }
    }

    /// How it cuts the grid.
    pub fn tiling(&self) -> Tiling {
        self.tiling
    }

    /// The weight, (width, patch + 8) row-major.
    pub fn weight(&self) -> &[f32] {
        &self.weight
    }

    /// The bias, (width).
    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// What the coordinates and the bias add to each token, (tokens, width) row-major.
    pub fn offset(&self) -> &[f32] {
        &self.offset
    }

    /// Elements of one state's latent: tokens x width.
    pub fn latent_len(&self) -> usize {
        self.tiling.tokens() * self.width
    }

    /// Writes the latent of `field` (normalised, row-major over the grid) to `out`, (tokens, width) row-major.
    /// `patches` is scratch space.
    pub fn encode(&self, field: &[f32], patches: &mut Vec<f32>, out: &mut [f32]) {
        let (tokens, patch, inputs) = (self.tiling.tokens(), self.tiling.patch(), self.tiling.patch() + COORDINATES);
        self.tiling.patches(field, patches);
        assert!(patches.len() == tokens * patch && out.len() == self.latent_len(), "field or latent has another size");
        out.copy_from_slice(&self.offset);
        // SAFETY: out is (tokens, width), patches (tokens, patch), and the first `patch` columns of the (width, inputs)
        // weight are read transposed; all lengths were checked, here or when the encoder was made.
        unsafe {
            gemm(
                tokens,
                self.width,
                patch,
                out.as_mut_ptr(),
                1,
                self.width as isize,
                true,
                patches.as_ptr(),
                1,
                patch as isize,
                self.weight.as_ptr(),
                inputs as isize,
                1,
                1.0,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}
