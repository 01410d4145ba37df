//! Messages between the agents of a gang: one JSON document per line, after the handshake of `pawl-rendezvous`.

use crate::exits::RankEnd;
use crate::node::{AttemptEnd, Stop};
use crate::script::Resume;
use pawl_contract::exit::Outcome;
use pawl_contract::progress::Progress;
use pawl_contract::provenance::Provenance;
use pawl_contract::report::Report;
use serde::{Deserialize, Serialize};

/// From an agent to agent 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Up {
    /// The agent is ready for the launch.
    Ready { launch: String },
    /// This node cannot prepare or start the launch, and why.
    Unable { launch: String, outcome: Outcome, message: String },
    /// A rank has ended.
    RankEnded { launch: String, end: RankEnd },
    /// Rank 0 has done what the launch was for, and does not end by itself.
    Complete { launch: String },
    /// Rank 0 makes no progress.
    Hung { launch: String, message: String },
    /// No rank of the launch is alive on this node; the last progress of rank 0, if it ran here, and what another node
    /// than that of agent 0 has, as far as that is known by now.
    Ended {
        launch: String,
        progress: Option<Box<Progress>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        machine: Option<Box<Provenance>>,
    },
    /// This node received a request to stop.
    Stop(Stop),
    /// Heartbeat.
    Beat,
}

/// From agent 0 to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Down {
    /// Prepare the launch and reply [`Up::Ready`].
    Prepare { launch: String },
    /// Start the launch.
    Start {
        launch: String,
        master_port: u16,
        #[serde(default)]
        resume: Resume,
    },
    /// End the launch's ranks: one died, or the gang hangs.
    End { launch: String, hung: bool },
    /// End the launch's ranks: they have done what it was for.
    Complete { launch: String },
    /// Stop the ranks.
    Stop(Stop),
    /// The launch has ended everywhere; its report.
    Verdict(Box<Report>),
    /// The attempt is over.
    Finish { end: AttemptEnd, message: String },
    /// Heartbeat.
    Beat,
}
