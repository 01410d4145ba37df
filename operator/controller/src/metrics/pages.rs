//! The text of all metrics, page by page: that of thousands of jobs is larger than what the operator may hold.

use super::exposition::Exposition;
use super::{Metrics, families};
use crate::key::Key;
use std::ops::Bound;

/// A page is complete once it has so many bytes.
const PAGE: usize = 64 << 10;

/// The pages. The jobs are locked while a page is made, and each is read as it is then.
pub struct Pages {
    metrics: Metrics,
    next: Next,
}

/// Where the next page begins.
enum Next {
    /// With the number of jobs by stage.
    Stages,
    /// In the family of this number, after this job.
    Family(usize, Option<Key>),
    /// With what the operator counts.
    Counters,
    /// Nowhere.
    End,
}

impl Pages {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { metrics, next: Next::Stages }
    }

    /// Writes on, until a page is full or something else is to be written.
    fn write(&mut self, out: &mut Exposition) {
        let jobs = self.metrics.jobs.lock();
        self.next = match std::mem::replace(&mut self.next, Next::End) {
            Next::Stages => {
                families::write_stages(jobs.values().filter_map(|state| state.sample.as_ref()), out);
                Next::Family(0, None)
            }
            Next::Family(number, last) => match families::nth(number) {
                None => Next::Counters,
                Some(family) => {
                    match last {
                        None => family.begin(out),
                        Some(_) => family.resume(out),
                    }
                    let after = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                    let mut rest = jobs.range::<Key, _>((after, Bound::Unbounded));
                    let full = rest.find(|(key, state)| {
                        if let Some(sample) = &state.sample {
                            family.write(key, sample, out);
                        }
                        out.len() >= PAGE
                    });
                    full.map_or(Next::Family(number + 1, None), |(key, _)| Next::Family(number, Some(key.clone())))
                }
            },
            end @ (Next::Counters | Next::End) => end,
        };
    }
}

impl Iterator for Pages {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut out = Exposition::default();
        while matches!(self.next, Next::Stages | Next::Family(..)) && out.len() < PAGE {
            self.write(&mut out);
        }
        if out.len() > 0 {
            return Some(out.into_text());
        }
        let counters = matches!(self.next, Next::Counters).then(|| self.metrics.counters.render());
        self.next = Next::End;
        counters
    }
}
