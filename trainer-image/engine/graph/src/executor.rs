//! What an executor is: something that compiles programs and runs them.

use std::sync::Arc;

use crate::{
    array::{Array, View},
    collective::{Collective, CollectiveError, Solo},
    graph::{GraphError, Meta, Program, StateDecl},
};

/// Choices that hold for all programs compiled together.
#[derive(Clone)]
pub struct ExecOptions {
    /// Seed of the first values of the states.
    pub seed: u64,
    /// The gang that collectives sum over.
    pub collective: Arc<dyn Collective>,
    /// Refuse to compile what needs more bytes than this for states and values.
    pub memory_limit: Option<usize>,
}

impl Default for ExecOptions {
    /// Seed 0, a gang of one, no limit.
    fn default() -> Self {
        Self { seed: 0, collective: Arc::new(Solo), memory_limit: None }
    }
}

/// Bytes of device memory for states and values together. Code, handles and host copies of inputs are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryReport {
    /// Bytes of the states alone.
    pub states: usize,
    /// Predicted peak, known before the first run.
    pub planned: usize,
    /// Highest so far, measured.
    pub peak: usize,
}

/// Why something could not be compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The program, an input or a state is not what it has to be.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// It would not fit.
    #[error("program needs {needed} bytes of memory and may use {limit}: use a smaller batch or recomputation")]
    OutOfMemory {
        /// Bytes needed.
        needed: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// This executor cannot run this.
    #[error("{executor} cannot run {what}")]
    Unsupported {
        /// Name of the executor.
        executor: &'static str,
        /// The operator or dtype.
        what: String,
    },
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// An index of a gather or scatter is out of range.
    #[error("index {index} at {op} is not below {extent}")]
    Index {
        /// The operator.
        op: String,
        /// The index.
        index: u32,
        /// Extent of the axis.
        extent: usize,
    },
    /// The device or its library failed.
    #[error("device: {0}")]
    Device(String),
}

/// Compiles programs.
pub trait Executor {
    /// Name in reports: `eager`, `graph-cpu`.
    fn name(&self) -> &'static str;

    /// Compiles programs that share states of equal name (which must be declared alike), and gives the states their first
    /// values.
    ///
    /// # Errors
    /// When a program is ill-formed, does not fit, or has something this executor cannot run.
    fn compile(&self, programs: &[Program], options: &ExecOptions) -> Result<Box<dyn Executable>, ExecError>;
}

/// Compiled programs with their states. One run at a time.
pub trait Executable: Send {
    /// Runs program `program` (index into what was compiled): computes outputs and updates states. `inputs` are in the order
    /// of [`Program::inputs`]; they may be released when this returns. On devices this only queues the work.
    ///
    /// # Errors
    /// When an input does not fit its declaration, or something fails while running: states are then undefined.
    fn run(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError>;

    /// Begins to bring the first inputs of the next run of `program` to the device while what is queued goes on. That run is then given these
    /// inputs again, and more if the program has more; those that were brought are not copied a second time. Where inputs lie where they are
    /// used, there is nothing to do.
    ///
    /// # Errors
    /// When an input does not fit its declaration, or the device fails.
    fn prefetch(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        let _ = (program, inputs);
        Ok(())
    }

    /// Seconds of each update in which the device waits for optimiser state that lies in host memory; `None` when none does.
    fn offload_seconds(&self) -> Option<f64> {
        None
    }

    /// Output `output` (index into [`Program::outputs`]) of the last run of `program`. Waits for the device.
    ///
    /// # Errors
    /// When the program has not run, or its run failed.
    fn output(&mut self, program: usize, output: usize) -> Result<Array, ExecError>;

    /// All states of all programs.
    fn states(&self) -> &[StateDecl];

    /// A state's value.
    ///
    /// # Errors
    /// When there is no such state.
    fn read_state(&mut self, name: &str) -> Result<Array, ExecError>;

    /// Sets a state's value.
    ///
    /// # Errors
    /// When there is no such state, or the array is not like it.
    fn write_state(&mut self, name: &str, value: &Array) -> Result<(), ExecError>;

    /// Memory, predicted and measured.
    fn memory(&self) -> MemoryReport;
}

/// The states of programs compiled together, each once, in order of first appearance; and for each program, where its states are in that list.
///
/// # Errors
/// When two programs declare one name differently.
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
    let mut known = std::collections::HashSet::new();
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
                    crate::graph::fits(&format!("state `{}`", part.name), &part.meta, &got)?;
                    arena.write_part(start, array);
                }
                start += part.meta.shape.elements();
            }
            executable.write_state(&decl.name, &arena)?;
        }
    }
    Ok(named.iter().map(|(name, _)| name).filter(|name| !known.contains(*name)).cloned().collect())
}

/// Refuses programs that are ill-formed, or have values without elements, which generated kernels cannot loop over.
///
/// # Errors
/// What [`Program::verify`] finds; [`ExecError::Unsupported`] naming the operator whose value has no elements.
pub fn check_programs(programs: &[Program], executor: &'static str) -> Result<(), ExecError> {
    for program in programs {
        program.verify()?;
        if let Some(node) = program.graph.nodes().iter().find(|n| n.meta.shape.elements() == 0) {
            let what = format!("{} with no elements: {}", node.op, node.meta);
            return Err(ExecError::Unsupported { executor, what });
        }
    }
    Ok(())
}

/// Checks that `inputs` are what `program` declares.
///
/// # Errors
/// [`GraphError::Mismatch`] naming the first input that does not fit.
pub fn check_inputs(program: &Program, inputs: &[View<'_>]) -> Result<(), GraphError> {
    let nothing = View::Bool(&[]);
    for i in 0..program.inputs.len().max(inputs.len()) {
        let given = inputs.get(i).unwrap_or(&nothing);
        let (name, wanted) = match program.inputs.get(i) {
            Some(decl) => (decl.name.as_str(), decl.meta.clone()),
            None => ("(none: there are fewer inputs)", Meta::new(given.dtype(), [0])),
        };
        if given.dtype() != wanted.dtype || given.len() != wanted.shape.elements() {
            return Err(GraphError::Mismatch {
                what: format!("input `{name}` of program {}", program.name),
                dtype: wanted.dtype,
                shape: wanted.shape,
                got_dtype: given.dtype(),
                got_shape: [given.len()].into(),
            });
        }
    }
    Ok(())
}
