//! Runs as folders of event files: `FOLDER/JOB`, and below it `phase-NAME`, `baseline`, `all-together` and `training`.

use super::events::Events;
use jiff::Timestamp;
use pawl_display::track::{JobRuns, Run};
use std::fs;
use std::io;
use std::path::Path;

/// Characters of the job's identifier in the names of its files.
const SHORT: usize = 8;

/// Writes all runs below `folder`, each in place of what was written of it before.
///
/// # Errors
/// [`io::Error`] when a file cannot be written.
pub(super) fn write(folder: &Path, runs: &JobRuns) -> io::Result<()> {
    let place = folder.join(of_path(&runs.job.name));
    // Files of scripts, and of another job of this name, are left unchanged.
    let own = format!(".{}.pawl", of_path(&runs.uid).chars().take(SHORT).collect::<String>());
    let now = Timestamp::now();
    write_run(&place, &runs.job, &own, now)?;
    let mut all = runs.children.iter();
    all.try_for_each(|run| {
        // A phase may be called `training`.
        let kind = if run.is_phase() { "phase-" } else { "" };
        write_run(&place.join(format!("{kind}{}", of_path(&run.name))), run, &own, now)
    })
}

/// Writes a run to a file whose name ends with `own`, and removes earlier files of such names.
fn write_run(place: &Path, run: &Run, own: &str, now: Timestamp) -> io::Result<()> {
    let mut events = Events::at(now.as_millisecond() as f64 / 1000.0);
    for (name, curve) in &run.metrics {
        curve.iter().for_each(|(step, value)| events.scalar(name, *step, *value));
    }
    for (name, said) in &run.tags {
        events.text(name, said);
    }
    if !run.settings.is_empty() {
        let lines = run.settings.iter().map(|(name, value)| format!("    {name}: {value}"));
        events.text("settings", &lines.collect::<Vec<_>>().join("\n"));
    }
    fs::create_dir_all(place)?;
    let earlier: Vec<_> = fs::read_dir(place)?.filter_map(Result::ok).map(|entry| entry.path()).collect();
    // TensorBoard reads next a file whose name comes later; it does not read one again that it has read.
    let name = format!("events.out.tfevents.{}{own}", now.as_millisecond());
    let new = place.join(name);
    pawl_durable::write(&new, &events.into_bytes())?;
    let is_old = |path: &Path| path != new && path.to_string_lossy().ends_with(own);
    earlier.iter().filter(|path| is_old(path)).try_for_each(fs::remove_file)
}

/// A name as that of a folder, which is no other one's parent.
fn of_path(name: &str) -> String {
    let is_dots = name.chars().all(|c| c == '.');
    name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) && !is_dots { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_display::track::RunState;
    use std::collections::BTreeMap;

    fn run(key: &str, name: &str) -> Run {
        Run {
            key: key.to_owned(),
            name: name.to_owned(),
            state: RunState::Finished,
            settings: BTreeMap::from([("compile".to_owned(), "Graph".to_owned())]),
            tags: BTreeMap::from([("verdict", "Accepted".to_owned())]),
            metrics: BTreeMap::from([("loss".to_owned(), vec![(8, 0.5)])]),
        }
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// `tests/python/tracking` reads the files with TensorBoard.
    #[test]
    fn each_run_has_one_event_file_of_its_job_beside_those_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let runs = JobRuns {
            uid: "0f3a17bc-22d1".to_owned(),
            job: run("job", "toy"),
            children: vec![run("bundle/x", "all together"), run("phase/training/x", "training")],
        };
        let bundle = dir.path().join("toy/all-together");
        fs::create_dir_all(&bundle).unwrap();
        let others = ["events.out.tfevents.7.77777777.pawl", "events.out.tfevents.7.host"];
        for other in others.into_iter().chain(["events.out.tfevents.1.0f3a17bc.pawl"]) {
            fs::write(bundle.join(other), "").unwrap();
        }
        write(dir.path(), &runs).unwrap();
        let mut names = files(&bundle);
        names.retain(|name| !others.contains(&name.as_str()));
        let [new] = &names[..] else { panic!("{names:?}") };
        assert_eq!(files(&bundle).len(), 3, "those of others stay");
        // A later file has a later name.
        assert!(new.ends_with(".0f3a17bc.pawl") && new.as_str() > "events.out.tfevents.1.0f3a17bc.pawl", "{new}");
        let content = String::from_utf8_lossy(&fs::read(bundle.join(new)).unwrap()).into_owned();
        assert!(["loss", "verdict", "compile: Graph"].iter().all(|part| content.contains(part)), "{content}");
        let places = files(&dir.path().join("toy"));
        // Beside them is the file of the job.
        assert_eq!(places, ["all-together", new.as_str(), "phase-training"]);
    }

    #[test]
    fn a_name_leads_to_no_other_folder() {
        assert_eq!(["..", ".", "a/../b", "v1.0"].map(of_path), ["--", "-", "a-..-b", "v1.0"]);
    }
}
