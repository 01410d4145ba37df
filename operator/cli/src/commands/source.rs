//! Reads manifests, and locates the state of their jobs.

use crate::args::StateArgs;
use crate::exit;
use pawl_api::status::Stage;
use pawl_api::{Problem, TrainingJob};
use pawl_display::verdict::is_open;
use pawl_local::state::document::Document;
use pawl_local::state::{DEFAULT_ROOT, StateDir, StateError, records};
#[cfg(feature = "cluster")]
use pawl_manifest::Documents;
use pawl_manifest::ManifestErrors;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Error of reading a manifest.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be read from standard input.
    #[error("standard input: {0}")]
    Stdin(#[from] io::Error),
    /// It is not a valid manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestErrors),
}

/// Reads the manifest in `file`; `-` is standard input.
pub fn load(file: &Path) -> Result<TrainingJob, SourceError> {
    load_with(file, |_| Vec::new())
}

/// As [`load`], with further rules: `rules` returns the problems of a job that is valid otherwise.
pub fn load_with(file: &Path, rules: impl FnOnce(&TrainingJob) -> Vec<Problem>) -> Result<TrainingJob, SourceError> {
    if file != Path::new("-") {
        return Ok(pawl_manifest::load_with(file, rules)?);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(pawl_manifest::parse_with(&text, "<stdin>", rules)?)
}

/// Reads all TrainingJobs in `file`, which may have several documents; `-` is standard input.
#[cfg(feature = "cluster")]
pub fn load_all(file: &Path) -> Result<Documents, SourceError> {
    if file != Path::new("-") {
        return Ok(pawl_manifest::parse_all(&pawl_manifest::text_of(file)?, &file.display().to_string())?);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(pawl_manifest::parse_all(&text, "<stdin>")?)
}

/// Prints every problem on a line of its own.
pub fn reject(error: &SourceError) -> ExitCode {
    match error {
        SourceError::Stdin(_) => return exit::with_error(exit::INPUT, error),
        SourceError::Manifest(errors) => exit::say(&errors.to_string().trim_end()),
    }
    ExitCode::from(exit::INPUT)
}

/// `named`, or else the default state directory of `job`.
pub fn state_of(job: &TrainingJob, named: Option<&Path>) -> StateDir {
    match named {
        Some(directory) => StateDir::new(directory),
        None => StateDir::default_for(job.metadata.name.as_deref().unwrap_or_default()),
    }
}

/// The state that the command line selects: that of a directory, of the name of a job that ran here, or of a manifest.
/// Whether there is one is found out by whoever reads it.
fn state_dir(args: &StateArgs) -> Result<StateDir, SourceError> {
    let Some(file) = &args.file else {
        return Ok(StateDir::found_in(args.state.as_deref().unwrap_or(Path::new("."))));
    };
    let is_manifest = file == Path::new("-") || file.exists() && !file.is_dir();
    if is_manifest {
        return Ok(state_of(&load(file)?, None));
    }
    let there = StateDir::found_in(file);
    let of_name = name(file).map(StateDir::default_for).filter(|of_name| of_name.status().exists() || !file.exists());
    Ok(of_name.filter(|_| !there.status().exists()).unwrap_or(there))
}

/// A path that may be the name of a job.
fn name(path: &Path) -> Option<&str> {
    path.to_str().filter(|path| !path.contains('/'))
}

/// The arguments that select a job by a state directory, a storage, a manifest, or a name.
pub fn named(job: &Path) -> StateArgs {
    StateArgs { file: Some(job.to_owned()), state: None }
}

/// The state that the command line selects, and what `read` finds there; an error is printed.
pub fn read<T>(
    args: &StateArgs,
    read: impl FnOnce(&StateDir) -> Result<T, StateError>,
) -> Result<(StateDir, T), ExitCode> {
    let state = state_dir(args).map_err(|error| reject(&error))?;
    match read(&state) {
        Ok(found) => Ok((state, found)),
        Err(StateError::Absent { .. }) => Err(exit::with_error(exit::INPUT, &no_job(args, &state))),
        Err(error) => Err(exit::with_error(exit::STATE, &error)),
    }
}

/// The state that the command line selects, and the job that was run there; an error is printed.
pub fn recorded(args: &StateArgs) -> Result<(StateDir, Document), ExitCode> {
    read(args, records::document)
}

/// Whether the `pawl run` of the job in `state` ended before the job, which is in `stage`.
pub fn has_stopped(state: &StateDir, stage: Stage) -> bool {
    is_open(stage) && state.is_idle()
}

/// Jobs that are named where one was not found.
const NAMED: usize = 8;

/// That no job ran in `state`, which the command line selects, where that was looked for, and which jobs there are.
fn no_job(args: &StateArgs, state: &StateDir) -> String {
    let looked = state.root();
    let selected = args.file.as_deref().or(args.state.as_deref()).unwrap_or(looked);
    let problem = if selected.exists() || selected == Path::new("-") {
        format!("its job was not run here: {} does not exist", state.status().display())
    } else if selected == looked {
        "no such file or directory".to_owned()
    } else {
        format!("no such file or directory, and no job was run in {}", looked.display())
    };
    let problem = format!("{}: {problem}", selected.display());
    let usual = Path::new(DEFAULT_ROOT);
    let beside = looked.parent().filter(|parent| parent.is_dir() && *parent != Path::new("")).unwrap_or(usual);
    let jobs = jobs_in(beside);
    if jobs.is_empty() {
        let remedy = "run a job first, or name its manifest, state directory or storage";
        return format!("{problem}; there are no jobs in {}: {remedy}", beside.display());
    }
    let shown = jobs.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = jobs.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "{problem}; jobs in {}: {shown}{more}: name one of them, or the manifest, state directory or storage of a job",
        beside.display()
    )
}

/// What selects the jobs whose state is in `directory`, in order: their name where it is enough.
fn jobs_in(directory: &Path) -> Vec<String> {
    let found = states(directory).unwrap_or_default().into_iter().filter(|state| state.status().exists());
    let name = |state: StateDir| {
        let path = state.storage().unwrap_or(state.root());
        path.strip_prefix(DEFAULT_ROOT).unwrap_or(path).display().to_string()
    };
    let mut named: Vec<String> = found.map(name).collect();
    named.sort();
    named
}

/// The state directories, and the storages of jobs, in `directory`; none when it does not exist, which is so before the
/// first run.
pub fn states(directory: &Path) -> io::Result<Vec<StateDir>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    Ok(paths.iter().filter(|path| path.is_dir()).map(|path| StateDir::found_in(path)).collect())
}
