//! Hyperparameter search as pure functions: (seed, space, history of trials) → the next trials.
//!
//! - [`space`]: parameters, conditions and constraints, and their errors.
//! - [`sampler`]: which point the next trial has.
//! - [`scheduler`]: how long a trial is trained.
//! - [`stage`]: both together, as actions: start, pause, resume, stop.
//! - [`winner`], [`pareto`], [`importance`]: what the trials show.
//!
//! ```
//! use pawl_search::history::Goal;
//! use pawl_search::sampler::{Sampler, Study};
//! use pawl_search::space::{Domain, Parameter, Point, Scale, Space};
//!
//! let rate = Parameter::new("learningRate", Domain::Float { low: 1e-5, high: 1e-1, scale: Scale::Log });
//! let study = Study {
//!     seed: 42,
//!     stage: 0,
//!     space: Space { parameters: vec![rate], ..Space::default() },
//!     sampler: Sampler::Tpe,
//!     goals: vec![Goal::Minimize],
//!     accepted: Point::new(),
//!     warm: Vec::new(),
//!     first: Vec::new(),
//! };
//! assert!(study.validate().is_empty());
//! let point = study.propose(&[], 0).expect("the space has points");
//! assert_eq!(study.propose(&[], 0), Some(point), "a function of seed, space and history");
//! ```
//!
//! # Determinism
//!
//! There is no state, no clock and no generator of random numbers that advances: random numbers are a function of seed,
//! stage and trial number. Mathematical functions are those of `libm`, and sums have a fixed order, so that results are
//! equal bit by bit on every machine. A result depends on the *set* of trials and reports, not on their order in time:
//!
//! - Grid, Random and Sobol propose the same points whatever the results of the trials are.
//! - TPE and GP learn from the trials that ended before they are asked. With `parallelism: 1` the search is a function
//!   of the seed and the losses. With more, which trials have ended at that moment depends on how long each took; the
//!   same set gives the same point. A point that was proposed is part of the history, so that a restart repeats
//!   nothing.
//! - ASHA and Hyperband decide by the values that were reported until then, and the promoted set may so depend on their
//!   order; that the best trial of a rung is promoted does not.
//!
//! `pawl_api::search` derives a stage from the spec of a job, and the decision core carries out its actions.

pub mod expression;
pub mod history;
pub mod importance;
mod normal;
pub mod pareto;
mod random;
pub mod sampler;
pub mod scheduler;
pub mod space;
pub mod stage;
mod value;
pub mod winner;
