//! `pawl operator`: runs the `TrainingJob`s of a cluster.

use crate::args::operator::{LogFormat, OperatorArgs};
use crate::exit;
use pawl_controller::leader::{LEASE, Timing};
use pawl_controller::live::Pace;
use pawl_controller::objects::{Claim, Images, StorageConfig};
use pawl_controller::telemetry::{self, Format};
use pawl_controller::{Config, run};
use pawl_local::interrupt::Interrupts;
use std::error::Error;
use std::process::ExitCode;
use std::thread;
use tokio::runtime::Builder;

/// Maximum number of worker threads: more would not help, because reconciles mostly wait for the API server.
const MAX_THREADS: usize = 4;

/// Runs the operator until SIGTERM, SIGINT or SIGHUP, then releases the lease and exits with 0.
pub fn operator(arguments: OperatorArgs) -> ExitCode {
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::with_error(exit::INPUT, &error),
    }
}

fn start(arguments: OperatorArgs) -> Result<(), Box<dyn Error>> {
    let format = match arguments.log_format {
        LogFormat::Json => Format::Json,
        LogFormat::Text => Format::Text,
    };
    let _telemetry = telemetry::init(format, &arguments.log)?;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let stop = async move {
            let signal = interrupts.next().await;
            tracing::info!("{signal}: stopping");
        };
        let cluster = kube::Config::infer().await?;
        let config = configuration(arguments, &cluster.default_namespace);
        tracing::info!(version = env!("CARGO_PKG_VERSION"), cluster = %cluster.cluster_url, ?config, "starting");
        Ok(run(config, cluster, stop).await?)
    })
}

/// The configuration that the command line says.
pub(super) fn configuration(arguments: OperatorArgs, own_namespace: &str) -> Config {
    let lease_namespace = arguments.lease_namespace.unwrap_or_else(|| own_namespace.to_owned());
    Config {
        // An empty variable is a list with one empty name.
        namespaces: arguments.namespaces.into_iter().filter(|name| !name.is_empty()).collect(),
        images: Images { trainer: arguments.trainer_image, agent: arguments.agent_image },
        storage: StorageConfig {
            default: arguments.default_storage,
            claim: Claim {
                size: arguments.claim_size,
                class: arguments.claim_class.filter(|name| !name.is_empty()),
                access_mode: arguments.claim_access_mode.filter(|mode| !mode.is_empty()),
                retention: arguments.claim_retention,
            },
        },
        pods: arguments.pods.unwrap_or_default(),
        policy: arguments.policy.unwrap_or_default(),
        concurrency: arguments.concurrency,
        pace: Pace {
            ask_every: arguments.ask_every.get(),
            progress_every: arguments.progress_every.get(),
            ..Pace::default()
        },
        listen: arguments.listen,
        identity: arguments.identity.unwrap_or_else(own_name),
        operator: Some(format!("{lease_namespace}/{LEASE}")),
        lease_namespace: arguments.leader_election.then_some(lease_namespace),
        timing: Timing::default(),
    }
}

/// Default identity, unique among all processes of all machines.
fn own_name() -> String {
    let host = rustix::system::uname();
    format!("{}-{}", host.nodename().to_string_lossy(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::{CommandFactory, Parser};
    use std::time::Duration;

    fn parsed(line: &[&str]) -> Config {
        let arguments = Arguments::try_parse_from([&["pawl", "operator"], line].concat()).expect("a command line");
        let Some(Command::Operator(operator)) = arguments.command else { panic!("not the operator") };
        configuration(*operator, "from-kubeconfig")
    }

    #[test]
    fn without_flags_it_runs_all_namespaces_and_takes_part_in_the_election() {
        let config = parsed(&[]);
        assert!(config.namespaces.is_empty());
        assert_eq!(config.lease_namespace.as_deref(), Some("from-kubeconfig"));
        assert!(config.identity.ends_with(&format!("-{}", std::process::id())), "{}", config.identity);
        assert_eq!(config.images.agent, config.images.trainer);
    }

    #[test]
    fn flags_are_taken_over() {
        let config = parsed(&[
            "--namespace=team-a,team-b",
            "--leader-election=false",
            "--progress-every=1m",
            "--identity=pod-1",
            "--lease-namespace=pawl-system",
        ]);
        assert_eq!(config.namespaces, ["team-a", "team-b"]);
        assert_eq!(config.lease_namespace, None, "alone: nothing to be elected for");
        assert_eq!(config.operator.as_deref(), Some("pawl-system/pawl-operator"), "others must notice it all the same");
        assert_eq!(config.pace.progress_every, Duration::from_secs(60));
        assert_eq!(config.identity, "pod-1");
    }

    #[test]
    fn a_chart_without_namespaces_gives_an_empty_variable() {
        assert!(parsed(&["--namespace="]).namespaces.is_empty());
    }

    #[test]
    fn every_flag_can_be_a_variable() {
        let command = Arguments::command();
        let operator = command.find_subcommand("operator").expect("the subcommand");
        for flag in operator.get_arguments().filter(|flag| flag.get_id() != "help") {
            let variable = flag.get_env().unwrap_or_default().to_string_lossy();
            assert!(variable.starts_with("PAWL_"), "{}", flag.get_id());
        }
    }
}
