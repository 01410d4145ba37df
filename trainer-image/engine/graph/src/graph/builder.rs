//! Building programs.

mod convolution;
mod recurrence;
mod segments;
mod selection;
mod var;

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

use super::{
    DType, GraphError, Init, InputDecl, InputId, Meta, Node, NodeId, Op, Output, Program, Role, Shape, Stage,
    StateDecl, StateId, Update,
};
use crate::array::Array;

pub use selection::{FeatureDropout, FeatureNetworks};
pub use var::{Operand, Var, concat};

/// Builds a [`Program`] from expressions that read like the mathematics.
///
/// A mistake (shapes that do not fit, say) does not panic where it is made: the expression's value is poisoned,
/// everything computed from it too, and [`Builder::finish`] returns the first mistake with the model's source line and
/// scope.
///
/// ```
/// use pawl_graph::graph::{Builder, DType, Init};
/// let b = Builder::new("forward");
/// let x = b.input("x", DType::F32, [8, 3]);
/// let w = b.parameter("w", [4, 3], Init::Uniform { bound: 0.5 });
/// let bias = b.parameter("b", [4], Init::Fill(0.0));
/// let y = (x.matmul_t(w) + bias).tanh();
/// b.output("y", y);
/// let program = b.finish()?;
/// assert_eq!(program.graph.meta(program.output("y")?).shape.dims(), [8, 4]);
/// # Ok::<(), pawl_graph::graph::GraphError>(())
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    program: RefCell<Program>,
    error: RefCell<Option<GraphError>>,
    scope: RefCell<String>,
    stage: Cell<Stage>,
}

impl Builder {
    /// An empty program called `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self::extend(Program { name: name.into(), ..Program::default() })
    }

    /// Continues to build `program`.
    pub fn extend(program: Program) -> Self {
        Self { program: RefCell::new(program), ..Self::default() }
    }

    /// The program, verified.
    ///
    /// # Errors
    /// The first mistake made while building, as [`GraphError::At`]; what [`Program::verify`] finds.
    pub fn finish(self) -> Result<Program, GraphError> {
        if let Some(error) = self.error.into_inner() {
            return Err(error);
        }
        let program = self.program.into_inner();
        program.verify()?;
        Ok(program)
    }

    /// Runs `body` with `name` appended to the scope path: `blocks.3` within which `attn` gives `blocks.3/attn`.
    pub fn scope<T>(&self, name: &str, body: impl FnOnce() -> T) -> T {
        let outer = self.scope.borrow().clone();
        let inner = if outer.is_empty() { name.to_owned() } else { format!("{outer}/{name}") };
        self.within(&inner, body)
    }

    /// Runs `body` with the scope path set to `path`.
    pub fn within<T>(&self, path: &str, body: impl FnOnce() -> T) -> T {
        let outer = self.scope.replace(path.to_owned());
        let result = body();
        self.scope.replace(outer);
        result
    }

    /// Runs `body` with nodes marked as of `stage`.
    pub fn stage<T>(&self, stage: Stage, body: impl FnOnce() -> T) -> T {
        let outer = self.stage.replace(stage);
        let result = body();
        self.stage.set(outer);
        result
    }

    /// Declares an input of `dtype` and `shape`; its data are given to each run.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Var<'_> {
        let meta = Meta::new(dtype, shape);
        let mut program = self.program.borrow_mut();
        if program.inputs.iter().any(|i| i.name == name) {
            drop(program);
            return self.poison(GraphError::Duplicate { kind: "input", name: name.to_owned() });
        }
        let id = InputId(program.inputs.len() as u32);
        program.inputs.push(InputDecl { name: name.to_owned(), meta: meta.clone() });
        drop(program);
        self.leaf(Op::Input(id), meta)
    }

    /// Declares a trainable float32 parameter of `shape`.
    #[track_caller]
    pub fn parameter(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Var<'_> {
        self.state(StateDecl::f32(name, shape, Role::Parameter, init))
    }

    /// Declares a state and reads it; a state with an equal declaration is read again.
    #[track_caller]
    pub fn state(&self, decl: StateDecl) -> Var<'_> {
        let mut program = self.program.borrow_mut();
        let known = program.states.iter().position(|s| s.name == decl.name);
        if known.is_some_and(|i| program.states[i] != decl) {
            drop(program);
            return self.poison(GraphError::Duplicate { kind: "state", name: decl.name });
        }
        let meta = decl.meta.clone();
        let index = known.unwrap_or_else(|| {
            program.states.push(decl);
            program.states.len() - 1
        });
        drop(program);
        self.leaf(Op::State(StateId(index as u32)), meta)
    }

    /// Reads the declared state `id`.
    pub fn read(&self, id: StateId) -> Var<'_> {
        let meta = self.program.borrow().state_decl(id).meta.clone();
        self.leaf(Op::State(id), meta)
    }

    /// An array embedded in the program.
    pub fn constant(&self, array: Array) -> Var<'_> {
        self.push(Op::Constant(Arc::new(array)), &[])
    }

    /// An array of `shape` whose elements are all `value`.
    pub fn fill(&self, value: f64, dtype: DType, shape: impl Into<Shape>) -> Var<'_> {
        self.push(Op::Fill { value, shape: shape.into(), dtype }, &[])
    }

    /// A rank-0 constant of `dtype`.
    pub fn scalar(&self, value: f64, dtype: DType) -> Var<'_> {
        self.fill(value, dtype, Shape::scalar())
    }

    /// An array of `shape`, U32, whose elements are their indices along `axis`.
    #[track_caller]
    pub fn iota(&self, axis: usize, shape: impl Into<Shape>) -> Var<'_> {
        self.push(Op::Iota { axis, shape: shape.into() }, &[])
    }

    /// An array of `shape`, float32, uniform in [0, 1). `counter` is a U32 scalar that must differ for each micro-step
    /// and rank; the stream is keyed by `name`, which must be unique in the program.
    #[track_caller]
    pub fn random<'b>(&'b self, name: &str, counter: Var<'b>, shape: impl Into<Shape>) -> Var<'b> {
        let key = crate::random::stream(0, name);
        self.push(Op::Random { key, shape: shape.into() }, &[counter])
    }

    /// An array of `shape`, float32, standard normal (Box and Muller, from two draws of [`Builder::random`]). `counter`
    /// and `name` as there.
    #[track_caller]
    pub fn normal<'b>(&'b self, name: &str, counter: Var<'b>, shape: impl Into<Shape>) -> Var<'b> {
        let shape = shape.into();
        let uniform = |part: &str| self.random(&format!("{name}.{part}"), counter, shape.clone());
        // 1 - u is in (0, 1]: its logarithm is finite.
        let radius = ((-uniform("radius") + 1.0).log() * -2.0).sqrt();
        radius * (uniform("angle") * std::f64::consts::TAU).cos()
    }

    /// Declares `value` as an output of the program.
    pub fn output(&self, name: &str, value: Var<'_>) {
        if let Some(node) = value.id {
            self.program.borrow_mut().outputs.push(Output { name: name.to_owned(), node });
        }
    }

    /// Sets the next value of the state that `state` reads; `value` has its dtype and shape.
    #[track_caller]
    pub fn update(&self, state: Var<'_>, value: Var<'_>) {
        let (Some(read), Some(value)) = (state.id, value.id) else { return };
        let op = self.program.borrow().graph.node(read).op.clone();
        match op {
            Op::State(state) => self.program.borrow_mut().updates.push(Update { state, value }),
            other => {
                self.poison(GraphError::Operands {
                    op: "update".into(),
                    operands: other.to_string(),
                    reason: "only a state can be updated".into(),
                });
            }
        }
    }

    /// Sets the next value of a declared state; `value` has its dtype and shape.
    pub fn update_state(&self, state: StateId, value: Var<'_>) {
        if let Some(value) = value.id {
            self.program.borrow_mut().updates.push(Update { state, value });
        }
    }

    /// The next value of the state that `state` reads: its update if there is one so far, else its current value.
    pub fn next_of<'b>(&'b self, state: Var<'b>) -> Var<'b> {
        let next = self.peek(|program| {
            let Op::State(id) = program.graph.node(state.id?).op else { return None };
            program.updates.iter().find(|u| u.state == id).map(|u| u.value)
        });
        next.map_or(state, |id| self.var(id))
    }

    /// Calls `look` with the program as built so far.
    pub fn peek<T>(&self, look: impl FnOnce(&Program) -> T) -> T {
        look(&self.program.borrow())
    }

    /// A handle to a node of this program.
    pub fn var(&self, id: NodeId) -> Var<'_> {
        Var { builder: self, id: Some(id) }
    }

    /// Appends `op` in the current scope and stage.
    #[track_caller]
    pub fn push(&self, op: Op, operands: &[Var<'_>]) -> Var<'_> {
        let Some(operands) = operands.iter().map(|v| v.id).collect::<Option<Vec<_>>>() else {
            return Var { builder: self, id: None };
        };
        let pushed = {
            let graph = &mut self.program.borrow_mut().graph;
            let scope = graph.intern_scope(&self.scope.borrow());
            graph.push(op, &operands, scope, self.stage.get())
        };
        // No closure: it would hide the caller's line.
        match pushed {
            Ok(id) => self.var(id),
            Err(error) => self.poison(error),
        }
    }

    /// Appends a copy of `node` over other operands, with its scope and stage.
    pub(crate) fn copy(&self, node: &Node, scope: &str, operands: &[Var<'_>]) -> Var<'_> {
        if operands.is_empty() && matches!(node.op, Op::Input(_) | Op::State(_)) {
            return self.within(scope, || self.stage(node.stage, || self.leaf(node.op.clone(), node.meta.clone())));
        }
        self.within(scope, || self.stage(node.stage, || self.push(node.op.clone(), operands)))
    }

    /// Records a mistake at the caller's line; the first one counts.
    #[track_caller]
    pub(crate) fn poison(&self, error: GraphError) -> Var<'_> {
        let location = Location::caller();
        let scope = self.scope.borrow();
        self.error.borrow_mut().get_or_insert_with(|| GraphError::At {
            source: Box::new(error),
            location: format!("{}:{}", location.file(), location.line()),
            scope: if scope.is_empty() { String::new() } else { format!(", in scope {scope}") },
        });
        Var { builder: self, id: None }
    }

    fn leaf(&self, op: Op, meta: Meta) -> Var<'_> {
        let graph = &mut self.program.borrow_mut().graph;
        let scope = graph.intern_scope(&self.scope.borrow());
        let id = graph.push_unchecked(Node { op, operands: Vec::new(), meta, scope, stage: self.stage.get() });
        self.var(id)
    }
}
