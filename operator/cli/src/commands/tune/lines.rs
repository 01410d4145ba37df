//! What a script prints: lines become the patterns that find its steps and losses.
//!
//! A pattern is made of the words that stand before the numbers, so that it matches the lines that were seen and not
//! those of another progress bar. It is proposed only if it reads its own lines as they were read, and no other.

mod forms;

use forms::Form;
use pawl_contract::log::{Patterns, Reading};
use pawl_contract::script::Monitor;
use std::collections::BTreeMap;

/// Lines in which the steps have to grow.
const LEAST_LINES: usize = 3;
/// Lines that an error quotes.
const QUOTED: usize = 5;
/// Maximum length of a quoted line, in characters.
const WIDTH: usize = 110;

/// A line of the output, and when it came, in seconds since the start.
pub type Line = (f64, String);

/// What was found in an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// How launches are followed.
    pub monitor: Monitor,
    /// How fast its steps are.
    pub pace: Pace,
    /// Steps at each validation, since the beginning of the training.
    pub validated: Vec<u64>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The steps of an observed run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pace {
    /// Seconds before the first step was seen.
    pub start: f64,
    /// Seconds before the last one.
    pub end: f64,
    /// Seconds of a step: the median over the lines.
    pub step: f64,
    /// Steps from one line to the next.
    pub every: u64,
    /// Longest time without a line, in seconds.
    pub silence: f64,
    /// Steps that were seen.
    pub steps: u64,
    /// Whether they are counted anew in each epoch.
    pub restarts: bool,
}

/// Why nothing can be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// It has printed nothing.
    Nothing,
    /// No line has a step and a loss; the newest lines.
    NoSteps(Vec<String>),
    /// There are such lines, too few, or their steps do not grow.
    Few {
        /// The newest one.
        line: String,
        /// How many there are.
        count: usize,
    },
}

/// A line that may report a step of the training.
struct Candidate<'a> {
    index: usize,
    form: Form<'a>,
}

/// Finds the steps of the training. `batch`: items of a step, where it is known.
///
/// # Errors
/// [`Unseen`]: no line reports them in a usual form.
pub fn find(lines: &[Line], batch: Option<u64>) -> Result<Findings, Unseen> {
    if lines.iter().all(|(_, text)| text.trim().is_empty()) {
        return Err(Unseen::Nothing);
    }
    let mut groups: BTreeMap<String, Vec<Candidate<'_>>> = BTreeMap::new();
    for (index, (_, text)) in lines.iter().enumerate() {
        if let Some(form) = Form::of(text) {
            groups.entry(form.key()).or_default().push(Candidate { index, form });
        }
    }
    let mut groups: Vec<Vec<Candidate<'_>>> = groups.into_values().collect();
    // Lines that also have a validation loss are those of an evaluation.
    groups.sort_by_key(|group| (group[0].form.has_validation, std::cmp::Reverse(group.len())));
    let validation = validation(lines);
    for group in groups.iter().filter(|group| grows(group)) {
        let items = batch.is_some_and(|batch| counts_items(group, batch));
        let training = group[0].form.pattern(items);
        // Without the pattern of the validation, its lines may be taken for those of the training.
        for validation in [validation.clone(), None] {
            let monitor = Monitor { training: Some(training.clone()), validation, ..Monitor::default() };
            if let Some(validated) = accepted(lines, group, &monitor, items) {
                return Ok(found(lines, group, monitor, validated, batch.filter(|_| items)));
            }
        }
    }
    if let Some(found) = trainer(lines) {
        return Ok(found);
    }
    Err(match groups.iter().max_by_key(|group| group.len()) {
        Some(group) => {
            let newest = group.last().map_or("", |candidate| lines[candidate.index].1.as_str());
            Unseen::Few { line: quoted(newest), count: group.len() }
        }
        None => {
            let printed = lines.iter().map(|(_, text)| quoted(text)).filter(|text| !text.is_empty());
            let mut newest: Vec<String> = printed.rev().take(QUOTED).collect();
            newest.reverse();
            Unseen::NoSteps(newest)
        }
    })
}

fn quoted(text: &str) -> String {
    pawl_contract::report::printable(text.trim()).chars().take(WIDTH).collect()
}

/// Whether the steps of at least three lines grow, and all losses are finite.
fn grows(group: &[Candidate<'_>]) -> bool {
    let mut run = 0;
    let mut longest = 0;
    let mut before = None;
    for Candidate { form, .. } in group {
        let now = (form.epoch, form.step);
        run = match before {
            Some(before) if now > before => run + 1,
            Some(before) if now == before => run,
            _ => 1,
        };
        longest = longest.max(run);
        before = Some(now);
    }
    longest >= LEAST_LINES && group.iter().all(|candidate| candidate.form.loss.is_finite())
}

/// Whether `N/M (P%)` counts items: all are multiples of the batch, as indices of batches are not.
fn counts_items(group: &[Candidate<'_>], batch: u64) -> bool {
    let whole = |candidate: &Candidate<'_>| candidate.form.has_share && candidate.form.step.is_multiple_of(batch);
    batch > 1 && group.iter().all(whole)
}

/// The number of steps or items at each validation, if the patterns read the lines of the group, and no others, as
/// training.
fn accepted(lines: &[Line], group: &[Candidate<'_>], monitor: &Monitor, items: bool) -> Option<Vec<u64>> {
    let patterns = Patterns::new(monitor).ok()?;
    let mut own = group.iter().peekable();
    let mut count = Count::default();
    let mut validated = Vec::new();
    for (index, (_, text)) in lines.iter().enumerate() {
        let candidate = own.next_if(|candidate| candidate.index == index);
        match (patterns.read(text), candidate) {
            (Some(Reading::Training { step, items: read, epoch, loss }), Some(Candidate { form, .. })) => {
                let position = if items { read } else { step };
                let agrees = position == Some(form.step) && loss == Some(form.loss);
                if !agrees || form.epoch.is_some() && epoch != form.epoch {
                    return None;
                }
                count.add(form.step);
            }
            (Some(Reading::Validation { .. }), None) => validated.push(count.total()),
            (None, None) => {}
            (Some(_), _) | (None, Some(_)) => return None,
        }
    }
    Some(validated)
}

/// Steps that may be counted anew in each epoch.
#[derive(Default)]
struct Count {
    before: u64,
    newest: u64,
}

impl Count {
    fn add(&mut self, step: u64) {
        if step < self.newest {
            self.before += self.newest;
        }
        self.newest = step;
    }

    fn total(&self) -> u64 {
        self.before + self.newest
    }
}

/// What was found. `items_per_step`: of lines that count items.
fn found(
    lines: &[Line],
    group: &[Candidate<'_>],
    monitor: Monitor,
    validated: Vec<u64>,
    items_per_step: Option<u64>,
) -> Findings {
    let per_step = items_per_step.unwrap_or(1);
    let seen = group.iter().map(|candidate| (lines[candidate.index].0, candidate.form.step.div_ceil(per_step)));
    let pace = pace(seen);
    let mut notes = Vec::new();
    if group[0].form.has_validation {
        notes.push(
            "training and validation are in one line: the speed is measured with the evaluations, which hides a part of a speedup"
                .to_owned(),
        );
    }
    let validated = validated.into_iter().map(|position| position.div_ceil(per_step)).collect();
    Findings { monitor, pace, validated, notes }
}

/// The pace of steps that were seen at these times.
fn pace(seen: impl Iterator<Item = (f64, u64)>) -> Pace {
    let mut pace = Pace::default();
    let mut count = Count::default();
    let (mut rates, mut gaps) = (Vec::new(), Vec::new());
    let mut before: Option<(f64, u64)> = None;
    let mut newest = 0.0;
    for (at, step) in seen {
        count.add(step);
        pace.end = at;
        match before {
            None => pace.start = at,
            // A bar that is drawn again: the step was done when it was first shown.
            Some((_, last)) if step == last => {
                pace.silence = pace.silence.max(at - newest);
                newest = at;
                continue;
            }
            Some((then, last)) => {
                pace.silence = pace.silence.max(at - newest);
                if step > last {
                    rates.push((at - then) / (step - last) as f64);
                    gaps.push(step - last);
                }
            }
        }
        before = Some((at, step));
        newest = at;
    }
    rates.sort_by(f64::total_cmp);
    gaps.sort_unstable();
    pace.step = rates.get(rates.len() / 2).copied().unwrap_or_default();
    pace.every = gaps.get(gaps.len() / 2).copied().unwrap_or(1);
    pace.restarts = count.before > 0;
    pace.steps = count.total();
    pace
}

/// The most frequent form of a validation loss, one called test only where there is no other.
fn validation(lines: &[Line]) -> Option<String> {
    let mut counts: BTreeMap<String, (bool, usize)> = BTreeMap::new();
    for (_, text) in lines {
        if let Some(found) = forms::validation(text) {
            counts.entry(found.pattern).or_insert((!found.is_test, 0)).1 += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, rank)| *rank).map(|(pattern, _)| pattern)
}

/// The dictionaries that the Trainer of Hugging Face prints, whose steps are those of its progress bar.
fn trainer(lines: &[Line]) -> Option<Findings> {
    let is_log = |text: &str| forms::is_trainers(text, "loss");
    if lines.iter().filter(|(_, text)| is_log(text)).count() == 0 {
        return None;
    }
    let bars: Vec<(f64, u64)> = lines.iter().filter_map(|(at, text)| Some((*at, forms::bar(text)?))).collect();
    let monitor = Monitor { source: pawl_contract::script::MonitorSource::Kubeflow, ..Monitor::default() };
    let validated = lines.iter().filter(|(_, text)| forms::is_trainers(text, "eval_loss")).map(|_| 0).collect();
    Some(Findings { monitor, pace: pace(bars.into_iter()), validated, notes: Vec::new() })
}

#[cfg(test)]
mod tests;
