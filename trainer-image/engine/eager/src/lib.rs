//! The op-by-op executor over Candle: the baseline, and in float64 the oracle. The trainer uses it for `compile: None`,
//! tests compare every other executor with it.
//!
//! Each node becomes the Candle calls that a competent user would write for it: views stay views, constants become
//! `affine`, a value is freed after its last use. Nothing is fused, planned or captured. On the CPU, 16-bit matmuls and
//! reductions are computed in float32 and rounded once, so the results are those of the format even where Candle has no
//! kernel for it.
//!
//! # Example
//! ```
//! use pawl_eager::Eager;
//! use pawl_graph::{
//!     array::View,
//!     executor::{ExecOptions, Executor},
//!     graph::{Builder, DType},
//! };
//! let b = Builder::new("softmax");
//! b.output("y", b.input("x", DType::F64, [2, 2]).softmax());
//! let mut run = Eager::cpu().compile(&[b.finish()?], &ExecOptions::default())?;
//! run.run(0, &[View::F64(&[0.0, 0.0, 0.0, f64::ln(3.0)])])?;
//! let y = run.output(0, 0)?.to_f64();
//! assert!(y.iter().zip([0.5, 0.5, 0.25, 0.75]).all(|(y, exact)| (y - exact).abs() < 1e-12));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(clippy::missing_errors_doc)]

mod attention;
mod convert;
mod error;
mod memory;
mod ops;
mod segments;

use candle_core::{Device, Tensor};

use self::memory::Meter;
use self::ops::{Interpreter, Value};
use pawl_graph::{
    array::{Array, View},
    executor::{
        ExecError, ExecOptions, Executable, Executor, Interface, MemoryReport, find_program, find_state,
        find_state_for, unify_states,
    },
    graph::{Op, Program, StateDecl, initial_values},
    passes::expand_norms,
};

/// The op-by-op executor.
#[derive(Debug, Clone)]
pub struct Eager {
    device: Device,
}

impl Eager {
    /// The executor on the CPU.
    pub fn cpu() -> Self {
        Self { device: Device::Cpu }
    }

    /// The executor on visible GPU `number`, with Candle's kernels.
    ///
    /// # Errors
    /// [`ExecError::Device`] when there is no such GPU.
    #[cfg(feature = "candle-cuda")]
    pub fn cuda(number: usize) -> Result<Self, ExecError> {
        let device = Device::new_cuda(number).map_err(|error| ExecError::Device(format!("GPU {number}: {error}")))?;
        Ok(Self { device })
    }

    /// Free memory in bytes of the GPU; `None` when unknown.
    #[cfg(feature = "candle-cuda")]
    pub fn free_memory(&self) -> Option<usize> {
        use candle_core::cuda_backend::cudarc::driver::result::mem_get_info;
        let Device::Cuda(gpu) = &self.device else { return None };
        gpu.cuda_stream().context().bind_to_thread().ok()?;
        mem_get_info().ok().map(|(free, _)| free)
    }

    /// The executor on a Candle device.
    pub fn on(device: Device) -> Self {
        Self { device }
    }
}

impl Executor for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }

    fn compile(&self, programs: &[Program], options: &ExecOptions) -> Result<Box<dyn Executable>, ExecError> {
        let expanded: Vec<Program> =
            programs.iter().map(|program| expand_norms(program, |_, _| false)).collect::<Result<_, _>>()?;
        let programs = expanded.as_slice();
        for program in programs {
            program.verify()?;
        }
        let (states, places) = unify_states(programs)?;
        let bytes: usize = states.iter().map(|s| s.meta.bytes()).sum();
        let planned = bytes + programs.iter().map(memory::predict).max().unwrap_or(0);
        if let Some(limit) = options.memory_limit.filter(|&limit| planned > limit) {
            return Err(ExecError::OutOfMemory { needed: planned, limit });
        }
        let meter = Meter::default();
        let values = initial_values(&states.iter().collect::<Vec<_>>(), options.seed)?
            .iter()
            .map(|array| Ok(Value::new(convert::to_tensor(array.view(), array.shape(), &self.device)?, &meter)))
            .collect::<Result<Vec<_>, ExecError>>()?;
        let prepared =
            programs.iter().zip(places).map(|(p, place)| PreparedProgram::new(p.clone(), place, &self.device));
        Ok(Box::new(EagerExecutable {
            device: self.device.clone(),
            options: options.clone(),
            programs: prepared.collect::<Result<_, _>>()?,
            declared: states,
            values,
            meter,
            report: MemoryReport { states: bytes, planned, peak: 0 },
        }))
    }
}

/// A program, with the tables that its runs read.
struct PreparedProgram {
    program: Program,
    interface: Interface,
    /// For each state of the program, its index among the states of all programs.
    places: Vec<usize>,
    /// For each node, whether an output or an update depends on it.
    needed: Vec<bool>,
    /// For each node, the values not used after it.
    dying: Vec<Vec<usize>>,
    /// Embedded arrays, uploaded once.
    constants: Vec<Option<Tensor>>,
    /// Outputs of the last run.
    outputs: Vec<Tensor>,
}

impl PreparedProgram {
    fn new(program: Program, places: Vec<usize>, device: &Device) -> Result<Self, ExecError> {
        let needed = program.needed();
        let dying = memory::dying(&program, &needed);
        let upload = |op: &Op| match op {
            Op::Constant(array) => convert::to_tensor(array.view(), array.shape(), device).map(Some),
            _ => Ok(None),
        };
        let constants = program.graph.nodes().iter().map(|n| upload(&n.op)).collect::<Result<_, _>>()?;
        let interface = Interface::new(&program);
        Ok(Self { program, interface, places, needed, dying, constants, outputs: Vec::new() })
    }
}

struct EagerExecutable {
    device: Device,
    options: ExecOptions,
    programs: Vec<PreparedProgram>,
    declared: Vec<StateDecl>,
    values: Vec<Value>,
    meter: Meter,
    report: MemoryReport,
}

impl Executable for EagerExecutable {
    fn run(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        let (meter, device) = (self.meter.clone(), self.device.clone());
        let prepared = find_program(&mut self.programs, program)?;
        prepared.outputs.clear();
        prepared.interface.begin();
        prepared.interface.check_inputs(inputs)?;
        let prepared = &self.programs[program];
        let mut interpreter =
            Interpreter::new(&prepared.program, &prepared.needed, &prepared.constants, &self.options, &device, &meter);
        for (id, node) in prepared.program.graph.iter() {
            if !prepared.needed[id.index()] {
                continue;
            }
            match &node.op {
                Op::Input(input) => {
                    let view = inputs[input.0 as usize];
                    let tensor = convert::to_tensor(view, &node.meta.shape, &device)?;
                    interpreter.set(id, Value::new(tensor, &meter));
                }
                Op::State(state) => interpreter.set(id, self.values[prepared.places[state.0 as usize]].clone()),
                _ => interpreter.compute(id)?,
            }
            for &dead in &prepared.dying[id.index()] {
                interpreter.free(dead);
            }
        }
        let outputs = prepared.program.outputs.iter().map(|o| interpreter.get(o.node).tensor.clone()).collect();
        let updates: Vec<_> = prepared
            .program
            .updates
            .iter()
            .map(|u| (prepared.places[u.state.0 as usize], interpreter.get(u.value).clone()))
            .collect();
        drop(interpreter);
        self.programs[program].outputs = outputs;
        for (place, value) in updates {
            self.values[place] = value.contiguous(&self.meter)?;
        }
        self.programs[program].interface.end();
        Ok(())
    }

    fn output(&mut self, program: usize, output: usize) -> Result<Array, ExecError> {
        let prepared = find_program(&mut self.programs, program)?;
        let meta = prepared.interface.output(output)?;
        Ok(convert::to_array(&prepared.outputs[output], meta)?)
    }

    fn states(&self) -> &[StateDecl] {
        &self.declared
    }

    fn read_state(&mut self, name: &str) -> Result<Array, ExecError> {
        let place = find_state(&self.declared, name)?;
        Ok(convert::to_array(&self.values[place].tensor, &self.declared[place].meta)?)
    }

    fn write_state(&mut self, name: &str, value: &Array) -> Result<(), ExecError> {
        let place = find_state_for(&self.declared, name, value)?;
        let tensor = convert::to_tensor(value.view(), value.shape(), &self.device)?;
        self.values[place] = Value::new(tensor, &self.meter);
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { peak: self.meter.peak(), ..self.report }
    }
}
