//! The termination message of a pod: all launches of an attempt in at most 4,096 bytes.
//!
//! Kubernetes keeps the last 4,096 bytes that a container leaves as its termination message. A trial's attempt may hold
//! fourteen launches, so the message has a form of its own: short keys, numbers at six digits, nothing that is absent.

use crate::exit::Outcome;
use crate::progress::{BestCheckpoint, CheckpointRef};
use crate::report::{LaunchResult, MAX_MESSAGE, MAX_TERMINATION_MESSAGE, rounded, truncated};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A checkpoint of a longer name, or that is the best by a metric of a longer name, is left out, bytes.
const MAX_NAME: usize = 64;

/// What [`unfold`] reads from a termination message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Folded {
    /// The launches, in the order in which they ran.
    pub launches: Vec<LaunchResult>,
    /// Launches before those that had no room.
    pub dropped: u32,
}

#[derive(Serialize, Deserialize)]
struct Message {
    /// The launches.
    pawl: Vec<Short>,
    #[serde(default, skip_serializing_if = "is_zero")]
    dropped: u32,
}

/// A [`LaunchResult`] with short keys.
#[derive(Clone, Serialize, Deserialize)]
struct Short {
    n: String,
    o: Outcome,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    msg: String,
    #[serde(default, skip_serializing_if = "is_zero_long")]
    s: u64,
    #[serde(default, skip_serializing_if = "is_zero_long")]
    i: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ips: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fl: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    v: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    fv: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mem: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pmem: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lw: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    off: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    u: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    e: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    c: Option<CheckpointRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bc: Option<BestCheckpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fi: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    w: Option<f64>,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn is_zero_long(value: &u64) -> bool {
    *value == 0
}

/// JSON has no NaN and no infinity.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then(|| rounded(value))
}

fn all_finite(metrics: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    metrics.iter().filter_map(|(name, &value)| Some((name.clone(), finite(value)?))).collect()
}

fn short_best(best: &BestCheckpoint) -> Option<BestCheckpoint> {
    let fits = best.checkpoint.name.len() <= MAX_NAME && best.metric.len() <= MAX_NAME;
    Some(BestCheckpoint { value: finite(best.value)?, ..best.clone() }).filter(|_| fits)
}

impl From<&LaunchResult> for Short {
    fn from(result: &LaunchResult) -> Self {
        Self {
            n: result.launch.clone(),
            o: result.outcome,
            msg: truncated(&result.message, MAX_MESSAGE).to_owned(),
            s: result.steps,
            i: result.items,
            ips: result.items_per_second.and_then(finite),
            fl: result.final_loss.and_then(finite),
            v: all_finite(&result.validation),
            fv: all_finite(&result.first_validation),
            mem: result.peak_memory_bytes,
            pmem: result.predicted_memory_bytes,
            lw: result.loader_wait_share.and_then(finite),
            off: result.offload_share.and_then(finite),
            u: result.utilization.and_then(finite),
            e: result.items_per_epoch,
            c: result.checkpoint.clone().filter(|checkpoint| checkpoint.name.len() <= MAX_NAME),
            bc: result.best_checkpoint.as_ref().and_then(short_best),
            fi: result.failed_at_items,
            w: finite(result.wall_seconds).filter(|&seconds| seconds != 0.0),
        }
    }
}

impl From<Short> for LaunchResult {
    fn from(short: Short) -> Self {
        Self {
            launch: short.n,
            outcome: short.o,
            message: short.msg,
            steps: short.s,
            items: short.i,
            items_per_second: short.ips,
            final_loss: short.fl,
            first_validation: short.fv,
            validation: short.v,
            peak_memory_bytes: short.mem,
            predicted_memory_bytes: short.pmem,
            loader_wait_share: short.lw,
            offload_share: short.off,
            utilization: short.u,
            items_per_epoch: short.e,
            checkpoint: short.c,
            best_checkpoint: short.bc,
            failed_at_items: short.fi,
            wall_seconds: short.w.unwrap_or(0.0),
        }
    }
}

fn text(launches: &[Short], dropped: u32) -> String {
    let message = Message { pawl: launches.to_vec(), dropped };
    serde_json::to_string(&message).expect("keys are strings and numbers are finite")
}

/// All `launches` in one message of at most [`MAX_TERMINATION_MESSAGE`] bytes.
///
/// When they do not fit, first the texts go (to 100 bytes, then 40, then none), then the first validation and,
/// of the newest, metrics other than the loss, then the oldest launches.
pub fn fold(launches: &[LaunchResult]) -> String {
    let mut short: Vec<Short> = launches.iter().map(Short::from).collect();
    let fits = |text: &String| text.len() <= MAX_TERMINATION_MESSAGE;
    for limit in [MAX_MESSAGE, 100, 40, 0] {
        for result in &mut short {
            result.msg = truncated(&result.msg, limit).to_owned();
        }
        let message = text(&short, 0);
        if fits(&message) {
            return message;
        }
    }
    for result in &mut short {
        result.v.retain(|name, _| name == "loss");
        result.fv.clear();
    }
    // One more is dropped in each turn; the last turn has none left and fits.
    (0..=short.len())
        .map(|dropped| text(&short[dropped..], u32::try_from(dropped).unwrap_or(u32::MAX)))
        .find(fits)
        .unwrap_or_default()
}

/// Reads what [`fold`] wrote.
///
/// # Errors
/// The text is something else: a container that died on its own may leave any message.
pub fn unfold(text: &str) -> Result<Folded, serde_json::Error> {
    let message: Message = serde_json::from_str(text)?;
    Ok(Folded { launches: message.pawl.into_iter().map(LaunchResult::from).collect(), dropped: message.dropped })
}
