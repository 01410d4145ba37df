//! The op-by-op executor over Candle: the honest baseline, and in float64 the oracle.
//!
//! Each node becomes the Candle calls that a competent user would write for it: views stay views, constants become `affine`, a value is
//! freed after its last use. Nothing is fused, planned or captured. On the CPU, 16-bit matmuls and reductions are computed in float32 and rounded
//! once, so the numbers are those of the format even where Candle has no kernel for it.

mod attention;
mod convert;
mod error;
mod memory;
mod ops;

use candle_core::{Device, Tensor};

use self::memory::Meter;
use self::ops::{Interpreter, Value};
use pawl_graph::{
    array::{Array, View},
    executor::{ExecError, ExecOptions, Executable, Executor, MemoryReport, check_inputs, unify_states},
    graph::{GraphError, Meta, Op, Program, StateDecl, fits, initial_values},
    passes::expand_norms,
};

/// The op-by-op executor.
#[derive(Debug, Clone)]
pub struct Eager {
    device: Device,
}

impl Eager {
    /// On the CPU.
    pub fn cpu() -> Self {
        Self { device: Device::Cpu }
    }

    /// On a Candle device.
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
        let plans = programs.iter().zip(places).map(|(p, place)| Plan::new(p.clone(), place, &self.device));
        Ok(Box::new(EagerExecutable {
            device: self.device.clone(),
            options: options.clone(),
            programs: plans.collect::<Result<_, _>>()?,
            declared: states,
            values,
            meter,
            report: MemoryReport { states: bytes, planned, peak: 0 },
        }))
    }
}

/// A program with what is known about it before it runs.
struct Plan {
    program: Program,
    /// For each state of the program, its place among all states.
    places: Vec<usize>,
    /// For each node, whether anything asked for depends on it.
    needed: Vec<bool>,
    /// For each node, the values not used after it.
    dying: Vec<Vec<usize>>,
    /// Embedded arrays, uploaded once.
    constants: Vec<Option<Tensor>>,
    outputs: Vec<Option<Tensor>>,
}

impl Plan {
    fn new(program: Program, places: Vec<usize>, device: &Device) -> Result<Self, ExecError> {
        let needed = program.needed();
        let dying = memory::dying(&program, &needed);
        let upload = |op: &Op| match op {
            Op::Constant(array) => convert::to_tensor(array.view(), array.shape(), device).map(Some),
            _ => Ok(None),
        };
        let constants = program.graph.nodes().iter().map(|n| upload(&n.op)).collect::<Result<_, _>>()?;
        let outputs = vec![None; program.outputs.len()];
        Ok(Self { program, places, needed, dying, constants, outputs })
    }
}

struct EagerExecutable {
    device: Device,
    options: ExecOptions,
    programs: Vec<Plan>,
    declared: Vec<StateDecl>,
    values: Vec<Value>,
    meter: Meter,
    report: MemoryReport,
}

impl EagerExecutable {
    fn place(&self, name: &str) -> Result<usize, GraphError> {
        self.declared.iter().position(|s| s.name == name).ok_or_else(|| GraphError::Unknown {
            kind: "state",
            name: name.to_owned(),
            known: self.declared.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    fn plan(&mut self, program: usize) -> Result<&mut Plan, GraphError> {
        let count = self.programs.len();
        self.programs.get_mut(program).ok_or_else(|| GraphError::Unknown {
            kind: "program",
            name: program.to_string(),
            known: format!("0..{count}"),
        })
    }
}

impl Executable for EagerExecutable {
    fn run(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        let (meter, device) = (self.meter.clone(), self.device.clone());
        let plan = self.plan(program)?;
        plan.outputs.fill(None);
        check_inputs(&plan.program, inputs)?;
        let plan = &self.programs[program];
        let mut interpreter =
            Interpreter::new(&plan.program, &plan.needed, &plan.constants, &self.options, &device, &meter);
        for (id, node) in plan.program.graph.iter() {
            if !plan.needed[id.index()] {
                continue;
            }
            match &node.op {
                Op::Input(input) => {
                    let view = inputs[input.0 as usize];
                    let tensor = convert::to_tensor(view, &node.meta.shape, &device)?;
                    interpreter.set(id, Value::new(tensor, &meter));
                }
                Op::State(state) => interpreter.set(id, self.values[plan.places[state.0 as usize]].clone()),
                _ => interpreter.compute(id)?,
            }
            for &dead in &plan.dying[id.index()] {
                interpreter.free(dead);
            }
        }
        let outputs = plan.program.outputs.iter().map(|o| Some(interpreter.get(o.node).tensor.clone())).collect();
        let updates: Vec<_> = plan
            .program
            .updates
            .iter()
            .map(|u| (plan.places[u.state.0 as usize], interpreter.get(u.value).clone()))
            .collect();
        drop(interpreter);
        self.programs[program].outputs = outputs;
        for (place, value) in updates {
            self.values[place] = value.contiguous(&self.meter)?;
        }
        Ok(())
    }

    fn output(&mut self, program: usize, output: usize) -> Result<Array, ExecError> {
        let plan = self.plan(program)?;
        let unknown = || GraphError::Unknown {
            kind: "output of a finished run",
            name: output.to_string(),
            known: plan.program.outputs.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(", "),
        };
        let tensor = plan.outputs.get(output).and_then(Option::as_ref).ok_or_else(unknown)?;
        Ok(convert::to_array(tensor, plan.program.graph.meta(plan.program.outputs[output].node))?)
    }

    fn states(&self) -> &[StateDecl] {
        &self.declared
    }

    fn read_state(&mut self, name: &str) -> Result<Array, ExecError> {
        let place = self.place(name)?;
        Ok(convert::to_array(&self.values[place].tensor, &self.declared[place].meta)?)
    }

    fn write_state(&mut self, name: &str, value: &Array) -> Result<(), ExecError> {
        let place = self.place(name)?;
        let got = Meta::new(value.dtype(), value.shape());
        fits(&format!("state `{name}`"), &self.declared[place].meta, &got)?;
        let tensor = convert::to_tensor(value.view(), value.shape(), &self.device)?;
        self.values[place] = Value::new(tensor, &self.meter);
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { peak: self.meter.peak(), ..self.report }
    }
}
