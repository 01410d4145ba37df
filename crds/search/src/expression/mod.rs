//! Constraints between parameters: small boolean expressions such as `batchPerGpu * accumulationSteps <= 512`.
//!
//! Grammar, in order of precedence: `||`, `&&`, one comparison (`<`, `<=`, `>`, `>=`, `==`, `!=`), `+ -`, `* / %`, and
//! the prefix operators `-` and `!`; parentheses; numbers, texts in single or double quotes, and names of parameters
//! and settings.

mod parse;

use crate::value::{Point, Value};
use std::collections::BTreeSet;

/// A boolean expression over the values of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint {
    text: String,
    root: Node,
}

/// An operator of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Or,
    And,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Number(f64),
    Text(String),
    Name(String),
    Negate(Box<Node>),
    Not(Box<Node>),
    Binary(Operator, Box<Node>, Box<Node>),
}

/// Type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Number,
    Text,
    Boolean,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Number(f64),
    Text(String),
    Boolean(bool),
}

impl Constraint {
    /// Parses `text`.
    ///
    /// # Errors
    /// What is wrong and where, for text that is not a well-formed expression. Names and types are checked by
    /// [`Space::validate`](crate::space::Space::validate).
    ///
    /// ```
    /// use pawl_search::expression::Constraint;
    /// assert!(Constraint::parse("batchPerGpu * accumulationSteps <= 512").is_ok());
    /// assert!(Constraint::parse("batchPerGpu <=").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.to_owned(), root: parse::parse(text)? })
    }

    /// The expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of parameters and settings in it.
    pub fn names(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        collect(&self.root, &mut names);
        names
    }

    /// The type error in it, where `kind` is the type of a name; a constraint is boolean.
    pub(crate) fn type_error(&self, kind: &dyn Fn(&str) -> Option<Kind>) -> Option<String> {
        match self.root.kind(kind) {
            Ok(Kind::Boolean) => None,
            Ok(Kind::Number | Kind::Text) => Some("is not a comparison".to_owned()),
            Err(message) => Some(message),
        }
    }

    /// Whether `point` (with `fixed` for the names that it lacks) satisfies it. A constraint on a parameter that is
    /// inactive is satisfied, and one whose arithmetic has no finite result (a division by zero) is not.
    pub fn holds(&self, point: &Point, fixed: &Point) -> bool {
        if self.names().iter().any(|name| point.get(*name).or_else(|| fixed.get(*name)).is_none()) {
            return true;
        }
        self.root.evaluate(point, fixed) == Some(Term::Boolean(true))
    }
}

fn collect<'a>(node: &'a Node, names: &mut BTreeSet<&'a str>) {
    match node {
        Node::Name(name) => {
            names.insert(name);
        }
        Node::Negate(inner) | Node::Not(inner) => collect(inner, names),
        Node::Binary(_, left, right) => {
            collect(left, names);
            collect(right, names);
        }
        Node::Number(_) | Node::Text(_) => {}
    }
}

impl Node {
    fn kind(&self, of: &dyn Fn(&str) -> Option<Kind>) -> Result<Kind, String> {
        use Operator::{And, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual, Or};
        let expect = |node: &Self, wanted: Kind| match node.kind(of)? {
            kind if kind == wanted => Ok(()),
            kind => Err(format!("has a {} where a {} is required", kind.word(), wanted.word())),
        };
        match self {
            Self::Number(_) => Ok(Kind::Number),
            Self::Text(_) => Ok(Kind::Text),
            Self::Name(name) => of(name).ok_or_else(|| format!("names {name:?}, which is no parameter and no setting")),
            Self::Negate(inner) => expect(inner, Kind::Number).map(|()| Kind::Number),
            Self::Not(inner) => expect(inner, Kind::Boolean).map(|()| Kind::Boolean),
            Self::Binary(Or | And, left, right) => {
                expect(left, Kind::Boolean)?;
                expect(right, Kind::Boolean).map(|()| Kind::Boolean)
            }
            Self::Binary(Equal | NotEqual, left, right) => {
                let kind = left.kind(of)?;
                expect(right, kind).map(|()| Kind::Boolean)
            }
            Self::Binary(Less | LessOrEqual | Greater | GreaterOrEqual, left, right) => {
                expect(left, Kind::Number)?;
                expect(right, Kind::Number).map(|()| Kind::Boolean)
            }
            Self::Binary(_, left, right) => {
                expect(left, Kind::Number)?;
                expect(right, Kind::Number).map(|()| Kind::Number)
            }
        }
    }

    fn evaluate(&self, point: &Point, fixed: &Point) -> Option<Term> {
        Some(match self {
            Self::Number(number) => Term::Number(*number),
            Self::Text(text) => Term::Text(text.clone()),
            Self::Name(name) => match point.get(name).or_else(|| fixed.get(name))? {
                Value::Text(text) => Term::Text(text.clone()),
                Value::Int(number) => Term::Number(*number as f64),
                Value::Float(number) => Term::Number(*number),
            },
            Self::Negate(inner) => match inner.evaluate(point, fixed)? {
                Term::Number(number) => Term::Number(-number),
                Term::Text(_) | Term::Boolean(_) => return None,
            },
            Self::Not(inner) => match inner.evaluate(point, fixed)? {
                Term::Boolean(value) => Term::Boolean(!value),
                Term::Text(_) | Term::Number(_) => return None,
            },
            // The right operand of a decided `&&` or `||` is not evaluated: it may guard a division.
            Self::Binary(operator @ (Operator::And | Operator::Or), left, right) => {
                let decided = Term::Boolean(*operator == Operator::Or);
                let left = left.evaluate(point, fixed)?;
                if left == decided { left } else { right.evaluate(point, fixed)? }
            }
            Self::Binary(operator, left, right) => {
                operator.apply(left.evaluate(point, fixed)?, right.evaluate(point, fixed)?)?
            }
        })
    }
}

impl Operator {
    fn apply(self, left: Term, right: Term) -> Option<Term> {
        let (a, b) = match (left, right) {
            (Term::Number(a), Term::Number(b)) => (a, b),
            (left, right) => {
                return match self {
                    Self::Equal => Some(Term::Boolean(left == right)),
                    Self::NotEqual => Some(Term::Boolean(left != right)),
                    _ => None,
                };
            }
        };
        let number = match self {
            Self::Less => return Some(Term::Boolean(a < b)),
            Self::LessOrEqual => return Some(Term::Boolean(a <= b)),
            Self::Greater => return Some(Term::Boolean(a > b)),
            Self::GreaterOrEqual => return Some(Term::Boolean(a >= b)),
            Self::Equal => return Some(Term::Boolean(a == b)),
            Self::NotEqual => return Some(Term::Boolean(a != b)),
            Self::Add => a + b,
            Self::Subtract => a - b,
            Self::Multiply => a * b,
            Self::Divide => a / b,
            Self::Remainder => a % b,
            Self::Or | Self::And => return None,
        };
        number.is_finite().then_some(Term::Number(number))
    }
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Text => "text",
            Self::Boolean => "comparison",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str) -> bool {
        let point = Point::from([
            ("batchPerGpu".to_owned(), Value::Int(8)),
            ("lr".to_owned(), Value::Float(1e-3)),
            ("optimizer".to_owned(), Value::Text("adam".to_owned())),
        ]);
        let fixed = Point::from([("accumulationSteps".to_owned(), Value::Int(3)), ("zero".to_owned(), Value::Int(0))]);
        Constraint::parse(text).unwrap().holds(&point, &fixed)
    }

    #[test]
    fn arithmetic_and_comparison() {
        for text in [
            "batchPerGpu * accumulationSteps <= 24",
            "batchPerGpu + 2 * accumulationSteps == 14",
            "(batchPerGpu + 2) * accumulationSteps == 30",
            "batchPerGpu - 2 - 1 == 5",
            "batchPerGpu / 2 / 2 == 2",
            "batchPerGpu % accumulationSteps == 2",
            "-batchPerGpu < -7.5",
            "lr >= 1e-3 && lr <= 1.0E-3",
            "optimizer == 'adam' && !(optimizer == \"sgd\")",
            "optimizer != 'sgd' || batchPerGpu > 100",
            "zero == 0 || batchPerGpu / zero > 1",
            "inactive > 5",
            "workload.hidden >= 1",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in ["batchPerGpu > 8", "batchPerGpu / zero > 1", "optimizer == 'sgd'", "batchPerGpu % zero == 0"] {
            assert!(!holds(text), "{text}");
        }
    }
}
