//! Determines how a launch ended, from the reports of its ranks and agents. Pure.

use crate::exits::RankEnd;
use crate::reports::MAX_TEXT;
use pawl_contract::exit::Outcome;
use pawl_contract::fingerprint::Fingerprint;
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::plausible;
use pawl_contract::progress::Progress;
use pawl_contract::report::{Failure, Report, printable, truncated};

/// A fact about a launch.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    /// A rank ended.
    Rank(RankEnd),
    /// The gang made no progress.
    Hung(String),
    /// An agent was lost.
    Lost(String),
    /// A node could not prepare or start its ranks.
    Unable(Outcome, String),
}

/// The facts of a launch whose last rank has ended.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// The launch.
    pub(crate) plan: &'a LaunchPlan,
    /// Facts, in order.
    pub(crate) facts: &'a [Fact],
    /// Whether a stop was requested.
    pub(crate) stopping: bool,
    /// The last progress of rank 0.
    pub(crate) progress: Option<&'a Progress>,
    /// Seconds from start to end.
    pub(crate) wall_seconds: f64,
}

/// The outcome, its message and the rank that caused it.
struct Cause<'a> {
    outcome: Outcome,
    message: String,
    rank: Option<&'a RankEnd>,
}

/// The launch's report.
pub(crate) fn verdict(evidence: &Evidence<'_>) -> Report {
    let cause = cause(evidence);
    let spoken = evidence.facts.iter().find_map(|fact| match fact {
        Fact::Rank(end) if end.rank == 0 => end.report.as_deref(),
        _ => None,
    });
    let own = cause.rank.and_then(|end| end.report.as_deref());
    let mut report = spoken.or(own).cloned().unwrap_or_else(|| silent(evidence));
    report.kind = evidence.plan.kind;
    if let Some(progress) = evidence.progress.filter(|progress| plausible::progress(progress).is_none()) {
        catch_up(&mut report, progress);
    }
    report.rank = cause.rank.map_or(0, |end| end.rank);
    report.signal = cause.rank.and_then(|end| end.signal);
    report.exit_code = cause.rank.and_then(|end| end.exit_code);
    report.fingerprint = cause.rank.and_then(|end| end.fingerprint);
    report.outcome = cause.outcome;
    report.message = printable(truncated(&cause.message, MAX_TEXT));
    check(&mut report, evidence);
    if report.outcome == Outcome::Done {
        report.failure = None;
    } else {
        let (step, items) =
            own.map_or((report.measured.steps, report.measured.items), |own| (own.measured.steps, own.measured.items));
        let place = own.and_then(|own| own.failure.clone()).unwrap_or(Failure { rank: None, step, items });
        report.failure = Some(Failure { rank: cause.rank.map(|end| end.rank), ..place });
    }
    report
}

/// Makes a failure of a report that is not plausible, and removes what no one may believe.
fn check(report: &mut Report, evidence: &Evidence<'_>) {
    let Some(problem) = plausible::report(report, evidence.plan) else { return };
    if report.outcome == Outcome::Done {
        report.outcome = Outcome::Failed;
        report.fingerprint = Some(Fingerprint::of(&problem));
        report.message = format!("rank 0: its report is no evidence: {problem}");
    }
    if plausible::of_report(report).is_some() {
        report.measured = Measured { wall_seconds: Some(evidence.wall_seconds), ..Measured::default() };
        report.losses.clear();
        (report.items_per_epoch, report.stop_seconds) = (None, None);
        (report.last_checkpoint, report.best_checkpoint) = (None, None);
    }
}

/// The first independent failure; failures that only follow from the loss of a peer are ignored in its favour.
fn cause<'a>(evidence: &Evidence<'a>) -> Cause<'a> {
    let of_rank = |end: &'a RankEnd| Cause { outcome: end.outcome, message: end.message.clone(), rank: Some(end) };
    let without_rank = |outcome, message: &str| Cause { outcome, message: message.to_owned(), rank: None };
    let ranks = || evidence.facts.iter().filter_map(|fact| if let Fact::Rank(end) = fact { Some(end) } else { None });
    let first = evidence.facts.iter().find_map(|fact| match fact {
        Fact::Rank(end) if end.by_agent => None,
        Fact::Rank(end) => match end.outcome {
            Outcome::Done | Outcome::LostPeer => None,
            Outcome::Stopped if evidence.stopping => None,
            _ => Some(of_rank(end)),
        },
        Fact::Hung(message) => Some(without_rank(Outcome::Hang, message)),
        Fact::Lost(message) => Some(without_rank(Outcome::LostPeer, message)),
        Fact::Unable(outcome, message) => Some(without_rank(*outcome, message)),
    });
    if let Some(cause) = first {
        return cause;
    }
    if evidence.stopping
        && let Some(end) = ranks().find(|end| end.by_agent || end.outcome != Outcome::Done)
    {
        let message = if end.by_agent {
            format!("interrupted: rank {} was ended before it had stopped by itself", end.rank)
        } else {
            end.message.clone()
        };
        return Cause { outcome: Outcome::Stopped, message, rank: None };
    }
    if let Some(end) = ranks().find(|end| end.outcome == Outcome::LostPeer) {
        return of_rank(end);
    }
    if let Some(end) = ranks().find(|end| end.by_agent) {
        return Cause { outcome: Outcome::Failed, message: format!("rank {} was killed", end.rank), rank: Some(end) };
    }
    match ranks().find(|end| end.rank == 0) {
        Some(end) => of_rank(end),
        None => without_rank(Outcome::Failed, "no information about the end of rank 0"),
    }
}

/// The report of a launch without any rank's report.
fn silent(evidence: &Evidence<'_>) -> Report {
    let measured = Measured { wall_seconds: Some(evidence.wall_seconds), ..Measured::default() };
    Report { measured, ..Report::bare(evidence.plan, 0, Outcome::Failed) }
}

/// Fills gaps in the report from the last progress of rank 0.
fn catch_up(report: &mut Report, progress: &Progress) {
    let measured = &mut report.measured;
    measured.steps = measured.steps.max(progress.step);
    measured.items = measured.items.max(progress.items);
    if measured.validation.is_none() {
        measured.validation.clone_from(&progress.validation);
    }
    report.resumed_items = report.resumed_items.or(progress.resumed_items);
    if report.trained.is_empty() {
        report.trained.clone_from(&progress.trained);
    }
    if report.quarantined.is_empty() {
        report.quarantined.clone_from(&progress.quarantined);
    }
    let newest = report.last_checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.items);
    if progress.last_checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.items > newest) {
        report.last_checkpoint.clone_from(&progress.last_checkpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> LaunchPlan {
        serde_json::from_value(serde_json::json!({
            "contract": 1, "job": "j", "attempt": "j-1", "launch": "l", "kind": "Train", "workload": {},
            "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0,
        }))
        .unwrap()
    }

    fn rank(rank: u32, outcome: Outcome, by_agent: bool) -> Fact {
        Fact::Rank(RankEnd {
            rank,
            by_agent,
            outcome,
            message: format!("rank {rank}"),
            signal: None,
            exit_code: None,
            fingerprint: None,
            report: None,
        })
    }

    fn outcome(facts: &[Fact], stopping: bool) -> (Outcome, Option<u32>) {
        let plan = plan();
        let report = verdict(&Evidence { plan: &plan, facts, stopping, progress: None, wall_seconds: 1.0 });
        assert_eq!(report.failure.is_none(), report.outcome == Outcome::Done);
        (report.outcome, report.failure.and_then(|failure| failure.rank))
    }

    #[test]
    fn the_first_own_failure_decides() {
        use Outcome::{Done, Failed, Hang, LostPeer, NonFinite, OutOfMemory, Stopped, StorageFull};
        let killed = |of| rank(of, Failed, true);
        let lost = || Fact::Lost("agent 1".into());
        for (facts, stopping, expected) in [
            (vec![rank(1, Done, false), rank(0, Done, false)], false, (Done, None)),
            (vec![rank(2, NonFinite, false), rank(1, OutOfMemory, false), killed(0)], false, (NonFinite, Some(2))),
            (vec![rank(2, LostPeer, false), rank(1, OutOfMemory, false)], false, (OutOfMemory, Some(1))),
            (vec![rank(2, LostPeer, false), lost(), killed(0)], false, (LostPeer, None)),
            (vec![rank(0, Done, false), rank(2, LostPeer, false)], false, (LostPeer, Some(2))),
            (vec![Fact::Hung("h".into()), rank(1, Failed, false), killed(0)], false, (Hang, None)),
            (vec![rank(0, Stopped, false), rank(1, Stopped, false)], true, (Stopped, None)),
            (vec![rank(0, Stopped, false), killed(1)], true, (Stopped, None)),
            (vec![rank(0, Stopped, false), rank(1, OutOfMemory, false)], true, (OutOfMemory, Some(1))),
            (vec![rank(0, Done, false), rank(1, Done, false)], true, (Done, None)),
            (vec![rank(1, Stopped, false), killed(0)], false, (Stopped, Some(1))),
            (vec![Fact::Unable(Failed, "no such program".into())], false, (Failed, None)),
            (vec![Fact::Unable(StorageFull, "disk full".into())], false, (StorageFull, None)),
            (vec![], false, (Failed, None)),
        ] {
            assert_eq!(outcome(&facts, stopping), expected, "{facts:?}");
        }
    }

    #[test]
    fn a_report_that_is_not_plausible_is_a_failure() {
        let plan: LaunchPlan =
            LaunchPlan { budget: serde_json::from_value(serde_json::json!({"items": 1600})).unwrap(), ..plan() };
        let ended = |change: &dyn Fn(&mut Report), progress: Option<&Progress>| {
            let mut report = Report::bare(&plan, 0, Outcome::Done);
            (report.measured.items, report.measured.steps) = (1600, 200);
            change(&mut report);
            let (outcome, message) = (report.outcome, String::new());
            let end = RankEnd {
                rank: 0,
                by_agent: false,
                outcome,
                message,
                signal: None,
                exit_code: None,
                fingerprint: None,
                report: Some(Box::new(report)),
            };
            let facts = [Fact::Rank(end)];
            verdict(&Evidence { plan: &plan, facts: &facts, stopping: false, progress, wall_seconds: 1.0 })
        };
        assert_eq!(ended(&|_| {}, None).outcome, Outcome::Done);
        let none = ended(&|report| (report.measured.items, report.measured.steps) = (0, 0), None);
        assert_eq!(none.outcome, Outcome::Failed);
        assert!(
            none.message.contains("items: 0, and its budget is 1600") && none.failure.is_some(),
            "{}",
            none.message
        );
        let fast = ended(&|report| report.measured.items_per_second = Some(1e100), None);
        assert!(fast.outcome == Outcome::Failed && fast.message.contains("itemsPerSecond: 1e100"), "{}", fast.message);
        assert_eq!(fast.measured.items_per_second, None);
        let memory = ended(&|report| (report.outcome, report.measured.steps) = (Outcome::OutOfMemory, u64::MAX), None);
        assert_eq!((memory.outcome, memory.measured.steps), (Outcome::OutOfMemory, 0));
        let mut progress = Progress::at_start("l", plan.kind);
        progress.items = u64::MAX;
        assert_eq!(ended(&|_| {}, Some(&progress)).measured.items, 1600);
    }
}
