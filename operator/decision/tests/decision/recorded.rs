//! What the records of a job give again after its pods and its object are gone.

use crate::world::{World, done, speed};
use pawl_api::TrainingJob;
use pawl_api::status::{PhaseState, Purpose, Stage};
use pawl_contract::attempt::AttemptEnd;
use pawl_contract::exit::Outcome;
use pawl_contract::record::{Begun, Ended, Launched, Record};
use pawl_contract::report::Report;
use pawl_decision::observed::AttemptState;
use pawl_decision::record::{Completed, completed, document};
use serde_json::{Value, json};

/// A job whose phase is faster, as of the start of its training, and the record of the training to its end.
fn trained() -> (World, Record) {
    let spec = json!({
        "workload": {"name": "ups"}, "phases": [{"name": "compile", "settings": {"compile": "Graph"}}],
        "analysis": {"minPairs": 3, "maxPairs": 3}, "train": {"items": 800},
    });
    let mut world = World::new(spec, Box::new(|plan, _| done(plan, speed(&plan.settings, &[("compile", 1.5)]))));
    let trains = |world: &World| world.status.attempt.as_ref().is_some_and(|attempt| attempt.purpose == Purpose::Train);
    world.run_until(|world| trains(world) && !world.alive().is_empty());
    let plan = world.alive()[0].plan.clone();
    let report = |launch| {
        let result = done(launch, 150.0);
        let bare = Report::bare(launch, 0, Outcome::Done);
        Launched {
            time: 0,
            report: Report { measured: result.measured, items_per_epoch: result.items_per_epoch, ..bare },
            curve: Vec::new(),
            evaluations: Vec::new(),
        }
    };
    let launches = plan.launches.iter().map(report).collect();
    let time = u64::try_from(world.now.as_second() + 60).unwrap();
    let end = Some(Ended { time, end: AttemptEnd::Complete, message: String::new() });
    let begun = Begun::planned(&plan, String::new(), 0);
    (world, Record { begun, later_plans: Vec::new(), launches, happened: Vec::new(), end })
}

#[test]
fn a_job_that_was_recorded_when_its_training_began_is_complete_by_its_record() {
    let (mut world, record) = trained();
    let text: Value = serde_json::from_str(&document(&world.job, &world.status)).unwrap();
    let job: TrainingJob = serde_json::from_value(text["job"].clone()).unwrap();
    let recorded = serde_json::from_value(text["status"].clone()).unwrap();
    let Completed { status, happened } = completed(&job, &recorded, std::slice::from_ref(&record));
    let (before, end) = (world.events.len(), record.end.as_ref().unwrap().time);
    world.run();
    assert_eq!((status.stage, world.status.stage), (Stage::Complete, Stage::Complete));
    assert_eq!(status.phases[0].state, PhaseState::Accepted);
    let (training, expected) = (status.training.unwrap(), world.status.training.unwrap());
    assert_eq!(training.measured.items, expected.measured.items);
    assert!(!training.completed.is_empty() && training.completed.len() == expected.completed.len());
    let (derived, published) = (happened.last().unwrap(), world.events[before..].last().unwrap());
    let said = (&published.reason, &published.message, end);
    assert_eq!((&derived.reason, &derived.message, derived.time), said);
}

#[test]
fn an_attempt_that_has_not_ended_changes_nothing() {
    let (world, record) = trained();
    assert!(world.alive().iter().all(|attempt| attempt.facts.state == AttemptState::Running));
    let running = Record { end: None, ..record.clone() };
    let stopped = record.end.map(|end| Ended { end: AttemptEnd::Stopped, ..end });
    let stopped = Record { end: stopped, ..running.clone() };
    for record in [running, stopped] {
        let Completed { status, happened } = completed(&world.job, &world.status, &[record]);
        assert_eq!((status, happened), (world.status.clone(), Vec::new()));
    }
}

#[test]
fn an_attempt_of_another_job_of_this_name_changes_nothing() {
    let (mut world, mut record) = trained();
    let mut completed_as = |own: &str, of: &str| {
        world.job.metadata.uid = Some(own.to_owned());
        record.begun.uid = of.to_owned();
        completed(&world.job, &world.status, std::slice::from_ref(&record)).status.stage
    };
    assert_eq!((completed_as("a", "a"), completed_as("a", "")), (Stage::Complete, Stage::Complete));
    assert_ne!(completed_as("a", "b"), Stage::Complete);
}
