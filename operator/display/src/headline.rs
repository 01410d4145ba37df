//! The current activity of a job, in one line.

use crate::numbers::{factor, short};
use crate::plain::plain;
use pawl_api::TrainingJobStatus;
use pawl_api::status::{PhaseStatus, Purpose, SearchState, Stage};

/// The job in one line; `max_pairs` is its `analysis.maxPairs`.
pub fn render(status: &TrainingJobStatus, max_pairs: u32) -> String {
    let status = &plain(status);
    let judged = status.phases.iter().filter(|phase| phase.state.is_final()).count();
    let count = format!("{judged}/{} phases evaluated", status.phases.len());
    let attempt = status.attempt.as_ref();
    let phase = attempt.and_then(|attempt| attempt.phase.as_deref());
    let phase = phase.and_then(|name| status.phases.iter().find(|phase| phase.name == name));
    let name = phase.map_or("the baseline", |phase| phase.name.as_str());
    let doing = match (status.stage, attempt.map(|attempt| attempt.purpose)) {
        (Stage::Pending | Stage::Preflight, _) => "checking the settings".to_owned(),
        (Stage::Searching, _) => format!("{}{}", status.progress, best(status)),
        (Stage::Complete | Stage::Failed | Stage::Suspended, _) => status.stage.to_string(),
        (Stage::Training, Some(Purpose::LeaveOneOut)) => "measuring why the training is slow".to_owned(),
        (Stage::Training, _) | (_, Some(Purpose::Train)) => "training".to_owned(),
        (Stage::Optimizing, None) => "between launches".to_owned(),
        (Stage::Optimizing, Some(Purpose::Preflight)) => format!("checking {name}"),
        (Stage::Optimizing, Some(Purpose::Speed)) => format!("measuring {name}{}", pairs(phase, max_pairs)),
        (Stage::Optimizing, Some(Purpose::Quality)) => format!("quality of {name}"),
        (Stage::Optimizing, Some(Purpose::Bundle)) => "measuring all together".to_owned(),
        (Stage::Optimizing, Some(Purpose::LeaveOneOut)) => format!("measuring without {name}"),
        (Stage::Optimizing, Some(Purpose::Search)) => "searching".to_owned(),
    };
    match &status.retry {
        Some(retry) if !retry.message.is_empty() && attempt.is_none() => {
            format!("{count} · waiting before a retry: {}", retry.message)
        }
        _ => format!("{count} · {doing}"),
    }
}

/// The best trial so far of the stage of the search that runs, such as `, best so far 0.123 (trial 4)`.
fn best(status: &TrainingJobStatus) -> String {
    let open = status.search.iter().find(|stage| stage.state != SearchState::Done);
    let best = open.and_then(|stage| stage.best.as_ref());
    let value = best.and_then(|best| Some((best.trial, best.values.first()?.value())));
    value.map(|(trial, value)| format!(", best so far {} (trial {trial})", short(value))).unwrap_or_default()
}

fn pairs(phase: Option<&PhaseStatus>, max_pairs: u32) -> String {
    let Some(speedup) = phase.and_then(|phase| phase.speedup.as_ref()) else { return String::new() };
    format!(": {} after {} of at most {max_pairs} pairs", factor(speedup.estimate.value()), speedup.pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_search_shows_its_best_trial_so_far() {
        let mut status: TrainingJobStatus = serde_json::from_value(json!({
            "stage": "Searching", "progress": "search long: trial 3/12",
            "search": [{"name": "quick", "state": "Done", "best": {"trial": 7, "values": ["9"]}}, {"name": "long"}],
        }))
        .unwrap();
        assert_eq!(render(&status, 7), "0/0 phases evaluated · search long: trial 3/12");
        status.search[1].best = serde_json::from_value(json!({"trial": 1, "values": ["0.5"]})).unwrap();
        assert!(render(&status, 7).ends_with("search long: trial 3/12, best so far 0.5 (trial 1)"));
    }
}
