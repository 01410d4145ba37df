//! `kubectl pawl fetch`: copies a checkpoint, and the records of the job, out of the cluster.

mod records;

use super::error::ClusterError;
use super::session::Session;
use crate::commands::print;
use crate::exit;
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{LocalObjectReference, Pod};
use kube::Api;
use kube::api::{AttachParams, AttachedProcess, DeleteParams, ListParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use pawl_api::TrainingJob;
use pawl_api::spec::{NO_STORAGE, PodSecurity};
use pawl_contract::record::FOLDER;
use pawl_controller::names;
use pawl_controller::objects::PodDefaults;
use pawl_local::interrupt::Interrupts;
use pawl_trainer::checkpoint::{Store, unpack};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio_util::io::SyncIoBridge;

const PODS: &str = "pods";
const EXEC: &str = "pods/exec";
/// Maximum time until the pod runs: its image is pulled and its volume is attached.
const START: Duration = Duration::from_secs(600);
/// Reasons of a waiting container that do not go away on their own.
const HOPELESS: [&str; 3] = ["ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"];
/// Of these, the one that another image does not cure: a Secret or ConfigMap of the pod template is missing.
const NOT_THE_IMAGE: &str = "CreateContainerConfigError";

/// What to copy, and how.
pub struct Selection {
    /// The newest checkpoint instead of the best one.
    pub newest: bool,
    /// Only the records.
    pub records: bool,
    /// The storage of a job that is gone: only its records are copied.
    pub storage: Option<String>,
    /// Image of the pod.
    pub image: String,
    /// Secrets for pulling it, besides those of the job's pods.
    pub pull_secrets: Vec<String>,
}

/// Copies the checkpoint and the records to `directory`, and prints the path of the checkpoint, or else of the records.
pub async fn fetch(
    session: &Session,
    name: &str,
    directory: &Path,
    selection: &Selection,
) -> Result<ExitCode, ClusterError> {
    let (job, location, checkpoint) = selected(session, name, selection).await?;
    let target = directory.join(checkpoint.as_deref().unwrap_or(FOLDER));
    if checkpoint.is_some() && target.exists() {
        let problem = format!("{}: exists already: remove it, or choose another directory with -o", target.display());
        return Err(ClusterError::Nothing(problem));
    }
    let pods: Api<Pod> = Api::namespaced(session.client.clone(), &session.namespace);
    // The pod is deleted before the program ends.
    let mut interrupts =
        Interrupts::listen().map_err(|error| ClusterError::File(format!("cannot handle signals: {error}")))?;
    let pod = create(session, &pods, &job, &location, selection).await?;
    let what = checkpoint.as_deref().unwrap_or("the records");
    exit::say(&format_args!("{pod}: reads {what} in {location}"));
    let copied = tokio::select! {
        copied = copy_all(session, &pods, &pod, checkpoint.as_deref(), directory) => copied,
        signal = interrupts.next() => Err(ClusterError::File(format!("stopped by {signal}: nothing was copied"))),
    };
    let deleted = session.ask(session.request("delete", PODS), pods.delete(&pod, &DeleteParams::default())).await;
    if let Err(error) = deleted {
        exit::say(&format_args!("{pod}: not deleted: {error}"));
    }
    copied?;
    Ok(print(&format!("{}\n", target.display())))
}

/// The job, its storage, and the name of the checkpoint to copy, if one is.
async fn selected(
    session: &Session,
    name: &str,
    selection: &Selection,
) -> Result<(TrainingJob, String, Option<String>), ClusterError> {
    if let Some(storage) = &selection.storage {
        let (job, location) = records::of_storage(session, name, storage)?;
        return Ok((job, location, None));
    }
    let job = session.job(name).await?;
    if selection.records {
        let location = records::of_job(&job)?;
        return Ok((job, location, None));
    }
    let (location, checkpoint) = wanted(&job, selection.newest)?;
    Ok((job, location, Some(checkpoint)))
}

/// Copies the checkpoint, if there is one, and the records. A job that ran before there were records has none.
async fn copy_all(
    session: &Session,
    pods: &Api<Pod>,
    pod: &str,
    checkpoint: Option<&str>,
    directory: &Path,
) -> Result<(), ClusterError> {
    started(session, pods, pod).await?;
    let Some(checkpoint) = checkpoint else { return records::copy(session, pods, pod, directory).await };
    copy(session, pods, pod, checkpoint, directory).await?;
    if let Err(error) = records::copy(session, pods, pod, directory).await {
        exit::say(&format_args!("note: the records were not copied: {error}"));
    }
    Ok(())
}

/// Creates the pod that reads the checkpoints, and returns its name.
async fn create(
    session: &Session,
    pods: &Api<Pod>,
    job: &TrainingJob,
    location: &str,
    Selection { image, pull_secrets, .. }: &Selection,
) -> Result<String, ClusterError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let chosen = ListParams::default().labels(&format!("{}={name}", names::JOB));
    // Without the permission to list pods, or when they are gone: what the chart sets by default.
    let writers = pods.list(&chosen).await.map(|list| list.items).unwrap_or_default();
    let mut defaults = writers.first().map_or_else(PodDefaults::default, defaults);
    defaults.image_pull_secrets.extend(pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }));
    let ask = async |defaults: &PodDefaults| {
        let pod = pawl_controller::objects::reader(job, location, image, defaults);
        session.ask(session.request("create", PODS), pods.create(&PostParams::default(), &pod)).await
    };
    let created = match ask(&defaults).await {
        // OpenShift chooses the ids, and refuses others. Who may make no pods at all is refused again.
        Err(ClusterError::Forbidden { .. }) => {
            ask(&PodDefaults { security_context: PodSecurity::default(), ..defaults }).await?
        }
        created => created?,
    };
    Ok(created.metadata.name.unwrap_or_default())
}

/// What the chart or the cluster set for a pod of the job.
fn defaults(pod: &Pod) -> PodDefaults {
    let spec = pod.spec.clone().unwrap_or_default();
    let context = spec.security_context.unwrap_or_default();
    PodDefaults {
        security_context: PodSecurity {
            run_as_user: context.run_as_user,
            run_as_group: context.run_as_group,
            fs_group: context.fs_group,
            supplemental_groups: context.supplemental_groups.unwrap_or_default(),
        },
        image_pull_secrets: spec.image_pull_secrets.unwrap_or_default(),
        tolerations: spec.tolerations.unwrap_or_default(),
        ..PodDefaults::default()
    }
}

/// The storage of the job, and the name of the checkpoint to copy.
fn wanted(job: &TrainingJob, newest: bool) -> Result<(String, String), ClusterError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let training = job.status.as_ref().and_then(|status| status.training.as_ref());
    let last = training.and_then(|training| training.last_checkpoint.as_ref());
    let best = training.and_then(|training| Some(&training.best_checkpoint.as_ref()?.checkpoint));
    let Some(checkpoint) = best.filter(|_| !newest).or(last) else {
        return Err(ClusterError::Nothing(format!(
            "TrainingJob {name:?} has no checkpoint yet: see `kubectl pawl status {name}`"
        )));
    };
    if !is_inside(&checkpoint.name) {
        return Err(ClusterError::Refused(format!(
            "TrainingJob {name:?} reports the checkpoint {:?}, which is no path inside of its storage: was its trainer tampered \
             with?",
            checkpoint.name
        )));
    }
    let Some(location) = location(job) else {
        return Err(ClusterError::Nothing(format!(
            "TrainingJob {name:?} has no storage: its checkpoints were deleted with its pods\n  set \
             spec.train.checkpoint.storage, or checkpoints.defaultStorage of the chart"
        )));
    };
    Ok((location, training.map_or_else(String::new, |training| training.path(&checkpoint.name))))
}

/// The storage in which the job has trained.
fn location(job: &TrainingJob) -> Option<String> {
    let storage = job.status.as_ref()?.training.as_ref()?.storage.clone();
    storage.filter(|storage| storage != NO_STORAGE)
}

/// Whether a name that a trainer has reported stays in the directory that it is joined to.
fn is_inside(name: &str) -> bool {
    let mut parts = Path::new(name).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_))) && !name.contains(char::is_control)
}

/// Copies the checkpoint through the running pod, verifies it, and moves it to its place in `directory`.
async fn copy(
    session: &Session,
    pods: &Api<Pod>,
    pod: &str,
    checkpoint: &str,
    directory: &Path,
) -> Result<(), ClusterError> {
    let file = |error: std::io::Error| ClusterError::File(format!("{}: {error}", directory.display()));
    let partial = archived(session, pods, pod, checkpoint, directory).await?;
    let copy = partial.path().join(checkpoint);
    if !copy.exists() {
        return Err(ClusterError::File(format!(
            "checkpoint {checkpoint}: the stream was interrupted; nothing was copied"
        )));
    }
    // The storage blocks its thread, which must not be one that runs asynchronous tasks.
    let (root, name) = (partial.path().to_owned(), checkpoint.to_owned());
    let verified = tokio::task::spawn_blocking(move || verify(&root, &name)).await;
    verified.map_err(|error| ClusterError::File(error.to_string()))??;
    let target = directory.join(checkpoint);
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).map_err(file)?;
    }
    std::fs::rename(copy, target).map_err(file)
}

/// What is called `name` in the storage, in a temporary directory in `directory`.
async fn archived(
    session: &Session,
    pods: &Api<Pod>,
    pod: &str,
    name: &str,
    directory: &Path,
) -> Result<TempDir, ClusterError> {
    let file = |error: std::io::Error| ClusterError::File(format!("{}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(file)?;
    // In the same file system, so that the complete copy appears at once.
    let partial = tempfile::Builder::new().prefix(".fetch-").tempdir_in(directory).map_err(file)?;
    let command = ["/bin/pawl", "agent", "archive", "--", name];
    let parameters = AttachParams::default().stdin(false).stdout(true).stderr(true);
    let process = session.ask(session.request("get", EXEC), pods.exec(pod, command, &parameters)).await?;
    receive(process, partial).await
}

/// Compares the copy with the hashes in its manifest, if it has one.
fn verify(root: &Path, checkpoint: &str) -> Result<(), ClusterError> {
    let root = root.to_string_lossy();
    let verified = Store::open(&root).and_then(|store| store.verify(checkpoint));
    match verified.map_err(|error| ClusterError::File(format!("{error}; nothing was copied: try again")))? {
        true => Ok(()),
        false => {
            exit::say(&format_args!("checkpoint {checkpoint}: has no manifest with hashes: not verified"));
            Ok(())
        }
    }
}

/// Unpacks what the process in the pod writes into `partial`. The process must end with success.
async fn receive(mut process: AttachedProcess, partial: TempDir) -> Result<TempDir, ClusterError> {
    let failed = |problem: String| ClusterError::File(format!("{problem}; nothing was copied"));
    let (Some(out), Some(mut errors)) = (process.stdout(), process.stderr()) else {
        return Err(failed("the pod gave no output".to_owned()));
    };
    let ended = process.take_status();
    let root: PathBuf = partial.path().to_owned();
    let unpack = tokio::task::spawn_blocking(move || unpack(SyncIoBridge::new(out), &root));
    let mut said = String::new();
    let (unpacked, _) = tokio::join!(unpack, errors.read_to_string(&mut said));
    let status = match ended {
        Some(ended) => ended.await,
        None => None,
    };
    if status.and_then(|status| status.status).as_deref() != Some("Success") {
        let said = said.trim();
        return Err(failed(if said.is_empty() { "the pod ended early".to_owned() } else { said.to_owned() }));
    }
    match unpacked {
        Ok(Ok(())) => Ok(partial),
        Ok(Err(error)) => Err(failed(format!("cannot unpack the checkpoint: {error}"))),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Waits until the pod runs.
async fn started(session: &Session, pods: &Api<Pod>, name: &str) -> Result<(), ClusterError> {
    let changes = watch_object(pods.clone(), name).default_backoff();
    pin_mut!(changes);
    let mut problem = String::new();
    let running = async {
        while let Some(change) = changes.next().await {
            let pod = match change {
                Ok(Some(pod)) => pod,
                Ok(None) => return Err(ClusterError::Nothing(format!("pod {name} was deleted before it started"))),
                Err(error) => {
                    let message = format!("{error} (at {})", session.server);
                    return Err(ClusterError::Answer { verb: "watch", resource: PODS, message });
                }
            };
            match state(&pod) {
                State::Running => return Ok(()),
                State::Failed(problem) => return Err(ClusterError::File(format!("pod {name}: {problem}"))),
                State::Waiting(reason) if !reason.is_empty() && reason != problem => {
                    exit::say(&format_args!("{name}: {reason}"));
                    problem = reason;
                }
                State::Waiting(_) => {}
            }
        }
        Err(ClusterError::File(format!("pod {name}: the watch ended")))
    };
    match tokio::time::timeout(START, running).await {
        Ok(running) => running,
        Err(_) => Err(ClusterError::File(format!("pod {name} did not start within {} s", START.as_secs()))),
    }
}

/// State of the pod, for its user.
#[derive(Debug, PartialEq)]
enum State {
    /// Commands can be executed in it.
    Running,
    /// Not yet, with the reason if there is one.
    Waiting(String),
    /// It will not run, and why.
    Failed(String),
}

fn state(pod: &Pod) -> State {
    let Some(status) = &pod.status else { return State::Waiting(String::new()) };
    let container = status.container_statuses.iter().flatten().next().and_then(|container| container.state.as_ref());
    if let Some(waiting) = container.and_then(|state| state.waiting.as_ref()) {
        let (reason, message) =
            (waiting.reason.clone().unwrap_or_default(), waiting.message.clone().unwrap_or_default());
        return if HOPELESS.contains(&reason.as_str()) {
            let remedy = match reason.as_str() {
                NOT_THE_IMAGE => "create what the pod template of the job refers to",
                _ => {
                    "name an image that the cluster can pull with --image, and the Secret for its registry with \
                     --pull-secret"
                }
            };
            State::Failed(format!("{reason}: {message}\n  {remedy}"))
        } else {
            State::Waiting(String::new())
        };
    }
    if container.is_some_and(|state| state.running.is_some()) {
        return State::Running;
    }
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        return State::Failed(status.message.clone().unwrap_or_else(|| "it has ended".to_owned()));
    }
    let unschedulable = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    State::Waiting(unschedulable.and_then(|condition| condition.message.clone()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(training: serde_json::Value) -> TrainingJob {
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}}, "status": {"training": training}});
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn the_best_checkpoint_is_copied_unless_the_newest_is_asked_for() {
        let last = json!({"name": "9-step-90-by-1.0", "step": 90, "items": 900});
        let best = json!({"checkpoint": {"name": "7-step-70-by-1.0", "step": 70, "items": 700}, "metric": "loss", "value": "1"});
        let both = job(json!({"storage": "s3://b/t/toy/u", "lastCheckpoint": last, "bestCheckpoint": best}));
        let of = |job: &TrainingJob, newest| wanted(job, newest).unwrap();
        assert_eq!(of(&both, false), ("s3://b/t/toy/u".to_owned(), "7-step-70-by-1.0".to_owned()));
        assert_eq!(of(&both, true).1, "9-step-90-by-1.0");
        let without_best = job(json!({"storage": "s3://b/t/toy/u", "lastCheckpoint": last}));
        assert_eq!(of(&without_best, false).1, "9-step-90-by-1.0");
    }

    #[test]
    fn a_job_without_checkpoint_or_storage_is_an_error_with_its_remedy() {
        let nothing = wanted(&job(json!({})), false).unwrap_err().to_string();
        assert!(nothing.contains("no checkpoint yet"), "{nothing}");
        let gone = job(json!({"lastCheckpoint": {"name": "9", "step": 90, "items": 900}}));
        let gone = wanted(&gone, false).unwrap_err().to_string();
        assert!(gone.contains("deleted with its pods") && gone.contains("checkpoints.defaultStorage"), "{gone}");
    }

    #[rstest::rstest]
    #[case::parent("../../../../etc")]
    #[case::deeper_parent("9/../../x")]
    #[case::absolute("/etc")]
    #[case::this_directory(".")]
    #[case::empty("")]
    #[case::control("9\u{1b}]0;owned\u{7}")]
    fn a_name_that_leaves_the_directory_is_refused(#[case] name: &str) {
        let last = json!({"name": name, "step": 90, "items": 900});
        let job = job(json!({"storage": "s3://b/t/toy/u", "lastCheckpoint": last}));
        let error = wanted(&job, false).unwrap_err().to_string();
        assert!(error.contains("no path inside of its storage") && !error.contains('\u{1b}'), "{error}");
    }

    #[test]
    fn a_checkpoint_may_be_in_a_folder() {
        let last = json!({"name": "run-1/checkpoint-90", "step": 90, "items": 900});
        let job = job(json!({"storage": "s3://b/t/toy/u", "lastCheckpoint": last}));
        assert_eq!(wanted(&job, false).unwrap().1, "run-1/checkpoint-90");
    }

    #[test]
    fn the_pod_has_what_the_pods_that_wrote_have() {
        let context = json!({"runAsNonRoot": true, "runAsUser": 1000650000, "fsGroup": 1000650000});
        let spec = json!({"containers": [], "securityContext": context, "imagePullSecrets": [{"name": "registry"}]});
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let PodDefaults { security_context: ids, image_pull_secrets, .. } = defaults(&pod);
        assert_eq!((ids.run_as_user, ids.run_as_group, ids.fs_group), (Some(1000650000), None, Some(1000650000)));
        assert_eq!(image_pull_secrets[0].name, "registry", "where the job names none");
    }

    #[test]
    fn an_image_that_cannot_be_pulled_ends_the_wait() {
        let pod = |state: serde_json::Value| -> Pod {
            let container = json!({"name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            serde_json::from_value(json!({"status": {"phase": "Pending", "containerStatuses": [container]}})).unwrap()
        };
        let pulled = state(&pod(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})));
        assert!(matches!(&pulled, State::Failed(problem) if problem.contains("--image")), "{pulled:?}");
        assert_eq!(state(&pod(json!({"waiting": {"reason": "ContainerCreating"}}))), State::Waiting(String::new()));
        assert_eq!(state(&pod(json!({"running": {}}))), State::Running);
        let pending = json!({"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "unbound claim"}]}});
        assert_eq!(state(&serde_json::from_value(pending).unwrap()), State::Waiting("unbound claim".to_owned()));
    }
}
