//! The model as ONNX has it, and an example of its inputs and outputs.

use super::{Options, failed, of_file};
use crate::ending::Ending;
use crate::workload::ending;
use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_graph::array::{Array, View};
use pawl_graph::executor::{ExecError, ExecOptions, Executor as _};
use pawl_graph::graph::{Init, Meta, Program, Role, StateDecl};
use pawl_graph::passes::expand_attention;
use pawl_onnx::{MOST_INSIDE, OnnxError, Traced};
use pawl_workloads::layered::overlay;
use pawl_workloads::model_file::{FloatFormat, ModelFile};
use pawl_workloads::slm::Slm;
use pawl_workloads::slm::hugging_face::WeightFiles;
use pawl_workloads::{Inference, Request, Workload as _};
use serde_json::{Value, json};
use std::path::Path;
use std::{fs, io};

/// The model; its weights are inside, or in the file of the weights beside it.
const MODEL: &str = "model.onnx";
/// The directory of the example: a program that reads all weights of a directory does not take it for some of them.
const BESIDE: &str = "onnx";
/// Inputs of a batch and the outputs of the model for them, by their names.
const EXAMPLE: &str = "example.safetensors";
/// Batch sizes whose programs are compared; the example has the first.
const BATCHES: [usize; 3] = [2, 3, 5];

/// Checks that the model is written with weights that an ONNX model has.
///
/// # Errors
/// [`Ending::InvalidPlan`] names the option.
pub fn check(options: &Options) -> Result<(), Ending> {
    let excluded = match (options.onnx, options.adapter, options.format) {
        (true, true, _) => "--adapter, which writes a part of the model",
        (true, _, FloatFormat::Bf16) => "--dtype bf16, as its weights are fp32",
        _ => return Ok(()),
    };
    Err(Ending::InvalidPlan(format!("--onnx: excludes {excluded}: leave one of them out")))
}

/// Writes the model of the workload `name`, whose weights are in `to`, in ONNX's format and with an example.
///
/// # Errors
/// [`Ending::InvalidPlan`] when an operation has no counterpart in ONNX; when writing fails.
pub fn write(name: &str, request: &Request, to: &Path) -> Result<(), Ending> {
    let job = pawl_workloads::workload(name).and_then(|workload| workload.prepare(&plain(name, request)));
    let job = job.map_err(ending)?;
    let weights = WeightFiles::open(to).map_err(ending)?;
    let inferences: Vec<Inference> =
        BATCHES.iter().map(|&batch| job.inference(batch)).collect::<Result<_, _>>().map_err(ending)?;
    let traced = BATCHES.iter().zip(&inferences).map(|(&batch, inference)| {
        let mut program = inference.program.clone();
        program.states.iter_mut().try_for_each(|state| locate(state, &weights))?;
        Ok(Traced { batch, program })
    });
    let traced = traced.collect::<Result<Vec<_>, Ending>>()?;
    let model = pawl_onnx::export(&traced, MOST_INSIDE).map_err(|error| {
        let message = error.to_string();
        match error {
            OnnxError::Operation { .. } => Ending::InvalidPlan(format!("--onnx: {message}: leave it out")),
            OnnxError::Nothing | OnnxError::Weight(_) => Ending::Failed(message),
        }
    })?;
    let unwritten = |error: io::Error| failed(format!("{}: {error}", to.join(MODEL).display()), &error);
    pawl_durable::write(&to.join(MODEL), &model.bytes).map_err(unwritten)?;
    fs::create_dir(to.join(BESIDE)).map_err(unwritten)?;
    let (program, inputs) = (&traced[0].program, &inferences[0].example);
    let outputs = run(program, inputs).map_err(|error| Ending::Failed(format!("--onnx: {error}")))?;
    let named = program.inputs.iter().map(|decl| decl.name.as_str()).zip(inputs);
    let named = named.filter(|(name, _)| model.inputs.iter().any(|input| input == name));
    let all: Vec<(&str, &Array)> = named.chain(outputs.iter().map(|(name, array)| (name.as_str(), array))).collect();
    save(&all, &to.join(BESIDE).join(EXAMPLE))
}

/// The launch whose model has the weights that are exported: adapters are merged, and floats have 32 bits.
fn plain(name: &str, request: &Request) -> Request {
    let mut config = Value::Object(request.config.clone());
    overlay(&mut config, &Value::Object(request.settings.workload()));
    if name == Slm.name() {
        config["method"] = json!("Full");
    }
    let config = config.as_object().cloned().unwrap_or_default();
    let settings = Settings { precision: None, weight_quantization: None, workload: None, ..request.settings.clone() };
    Request { config, settings, ..request.clone() }
}

/// Makes a state begin with its exported value.
fn locate(state: &mut StateDecl, weights: &WeightFiles) -> Result<(), Ending> {
    weights.has(state).map_err(ending)?;
    if let Some(slice) = weights.slice(&state.name) {
        state.init = Init::File(slice);
    }
    Ok(())
}

/// The outputs of a program, by name.
fn run(program: &Program, inputs: &[Array]) -> Result<Vec<(String, Array)>, ExecError> {
    let program = expand_attention(program)?;
    let mut executable = GraphCpu::default().compile(std::slice::from_ref(&program), &ExecOptions::default())?;
    let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
    executable.run(0, &views)?;
    let outputs = program.outputs.iter().enumerate();
    outputs.map(|(index, output)| Ok((output.name.clone(), executable.output(0, index)?))).collect()
}

fn save(arrays: &[(&str, &Array)], path: &Path) -> Result<(), Ending> {
    let decl = |(name, array): &(&str, &Array)| StateDecl {
        name: (*name).to_owned(),
        meta: Meta::new(array.dtype(), array.shape()),
        role: Role::Data,
        init: Init::Fill(0.0),
    };
    let decls: Vec<StateDecl> = arrays.iter().map(decl).collect();
    let mut file = ModelFile::create(path, &decls, FloatFormat::F32).map_err(of_file)?;
    arrays.iter().try_for_each(|(name, array)| file.write(name, array)).map_err(of_file)?;
    file.finish().map_err(of_file)
}
