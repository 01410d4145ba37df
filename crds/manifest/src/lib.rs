//! Manifests in files: YAML or JSON in, a [`TrainingJob`] or all that is wrong with it, each with its line, out.
//!
//! Text → located tree → checked against the schema → typed → [`pawl_api::validate()`]. The schema is the CRD's, so that what
//! is refused here and by the API server is the same; only fields of pods, which the CRD knows as well, and unknown fields
//! are told more exactly.

mod check;
mod crd;
mod tree;

pub use crd::crd;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pawl_api::{Problem, TrainingJob, TrainingJobSpec, schema, validate};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::sync::LazyLock;
use tree::Tree;

/// Largest manifest that is read, in bytes: what etcd would take.
const MAX_BYTES: u64 = 1024 * 1024;

/// All that is wrong with a manifest; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestErrors {
    /// The file, or what stands for it.
    pub source: String,
    /// What is wrong, in the order of the file.
    pub errors: Vec<ManifestError>,
}

/// One thing that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// Line, from 1; 0 when it is about the whole file.
    pub line: u32,
    /// Column, from 1; 0 when it is about the whole file.
    pub column: u32,
    /// Path of the field, such as `spec.phases[1].name`; empty when it is about no field.
    pub field: String,
    /// Value, what is wrong with it, and the remedy.
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
pub fn load(path: &Path) -> Result<TrainingJob, ManifestErrors> {
    let source = path.display().to_string();
    let refuse = |message: String| Err(ManifestErrors::about_file(&source, message));
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
        Ok(Ok(text)) => parse(&text, &source),
        Ok(Err(_)) => refuse("is not UTF-8 text: is it the right file?".to_owned()),
        Err(error) => refuse(format!("cannot be read: {error}")),
    }
}

/// Reads a manifest of one YAML or JSON document. `source` names it in errors.
///
/// A `status` in it is ignored. Defaults are filled in as the API server does.
pub fn parse(text: &str, source: &str) -> Result<TrainingJob, ManifestErrors> {
    let mut tree = tree::read(text).map_err(|e| ManifestErrors { source: source.to_owned(), errors: vec![e] })?;
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
    match validate(&job) {
        problems if problems.is_empty() => Ok(job),
        problems => Err(ManifestErrors::locate(source, &tree, problems)),
    }
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
