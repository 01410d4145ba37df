//! A connection to the cluster that the command line means.

use super::error::{ClusterError, Request};
use crate::args::kubectl::Cluster;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use pawl_api::TrainingJob;
use std::time::Duration;

/// Longest that an answer is waited for.
const DEADLINE: Duration = Duration::from_secs(30);
/// Names that are suggested for one that is unknown.
const SUGGESTIONS: usize = 3;
/// The resource, as kubectl names it.
pub const JOBS: &str = "trainingjobs.pawl.dev";
/// The field manager of what people change with these commands.
pub const MANAGER: &str = "kubectl-pawl";

/// A connection.
pub struct Session {
    /// The client.
    pub client: Client,
    /// The namespace that is meant.
    pub namespace: String,
    /// Address of the API server.
    pub server: String,
}

impl Session {
    /// Reads the configuration. Nothing is asked of the cluster yet.
    ///
    /// # Errors
    /// [`ClusterError::Configuration`].
    pub async fn open(cluster: &Cluster) -> Result<Self, ClusterError> {
        let configuration = |error: &dyn std::fmt::Display| ClusterError::Configuration(error.to_string());
        let options = KubeConfigOptions { context: cluster.context.clone(), ..KubeConfigOptions::default() };
        let config = match (&cluster.kubeconfig, &cluster.context) {
            (Some(path), _) => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(|error| configuration(&error))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| configuration(&error))?
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| configuration(&error))?,
            (None, None) => Config::infer().await.map_err(|error| configuration(&error))?,
        };
        let namespace = cluster.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config).map_err(|error| configuration(&error))?;
        Ok(Self { client, namespace, server })
    }

    /// What is about to be tried, for the error should it fail.
    pub fn request(&self, verb: &'static str, resource: &'static str) -> Request<'_> {
        Request { verb, resource, namespace: &self.namespace, server: &self.server }
    }

    /// Waits for an answer, not for ever.
    ///
    /// # Errors
    /// What the API server answered, or that it did not.
    pub async fn ask<T>(
        &self,
        request: Request<'_>,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ClusterError> {
        match tokio::time::timeout(DEADLINE, answer).await {
            Ok(answer) => answer.map_err(|error| request.failed(error)),
            Err(_) => Err(ClusterError::Unreachable {
                server: self.server.clone(),
                cause: format!("no answer within {} s", DEADLINE.as_secs()),
            }),
        }
    }

    /// The jobs of the namespace.
    pub fn jobs(&self) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The job `name`.
    ///
    /// # Errors
    /// [`ClusterError::NoJob`] with the names that are near it, or whatever else went wrong.
    pub async fn job(&self, name: &str) -> Result<TrainingJob, ClusterError> {
        let jobs = self.jobs();
        match self.ask(self.request("get", JOBS), jobs.get_opt(name)).await? {
            Some(job) => Ok(job),
            None => Err(self.no_job(name).await),
        }
    }

    /// That there is no job `name`; or, when that is why, that there are no TrainingJobs at all.
    pub async fn no_job(&self, name: &str) -> ClusterError {
        let known = self.ask(self.request("list", JOBS), self.jobs().list_metadata(&ListParams::default())).await;
        let names = match known {
            Ok(known) => known.items.into_iter().filter_map(|job| job.metadata.name).collect(),
            Err(ClusterError::NotInstalled) => return ClusterError::NotInstalled,
            // Who may not list the jobs is told of this one all the same.
            Err(_) => Vec::new(),
        };
        ClusterError::NoJob { near: nearest(name, &names), name: name.to_owned(), namespace: self.namespace.clone() }
    }

    /// Changes the job `name`.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] when the change is not valid or the job changed meanwhile.
    pub async fn patch(&self, name: &str, patch: &Patch<serde_json::Value>) -> Result<TrainingJob, ClusterError> {
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        self.ask(self.request("patch", JOBS), self.jobs().patch(name, &parameters, patch)).await
    }
}

/// The names most like `name`, best first; those that have nothing in common with it are left out.
pub fn nearest(name: &str, names: &[String]) -> Vec<String> {
    let mut scored: Vec<(f64, &String)> =
        names.iter().map(|known| (strsim::jaro_winkler(name, known), known)).collect();
    scored.retain(|(score, _)| *score >= 0.7);
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    scored.into_iter().take(SUGGESTIONS).map(|(_, known)| known.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_come_best_first_and_strange_ones_not_at_all() {
        let names = ["quickstart", "quickstart-2", "ups-4gpu"].map(str::to_owned);
        assert_eq!(nearest("quikstart", &names), ["quickstart", "quickstart-2"]);
        assert_eq!(nearest("zzz", &names), [""; 0]);
    }
}
