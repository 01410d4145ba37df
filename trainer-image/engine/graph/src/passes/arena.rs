//! Arenas: many small states as one flat one, so that one kernel updates them all.

use crate::graph::{GraphError, Init, Meta, Op, Program, Role, Shape, StateDecl, StateId};

use super::rewrite::rewrite;

/// A state that holds other states, concatenated.
#[derive(Debug, Clone, PartialEq)]
pub struct Arena {
    /// Name of the state.
    pub name: String,
    /// Its shape: flat, or `[parts, rows, columns]` for parts of one shape.
    pub shape: Shape,
    /// What it holds, in order; all float32.
    pub parts: Vec<StateDecl>,
}

impl Arena {
    /// The state's declaration, whose [`Init::Parts`] lists the parts in order.
    pub fn decl(&self) -> StateDecl {
        let role = self.parts.first().map_or(Role::Parameter, |p| p.role);
        StateDecl::f32(&self.name, &self.shape, role, Init::Parts(self.parts.clone()))
    }
}

/// Replaces every read of a state that one of the arenas holds by a slice of the arena; where the state is cast, by a
/// slice of the cast arena, so that one kernel casts all. Values are unchanged; checkpoints still store each part by
/// its name (see [`read_named`](crate::executor::read_named)).
///
/// # Errors
/// When the program is ill-formed.
pub fn place_in_arenas(program: &Program, arenas: &[Arena]) -> Result<Program, GraphError> {
    let mut source = program.clone();
    let mut place = vec![None; source.states.len()];
    for arena in arenas {
        let id = StateId(source.states.len() as u32);
        let mut offset = 0;
        for part in &arena.parts {
            if let Ok(known) = program.state(&part.name) {
                place[known.0 as usize] = Some((id, offset));
            }
            offset += part.meta.shape.elements();
        }
        source.states.push(arena.decl());
    }
    let placed_state = |op: &Op| match op {
        Op::State(state) => place.get(state.0 as usize).copied().flatten(),
        _ => None,
    };
    let placed = rewrite(&source, |visit| {
        let (of, dtype) = match visit.node.op {
            Op::Cast(dtype) => (&source.graph.node(visit.node.operands[0]).op, Some(dtype)),
            _ => (&visit.node.op, None),
        };
        let Some((arena, offset)) = placed_state(of) else { return visit.copy() };
        visit.here(|| {
            let all = visit.b.read(arena);
            let all = dtype.map_or(all, |dtype| all.cast(dtype));
            let Meta { shape, .. } = &visit.node.meta;
            all.reshape([all.shape().elements()]).slice(0, offset, shape.elements()).reshape(shape)
        })
    })?;
    Ok(prune_states(placed))
}

/// Removes declarations of states that are neither read nor updated.
pub fn prune_states(mut program: Program) -> Program {
    let mut used = vec![false; program.states.len()];
    for node in program.graph.nodes() {
        if let Op::State(state) = node.op {
            used[state.0 as usize] = true;
        }
    }
    for update in &program.updates {
        used[update.state.0 as usize] = true;
    }
    let mut renamed = Vec::with_capacity(used.len());
    let mut kept = 0;
    for &used in &used {
        renamed.push(StateId(kept));
        kept += u32::from(used);
    }
    let mut keep = used.iter();
    program.states.retain(|_| keep.next().copied().unwrap_or(false));
    program.graph.rename_states(&renamed);
    for update in &mut program.updates {
        update.state = renamed[update.state.0 as usize];
    }
    program
}
