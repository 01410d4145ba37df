//! What is written is read, within bounds.

use super::*;
use crate::exit::Outcome;
use serde_json::json;

fn plan(attempt: &str, kind: &str) -> AttemptPlan {
    let launch = json!({
        "contract": 1, "job": "toy", "attempt": attempt, "launch": "l-1", "kind": kind, "workload": {},
        "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0,
    });
    let plan = json!({
        "contract": 1, "job": "toy", "attempt": attempt, "replicas": 1, "ranksPerReplica": 1, "gpusPerReplica": 0,
        "launches": [launch], "stopOnFailure": true,
    });
    serde_json::from_value(plan).unwrap()
}

fn begun(attempt: &str, kind: &str) -> Begun {
    Begun::planned(&plan(attempt, kind), "uid".to_owned(), 10)
}

fn launched(name: &str, points: u64) -> Launched {
    let launch = plan("toy-1", "Train").launches.remove(0);
    let report = Report { launch: name.to_owned(), ..Report::bare(&launch, 0, Outcome::Done) };
    let curve = (1..=points).map(|items| LossPoint { items, loss: 0.1 + items as f64 }).collect();
    let evaluation = Validation { items: points, metrics: [("loss".to_owned(), 0.3)].into() };
    Launched { time: 20, report, curve, evaluations: vec![evaluation] }
}

fn written(launches: &[Launched]) -> Text {
    let mut text = Text::resumed(None, begun("toy-1", "Train"));
    launches.iter().for_each(|launch| text.add(&Entry::Launch(Box::new(launch.clone()))));
    text
}

#[test]
fn what_is_written_is_read() {
    let launches = [launched("a", 100), launched("b", 0)];
    let mut text = written(&launches);
    let end = Ended { time: 30, end: AttemptEnd::LaunchFailed, message: "why".to_owned() };
    text.add(&Entry::End(end.clone()));
    let read = Record::read(text.as_bytes()).unwrap();
    let (begun, launches) = (begun("toy-1", "Train"), launches.into());
    let (later_plans, happened) = (Vec::new(), Vec::new());
    assert_eq!(read, Record { begun, later_plans, launches, happened, end: Some(end) });
}

#[test]
fn a_torn_line_costs_only_itself_and_the_record_goes_on() {
    let text = written(&[launched("a", 1), launched("b", 1)]);
    let torn = text.as_bytes()[..text.as_bytes().len() - 7].to_vec();
    assert_eq!(Record::read(&torn).unwrap().launches, [launched("a", 1)]);
    let mut resumed = Text::resumed(Some(torn), begun("toy-1", "Train"));
    resumed.add(&Entry::Launch(Box::new(launched("b", 2))));
    let read = Record::read(resumed.as_bytes()).unwrap();
    assert_eq!(read.launches, [launched("a", 1), launched("b", 2)]);
    let other = Begun { uid: "other".to_owned(), ..begun("toy-1", "Train") };
    let other = Text::resumed(Some(resumed.as_bytes().to_vec()), other);
    assert!(Record::read(other.as_bytes()).unwrap().launches.is_empty(), "another job has another record");
}

#[test]
fn a_plan_is_kept_once_and_another_one_beside_it() {
    let measured = Text::resumed(None, begun("toy-1", "Measure"));
    assert!(!Record::read(measured.as_bytes()).unwrap().trains());
    let again = |text: &Text, kind: &str| Text::resumed(Some(text.as_bytes().to_vec()), begun("toy-1", kind));
    let same = again(&measured, "Measure");
    let added = &same.as_bytes()[measured.as_bytes().len()..];
    assert!(!String::from_utf8_lossy(added).contains("plan"), "the plan is there already");
    let mut trained = again(&same, "Train");
    trained.add(&Entry::Launch(Box::new(launched("l-1", 1))));
    let read = Record::read(again(&trained, "Train").as_bytes()).unwrap();
    assert_eq!((&read.later_plans[..], read.launches.len()), (&[plan("toy-1", "Train")][..], 1));
    let kinds: Vec<_> = read.planned().map(|launch| launch.kind).collect();
    assert!(kinds == [LaunchKind::Train, LaunchKind::Measure] && read.trains(), "{kinds:?}");
}

#[test]
fn a_record_says_what_was_measured_with_and_one_of_an_earlier_version_does_not() {
    let provenance = |driver: &str| Provenance { driver: Some(driver.to_owned()), ..Provenance::default() };
    let with = |driver: &str| Begun { provenance: Some(provenance(driver)), ..begun("toy-1", "Train") };
    let mut text = Text::resumed(None, with("570"));
    let bare = launched("a", 1);
    let cuda = Provenance { cuda: Some("13.0".to_owned()), ..Provenance::default() };
    let report = Report { provenance: Some(cuda), ..bare.report };
    text.add(&Entry::Launch(Box::new(Launched { report, ..bare })));
    let found = |text: &Text| Record::read(text.as_bytes()).unwrap().provenance();
    let both = Provenance { cuda: Some("13.0".to_owned()), ..provenance("570") };
    assert_eq!(found(&text), Some(both.clone()));
    let same = Text::resumed(Some(text.as_bytes().to_vec()), with("570"));
    let again = String::from_utf8(same.as_bytes()[text.as_bytes().len()..].to_vec()).unwrap();
    assert!(!again.contains("driver") && found(&same) == Some(both.clone()), "{again}");
    let updated = Text::resumed(Some(same.as_bytes().to_vec()), with("580"));
    assert_eq!(found(&updated), Some(Provenance { driver: Some("580".to_owned()), ..both }));
    assert_eq!(found(&written(&[launched("a", 1)])), None);
}

/// Items and loss of points, and items and loss of evaluations.
fn part(points: &[(u64, f64)], evaluations: &[(u64, f64)]) -> Launched {
    let evaluation = |&(items, loss): &(u64, f64)| Validation { items, metrics: [("loss".to_owned(), loss)].into() };
    Launched {
        curve: points.iter().map(|&(items, loss)| LossPoint { items, loss }).collect(),
        evaluations: evaluations.iter().map(evaluation).collect(),
        ..launched("a", 0)
    }
}

#[test]
fn a_launch_that_was_resumed_has_the_curve_of_all_its_parts() {
    // Stopped at 30 items, resumed from a checkpoint at 20.
    let stopped = part(&[(10, 0.9), (20, 0.8), (30, 9.0)], &[(10, 0.95), (28, 9.0)]);
    let resumed = part(&[(25, 0.7), (40, 0.6)], &[(40, 0.65)]);
    let read = Record::read(written(&[stopped.clone(), resumed]).as_bytes()).unwrap();
    let whole = part(&[(10, 0.9), (20, 0.8), (25, 0.7), (40, 0.6)], &[(10, 0.95), (40, 0.65)]);
    assert_eq!(read.launches, [whole]);
    let read = Record::read(written(&[stopped.clone(), part(&[], &[])]).as_bytes()).unwrap();
    assert_eq!(read.launches, [stopped], "it was stopped again before its first step");
    let read = Record::read(written(&[part(&[(2, 0.9)], &[]), part(&[(2, 0.8)], &[])]).as_bytes()).unwrap();
    assert_eq!(read.launches, [part(&[(2, 0.8)], &[])], "it began anew");
}

#[test]
fn an_attempt_that_is_resumed_has_not_ended() {
    let mut text = written(&[launched("a", 1)]);
    text.add(&Entry::End(Ended { time: 1, end: AttemptEnd::Stopped, message: String::new() }));
    let resumed = Text::resumed(Some(text.as_bytes().to_vec()), Begun { time: 99, ..begun("toy-1", "Train") });
    let read = Record::read(resumed.as_bytes()).unwrap();
    assert_eq!((read.end, read.launches.len()), (None, 1));
}

#[test]
fn fields_and_lines_of_later_versions_are_skipped_and_later_formats_are_named() {
    let mut line = json!(Entry::Launch(Box::new(launched("a", 1))));
    line["launch"]["energy"] = json!({"joules": 7});
    let first = json!(Entry::Attempt(Box::new(begun("toy-1", "Train"))));
    let text = format!("{first}\n{}\n{line}\n", json!({"weather": {"is": "fine"}}));
    assert_eq!(Record::read(text.as_bytes()).unwrap().launches, [launched("a", 1)]);
    let newer = json!(Entry::Attempt(Box::new(Begun { format: 2, ..begun("toy-1", "Train") }))).to_string();
    assert_eq!(Record::read(newer.as_bytes()), Err(RecordError::Newer { found: 2 }));
    assert_eq!(Record::read(b"{}"), Err(RecordError::NoAttempt));
}

#[test]
fn events_are_lines_of_their_own_and_none_is_there_twice() {
    let event = |time, reason: &str| Happened {
        time,
        warning: reason == "Failed",
        reason: reason.to_owned(),
        message: "toy".to_owned(),
        phase: None,
    };
    let events = [event(1, "Started"), event(2, "Failed")];
    let carried = AttemptPlan { events: events.to_vec(), ..plan("toy-1", "Train") };
    let begun = Begun::planned(&carried, "uid".to_owned(), 10);
    assert!(begun.plan.as_ref().is_some_and(|plan| plan.events.is_empty()));
    let mut text = Text::resumed(None, begun);
    text.add_events(&events[..1]);
    text.add_events(&events);
    let line = r#"{"event":{"time":2,"warning":true,"reason":"Failed","message":"toy"}}"#;
    assert_eq!(std::str::from_utf8(text.as_bytes()).unwrap().lines().last(), Some(line));
    assert_eq!(Record::read(text.as_bytes()).unwrap().happened, events);

    let there = || text.as_bytes().to_vec();
    assert_eq!(Text::with_events(there(), &events), None, "nothing is to be written");
    let later = Text::with_events(there(), &[event(3, "Complete")]).unwrap();
    assert_eq!(Record::read(later.as_bytes()).unwrap().happened.len(), 3);
    assert_eq!(Text::with_events(b"{".to_vec(), &events), None, "is no record");
    let many: Vec<_> = (0..MAX_EVENTS as u64 + 7).map(|time| event(time, "Paused")).collect();
    let newest = Text::with_events(there(), &many).unwrap();
    assert_eq!(Record::read(newest.as_bytes()).unwrap().happened.len(), 2 + MAX_EVENTS);
}

#[test]
fn a_record_is_bounded_and_keeps_the_reports_longer_than_the_curves() {
    let launches: Vec<_> = (0..100).map(|number| launched(&format!("l-{number}"), MAX_CURVE as u64)).collect();
    let text = written(&launches);
    assert!(text.as_bytes().len() <= MAX_RECORD);
    let read = Record::read(text.as_bytes()).unwrap().launches;
    assert_eq!(read.len(), 100);
    assert!(!read[0].curve.is_empty() && read[99].curve.is_empty());
}

#[test]
fn there_is_always_room_for_the_end() {
    let mut text = written(&[]);
    let mut add = |name: &str, message: String| {
        let bare = launched(name, 0);
        let report = Report { message, ..bare.report };
        text.add(&Entry::Launch(Box::new(Launched { report, ..bare })));
        text.as_bytes().len()
    };
    for number in 0..MAX_RECORD / 10_000 {
        add(&format!("long-{number}"), "x".repeat(10_000));
    }
    for number in 0..100 {
        add(&format!("short-{number}"), String::new());
    }
    assert_eq!(add("one-more-launch", String::new()), add("and-another-one", String::new()), "there is no room");
    // Each of its characters takes six bytes in JSON.
    let end = Ended::new(1, AttemptEnd::LaunchFailed, &"\u{1}".repeat(10_000));
    text.add(&Entry::End(end.clone()));
    assert_eq!(Record::read(text.as_bytes()).unwrap().end, Some(end));
    assert!(text.as_bytes().len() <= MAX_RECORD);
}

#[test]
fn measuring_attempts_leave_before_those_that_trained() {
    let stored = |number: u32, trains| Stored { attempt: format!("toy-{number}"), size: 16 << 20, trains };
    let all = vec![stored(1, true), stored(10, false), stored(9, false), stored(2, true), stored(3, true)];
    assert_eq!(surplus(all), ["toy-9", "toy-10"]);
    assert_eq!(surplus((1..=5).map(|number| stored(number, true)).collect()), ["toy-1", "toy-2"]);
}

#[test]
fn evaluations_are_bounded_and_the_first_and_the_last_stay() {
    let mut all = Evaluations::default();
    let of = |items| Validation { items, metrics: [("loss".to_owned(), 1.0)].into() };
    (0..1_500).for_each(|items| (0..2).for_each(|_| all.add(&of(items))));
    let kept = all.take();
    assert!(kept.len() <= MAX_EVALUATIONS && kept.len() > MAX_EVALUATIONS / 3);
    assert_eq!((kept[0].items, kept[kept.len() - 1].items), (0, 1_499));
    assert!(kept.windows(2).all(|pair| pair[0].items < pair[1].items));
}
