//! The termination message of a pod: the results of all launches of an attempt in at most 4,096 bytes.
//!
//! Kubernetes truncates the termination message of a container to 4,096 bytes. An attempt may have fourteen launches,
//! so the message is a table: `columns` contains the names of the fields once, and each launch is a row of values in
//! that order, `null` where absent.

use super::{LaunchResult, MAX_MESSAGE, MAX_TERMINATION_MESSAGE, truncated};
use crate::checkpoint::{BestCheckpoint, MAX_QUARANTINED, TrainedPart, reported};
use crate::measured::{Disturbance, Measured, rounded};
use serde::de::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Maximum length of the name of a checkpoint, its metric, an attempt or a launch in a chain, bytes; checkpoints and
/// chains with longer names are omitted.
const MAX_NAME: usize = 64;
/// Parts of a chain where there is no room for all.
const FEW_PARTS: usize = 4;

/// The content of a termination message, read by [`unfold`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Folded {
    /// The launches, in the order in which they ran.
    pub launches: Vec<LaunchResult>,
    /// Number of earlier launches that were omitted because the message was full.
    pub dropped: u32,
}

#[derive(Serialize, Deserialize)]
struct Message {
    pawl: Table,
    #[serde(default, skip_serializing_if = "is_zero")]
    dropped: u32,
}

/// A list of objects whose keys are written once.
#[derive(Serialize, Deserialize)]
struct Table {
    columns: Vec<String>,
    launches: Vec<Vec<Value>>,
}

/// Whether a termination message is meant for [`unfold`]: other programs leave text for people.
pub fn is_folded(text: &str) -> bool {
    text.starts_with('{')
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl Table {
    fn new(launches: &[Map<String, Value>]) -> Self {
        let columns: BTreeSet<&String> = launches.iter().flat_map(Map::keys).collect();
        let row = |launch: &Map<String, Value>| {
            columns.iter().map(|&column| launch.get(column).cloned().unwrap_or_default()).collect()
        };
        Self { launches: launches.iter().map(row).collect(), columns: columns.into_iter().cloned().collect() }
    }

    fn read(self) -> Result<Vec<LaunchResult>, serde_json::Error> {
        let read = |row: Vec<Value>| {
            if row.len() != self.columns.len() {
                return Err(serde_json::Error::custom("a row must have one value for each column"));
            }
            let fields = self.columns.iter().cloned().zip(row).filter(|(_, value)| !value.is_null());
            serde_json::from_value(Value::Object(fields.collect()))
        };
        self.launches.into_iter().map(read).collect()
    }
}

/// The best checkpoint, if its names are not too long.
fn short_best(best: &BestCheckpoint) -> Option<BestCheckpoint> {
    let fits = best.checkpoint.name.len() <= MAX_NAME && best.metric.len() <= MAX_NAME;
    Some(BestCheckpoint { value: rounded(best.value)?, ..best.clone() }).filter(|_| fits)
}

/// The newest parts of a chain; none if its names are too long.
fn short_chain(chain: &[TrainedPart]) -> Vec<TrainedPart> {
    let fits = chain.iter().all(|part| part.attempt.len() <= MAX_NAME && part.launch.len() <= MAX_NAME);
    if fits { reported(chain).to_vec() } else { Vec::new() }
}

/// The newest names that are not too long.
fn short_names(names: &[String]) -> Vec<String> {
    let newest = &names[names.len().saturating_sub(MAX_QUARANTINED)..];
    newest.iter().filter(|name| name.len() <= MAX_NAME).cloned().collect()
}

/// The launch with finite, rounded numbers, and with bounded names and messages.
fn bounded(launch: &LaunchResult) -> LaunchResult {
    let checkpoint = launch.checkpoint.clone();
    LaunchResult {
        message: truncated(&launch.message, MAX_MESSAGE).to_owned(),
        measured: launch.measured.rounded(),
        curve: launch.curve.iter().copied().filter_map(rounded).collect(),
        evaluations: launch.evaluations.iter().map(|(amount, value)| (*amount, value.and_then(rounded))).collect(),
        checkpoint: checkpoint.filter(|checkpoint| checkpoint.name.len() <= MAX_NAME),
        best_checkpoint: launch.best_checkpoint.as_ref().and_then(short_best),
        stop_seconds: launch.stop_seconds.and_then(rounded),
        trained: short_chain(&launch.trained),
        quarantined: short_names(&launch.quarantined),
        ..launch.clone()
    }
}

/// Each launch as a JSON object.
fn objects(launches: &[LaunchResult]) -> Vec<Map<String, Value>> {
    let object = |launch| match serde_json::to_value(launch) {
        Ok(Value::Object(object)) => object,
        other => unreachable!("a launch is an object whose keys are names: {other:?}"),
    };
    launches.iter().map(object).collect()
}

fn text(launches: &[Map<String, Value>], dropped: u32) -> String {
    let message = Message { pawl: Table::new(launches), dropped };
    serde_json::to_string(&message).expect("keys are strings and numbers are finite")
}

/// Serializes `launches` into one message of at most [`MAX_TERMINATION_MESSAGE`] bytes.
///
/// When they do not fit, first the messages are shortened (to 100 bytes, then 40, then none), then the chains (to the
/// newest four parts, without what is quarantined), then the values that verdicts need least are omitted (the spread of
/// step times, then what else happened on the machine, then the first validation, then of the newest the metrics other
/// than the loss), then the loss curves, the listed evaluations and the chains, then the oldest launches.
///
/// ```
/// use pawl_contract::exit::Outcome;
/// use pawl_contract::report::{LaunchResult, fold, unfold};
///
/// let launches = vec![LaunchResult::bare("compile-p0-a-0badcafe", Outcome::Done)];
/// assert_eq!(unfold(&fold(&launches))?.launches, launches);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn fold(launches: &[LaunchResult]) -> String {
    let mut launches: Vec<LaunchResult> = launches.iter().map(bounded).collect();
    let fits = |text: &String| text.len() <= MAX_TERMINATION_MESSAGE;
    for limit in [MAX_MESSAGE, 100, 40, 0] {
        for launch in &mut launches {
            launch.message = truncated(&launch.message, limit).to_owned();
        }
        let message = text(&objects(&launches), 0);
        if fits(&message) {
            return message;
        }
    }
    for launch in &mut launches {
        let oldest = launch.trained.len().saturating_sub(FEW_PARTS);
        launch.trained.drain(..oldest);
        launch.quarantined.clear();
    }
    let omitted: [fn(&mut Measured); 4] = [
        |measured| measured.step_seconds = None,
        |measured| measured.disturbance = Disturbance::default(),
        |measured| measured.first_validation = None,
        |measured| measured.validation.iter_mut().for_each(|validation| validation.retain(|name| name == "loss")),
    ];
    for omit in omitted {
        launches.iter_mut().for_each(|launch| omit(&mut launch.measured));
        let message = text(&objects(&launches), 0);
        if fits(&message) {
            return message;
        }
    }
    if !fits(&text(&objects(&launches), 0)) {
        launches.iter_mut().for_each(|launch| {
            launch.curve.clear();
            // The last one says where the launch has ended.
            launch.evaluations.drain(..launch.evaluations.len().saturating_sub(1));
            launch.trained.clear();
        });
    }
    let launches = objects(&launches);
    // Each iteration omits one more launch; a message without launches fits.
    (0..=launches.len())
        .map(|dropped| text(&launches[dropped..], u32::try_from(dropped).unwrap_or(u32::MAX)))
        .find(fits)
        .unwrap_or_default()
}

/// Reads a message of [`fold`].
///
/// # Errors
/// The text is not such a message: a container that did not reach the end of the agent may leave any text.
pub fn unfold(text: &str) -> Result<Folded, serde_json::Error> {
    let message: Message = serde_json::from_str(text)?;
    Ok(Folded { launches: message.pawl.read()?, dropped: message.dropped })
}
