//! The trials and the finalists in numbers.

use super::Stage;
use super::columns::{Column, Order, columns};
use crate::numbers::short;
use crate::url::encode;
use maud::{Markup, html};
use pawl_api::search::Recorded;
use pawl_api::status::SearchStatus;

/// All trials with their values and settings. With an order, the headings are links that sort.
pub fn table(stage: &Stage<'_>, order: Option<&Order>) -> Markup {
    let columns = columns(stage);
    let mut trials: Vec<&Recorded> = stage.history.trials.iter().collect();
    if let Some(order) = order {
        order.sort(&columns, &mut trials);
    }
    html! {
        div.wide role="region" aria-label={ "Trials of " (stage.search.name) } tabindex="0" {
            table {
                thead { tr { @for column in &columns { (heading(column, order)) } } }
                tbody {
                    @for recorded in trials {
                        tr.changed[stage.outstanding(recorded.trial.number)] data-trial=(recorded.trial.number) {
                            @for column in &columns { td.n[column.is_number()] { (column.text(stage, recorded)) } }
                        }
                    }
                }
            }
        }
    }
}

fn heading(column: &Column<'_>, order: Option<&Order>) -> Markup {
    let direction = order.and_then(|order| order.direction(column));
    let (sorted, arrow) = match direction {
        Some(true) => (Some("descending"), " ▼"),
        Some(false) => (Some("ascending"), " ▲"),
        None => (None, ""),
    };
    html! {
        th.n[column.is_number()] scope="col" aria-sort=[sorted] {
            @if let Some(order) = order {
                a href={ "?sort=" (encode(&order.by(column).text())) } {
                    (column.heading()) span aria-hidden="true" { (arrow) }
                }
            } @else {
                (column.heading())
            }
        }
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
