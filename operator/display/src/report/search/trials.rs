//! The trials and the finalists in numbers.

use super::{Stage, trained};
use crate::numbers::short;
use crate::search::{cause, word};
use maud::{Markup, html};
use pawl_api::search::Recorded;
use pawl_api::status::SearchStatus;
use pawl_search::history::State;

/// All trials with their values and settings.
pub fn table(stage: &Stage<'_>) -> Markup {
    let parameters = &stage.history.space.parameters;
    html! {
        details {
            summary { "Trials in numbers" }
            div.wide {
                table {
                    thead {
                        tr {
                            th.n { "trial" } th { "state" }
                            @for objective in &stage.search.objectives { th.n { (objective.metric) } }
                            @for parameter in parameters { th.n { (parameter.name) } }
                            th.n { "items/s" }
                        }
                    }
                    tbody {
                        @for recorded in &stage.history.trials {
                            @let outstanding = stage.outstanding(recorded.trial.number);
                            tr.changed[outstanding] {
                                td.n { (recorded.trial.number) }
                                td { (state(recorded)) }
                                @for index in 0..stage.search.objectives.len() { td.n { (value(stage, recorded, index)) } }
                                @for parameter in parameters {
                                    td.n { @if let Some(value) = recorded.trial.point.get(&parameter.name) { (value) } }
                                }
                                td.n { @if recorded.items_per_second > 0.0 { (short(recorded.items_per_second)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn state(recorded: &Recorded) -> String {
    let state = recorded.trial.state;
    match state {
        State::Infeasible(why) => format!("{}: {}", word(state), cause(why)),
        State::Running | State::Paused | State::Complete | State::Stopped | State::Abandoned => word(state).to_owned(),
    }
}

/// The final value or, of the first objective, the newest one.
fn value(stage: &Stage<'_>, recorded: &Recorded, objective: usize) -> String {
    match (recorded.trial.values.get(objective), recorded.trial.newest()) {
        (Some(value), _) => short(*value),
        (None, Some(report)) if objective == 0 => format!("{}{}", short(report.value), trained(stage, recorded)),
        _ => String::new(),
    }
}

/// The values of the finalists by seed.
pub fn finalists(status: &SearchStatus) -> Markup {
    html! {
        table {
            thead { tr { th.n { "finalist" } th.n { "mean" } th { "by seed" } } }
            tbody {
                @for finalist in &status.finalists {
                    @let values: Vec<f64> = finalist.values.iter().map(|value| value.value()).collect();
                    tr {
                        td.n { "trial " (finalist.trial) }
                        td.n { @if !values.is_empty() { (short(values.iter().sum::<f64>() / values.len() as f64)) } }
                        td {
                            (values.iter().copied().map(short).collect::<Vec<_>>().join(", "))
                            @if finalist.failed { " (a repetition failed)" }
                        }
                    }
                }
            }
        }
    }
}
