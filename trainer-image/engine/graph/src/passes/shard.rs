//! Fully sharded parameters: each rank holds a part of each arena, and all ranks gather the whole where the model reads
//! it.

use std::collections::HashMap;

use super::{Arena, prune_states, rewrite::rewrite};
use crate::graph::{Builder, DType, GraphError, NodeId, Op, Program, Seat, Stage, StateId, Var};

/// Replaces every read of a parameter that one of the arenas holds by a slice of the arena, gathered from the shards of
/// all ranks: directly before the forward pass first reads one of its parameters, and once more before the backward
/// pass does, so that no arena is kept from one to the other. With the gathering of an arena, that of the one that is
/// read next starts too, so that an executor with a second stream overlaps it with the work in between.
///
/// Values are unchanged. To be run after differentiation. The design is that of PyTorch's FSDP2 (one group a block,
/// prefetched, gathered again in the backward pass), as a compiler pass.
///
/// # Errors
/// When the program is ill-formed.
pub fn gather_shards(program: &Program, arenas: &[Arena], seat: Seat) -> Result<Program, GraphError> {
    let mut source = program.clone();
    let mut places: HashMap<StateId, Place> = HashMap::new();
    let mut shards = Vec::new();
    for (index, arena) in arenas.iter().enumerate() {
        shards.push(StateId(source.states.len() as u32));
        source.states.push(arena.decl().shard(seat));
        let mut offset = 0;
        for part in &arena.parts {
            if let Ok(known) = program.state(&part.name) {
                places.insert(known, Place { arena: index, offset });
            }
            offset += part.meta.shape.elements();
        }
    }
    let derived = derived(&source, &places);
    let mut is_root = vec![false; source.graph.len()];
    source.roots().for_each(|root| is_root[root.index()] = true);
    let order = [Pass::Forward, Pass::Backward].map(|pass| order_of(&source, pass, &derived, &places));
    let mut copies = Copies {
        source: &source,
        places: &places,
        shards: &shards,
        seat,
        order: &order,
        made: HashMap::new(),
        gathered: HashMap::new(),
    };
    let mut placed: Vec<Option<NodeId>> = vec![None; source.graph.len()];
    let rebuilt = rewrite(&source, |visit| {
        let value = if derived[visit.id.index()] {
            // What the passes read are copies, made where they are needed; the node itself is left to be dropped.
            if is_root[visit.id.index()] { copies.of(visit.b, visit.id, (Pass::Forward, None)) } else { visit.copy() }
        } else {
            let kept = visit.node.operands.iter().filter(|operand| !derived[operand.index()]);
            let token = kept.max().and_then(|operand| placed[operand.index()]);
            let reader = match Pass::of(visit.node.stage) {
                // Without anything to wait for, it would be gathered at the start of the program.
                Pass::Backward if token.is_some() => (Pass::Backward, token),
                Pass::Backward | Pass::Forward => (Pass::Forward, None),
            };
            let operands: Vec<Var<'_>> = visit
                .node
                .operands
                .iter()
                .zip(visit.operands)
                .map(|(&id, &value)| if derived[id.index()] { copies.of(visit.b, id, reader) } else { value })
                .collect();
            visit.b.copy(visit.node, visit.scope, &operands)
        };
        placed[visit.id.index()] = value.id();
        value
    })?;
    Ok(prune_states(rewrite(&rebuilt, |visit| visit.copy())?))
}

/// Where an arena holds a parameter.
#[derive(Clone, Copy)]
struct Place {
    arena: usize,
    offset: usize,
}

/// The part of a step that reads a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    Forward,
    /// Gradients, and what is recomputed for them.
    Backward,
}

impl Pass {
    fn of(stage: Stage) -> Self {
        if stage == Stage::Forward { Self::Forward } else { Self::Backward }
    }
}

/// Whether each node is a parameter of an arena in another layout or dtype: cheaper to make again than to keep.
fn derived(program: &Program, places: &HashMap<StateId, Place>) -> Vec<bool> {
    let mut derived = vec![false; program.graph.len()];
    for (id, node) in program.graph.iter() {
        derived[id.index()] = match (&node.op, node.operands.as_slice()) {
            (Op::State(state), _) => places.contains_key(state),
            (Op::Cast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. }, [operand]) => derived[operand.index()],
            _ => false,
        };
    }
    derived
}

/// The arenas in the order in which a pass first reads them.
fn order_of(program: &Program, pass: Pass, derived: &[bool], places: &HashMap<StateId, Place>) -> Vec<usize> {
    let mut order = Vec::new();
    for (_, node) in program.graph.iter().filter(|(id, node)| Pass::of(node.stage) == pass && !derived[id.index()]) {
        for &operand in node.operands.iter().filter(|operand| derived[operand.index()]) {
            let mut source = operand;
            while let [inner] = program.graph.node(source).operands[..] {
                source = inner;
            }
            if let Op::State(state) = program.graph.node(source).op
                && let Some(Place { arena, .. }) = places.get(&state)
                && !order.contains(arena)
            {
                order.push(*arena);
            }
        }
    }
    order
}

struct Copies<'p> {
    source: &'p Program,
    places: &'p HashMap<StateId, Place>,
    /// The state of each arena's shard.
    shards: &'p [StateId],
    seat: Seat,
    /// The arenas in the order in which each pass reads them.
    order: &'p [Vec<usize>; 2],
    /// Copies of derived nodes, for each pass.
    made: HashMap<(NodeId, Pass), NodeId>,
    /// Gathered arenas, for each pass; cast, if the pass reads them so.
    gathered: HashMap<(usize, Pass, Option<DType>), NodeId>,
}

impl Copies<'_> {
    /// What a pass reads for a derived node: gathered not before `token`.
    fn of<'b>(&mut self, b: &'b Builder, id: NodeId, (pass, token): (Pass, Option<NodeId>)) -> Var<'b> {
        if let Some(&made) = self.made.get(&(id, pass)) {
            return b.var(made);
        }
        let source = self.source;
        let node = source.graph.node(id);
        let (read, dtype) = match (&node.op, &node.operands[..]) {
            (Op::Cast(dtype), [inner]) => (source.graph.node(*inner), Some(*dtype)),
            _ => (node, None),
        };
        let place = match read.op {
            Op::State(state) => self.places.get(&state).copied(),
            _ => None,
        };
        let stage = if pass == Pass::Forward { Stage::Forward } else { Stage::Recompute };
        let copy = match place {
            Some(Place { arena, offset }) => {
                let all = self.whole(b, (arena, pass, dtype), token);
                b.within(source.graph.scope(node.scope), || {
                    b.stage(stage, || all.slice(0, offset, node.meta.shape.elements()).reshape(&node.meta.shape))
                })
            }
            None => {
                let operands: Vec<Var<'b>> = node.operands.iter().map(|&o| self.of(b, o, (pass, token))).collect();
                let mut node = node.clone();
                node.stage = stage;
                b.copy(&node, source.graph.scope(node.scope), &operands)
            }
        };
        self.made.extend(copy.id().map(|made| ((id, pass), made)));
        copy
    }

    /// An arena, flat, gathered and cast. The next one of the pass is gathered too.
    fn whole<'b>(
        &mut self,
        b: &'b Builder,
        (arena, pass, dtype): (usize, Pass, Option<DType>),
        token: Option<NodeId>,
    ) -> Var<'b> {
        let all = self.gather(b, arena, pass, token);
        let order = &self.order[usize::from(pass == Pass::Backward)];
        let next = order.iter().position(|known| *known == arena).and_then(|place| order.get(place + 1));
        if let Some(&next) = next {
            self.gather(b, next, pass, token);
        }
        let Some(dtype) = dtype else { return all };
        if let Some(&cast) = self.gathered.get(&(arena, pass, Some(dtype))) {
            return b.var(cast);
        }
        let cast = self.here(b, pass, || all.cast(dtype));
        self.gathered.extend(cast.id().map(|cast| ((arena, pass, Some(dtype)), cast)));
        cast
    }

    fn gather<'b>(&mut self, b: &'b Builder, arena: usize, pass: Pass, token: Option<NodeId>) -> Var<'b> {
        if let Some(&known) = self.gathered.get(&(arena, pass, None)) {
            return b.var(known);
        }
        let Seat { world, .. } = self.seat;
        let all = self.here(b, pass, || {
            let own = b.read(self.shards[arena]);
            let own = token.map_or(own, |token| own.after(b.var(token)));
            b.push(Op::AllGather { world }, &[own.reshape([own.shape().elements()])])
        });
        self.gathered.extend(all.id().map(|all| ((arena, pass, None), all)));
        all
    }

    fn here<T>(&self, b: &Builder, pass: Pass, body: impl FnOnce() -> T) -> T {
        let stage = if pass == Pass::Forward { Stage::Forward } else { Stage::Recompute };
        b.within("gather", || b.stage(stage, body))
    }
}
