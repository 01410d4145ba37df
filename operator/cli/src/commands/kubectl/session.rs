//! Connection to the cluster that the command line selects.

use super::error::{ClusterError, Request};
use crate::args::kubectl::ClusterArgs;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use pawl_api::TrainingJob;
use std::time::Duration;

/// Timeout of a request.
const DEADLINE: Duration = Duration::from_secs(30);
/// Maximum number of names suggested for an unknown one.
const SUGGESTIONS: usize = 3;
/// The resource, as kubectl names it.
pub const JOBS: &str = "trainingjobs.pawl.dev";
/// Field manager of the changes made by these commands.
pub const MANAGER: &str = "kubectl-pawl";

/// A connection.
pub struct Session {
    /// The client.
    pub client: Client,
    /// The selected namespace.
    pub namespace: String,
    /// Address of the API server.
    pub server: String,
    /// Field manager of changes.
    pub manager: &'static str,
}

impl Session {
    /// Reads the configuration. Sends no request yet.
    ///
    /// # Errors
    /// [`ClusterError::Configuration`].
    pub async fn open(cluster: &ClusterArgs) -> Result<Self, ClusterError> {
        let config = Self::config(cluster).await?;
        let namespace = cluster.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Self::connect(config, namespace, MANAGER)
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// [`ClusterError::Configuration`].
    pub async fn config(cluster: &ClusterArgs) -> Result<Config, ClusterError> {
        let configuration = |error: &dyn std::fmt::Display| ClusterError::Configuration(error.to_string());
        let options = KubeConfigOptions { context: cluster.context.clone(), ..KubeConfigOptions::default() };
        Ok(match (&cluster.kubeconfig, &cluster.context) {
            (Some(path), _) => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(|error| configuration(&error))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| configuration(&error))?
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| configuration(&error))?,
            (None, None) => Config::infer().await.map_err(|error| configuration(&error))?,
        })
    }

    /// Makes a client. Sends no request yet.
    ///
    /// # Errors
    /// [`ClusterError::Configuration`].
    pub fn connect(config: Config, namespace: String, manager: &'static str) -> Result<Self, ClusterError> {
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config).map_err(|error| ClusterError::Configuration(error.to_string()))?;
        Ok(Self { client, namespace, server, manager })
    }

    /// The same connection with another namespace.
    pub fn in_namespace(&self, namespace: String) -> Self {
        Self { client: self.client.clone(), namespace, server: self.server.clone(), manager: self.manager }
    }

    /// Describes a request, for the error if it fails.
    pub fn request(&self, verb: &'static str, resource: &'static str) -> Request<'_> {
        Request { verb, resource, namespace: &self.namespace, server: &self.server }
    }

    /// Waits for the response, with a timeout.
    ///
    /// # Errors
    /// The error of the API server, or a timeout.
    pub async fn ask<T>(
        &self,
        request: Request<'_>,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ClusterError> {
        match tokio::time::timeout(DEADLINE, answer).await {
            Ok(answer) => answer.map_err(|error| request.failed(error)),
            Err(_) => Err(ClusterError::Unreachable {
                server: self.server.clone(),
                cause: format!("no response within {} s", DEADLINE.as_secs()),
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
    /// [`ClusterError::NoJob`] with similar names, or any other error of the request.
    pub async fn job(&self, name: &str) -> Result<TrainingJob, ClusterError> {
        let jobs = self.jobs();
        match self.ask(self.request("get", JOBS), jobs.get_opt(name)).await? {
            Some(job) => Ok(job),
            None => Err(self.no_job(name).await),
        }
    }

    /// The error for an unknown job `name`; [`ClusterError::NotInstalled`] when the CRD is missing.
    pub async fn no_job(&self, name: &str) -> ClusterError {
        let known = self.ask(self.request("list", JOBS), self.jobs().list_metadata(&ListParams::default())).await;
        let names = match known {
            Ok(known) => known.items.into_iter().filter_map(|job| job.metadata.name).collect(),
            Err(ClusterError::NotInstalled) => return ClusterError::NotInstalled,
            // Without permission to list jobs, the error has no suggestions.
            Err(_) => Vec::new(),
        };
        ClusterError::NoJob { near: nearest(name, &names), name: name.to_owned(), namespace: self.namespace.clone() }
    }

    /// Merges `change` into `job`, and not into a later one of the same name.
    ///
    /// # Errors
    /// As [`Self::patch`].
    pub async fn change(&self, job: &TrainingJob, mut change: serde_json::Value) -> Result<(), ClusterError> {
        if let Some(uid) = &job.metadata.uid {
            change["metadata"]["uid"] = uid.as_str().into();
        }
        self.patch(job.metadata.name.as_deref().unwrap_or_default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    /// Changes the job `name`.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] when the change is not valid or the job changed meanwhile.
    pub async fn patch(&self, name: &str, patch: &Patch<serde_json::Value>) -> Result<TrainingJob, ClusterError> {
        let parameters = PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() };
        self.ask(self.request("patch", JOBS), self.jobs().patch(name, &parameters, patch)).await
    }
}

/// The names most similar to `name`, best first; dissimilar names are omitted.
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
