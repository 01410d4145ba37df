//! The current activity of a job, in one line.

use crate::numbers::factor;
use pawl_api::TrainingJobStatus;
use pawl_api::status::{PhaseStatus, Purpose, Stage};

/// The job in one line; `max_pairs` is its `analysis.maxPairs`.
pub fn render(status: &TrainingJobStatus, max_pairs: u32) -> String {
    let judged = status.phases.iter().filter(|phase| phase.state.is_final()).count();
    let count = format!("{judged}/{} phases evaluated", status.phases.len());
    let attempt = status.attempt.as_ref();
    let phase = attempt.and_then(|attempt| attempt.phase.as_deref());
    let phase = phase.and_then(|name| status.phases.iter().find(|phase| phase.name == name));
    let name = phase.map_or("the baseline", |phase| phase.name.as_str());
    let doing = match (status.stage, attempt.map(|attempt| attempt.purpose)) {
        (Stage::Pending | Stage::Preflight, _) => "checking the settings".to_owned(),
        (Stage::Searching, _) => "searching".to_owned(),
        (Stage::Complete | Stage::Failed | Stage::Suspended, _) => status.stage.to_string(),
        (Stage::Training, _) | (_, Some(Purpose::Train)) => "training".to_owned(),
        (Stage::Optimizing, None) => "between launches".to_owned(),
        (Stage::Optimizing, Some(Purpose::Preflight)) => format!("checking {name}"),
        (Stage::Optimizing, Some(Purpose::Speed)) => format!("measuring {name}{}", pairs(phase, max_pairs)),
        (Stage::Optimizing, Some(Purpose::Quality)) => format!("quality of {name}"),
        (Stage::Optimizing, Some(Purpose::Bundle)) => "measuring all together".to_owned(),
        (Stage::Optimizing, Some(Purpose::LeaveOneOut)) => format!("measuring without {name}"),
    };
    match &status.retry {
        Some(retry) if !retry.message.is_empty() && attempt.is_none() => {
            format!("{count} · waiting before a retry: {}", retry.message)
        }
        _ => format!("{count} · {doing}"),
    }
}

fn pairs(phase: Option<&PhaseStatus>, max_pairs: u32) -> String {
    let Some(speedup) = phase.and_then(|phase| phase.speedup.as_ref()) else { return String::new() };
    format!(": {} after {} of at most {max_pairs} pairs", factor(speedup.estimate.value()), speedup.pairs)
}
