//! Programs to compare executors and passes on. The tests of this package run them on the executors of the training
//! engine; `pawl-kernels` runs them on a GPU.
//!
//! # Example
//! Linear regression, trained with AdamW:
//! ```
//! use pawl_eager::Eager;
//! use pawl_graph::{
//!     array::View,
//!     executor::{ExecOptions, Executor},
//!     graph::{Builder, DType, Init},
//!     optim::{AdamW, Optimizer},
//!     recipe::Recipe,
//! };
//!
//! // The forward pass: reads like the mathematics.
//! let b = Builder::new("regression");
//! let (x, y) = (b.input("x", DType::F32, [4, 2]), b.input("y", DType::F32, [4, 1]));
//! let w = b.parameter("w", [1, 2], Init::Uniform { bound: 0.5 });
//! let bias = b.parameter("bias", [1], Init::Fill(0.0));
//! b.output("loss", (x.matmul_t(w) + bias - y).square().mean_all());
//! let forward = b.finish()?;
//!
//! // Backward and update, as the settings say.
//! let recipe = Recipe::new(Optimizer { matrices: None, others: AdamW::default() });
//! let step = recipe.step(&forward)?;
//!
//! // y = 2 x0 - x1 + 3
//! let x = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
//! let y = [3.0, 5.0, 2.0, 4.0];
//! let mut run = Eager::cpu().compile(&[step], &ExecOptions::default())?;
//! for _ in 0..500 {
//!     run.run(0, &[View::F32(&x), View::F32(&y), View::F32(&[0.05])])?;
//! }
//! assert!(run.output(0, 0)?.item() < 1e-3);
//! let w = run.read_state("w")?.to_f64();
//! assert!((w[0] - 2.0).abs() < 0.1 && (w[1] + 1.0).abs() < 0.1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod case;
mod features;
pub mod operators;
mod programs;
mod training;

pub use case::{Case, Outcome, read_outputs};
pub use features::feature_networks;
pub use operators::{OperatorCase, operator_cases};
pub use programs::{normed_heads, random_case, transformer};
pub use training::{recipes, training};
