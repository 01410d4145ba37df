//! `kubectl pawl preflight`: checks whether manifests can run, without running them.
//!
//! [`inquiry`] reads the cluster and dry-runs; everything else decides what was found, from what it is given.

mod admission;
mod amounts;
mod claims;
mod configuration;
mod finding;
mod gang;
mod inquiry;
mod nodes;
mod operators;
mod queue;
mod quotas;
mod references;
mod settings;

use super::error::ClusterError;
use super::session::Session;
use crate::args::Output;
use crate::args::kubectl::{ClusterArgs, PreflightArgs};
use crate::commands::{built_in, document, print, source, validate};
use crate::exit;
use admission::Tried;
use finding::{CheckResult, DryRun, Finding, Seen};
use gang::{Gang, TOKEN_SECRET};
use inquiry::Inquiry;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Node, PersistentVolumeClaim, PodSpec, ResourceQuota};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::Api;
use operators::Operators;
use pawl_api::TrainingJob;
use pawl_contract::report::printable;
use pawl_controller::names;
use queue::Queue;
use references::Reference;
use serde::Serialize;
use settings::Settings;
use std::process::ExitCode;

/// The findings as a document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Preflight {
    runs: bool,
    jobs: Vec<Checked>,
}

/// The findings about one job.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Checked {
    namespace: String,
    job: String,
    runs: bool,
    findings: Vec<Finding>,
}

/// Checks each TrainingJob of the manifests.
pub async fn preflight(cluster: &ClusterArgs, arguments: &PreflightArgs) -> Result<ExitCode, ClusterError> {
    // Errors of the manifests themselves are reported before connecting to a cluster.
    let (jobs, others) = match read(arguments) {
        Ok(read) => read,
        Err(code) => return Ok(code),
    };
    let session = Session::open(cluster).await?;
    let found = Installed::read(&session, &arguments.operator_namespace).await?;
    let mut all = Vec::new();
    for job in jobs {
        let session = session.in_namespace(namespace(cluster, &session, &job)?);
        // On the heap: a TrainingJob is large.
        let findings = Box::pin(check(&session, &found, &job, &others)).await?;
        let runs = findings.iter().all(|finding| finding.result != CheckResult::Problem);
        all.push(Checked { namespace: session.namespace, job: job.name_any(), runs, findings });
    }
    let whole = Preflight { runs: all.iter().all(|job| job.runs), jobs: all };
    let printed = print(&match arguments.output {
        Output::Table => whole.jobs.iter().map(text).collect(),
        Output::Json => document(&whole, false),
        Output::Yaml => document(&whole, true),
    });
    Ok(if whole.runs { printed } else { ExitCode::from(exit::INPUT) })
}

/// The TrainingJobs of all files, and their documents of other kinds.
fn read(arguments: &PreflightArgs) -> Result<(Vec<TrainingJob>, Vec<String>), ExitCode> {
    let (mut jobs, mut others, mut rejected) = (Vec::new(), Vec::new(), None);
    for file in arguments.files.iter().chain(&arguments.named) {
        match source::load_all(file) {
            Ok(read) => {
                jobs.extend(read.jobs);
                others.extend(read.others);
            }
            Err(error) => rejected = Some(source::reject(&error)),
        }
    }
    rejected.map_or(Ok((jobs, others)), Err)
}

/// The namespace of the job: that of its manifest, or else the selected one.
fn namespace(cluster: &ClusterArgs, session: &Session, job: &TrainingJob) -> Result<String, ClusterError> {
    let Some(namespace) = &job.metadata.namespace else { return Ok(session.namespace.clone()) };
    if cluster.namespace.as_ref().is_some_and(|wanted| wanted != namespace) {
        return Err(ClusterError::Refused(format!(
            "TrainingJob {}: metadata.namespace is {namespace:?}, --namespace {:?}: they must agree",
            job.name_any(),
            session.namespace
        )));
    }
    Ok(namespace.clone())
}

fn text(Checked { namespace, job, findings, .. }: &Checked) -> String {
    let count = |wanted: CheckResult| findings.iter().filter(|finding| finding.result == wanted).count();
    let lines: String = findings.iter().map(Finding::text).collect();
    let (problems, unknown) = (count(CheckResult::Problem), count(CheckResult::Unknown));
    let summary = match problems {
        0 => format!("no problem found, {unknown} unknown"),
        1 => format!("1 problem, {unknown} unknown"),
        _ => format!("{problems} problems, {unknown} unknown"),
    };
    let name = printable(&format!("{namespace}/{job}"));
    format!("TrainingJob {name}\n{lines}{summary}\n")
}

/// What is the same for all jobs.
struct Installed {
    operators: Operators,
    nodes: Seen<Vec<Node>>,
    classes: Seen<Vec<StorageClass>>,
}

impl Installed {
    async fn read(session: &Session, home: &str) -> Result<Self, ClusterError> {
        let (inquiry, client) = (Inquiry(session), || session.client.clone());
        let (operators, nodes, classes) = futures::try_join!(
            inquiry.operators(home),
            inquiry.list(Api::<Node>::all(client()), "nodes"),
            inquiry.list(Api::<StorageClass>::all(client()), "storageclasses.storage.k8s.io"),
        )?;
        Ok(Self { operators, nodes, classes })
    }
}

/// All findings about a job.
async fn check(
    session: &Session,
    installed: &Installed,
    manifest: &TrainingJob,
    others: &[String],
) -> Result<Vec<Finding>, ClusterError> {
    let (inquiry, namespace) = (Inquiry(session), session.namespace.as_str());
    let warnings = validate::warnings(manifest).into_iter().chain(built_in::check(manifest).of_another_image());
    let object = format!("TrainingJob {namespace}/{}", manifest.name_any());
    let notes = warnings.chain(validate::totals(manifest));
    let mut findings: Vec<Finding> = notes.map(|note| Finding::note(&object, note)).collect();

    let tried = inquiry.apply(manifest).await?;
    findings.push(admission::manifest(namespace, &object, &tried));
    if tried == DryRun::NoNamespace {
        return Ok(findings);
    }
    // With the defaults of the API server, and the status of a job that exists.
    let job = if let DryRun::Accepted(job) = tried { job } else { in_namespace(manifest, namespace) };
    let settings = Settings::of(namespace, &installed.operators);
    findings.push(settings.note());
    findings.extend(settings.policy(&job));
    findings.extend(served(&inquiry, installed, namespace).await?);

    let runs = job.status.as_ref().is_some_and(|status| status.under_way().next().is_some());
    if let Some(name) = job.labels().get(names::QUEUE) {
        let queue: Queue = inquiry.queue(name).await?;
        findings.push(queue::queue(namespace, name, &queue));
    }
    let shared = claims::is_shared(&job);
    let gang = Gang::of(job, &settings.config);
    findings.extend(of_gang(&inquiry, installed, &gang, &Circumstances { others, runs, shared }).await?);
    Ok(findings)
}

/// What else matters for a gang.
struct Circumstances<'a> {
    /// Documents of other kinds in the manifests.
    others: &'a [String],
    /// Whether pods of the job run already.
    runs: bool,
    /// Whether its pods write to one claim from several nodes.
    shared: bool,
}

fn in_namespace(manifest: &TrainingJob, namespace: &str) -> TrainingJob {
    let mut job = manifest.clone();
    job.metadata.namespace = Some(namespace.to_owned());
    job
}

/// Whether an operator runs the jobs of the namespace.
async fn served(inquiry: &Inquiry<'_>, installed: &Installed, namespace: &str) -> Result<Vec<Finding>, ClusterError> {
    let operators = &installed.operators;
    let traces = inquiry.traces().await?;
    let mut findings = vec![operators::served(namespace, operators, &traces, Timestamp::now())];
    if let Some(operator) = operators.of(namespace) {
        let rights = inquiry.rights(operator).await?;
        findings.extend(operators::rights(namespace, operator, &rights));
    }
    Ok(findings)
}

/// Findings about the objects of the gang, what its pods need, and where they find room.
async fn of_gang(
    inquiry: &Inquiry<'_>,
    installed: &Installed,
    gang: &Gang,
    circumstances: &Circumstances<'_>,
) -> Result<Vec<Finding>, ClusterError> {
    let namespace = inquiry.0.namespace.as_str();
    let Circumstances { others, runs, shared } = *circumstances;
    let tried = tried(inquiry, gang).await?;
    let mut findings = admission::gang(namespace, gang, &tried);
    let template = gang.pod.spec.clone().unwrap_or_default();
    findings.extend(of_references(inquiry, gang, &template, others).await?);
    if let (Some(claim), Some(tried)) = (&gang.claim, &tried.claim)
        && *tried != DryRun::Exists
    {
        findings.push(claims::class(namespace, claim, tried, &installed.classes, shared));
        findings.extend(claims::access(namespace, claim, shared));
    }
    if let Some(claim) = mounted(inquiry, gang, &template, &tried).await? {
        findings.extend(claims::access(namespace, &claim, shared));
    }
    let (quotas, ranges) = futures::try_join!(
        inquiry.list(inquiry.api::<ResourceQuota>(), "resourcequotas"),
        inquiry.list(inquiry.api::<LimitRange>(), "limitranges"),
    )?;
    // Admission fills in defaults of the namespace and of the runtime class.
    let pod = match (&tried.pod, &ranges) {
        (DryRun::Accepted(pod), _) => pod.spec.clone().unwrap_or_default(),
        (_, Seen::Found(ranges)) => quotas::with_defaults(&template, ranges),
        _ => template,
    };
    let needs = quotas::Needs { gang, pod: &pod, claims: tried.claim != Some(DryRun::Exists), runs };
    findings.extend(quotas::quotas(namespace, &needs, &quotas));
    findings.push(nodes::nodes(&pod, gang.replicas, &installed.nodes));
    findings.push(images(&pod));
    Ok(findings)
}

/// Dry runs of the objects of the gang.
async fn tried(inquiry: &Inquiry<'_>, gang: &Gang) -> Result<Tried, ClusterError> {
    let service = async {
        let Some(service) = &gang.service else { return Ok(None) };
        inquiry.create(service, "services").await.map(Some)
    };
    let claim = async {
        let Some(claim) = &gang.claim else { return Ok(None) };
        inquiry.create(claim, "persistentvolumeclaims").await.map(Some)
    };
    let (job, pod) = (inquiry.create(&gang.job, "jobs.batch"), inquiry.create(&gang.pod, "pods"));
    let (job, pod, service, claim) = futures::try_join!(job, pod, service, claim)?;
    Ok(Tried { job, pod, service, claim })
}

/// Whether what the pods refer to exists.
async fn of_references(
    inquiry: &Inquiry<'_>,
    gang: &Gang,
    pod: &PodSpec,
    others: &[String],
) -> Result<Vec<Finding>, ClusterError> {
    let mut own = vec![gang.name().to_owned(), TOKEN_SECRET.to_owned()];
    own.extend(gang.claim.as_ref().map(|claim| claim.name_any()));
    let all: Vec<Reference> = references::references(pod, &own);
    let looks = all.iter().map(|reference| inquiry.existence(reference));
    let seen = futures::future::try_join_all(looks).await?;
    let looked: Vec<(Reference, Seen<()>)> = all.into_iter().zip(seen).collect();
    Ok(references::existence(&inquiry.0.namespace, &looked, others))
}

/// The claim for checkpoints, if there is one already.
async fn mounted(
    inquiry: &Inquiry<'_>,
    gang: &Gang,
    pod: &PodSpec,
    tried: &Tried,
) -> Result<Option<PersistentVolumeClaim>, ClusterError> {
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == CHECKPOINTS);
    let claim = volume.and_then(|volume| volume.persistent_volume_claim.as_ref());
    let Some(claim) = claim.filter(|_| gang.claim.is_none() || tried.claim == Some(DryRun::Exists)) else {
        return Ok(None);
    };
    Ok(match inquiry.claim(&claim.claim_name).await? {
        Seen::Found(claim) => Some(claim),
        Seen::Absent | Seen::Unseen(_) => None,
    })
}

/// The volume of the pods in which checkpoints are.
const CHECKPOINTS: &str = "pawl-checkpoints";

/// The images that nodes will pull: whether they can is not known to anybody before they try.
fn images(pod: &PodSpec) -> Finding {
    let all = pod.init_containers.iter().flatten().chain(&pod.containers);
    let mut names: Vec<&str> = all.filter_map(|container| container.image.as_deref()).collect();
    names.dedup();
    Finding::unknown(
        "Images",
        format!("not checked: whether nodes can pull them is known once they try: {}", names.join(", ")),
    )
}
