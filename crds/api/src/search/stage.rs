//! A stage of a search, from the spec of a job.

use super::{domain, setting};
use crate::spec::{Goal, Pruner, Sampler, Search, TrainingJobSpec};
use pawl_contract::decimal::Decimal;
use pawl_contract::problem::{Problem, quoted};
use pawl_contract::settings::Settings;
use pawl_search::expression::Constraint;
use pawl_search::history;
use pawl_search::sampler::{self, Study};
use pawl_search::scheduler::Scheduler;
use pawl_search::space::{Condition, Parameter, Point, Space, Value};
use pawl_search::stage::{Budget, Stage};
use std::collections::BTreeMap;

/// The stage with this index of the search, where trial 0 has the settings `base`, and the trials after it have the
/// values `first`, by path; parameters without a value there have that of `base`.
///
/// # Errors
/// What cannot be expressed as a stage, with fields relative to the stage of the spec, such as `parameters[0].min`. A
/// stage may still be invalid: see [`Stage::validate`].
pub fn stage(spec: &TrainingJobSpec, index: usize, base: &Settings, first: &[Values]) -> Result<Stage, Vec<Problem>> {
    let Some(search) = spec.search.get(index) else {
        return Err(vec![Problem::new("", "", "is not a stage of the search", "")]);
    };
    let known = setting::values(base, &spec.workload);
    let parameters = parameters(search)?;
    let accepted = accepted(&parameters, &known)?;
    let first = first.iter().map(|values| point(&parameters, &accepted, values)).collect();
    let space = Space { constraints: constraints(search)?, fixed: fixed(spec, &parameters, &known), parameters };
    let budget = &search.budget;
    let limit = |value: &Option<Decimal>| value.as_ref().map(Decimal::value);
    Ok(Stage {
        study: Study {
            seed: search.seed.or(spec.seeds.first().copied()).unwrap_or_default().into(),
            stage: index as u32,
            space,
            sampler: sampler(search.sampler),
            goals: goals(search),
            accepted,
            warm: Vec::new(),
            first,
        },
        scheduler: scheduler(search),
        full: full(search),
        trials: search.trials,
        parallelism: search.parallelism,
        budget: Budget {
            gpu_hours: limit(&budget.gpu_hours),
            cost: limit(&budget.cost),
            hours: budget.wall_time.as_ref().map(|time| time.seconds() / 3600.0),
        },
        patience: search.patience,
    })
}

/// Values as text, by the path of their setting.
type Values = BTreeMap<String, String>;

/// The accepted settings with other values.
fn point(parameters: &[Parameter], accepted: &Point, values: &Values) -> Point {
    let value = |parameter: &Parameter| {
        let value = values.get(&parameter.name).and_then(|text| domain::value(&parameter.domain, text));
        Some((parameter.name.clone(), value.or_else(|| accepted.get(&parameter.name).cloned())?))
    };
    parameters.iter().filter_map(value).collect()
}

/// Epochs or items of a complete trial.
pub fn full(search: &Search) -> u32 {
    search.epochs.or(search.items).unwrap_or_default()
}

/// The directions of the objectives.
pub fn goals(search: &Search) -> Vec<history::Goal> {
    let goal = |goal: Goal| match goal {
        Goal::Minimize => history::Goal::Minimize,
        Goal::Maximize => history::Goal::Maximize,
    };
    search.objectives.iter().map(|objective| goal(objective.goal)).collect()
}

const fn sampler(sampler: Sampler) -> sampler::Sampler {
    match sampler {
        Sampler::TPE => sampler::Sampler::Tpe,
        Sampler::Random => sampler::Sampler::Random,
        Sampler::Grid => sampler::Sampler::Grid,
        Sampler::Sobol => sampler::Sampler::Sobol,
        Sampler::GP => sampler::Sampler::Gp,
    }
}

/// When the trials of a stage end early.
pub const fn scheduler(search: &Search) -> Scheduler {
    let pruning = &search.pruning;
    match search.pruner {
        Pruner::None => Scheduler::None,
        Pruner::Median => Scheduler::Median { warmup: pruning.warmup, least: pruning.least },
        Pruner::ASHA => Scheduler::Asha { first: pruning.first, reduction: pruning.reduction },
        Pruner::Hyperband => Scheduler::Hyperband { first: pruning.first, reduction: pruning.reduction },
    }
}

pub(super) fn parameters(search: &Search) -> Result<Vec<Parameter>, Vec<Problem>> {
    let (mut found, mut problems) = (Vec::<Parameter>::new(), Vec::new());
    for (index, parameter) in search.parameters.iter().enumerate() {
        let domain = match domain::domain(parameter) {
            Ok(domain) => domain,
            Err(problem) => {
                problems.push(Problem { field: format!("parameters[{index}].{}", problem.field), ..problem });
                continue;
            }
        };
        let condition = parameter.when.as_ref().map(|when| {
            let parent = found.iter().find(|parent| parent.name == when.parameter);
            // A value of another type is refused as no value of the parameter.
            let value = |text: &String| {
                let typed = parent.and_then(|parent| domain::value(&parent.domain, text));
                typed.unwrap_or_else(|| Value::Text(text.clone()))
            };
            Condition { parameter: when.parameter.clone(), values: when.values.iter().map(value).collect() }
        });
        found.push(Parameter { name: parameter.name.clone(), domain, condition });
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

/// The settings of trial 0 as a point.
fn accepted(parameters: &[Parameter], known: &BTreeMap<String, String>) -> Result<Point, Vec<Problem>> {
    let (mut point, mut problems) = (Point::new(), Vec::new());
    for (index, parameter) in parameters.iter().enumerate() {
        match known.get(&parameter.name).and_then(|text| domain::value(&parameter.domain, text)) {
            Some(value) => {
                point.insert(parameter.name.clone(), value);
            }
            None if parameter.condition.is_none() => {
                let message = "has no value of this type in spec.settings or spec.workload.config";
                let remedy = "set it: trial 0 has the settings accepted so far";
                let field = format!("parameters[{index}].name");
                problems.push(Problem::new(field, quoted(&parameter.name), message, remedy));
            }
            None => {}
        }
    }
    if problems.is_empty() { Ok(point) } else { Err(problems) }
}

fn constraints(search: &Search) -> Result<Vec<Constraint>, Vec<Problem>> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (index, text) in search.constraints.iter().enumerate() {
        match Constraint::parse(text) {
            Ok(constraint) => found.push(constraint),
            Err(message) => {
                let remedy = "write a comparison such as batchPerGpu * accumulationSteps <= 512";
                problems.push(Problem::new(format!("constraints[{index}]"), quoted(text), message, remedy));
            }
        }
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

/// What constraints may refer to beside the parameters: the settings that are not varied, and `ranks`.
fn fixed(spec: &TrainingJobSpec, parameters: &[Parameter], known: &BTreeMap<String, String>) -> Point {
    let varied = |name: &String| parameters.iter().any(|parameter| parameter.name == *name);
    let value = |text: &String| match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(whole), _) => Value::Int(whole),
        (_, Ok(number)) => Value::Float(number),
        _ => Value::Text(text.clone()),
    };
    let settings = known.iter().filter(|(name, _)| !varied(name)).map(|(name, text)| (name.clone(), value(text)));
    let ranks = Value::Int(spec.trainer.world_size().into());
    settings.chain([("ranks".to_owned(), ranks)]).collect()
}
