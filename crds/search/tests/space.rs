//! Spaces and stages that are refused, each with the error as a user reads it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_search::expression::Constraint;
use pawl_search::history::Goal;
use pawl_search::sampler::{Sampler, Study};
use pawl_search::scheduler::Scheduler;
use pawl_search::space::{Domain, Parameter, Point, Scale, Space, Value};
use pawl_search::stage::{Budget, Stage};

fn float(low: f64, high: f64, scale: Scale) -> Domain {
    Domain::Float { low, high, scale }
}

fn int(low: i64, high: i64, scale: Scale) -> Domain {
    Domain::Int { low, high, scale }
}

fn list(choices: &[&str]) -> Domain {
    Domain::Categorical { choices: choices.iter().map(|choice| (*choice).to_owned()).collect() }
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

/// A valid stage.
fn stage() -> Stage {
    let space = Space {
        parameters: vec![
            Parameter::new("optimizer", list(&["adam", "sgd"])),
            Parameter::new("rate", float(1e-5, 1e-1, Scale::Log)),
            Parameter::new("momentum", float(0.0, 0.9, Scale::Step(0.1))).when("optimizer", [text("sgd")]),
            Parameter::new("batch", int(1, 64, Scale::Linear)),
        ],
        constraints: vec![Constraint::parse("batch * accumulation <= 128").unwrap()],
        fixed: Point::from([("accumulation".to_owned(), Value::Int(4)), ("precision".to_owned(), text("bf16"))]),
    };
    Stage {
        study: Study {
            seed: 1,
            stage: 0,
            space,
            sampler: Sampler::Tpe,
            goals: vec![Goal::Minimize],
            accepted: Point::new(),
            warm: Vec::new(),
            first: Vec::new(),
        },
        scheduler: Scheduler::None,
        full: 10,
        trials: 20,
        parallelism: 2,
        budget: Budget::default(),
        patience: None,
    }
}

/// The stage with `change`, and its errors.
fn errors(change: impl FnOnce(&mut Stage)) -> Vec<String> {
    let mut stage = stage();
    change(&mut stage);
    stage.validate().iter().map(ToString::to_string).collect()
}

/// The only error of the stage with the domain of `rate` replaced.
fn of_domain(domain: Domain) -> Vec<String> {
    errors(|stage| stage.study.space.parameters[1].domain = domain)
}

fn of_condition(parameter: &str, values: &[Value]) -> Vec<String> {
    errors(|stage| {
        let momentum = stage.study.space.parameters[2].clone();
        stage.study.space.parameters[2] = momentum.when(parameter, values.iter().cloned());
    })
}

fn of_constraint(constraint: &str) -> Vec<String> {
    match Constraint::parse(constraint) {
        Ok(parsed) => errors(|stage| stage.study.space.constraints = vec![parsed]),
        Err(message) => vec![format!("{constraint}: {message}")],
    }
}

#[test]
fn a_valid_stage_has_no_errors() {
    assert_eq!(errors(|_| ()), [""; 0]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn domains() {
    for (domain, expected) in [
        (float(f64::NAN, 1.0, Scale::Linear), r#"parameters[rate].min: "NaN" is not finite: give a finite bound"#),
        (float(0.0, f64::INFINITY, Scale::Linear), r#"parameters[rate].max: "inf" is not finite: give a finite bound"#),
        (float(2.0, 1.0, Scale::Linear), r#"parameters[rate].min: "2" is greater than max 1: exchange the two"#),
        (
            float(1.0, 1.0, Scale::Linear),
            r#"parameters[rate].min: "1" equals max: nothing varies: set it in settings, and remove the parameter"#,
        ),
        (
            float(-1.0, 1.0, Scale::Log),
            r#"parameters[rate].min: "-1" is not positive: it has no logarithm: use a positive min, or scale Linear"#,
        ),
        (
            float(0.0, 1.0, Scale::Log),
            r#"parameters[rate].min: "0" is not positive: it has no logarithm: use a positive min, or scale Linear"#,
        ),
        (
            int(0, 8, Scale::Log),
            r#"parameters[rate].min: "0" is not positive: it has no logarithm: use a positive min, or scale Linear"#,
        ),
        (
            float(0.0, 1.0, Scale::Step(0.0)),
            r#"parameters[rate].step: "0" is not positive: use a positive step, or none"#,
        ),
        (
            float(0.0, 1.0, Scale::Step(-0.1)),
            r#"parameters[rate].step: "-0.1" is not positive: use a positive step, or none"#,
        ),
        (
            float(0.0, 1.0, Scale::Step(f64::NAN)),
            r#"parameters[rate].step: "NaN" is not positive: use a positive step, or none"#,
        ),
        (
            float(0.0, 1.0, Scale::Step(2.0)),
            r#"parameters[rate].step: "2" is larger than the range of 1: only min is left: use a smaller step"#,
        ),
        (
            float(0.0, 1.0, Scale::Step(1e-20)),
            r#"parameters[rate].step: "0.00000000000000000001" is too small for the range: use a larger step"#,
        ),
        (int(5, 1, Scale::Linear), r#"parameters[rate].min: "5" is greater than max 1: exchange the two"#),
        (
            int(1, 9, Scale::Step(1.5)),
            r#"parameters[rate].step: "1.5" is no whole number: use a whole step, or a range of real numbers"#,
        ),
        (
            int(i64::MIN, i64::MAX, Scale::Linear),
            r#"parameters[rate].max: "9223372036854776000" makes the range too large: narrow the range"#,
        ),
        (
            float(-1e308, 1e308, Scale::Linear),
            &format!("parameters[rate].max: \"{}\" makes the range too large: narrow the range", 1e308),
        ),
        (list(&[]), "parameters[rate].values: is empty: list at least two values, or give min and max"),
        (
            list(&["a"]),
            r#"parameters[rate].values: "a" is the only value: nothing varies: list a second value, or set it in settings and remove the parameter"#,
        ),
        (list(&["a", "b", "a"]), r#"parameters[rate].values: "a" is listed twice: remove one of the two"#),
        (list(&["a", ""]), "parameters[rate].values: contains an empty value: remove it"),
    ] {
        assert_eq!(of_domain(domain.clone()), [expected], "{domain:?}");
    }
}

#[test]
fn names() {
    let renamed =
        |index: usize, name: &'static str| errors(move |s| s.study.space.parameters[index].name = name.to_owned());
    assert_eq!(renamed(1, ""), ["parameters[].name: is empty: give the name of a setting"]);
    assert_eq!(
        renamed(1, "optimizer"),
        [r#"parameters[optimizer].name: "optimizer" is declared twice: remove one of the two"#]
    );
    assert_eq!(
        renamed(1, "accumulation"),
        [
            r#"parameters[accumulation].name: "accumulation" is both a parameter and a fixed setting: remove the fixed setting"#
        ]
    );
    let empty = errors(|stage| stage.study.space = Space::default());
    assert_eq!(empty, ["parameters: is empty: list at least one parameter, or remove the search"]);
}

#[test]
fn conditions() {
    for (parameter, values, expected) in [
        (
            "momentum",
            vec![text("sgd")],
            r#"when.parameter: "momentum" is the parameter itself: name another parameter, or remove the condition"#,
        ),
        (
            "batch",
            vec![Value::Int(1)],
            r#"when.parameter: "batch" is declared after the parameter that depends on it: declare it before"#,
        ),
        (
            "loss",
            vec![text("sgd")],
            r#"when.parameter: "loss" is no parameter of this search: name a parameter of this search, or remove the condition"#,
        ),
        (
            "rate",
            vec![Value::Float(1e-3)],
            r#"when.parameter: "rate" is a range of real numbers, which rarely equal a value: let it depend on a parameter with whole numbers or a list of values"#,
        ),
        ("optimizer", vec![], "when.values: is empty: the parameter is never active: list at least one value"),
        (
            "optimizer",
            vec![text("rmsprop")],
            r#"when.values: "rmsprop" is no value of optimizer: the parameter is never active with it: list values that it can have"#,
        ),
        (
            "optimizer",
            vec![Value::Int(1)],
            r#"when.values: "1" is no value of optimizer: the parameter is never active with it: list values that it can have"#,
        ),
        ("optimizer", vec![text("sgd"), text("sgd")], r#"when.values: "sgd" is listed twice: remove one of the two"#),
    ] {
        assert_eq!(of_condition(parameter, &values), [format!("parameters[momentum].{expected}")]);
    }
    let outside = errors(|stage| {
        let parameters = &mut stage.study.space.parameters;
        parameters.push(Parameter::new("warmup", list(&["on", "off"])).when("batch", [Value::Int(65)]));
    });
    assert_eq!(
        outside,
        [
            r#"parameters[warmup].when.values: "65" is no value of batch: the parameter is never active with it: list values that it can have"#
        ]
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn constraints() {
    let refused = "compare parameters, settings and numbers";
    for (constraint, expected) in [
        ("batch * 2", format!("constraints[0]: \"batch * 2\" is not a comparison: {refused}")),
        ("optimizer * 2 < 4", format!("constraints[0]: \"optimizer * 2 < 4\" has a text where a number is required: {refused}")),
        ("batch == precision", format!("constraints[0]: \"batch == precision\" has a text where a number is required: {refused}")),
        ("batch && rate < 1", format!("constraints[0]: \"batch && rate < 1\" has a number where a comparison is required: {refused}")),
        ("depth < 3", format!("constraints[0]: \"depth < 3\" names \"depth\", which is no parameter and no setting: {refused}")),
        ("accumulation < 8", "constraints[0]: \"accumulation < 8\" names no parameter: remove it: it is the same for all trials".to_owned()),
        ("batch > 64", "constraints[0]: \"batch > 64\" is satisfied by none of 10000 random points: relax it, or narrow the parameters to what it permits".to_owned()),
        ("", ": ends where a value is required".to_owned()),
        ("batch <=", "batch <=: ends where a value is required".to_owned()),
        ("(batch < 3", "(batch < 3: has a parenthesis without closing one at character 1".to_owned()),
        ("batch < 3)", "batch < 3): has an unexpected \")\" at character 10".to_owned()),
        ("batch = 3", "batch = 3: has an unexpected '=' at character 7".to_owned()),
        ("1 < batch < 3", "1 < batch < 3: has a second comparison at character 11: join comparisons by &&".to_owned()),
        ("batch < 1.2.3", "batch < 1.2.3: has an invalid number at character 9".to_owned()),
        ("batch < 1e999", "batch < 1e999: has an invalid number at character 9".to_owned()),
        ("optimizer == 'sgd", "optimizer == 'sgd: has a text without closing quote at character 14".to_owned()),
        ("batch batch < 3", "batch batch < 3: has an unexpected name \"batch\" at character 7".to_owned()),
    ] {
        assert_eq!(of_constraint(constraint), [expected]);
    }
    let nested = format!("{}batch{} < 3", "(".repeat(40), ")".repeat(40));
    assert_eq!(Constraint::parse(&nested), Err("is nested more than 32 levels deep".to_owned()));
    let long = format!("batch < 3 {}", "&& batch < 3 ".repeat(50));
    assert_eq!(Constraint::parse(&long), Err("is longer than 512 characters".to_owned()));
    let both = errors(|stage| {
        let parse = |text| Constraint::parse(text).unwrap();
        stage.study.space.constraints = vec![parse("batch < 10"), parse("batch > 20")];
    });
    let message = "is satisfied together with the constraints before it by none of 10000 random points";
    let remedy = "relax it, or narrow the parameters to what it permits";
    assert_eq!(both, [format!("constraints[1]: \"batch > 20\" {message}: {remedy}")]);
}

#[test]
fn samplers_and_schedulers() {
    let grid = errors(|stage| stage.study.sampler = Sampler::Grid);
    assert_eq!(
        grid,
        [
            "parameters[rate]: is continuous, which a grid cannot enumerate: give a step, list values, or use another sampler"
        ]
    );
    let gp = errors(|stage| stage.study.sampler = Sampler::Gp);
    assert_eq!(gp, ["parameters[momentum]: has a condition, which sampler GP does not model: use sampler TPE"]);
    let wide = errors(|stage| {
        stage.study.sampler = Sampler::Gp;
        stage.study.goals.push(Goal::Maximize);
        let parameter = |i| Parameter::new(&format!("x{i}"), float(0.0, 1.0, Scale::Linear));
        stage.study.space = Space { parameters: (0..21).map(parameter).collect(), ..Space::default() };
    });
    assert_eq!(
        wide,
        [
            r#"parameters: "21" are too many for sampler GP (at most 20): use sampler TPE"#,
            r#"objectives: "2" are too many for sampler GP (one): use sampler TPE"#,
        ]
    );
    assert_eq!(errors(|stage| stage.study.goals.clear()), ["objectives: is empty: name at least one metric"]);
    let scheduled = |scheduler| errors(move |stage| stage.scheduler = scheduler);
    assert_eq!(
        scheduled(Scheduler::Asha { first: 0, reduction: 1 }),
        [
            r#"scheduler.first: "0" is not positive: use at least 1"#,
            r#"scheduler.reduction: "1" is too small: use at least 2: the best half is promoted"#,
        ]
    );
    assert_eq!(
        scheduled(Scheduler::Hyperband { first: 10, reduction: 3 }),
        [
            r#"scheduler.first: "10" is not below the 10 epochs of a complete trial: use an earlier rung, or no scheduler"#
        ]
    );
    assert_eq!(
        scheduled(Scheduler::Median { warmup: 0, least: 0 }),
        [r#"scheduler.least: "0" is not positive: compare with at least one other trial"#]
    );
    let several = errors(|stage| {
        stage.scheduler = Scheduler::Median { warmup: 1, least: 5 };
        stage.study.goals.push(Goal::Maximize);
    });
    assert_eq!(
        several,
        [r#"objectives: "2" cannot be compared early by a scheduler: use scheduler None, or one objective"#]
    );
}

#[test]
fn numbers_of_a_stage() {
    assert_eq!(
        errors(|stage| stage.full = 0),
        [r#"epochs: "0" is not positive: train each trial for at least one epoch"#]
    );
    assert_eq!(errors(|stage| stage.trials = 0), [r#"trials: "0" is not positive: use at least 1"#]);
    assert_eq!(errors(|stage| stage.parallelism = 0), [r#"parallelism: "0" is not positive: use at least 1"#]);
    assert_eq!(
        errors(|stage| stage.parallelism = 21),
        [r#"parallelism: "21" is greater than the number of trials, 20: use at most as many as trials"#]
    );
    assert_eq!(
        errors(|stage| stage.patience = Some(0)),
        [r#"patience: "0" is not positive: use at least 1, or remove it"#]
    );
    for (budget, field) in [
        (Budget { gpu_hours: Some(0.0), ..Budget::default() }, r#"budget.gpuHours: "0""#),
        (Budget { cost: Some(-5.0), ..Budget::default() }, r#"budget.cost: "-5""#),
        (Budget { hours: Some(f64::NAN), ..Budget::default() }, r#"budget.hours: "NaN""#),
    ] {
        let expected = format!("{field} is not positive: use a positive limit, or remove it");
        assert_eq!(errors(|stage| stage.budget = budget), [expected]);
    }
}
