//! States by name, as checkpoints store them: independent of the arenas in which programs keep them.

use std::collections::HashSet;

use super::{ExecError, Executable};
use crate::{
    array::{Array, Data},
    collective::{Collective, SingleRank},
    graph::{GraphError, Meta, Seat, StateDecl, fits},
};

/// All states by name, with arenas split into their parts: the content of a checkpoint. Independent of the layout that
/// a program was compiled to.
///
/// # Errors
/// When the device fails.
pub fn read_named(executable: &mut dyn Executable) -> Result<Vec<(String, Array)>, ExecError> {
    read_chosen(executable, &SingleRank, |_| true)
}

/// The states that `choose` selects, by name, with arenas split into their parts: see [`read_named`]. Other states are
/// not read. Shards are joined over `gang`, of which all ranks call this with the same choice.
///
/// # Errors
/// When the device or a collective fails.
pub fn read_chosen(
    executable: &mut dyn Executable,
    gang: &dyn Collective,
    choose: impl Fn(&StateDecl) -> bool,
) -> Result<Vec<(String, Array)>, ExecError> {
    let mut named = Vec::new();
    let chosen: Vec<StateDecl> = executable.states().iter().filter(|decl| choose(decl)).cloned().collect();
    for decl in chosen {
        let mut value = executable.read_state(&decl.name)?;
        if let Some((whole, seat)) = decl.whole() {
            value = joined(&value, whole, seat, gang)?;
        }
        let mut start = 0;
        for part in decl.parts() {
            let len = part.meta.shape.elements();
            named.push((part.name.clone(), value.part(start, &part.meta.shape)?));
            start += len;
        }
        if decl.parts().is_empty() {
            named.push((decl.name, value));
        }
    }
    Ok(named)
}

/// The state of which each rank of the gang holds a part.
fn joined(own: &Array, whole: &StateDecl, seat: Seat, gang: &dyn Collective) -> Result<Array, ExecError> {
    let Data::F32(own) = own.data() else {
        debug_assert!(false, "shards are float32");
        return Ok(own.clone());
    };
    let mut all = vec![0.0; own.len() * seat.world];
    gang.all_gather(own, &mut all)?;
    Ok(Array::new(&whole.meta.shape, Data::F32(all))?)
}

/// Overwrites what the rank at `seat` holds of the elements `start ..` of a whole state with those of `part`.
fn write_overlap(own: &mut Array, seat: Seat, start: usize, part: &Array) -> Result<(), GraphError> {
    let len = own.shape().elements();
    let first = seat.rank * len;
    let (from, to) = (start.max(first), (start + part.shape().elements()).min(first + len));
    if from < to {
        own.write_part(from - first, &part.part(from - start, &[to - from].into())?);
    }
    Ok(())
}

/// Sets states and parts of arenas by name: the inverse of [`read_named`]. Returns the names that match no state, such
/// as the optimiser's slots when a checkpoint is loaded into a program that only evaluates.
///
/// # Errors
/// [`GraphError::Mismatch`] when an array's dtype or shape is not that of its state; when the device fails.
pub fn write_named(executable: &mut dyn Executable, named: &[(String, Array)]) -> Result<Vec<String>, ExecError> {
    let find = |name: &str| named.iter().find(|(n, _)| n == name).map(|(_, array)| array);
    let mut known = HashSet::new();
    for decl in executable.states().to_vec() {
        known.extend(decl.with_parts().map(|d| d.name.clone()));
        if let Some(array) = find(&decl.name) {
            executable.write_state(&decl.name, array)?;
        } else if decl.parts().iter().any(|p| find(&p.name).is_some()) {
            let mut arena = executable.read_state(&decl.name)?;
            let mut start = 0;
            for part in decl.parts() {
                if let Some(array) = find(&part.name) {
                    let got = Meta::new(array.dtype(), array.shape());
                    fits(&format!("state `{}`", part.name), &part.meta, &got)?;
                    match decl.whole() {
                        Some((_, seat)) => write_overlap(&mut arena, seat, start, array)?,
                        None => arena.write_part(start, array),
                    }
                }
                start += part.meta.shape.elements();
            }
            executable.write_state(&decl.name, &arena)?;
        }
    }
    Ok(named.iter().map(|(name, _)| name).filter(|name| !known.contains(*name)).cloned().collect())
}
