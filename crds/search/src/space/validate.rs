//! Errors of a space, each with its field, its value and a remedy.

use super::{Domain, Parameter, Point, Scale, Space, Value};
use crate::expression::{Constraint, Kind};
use crate::random::{Draws, Purpose};
use pawl_contract::problem::{Problem, quoted};
use std::collections::BTreeSet;

/// Most values of a discrete numeric range: whole numbers beyond it are not exact in floating point.
const MOST_VALUES: f64 = 9_007_199_254_740_992.0;

/// An error at `field`, relative to the search, such as `parameters[learningRate].step`; the value is quoted.
pub(crate) fn problem(field: impl Into<String>, value: impl ToString, message: &str, remedy: &str) -> Problem {
    let value = value.to_string();
    let quoted = if value.is_empty() { value } else { quoted(&value) };
    Problem::new(field, quoted, message, remedy)
}

impl Space {
    /// All errors of the space; empty if it is valid.
    ///
    /// Whether the constraints can be satisfied is found by sampling: a space of which less than about one part in
    /// 3,000 is permitted is refused, because samplers draw from it by rejection.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.parameters.is_empty() {
            problems.push(problem("parameters", "", "is empty", "list at least one parameter, or remove the search"));
        }
        for (index, parameter) in self.parameters.iter().enumerate() {
            let earlier = &self.parameters[..index];
            problems.extend(name(parameter, earlier, &self.fixed));
            problems.extend(domain(parameter));
            problems.extend(condition(parameter, earlier, &self.parameters));
        }
        for (index, constraint) in self.constraints.iter().enumerate() {
            problems.extend(self.constraint(index, constraint));
        }
        if problems.is_empty() && !self.parameters.is_empty() {
            problems.extend(self.unsatisfiable());
        }
        problems
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        let of = |value: &Value| if value.number().is_some() { Kind::Number } else { Kind::Text };
        match self.parameters.iter().find(|parameter| parameter.name == name) {
            Some(Parameter { domain: Domain::Categorical { .. }, .. }) => Some(Kind::Text),
            Some(_) => Some(Kind::Number),
            None => self.fixed.get(name).map(of),
        }
    }

    fn constraint(&self, index: usize, constraint: &Constraint) -> Option<Problem> {
        let field = format!("constraints[{index}]");
        if let Some(message) = constraint.type_error(&|name| self.kind(name)) {
            return Some(problem(field, constraint.text(), &message, "compare parameters, settings and numbers"));
        }
        let varies = |name: &&str| self.parameters.iter().any(|parameter| parameter.name == **name);
        if constraint.names().iter().any(varies) {
            return None;
        }
        Some(problem(field, constraint.text(), "names no parameter", "remove it: it is the same for all trials"))
    }

    /// The first constraint that no sampled point satisfies together with those before it.
    fn unsatisfiable(&self) -> Option<Problem> {
        if self.constraints.is_empty() {
            return None;
        }
        let mut draws = Draws::new(0, 0, 0, Purpose::Validation);
        let mut furthest = 0;
        for _ in 0..super::REJECTIONS {
            let point = self.assemble(|_, parameter| parameter.domain.at(draws.uniform()));
            let satisfied = self.constraints.iter().take_while(|c| c.holds(&point, &self.fixed)).count();
            furthest = furthest.max(satisfied);
            if satisfied == self.constraints.len() {
                return None;
            }
        }
        let message = if furthest == 0 {
            format!("is satisfied by none of {} random points", super::REJECTIONS)
        } else {
            format!(
                "is satisfied together with the constraints before it by none of {} random points",
                super::REJECTIONS
            )
        };
        let text = self.constraints[furthest].text();
        Some(problem(
            format!("constraints[{furthest}]"),
            text,
            &message,
            "relax it, or narrow the parameters to what it permits",
        ))
    }
}

fn field(parameter: &Parameter, part: &str) -> String {
    format!("parameters[{}].{part}", parameter.name)
}

fn name(parameter: &Parameter, earlier: &[Parameter], fixed: &Point) -> Option<Problem> {
    let name = &parameter.name;
    if name.is_empty() {
        return Some(problem("parameters[].name", "", "is empty", "give the name of a setting"));
    }
    if earlier.iter().any(|other| other.name == *name) {
        return Some(problem(field(parameter, "name"), name, "is declared twice", "remove one of the two"));
    }
    fixed.contains_key(name).then(|| {
        problem(field(parameter, "name"), name, "is both a parameter and a fixed setting", "remove the fixed setting")
    })
}

fn domain(parameter: &Parameter) -> Vec<Problem> {
    match &parameter.domain {
        Domain::Float { low, high, scale } => range(parameter, *low, *high, *scale),
        Domain::Int { low, high, scale } => {
            let mut problems = range(parameter, *low as f64, *high as f64, *scale);
            if let Scale::Step(step) = scale
                && step.is_finite()
                && step.fract() != 0.0
            {
                let remedy = "use a whole step, or a range of real numbers";
                problems.push(problem(field(parameter, "step"), step, "is no whole number", remedy));
            }
            problems
        }
        Domain::Categorical { choices } => categories(parameter, choices),
    }
}

fn range(parameter: &Parameter, low: f64, high: f64, scale: Scale) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (part, bound) in [("min", low), ("max", high)] {
        if !bound.is_finite() {
            problems.push(problem(field(parameter, part), bound, "is not finite", "give a finite bound"));
        }
    }
    if !problems.is_empty() {
        return problems;
    }
    if low > high {
        let message = format!("is greater than max {high}");
        return vec![problem(field(parameter, "min"), low, &message, "exchange the two")];
    }
    if low == high {
        let remedy = "set it in settings, and remove the parameter";
        return vec![problem(field(parameter, "min"), low, "equals max: nothing varies", remedy)];
    }
    if !(high - low).is_finite() || high - low > MOST_VALUES && matches!(parameter.domain, Domain::Int { .. }) {
        problems.push(problem(field(parameter, "max"), high, "makes the range too large", "narrow the range"));
    }
    match scale {
        Scale::Linear => {}
        Scale::Log if low <= 0.0 => {
            let remedy = "use a positive min, or scale Linear";
            problems.push(problem(field(parameter, "min"), low, "is not positive: it has no logarithm", remedy));
        }
        Scale::Log => {}
        Scale::Step(step) if !step.is_finite() || step <= 0.0 => {
            problems.push(problem(field(parameter, "step"), step, "is not positive", "use a positive step, or none"));
        }
        Scale::Step(step) if step > high - low => {
            let message = format!("is larger than the range of {}: only min is left", high - low);
            problems.push(problem(field(parameter, "step"), step, &message, "use a smaller step"));
        }
        Scale::Step(step) if (high - low) / step > MOST_VALUES => {
            problems.push(problem(field(parameter, "step"), step, "is too small for the range", "use a larger step"));
        }
        Scale::Step(_) => {}
    }
    problems
}

fn categories(parameter: &Parameter, choices: &[String]) -> Vec<Problem> {
    if choices.is_empty() {
        return vec![problem(
            field(parameter, "values"),
            "",
            "is empty",
            "list at least two values, or give min and max",
        )];
    }
    if let [only] = choices {
        let remedy = "list a second value, or set it in settings and remove the parameter";
        return vec![problem(field(parameter, "values"), only, "is the only value: nothing varies", remedy)];
    }
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for choice in choices {
        if choice.is_empty() {
            problems.push(problem(field(parameter, "values"), "", "contains an empty value", "remove it"));
        } else if !seen.insert(choice) {
            problems.push(problem(field(parameter, "values"), choice, "is listed twice", "remove one of the two"));
        }
    }
    problems
}

fn condition(parameter: &Parameter, earlier: &[Parameter], all: &[Parameter]) -> Vec<Problem> {
    let Some(condition) = &parameter.condition else { return Vec::new() };
    let name = &condition.parameter;
    let when = field(parameter, "when.parameter");
    let Some(parent) = earlier.iter().find(|other| other.name == *name) else {
        let (message, remedy) = if *name == parameter.name {
            ("is the parameter itself", "name another parameter, or remove the condition")
        } else if all.iter().any(|other| other.name == *name) {
            ("is declared after the parameter that depends on it", "declare it before")
        } else {
            ("is no parameter of this search", "name a parameter of this search, or remove the condition")
        };
        return vec![problem(when, name, message, remedy)];
    };
    if matches!(parent.domain, Domain::Float { .. }) {
        let remedy = "let it depend on a parameter with whole numbers or a list of values";
        return vec![problem(when, name, "is a range of real numbers, which rarely equal a value", remedy)];
    }
    let values = field(parameter, "when.values");
    if condition.values.is_empty() {
        return vec![problem(values, "", "is empty: the parameter is never active", "list at least one value")];
    }
    let mut problems = Vec::new();
    for (index, value) in condition.values.iter().enumerate() {
        if !parent.domain.contains(value) {
            let message = format!("is no value of {name}: the parameter is never active with it");
            problems.push(problem(&values, value, &message, "list values that it can have"));
        } else if condition.values[..index].contains(value) {
            problems.push(problem(&values, value, "is listed twice", "remove one of the two"));
        }
    }
    problems
}

impl Domain {
    fn contains(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Categorical { .. }, _) => self.choice(value).is_some(),
            (Self::Int { low, high, scale }, Value::Int(number)) => {
                let step = if let Scale::Step(step) = scale { *step as i64 } else { 1 };
                (low..=high).contains(&number) && step > 0 && (number - low) % step == 0
            }
            _ => false,
        }
    }
}
