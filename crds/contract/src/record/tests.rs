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
    assert_eq!(read, Record { begun: begun("toy-1", "Train"), launches: launches.into(), end: Some(end) });
    assert!(read.begun.trains() && !begun("toy-1", "Measure").trains());
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
    let again = Text::resumed(Some(resumed.as_bytes().to_vec()), begun("toy-1", "Measure"));
    assert!(Record::read(again.as_bytes()).unwrap().launches.is_empty(), "another plan has another record");
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
fn a_record_is_bounded_and_keeps_the_reports_longer_than_the_curves() {
    let launches: Vec<_> = (0..100).map(|number| launched(&format!("l-{number}"), MAX_CURVE as u64)).collect();
    let text = written(&launches);
    assert!(text.as_bytes().len() <= MAX_RECORD);
    let read = Record::read(text.as_bytes()).unwrap().launches;
    assert_eq!(read.len(), 100);
    assert!(!read[0].curve.is_empty() && read[99].curve.is_empty());
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
