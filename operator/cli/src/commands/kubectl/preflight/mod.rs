//! `kubectl pawl preflight`: checks whether a manifest can run, without running it.

use super::error::ClusterError;
use super::schedulable::{self, CheckResult, Finding};
use super::session::{JOBS, MANAGER, Session};
use crate::args::Output;
use crate::args::kubectl::ClusterArgs;
use crate::commands::{document, print, source};
use crate::exit;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, ResourceQuota};
use kube::api::{Api, ListParams, Patch, PatchParams};
use pawl_api::TrainingJob;
use pawl_contract::report::printable;
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// The findings as a document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Preflight<'a> {
    namespace: &'a str,
    job: &'a str,
    runs: bool,
    findings: &'a [Finding],
}

/// Checks the manifest, sends it to the API server as a dry run, and checks capacity and quotas.
pub async fn preflight(cluster: &ClusterArgs, file: &Path, output: Output) -> Result<ExitCode, ClusterError> {
    // Errors of the manifest itself are reported before connecting to a cluster.
    let job = match source::load(file) {
        Ok(job) => job,
        Err(error) => return Ok(source::reject(&error)),
    };
    let mut session = Session::open(cluster).await?;
    if let Some(namespace) = job.metadata.namespace.clone() {
        if cluster.namespace.as_ref().is_some_and(|wanted| *wanted != namespace) {
            return Err(ClusterError::Refused(format!(
                "metadata.namespace is {namespace:?}, --namespace {:?}: they must agree",
                session.namespace
            )));
        }
        session.namespace = namespace;
    }
    let mut findings = vec![accepted(&session, &job).await?];
    findings.push(nodes(&session, &job).await?);
    findings.extend(quotas(&session, &job).await?);
    findings.extend(claim(&session, &job).await?);
    let runs = findings.iter().all(|finding| finding.result != CheckResult::Bad);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let whole = Preflight { namespace: &session.namespace, job: name, runs, findings: &findings };
    let printed = print(&match output {
        Output::Table => findings.iter().map(line).collect(),
        Output::Json => document(&whole, false),
        Output::Yaml => document(&whole, true),
    });
    Ok(if runs { printed } else { ExitCode::from(exit::INPUT) })
}

fn line(finding: &Finding) -> String {
    let mark = match finding.result {
        CheckResult::Good => "✓",
        CheckResult::Unknown => "?",
        CheckResult::Bad => "✗",
    };
    format!("{mark} {}\n", printable(&finding.message))
}

/// Missing permission is an unknown finding; an unreachable cluster is an error.
fn unseen(what: &str, error: ClusterError) -> Result<Finding, ClusterError> {
    match error {
        ClusterError::Forbidden { verb, resource, .. } => {
            Ok(Finding::unknown(format!("{what}: not checked, you are not allowed to {verb} {resource}")))
        }
        other => Err(other),
    }
}

/// Whether the API server accepts the manifest, with its defaults and admission policies.
async fn accepted(session: &Session, job: &TrainingJob) -> Result<Finding, ClusterError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let parameters = PatchParams::apply(MANAGER).force().dry_run();
    let (jobs, manifest) = (session.jobs(), Patch::Apply(job));
    match session.ask(session.request("patch", JOBS), jobs.patch(name, &parameters, &manifest)).await {
        Ok(_) => Ok(Finding::good("the API server accepts the manifest (dry run)")),
        Err(ClusterError::Refused(message)) => {
            Ok(Finding::bad(format!("the API server rejects the manifest: {message}")))
        }
        Err(error @ ClusterError::Forbidden { .. }) => unseen("whether the API server accepts the manifest", error),
        Err(error @ ClusterError::NoNamespace(_)) => Ok(Finding::bad(error.to_string())),
        Err(error) => Err(error),
    }
}

async fn nodes(session: &Session, job: &TrainingJob) -> Result<Finding, ClusterError> {
    let nodes: Api<Node> = Api::all(session.client.clone());
    match session.ask(session.request("list", "nodes"), nodes.list(&ListParams::default())).await {
        Ok(nodes) => Ok(schedulable::nodes(job, &nodes.items)),
        Err(error) => unseen("capacity of the nodes", error),
    }
}

async fn quotas(session: &Session, job: &TrainingJob) -> Result<Vec<Finding>, ClusterError> {
    let quotas: Api<ResourceQuota> = Api::namespaced(session.client.clone(), &session.namespace);
    match session.ask(session.request("list", "resourcequotas"), quotas.list(&ListParams::default())).await {
        Ok(quotas) => Ok(schedulable::quotas(job, &quotas.items)),
        Err(error) => Ok(vec![unseen("quotas", error)?]),
    }
}

/// Whether the PersistentVolumeClaim for the checkpoints exists.
async fn claim(session: &Session, job: &TrainingJob) -> Result<Option<Finding>, ClusterError> {
    let storage = job.spec.train.checkpoint.storage.as_deref();
    let Some(place) = storage.and_then(|storage| storage.strip_prefix("pvc://")) else { return Ok(None) };
    let name = place.split('/').next().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(session.client.clone(), &session.namespace);
    let field = "spec.train.checkpoint.storage";
    match session.ask(session.request("get", "persistentvolumeclaims"), claims.get_opt(name)).await {
        Ok(Some(_)) => Ok(Some(Finding::good(format!("{field}: the PersistentVolumeClaim {name:?} exists")))),
        Ok(None) => Ok(Some(Finding::bad(format!(
            "{field}: namespace {:?} has no PersistentVolumeClaim {name:?}: create it",
            session.namespace
        )))),
        Err(error) => Ok(Some(unseen(&format!("{field}: the PersistentVolumeClaim {name:?}"), error)?)),
    }
}
