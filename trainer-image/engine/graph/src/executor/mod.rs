//! The interface of executors, which compile programs and run them.

mod interface;
mod named;
mod segments;
mod states;

use std::sync::Arc;
use std::time::Duration;

pub use interface::{Interface, find_program};
pub use named::{read_chosen, read_named, write_named};
pub use segments::check_offsets;
pub use states::{find_state, find_state_for, unify_states};

use crate::{
    array::{Array, View},
    collective::{Collective, CollectiveError, SingleRank},
    graph::{GraphError, Program, StateDecl},
};

/// Choices that hold for all programs compiled together.
#[derive(Clone)]
pub struct ExecOptions {
    /// Seed of the initial values of the states.
    pub seed: u64,
    /// The gang that collectives sum over.
    pub collective: Arc<dyn Collective>,
    /// Bytes that states and values may take together; compilation of programs that need more fails. `None`: no limit.
    pub memory_limit: Option<usize>,
    /// Called after each compiled kernel or program, on any thread: compiling a large model may take minutes.
    pub on_compiled: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl ExecOptions {
    /// Reports that a kernel or a program is compiled.
    pub fn compiled(&self) {
        if let Some(report) = &self.on_compiled {
            report();
        }
    }
}

impl Default for ExecOptions {
    /// Seed 0, a gang of one, no limit.
    fn default() -> Self {
        Self { seed: 0, collective: Arc::new(SingleRank), memory_limit: None, on_compiled: None }
    }
}

/// Memory of states and values on the device, in bytes. Code, handles and host copies of inputs are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryReport {
    /// Bytes of the states alone.
    pub states: usize,
    /// Predicted peak in bytes, states included, known before the first run.
    pub planned: usize,
    /// Measured peak in bytes so far.
    pub peak: usize,
}

/// An error of compiling or running a program.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The program is ill-formed, or an input or state does not match its declaration.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The program does not fit in memory.
    #[error("program needs {needed} bytes of memory and may use {limit}: use a smaller batch or recomputation")]
    OutOfMemory {
        /// Bytes needed.
        needed: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The executor does not support an operator or dtype.
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
    /// An offset of segments is out of order, or beyond the rows.
    #[error(
        "offset {offset} at {op} is not between {low} and {high}: offsets of segments ascend to at most the number of rows"
    )]
    Offset {
        /// The operator.
        op: String,
        /// The offset.
        offset: u32,
        /// The offset before it.
        low: u32,
        /// Number of rows.
        high: usize,
    },
    /// A generated kernel does not compile.
    #[error("kernel {kernel} does not compile: {log}")]
    Compile {
        /// Name of the kernel.
        kernel: String,
        /// The compiler's log.
        log: String,
    },
    /// The device or its library failed.
    #[error("device: {0}")]
    Device(String),
}

/// Compiles programs for a device. `pawl-cpu` and `pawl-eager` have examples.
pub trait Executor {
    /// Name in reports: `eager`, `graph-cpu`.
    fn name(&self) -> &'static str;

    /// Compiles programs that share states of equal name (whose declarations must be equal), and initialises the
    /// states.
    ///
    /// # Errors
    /// When a program is ill-formed, does not fit in memory, or has an operator or dtype that this executor does not
    /// support.
    fn compile(&self, programs: &[Program], options: &ExecOptions) -> Result<Box<dyn Executable>, ExecError>;
}

/// Compiled programs with their states. One run at a time.
pub trait Executable: Send {
    /// Runs program `program` (an index into the programs that were compiled): computes outputs and updates states.
    /// `inputs` are in the order of [`Program::inputs`], of the declared dtypes and numbers of elements; they may be
    /// released when this returns. On a GPU the work is only queued.
    ///
    /// # Errors
    /// When an input does not match its declaration, or the run fails: states are then undefined.
    fn run(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError>;

    /// Starts to copy the first inputs of the next run of `program` to the device while queued work continues. The next
    /// [`Executable::run`] must be given the same inputs again, and the remaining ones; those that were prefetched are
    /// not copied a second time. Does nothing on executors that read inputs in place.
    ///
    /// # Errors
    /// When an input does not match its declaration, or the device fails.
    fn prefetch(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        let _ = (program, inputs);
        Ok(())
    }

    /// Time so far in which the device ran kernels that access optimiser state in host memory, as of the newest
    /// [`Executable::output`]; `None` when no state is offloaded.
    fn offload_time(&self) -> Option<Duration> {
        None
    }

    /// Time for which the device has waited for other ranks in collectives of its own so far, as of the newest
    /// [`Executable::output`]. Zero when ranks are summed over by [`ExecOptions::collective`], which counts its own
    /// time.
    fn collective_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Output `output` (an index into [`Program::outputs`]) of the last run of `program`, of the dtype and shape of its
    /// node. Waits for the device.
    ///
    /// # Errors
    /// When there is no such output, or the program has not run, or its run failed.
    fn output(&mut self, program: usize, output: usize) -> Result<Array, ExecError>;

    /// The states of all programs, each once.
    fn states(&self) -> &[StateDecl];

    /// A state's value, of its declared dtype and shape. Waits for the device.
    ///
    /// # Errors
    /// When there is no such state, or the device fails.
    fn read_state(&mut self, name: &str) -> Result<Array, ExecError>;

    /// Sets a state's value.
    ///
    /// # Errors
    /// When there is no such state, the array's dtype or shape differs from its declaration, or the device fails.
    fn write_state(&mut self, name: &str, value: &Array) -> Result<(), ExecError>;

    /// Memory, predicted and measured.
    fn memory(&self) -> MemoryReport;
}

/// Rejects programs that are ill-formed, or have values without elements, which generated kernels do not support.
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
