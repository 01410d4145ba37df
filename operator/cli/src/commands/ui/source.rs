//! Where jobs are found, and what is known of each of them there: in directories, storages, or a cluster.

use super::action::Action;
#[cfg(feature = "cluster")]
use crate::commands::kubectl::error::ClusterError;
use pawl_contract::record::FOLDER;
use pawl_display::report::evidence::Evidence;
use pawl_display::ui::awaited::Awaited;
use pawl_display::ui::list::Looked;
use pawl_display::ui::listed::{Listed, distinguish};
use pawl_local::state::StateError;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a job cannot be shown or changed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("this job has no operator that could act on it: edit its manifest, and repeat `pawl run`")]
    NoOperator,
    #[cfg(feature = "cluster")]
    #[error("{}", .0.cause())]
    Cluster(#[from] ClusterError),
    /// There is no such job any more, or another one of its name.
    #[cfg(feature = "cluster")]
    #[error("the job was deleted: choose another one in the list")]
    Gone,
}

/// What the page of a job is made of.
pub struct Gathered {
    pub evidence: Evidence,
    /// What could not be had, and where it is.
    pub notes: Vec<String>,
    /// Whether nothing works on the job any more, although it has not ended.
    pub stopped: bool,
    /// What it shows after a time although nothing is written.
    pub awaited: Awaited,
}

/// A job at the place where it is kept. Its functions may block.
pub trait Origin: Send + Sync {
    /// Changes when the page of the job does, also because of what is overdue now.
    fn revision(&self) -> Result<String, JobError>;

    /// Reads what its page shows.
    fn gather(&self) -> Result<Gathered, JobError>;

    /// The status as JSON: without the manifest, which may hold secrets.
    fn status(&self) -> Result<String, JobError>;

    /// Whether [`Self::act`] can succeed.
    fn has_operator(&self) -> bool {
        false
    }

    /// Asks the operator to act on the job whose unique identifier is `uid`.
    fn act(&self, uid: &str, action: &Action) -> Result<(), JobError> {
        let _ = (uid, action);
        Err(JobError::NoOperator)
    }
}

/// A job that was found.
pub struct Found {
    /// What the list shows of it.
    pub listed: Listed,
    /// Where it was found.
    pub origin: Arc<dyn Origin>,
    /// Of a job of a cluster: the storage in which it trains, and its unique identifier, in which the path there ends.
    pub recorded_at: Vec<String>,
}

impl Found {
    /// Whether this is what a storage has of one of the jobs of clusters that are recorded at `places`.
    fn is_record(&self, places: &HashSet<String>) -> bool {
        let place = &self.listed.place;
        // Of a storage that is mounted, the place is the folder of the records.
        let path = place.strip_suffix(FOLDER).unwrap_or(place).trim_end_matches('/');
        let last = path.rsplit('/').next().unwrap_or_default();
        self.recorded_at.is_empty() && (places.contains(path) || places.contains(last))
    }
}

/// The jobs at one moment.
#[derive(Default)]
pub struct Catalog {
    /// The jobs, in a fixed order.
    pub jobs: Vec<Found>,
    /// What could not be read, and why.
    pub problems: Vec<String>,
    /// Changes when any of them does, also because of what is overdue now.
    pub revision: String,
}

impl Catalog {
    /// The job with this key, which need not be the name of a file.
    pub fn find(&self, key: &str) -> Option<&Found> {
        self.jobs.iter().find(|found| found.listed.key == key)
    }
}

/// Jobs that are kept in the same way.
pub trait Source: Send + Sync {
    /// Reads what has changed. It may block.
    fn read(&self) -> Catalog;

    /// The revision of what [`Self::read`] would return, without a copy of it.
    fn revision(&self) -> String;

    /// Where the jobs are, if that is no directory.
    fn elsewhere(&self) -> Option<String> {
        None
    }

    /// Where jobs are looked for.
    fn looked(&self) -> Looked {
        Looked { places: self.elsewhere().into_iter().collect(), instead: Vec::new() }
    }
}

/// All jobs that a viewer may see.
pub struct Sources {
    all: Vec<Arc<dyn Source>>,
    token: String,
    ended: AtomicBool,
}

impl Sources {
    /// These, for a viewer whose pages have this token in their forms.
    pub fn new(all: Vec<Arc<dyn Source>>, token: String) -> Self {
        Self { all, token, ended: AtomicBool::new(false) }
    }

    /// Where jobs are besides directories.
    pub fn elsewhere(&self) -> impl Iterator<Item = String> + '_ {
        self.all.iter().filter_map(|source| source.elsewhere())
    }

    /// Where jobs are looked for, if `catalog` has none.
    pub fn looked(&self, catalog: &Catalog) -> Looked {
        let mut all = Looked::default();
        for looked in self.all.iter().filter(|_| catalog.jobs.is_empty()).map(|source| source.looked()) {
            all.places.extend(looked.places);
            all.instead.extend(looked.instead);
        }
        all
    }

    /// Ends the updates of all pages of the viewer, who has logged out.
    #[cfg(feature = "cluster")]
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Whether pages of the viewer get no more updates.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// What only pages for this viewer know.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Reads what has changed. A job of a cluster is not listed once more for its records.
    pub fn read(&self) -> Catalog {
        let mut whole = Catalog::default();
        let mut revisions = Vec::new();
        for Catalog { jobs, problems, revision } in self.all.iter().map(|source| source.read()) {
            whole.jobs.extend(jobs);
            whole.problems.extend(problems);
            revisions.push(revision);
        }
        let places: HashSet<String> = whole.jobs.iter().flat_map(|found| found.recorded_at.iter().cloned()).collect();
        whole.jobs.retain(|found| !found.is_record(&places));
        distinguish(whole.jobs.iter_mut().map(|found| &mut found.listed));
        whole.revision = joined(&revisions);
        whole
    }

    /// The revision of what [`Self::read`] would return, without a copy of it.
    pub fn revision(&self) -> String {
        joined(&self.all.iter().map(|source| source.revision()).collect::<Vec<_>>())
    }
}

/// The revision of everything whose revisions these are.
fn joined(revisions: &[String]) -> String {
    let mut hasher = DefaultHasher::new();
    revisions.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
