//! The command of a user that `pawl tune` tunes: what it keeps in the state directory, and the command with the
//! settings that were accepted.

use crate::state::StateDir;
use pawl_api::TrainingJob;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::settings::Settings;
use pawl_contract::template::{Places, RenderError, Rendered, Values, render};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Words of a command, as they are kept with the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// With placeholders, for launches.
    pub launch: Vec<String>,
    /// As the user wrote them; none: Pawl has added the words.
    pub own: Vec<String>,
}

/// What is read here of the [`file()`].
#[derive(Deserialize)]
struct Kept {
    parts: Vec<Part>,
}

/// Where `pawl tune` keeps what it has found in a script.
pub fn file(state: &StateDir) -> PathBuf {
    state.root().join("tune.json")
}

/// The user's command with the settings `accepted`; `None` when `state` has none that launches of `job` run, as after a
/// change of the command that was not measured yet.
pub fn command(state: &StateDir, job: &TrainingJob, accepted: &Settings) -> Option<Vec<String>> {
    let Kept { parts } = serde_json::from_slice(&std::fs::read(file(state)).ok()?).ok()?;
    let is_of_job = parts.iter().flat_map(|part| &part.launch).eq(&job.spec.workload.command);
    if is_of_job { changed(&parts, job, accepted).ok() } else { None }
}

/// The user's command with the settings that were accepted, and the variables that it needs then: what differs from the
/// baseline is as in a launch, everything else as the user wrote it.
///
/// # Errors
/// [`RenderError`]: a placeholder of the manifest has no value.
pub fn changed(parts: &[Part], job: &TrainingJob, accepted: &Settings) -> Result<Vec<String>, RenderError> {
    let preview = pawl_decision::preview(job);
    let Some(baseline) = preview.launches.first() else { return Ok(Vec::new()) };
    let places = Places { checkpoints: "checkpoints".to_owned(), ..Places::default() };
    let rendered = |launch: &[String], settings: &Settings| -> Result<Rendered, RenderError> {
        let plan = LaunchPlan { settings: settings.clone(), ..baseline.clone() };
        let variable = |name: &str| Some(format!("$({name})"));
        let values = Values { plan: &plan, world_size: preview.world_size(), places: &places, variable: &variable };
        render(launch, &preview.script.env, &values)
    };
    let mut words = Vec::new();
    let before = rendered(&[], &job.spec.settings)?.env;
    let after = rendered(&[], accepted)?.env;
    words
        .extend(after.iter().filter(|(name, value)| before.get(*name) != Some(value)).map(|(n, v)| format!("{n}={v}")));
    for Part { launch, own } in parts {
        let (before, after) = (rendered(launch, &job.spec.settings)?, rendered(launch, accepted)?);
        words.extend(if before.command == after.command { own.clone() } else { after.command });
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_command_is_that_of_the_job_with_what_was_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path());
        let job = |script: &str| -> TrainingJob {
            let command = ["env", "python3", script, "--batch=$(settings.batchPerGpu)"];
            let workload = json!({"command": command, "monitor": {"training": r"(?<step>\d+)"}});
            let spec = json!({"workload": workload, "trainer": {"gpusPerReplica": 0}, "settings": {"batchPerGpu": 8}});
            serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).unwrap()
        };
        let part = |launch: &[&str], own: &[&str]| json!({"launch": launch, "own": own});
        let parts: Vec<Value> = vec![
            part(&["env"], &[]),
            part(&["python3", "train.py"], &["python3", "train.py"]),
            part(&["--batch=$(settings.batchPerGpu)"], &["-b", "8"]),
        ];
        std::fs::write(file(&state), json!({"identity": {"version": "0"}, "parts": parts}).to_string()).unwrap();
        let with = |script: &str, settings: Value| {
            command(&state, &job(script), &serde_json::from_value(settings).unwrap()).map(|words| words.join(" "))
        };
        assert_eq!(with("train.py", json!({"batchPerGpu": 8})).as_deref(), Some("python3 train.py -b 8"));
        assert_eq!(with("train.py", json!({"batchPerGpu": 16})).as_deref(), Some("python3 train.py --batch=16"));
        assert_eq!(with("other.py", json!({"batchPerGpu": 16})), None, "what is kept is of another command");
    }
}
