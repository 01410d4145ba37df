//! Weights between checkpoints and candle-nn, in both directions.
//!
//! A checkpoint consists of safetensors files with the names of the model's variables, in float32, and a manifest.
//! `VarBuilder` reads the files of a checkpoint as they are; [`read`] also verifies them. [`write()`] makes a
//! checkpoint of a `VarMap`, from which a job starts by `train.resumeFrom` with `weightsOnly: true`.
//!
//! ```
//! use candle_core::{DType, Device};
//! use candle_nn::{Init, VarMap};
//! use pawl_candle::exchange;
//!
//! # let storage = tempfile::tempdir()?;
//! # let storage = storage.path().to_str().unwrap();
//! let trained = VarMap::new();
//! trained.get((2, 3), "head.weight", Init::Const(0.5), DType::F32, &Device::Cpu)?;
//! exchange::write(&trained, storage, exchange::WORKLOAD)?;
//!
//! let other = VarMap::new();
//! let weight = other.get((2, 3), "head.weight", Init::Const(0.0), DType::F32, &Device::Cpu)?;
//! assert_eq!(exchange::read(&other, storage)?, ["head.weight"]);
//! assert_eq!(weight.to_vec2::<f32>()?, [[0.5; 3]; 2]);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

use crate::error::{Error, Result};
use crate::tensors;
use candle_nn::VarMap;
use pawl_launch::checkpoint::{Author, Checkpoint, Position, Store, Writer};

/// The workload of checkpoints that programs of this crate write.
pub const WORKLOAD: &str = "candle";

/// Sets the variables of `vars` to the tensors of the best checkpoint in the storage at `url` (a directory or a URL),
/// which may be the built-in trainer's. Returns the names that were set; variables that the checkpoint lacks keep their
/// values.
///
/// # Errors
/// [`Ending::InvalidPlan`](crate::Ending::InvalidPlan) when there is no complete checkpoint, or a shape differs; when
/// the storage cannot be read.
pub fn read(vars: &VarMap, url: &str) -> Result<Vec<String>> {
    let found = Store::open(url)?.best()?;
    let found = found.ok_or_else(|| Error::invalid(format!("{url}: contains no complete checkpoint")))?;
    let mut set = Vec::new();
    for (name, var) in tensors::named(vars) {
        if let Some((_, array)) = found.checkpoint.tensors.iter().find(|(known, _)| *known == name) {
            tensors::set(&name, &var, array)?;
            set.push(name);
        }
    }
    Ok(set)
}

/// Writes the variables of `vars` as a checkpoint before the first step to the storage at `url`. `workload` is the
/// built-in workload whose names the variables have, or [`WORKLOAD`] for a program of this crate.
///
/// # Errors
/// When a variable is not finite or of a type that checkpoints do not hold; when the storage cannot be written.
pub fn write(vars: &VarMap, url: &str, workload: &str) -> Result<()> {
    let tensors = tensors::named(vars)
        .into_iter()
        .map(|(name, var)| Ok((name.clone(), tensors::to_array(&name, &var)?)))
        .collect::<Result<_>>()?;
    let author = Author { job: "exchange".to_owned(), attempt: "exchange-1".to_owned(), ..Author::default() };
    Writer::open(url, 1, author)?.save(&Checkpoint { position: Position::start(workload, 0), tensors })?;
    Ok(())
}
