//! `kubectl pawl logs`: the most relevant log of a job.

use super::error::ClusterError;
use super::session::Session;
use crate::commands::print;
use crate::exit;
use futures::io::{AsyncBufReadExt, AsyncReadExt};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use kube::api::{Api, ListParams, LogParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use pawl_contract::attempt::AttemptName;
use pawl_contract::exit::Outcome;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;

/// The container in which the ranks run.
const CONTAINER: &str = "trainer";
const PODS: &str = "pods";
const LOG: &str = "pods/log";
/// Annotation with a pod's index, set by the Job controller.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Selection of the log.
#[derive(Clone, Debug, Default)]
pub struct LogSelection {
    /// Follow the log.
    pub follow: bool,
    /// Only the last n lines.
    pub tail: Option<u32>,
    /// Name or number of the attempt; `None`: the newest.
    pub attempt: Option<String>,
    /// Only this rank.
    pub rank: Option<u32>,
}

/// The selected pod, and the part of its log to print.
struct Choice<'a> {
    pod: &'a Pod,
    /// Reason of the selection.
    why: String,
    /// Only the lines of this rank; `None`: all lines.
    rank: Option<u32>,
}

/// Prints the log of the pod in which a rank failed first, or of rank 0, of the newest or the selected attempt.
pub async fn logs(session: &Session, name: &str, selection: &LogSelection) -> Result<ExitCode, ClusterError> {
    let pods: Api<Pod> = Api::namespaced(session.client.clone(), &session.namespace);
    let of_job = ListParams::default().labels(&format!("pawl.dev/job={name}"));
    let place = match selection.rank {
        Some(rank) => Some((rank, rank / session.job(name).await?.spec.trainer.ranks_per_replica())),
        None => None,
    };
    let mut found = session.ask(session.request("list", PODS), pods.list(&of_job)).await?.items;
    let attempts: BTreeSet<u32> = found.iter().filter_map(attempt).collect();
    if let Some(wanted) = &selection.attempt {
        let named = AttemptName::parse(wanted).filter(|attempt| attempt.job == name).map(|attempt| attempt.number);
        let number = named.or_else(|| wanted.parse().ok());
        found.retain(|pod| attempt(pod) == number);
        if found.is_empty() && !attempts.is_empty() {
            return Err(no_attempt(name, wanted, &attempts));
        }
    }
    let Some(Choice { pod, why, rank }) = choose(&found, place) else {
        return Err(no_pod(session, name, selection.rank).await?);
    };
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    exit::say(&format_args!("{pod_name}: {why}"));
    if selection.follow && !has_started(pod) {
        wait_until_started(session, &pods, &pod_name).await?;
    }
    // The API server applies its tail limit before the lines of other ranks are filtered out.
    let cut_here = rank.is_some() && !selection.follow;
    let parameters = LogParams {
        container: Some(CONTAINER.to_owned()),
        follow: selection.follow,
        tail_lines: selection.tail.filter(|_| !cut_here).map(i64::from),
        ..LogParams::default()
    };
    let stream = session.ask(session.request("get", LOG), pods.log_stream(&pod_name, &parameters)).await?;
    pin_mut!(stream);
    let wants = |line: &str| rank.is_none_or(|rank| of_rank(line, rank));
    if !selection.follow {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.map_err(|source| broken(&pod_name, &source))?;
        let lines: Vec<&str> = text.lines().filter(|line| wants(line)).collect();
        let skipped = selection.tail.map_or(0, |tail| lines.len().saturating_sub(tail as usize));
        return Ok(print(&lines[skipped..].iter().map(|line| format!("{line}\n")).collect::<String>()));
    }
    let mut lines = stream.lines();
    while let Some(line) = lines.next().await {
        let line = line.map_err(|source| broken(&pod_name, &source))?;
        if !wants(&line) {
            continue;
        }
        let mut out = std::io::stdout().lock();
        // A reader that closes the pipe early, such as `head`, is not an error.
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a line of a pod's log is from this rank or from the agent itself: the agent prefixes the lines of ranks.
fn of_rank(line: &str, rank: u32) -> bool {
    match line.strip_prefix("[rank ").and_then(|rest| rest.split_once("] ")) {
        Some((number, _)) => number.parse() == Ok(rank),
        None => true,
    }
}

fn broken(pod: &str, source: &std::io::Error) -> ClusterError {
    ClusterError::File(format!("the log stream of {pod} was interrupted: {source}"))
}

fn no_attempt(name: &str, wanted: &str, attempts: &BTreeSet<u32>) -> ClusterError {
    let known: Vec<String> =
        attempts.iter().map(|number| AttemptName { job: name, number: *number }.to_string()).collect();
    let known = known.join(", ");
    ClusterError::Nothing(format!("TrainingJob {name:?} has no pods of attempt {wanted:?} now; it has pods of {known}"))
}

/// Error that explains why there is no such pod.
async fn no_pod(session: &Session, name: &str, rank: Option<u32>) -> Result<ClusterError, ClusterError> {
    let job = session.job(name).await?;
    if let Some(rank) = rank.filter(|&rank| rank >= job.spec.trainer.world_size()) {
        let all = job.spec.trainer.world_size();
        return Ok(ClusterError::Nothing(format!("TrainingJob {name:?} has no rank {rank}: it has {all}, from 0")));
    }
    let status = job.status.unwrap_or_default();
    let why = match (&status.failure, &status.retry) {
        (Some(failure), _) => format!(": {}: {}", failure.reason, failure.message),
        (None, Some(retry)) if !retry.message.is_empty() => format!(": {}", retry.message),
        _ => String::new(),
    };
    Ok(ClusterError::Nothing(format!(
        "TrainingJob {name:?} has no pods now (stage {}){why}\n  see `kubectl pawl status {name}`",
        status.stage
    )))
}

/// Whether the pod has a log.
fn has_started(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let state = statuses.filter(|status| status.name == CONTAINER).find_map(|status| status.state.as_ref());
    state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
}

async fn wait_until_started(session: &Session, pods: &Api<Pod>, name: &str) -> Result<(), ClusterError> {
    exit::say(&format_args!("{name}: not started yet; waiting"));
    let changes = watch_object(pods.clone(), name).default_backoff();
    pin_mut!(changes);
    while let Some(change) = changes.next().await {
        match change {
            Ok(Some(pod)) if has_started(&pod) => return Ok(()),
            Ok(Some(_)) => {}
            Ok(None) => return Err(ClusterError::Nothing(format!("pod {name} was deleted before it started"))),
            Err(error) => {
                return Err(ClusterError::Answer {
                    verb: "watch",
                    resource: PODS,
                    message: format!("{error} (at {})", session.server),
                });
            }
        }
    }
    Ok(())
}

/// The pod with the most relevant log, or that of a rank: `place` is the rank and the index of its pod.
fn choose(pods: &[Pod], place: Option<(u32, u32)>) -> Option<Choice<'_>> {
    let newest = pods.iter().filter_map(attempt).max()?;
    let mut gang: Vec<&Pod> = pods.iter().filter(|&pod| attempt(pod) == Some(newest)).collect();
    gang.sort_by_key(|pod| index(pod));
    let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
    let choice = |pod, why: &str, rank| {
        let attempt = labels(pod).remove("pawl.dev/attempt").unwrap_or_default();
        Choice { pod, why: format!("attempt {attempt}, {why}"), rank }
    };
    if let Some((rank, replica)) = place {
        let pod = gang.into_iter().find(|pod| index(pod) == Some(replica))?;
        return Some(choice(pod, &format!("rank {rank}"), Some(rank)));
    }
    let failed = gang.iter().filter_map(|&pod| Some((pod, failure(pod)?)));
    // A pod that only lost its peers, or was stopped, did not fail first, regardless of timestamps.
    let first = failed.min_by_key(|(pod, end)| {
        let followed = matches!(Outcome::from_exit_code(end.exit_code), Outcome::LostPeer | Outcome::Stopped);
        (followed, end.finished_at.as_ref().map(|time| time.0), index(pod))
    });
    let Some((pod, end)) = first else { return Some(choice(*gang.first()?, "rank 0", Some(0))) };
    let how = match end.reason.as_deref() {
        Some("OOMKilled") => "OOMKilled".to_owned(),
        _ => format!("{}, exit code {}", Outcome::from_exit_code(end.exit_code), end.exit_code),
    };
    Some(choice(pod, &format!("failed first ({how})"), None))
}

/// Number of the attempt.
fn attempt(pod: &Pod) -> Option<u32> {
    AttemptName::parse(pod.metadata.labels.as_ref()?.get("pawl.dev/attempt")?).map(|name| name.number)
}

fn index(pod: &Pod) -> Option<u32> {
    let marks = [pod.metadata.labels.as_ref(), pod.metadata.annotations.as_ref()];
    marks.into_iter().flatten().find_map(|marks| marks.get(INDEX))?.parse().ok()
}

/// Terminated state of the trainer container of a pod, if it failed.
fn failure(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let end = statuses.iter().find(|status| status.name == CONTAINER)?.state.as_ref()?.terminated.as_ref()?;
    (end.exit_code != 0).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(attempt: u32, index: u32, end: Option<(i32, u32)>) -> Pod {
        let state = match end {
            Some((code, second)) => {
                json!({"terminated": {"exitCode": code, "finishedAt": format!("2026-01-05T10:04:{second:02}Z")}})
            }
            None => json!({"running": {"startedAt": "2026-01-05T10:00:00Z"}}),
        };
        serde_json::from_value(json!({
            "metadata": {"name": format!("toy-{attempt}-{index}-x"), "labels": {
                "pawl.dev/job": "toy", "pawl.dev/attempt": format!("toy-{attempt}"), INDEX: index.to_string()}},
            "status": {"containerStatuses": [{"name": CONTAINER, "image": "", "imageID": "", "ready": false,
                                               "restartCount": 0, "state": state}]},
        }))
        .unwrap()
    }

    fn chosen(pods: &[Pod], place: Option<(u32, u32)>) -> Option<(String, String, Option<u32>)> {
        choose(pods, place).map(|choice| (choice.pod.metadata.name.clone().unwrap(), choice.why, choice.rank))
    }

    #[test]
    fn the_log_of_rank_0_of_the_newest_attempt_is_chosen() {
        let pods = [pod(9, 0, Some((10, 1))), pod(10, 1, None), pod(10, 0, None)];
        let (name, why, rank) = chosen(&pods, None).unwrap();
        assert_eq!((name.as_str(), why.as_str(), rank), ("toy-10-0-x", "attempt toy-10, rank 0", Some(0)));
        let (name, _, rank) = chosen(&pods, Some((5, 1))).unwrap();
        assert_eq!((name.as_str(), rank), ("toy-10-1-x", Some(5)));
        assert_eq!(chosen(&pods, Some((8, 2))), None);
        assert_eq!(chosen(&[], None), None);
    }

    #[test]
    fn the_pod_that_failed_first_is_chosen_not_those_that_lost_their_peer() {
        // Pod 0 noticed that its peer was lost, and its clock is behind.
        let pods = [pod(3, 0, Some((40, 1))), pod(3, 1, Some((40, 9))), pod(3, 2, Some((10, 5)))];
        let (name, why, rank) = chosen(&pods, None).unwrap();
        assert_eq!((name.as_str(), rank), ("toy-3-2-x", None));
        assert!(why.contains("OutOfMemory") && why.contains("exit code 10"), "{why}");
        let pods = [pod(3, 0, Some((1, 7))), pod(3, 1, Some((1, 4)))];
        assert_eq!(chosen(&pods, None).unwrap().0, "toy-3-1-x");
        let done = [pod(3, 0, Some((0, 7))), pod(3, 1, Some((0, 4)))];
        assert_eq!(chosen(&done, None).unwrap().0, "toy-3-0-x");
    }

    #[test]
    fn lines_of_other_ranks_are_left_out_and_the_agents_own_are_not() {
        let log = ["[rank 0] a", "[rank 10] b", "[rank 1] c", "[rank 1 d", "agent"];
        let kept: Vec<&str> = log.into_iter().filter(|line| of_rank(line, 1)).collect();
        assert_eq!(kept, ["[rank 1] c", "[rank 1 d", "agent"]);
    }
}
