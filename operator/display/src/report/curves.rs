//! The loss curves of jobs: of a training, of the launches of each phase, and of several jobs.

use super::chart::{self, Series};
use super::evidence::{Evidence, FinishedLaunch};
use crate::together::TOGETHER;
use maud::{Markup, PreEscaped, html};
use pawl_api::status::{Arm, BundleStatus, LaunchStatus, PhaseStatus};
use pawl_contract::measured::{Measured, Validation};
use pawl_contract::plan::LaunchKind;

const WIDTH: f64 = 476.0;
const HEIGHT: f64 = 240.0;
/// Classes in the style sheet of the lines of several jobs. After the last one, the first is used again.
pub const JOBS: [&str; 12] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "c10", "c11"];

/// Lines over items seen, with their heading.
pub struct Curves {
    /// Identifies them on their page, such as `loss`.
    pub id: String,
    /// Their heading.
    pub title: &'static str,
    /// Whose items are counted.
    pub unit: &'static str,
    /// The lines.
    pub series: Vec<Series>,
    /// Classes of lines with what they stand for; empty for a single kind of line.
    pub legend: Vec<(&'static str, String)>,
}

impl Curves {
    /// Of the whole gang, without a legend.
    fn new(id: impl Into<String>, title: &'static str, series: Vec<Series>) -> Self {
        Self { id: id.into(), title, unit: "whole gang", series, legend: Vec::new() }
    }

    /// Heading, picture and legend; `None` when no line has two points. A script finds the picture by the identifier.
    pub fn figure(&self) -> Option<Markup> {
        let picture = chart::lines(&self.series, WIDTH, HEIGHT, self.unit, self.title)?;
        Some(html! {
            div {
                h4 { (self.title) }
                div data-chart=(self.id) {
                    (PreEscaped(picture))
                    @if !self.legend.is_empty() {
                        p.legend { @for (class, name) in &self.legend { span.key.(class) {} (name) " " } }
                    }
                }
            }
        })
    }
}

/// All curves of a job.
pub fn all(evidence: &Evidence) -> Vec<Curves> {
    let phases = evidence.status.phases.iter().flat_map(|phase| of_phase(evidence, phase));
    let bundle = evidence.status.bundle.iter().flat_map(|bundle| of_bundle(evidence, bundle));
    training(evidence).into_iter().chain(phases).chain(bundle).collect()
}

/// Training and validation loss of the training.
pub fn training(evidence: &Evidence) -> [Curves; 2] {
    let losses = evidence.training().map(|launch| Series {
        class: "train",
        name: format!("training loss, {}", launch.attempt),
        points: losses(launch),
        dots: false,
    });
    let points = validation(evidence);
    let validation = Series { class: "valid", name: "validation loss".to_owned(), points, dots: true };
    [
        Curves::new("loss", "Training loss", losses.collect()),
        Curves::new("validation", "Validation loss", vec![validation]),
    ]
}

/// The losses of both arms of a phase.
pub fn of_phase(evidence: &Evidence, phase: &PhaseStatus) -> Vec<Curves> {
    of_arms(evidence, (&phase.name, &phase.launches), ["A: settings so far", "B: with this phase"])
}

/// The losses of the baseline and of all accepted phases together.
pub fn of_bundle(evidence: &Evidence, bundle: &BundleStatus) -> Vec<Curves> {
    of_arms(evidence, (TOGETHER, &bundle.launches), ["A: the baseline", "B: with all accepted phases"])
}

/// The losses of both arms of a comparison: of the quality launches if there are any, otherwise of the Measure
/// launches. Beside the training loss, the validation loss of launches that were evaluated more often than before and
/// after.
fn of_arms(evidence: &Evidence, (name, own): (&str, &[LaunchStatus]), legend: [&str; 2]) -> Vec<Curves> {
    let has_quality = own.iter().any(|launch| launch.kind == LaunchKind::Quality);
    let kind = if has_quality { LaunchKind::Quality } else { LaunchKind::Measure };
    let baseline = evidence.status.baseline.iter().flat_map(|baseline| &baseline.launches);
    let controls = baseline.filter(|launch| has_quality && launch.kind == kind);
    let launches: Vec<&LaunchStatus> = controls.chain(own.iter().filter(|launch| launch.kind == kind)).collect();
    let series = |points: fn(&FinishedLaunch) -> Vec<(f64, f64)>, dots: bool| -> Vec<Series> {
        let drawn = launches.iter().filter_map(|launch| {
            let points = points(evidence.launch(&launch.name)?);
            let (class, arm) = arm(launch.arm);
            (points.len() > 1).then(|| Series { class, name: format!("{arm}, seed {}", launch.seed), points, dots })
        });
        drawn.collect()
    };
    let curves = |id: &str, title: &'static str, series: Vec<Series>| Curves {
        unit: "equal in both arms",
        legend: ["a", "b"].into_iter().zip(legend.map(str::to_owned)).collect(),
        ..Curves::new(format!("{id}-{name}"), title, series)
    };
    let mut found = vec![curves("loss", "Training loss, A against B", series(losses, false))];
    let validations = series(|launch| evaluated(evaluations(launch)), true);
    if validations.iter().any(|line| line.points.len() > 2) {
        found.push(curves("validation", "Validation loss, A against B", validations));
    }
    found
}

/// Training and validation loss of the trainings of several jobs, by their names.
pub fn compared(jobs: &[(&str, &Evidence)]) -> [Curves; 2] {
    let series = |points: fn(&Evidence) -> Vec<(f64, f64)>, dots: bool| -> Vec<Series> {
        let drawn = jobs.iter().zip(JOBS.iter().cycle()).map(|(&(name, evidence), &class)| Series {
            class,
            name: name.to_owned(),
            points: points(evidence),
            dots,
        });
        drawn.collect()
    };
    let curves = |id: &str, title: &'static str, series: Vec<Series>| {
        let legend = series.iter().filter(|line| !line.points.is_empty());
        let legend = legend.map(|line| (line.class, line.name.clone())).collect();
        Curves { legend, ..Curves::new(id, title, series) }
    };
    [
        curves("loss", "Training loss", series(whole, false)),
        curves("validation", "Validation loss", series(validation, true)),
    ]
}

/// Class and name of an arm.
const fn arm(arm: Arm) -> (&'static str, &'static str) {
    match arm {
        Arm::Control => ("a", "A"),
        Arm::Candidate => ("b", "B"),
    }
}

/// The training loss of a launch.
fn losses(launch: &FinishedLaunch) -> Vec<(f64, f64)> {
    launch.losses.iter().map(|point| (point.items as f64, point.loss)).collect()
}

/// The training loss of a whole training: what a launch that was resumed trained again counts once.
pub(crate) fn whole(evidence: &Evidence) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for launch in evidence.training() {
        let losses = losses(launch);
        if let Some(&(resumed, _)) = losses.first() {
            points.retain(|(items, _)| *items < resumed);
        }
        points.extend(losses);
    }
    points
}

/// The validation loss of a training: the first and the newest evaluation of each launch, and of the training as a
/// whole, and those between them where they were recorded.
fn validation(evidence: &Evidence) -> Vec<(f64, f64)> {
    let whole = evidence.status.training.as_ref().map(|training| Measured::from(&training.measured));
    let whole = whole.iter().flat_map(|measured| [&measured.first_validation, &measured.validation]).flatten();
    evaluated(evidence.training().flat_map(evaluations).chain(whole))
}

/// The evaluations of a launch, in no order.
fn evaluations(launch: &FinishedLaunch) -> impl Iterator<Item = &Validation> {
    let reported = [&launch.measured.first_validation, &launch.measured.validation];
    launch.evaluations.iter().chain(reported.into_iter().flatten())
}

/// The losses of evaluations, in order of items, each once.
fn evaluated<'a>(found: impl Iterator<Item = &'a Validation>) -> Vec<(f64, f64)> {
    let loss = |validation: &Validation| Some((validation.items as f64, *validation.metrics.get("loss")?));
    let mut points: Vec<(f64, f64)> = found.filter_map(loss).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    points
}
