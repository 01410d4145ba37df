//! `pawl reproduce`.

use super::{document, output, source};
use crate::args::StateArgs;
use pawl_api::TrainingJob;
use pawl_contract::record::{ATTEMPTS, EXTENSION};
use pawl_contract::report::unprintable;
use pawl_decision::record::redact;
use pawl_display::provenance::{MeasuredWith, all, parts, warning};
use pawl_local::evidence::{displayed, measured_with};
use pawl_local::state::document::Document;
use pawl_local::state::records;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Columns of the names in the heading.
const NAMES: usize = 9;

/// Writes the manifest that repeats a job, which a record or a job names, with a heading that says what it was measured
/// with.
pub fn reproduce(named: &Path, out: &Path) -> ExitCode {
    let (selected, attempt) = selected(named);
    let read = source::read(&selected, |state| Ok((records::document(state)?, measured_with(state)?)));
    let (state, (recorded, attempts)) = match read {
        Ok(found) => found,
        Err(code) => return code,
    };
    let place = displayed(if attempt.is_some() { named } else { state.root() });
    let text = heading(&place, &recorded, &attempts, attempt.as_deref()) + &manifest(recorded.job);
    output::write(out, &text)
}

/// What selects the state that is named, and the attempt if its record is.
fn selected(named: &Path) -> (StateArgs, Option<String>) {
    // With its folder, also if it is named from within.
    let path = std::fs::canonicalize(named).unwrap_or_else(|_| named.to_owned());
    let folder = path.parent().filter(|folder| folder.ends_with(ATTEMPTS) && path.is_file());
    let is_record = path.extension().is_some_and(|extension| extension == EXTENSION);
    if let Some(root) = folder.and_then(Path::parent).filter(|_| is_record) {
        let state = StateArgs { file: None, state: Some(root.to_owned()) };
        return (state, path.file_stem().and_then(OsStr::to_str).map(str::to_owned));
    }
    (source::named(named), None)
}

/// The manifest of the job as it can be applied: without what a cluster or `pawl run` has added to its metadata, values
/// of environment variables, and annotations.
fn manifest(mut job: TrainingJob) -> String {
    let recorded = std::mem::take(&mut job.metadata);
    job.metadata.name = recorded.name;
    job.metadata.namespace = recorded.namespace;
    job.metadata.labels = recorded.labels;
    job.status = None;
    // A state directory has them, which others may not read; the file may be passed on.
    redact(&mut job);
    document(&job, true)
}

/// Comments that say what the attempt, or else the newest one, was measured with.
fn heading(place: &str, recorded: &Document, attempts: &[MeasuredWith], attempt: Option<&str>) -> String {
    let mut text = String::new();
    line(&mut text, &format!("Repeats {}, as recorded in {place}.", recorded.name()));
    let found = match attempt {
        Some(attempt) => attempts.iter().find(|known| known.attempt == attempt),
        None => attempts.last(),
    };
    match found {
        Some(MeasuredWith { attempt, provenance, .. }) => {
            line(&mut text, &format!("Attempt {attempt} ran with:"));
            for (name, value) in all(provenance) {
                line(&mut text, &format!("  {name:<NAMES$} {value}"));
            }
            if provenance.data.is_none() {
                line(&mut text, &format!("  {:<NAMES$} not known", "data"));
            }
            let source = provenance.source.as_ref();
            if let Some(commit) = source.and_then(|source| source.commit.as_deref()) {
                line(&mut text, &format!("To check it out: git checkout {commit}"));
            }
        }
        None => match attempt {
            Some(attempt) => {
                let unknown = format!("Attempt {attempt} only checked settings, or what it ran with is not recorded.");
                line(&mut text, &unknown);
            }
            None => line(&mut text, "What it ran with is not in the record."),
        },
    }
    // Of the job as a whole.
    if attempt.is_none() {
        if let Some(trainer) = &recorded.status.trainer {
            line(&mut text, &format!("Its newest build of the trainer: {}", trainer.build));
        }
        warning(attempts).iter().for_each(|warning| line(&mut text, warning));
        if let Some(parts) = parts(attempts, recorded.status.training.as_ref()) {
            line(&mut text, &format!("The model was trained in {parts}: no one of them gives the same model again."));
        }
    }
    let template = &recorded.job.spec.trainer.pod_template;
    let own = template.env.iter().map(|variable| (String::new(), variable));
    let before = template.init_containers.iter().flat_map(|container| {
        container.env.iter().map(|variable| (format!("initContainers[{}].", container.name), variable))
    });
    let without = own.chain(before).filter(|(_, variable)| variable.value_from.is_none());
    let without: Vec<String> = without.map(|(at, variable)| format!("{at}{}", variable.name)).collect();
    if !without.is_empty() {
        line(&mut text, &format!("Values of variables are left out. Add those of {}.", without.join(", ")));
    }
    text
}

/// Adds a comment, which stays on one line.
fn line(text: &mut String, comment: &str) {
    let comment: String = comment.chars().map(|c| if unprintable(c) { ' ' } else { c }).collect();
    let _ = writeln!(text, "# {comment}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_display::provenance::TrainLaunch;
    use serde_json::{Value, json};

    fn job(env: Value) -> TrainingJob {
        let job = json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "toy", "uid": "u-1", "generation": 3, "labels": {"team": "a"}},
            "spec": {"workload": {"name": "ups"}, "trainer": {"podTemplate": {"env": env}},
                     "phases": [{"name": "graph", "settings": {"compile": "Graph"}}]},
            "status": {"stage": "Complete"},
        });
        serde_json::from_value(job).unwrap()
    }

    fn attempt(number: u32, driver: &str) -> MeasuredWith {
        let provenance = json!({"driver": driver, "image": "train:v1\nspec: {}", "libraries": {"torch": "2.8.0"},
            "source": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": true}});
        let provenance = serde_json::from_value(provenance).unwrap();
        let trains = vec![TrainLaunch::default()];
        MeasuredWith { attempt: format!("toy-{number}"), provenance, judges: true, trains }
    }

    #[test]
    fn the_manifest_is_that_of_the_job_and_the_heading_says_what_it_ran_with() {
        let secret = json!({"secretKeyRef": {"name": "s", "key": "k"}});
        let mut job = job(json!([
            {"name": "TOKEN"}, {"name": "A", "value": "secret-17"}, {"name": "B", "valueFrom": secret},
        ]));
        job.metadata.annotations = Some([("example.com/key".to_owned(), "secret-17".to_owned())].into());
        let attempts = [attempt(1, "570"), attempt(2, "580")];
        let status = serde_json::from_value(json!({
            "trainer": {"build": "sha256:12"}, "training": {"segments": [{"toItems": 64}]},
        }))
        .unwrap();
        job.spec.trainer.pod_template.init_containers = serde_json::from_value(json!([
            {"name": "fetch", "image": "fetch:2", "env": [{"name": "KEY", "value": "secret-17"}]},
        ]))
        .unwrap();
        let recorded = Document { format: 1, spec_hash: String::new(), job: job.clone(), status };
        let text = heading("models/toy", &recorded, &attempts, None) + &manifest(job.clone());
        for part in [
            "# Repeats toy, as recorded in models/toy.\n# Attempt toy-2 ran with:\n#   driver    580\n",
            "#   libraries torch 2.8.0\n#   commit    0123456789ab, and changes that are in no commit\n",
            "#   data      not known\n",
            "# The model was trained in 2 attempts, which differ in driver: no one of them",
            "# To check it out: git checkout 0123456789abcdef0123456789abcdef01234567\n",
            "# Its newest build of the trainer: sha256:12\n# Attempts that measured differ in driver.",
            "# Values of variables are left out. Add those of TOKEN, A, initContainers[fetch].KEY.\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let read = pawl_manifest::parse(&text, "toy.yaml").unwrap();
        assert!(!text.contains("secret-17"), "{text}");
        job.spec.trainer.pod_template.env[1].value = None;
        job.spec.trainer.pod_template.init_containers[0].env[0].value = None;
        assert_eq!(json!(read.spec), json!(job.spec));
        assert_eq!((read.metadata.uid, read.metadata.generation, read.status.is_none()), (None, None, true));
        assert_eq!(read.metadata.labels, job.metadata.labels);

        let first = heading("toy-1.jsonl", &recorded, &attempts, Some("toy-1"));
        assert!(first.contains("driver    570") && !first.contains("580") && !first.contains("differ"), "{first}");
        let unknown = heading("models/toy", &recorded, &[], None);
        assert!(unknown.contains("is not in the record"), "{unknown}");
        let preflight = heading("toy-3.jsonl", &recorded, &attempts, Some("toy-3"));
        assert!(preflight.contains("# Attempt toy-3 only checked settings, or"), "{preflight}");
    }
}
