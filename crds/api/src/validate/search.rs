//! Checks of searches: what the spec says about each stage, and what `pawl-search` says about its space, sampler and
//! pruner.

use super::{Problem, is_label, quoted};
use crate::search;
use crate::spec::{Search, TrainingJobSpec};

pub(super) fn check(spec: &TrainingJobSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, stage) in spec.search.iter().enumerate() {
        let mut found = fields(spec, index, stage);
        match search::stage(spec, index, &spec.settings, &[]) {
            Ok(converted) => {
                // Bounds and the length are checked here, with the words of the spec.
                let known = |problem: &Problem| {
                    let length = ["epochs", "items"].contains(&problem.field.as_str());
                    let unset = length && stage.epochs.or(stage.items).is_none();
                    let same = found.iter().any(|other: &Problem| other.field == problem.field);
                    same || unset || problem.field.starts_with("budget.")
                };
                let others = converted.validate().into_iter().map(|problem| located(stage, problem));
                let others: Vec<_> = others.filter(|problem| !known(problem)).collect();
                found.extend(others);
            }
            Err(errors) => found.extend(errors),
        }
        problems.extend(
            found
                .into_iter()
                .map(|problem| Problem { field: format!("spec.search[{index}].{}", problem.field), ..problem }),
        );
    }
    problems
}

/// What concerns the spec alone; fields are relative to the stage.
fn fields(spec: &TrainingJobSpec, index: usize, stage: &Search) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |field: &str, value: String, message: String, remedy: &str| {
        problems.push(Problem::new(field, value, message, remedy));
    };
    if !is_label(&stage.name) {
        let remedy = "use lower-case letters, digits and -, at most 63 characters";
        refuse("name", quoted(&stage.name), "is not a valid name of a stage".to_owned(), remedy);
    }
    if spec.search[..index].iter().any(|other| other.name == stage.name) {
        refuse("name", quoted(&stage.name), "is already the name of a stage".to_owned(), "choose a unique name");
    }
    match (stage.epochs, stage.items) {
        (None, None) => {
            let remedy = "set epochs or items: the length of a complete trial";
            refuse("epochs", String::new(), "is missing".to_owned(), remedy);
        }
        (Some(epochs), Some(items)) => {
            let message = format!("is mutually exclusive with items: {items}");
            refuse("epochs", epochs.to_string(), message, "keep one of them");
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    for (field, count) in [("handOn", stage.hand_on), ("finalists", stage.finalists)] {
        // The defaults may exceed the trials of a tiny stage.
        if count > stage.trials && count > 3 {
            let message = format!("is greater than the number of trials, {}", stage.trials);
            refuse(field, count.to_string(), message, "use at most as many as trials");
        }
    }
    if let Some(cost) = &stage.budget.cost
        && spec.cost.gpu_hour.is_none()
        && spec.cost.machine_hour.is_none()
    {
        let remedy = "set spec.cost.gpuHour or spec.cost.machineHour, or limit gpuHours";
        refuse("budget.cost", quoted(cost.as_str()), "requires a price".to_owned(), remedy);
    }
    problems
}

/// A problem that `pawl-search` found, at the field and with the value that the spec has.
fn located(stage: &Search, problem: Problem) -> Problem {
    let mut field = problem.field.replace("scheduler.", "pruning.").replace("budget.hours", "budget.wallTime");
    if field == "epochs" && stage.epochs.is_none() {
        field = "items".to_owned();
    }
    for (index, parameter) in stage.parameters.iter().enumerate() {
        if let Some(rest) = field.strip_prefix(&format!("parameters[{}]", parameter.name)) {
            field = format!("parameters[{index}]{rest}");
            break;
        }
    }
    let integer = ["trials", "parallelism", "patience", "epochs", "items"].contains(&field.as_str())
        || field.starts_with("pruning.")
        || ["objectives", "parameters"].contains(&field.as_str());
    let value = if integer { problem.value.trim_matches('"').to_owned() } else { problem.value };
    let remedy = problem.remedy.replace("scheduler None", "pruner None").replace("or no scheduler", "or pruner None");
    let message = problem.message.replace("by a scheduler", "by a pruner");
    Problem { field, value, message, remedy }
}
