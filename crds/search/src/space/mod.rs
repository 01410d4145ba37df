//! The space of a search: its parameters, when they are active, and constraints between them.

mod axis;
mod validate;

pub use crate::value::{Point, Value};
pub(crate) use axis::Axis;
pub use pawl_contract::problem::Problem;
pub(crate) use validate::problem;

use crate::expression::Constraint;
use crate::random::Draws;

/// How a range is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Evenly in the logarithm.
    Log,
    /// The multiples of this number, added to the smallest value.
    Step(f64),
}

/// Values that a parameter may have.
#[derive(Clone, Debug, PartialEq)]
pub enum Domain {
    /// Real numbers from `low` to `high`, both included.
    Float {
        /// Smallest value.
        low: f64,
        /// Largest value.
        high: f64,
        /// How the range is divided.
        scale: Scale,
    },
    /// Whole numbers from `low` to `high`, both included.
    Int {
        /// Smallest value.
        low: i64,
        /// Largest value.
        high: i64,
        /// How the range is divided.
        scale: Scale,
    },
    /// One of a list of texts.
    Categorical {
        /// The texts, distinct.
        choices: Vec<String>,
    },
}

/// Makes a parameter active only where another has one of some values.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Name of the other parameter, which is declared earlier.
    pub parameter: String,
    /// Its values with which this parameter is active.
    pub values: Vec<Value>,
}

/// A parameter of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name or path of a setting, unique in the space.
    pub name: String,
    /// Its values.
    pub domain: Domain,
    /// When it is active: always, without a condition. A parameter whose parent is inactive is inactive.
    pub condition: Option<Condition>,
}

/// A space: parameters in the order in which conditions refer to them, and constraints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Space {
    /// The parameters.
    pub parameters: Vec<Parameter>,
    /// What every point satisfies.
    pub constraints: Vec<Constraint>,
    /// Settings that constraints refer to and that are not varied.
    pub fixed: Point,
}

/// Points drawn at most before a sampler gives up to satisfy the constraints.
pub(crate) const REJECTIONS: usize = 10_000;

impl Parameter {
    /// A parameter that is always active.
    pub fn new(name: &str, domain: Domain) -> Self {
        Self { name: name.to_owned(), domain, condition: None }
    }

    /// The parameter, active only where `parameter` has one of `values`.
    #[must_use]
    pub fn when(mut self, parameter: &str, values: impl IntoIterator<Item = Value>) -> Self {
        self.condition = Some(Condition { parameter: parameter.to_owned(), values: values.into_iter().collect() });
        self
    }

    /// Whether it is active where the parameters declared earlier have the values of `point`.
    pub(crate) fn active(&self, point: &Point) -> bool {
        self.condition.as_ref().is_none_or(|condition| {
            point.get(&condition.parameter).is_some_and(|value| condition.values.contains(value))
        })
    }
}

impl Domain {
    /// Number of values, or `None` for a continuous range.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            Self::Categorical { choices } => Some(choices.len()),
            Self::Float { .. } | Self::Int { .. } => Axis::of(self).and_then(|axis| axis.count()),
        }
    }

    /// The value with `index` of a domain of finite [`size`](Self::size).
    pub(crate) fn nth(&self, index: usize) -> Option<Value> {
        match self {
            Self::Categorical { choices } => choices.get(index).map(|choice| Value::Text(choice.clone())),
            Self::Float { .. } | Self::Int { .. } => Axis::of(self).map(|axis| axis.nth(index)),
        }
    }

    /// The value at `share` of the domain, from 0 to 1.
    pub(crate) fn at(&self, share: f64) -> Value {
        match self {
            Self::Categorical { choices } => {
                let index = (share * choices.len() as f64) as usize;
                Value::Text(choices[index.min(choices.len() - 1)].clone())
            }
            Self::Float { low, .. } => Axis::of(self).map_or(Value::Float(*low), |axis| axis.at(share)),
            Self::Int { low, .. } => Axis::of(self).map_or(Value::Int(*low), |axis| axis.at(share)),
        }
    }

    /// Whether this is a value of the domain.
    fn has(&self, value: &Value) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
        match (self, value) {
            (Self::Categorical { .. }, Value::Text(_)) => self.choice(value).is_some(),
            (Self::Int { .. }, Value::Int(_)) | (Self::Float { .. }, Value::Float(_)) => {
                let (axis, number) = (Axis::of(self), value.number());
                axis.zip(number).is_some_and(|(axis, number)| near(axis.number(axis.coordinate(number)), number))
            }
            (Self::Categorical { .. } | Self::Int { .. } | Self::Float { .. }, _) => false,
        }
    }

    /// Index of `value` among the choices of a categorical domain.
    pub(crate) fn choice(&self, value: &Value) -> Option<usize> {
        match (self, value) {
            (Self::Categorical { choices }, Value::Text(text)) => choices.iter().position(|choice| choice == text),
            _ => None,
        }
    }
}

impl Space {
    /// The active parameters with the values that `value` returns for each, in order.
    pub(crate) fn assemble(&self, mut value: impl FnMut(usize, &Parameter) -> Value) -> Point {
        let mut point = Point::new();
        for (index, parameter) in self.parameters.iter().enumerate() {
            if parameter.active(&point) {
                point.insert(parameter.name.clone(), value(index, parameter));
            }
        }
        point
    }

    /// Whether `point` satisfies the constraints on the parameters that it has.
    pub fn permits(&self, point: &Point) -> bool {
        self.constraints.iter().all(|constraint| constraint.holds(point, &self.fixed))
    }

    /// Whether `point` has a value of each active parameter, no other value, and satisfies the constraints.
    pub fn contains(&self, point: &Point) -> bool {
        let has = |parameter: &Parameter| match point.get(&parameter.name) {
            Some(value) => parameter.active(point) && parameter.domain.has(value),
            None => !parameter.active(point),
        };
        let known = |name: &String| self.parameters.iter().any(|parameter| parameter.name == *name);
        self.parameters.iter().all(has) && point.keys().all(known) && self.permits(point)
    }

    /// Indices of the parameters that are active with the values of `point` and that it lacks.
    pub(crate) fn group(&self, point: &Point) -> Vec<usize> {
        let lacks = |index: &usize| {
            let parameter = &self.parameters[*index];
            !point.contains_key(&parameter.name) && parameter.active(point)
        };
        (0..self.parameters.len()).filter(lacks).collect()
    }

    /// A point drawn uniformly from those that satisfy the constraints, by rejection. `None` if none was found.
    pub(crate) fn draw(&self, draws: &mut Draws) -> Option<Point> {
        (0..REJECTIONS)
            .map(|_| self.assemble(|_, parameter| parameter.domain.at(draws.uniform())))
            .find(|point| self.permits(point))
    }

    /// Number of combinations of the values, those without effect and those that no constraint permits included; `None`
    /// if a parameter is continuous.
    pub(crate) fn combinations(&self) -> Option<usize> {
        let mut sizes = self.parameters.iter().map(|parameter| parameter.domain.size());
        sizes.try_fold(1_usize, |product, size| Some(product.saturating_mul(size?)))
    }

    /// The part of `settings` that the active parameters of the space select.
    pub(crate) fn restrict(&self, settings: &Point) -> Point {
        let mut point = Point::new();
        for parameter in &self.parameters {
            if let Some(value) = settings.get(&parameter.name)
                && parameter.active(&point)
            {
                point.insert(parameter.name.clone(), value.clone());
            }
        }
        point
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    fn space() -> Space {
        Space {
            parameters: vec![
                Parameter::new("optimizer", Domain::Categorical { choices: vec!["adam".to_owned(), "sgd".to_owned()] }),
                Parameter::new("momentum", Domain::Float { low: 0.0, high: 1.0, scale: Scale::Linear })
                    .when("optimizer", [Value::Text("sgd".to_owned())]),
                Parameter::new("batch", Domain::Int { low: 1, high: 64, scale: Scale::Log }),
                Parameter::new("steps", Domain::Int { low: 2, high: 10, scale: Scale::Step(4.0) }),
            ],
            constraints: vec![Constraint::parse("batch * steps * world <= 128").unwrap()],
            fixed: Point::from([("world".to_owned(), Value::Int(2))]),
        }
    }

    #[test]
    fn draws_satisfy_conditions_and_constraints() {
        let space = space();
        let mut draws = Draws::new(3, 0, 0, Purpose::Uniform);
        let mut momenta = 0;
        for _ in 0..500 {
            let point = space.draw(&mut draws).unwrap();
            assert_eq!(point.contains_key("momentum"), point["optimizer"] == Value::Text("sgd".to_owned()));
            momenta += usize::from(point.contains_key("momentum"));
            let (Value::Int(batch), Value::Int(steps)) = (&point["batch"], &point["steps"]) else { unreachable!() };
            assert!([2, 6, 10].contains(steps) && batch * steps <= 64, "{point:?}");
        }
        assert!((200..300).contains(&momenta), "{momenta}");
    }

    #[test]
    fn a_point_of_the_space_has_its_parameters_and_values_in_their_domains() {
        let point = |momentum: Option<f64>, batch: i64, steps: i64| {
            let optimizer = if momentum.is_some() { "sgd" } else { "adam" };
            let optimizer = Value::Text(optimizer.to_owned());
            let mut point = Point::from([
                ("optimizer".to_owned(), optimizer),
                ("batch".to_owned(), Value::Int(batch)),
                ("steps".to_owned(), Value::Int(steps)),
            ]);
            point.extend(momentum.map(|value| ("momentum".to_owned(), Value::Float(value))));
            point
        };
        let contains = |point: Point| space().contains(&point);
        assert!(contains(point(None, 1, 6)) && contains(point(Some(0.9), 8, 2)));
        assert!(!contains(point(Some(1.1), 8, 2)) && !contains(point(None, 0, 2)) && !contains(point(None, 1, 5)));
        assert!(!contains(point(None, 64, 10)), "a constraint");
        let mut other = point(None, 1, 6);
        other.insert("momentum".to_owned(), Value::Float(0.5));
        assert!(!contains(other), "it is not active");
        let mut less = point(None, 1, 6);
        less.remove("steps");
        assert!(!contains(less));
    }

    #[test]
    fn accepted_settings_are_restricted_to_the_space() {
        let settings = Point::from([
            ("optimizer".to_owned(), Value::Text("adam".to_owned())),
            ("momentum".to_owned(), Value::Float(0.9)),
            ("precision".to_owned(), Value::Text("bf16".to_owned())),
            ("batch".to_owned(), Value::Int(128)),
        ]);
        let point = space().restrict(&settings);
        assert_eq!(point.keys().collect::<Vec<_>>(), ["batch", "optimizer"], "outside of the range is kept");
    }
}
