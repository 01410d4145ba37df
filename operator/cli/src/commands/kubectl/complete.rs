//! Shell completion: the output of `kubectl_complete-pawl`, and names read from the cluster.

use super::session::Session;
use crate::args::kubectl::{ClusterArgs, Plugin};
use crate::commands::print;
use clap::{Command, CommandFactory, Parser};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::config::Kubeconfig;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Timeout of a completion request to the cluster.
const PATIENCE: Duration = Duration::from_secs(3);
/// Cobra's completion directive NoFileComp.
const NO_FILES: u8 = 4;
/// Cobra's completion directive Default, which completes files.
const FILES: u8 = 0;

/// Answers kubectl, which runs `kubectl_complete-pawl WORD... WORD-TO-COMPLETE`: one candidate per line, with its
/// description after a tab, then the completion directive.
pub fn answer(words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut words: Vec<OsString> = std::iter::once("kubectl-pawl".into()).chain(words).collect();
    if words.len() == 1 {
        words.push(OsString::new());
    }
    let last = words.len() - 1;
    let file = words[last - 1] == "-f" || words[last - 1] == "--filename" || words[last - 1] == "--kubeconfig";
    if file {
        return print(&format!(":{FILES}\n"));
    }
    let of_preflight =
        words[..last].iter().any(|word| word == "preflight") && !words[last].to_string_lossy().starts_with('-');
    let candidates =
        clap_complete::engine::complete(&mut completed(Plugin::command()), words, last, None).unwrap_or_default();
    let mut text = String::new();
    for candidate in candidates.iter().filter(|candidate| !candidate.is_hide_set()) {
        text.push_str(&candidate.get_value().to_string_lossy());
        if let Some(help) = candidate.get_help() {
            let help = help.to_string();
            write!(text, "\t{}", help.lines().next().unwrap_or_default()).expect("writing to a string does not fail");
        }
        text.push('\n');
    }
    // Its arguments are files, unless an option is completed.
    let directive = if of_preflight && !text.lines().any(|line| !line.starts_with('-')) { FILES } else { NO_FILES };
    print(&format!("{text}:{directive}\n"))
}

/// `command` and its subcommands with the completers of their arguments, which are attached here so that the definition
/// of the command line does not depend on the client of the cluster.
fn completed(command: Command) -> Command {
    let command = command.mut_args(|argument| match argument.get_id().as_str() {
        "namespace" | "operator_namespace" => argument.add(ArgValueCompleter::new(namespaces)),
        "context" => argument.add(ArgValueCompleter::new(contexts)),
        "name" => argument.add(ArgValueCompleter::new(jobs)),
        "phases" => argument.add(ArgValueCompleter::new(phases)),
        _ => argument,
    });
    command.mut_subcommands(completed)
}

/// Names of the namespace's jobs.
fn jobs(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(typed, async |session| {
        let jobs = session.jobs().list_metadata(&ListParams::default()).await.ok()?;
        Some(jobs.items.into_iter().filter_map(|job| job.metadata.name).collect())
    })
}

/// Phases of the job named earlier on the command line.
fn phases(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(typed, async |session| {
        let words: Vec<String> = std::env::args().collect();
        let verb = words.iter().position(|word| word == "rollback" || word == "pin")?;
        let name = words.get(verb + 1)?;
        let job = session.jobs().get(name).await.ok()?;
        Some(job.spec.phases.into_iter().map(|phase| phase.name).collect())
    })
}

/// Names of the cluster's namespaces.
fn namespaces(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(typed, async |session| {
        let namespaces: Api<Namespace> = Api::all(session.client.clone());
        let namespaces = namespaces.list_metadata(&ListParams::default()).await.ok()?;
        Some(namespaces.items.into_iter().filter_map(|namespace| namespace.metadata.name).collect())
    })
}

/// Contexts of the kubeconfig.
fn contexts(typed: &OsStr) -> Vec<CompletionCandidate> {
    let cluster = named_cluster();
    let kubeconfig = match cluster.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let names = kubeconfig.map(|found| found.contexts.into_iter().map(|context| context.name).collect());
    matching(typed, names.unwrap_or_default())
}

/// Queries the cluster that the command line names; no candidates when it does not answer in time.
fn candidates(typed: &OsStr, ask: impl AsyncFnOnce(Session) -> Option<Vec<String>>) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let names = runtime.block_on(async {
        let asked = async {
            let session = Session::open(&named_cluster()).await.ok()?;
            ask(session).await
        };
        tokio::time::timeout(PATIENCE, asked).await.ok().flatten()
    });
    runtime.shutdown_background();
    matching(typed, names.unwrap_or_default())
}

fn matching(typed: &OsStr, names: Vec<String>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    names.into_iter().filter(|name| name.starts_with(&*typed)).map(CompletionCandidate::new).collect()
}

/// The cluster options among the words so far; everything else is ignored.
fn named_cluster() -> ClusterArgs {
    #[derive(Parser)]
    #[command(ignore_errors = true, disable_help_flag = true)]
    struct Words {
        #[command(flatten)]
        cluster: ClusterArgs,
        #[arg(trailing_var_arg = false)]
        rest: Vec<String>,
    }
    Words::try_parse().map(|words| words.cluster).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_argument_that_names_an_object_of_the_cluster_has_a_completer() {
        let command = completed(Plugin::command());
        let has = |command: &Command, id: &str| {
            let argument = command.get_arguments().find(|argument| argument.get_id() == id);
            argument.is_some_and(|argument| argument.get::<ArgValueCompleter>().is_some())
        };
        assert!(has(&command, "namespace") && has(&command, "context") && !has(&command, "kubeconfig"));
        let verb = |name: &str| command.find_subcommand(name).unwrap();
        for name in ["status", "report", "rollback", "pin", "suspend", "resume", "restart", "logs"] {
            assert!(has(verb(name), "name"), "{name}");
        }
        assert!(has(verb("rollback"), "phases") && has(verb("pin"), "phases"));
    }
}
