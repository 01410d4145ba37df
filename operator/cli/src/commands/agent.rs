//! `pawl agent`: the entry point of a pod.

use crate::args::Agent;
use crate::exit;
use pawl_agent::{AttemptEnd, AttemptResult, Node, Rendezvous, Stop};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::report;
use pawl_local::interrupt::Interrupts;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv6Addr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use tokio::sync::watch;

/// Runs the ranks of this pod, writes the termination message, and exits as the contract says.
pub fn agent(arguments: Agent) -> ExitCode {
    let plan = match read_plan(&arguments.plan) {
        Ok(plan) => plan,
        Err(error) => {
            let message = format!("{}: {error}", arguments.plan.display());
            return exit::with_error(Outcome::InvalidPlan.exit_code(), &message);
        }
    };
    let log = arguments.termination_log.clone();
    match attempt(&plan, arguments) {
        Ok(result) => {
            if let Err(error) = std::fs::write(&log, report::fold(&result.launches)) {
                eprintln!("{}: {error}: the results are only in the working directory", log.display());
            }
            if !result.message.is_empty() {
                eprintln!("{}", result.message);
            }
            ExitCode::from(code(&result))
        }
        Err(error) => exit::with_error(Outcome::Failed.exit_code(), &error),
    }
}

/// How the pod exits: 0 when all was run, else why it was not.
fn code(result: &AttemptResult) -> u8 {
    let outcome = match result.end {
        AttemptEnd::Complete => Outcome::Done,
        AttemptEnd::Stopped => Outcome::Stopped,
        AttemptEnd::LostPeer => Outcome::LostPeer,
        AttemptEnd::LaunchFailed => {
            let failed = result.launches.iter().rev().find(|launch| launch.outcome != Outcome::Done);
            failed.map_or(Outcome::Failed, |launch| launch.outcome)
        }
    };
    outcome.exit_code()
}

fn read_plan(path: &Path) -> io::Result<AttemptPlan> {
    serde_json::from_slice(&std::fs::read(path)?).map_err(io::Error::other)
}

fn attempt(plan: &AttemptPlan, arguments: Agent) -> Result<AttemptResult, Box<dyn std::error::Error>> {
    let trainer: Vec<OsString> = if arguments.trainer.is_empty() {
        vec![std::env::current_exe()?.into_os_string(), "trainer".into()]
    } else {
        arguments.trainer
    };
    let mut node = Node::local(std::path::absolute(&arguments.work_dir)?, trainer);
    node.replica = arguments.replica;
    if let Some(checkpoints) = arguments.checkpoints {
        node.checkpoints = checkpoints;
    }
    if let Some(data) = arguments.data {
        node.data = data;
    }
    node.rendezvous = match (arguments.address, arguments.token_file) {
        (Some(address), Some(token_file)) if arguments.replica == 0 => {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            let port: u16 = port.ok_or_else(|| format!("--address: {address:?} has no port: write host:port"))?;
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
            Rendezvous::Listen { listener, address, token_file }
        }
        (Some(address), Some(token_file)) => Rendezvous::Join { address, token_file },
        _ => Rendezvous::Local,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (stop, stopped) = watch::channel(Stop::No);
        let mut interrupts = Interrupts::listen()?;
        let run = pawl_agent::run(plan, node, stopped, |_| {});
        tokio::pin!(run);
        let mut how = Stop::No;
        loop {
            tokio::select! {
                result = &mut run => return Ok(result?),
                _ = interrupts.next() => {
                    how = if how == Stop::No { Stop::Gracefully } else { Stop::Now };
                    let _ = stop.send(how);
                }
            }
        }
    })
}
