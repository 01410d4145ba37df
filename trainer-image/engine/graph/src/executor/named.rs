//! States by name, as checkpoints store them: independent of the arenas in which programs keep them.

use std::collections::HashSet;

use super::{ExecError, Executable};
use crate::{
    array::Array,
    graph::{Meta, StateDecl, fits},
};

/// All states by name, with arenas split into their parts: the content of a checkpoint. Independent of the layout that a program was compiled to.
///
/// # Errors
/// When the device fails.
pub fn read_named(executable: &mut dyn Executable) -> Result<Vec<(String, Array)>, ExecError> {
    read_chosen(executable, |_| true)
}

/// The states that `choose` selects, by name, with arenas split into their parts: see [`read_named`]. Other states are not read.
///
/// # Errors
/// When the device fails.
pub fn read_chosen(
    executable: &mut dyn Executable,
    choose: impl Fn(&StateDecl) -> bool,
) -> Result<Vec<(String, Array)>, ExecError> {
    let mut named = Vec::new();
    let chosen: Vec<StateDecl> = executable.states().iter().filter(|decl| choose(decl)).cloned().collect();
    for decl in chosen {
        let value = executable.read_state(&decl.name)?;
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

/// Sets states and parts of arenas by name: the inverse of [`read_named`]. Returns the names that match no state, such as the optimiser's
/// slots when a checkpoint is loaded into a program that only evaluates.
///
/// # Errors
/// [`GraphError::Mismatch`](crate::graph::GraphError::Mismatch) when an array's dtype or shape is not that of its state; when the device fails.
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
                    arena.write_part(start, array);
                }
                start += part.meta.shape.elements();
            }
            executable.write_state(&decl.name, &arena)?;
        }
    }
    Ok(named.iter().map(|(name, _)| name).filter(|name| !known.contains(*name)).cloned().collect())
}
