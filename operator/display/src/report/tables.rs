//! Tables: settings, launches, events.

use super::evidence::Evidence;
use crate::ending::ending;
use crate::numbers::{bytes, seconds, short};
use crate::settings::differences;
use jiff::Timestamp;
use maud::{Markup, html};

/// The effective settings compared with the baseline, changed settings first.
pub fn settings(evidence: &Evidence) -> Markup {
    let baseline = &evidence.job.spec.settings;
    let effective = evidence.status.effective_settings.as_ref().unwrap_or(baseline);
    let mut all = differences(baseline, effective);
    all.sort_by_key(|difference| !difference.changed());
    let side = |value: &Option<String>| match value {
        Some(value) => html! { code { (value) } },
        None => html! { span.muted { "default" } },
    };
    html! {
        table {
            thead { tr { th { "setting" } th { "baseline" } th { "now" } } }
            tbody {
                @for difference in &all {
                    tr.changed[difference.changed()] {
                        td { (difference.name) }
                        td { (side(&difference.baseline)) }
                        td { (side(&difference.effective)) }
                    }
                }
            }
        }
    }
}

/// The finished launches, oldest first, with their names in the tooltips; `None` without launches.
pub fn launches(evidence: &Evidence) -> Option<Markup> {
    let launches = &evidence.launches;
    let table = html! {
        details {
            summary { (launches.len()) " launches" }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "launch" } th.n { "seed" } th { "outcome" } th.n { "items/s" } th.n { "loss" }
                            th.n { "peak memory" } th.n { "time" } th { "message" }
                        }
                    }
                    tbody {
                        @for launch in launches {
                            @let measured = &launch.measured;
                            @let (outcome, message) = ending(launch.kind, launch.outcome, &launch.message);
                            tr {
                                td title={ (launch.name) " " (launch.attempt) } { (launch.title) }
                                td.n { (launch.seed) }
                                td { (outcome) }
                                td.n { (measured.items_per_second.map(short).unwrap_or_default()) }
                                td.n { (measured.loss.map(short).unwrap_or_default()) }
                                td.n { (measured.peak_memory_bytes.map(bytes).unwrap_or_default()) }
                                td.n { (measured.wall_seconds.map(seconds).unwrap_or_default()) }
                                td { (message) }
                            }
                        }
                    }
                }
            }
        }
    };
    (!launches.is_empty()).then_some(table)
}

/// The events, oldest first, with the time since the first one; `None` without events.
pub fn events(evidence: &Evidence) -> Option<Markup> {
    let first = evidence.events.first()?.time;
    let utc = |time: Timestamp| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    Some(html! {
        p.muted { "From " (utc(first)) " on; each time is that since then." }
        ol.timeline {
            @for event in &evidence.events {
                li class=(if event.warning { "warning" } else { "normal" }) {
                    time datetime=(event.time) title=(utc(event.time)) {
                        "+" (seconds(event.time.duration_since(first).as_secs_f64()))
                    }
                    span.why { (event.reason) }
                    span { @if let Some(phase) = &event.phase { b { (phase) } " " } (event.message) }
                }
            }
        }
    })
}
