//! The search: a card per stage with its trials by state, figures, and the trials in numbers.

pub(crate) mod columns;
mod coordinates;
mod importance;
mod objective;
mod pareto;
mod trials;

use super::evidence::Evidence;
use super::svg::clipped;
use crate::numbers::short;
use crate::search::{begun, numbered, settings, trials as counts, unit, values};
use columns::Order;
use maud::{Markup, PreEscaped, html};
use pawl_api::search::{History, Recorded, history};
use pawl_api::spec::{Goal, Search};
use pawl_api::status::{SearchState, SearchStatus};
use pawl_search::history::State;

/// A stage, for the figures.
struct Stage<'a> {
    search: &'a Search,
    status: &'a SearchStatus,
    history: History,
}

impl Stage<'_> {
    /// The complete trials, whose values are final.
    fn complete(&self) -> impl Iterator<Item = &Recorded> {
        self.history.trials.iter().filter(|recorded| recorded.trial.state == State::Complete)
    }

    /// The value of an objective of a complete trial.
    fn value(&self, recorded: &Recorded, objective: usize) -> Option<f64> {
        recorded.trial.values.get(objective).copied().filter(|value| value.is_finite())
    }

    /// Name of an objective and its direction, such as `loss (minimize)`.
    fn objective(&self, index: usize) -> String {
        let direction = |goal: Goal| match goal {
            Goal::Minimize => "minimize",
            Goal::Maximize => "maximize",
        };
        let objective = &self.search.objectives[index];
        format!("{} ({})", clipped(&objective.metric, 24), direction(objective.goal))
    }

    /// Whether a trial is the best so far or the winner or, with several objectives, in the Pareto set.
    fn outstanding(&self, number: u32) -> bool {
        let best = self.status.winner.as_ref().or(self.status.best.as_ref());
        match self.search.objectives.len() {
            1 => best.is_some_and(|best| best.trial == number),
            _ => self.status.pareto.contains(&number),
        }
    }

    /// The trial and its settings, for a tooltip.
    fn described(&self, recorded: &Recorded) -> String {
        let point = recorded.trial.point.iter().map(|(name, value)| format!("{name} {value}"));
        format!("trial {}: {}", recorded.trial.number, point.collect::<Vec<_>>().join(", "))
    }
}

/// A card per stage that has begun; `None` without any. With an order, the trials are displayed in it, and the headings
/// of their columns are links that sort them; otherwise they are displayed on demand.
pub fn section(evidence: &Evidence, order: Option<&Order>) -> Option<Markup> {
    let stages: Vec<Markup> =
        begun(&evidence.job.spec, &evidence.status).map(|(search, status)| card(search, status, order)).collect();
    (!stages.is_empty()).then(|| html! { @for stage in &stages { (stage) } })
}

/// The tile of the newest stage with a result: label, value and detail.
pub fn tile(evidence: &Evidence) -> Option<(String, String, String)> {
    let result = |(search, status): (&Search, &SearchStatus)| {
        let (best, found) = match (&status.winner, &status.best) {
            (Some(winner), _) => (winner.clone(), "winner"),
            (None, best) => (best.clone()?, "best so far"),
        };
        let metric = &search.objectives.first()?.metric;
        let value = short(best.values.first()?.value());
        let detail = format!("{found}: trial {} of {}", best.trial, status.trials.len());
        Some((format!("search {}: {metric}", search.name), value, detail))
    };
    begun(&evidence.job.spec, &evidence.status).filter_map(result).last()
}

fn card(search: &Search, status: &SearchStatus, order: Option<&Order>) -> Markup {
    let (class, word) = match status.state {
        SearchState::Running => ("idle", "searching"),
        SearchState::Repeating => ("idle", "repeating the best trials"),
        SearchState::Done => ("good", "done"),
    };
    html! {
        article.card id={ "search-" (search.name) } {
            h3 { span.badge.(class) { (word) } " " (search.name) }
            p { b { (status.trials.len()) " of " (search.trials) " trials" } " " (counts(status)) }
            (result(search, status))
            @match history(search, status) {
                Some(history) => {
                    @let stage = Stage { search, status, history };
                    (figures(&stage))
                    (table(&stage, order))
                }
                None => p.muted { "The trials do not have the parameters of the spec, which has changed." },
            }
        }
    }
}

/// The winner, or the best trial so far; the Pareto set; the finalists.
fn result(search: &Search, status: &SearchStatus) -> Markup {
    html! {
        @match (&status.winner, &status.best) {
            (Some(winner), _) => {
                p { b { "Winner" } " " (status.message) }
                p.patch { @for (name, value) in &winner.parameters { code { (name) ": " (value) } " " } }
            }
            (None, Some(best)) => p {
                b { "Best so far" } " trial " (best.trial) ": " (values(&search.objectives, &best.values)) " with " (settings(best))
            },
            (None, None) => {}
        }
        @if !status.pareto.is_empty() { p { b { "Pareto set" } " " (numbered(status.pareto.iter().copied())) } }
        @if !status.finalists.is_empty() { (trials::finalists(status)) }
    }
}

fn figures(stage: &Stage<'_>) -> Markup {
    let histories = (0..stage.search.objectives.len()).filter_map(|objective| {
        let figure = objective::draw(stage, objective)?;
        Some((format!("History of {}", stage.objective(objective)), PreEscaped(figure)))
    });
    let small: Vec<(String, Markup)> =
        histories.chain(importance::figures(stage)).chain(pareto::figures(stage)).collect();
    html! {
        @if !small.is_empty() {
            div.two { @for (title, figure) in &small { div { h4 { (title) } (figure) } } }
            p.legend {
                span.key.train {} "complete " span.key.pruned {} "not complete, its newest value "
                span.key.bestsofar {} "best so far "
                span.key.infeasible {} "infeasible"
            }
        }
        @if let Some(figure) = coordinates::draw(stage) {
            h4 { "Parallel coordinates: a line per trial" }
            (PreEscaped(figure))
            p.legend {
                span.key.outstanding {} (if stage.search.objectives.len() == 1 { "best " } else { "Pareto set " })
                span.key.train {} "complete, darker is better "
                span.key.pruned {} "not complete"
            }
        }
    }
}

fn table(stage: &Stage<'_>, order: Option<&Order>) -> Markup {
    html! {
        @if order.is_some() {
            h4 { "Trials" }
            (trials::table(stage, order))
        } @else {
            details { summary { "Trials in numbers" } (trials::table(stage, None)) }
        }
    }
}

/// The amount of training of the newest value of a trial, such as `after 3 of 9 epochs`; empty when it is complete.
fn trained(stage: &Stage<'_>, recorded: &Recorded) -> String {
    match recorded.trial.newest() {
        Some(report) if recorded.trial.state != State::Complete => {
            let of = |amount: u32| short(f64::from(amount));
            format!(" after {} of {} {}", of(report.resource), of(stage.history.full), unit(stage.search))
        }
        _ => String::new(),
    }
}
