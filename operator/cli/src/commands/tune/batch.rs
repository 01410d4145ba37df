//! The largest batch that fits into the memory, found by short launches before phases are measured.

use super::command::{BATCH, Tuned};
use crate::commands::init::phases::ACCUMULATION;
use crate::commands::init::words;
use pawl_contract::exit::Outcome;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Time of the search, as a part of the budget.
const SHARE: f64 = 0.15;

/// The batch of a launch and the micro-batches of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Items of a micro-batch.
    pub batch: u32,
    /// Micro-batches of a step.
    pub accumulation: u32,
}

/// How a launch with a choice went.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It took steps.
    Fits,
    /// It failed, or would have.
    Fails(Outcome, String),
    /// It was ended before its first step.
    Unknown,
}

/// A search over choices, by doubling until one fails, then between.
#[derive(Debug)]
pub struct Search {
    /// The baseline, then larger batches in their order.
    choices: Vec<Choice>,
    /// The largest one that fits.
    fits: usize,
    /// The smallest one that does not, and why.
    fails: Option<(usize, String)>,
    /// Why it ended early.
    ended: Option<&'static str>,
    /// Time until now, and the most that it may take.
    spent: Duration,
    most: Duration,
}

/// What the search has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Larger {
    /// The largest batch that fits, then the next smaller one; empty: none is larger than that of the baseline.
    pub choices: Vec<Choice>,
    /// What was found, such as `64 fits, 128 does not: out of memory`.
    pub ground: String,
    /// The largest batch as a multiple of the baseline's, rounded up.
    pub multiple: u32,
}

impl Choice {
    /// The settings of a phase.
    pub fn settings(self, baseline: u32) -> Value {
        if self.accumulation == baseline {
            json!({BATCH: self.batch})
        } else {
            json!({ACCUMULATION: self.accumulation, BATCH: self.batch})
        }
    }
}

impl Search {
    /// Of a script whose steps have this many micro-batches of this size: larger micro-batches with the same items in a
    /// step, or, where a step has one, these multiples of it. It takes a part of `budget`.
    pub fn new((batch, accumulation): (u32, u32), multiples: &[u32], budget: Duration) -> Self {
        let baseline = Choice { batch, accumulation };
        let larger: Vec<Choice> = if accumulation > 1 {
            let fewer = (1..accumulation).rev().filter(|fewer| accumulation.is_multiple_of(*fewer));
            fewer
                .map(|fewer| Choice { batch: batch.saturating_mul(accumulation / fewer), accumulation: fewer })
                .collect()
        } else {
            multiples.iter().map(|times| Choice { batch: batch.saturating_mul(*times), accumulation }).collect()
        };
        let choices = std::iter::once(baseline).chain(larger).collect();
        Self { choices, fits: 0, fails: None, ended: None, spent: Duration::ZERO, most: budget.mul_f64(SHARE) }
    }

    /// The next choice to try, in a launch of at most this time. `None`: the search is over.
    pub fn next(&mut self, limit: impl Fn(Choice) -> Duration) -> Option<(usize, Duration)> {
        let at = match &self.fails {
            Some((fails, _)) => usize::midpoint(self.fits, *fails),
            None => {
                let twice = self.choices[self.fits].batch.saturating_mul(2);
                let last = self.choices.iter().rposition(|choice| choice.batch <= twice).unwrap_or(self.fits);
                last.max(self.fits + 1)
            }
        };
        if at <= self.fits || at >= self.choices.len() || self.ended.is_some() {
            return None;
        }
        let limit = limit(self.choices[at]);
        if self.spent + limit > self.most {
            self.ended = Some("more was not tried within the budget");
            return None;
        }
        Some((at, limit))
    }

    /// The choice at a place.
    pub fn choice(&self, at: usize) -> Choice {
        self.choices[at]
    }

    /// Time until now.
    pub const fn spent(&self) -> Duration {
        self.spent
    }

    /// Notes how the launch with a choice went.
    pub fn note(&mut self, at: usize, fate: Fate, took: Duration) {
        self.spent += took;
        match fate {
            Fate::Fits => self.fits = at,
            Fate::Fails(Outcome::OutOfMemory, _) => self.fails = Some((at, "out of memory".to_owned())),
            Fate::Fails(Outcome::HostOutOfMemory, _) => self.fails = Some((at, "out of memory of the host".to_owned())),
            Fate::Fails(_, line) => self.fails = Some((at, line)),
            Fate::Unknown => self.ended = Some("more was too slow to take a step in its time"),
        }
    }

    /// Ends the search, for this reason.
    pub const fn end(&mut self, why: &'static str) {
        self.ended = Some(why);
    }

    /// What was found.
    pub fn found(&self) -> Larger {
        let [baseline, largest] = [0, self.fits].map(|at| self.choices[at]);
        let more = match (&self.fails, self.ended) {
            (Some((at, why)), _) => format!("{} does not: {why}", self.choices[*at].batch),
            (None, Some(ended)) => ended.to_owned(),
            (None, None) if baseline.accumulation > 1 => "all items of a step".to_owned(),
            (None, None) => "more is not tried".to_owned(),
        };
        // Half the batch has its evaluations where the largest one has them, and a step that accumulates any divisor.
        let smaller = self.choices[1..self.fits.max(1)].iter().rev().find(|choice| {
            largest.accumulation < baseline.accumulation || u64::from(choice.batch) * 2 == u64::from(largest.batch)
        });
        let choices =
            if self.fits == 0 { Vec::new() } else { std::iter::once(largest).chain(smaller.copied()).collect() };
        Larger {
            choices,
            ground: format!("{} fits, {more}", largest.batch),
            multiple: largest.batch.div_ceil(baseline.batch.max(1)),
        }
    }
}

impl Tuned {
    /// The command of the user with another batch, and with its checkpoints in this directory: what differs from it is
    /// as in a launch.
    pub fn with_batch(&self, choice: Choice, checkpoints: &Path) -> Vec<String> {
        let given = |value: &words::Value| match value.setting() {
            Some(BATCH) => Some(choice.batch.to_string()),
            Some(ACCUMULATION) if choice.accumulation != self.accumulation() => Some(choice.accumulation.to_string()),
            None if *value == words::Value::Checkpoints => Some(checkpoints.display().to_string()),
            _ => None,
        };
        let words = self.pieces.iter().flat_map(|piece| {
            let varied = piece.passed().find_map(|passed| Some((passed, given(&passed.value)?)));
            varied.map_or_else(|| piece.own.clone(), |(passed, value)| vec![format!("{}={value}", passed.name)])
        });
        let words: Vec<String> = words.collect();
        // Variables come before the program.
        let is_variable = words.first().is_some_and(|word| word.contains('='));
        is_variable.then(|| "env".to_owned()).into_iter().chain(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::init::phases::MULTIPLES;
    use rstest::rstest;

    fn search(batch: u32, accumulation: u32, most: u32, budget: u64) -> (Larger, Vec<u32>) {
        let mut search = Search::new((batch, accumulation), &MULTIPLES, Duration::from_secs(budget));
        let mut tried = Vec::new();
        while let Some((at, took)) = search.next(|_| Duration::from_secs(10)) {
            let batch = search.choice(at).batch;
            tried.push(batch);
            let fails = || Fate::Fails(Outcome::OutOfMemory, "torch.OutOfMemoryError".to_owned());
            search.note(at, if batch > most { fails() } else { Fate::Fits }, took);
        }
        (search.found(), tried)
    }

    #[rstest]
    // Doubling until it fails, then between.
    #[case::between(16, 1, 100, &[32, 64, 128, 96], &[96, 48], "96 fits, 128 does not: out of memory")]
    #[case::doubled(16, 1, 64, &[32, 64, 128, 96], &[64, 32], "64 fits, 96 does not: out of memory")]
    #[case::all(16, 1, 999, &[32, 64, 128], &[128, 64], "128 fits, more is not tried")]
    #[case::none(16, 1, 16, &[32], &[], "16 fits, 32 does not: out of memory")]
    // The items of a step stay: 24 micro-batches of 4.
    #[case::accumulates(4, 24, 20, &[8, 16, 32, 24], &[16, 12], "16 fits, 24 does not: out of memory")]
    #[case::one_micro_batch(4, 6, 99, &[8, 12, 24], &[24, 12], "24 fits, all items of a step")]
    fn the_largest_batch_is_found(
        #[case] batch: u32,
        #[case] accumulation: u32,
        #[case] most: u32,
        #[case] expected: &[u32],
        #[case] choices: &[u32],
        #[case] ground: &str,
    ) {
        let (larger, tried) = search(batch, accumulation, most, 3600);
        assert_eq!(tried, expected);
        assert_eq!(larger.choices.iter().map(|choice| choice.batch).collect::<Vec<_>>(), choices);
        assert_eq!(larger.ground, ground);
        let items = |choice: &Choice| choice.batch * choice.accumulation;
        assert!(accumulation == 1 || larger.choices.iter().all(|choice| items(choice) == batch * accumulation));
    }

    #[test]
    fn the_search_ends_with_its_part_of_the_budget() {
        let (larger, tried) = search(16, 1, 999, 150);
        assert_eq!((tried, larger.ground.as_str()), (vec![32, 64], "64 fits, more was not tried within the budget"));
    }

    #[test]
    fn a_launch_without_a_step_or_memory_and_another_failure_end_the_search() {
        let mut search = Search::new((16, 1), &MULTIPLES, Duration::from_secs(3600));
        search.note(1, Fate::Unknown, Duration::ZERO);
        assert_eq!(search.next(|_| Duration::ZERO), None);
        assert_eq!(search.found().choices, []);
        let mut search = Search::new((16, 1), &MULTIPLES, Duration::from_secs(3600));
        search.note(1, Fate::Fails(Outcome::Failed, "ValueError: 20 items".to_owned()), Duration::ZERO);
        assert_eq!(search.found().ground, "16 fits, 32 does not: ValueError: 20 items");
        let mut search = Search::new((16, 1), &MULTIPLES, Duration::from_secs(3600));
        search.end("no memory is left");
        assert_eq!(search.next(|_| Duration::ZERO), None);
        assert_eq!(search.found().ground, "16 fits, no memory is left");
    }
}
