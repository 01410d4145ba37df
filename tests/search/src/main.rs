//! The side of the comparison with Optuna that is written in Rust: it prints the spaces, evaluates the functions for
//! Optuna, and runs our samplers. All output is JSON.

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use pawl_search::sampler::Sampler;
use pawl_search::space::{Domain, Parameter, Point, Scale, Value};
use pawl_search_tests::functions::{ALL, Function, curve, named};
use pawl_search_tests::minimize::{epochs_to, minimize, regret};
use serde_json::{Value as Json, json};
use std::io::{BufRead, Write};

#[derive(Parser)]
#[command(about = "Test functions of the search, and our samplers on them")]
enum Command {
    /// Prints the functions with their spaces.
    Functions,
    /// Reads {"function": NAME, "point": {...}} by line, and prints the losses; with "epoch", those of the learning
    /// curves.
    Evaluate,
    /// Prints the regrets of our sampler by seed.
    Minimize {
        #[arg(long)]
        function: String,
        #[arg(long)]
        sampler: Name,
        #[arg(long)]
        seeds: u64,
        #[arg(long)]
        trials: u32,
    },
    /// Prints the epochs that ASHA with TPE trains on the learning curves until the loss of a complete trial is at most
    /// the target.
    Curves {
        #[arg(long)]
        seed: u64,
        #[arg(long)]
        target: f64,
        /// Epochs at most.
        #[arg(long)]
        epochs: u32,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    Random,
    Sobol,
    Tpe,
    Gp,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Functions => println!("{}", Json::Array(ALL.iter().map(described).collect())),
        Command::Evaluate => evaluate()?,
        Command::Minimize { function, sampler, seeds, trials } => {
            let function = named(&function).with_context(|| format!("there is no function {function}"))?;
            let sampler = match sampler {
                Name::Random => Sampler::Random,
                Name::Sobol => Sampler::Sobol,
                Name::Tpe => Sampler::Tpe,
                Name::Gp => Sampler::Gp,
            };
            let regrets: Vec<f64> =
                (0..seeds).map(|seed| regret(&function, &minimize(&function, sampler, seed, trials))).collect();
            println!("{}", json!(regrets));
        }
        Command::Curves { seed, target, epochs } => println!("{}", epochs_to(seed, target, epochs)),
    }
    Ok(())
}

fn described(function: &Function) -> Json {
    let space = (function.space)();
    let parameters: Vec<Json> = space.parameters.iter().map(parameter).collect();
    json!({"name": function.name, "minimum": function.minimum, "smooth": function.smooth, "parameters": parameters})
}

fn parameter(parameter: &Parameter) -> Json {
    let scale = |scale: &Scale| match scale {
        Scale::Linear => (false, Json::Null),
        Scale::Log => (true, Json::Null),
        Scale::Step(step) => (false, json!(step)),
    };
    let mut written = match &parameter.domain {
        Domain::Float { low, high, scale: by } => {
            let (log, step) = scale(by);
            json!({"kind": "float", "low": low, "high": high, "log": log, "step": step})
        }
        Domain::Int { low, high, scale: by } => {
            let (log, step) = scale(by);
            json!({"kind": "int", "low": low, "high": high, "log": log, "step": step})
        }
        Domain::Categorical { choices } => json!({"kind": "categorical", "choices": choices}),
    };
    written["name"] = json!(parameter.name);
    if let Some(condition) = &parameter.condition {
        let values: Vec<String> = condition.values.iter().map(ToString::to_string).collect();
        written["when"] = json!({"parameter": condition.parameter, "values": values});
    }
    written
}

fn evaluate() -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let question: Json = serde_json::from_str(&line?)?;
        let name = question["function"].as_str().unwrap_or_default();
        let function = named(name).with_context(|| format!("there is no function {name:?}"))?;
        let epoch = question["epoch"].as_u64().map(u32::try_from).transpose()?;
        let Some(values) = question["point"].as_object() else { bail!("a point is required") };
        let mut point = Point::new();
        for (name, value) in values {
            let value = match value {
                Json::String(text) => Value::Text(text.clone()),
                Json::Number(number) if number.is_i64() => Value::Int(number.as_i64().unwrap_or_default()),
                other => Value::Float(other.as_f64().with_context(|| format!("{other} is no value"))?),
            };
            point.insert(name.clone(), value);
        }
        let mut output = std::io::stdout().lock();
        writeln!(output, "{}", json!(epoch.map_or_else(|| (function.loss)(&point), |epoch| curve(&point, epoch))))?;
        output.flush()?;
    }
    Ok(())
}
