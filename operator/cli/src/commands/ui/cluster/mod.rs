//! The jobs of a cluster, as the API server shows them to one user.

mod job;
mod state;
mod watched;

use super::recorded::Records;
use super::source::{Catalog, Found, Source};
use crate::commands::kubectl::error::ClusterError;
use crate::commands::kubectl::session::{JOBS, Session};
use jiff::Timestamp;
use job::ClusterJob;
use kube::Config;
use kube::api::{Api, ListParams};
use pawl_api::TrainingJob;
pub use state::is_unauthenticated;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use watched::Watched;

/// Field manager of changes.
const MANAGER: &str = "pawl-ui";
/// Stands for all namespaces in errors.
const ALL: &str = "*";
/// Longest wait for the first answers of the API server. What comes later is shown when it comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The jobs of some namespaces, or of all.
pub struct Cluster {
    server: String,
    /// One for each namespace, or one for all of them.
    watched: Vec<Arc<Watched>>,
    /// Where the records of jobs may be.
    storages: Arc<[Arc<dyn Records>]>,
}

impl Cluster {
    /// Begins to watch the jobs of these namespaces; of all, if none is named. Their records are looked up in
    /// `storages`.
    ///
    /// # Errors
    /// [`ClusterError::Configuration`].
    pub fn open(
        config: Config,
        namespaces: &[String],
        storages: Arc<[Arc<dyn Records>]>,
    ) -> Result<Self, ClusterError> {
        let session = connect(config, ALL)?;
        let server = session.server.clone();
        // One that is named twice is watched once.
        let named: BTreeSet<&String> = namespaces.iter().collect();
        let watched = if named.is_empty() {
            vec![Arc::new(Watched::all(session))]
        } else {
            named.into_iter().map(|name| Arc::new(Watched::namespace(session.in_namespace(name.clone())))).collect()
        };
        Ok(Self { server, watched, storages })
    }

    /// Asks the API server, by one request, whether it knows the user whom `config` names, who need not be allowed to
    /// list the jobs of the first of these namespaces.
    ///
    /// # Errors
    /// When it does not, see [`is_unauthenticated`], or does not answer.
    pub async fn verify(config: Config, namespaces: &[String]) -> Result<(), ClusterError> {
        let first = namespaces.first();
        let session = connect(config, first.map_or(ALL, String::as_str))?;
        let jobs: Api<TrainingJob> = if first.is_some() { session.jobs() } else { Api::all(session.client.clone()) };
        let one = ListParams::default().limit(1);
        match session.ask(session.request("list", JOBS), jobs.list_metadata(&one)).await {
            Ok(_) | Err(ClusterError::Forbidden { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// One without jobs.
    #[cfg(test)]
    pub fn empty() -> Self {
        Self { server: String::new(), watched: Vec::new(), storages: Arc::from([]) }
    }

    /// Waits for the first answers of the API server.
    pub async fn ready(&self) {
        let all = futures::future::join_all(self.watched.iter().map(|watched| watched.looked()));
        // What has not come in time is shown as a problem.
        let _ = tokio::time::timeout(PATIENCE, all).await;
    }

    /// Whether the API server does not know the user, or no longer.
    pub fn is_unauthenticated(&self) -> bool {
        self.watched.iter().any(|watched| watched.is_unauthenticated())
    }
}

/// A connection whose client repeats no request: it would do so for minutes, unseen.
fn connect(mut config: Config, namespace: &str) -> Result<Session, ClusterError> {
    config.default_retry = false;
    Session::connect(config, namespace.to_owned(), MANAGER)
}

impl Source for Cluster {
    fn read(&self) -> Catalog {
        let (mut jobs, mut problems, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        // What changes in between is another revision.
        let revision = self.revision();
        for watched in &self.watched {
            let read = watched.read();
            jobs.extend(read.jobs.into_iter().map(|(name, job, listed)| {
                let origin = ClusterJob::new(Arc::clone(watched), Arc::clone(&self.storages), name, &job);
                Found { listed, recorded_at: job::recorded_at(&job), origin: Arc::new(origin) }
            }));
            problems.extend(read.problems);
            refused.extend(read.refused);
        }
        problems.extend(refusal(&refused, self.watched.len()));
        Catalog { jobs, problems, revision }
    }

    fn revision(&self) -> String {
        let mut hasher = DefaultHasher::new();
        let now = Timestamp::now();
        self.watched.iter().for_each(|watched| watched.revision(now).hash(&mut hasher));
        format!("{:016x}", hasher.finish())
    }

    fn elsewhere(&self) -> Option<String> {
        Some(self.server.clone())
    }
}

/// What is said of the namespaces whose jobs a user may not list, of `all` that are looked at: their names only where
/// nothing else can be shown.
fn refusal(refused: &[String], all: usize) -> Option<String> {
    match refused {
        [] => None,
        [first, ..] if refused.len() == all => {
            Some(format!("{first}: name namespaces whose jobs you may list, with --namespace, or when you log in"))
        }
        _ => Some(format!("{} of {all} namespaces are not shown: you may not list the jobs there", refused.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_named_only_to_who_may_see_none() {
        let refused = ["team-b".to_owned(), "team-c".to_owned()];
        assert_eq!(refusal(&[], 3), None);
        let some = refusal(&refused, 3).unwrap();
        assert!(some.starts_with("2 of 3 namespaces") && !some.contains("team"), "{some}");
        assert!(refusal(&refused, 2).unwrap().starts_with("team-b: name namespaces"));
    }
}
