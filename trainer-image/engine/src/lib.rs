//! The training engine: a model is a forward pass, written once, traced into a static graph; a setting is a pass over that graph.
//!
//! | module | what it is |
//! |---|---|
//! | [`graph`] | the intermediate representation, and the [`Builder`](graph::Builder) that model code is written against |
//! | [`autodiff`] | reverse mode, graph to graph |
//! | [`passes`] | the settings, each a function from program to program |
//! | [`optim`] | AdamW, Muon and moving averages, as nodes of the graph |
//! | [`recipe`] | forward program and settings in, training programs out |
//! | [`executor`] | what an executor is, and how states are read and written by name |
//! | [`eager`] | Candle, op by op: the baseline, and in float64 the oracle |
//! | [`lower`] | programs to fused kernels over a planned arena, for any device |
//! | [`cpu`] | the graph executor on the CPU |
//! | `cuda` | the graph executor on NVIDIA GPUs (feature `cuda`) |
//! | [`collective`] | sums over ranks |
//!
//! # Example
//! Linear regression, trained with AdamW:
//! ```
//! use pawl_engine::{
//!     array::View,
//!     eager::Eager,
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

pub mod array;
pub mod autodiff;
pub mod collective;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod eager;
pub mod executor;
pub mod graph;
pub mod lower;
pub mod optim;
pub mod passes;
pub mod random;
pub mod recipe;
#[doc(hidden)]
pub mod testing;
