//! Properties of the samplers: determinism, constraints, what they learn.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_search::expression::Constraint;
use pawl_search::history::{Cause, Goal, Loss, Observation, Report, State, Trial};
use pawl_search::sampler::{Sampler, Study};
use pawl_search::space::{Domain, Parameter, Point, Scale, Space, Value};
use proptest::prelude::*;

const ALL: [Sampler; 4] = [Sampler::Random, Sampler::Sobol, Sampler::Tpe, Sampler::Gp];

fn study(sampler: Sampler, seed: u64) -> Study {
    let space = Space {
        parameters: vec![
            Parameter::new("rate", Domain::Float { low: 1e-5, high: 1e-1, scale: Scale::Log }),
            Parameter::new("batch", Domain::Int { low: 1, high: 64, scale: Scale::Linear }),
            Parameter::new("norm", Domain::Categorical { choices: ["a", "b", "c"].map(str::to_owned).to_vec() }),
        ],
        constraints: vec![Constraint::parse("batch * rate <= 1").unwrap()],
        fixed: Point::new(),
    };
    let (goals, accepted) = (vec![Goal::Minimize], Point::new());
    Study { seed, stage: 0, space, sampler, goals, accepted, warm: Vec::new(), first: Vec::new() }
}

fn number(point: &Point, name: &str) -> f64 {
    point[name].number().unwrap()
}

/// A loss with its minimum at rate 1e-3, batch 20 and norm b.
fn loss(point: &Point) -> f64 {
    let rate = libm::log10(number(point, "rate")) + 3.0;
    let norm = if point["norm"] == Value::Text("b".to_owned()) { 0.0 } else { 1.0 };
    rate * rate + (number(point, "batch") - 20.0).abs() / 20.0 + norm
}

fn complete(number: u32, point: Point) -> Trial {
    Trial { state: State::Complete, values: vec![loss(&point)], ..Trial::new(number, point, 1) }
}

/// Trials one after the other.
fn run(study: &Study, count: u32) -> Vec<Trial> {
    let mut trials = Vec::new();
    for number in 0..count {
        let point = study.propose(&trials, number).unwrap();
        trials.push(complete(number, point));
    }
    trials
}

#[test]
fn the_order_of_the_history_has_no_effect() {
    for sampler in ALL {
        let study = study(sampler, 7);
        let mut trials = run(&study, 25);
        trials.push(Trial::new(25, study.propose(&trials, 25).unwrap(), 1));
        let expected = study.propose(&trials, 26).unwrap();
        trials.reverse();
        assert_eq!(study.propose(&trials, 26), Some(expected.clone()), "{sampler:?}");
        trials.swap(3, 17);
        assert_eq!(study.propose(&trials, 26), Some(expected.clone()), "{sampler:?}");
        let other = Study { stage: 1, ..study.clone() };
        assert_ne!(other.propose(&trials, 26), Some(expected), "{sampler:?}: stages have their own random numbers");
    }
}

#[test]
fn points_satisfy_the_space_and_samplers_that_learn_beat_random_points() {
    let best = |sampler, seed| {
        let study = study(sampler, seed);
        let trials = run(&study, 40);
        assert!(trials.iter().all(|trial| study.space.permits(&trial.point) && trial.point.len() == 3));
        trials.iter().map(|trial| trial.values[0]).fold(f64::INFINITY, f64::min)
    };
    let mean = |sampler| (0..10).map(|seed| best(sampler, seed)).sum::<f64>() / 10.0;
    let (random, tpe, gp) = (mean(Sampler::Random), mean(Sampler::Tpe), mean(Sampler::Gp));
    assert!(tpe < 0.6 * random && gp < 0.3 * random, "random {random}, TPE {tpe}, GP {gp}");
}

#[test]
fn trial_0_is_the_accepted_settings() {
    let accepted = Point::from([
        ("rate".to_owned(), Value::Float(1e-3)),
        ("batch".to_owned(), Value::Int(100)),
        ("norm".to_owned(), Value::Text("a".to_owned())),
        ("precision".to_owned(), Value::Text("bf16".to_owned())),
    ]);
    for sampler in ALL {
        let study = Study { accepted: accepted.clone(), ..study(sampler, 7) };
        let point = study.propose(&[], 0).unwrap();
        assert_eq!((point.len(), &point["batch"]), (3, &Value::Int(100)), "outside of the range too");
        // A model accepts an observation outside of the range.
        assert_eq!(run(&study, 14).len(), 14);
        // Incomplete settings are no trial.
        let partial = Point::from([("rate".to_owned(), Value::Float(1e-3))]);
        assert!(Study { accepted: partial, ..study }.propose(&[], 0).unwrap().len() == 3);
    }
}

#[test]
fn a_grid_has_each_point_once_beginning_with_the_accepted_one() {
    let choices =
        |name: &str| Parameter::new(name, Domain::Categorical { choices: vec!["x".to_owned(), "y".to_owned()] });
    let space = Space {
        parameters: vec![
            choices("a"),
            Parameter::new("n", Domain::Int { low: 0, high: 4, scale: Scale::Step(2.0) }),
            choices("b").when("a", [Value::Text("y".to_owned())]),
        ],
        constraints: vec![Constraint::parse("a == 'x' || n < 4").unwrap()],
        fixed: Point::new(),
    };
    let accepted = Point::from([("a".to_owned(), Value::Text("x".to_owned())), ("n".to_owned(), Value::Int(2))]);
    let study = Study { space, accepted: accepted.clone(), ..study(Sampler::Grid, 7) };
    let points: Vec<Point> = (0..8).map_while(|number| study.propose(&[], number)).collect();
    assert_eq!(points.len(), 3 + 4, "three of x, four of y");
    assert_eq!(points[0], accepted);
    assert!((0..7).all(|i| !points[..i].contains(&points[i])));
}

#[test]
fn no_point_of_a_discrete_space_is_measured_twice_while_there_is_another() {
    for sampler in [Sampler::Tpe, Sampler::Gp, Sampler::Random, Sampler::Sobol, Sampler::Grid] {
        let mut study = study(sampler, 3);
        study.space.constraints.clear();
        study.space.parameters.remove(0);
        study.space.parameters[0].domain = Domain::Int { low: 1, high: 8, scale: Scale::Linear };
        let mut trials: Vec<Trial> = Vec::new();
        study.space.parameters.truncate(2);
        let size = study.space.parameters.iter().map(|p| if p.name == "batch" { 8 } else { 3 }).product();
        for number in 0..=size {
            let Some(point) = study.propose(&trials, number) else {
                assert_eq!(number, size, "{sampler:?}");
                continue;
            };
            assert!(trials.iter().all(|trial| trial.point != point), "{sampler:?}: trial {number}");
            assert!(number < size, "{sampler:?}: the space is exhausted");
            let value = point["batch"].number().unwrap();
            trials.push(Trial { state: State::Complete, values: vec![value], ..Trial::new(number, point, 1) });
        }
    }
}

/// How many of 30 proposals for the next trial have a rate above 1e-3, by the seed.
fn high_rates(sampler: Sampler, trials: &[Trial], warm: &[Observation]) -> usize {
    let point = |seed| Study { warm: warm.to_vec(), ..study(sampler, seed) }.propose(trials, 100).unwrap();
    (0..30).filter(|&seed| number(&point(seed), "rate") > 1e-3).count()
}

#[test]
fn infeasible_trials_are_avoided() {
    for sampler in [Sampler::Tpe, Sampler::Gp] {
        // Losses fall with the rate, and above 1e-3 there is no memory for it.
        let mut trials = run(&study(Sampler::Sobol, 11), 30);
        for trial in &mut trials {
            let rate = number(&trial.point, "rate");
            trial.values = vec![-libm::log10(rate)];
            if rate > 1e-3 {
                trial.state = State::Infeasible(Cause::OutOfMemory);
            }
        }
        let avoided = high_rates(sampler, &trials, &[]);
        trials.iter_mut().for_each(|trial| trial.state = State::Complete);
        let sought = high_rates(sampler, &trials, &[]);
        assert!(avoided <= 12 && sought >= 24, "{sampler:?}: {avoided} and {sought} of 30");
        trials.iter_mut().for_each(|trial| trial.state = State::Infeasible(Cause::NonFinite));
        assert!(study(sampler, 1).propose(&trials, 30).is_some(), "{sampler:?}: all infeasible");
    }
}

#[test]
fn results_of_an_earlier_search_are_a_prior() {
    for sampler in [Sampler::Tpe, Sampler::Gp] {
        let earlier = run(&study(Sampler::Sobol, 11), 20);
        let warm: Vec<Observation> = earlier
            .into_iter()
            .map(|trial| Observation {
                loss: Loss::Final(-libm::log10(number(&trial.point, "rate"))),
                point: trial.point,
            })
            .collect();
        let cold = high_rates(sampler, &[], &[]);
        let warmed = high_rates(sampler, &[], &warm);
        assert!(warmed > cold && warmed >= 24, "{sampler:?}: {warmed} with, {cold} without");
    }
}

#[test]
fn running_trials_keep_apart() {
    for sampler in [Sampler::Tpe, Sampler::Gp] {
        let mut spread = [0.0; 2];
        for seed in 0..10 {
            let study = study(sampler, seed);
            let finished = run(&study, 20);
            for (known, spread) in [true, false].into_iter().zip(&mut spread) {
                let mut trials = finished.clone();
                let mut rates = Vec::new();
                for number in 20..26 {
                    let point = study.propose(&trials, number).unwrap();
                    rates.push(libm::log10(point["rate"].number().unwrap()));
                    if known {
                        trials.push(Trial::new(number, point, 1));
                    }
                }
                let mean = rates.iter().sum::<f64>() / 6.0;
                *spread += rates.iter().map(|rate| (rate - mean) * (rate - mean)).sum::<f64>();
            }
        }
        assert!(spread[0] > 1.1 * spread[1], "{sampler:?}: {spread:?}");
    }
}

#[test]
fn several_objectives_are_searched_together() {
    // Two objectives that the rate trades for each other, and that both want norm b.
    let study = Study { goals: vec![Goal::Minimize, Goal::Maximize], ..study(Sampler::Tpe, 5) };
    let mut trials: Vec<Trial> = Vec::new();
    for number in 0..60 {
        let point = study.propose(&trials, number).unwrap();
        let rate = libm::log10(point["rate"].number().unwrap());
        let norm = if point["norm"] == Value::Text("b".to_owned()) { 0.0 } else { 2.0 };
        let values = vec![rate + norm, rate - norm];
        trials.push(Trial { state: State::Complete, values, ..Trial::new(number, point, 1) });
    }
    let of_b = trials[20..].iter().filter(|trial| trial.point["norm"] == Value::Text("b".to_owned())).count();
    assert!(of_b >= 24, "{of_b} of 40 have the better norm");
}

fn any_state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Running),
        Just(State::Paused),
        Just(State::Complete),
        Just(State::Stopped),
        Just(State::Infeasible(Cause::Unsupported)),
        Just(State::Abandoned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Any history, of trials in any state with any values, gives a point of the space.
    #[test]
    fn any_history_gives_a_point(
        seed in any::<u64>(),
        outcomes in prop::collection::vec((any_state(), any::<f64>(), any::<f64>()), 0..25),
    ) {
        for sampler in ALL {
            let study = study(sampler, seed);
            let source = self::study(Sampler::Sobol, seed);
            let trials: Vec<Trial> = outcomes.iter().zip(0..).map(|((state, value, report), number)| Trial {
                state: *state,
                values: vec![*value],
                reports: vec![Report { resource: 1, value: *report }],
                ..Trial::new(number, source.propose(&[], number).unwrap(), 1)
            }).collect();
            let point = study.propose(&trials, trials.len() as u32).unwrap();
            prop_assert!(study.space.permits(&point) && point.len() == 3);
            let rate = number(&point, "rate");
            prop_assert!((1e-5..=1e-1).contains(&rate));
        }
    }
}
