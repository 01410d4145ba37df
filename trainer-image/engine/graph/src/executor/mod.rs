//! What an executor is: something that compiles programs and runs them.

mod interface;
mod named;
mod states;

use std::sync::Arc;

pub use interface::{Interface, find_program};
pub use named::{read_chosen, read_named, write_named};
pub use states::{find_state, find_state_for, unify_states};

use crate::{
    array::{Array, View},
    collective::{Collective, CollectiveError, Solo},
    graph::{GraphError, Program, StateDecl},
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
    /// A generated kernel does not compile.
    #[error("kernel {kernel} does not compile: {log}")]
    Compile {
        /// Name of the kernel.
        kernel: String,
        /// What the compiler reported.
        log: String,
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
