//! What pods report: termination messages, the answers of agent 0, and the records in a storage.

use crate::parts::parts;
use crate::story::Story;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::live::Attempt;
use pawl_contract::record::{Entry, MAX_RECORD, Record, Text};
use pawl_contract::report::{LaunchResult, MAX_TERMINATION_MESSAGE, fold, unfold};
use pawl_decision::observed::{AttemptState, Ending};
use std::sync::LazyLock;

/// Decisions on one input: enough for a preflight, two phases, the bundle and the training.
const DECISIONS: usize = 24;

static JOB: LazyLock<TrainingJob> = LazyLock::new(|| {
    let text = include_str!("job.yaml");
    pawl_manifest::parse(text, "job.yaml").unwrap_or_else(|errors| panic!("{errors}"))
});

/// The termination message of a pod that ran somebody else's program.
pub fn termination(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(folded) = unfold(&text) {
        let again = fold(&folded.launches);
        assert!(again.len() <= MAX_TERMINATION_MESSAGE, "{} bytes", again.len());
        unfold(&again).unwrap_or_else(|error| panic!("a termination message cannot be read: {error}: {again}"));
    }
    unfold_story(Story::new(&JOB, TrainingJobStatus::default()), input);
}

/// The record of an attempt, in a storage to which others write as well: it goes on, and what was read stays.
pub fn record(input: &[u8]) {
    let Ok(read) = Record::read(input) else { return };
    let resumed = Text::resumed(Some(input.to_vec()), read.begun.clone());
    if input.len() > MAX_RECORD / 64 {
        return;
    }
    let again = Record::read(resumed.as_bytes()).unwrap_or_else(|error| panic!("a record that goes on {error}"));
    assert_eq!((&again.launches, again.end), (&read.launches, None));
    let mut text = Text::resumed(None, read.begun.clone());
    read.launches.iter().for_each(|launch| text.add(&Entry::Launch(Box::new(launch.clone()))));
    let again = Record::read(text.as_bytes()).unwrap_or_else(|error| panic!("a record that was written {error}"));
    assert_eq!(again.launches, read.launches);
}

/// The body of the answer to `GET /attempt`, a line for each time the operator asks.
pub fn live_answer(input: &[u8]) {
    let mut story = Story::new(&JOB, TrainingJobStatus::default());
    let mut answers =
        input.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice::<Attempt>(line).ok()).cycle();
    for _ in 0..DECISIONS {
        story.decide();
        let Some(answer) = answers.next() else { return };
        for attempt in story.attempts() {
            let mut open = true;
            for result in answer.results.clone() {
                open = attempt.report(result);
            }
            attempt.facts.progress = answer.progress.clone().map(|progress| {
                let launch = attempt.plan.launches.get(attempt.facts.results.len()).or(attempt.plan.launches.last());
                pawl_contract::progress::Progress {
                    launch: launch.map_or(progress.launch, |launch| launch.launch.clone()),
                    kind: launch.map_or(progress.kind, |launch| launch.kind),
                    ..progress
                }
            });
            if !open {
                attempt.facts.state = AttemptState::Ended(Ending::Completed);
            }
        }
        story.wait(15);
    }
}

/// Tells `story` with the results of the termination message `results`, one launch after the other, from the first
/// again after the last. An attempt ends when all of its launches have.
pub fn unfold_story(mut story: Story<'_>, results: &[u8]) {
    let [results, pace] = parts(results);
    let folded = unfold(&String::from_utf8_lossy(results)).map(|folded| folded.launches).unwrap_or_default();
    let mut next = folded.into_iter().cycle();
    let mut paces = pace.iter().copied();
    for _ in 0..DECISIONS {
        story.decide();
        let pace = paces.next().unwrap_or(0);
        for attempt in story.attempts() {
            // The two lowest bits: how the attempt goes on; the others: launches that end in this round.
            let ends = match pace & 3 {
                0 => usize::MAX,
                1 => usize::from(pace >> 2),
                2 => {
                    attempt.facts.state = AttemptState::Ended(Ending::Lost("its node is gone".to_owned()));
                    0
                }
                _ => {
                    attempt.facts.state = AttemptState::Ended(Ending::Preempted);
                    0
                }
            };
            complete(attempt, &mut next, ends);
        }
        story.wait(u32::from(pace) * 7 + 1);
    }
}

fn complete(attempt: &mut crate::story::Attempt, next: &mut impl Iterator<Item = LaunchResult>, ends: usize) {
    for _ in 0..ends.min(attempt.plan.launches.len() + 1) {
        let Some(result) = next.next() else { return };
        if !attempt.report(result) {
            attempt.facts.state = AttemptState::Ended(Ending::Completed);
        }
    }
}
