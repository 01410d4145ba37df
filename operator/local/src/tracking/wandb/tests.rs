//! `tests/python/tracking` reads the directories with wandb.

use super::*;
use pawl_display::track::RunState;
use serde_json::json;
use std::collections::BTreeMap;

fn run(key: &str, loss: &[(u64, f64)]) -> Run {
    Run {
        key: key.to_owned(),
        name: "graph".to_owned(),
        state: RunState::Finished,
        settings: BTreeMap::from(
            [("batchPerGpu", "8"), ("compile", "Graph")].map(|(name, value)| (name.to_owned(), value.to_owned())),
        ),
        tags: BTreeMap::from([("verdict", "Accepted".to_owned())]),
        metrics: BTreeMap::from([("loss".to_owned(), loss.to_vec()), ("speedup".to_owned(), vec![(0, 1.5)])]),
    }
}

fn runs(loss: &[(u64, f64)]) -> JobRuns {
    JobRuns { uid: "0f3a17bc-22d1".to_owned(), job: run("job", &[]), children: vec![run("phase/graph/x", loss)] }
}

/// The directory and the file of the phase, of which there is one.
fn of_phase(folder: &Path) -> (PathBuf, PathBuf) {
    let all = fs::read_dir(folder.join("wandb")).unwrap().map(|entry| entry.unwrap().path());
    let is_phase =
        |directory: &PathBuf| fs::read_to_string(directory.join("files/wandb-summary.json")).unwrap().contains("loss");
    let found: Vec<PathBuf> = all.filter(is_phase).collect();
    let [directory] = &found[..] else { panic!("{found:?}") };
    let name = directory.file_name().unwrap().to_str().unwrap();
    let id = name.rsplit('-').next().unwrap();
    (directory.clone(), directory.join(format!("run-{id}.wandb")))
}

#[test]
fn a_run_is_written_again_in_its_place_and_stays_uploaded_while_it_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let write = |loss: &[(u64, f64)]| {
        Offline::new(dir.path().to_str().unwrap(), |_| None).write(&runs(loss)).unwrap();
        of_phase(dir.path())
    };
    let (directory, file) = write(&[(8, 2.0)]);
    let mark = file.with_extension("wandb.synced");
    fs::write(&mark, "").unwrap();
    let first = fs::read(&file).unwrap();

    assert_eq!(write(&[(8, 2.0)]), (directory.clone(), file.clone()));
    assert!(mark.exists() && fs::read(&file).unwrap() == first);

    assert_eq!(write(&[(8, 2.0), (16, 1.0)]), (directory.clone(), file.clone()));
    assert!(!mark.exists() && fs::read(&file).unwrap() != first);
    let summary: Value =
        serde_json::from_slice(&fs::read(directory.join("files/wandb-summary.json")).unwrap()).unwrap();
    assert_eq!(
        (&summary["loss"], &summary["speedup"], &summary["_step"], &summary["verdict"]),
        (&json!(1.0), &json!(1.5), &json!(16), &json!("Accepted"))
    );
    let config = fs::read_to_string(directory.join("files/config.yaml")).unwrap();
    assert_eq!(config, "\"batchPerGpu\":\n    value: 8\n\"compile\":\n    value: \"Graph\"\n");
}

#[test]
fn the_variables_of_wandb_name_project_and_entity_and_jobs_have_runs_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let parent = dir.path().to_str().unwrap();
    let variable = |name: &str| match name {
        "WANDB_PROJECT" => Some("of the team".to_owned()),
        "WANDB_ENTITY" => Some("team-a".to_owned()),
        _ => None,
    };
    Offline::new(parent, variable).write(&runs(&[(8, 2.0)])).unwrap();
    let content = String::from_utf8_lossy(&fs::read(of_phase(dir.path()).1).unwrap()).into_owned();
    assert!(["of the team", "team-a", "graph-0f3a17bc"].iter().all(|part| content.contains(part)), "{content}");
    let other = JobRuns { uid: "1".to_owned(), ..runs(&[(8, 3.0)]) };
    Offline::new(parent, |_| None).write(&other).unwrap();
    assert_eq!(fs::read_dir(dir.path().join("wandb")).unwrap().count(), 4);
}

#[test]
fn the_time_of_a_directory_is_that_of_its_name() {
    let time = of_name("20260304_050607").unwrap();
    assert_eq!(time.to_string(), "2026-03-04T05:06:07Z");
    assert_eq!(of_name("20260304_0506"), None);
}
