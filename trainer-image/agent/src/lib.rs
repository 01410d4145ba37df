//! Starts, supervises and ends the ranks of one node; serves the gang's rendezvous.
//!
//! [`run`] runs the launches of one [`pawl_contract::plan::AttemptPlan`] in order. For each launch it starts one new
//! process per local rank, supervises them, and ends all of them as soon as one dies: a partial gang deadlocks. Agent 0
//! coordinates; the agents of the other nodes connect to it ([`Rendezvous`]) and run each launch at the same time.
//!
//! # One launch
//! 1. Agent 0 sends *prepare*; every agent makes sure that no rank of an earlier run is alive, writes `plan.json`, and
//!    replies *ready*. When all are ready, agent 0 sends *start*.
//! 2. Each rank is a process group of its own and is killed when its agent dies. Its output goes to a bounded
//!    `rank-N.log`.
//! 3. The first rank that fails on its own determines the outcome (`verdict.rs`): its exit code, then its report. Ranks
//!    that only lost a peer are ignored in favour of that peer. "Done" requires both exit code 0 and a readable report
//!    of rank 0 with this outcome: a missing report is never a success.
//! 4. A launch whose rank 0 shows no sign of life for `hangTimeout` is a hang ([`pawl_contract::progress`]). Before the
//!    first step, and in a phase such as saving, [`Limits::start_allowance`] is added.
//! 5. Processes that the launch has left behind are ended, those in a session of their own too ([`adopt_orphans`]).
//! 6. The launch's `report.json` is synced to disk before [`Event::LaunchEnded`] is sent.
//!
//! # Scripts that do not implement the contract
//! Placeholders in the command and the environment are replaced for each launch ([`pawl_contract::template`]). With a
//! monitor ([`pawl_contract::script::Monitor`]), the agent itself does the preflight, reads steps and losses of rank 0,
//! ends a measurement after its last step, and writes `progress.json` and the report.
//!
//! # Files of an attempt
//! ```text
//! agent.lock                 held by the agent that runs the attempt
//! attempt.json               its plan
//! provenance.json            what it is measured with: machine, versions, source; of other agents than 0, the machine
//! <launch>/plan.json         the launch's plan, read by the ranks
//! <launch>/progress.json     progress of rank 0 while it runs
//! <launch>/metrics.prom      metrics of rank 0, for Prometheus
//! <launch>/rank-N.log, .log.1   output of a rank, the newest bytes
//! <launch>/rank-N.lock       held by rank N and every process that it started
//! <launch>/stuck.txt         state of the processes of a hung launch
//! <launch>/report.json       the launch's report: exists once the launch has ended
//! ```
//!
//! What outlives them is in the job's storage ([`pawl_contract::record`]): agent 0 writes there what each launch
//! reported, and its curves, as it ends.
//!
//! # In a pod
//! [`serve`] serves the state in [`Live`] over HTTP: the operator reads `/attempt`; Prometheus reads `/metrics`, the
//! agent's metrics merged with those of rank 0. [`adopt_orphans`] lets processes that leave their rank end with its
//! launch, [`install()`] copies the agent into an image that does not include it.

mod attempt;
mod cgroup;
mod coordinator;
mod disturbances;
mod exits;
pub mod exposition;
mod files;
mod finished;
mod gauges;
mod gpus;
pub mod handshake;
mod http;
mod install;
mod last_words;
mod lines;
mod link;
mod live;
mod logs;
mod member;
mod messages;
mod node;
mod nonfinite;
mod observe;
mod oom;
mod orphans;
mod preview;
mod processes;
mod provenance;
mod ranks;
mod records;
mod reports;
mod script;
mod server;
mod spawn;
mod storage;
mod store;
mod survivors;
mod torchrun;
mod verdict;
mod watch;

pub use attempt::{AgentError, run};
pub use finished::{finished_launches, finished_reports};
pub use http::{answer_over, serve};
pub use install::install;
pub use live::Live;
pub use node::{AttemptEnd, AttemptResult, Event, Limits, Node, Rendezvous, Stop};
pub use observe::{Observed, Usage, observe};
pub use orphans::adopt_orphans;
pub use preview::{Preview, preview};
pub use provenance::{provenance, scripts};
pub use records::{Kept, RecordsError, keep};
pub use survivors::end_survivors;
