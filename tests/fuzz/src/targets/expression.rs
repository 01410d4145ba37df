//! Constraints of a hyperparameter search.

use pawl_search::expression::Constraint;
use pawl_search::space::{Domain, Parameter, Point, Scale, Space, Value};

/// An expression is refused, or it can be checked and evaluated; its own text gives the same expression.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(constraint) = Constraint::parse(&text) else { return };
    assert_eq!(Constraint::parse(constraint.text()).as_ref(), Ok(&constraint));
    let batch = Domain::Int { low: 1, high: 64, scale: Scale::Linear };
    let optimizer = Domain::Categorical { choices: vec!["adam".to_owned(), "sgd".to_owned()] };
    let space = Space {
        parameters: vec![Parameter::new("batchPerGpu", batch), Parameter::new("optimizer", optimizer)],
        fixed: Point::from([("accumulationSteps".to_owned(), Value::Int(3)), ("rate".to_owned(), Value::Float(1e-3))]),
        constraints: vec![constraint],
    };
    for (size, optimizer) in [(i64::MAX, "adam"), (0, "sgd"), (8, "")] {
        let point = Point::from([
            ("batchPerGpu".to_owned(), Value::Int(size)),
            ("optimizer".to_owned(), Value::Text(optimizer.to_owned())),
        ]);
        let _ = space.permits(&point);
    }
    let _ = space.validate();
}
