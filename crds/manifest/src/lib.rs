//! Reads manifests in YAML or JSON into a [`TrainingJob`], or reports every error with its line and column.
//!
//! Text → tree with locations → schema validation → typed → [`pawl_api::validate()`]. The schema is the CRD's, so that
//! this crate and the API server reject the same manifests; messages about pod template fields and unknown fields are
//! more precise here.

#![warn(clippy::missing_errors_doc)]

mod check;
mod crd;
mod tree;

pub use crd::{crd, documented_crd};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pawl_api::{Problem, TrainingJob, TrainingJobSpec, schema, validate};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::sync::LazyLock;
use tree::Tree;

/// Maximum size of a manifest in bytes: about the limit of etcd.
const MAX_BYTES: u64 = 1024 * 1024;

/// All errors of a manifest; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestErrors {
    /// Path of the file, or a placeholder such as `<stdin>`.
    pub source: String,
    /// The errors, in the order of the file.
    pub errors: Vec<ManifestError>,
}

/// One error of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// Line, from 1; 0 when the error concerns the whole file.
    pub line: u32,
    /// Column, from 1; 0 when the error concerns the whole file.
    pub column: u32,
    /// Path of the field, such as `spec.phases[1].name`; empty when the error concerns no field.
    pub field: String,
    /// The value, the problem, and the remedy.
    pub message: String,
}

impl fmt::Display for ManifestErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ManifestError { line, column, field, message }) in self.errors.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{}:", self.source)?;
            if *line > 0 {
                write!(f, "{line}:{column}:")?;
            }
            let colon = if field.is_empty() { "" } else { ": " };
            write!(f, " {field}{colon}{message}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ManifestErrors {}

/// Reads the manifest at `path`.
///
/// # Errors
/// [`ManifestErrors`] when the file cannot be read, is larger than 1 MiB or not UTF-8, and as [`parse`].
pub fn load(path: &Path) -> Result<TrainingJob, ManifestErrors> {
    load_with(path, no_rules)
}

/// As [`load`], with further rules as in [`parse_with`].
///
/// # Errors
/// As [`load`] and [`parse_with`].
pub fn load_with(path: &Path, rules: impl FnOnce(&TrainingJob) -> Vec<Problem>) -> Result<TrainingJob, ManifestErrors> {
    parse_with(&text_of(path)?, &path.display().to_string(), rules)
}

/// The text of the manifest at `path`.
///
/// # Errors
/// [`ManifestErrors`] when the file cannot be read, is larger than 1 MiB or not UTF-8.
pub fn text_of(path: &Path) -> Result<String, ManifestErrors> {
    let refuse = |message: String| Err(ManifestErrors::about_file(&path.display().to_string(), message));
    match std::fs::metadata(path) {
        Ok(facts) if facts.len() > MAX_BYTES => {
            return refuse(format!(
                "has {} bytes, more than the {MAX_BYTES} of a manifest: is it the right file?",
                facts.len()
            ));
        }
        Ok(facts) if facts.is_dir() => return refuse("is a directory: name a file in it".to_owned()),
        _ => {}
    }
    match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => refuse("is not UTF-8 text: is it the right file?".to_owned()),
        Err(error) => refuse(format!("cannot be read: {error}")),
    }
}

/// Reads a manifest of one YAML or JSON document. `source` names it in errors.
///
/// A `status` in it is ignored. Defaults are filled in as the API server does.
///
/// # Errors
/// [`ManifestErrors`] with every syntax error, schema violation, or violated rule of [`pawl_api::validate()`] (those of
/// the first of these steps that fails), each with its location, field and remedy.
pub fn parse(text: &str, source: &str) -> Result<TrainingJob, ManifestErrors> {
    parse_with(text, source, no_rules)
}

/// As [`parse`], with further rules: `rules` returns the problems of a job that is valid otherwise.
///
/// # Errors
/// As [`parse`], and the problems that `rules` has found, each with its location.
pub fn parse_with(
    text: &str,
    source: &str,
    rules: impl FnOnce(&TrainingJob) -> Vec<Problem>,
) -> Result<TrainingJob, ManifestErrors> {
    let tree = tree::read(text).map_err(|e| ManifestErrors { source: source.to_owned(), errors: vec![e] })?;
    job_of(tree, source, rules)
}

/// The TrainingJobs of a manifest of several documents, and what its other documents are, such as `Namespace team`.
#[derive(Clone, Debug, PartialEq)]
pub struct Documents {
    /// The TrainingJobs, in the order of the file; never empty.
    pub jobs: Vec<TrainingJob>,
    /// Kind and name of each document that is no TrainingJob.
    pub others: Vec<String>,
}

/// Reads a manifest of any number of YAML documents, of which at least one is a TrainingJob. Documents of other kinds
/// are named, and not read any further.
///
/// # Errors
/// [`ManifestErrors`] with all errors of all TrainingJobs, as [`parse`]. A text without a TrainingJob is read as one.
pub fn parse_all(text: &str, source: &str) -> Result<Documents, ManifestErrors> {
    let whole = |error| ManifestErrors { source: source.to_owned(), errors: vec![error] };
    let mut trees = tree::read_all(text).map_err(whole)?;
    if trees.is_empty() {
        return Err(whole(tree::empty()));
    }
    let is_job = |tree: &Tree| tree.text("kind").is_none_or(|kind| kind == "TrainingJob");
    let others =
        if trees.iter().any(is_job) { trees.extract_if(.., |tree| !is_job(tree)).collect() } else { Vec::new() };
    let (mut jobs, mut errors) = (Vec::new(), Vec::new());
    for tree in trees {
        match job_of(tree, source, no_rules) {
            Ok(job) => jobs.push(job),
            Err(found) => errors.extend(found.errors),
        }
    }
    if !errors.is_empty() {
        return Err(ManifestErrors { source: source.to_owned(), errors });
    }
    let name = |tree: &Tree| tree.json().pointer("/metadata/name").and_then(Value::as_str).unwrap_or("").to_owned();
    let named = |tree: &Tree| format!("{} {}", tree.text("kind").unwrap_or_default(), name(tree));
    Ok(Documents { jobs, others: others.iter().map(named).collect() })
}

const fn no_rules(_: &TrainingJob) -> Vec<Problem> {
    Vec::new()
}

fn job_of(
    mut tree: Tree,
    source: &str,
    rules: impl FnOnce(&TrainingJob) -> Vec<Problem>,
) -> Result<TrainingJob, ManifestErrors> {
    tree.remove("status");
    let problems = check::check(&tree, &SCHEMA);
    if !problems.is_empty() {
        return Err(ManifestErrors::locate(source, &tree, problems));
    }
    let job: TrainingJob = serde_path_to_error::deserialize(tree.json()).map_err(|error| {
        let field = error.path().to_string();
        let problem = Problem::new(field, "", error.inner().to_string(), "");
        ManifestErrors::locate(source, &tree, vec![problem])
    })?;
    let mut problems = validate(&job);
    if problems.is_empty() {
        problems = rules(&job);
    }
    if problems.is_empty() { Ok(job) } else { Err(ManifestErrors::locate(source, &tree, problems)) }
}

impl ManifestErrors {
    fn about_file(source: &str, message: String) -> Self {
        let error = ManifestError { line: 0, column: 0, field: String::new(), message };
        Self { source: source.to_owned(), errors: vec![error] }
    }

    fn locate(source: &str, tree: &Tree, problems: Vec<Problem>) -> Self {
        let mut errors: Vec<_> = problems
            .into_iter()
            .map(|problem| {
                let (line, column) = tree.location(&problem.field);
                ManifestError { line, column, message: problem.text(), field: problem.field }
            })
            .collect();
        errors.sort_by_key(|e| (e.line, e.column));
        Self { source: source.to_owned(), errors }
    }
}

/// The schema of a whole manifest: that of the CRD, with the metadata of objects.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut metadata = schema::of::<ObjectMeta>();
    metadata["required"] = json!(["name"]);
    json!({
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string", "enum": ["pawl.dev/v1alpha1"]},
            "kind": {"type": "string", "enum": ["TrainingJob"]},
            "metadata": metadata,
            "spec": schema::of::<TrainingJobSpec>(),
        },
    })
});
