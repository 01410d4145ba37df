//! A trainer that keeps the contract without any mathematics, with planted faults.
//!
//! What it "measures" is a script: the plan's `workload.config`. The binary `scripted-trainer` is a rank, built in or
//! as a foreign `command`; the functions of [`Script`] give the same numbers without any process, for simulations.
//! Time is virtual: a launch ends in milliseconds, whatever throughput it reports, unless `stepSeconds` says otherwise.
//!
//! # The script
//! Only `itemsPerSecond` is needed. Unknown fields, and numbers out of range, are exit code 21 with the remedy.
//!
//! ```json
//! {
//!   "itemsPerSecond": 1000,
//!   "noise": 0.01,
//!   "seed": 1,
//!   "effects": [{"setting": "compile", "value": "Graph", "factor": 1.5}],
//!   "memory": {"baseBytes": 1000, "bytesPerItem": 100, "limitBytes": 5000,
//!              "effects": [{"setting": "activationCheckpointing", "value": "Full", "factor": 0.5}]},
//!   "quality": {"startLoss": 2.0, "finalLoss": 0.5, "scaleItems": 10000, "seedNoise": 0.002, "launchNoise": 0.0005,
//!               "effects": [{"setting": "precision", "value": "bf16", "factor": 1.01}],
//!               "optima": [{"setting": "learningRate", "best": 0.001, "weight": 0.1}]},
//!   "loaderWaitShare": 0.01, "offloadShare": 0.0, "utilization": 0.9,
//!   "itemsPerEpoch": 10000,
//!   "stepSeconds": 0.0,
//!   "faultDirectory": "/shared",
//!   "faults": [{"fault": "OutOfMemory", "atStep": 5, "rank": 1, "once": true,
//!               "settings": [{"setting": "batchPerGpu", "value": 16}], "kinds": ["Measure"], "launch": "phase-2"}]
//! }
//! ```
//!
//! - Throughput of the whole gang: `itemsPerSecond`, times the factor of every effect whose setting has the value (any
//!   value when none is named; `workload.hidden` names a workload's own setting), times a log-normal factor of standard
//!   deviation `noise` drawn from `seed` and the launch's name: the same launch gives the same number.
//! - Memory of a rank: `baseBytes + bytesPerItem x batchPerGpu`, of which effects scale the second part. More than
//!   `limitBytes` is OutOfMemory, in Preflight as a prediction.
//! - Validation loss after n items: `finalLoss + (startLoss - finalLoss) exp(-n / scaleItems)`, times effects, times
//!   the distance of settings from their optima, times noise of the plan's seed and of the launch; `nrmse` is a tenth
//!   of it.
//! - Faults: see [`script::FaultKind`]. All conditions of a fault must hold. `rank` (default 0) is the rank that dies;
//!   the others then wait for it as in a collective. `once`: only in the first launch that reaches it; `nth`: only in
//!   the n-th launch that meets its conditions. Both are remembered in `faultDirectory`, which is `PAWL_DATA` unless
//!   said.

mod checkpoints;
mod faults;
mod launch;
mod model;
mod noise;
mod rank;
pub mod script;

pub use rank::main;
pub use script::{InvalidScript, Script};
