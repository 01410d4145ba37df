//! States by name, as checkpoints hold them: independent of the arenas that programs lay them out in.

use std::collections::HashSet;

use super::{ExecError, Executable};
use crate::{
    array::Array,
    graph::{Meta, StateDecl, fits},
};

/// All states by name, arenas taken apart: what a checkpoint holds. Independent of the layout a program was compiled to.
///
/// # Errors
/// When the device fails.
pub fn read_named(executable: &mut dyn Executable) -> Result<Vec<(String, Array)>, ExecError> {
    read_chosen(executable, |_| true)
}

/// The states that `choose` wants, by name, arenas taken apart: see [`read_named`]. Others are not read at all.
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

/// Sets states by name, arenas or not; the opposite of [`read_named`]. Names that are no state are returned: what else is in a checkpoint
/// (the optimiser's slots, when only weights are wanted) is the caller's affair.
///
/// # Errors
/// When an array is not like its state.
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
