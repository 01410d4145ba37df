//! The states of programs that are compiled together.

use crate::{
    array::Array,
    graph::{GraphError, Meta, Program, StateDecl, fits},
};

/// The states of programs compiled together, each once, in order of first appearance; and for each program, the indices
/// of its states in that list.
///
/// # Errors
/// [`GraphError::Duplicate`] when two programs declare one name differently.
pub fn unify_states(programs: &[Program]) -> Result<(Vec<StateDecl>, Vec<Vec<usize>>), GraphError> {
    let mut all: Vec<StateDecl> = Vec::new();
    let mut places = Vec::with_capacity(programs.len());
    for program in programs {
        let mut of_program = Vec::with_capacity(program.states.len());
        for decl in &program.states {
            let place = match all.iter().position(|s| s.name == decl.name) {
                Some(place) if all[place] == *decl => place,
                Some(_) => {
                    let name = format!("{} (differently in program {})", decl.name, program.name);
                    return Err(GraphError::Duplicate { kind: "state", name });
                }
                None => {
                    all.push(decl.clone());
                    all.len() - 1
                }
            };
            of_program.push(place);
        }
        places.push(of_program);
    }
    Ok((all, places))
}

/// The index of the state `name` in `states`.
///
/// # Errors
/// [`GraphError::Unknown`] naming all states when there is no such state.
pub fn find_state(states: &[StateDecl], name: &str) -> Result<usize, GraphError> {
    states.iter().position(|s| s.name == name).ok_or_else(|| GraphError::Unknown {
        kind: "state",
        name: name.to_owned(),
        known: states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

/// The index in `states` of the state `name`, after a check that `value` has its dtype and shape.
///
/// # Errors
/// As [`find_state`]; [`GraphError::Mismatch`] when the value's dtype or shape is not the state's.
pub fn find_state_for(states: &[StateDecl], name: &str, value: &Array) -> Result<usize, GraphError> {
    let place = find_state(states, name)?;
    fits(&format!("state `{name}`"), &states[place].meta, &Meta::new(value.dtype(), value.shape()))?;
    Ok(place)
}
