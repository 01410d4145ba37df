//! Checks of custom commands: their placeholders, and the patterns over their output.

use super::{Problem, quoted};
use crate::spec::TrainingJobSpec;
use pawl_contract::log::Patterns;
use pawl_contract::template::{Name, has_value, is_template, references};

pub(super) fn check(spec: &TrainingJobSpec) -> Vec<Problem> {
    let workload = &spec.workload;
    let mut problems = Vec::new();
    if let Some(monitor) = &workload.monitor {
        let at = "spec.workload.monitor";
        if workload.command.is_empty() {
            let remedy = "set command, or remove monitor";
            problems.push(Problem::new(
                at,
                "",
                "is set without command: the built-in trainer reports by itself",
                remedy,
            ));
        }
        if let Err(error) = Patterns::new(monitor) {
            problems.push(Problem::new(format!("{at}.{}", error.field), error.value, error.message, error.remedy));
        }
    }
    if workload.command.is_empty() {
        return problems;
    }
    let words = |field: &str, list: &[String]| -> Vec<_> {
        list.iter().enumerate().map(|(i, word)| (format!("spec.workload.{field}[{i}]"), word.clone())).collect()
    };
    let variables = spec.trainer.pod_template.env.iter().enumerate();
    let variables = variables.filter_map(|(i, variable)| {
        let value = variable.value.as_ref().filter(|value| is_template(value))?;
        Some((format!("spec.trainer.podTemplate.env[{i}].value"), value.clone()))
    });
    let texts = words("command", &workload.command).into_iter().chain(words("args", &workload.args)).chain(variables);
    problems.extend(texts.filter_map(|(field, text)| placeholders(spec, field, &text)));
    problems
}

fn placeholders(spec: &TrainingJobSpec, field: String, text: &str) -> Option<Problem> {
    let found = match references(text) {
        Ok(found) => found,
        Err(error) => {
            let message = format!("contains {}, which {}", error.placeholder, error.message);
            return Some(Problem::new(field, quoted(text), message, error.remedy));
        }
    };
    let of_settings = |name: &Name| matches!(name, Name::Setting(_) | Name::Workload(_));
    let missing = |(name, required): &(Name, bool)| *required && of_settings(name) && !has_value(name, &spec.settings);
    let (name, _) = found.iter().find(|reference| missing(reference))?;
    let written = name.written();
    let message = format!("contains $({written}), which has no value");
    Some(Problem::new(field, quoted(text), message, format!("set spec.{written}, or write $({written}:-DEFAULT)")))
}
