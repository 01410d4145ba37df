//! Starts, watches and ends the ranks of one node; the gang's rendezvous.
//!
//! [`run`] runs the launches of one [`pawl_contract::plan::AttemptPlan`] in order. For each launch it starts one fresh
//! process per local rank, watches them, and ends all of them as soon as one dies: a partial gang deadlocks. Agent 0
//! coordinates; the agents of the other nodes connect to it ([`Rendezvous`]) and do the same at the same time.
//!
//! # One launch
//! 1. Agent 0 says *prepare*; every agent makes sure that no rank of an earlier run lives, writes `plan.json`, and says
//!    *ready*. When all are, agent 0 says *start*.
//! 2. Each rank is a process group of its own and dies with its agent. Its output goes to a bounded `rank-N.log`.
//! 3. The first rank that fails on its own decides the outcome (`verdict.rs`): its exit code, then its report. Ranks
//!    that only lost their peers yield to the one that they lost. "Done" alone needs both an exit code of 0 and a
//!    readable report of rank 0 that says so: what is missing is never a good verdict.
//! 4. A launch whose rank 0 shows no progress for `hangTimeout` is a hang. Before the first step
//!    [`Limits::start_allowance`] is added: reading data and compiling are not steps.
//! 5. The launch's `report.json` is on disk, durably, before [`Event::LaunchEnded`] is told.
//!
//! # Files of an attempt
//! ```text
//! agent.lock                 held by the agent that runs the attempt
//! attempt.json               its plan
//! <launch>/plan.json         what the ranks read
//! <launch>/progress.json     what rank 0 says while it runs
//! <launch>/metrics.prom      what only rank 0 can count, for Prometheus
//! <launch>/rank-N.log, .log.1   output of a rank, the newest bytes
//! <launch>/rank-N.lock       held by rank N and every process that it started
//! <launch>/stuck.txt         where the processes of a hung launch were
//! <launch>/report.json       the launch's report: it is there when the launch has ended
//! ```
//!
//! # In a pod
//! [`serve`] tells over HTTP what [`Live`] has heard: the operator reads `/attempt`, Prometheus `/metrics`, where the
//! agent adds what rank 0 counts to what it knows itself. [`reap_orphans`] does the duty of process 1, [`install`] brings
//! the agent into an image that has none.

mod attempt;
mod coordinator;
mod durable;
mod exits;
mod exposition;
mod finished;
mod gauges;
mod http;
mod install;
mod lines;
mod link;
mod live;
mod logs;
mod member;
mod messages;
mod node;
mod oom;
mod orphans;
mod processes;
mod ranks;
mod server;
mod spawn;
mod store;
mod survivors;
mod verdict;
mod watch;

pub use attempt::{AgentError, run};
pub use finished::{finished_launches, finished_reports};
pub use http::serve;
pub use install::install;
pub use live::Live;
pub use node::{AttemptEnd, AttemptResult, Event, Limits, Node, Rendezvous, Stop};
pub use orphans::reap_orphans;
pub use survivors::end_survivors;
