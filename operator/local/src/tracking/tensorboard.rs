//! Runs as folders of event files: `FOLDER/JOB` and `FOLDER/JOB/PHASE`.

use super::events::Events;
use jiff::Timestamp;
use pawl_display::track::{JobRuns, Run};
use std::fs;
use std::io;
use std::path::Path;

/// Ends the names of event files that Pawl writes: those of scripts are left unchanged.
const SUFFIX: &str = ".pawl";

/// Writes all runs below `folder`, each in place of what was written of it before.
///
/// # Errors
/// [`io::Error`] when a file cannot be written.
pub(super) fn write(folder: &Path, runs: &JobRuns) -> io::Result<()> {
    let place = folder.join(of_path(&runs.job.name));
    let now = Timestamp::now();
    write_run(&place, &runs.job, now)?;
    runs.children.iter().try_for_each(|run| write_run(&place.join(of_path(&run.name)), run, now))
}

fn write_run(place: &Path, run: &Run, now: Timestamp) -> io::Result<()> {
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
    // TensorBoard goes on to a file whose name comes later; it does not read one again that it has read.
    let name = format!("events.out.tfevents.{}{SUFFIX}", now.as_second());
    let new = place.join(name);
    pawl_durable::write(&new, &events.into_bytes())?;
    let is_old = |path: &Path| path != new && path.to_string_lossy().ends_with(SUFFIX);
    earlier.iter().filter(|path| is_old(path)).try_for_each(fs::remove_file)
}

/// A name as that of a folder.
fn of_path(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_display::track::RunState;
    use std::collections::BTreeMap;

    fn run(name: &str) -> Run {
        Run {
            key: name.to_owned(),
            name: name.to_owned(),
            state: RunState::Finished,
            settings: BTreeMap::from([("compile".to_owned(), "Graph".to_owned())]),
            tags: BTreeMap::from([("verdict", "Accepted".to_owned())]),
            metrics: BTreeMap::from([("loss".to_owned(), vec![(8, 0.5)])]),
        }
    }

    /// `tests/python/tracking` reads the files with TensorBoard.
    #[test]
    fn each_run_has_one_event_file_of_pawl_beside_those_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let runs = JobRuns { uid: String::new(), job: run("toy"), children: vec![run("all together")] };
        let phase = dir.path().join("toy/all-together");
        fs::create_dir_all(&phase).unwrap();
        for other in ["events.out.tfevents.7.host", "events.out.tfevents.7.pawl"] {
            fs::write(phase.join(other), "").unwrap();
        }
        write(dir.path(), &runs).unwrap();
        let mut names: Vec<String> = fs::read_dir(&phase)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort_by_key(String::len);
        let [others, new] = &names[..] else { panic!("{names:?}") };
        assert_eq!(others, "events.out.tfevents.7.host");
        assert!(new.ends_with(SUFFIX) && new != "events.out.tfevents.7.pawl", "{new}");
        let content = String::from_utf8_lossy(&fs::read(phase.join(new)).unwrap()).into_owned();
        assert!(["loss", "verdict", "compile: Graph"].iter().all(|part| content.contains(part)), "{content}");
    }
}
