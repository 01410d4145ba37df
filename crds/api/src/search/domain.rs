//! The values that a parameter of a spec may have.

use super::setting::{Kind, kind, names};
use crate::bounds::{self, Bound};
use crate::spec::{Parameter, Scale};
use pawl_contract::decimal::Decimal;
use pawl_contract::problem::{Problem, quoted};
use pawl_search::space::{self, Domain, Value};

/// Similarity of two names, 1 is equal, from which one is suggested for the other.
const ALIKE: f64 = 0.7;

/// The domain of a parameter.
///
/// # Errors
/// The first error; fields are relative to the parameter.
pub(super) fn domain(parameter: &Parameter) -> Result<Domain, Problem> {
    let kind = kind_of(&parameter.name)?;
    let bound = bounds::of_setting(&parameter.name);
    let domain = if parameter.values.is_empty() { range(parameter, &kind) } else { list(parameter, &kind) }?;
    bound.map_or(Ok(()), |bound| within(parameter, &bound))?;
    Ok(domain)
}

/// Whether all values of a parameter are ones that the setting may have.
fn within(parameter: &Parameter, bound: &Bound) -> Result<(), Problem> {
    let ends = [("min", &parameter.min), ("max", &parameter.max)].into_iter();
    let ends = ends.filter_map(|(field, number)| Some((field.to_owned(), number.as_ref()?.as_str())));
    let values = parameter.values.iter().enumerate().map(|(index, text)| (format!("values[{index}]"), text.as_str()));
    let admitted = |text: &str| text.parse().is_ok_and(|number: Decimal| bound.admits(number.value()));
    match ends.chain(values).find(|(_, text)| !admitted(text)) {
        Some((field, text)) => Err(Problem::new(
            field,
            quoted(text),
            format!("is not {}, as the setting must be", bound.words()),
            bound.remedy,
        )),
        None => Ok(()),
    }
}

fn kind_of(name: &str) -> Result<Kind, Problem> {
    let wrong = |message: &str, remedy: String| Err(Problem::new("name", quoted(name), message, remedy));
    match kind(name) {
        Some(Kind::Composite) => wrong("has no single value", "search a setting that is a number or a name".to_owned()),
        Some(kind) => Ok(kind),
        None => {
            let scored = names().map(|other| (strsim::normalized_damerau_levenshtein(name, other), other));
            let meant = scored.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score >= ALIKE);
            let other = "name a setting, or a workload setting such as workload.hidden".to_owned();
            wrong("is not a setting", meant.map_or(other, |(_, name)| format!("did you mean {name}?")))
        }
    }
}

fn list(parameter: &Parameter, kind: &Kind) -> Result<Domain, Problem> {
    let number = |value: &Option<Decimal>| value.as_ref().map(|value| quoted(value.as_str()));
    let others = [("min", number(&parameter.min)), ("max", number(&parameter.max)), ("step", number(&parameter.step))];
    if let Some((field, Some(value))) = others.into_iter().find(|(_, value)| value.is_some()) {
        return Err(Problem::new(field, value, "is mutually exclusive with values", "keep one of them"));
    }
    for (index, text) in parameter.values.iter().enumerate() {
        let wrong = |message: String, remedy: &str| {
            Err(Problem::new(format!("values[{index}]"), quoted(text), message, remedy))
        };
        match kind {
            Kind::Integer(low, high) if !text.parse().is_ok_and(|value: i64| (*low..=*high).contains(&value)) => {
                return wrong(format!("is not an integer from {low} to {high}"), "correct or remove it");
            }
            Kind::Decimal if text.parse::<Decimal>().is_err() => {
                return wrong("is not a number".to_owned(), "write a number such as \"1.4e-3\"");
            }
            Kind::Boolean if text != "true" && text != "false" => {
                return wrong("is not a boolean".to_owned(), "write \"true\" or \"false\"");
            }
            Kind::Choice(names) if !names.contains(text) => {
                return wrong(format!("is not one of {}", names.join(", ")), "write one of them");
            }
            Kind::Integer(..) | Kind::Decimal | Kind::Boolean | Kind::Choice(_) | Kind::Free | Kind::Composite => {}
        }
    }
    Ok(Domain::Categorical { choices: parameter.values.clone() })
}

/// The ends of a range.
fn ends(parameter: &Parameter) -> Result<(&Decimal, &Decimal), Problem> {
    let alone = |field: &str, set: &Decimal, message: &str| {
        Err(Problem::new(field, quoted(set.as_str()), message, "set min and max, or values"))
    };
    match (&parameter.min, &parameter.max) {
        (Some(min), Some(max)) => Ok((min, max)),
        (Some(min), None) => alone("min", min, "is set without max"),
        (None, Some(max)) => alone("max", max, "is set without min"),
        (None, None) => {
            let remedy = "set min and max, or values";
            Err(Problem::new("name", quoted(&parameter.name), "has neither values nor min and max", remedy))
        }
    }
}

fn range(parameter: &Parameter, kind: &Kind) -> Result<Domain, Problem> {
    let (min, max) = ends(parameter)?;
    if matches!(kind, Kind::Boolean | Kind::Choice(_)) {
        let remedy = "list values instead of min and max";
        return Err(Problem::new("min", quoted(min.as_str()), "is a number, and the setting is not", remedy));
    }
    if let (Some(step), Scale::Log) = (&parameter.step, parameter.scale) {
        let remedy = "remove step, or use scale Linear";
        return Err(Problem::new("step", quoted(step.as_str()), "cannot be combined with scale Log", remedy));
    }
    let numbers = [("min", Some(min)), ("max", Some(max)), ("step", parameter.step.as_ref())];
    let fraction =
        numbers.into_iter().filter_map(|(field, number)| Some((field, number?))).find(|(_, number)| !is_whole(number));
    match (kind, fraction) {
        (Kind::Integer(..), Some((field, number))) => {
            let remedy = "write an integer: the setting is one";
            Err(Problem::new(field, quoted(number.as_str()), "is not an integer", remedy))
        }
        (Kind::Integer(low, high), None) => {
            let outside = numbers[..2].iter().find_map(|(field, number)| {
                let number = (*number)?;
                (number.value() < *low as f64 || number.value() > *high as f64).then_some((*field, number))
            });
            match outside {
                Some((field, number)) => {
                    let message = format!("is not from {low} to {high}, as the setting must be");
                    Err(Problem::new(field, quoted(number.as_str()), message, "narrow the range"))
                }
                None => Ok(integers(parameter, min, max)),
            }
        }
        (Kind::Free, None) => Ok(integers(parameter, min, max)),
        _ => Ok(Domain::Float { low: min.value(), high: max.value(), scale: scale(parameter) }),
    }
}

/// Whether a number is written without a decimal point and an exponent.
fn is_whole(number: &Decimal) -> bool {
    number.as_str().parse::<i64>().is_ok()
}

fn integers(parameter: &Parameter, min: &Decimal, max: &Decimal) -> Domain {
    Domain::Int { low: min.value() as i64, high: max.value() as i64, scale: scale(parameter) }
}

fn scale(parameter: &Parameter) -> space::Scale {
    match (&parameter.step, parameter.scale) {
        (Some(step), _) => space::Scale::Step(step.value()),
        (None, Scale::Linear) => space::Scale::Linear,
        (None, Scale::Log) => space::Scale::Log,
    }
}

/// A value that is written as text, of a parameter with this domain; `None` if it is of another type.
pub(super) fn value(domain: &Domain, text: &str) -> Option<Value> {
    match domain {
        Domain::Categorical { choices } => {
            // Numbers are equal however they are written.
            let number = |text: &str| text.parse::<f64>().ok();
            let equal = |choice: &&String| *choice == text || number(choice).is_some_and(|n| number(text) == Some(n));
            Some(Value::Text(choices.iter().find(equal).map_or_else(|| text.to_owned(), Clone::clone)))
        }
        Domain::Float { .. } => text.parse().ok().map(Value::Float),
        Domain::Int { .. } => text.parse().ok().map(Value::Int),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_bounded_as_those_of_the_setting() {
        let found = |parameter: serde_json::Value| {
            let parameter: Parameter = serde_json::from_value(parameter).unwrap();
            domain(&parameter).err().map(|problem| problem.to_string()).unwrap_or_default()
        };
        for (parameter, named) in [
            (json!({"name": "learningRate", "min": "1e-99", "max": "1e-3"}), r#"min: "1e-99" is not at least 1e-30"#),
            (json!({"name": "learningRate", "min": "1e-5", "max": "1e99"}), r#"max: "1e99" is not at least 1e-30"#),
            (json!({"name": "ema", "values": ["0.9", "1.5"]}), r#"values[1]: "1.5" is not at least 0 and below 1"#),
            (json!({"name": "gradientClip", "values": ["0"]}), r#"values[0]: "0" is not above 0"#),
            (json!({"name": "weightDecay", "min": "-1", "max": "0.1"}), r#"min: "-1" is not at least 0"#),
        ] {
            let text = found(parameter.clone());
            assert!(text.starts_with(named) && text.contains("as the setting must be"), "{parameter}: {text}");
        }
        for parameter in [
            json!({"name": "learningRate", "min": "1e-5", "max": "1e-3", "scale": "Log"}),
            json!({"name": "workload.width", "min": "-1e99", "max": "1e99"}),
            json!({"name": "ema", "values": ["0", "0.999"]}),
        ] {
            assert_eq!(found(parameter.clone()), "", "{parameter}");
        }
    }
}
