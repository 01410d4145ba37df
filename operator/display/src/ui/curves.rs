//! The curves of jobs as JSON, from which the script draws charts.

use crate::report::curves::{self, Curves};
use crate::report::evidence::Evidence;
use serde::Serialize;
use std::collections::BTreeSet;

/// Maximum points of a line.
const MOST: usize = 2_000;
/// Maximum points of an answer, if that leaves [`FEWEST`] of them to each line: each chart has an equal part.
const MOST_OF_ANSWER: usize = 40_000;
/// Points that a line may have in any case.
const FEWEST: usize = 30;

/// A chart.
#[derive(Serialize)]
struct Chart<'a> {
    /// Identifier of the picture that it replaces.
    id: &'a str,
    title: &'a str,
    /// Whose items the axis counts.
    unit: &'a str,
    series: Vec<Line<'a>>,
}

/// A line; a loss that is not finite is null.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    /// Class in the style sheet, which gives its colour.
    class: &'a str,
    /// Whether each point is drawn.
    dots: bool,
    items: Vec<f64>,
    values: Vec<f64>,
}

/// The curves of a job.
pub fn of_job(evidence: &Evidence) -> String {
    json(&curves::all(evidence))
}

/// The trainings of several jobs, by their keys.
pub fn compared(jobs: &[(&str, &Evidence)]) -> String {
    json(&curves::compared(jobs))
}

fn json(all: &[Curves]) -> String {
    let most = MOST_OF_ANSWER / all.len().max(1);
    let charts: Vec<Chart<'_>> = all.iter().map(|curves| chart(curves, most)).collect();
    serde_json::json!({ "charts": charts }).to_string()
}

/// A chart with at most about `most` points.
fn chart(curves: &Curves, most: usize) -> Chart<'_> {
    let most = (most / curves.series.len().max(1)).clamp(FEWEST, MOST);
    let lines = curves.series.iter().map(|series| {
        let (items, values) = thinned(&series.points, most).into_iter().unzip();
        Line { name: &series.name, class: series.class, dots: series.dots, items, values }
    });
    Chart { id: &curves.id, title: curves.title, unit: curves.unit, series: lines.collect() }
}

/// At most about `most` of the points: of neighbours, the smallest, the largest and the newest, so that neither a spike
/// nor the end is lost.
fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let size = points.len().div_ceil((most / 3).max(1));
    let kept = points.chunks(size).flat_map(|near| {
        let by_value = |a: &usize, b: &usize| near[*a].1.total_cmp(&near[*b].1);
        let ends = [(0..near.len()).min_by(by_value), (0..near.len()).max_by(by_value), near.len().checked_sub(1)];
        let kept: BTreeSet<usize> = ends.into_iter().flatten().collect();
        kept.into_iter().map(move |index| near[index])
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::evidence::FinishedLaunch;
    use pawl_contract::details::Details;
    use pawl_contract::exit::Outcome;
    use pawl_contract::measured::{Measured, Validation};
    use pawl_contract::plan::LaunchKind;
    use pawl_contract::report::LossPoint;
    use serde_json::{Value, json};

    fn launch(attempt: &str, losses: &[(u64, f64)], evaluated: &[(u64, f64)]) -> FinishedLaunch {
        let evaluation =
            |&(items, loss): &(u64, f64)| Validation { items, metrics: [("loss".to_owned(), loss)].into() };
        FinishedLaunch {
            title: String::new(),
            name: "train".to_owned(),
            attempt: attempt.to_owned(),
            kind: LaunchKind::Train,
            seed: 0,
            outcome: Outcome::Done,
            message: String::new(),
            measured: Measured::default(),
            details: Details::default(),
            losses: losses.iter().map(|&(items, loss)| LossPoint { items, loss }).collect(),
            evaluations: evaluated.iter().map(evaluation).collect(),
        }
    }

    fn evidence(launches: Vec<FinishedLaunch>) -> Evidence {
        let job = serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}}}));
        let status = serde_json::from_value(json!({"stage": "Training", "training": {"items": 30}}));
        Evidence::new(job.unwrap(), status.unwrap(), Vec::new(), launches)
    }

    #[test]
    fn all_evaluations_and_the_losses_of_each_launch_are_there() {
        let first = launch("toy-1", &[(0, 4.0), (10, f64::NAN), (20, 2.0)], &[(5, 3.0), (10, 2.5), (20, 2.0)]);
        let second = launch("toy-2", &[(15, 2.5), (30, 1.0)], &[(30, 1.5)]);
        let jobs = evidence(vec![first, second]);
        let found: Value = serde_json::from_str(&of_job(&jobs)).unwrap();
        let [loss, validation] = [&found["charts"][0], &found["charts"][1]];
        assert_eq!((&loss["id"], &loss["title"]), (&json!("loss"), &json!("Training loss")));
        assert_eq!(loss["series"][0]["name"], "training loss, toy-1");
        assert_eq!(loss["series"][0]["values"], json!([4.0, null, 2.0]));
        assert_eq!(loss["series"][1]["items"], json!([15.0, 30.0]));
        assert_eq!(validation["series"][0]["items"], json!([5.0, 10.0, 20.0, 30.0]));
        // Of several jobs, each has one line: what the second launch trained again counts once.
        let both: Value = serde_json::from_str(&compared(&[("a", &jobs), ("b", &jobs)])).unwrap();
        let lines = both["charts"][0]["series"].as_array().unwrap();
        assert_eq!((lines.len(), &lines[1]["name"], &lines[1]["class"]), (2, &json!("b"), &json!("c1")));
        assert_eq!(lines[0]["items"], json!([0.0, 10.0, 15.0, 30.0]));
    }

    #[test]
    fn an_answer_has_few_points_however_many_charts_there_are() {
        let points: Vec<(u64, f64)> = (0..1000).map(|items| (items, 1.0)).collect();
        let job = evidence(vec![launch("toy-1", &points, &points)]);
        let all: Vec<Curves> = (0..50).flat_map(|_| curves::compared(&[("a", &job), ("b", &job)])).collect();
        let answer: Value = serde_json::from_str(&json(&all)).unwrap();
        let charts = answer["charts"].as_array().unwrap();
        let lines = charts.iter().flat_map(|chart| chart["series"].as_array().unwrap());
        let count: usize = lines.map(|line| line["items"].as_array().unwrap().len()).sum();
        assert!((MOST_OF_ANSWER / 4..=MOST_OF_ANSWER).contains(&count), "{count}");
    }

    #[test]
    fn many_points_are_thinned_and_no_spike_is_lost() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|index| (f64::from(index), 1.0)).collect();
        points[77_777].1 = 50.0;
        points[33_333].1 = f64::NAN;
        let kept = thinned(&points, 300);
        assert!(kept.len() <= 300 && kept.contains(&(77_777.0, 50.0)), "{}", kept.len());
        assert!(kept.iter().any(|point| point.1.is_nan()) && kept.last() == Some(&(99_999.0, 1.0)), "{kept:?}");
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
        assert_eq!(thinned(&points[..10], 300).len(), 10);
    }
}
