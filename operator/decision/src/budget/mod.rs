//! What judging may cost if there is a training: `analysis.budgetPercent`, of the time that it takes with the baseline,
//! and what the accepted phases save of it.
//!
//! Before a phase is measured further, its next launches are priced, and before them the quality launches without which
//! it cannot be accepted. It is given up as inconclusive if they do not fit into the rest of the budget, or if they
//! take longer than the phase can save. No verdict is weakened for that: what was not shown is not accepted. What is
//! under way is not stopped, and the evaluation of all accepted phases together is always done; its first launches are
//! kept free. So judging and training together take about that much longer than the training with the baseline at most.
//! They take more where launches take longer than predicted, of which the first look is the only one without a measured
//! speed, and where all accepted phases together need more launches than these.
//!
//! Phases are judged in their order, in which later ones build on earlier ones. What one leaves is there for the later
//! ones, and what an accepted one saves pays for them. But a phase is given up for a later one that promises much more
//! for what it takes, where the budget is enough for that one or for both only if it comes first: see [`kept_free`].

mod prices;

use self::prices::Prices;
use crate::gates::speed::{self, promise};
use crate::gates::{Subject, Verdict, judge};
use crate::launch::Work;
use crate::reason::Reason;
use pawl_api::spec::Role;
use pawl_contract::plan::LaunchKind;

/// How many times as much a later phase must promise, for what it takes, as the one that is given up for it. An earlier
/// phase that is accepted pays for the later one: if it is with probability `p`, giving it up is right where the later
/// one saves at least `1 / (1 - p)` times as much. This is that of even odds.
const LEAST_ADVANTAGE: f64 = 2.0;

/// Why a phase is not measured further, in the status.
pub(crate) struct Refusal {
    pub reason: Reason,
    pub message: String,
}

/// Why `work` for a phase is not done; `None` if it is. `later` are the phases that will be measured after this one,
/// each with the settings accepted so far.
pub(crate) fn refusal<'a>(
    subject: &Subject<'a>,
    work: &Work,
    later: impl Iterator<Item = Subject<'a>>,
) -> Option<Refusal> {
    let draft = subject.comparison.draft;
    let percent = draft.spec.analysis.budget().percent()?;
    if draft.under_way().any(|attempt| attempt.task == work.task) {
        return None;
    }
    let prices = Prices::new(subject)?;
    let asked = Asked::new(work, &prices);
    let by_default = if draft.spec.analysis.budget_percent.is_none() { " by default" } else { "" };
    let limit = Limit { percent, by_default };
    beyond(&limit, &prices, &asked)
        .or_else(|| not_worth(subject, &prices, &asked))
        .or_else(|| kept_free(subject, work, &limit, later))
}

/// The budget.
struct Limit {
    percent: u32,
    by_default: &'static str,
}

impl Limit {
    /// The time that is left for judging, in seconds.
    fn left(&self, prices: &Prices<'_>) -> f64 {
        let whole = f64::from(self.percent) / 100.0 * prices.training(prices.baseline);
        whole + prices.saved() - prices.spent()
    }
}

/// What a phase asks for: its next launches, and the quality launches that it needs after them.
struct Asked {
    /// Such as `the next 6 launches`.
    what: String,
    /// In seconds.
    cost: f64,
}

impl Asked {
    fn new(work: &Work, prices: &Prices<'_>) -> Self {
        let count = |kind: LaunchKind| work.launches.iter().filter(|launch| launch.plan.kind == kind).count();
        let next = match work.launches.len() - count(LaunchKind::Preflight) {
            1 => "the next launch".to_owned(),
            count => format!("the next {count} launches"),
        };
        let to_come = if count(LaunchKind::Quality) > 0 { 0.0 } else { prices.quality_to_come() };
        let what = if to_come > 0.0 { format!("{next} and those of its quality") } else { next };
        let launches: f64 = work.launches.iter().map(|launch| prices.launch(&launch.plan)).sum();
        Self { what, cost: launches + to_come }
    }
}

/// What is asked for does not fit into the rest of the budget, beside all accepted phases together.
fn beyond(limit: &Limit, prices: &Prices<'_>, Asked { what, cost }: &Asked) -> Option<Refusal> {
    let share = |seconds: f64| 100.0 * seconds / prices.training(prices.baseline);
    let (spent, together, saved) = (prices.spent(), prices.together(), prices.saved());
    let Limit { percent, by_default } = limit;
    (share(spent + cost + together - saved) > f64::from(*percent)).then(|| {
        let message = format!(
            "{what} would take about {:.1} % of the time of the training with the baseline, beside {:.1} % that \
             judging has taken and {:.1} % for all accepted phases together: more than analysis.budgetPercent, which \
             is {percent}{by_default}, and the {:.1} % that the accepted phases save",
            share(*cost),
            share(spent),
            share(together),
            share(saved)
        );
        Refusal { reason: Reason::BudgetSpent, message }
    })
}

/// What is asked for takes longer than the phase can save.
fn not_worth(subject: &Subject<'_>, prices: &Prices<'_>, Asked { what, cost }: &Asked) -> Option<Refusal> {
    let share = |seconds: f64| 100.0 * seconds / prices.training(prices.baseline);
    let (factor, source) = best(subject)?;
    let saves = prices.left / prices.control * (1.0 - 1.0 / factor);
    (*cost > saves).then(|| {
        let message = format!(
            "{what} would take about {:.1} % of the time of the training with the baseline, and the phase saves at \
             most {:.1} % of it ({source})",
            share(*cost),
            share(saves.max(0.0))
        );
        Refusal { reason: Reason::NotWorthKnowing, message }
    })
}

/// What is asked for leaves too little of the budget for a later phase that promises [much more](LEAST_ADVANTAGE) for
/// what it takes. Phases that others need are not given up for them, and nothing is kept free for a phase that the
/// budget does not pay for anyway, or that promises nothing.
fn kept_free<'a>(
    subject: &Subject<'a>,
    work: &Work,
    limit: &Limit,
    later: impl Iterator<Item = Subject<'a>>,
) -> Option<Refusal> {
    let phase = subject.phase.filter(|_| !is_needed(subject))?;
    // What is too dear at its last step would be kept free in vain.
    let prices = Prices::new(subject)?.in_full();
    let Asked { what, cost } = Asked::new(work, &prices);
    let left = limit.left(&prices);
    let own = gain(promise(phase).unwrap_or_else(|| phase.min_speedup())) / cost;
    let kept = later.filter_map(|later| {
        let (name, promised) = (&later.phase?.name, promised(&later)?);
        let prices = Prices::new(&later)?.in_full();
        let (verdict, together) = (prices.verdict(), prices.together());
        let crowded_out = verdict + together <= left && cost + verdict + together > left;
        let worth = gain(promised) / verdict;
        let is_kept = crowded_out && worth > LEAST_ADVANTAGE * own && matches!(judge(&later), Verdict::Run(_));
        is_kept.then_some((name, worth))
    });
    let (name, _) = kept.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let Limit { percent, by_default } = limit;
    let message = format!(
        "{what} would take about {:.1} % of the time of the training with the baseline, and leave too little of \
         analysis.budgetPercent, which is {percent}{by_default}, for phase {name}, which promises more for what it \
         takes",
        100.0 * cost / prices.training(prices.baseline)
    );
    Some(Refusal { reason: Reason::BudgetSpent, message })
}

/// The share of its time that the training saves with a speedup.
fn gain(speedup: f64) -> f64 {
    (1.0 - 1.0 / speedup).max(0.0)
}

/// The largest plausible speedup of a phase, and what tells it: the upper bound of what was measured, before that the
/// promise. `None` if nothing is known, or if another phase may be what it is for.
fn best(subject: &Subject<'_>) -> Option<(f64, String)> {
    if is_needed(subject) {
        return None;
    }
    if let Some((_, upper)) = speed::reached(subject).and_then(|interval| interval.bounds) {
        return Some((upper, speed::at_most(upper)));
    }
    let promised = promised(subject)?;
    Some((promised, format!("expectedSpeedup {promised}")))
}

/// Whether another phase may be what the phase is for.
fn is_needed(subject: &Subject<'_>) -> bool {
    let phases = &subject.comparison.draft.spec.phases;
    subject.phase.is_some_and(|phase| {
        phase.role == Role::Enabler || phases.iter().any(|other| other.requires.contains(&phase.name))
    })
}

/// What the manifest promises of the phase; of a fallback, nothing.
fn promised(subject: &Subject<'_>) -> Option<f64> {
    let phase = subject.phase?;
    let statuses = &subject.comparison.draft.status.phases;
    statuses.iter().find(|status| status.name == phase.name).filter(|status| status.fallback == 0)?;
    promise(phase)
}
