//! The steps by which the speed of a script is measured.

use pawl_contract::plan::{Budget, WindowLimit};
use pawl_contract::steady::{EXTENSIONS, is_steady};
use std::collections::VecDeque;
use std::time::Duration;

/// Steps, items and time between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) steps: u64,
    pub(super) items: u64,
    pub(super) time: Duration,
}

impl Span {
    pub(super) fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.items += other.items;
        self.time += other.time;
    }

    fn without(self, other: Self) -> Self {
        Self { steps: self.steps - other.steps, items: self.items - other.items, time: self.time - other.time }
    }

    pub(super) fn rate(self) -> Option<f64> {
        (self.time > Duration::ZERO).then(|| self.items as f64 / self.time.as_secs_f64())
    }
}

/// The newest steps after the warm-up, as many as the window of a measurement has: where that is not steady, a later
/// one replaces it. Of other launches, all steps.
#[derive(Debug, Default)]
pub(super) struct Window {
    steps: Option<u64>,
    limit: Option<WindowLimit>,
    total: Span,
    spans: VecDeque<Span>,
    /// All steps after the warm-up.
    seen: Span,
}

impl Window {
    /// The window of a measurement with this budget.
    pub(super) fn of_measurement(budget: &Budget, limit: Option<WindowLimit>) -> Self {
        Self { steps: budget.window_steps, limit, ..Self::default() }
    }

    pub(super) fn add(&mut self, newest: Span) {
        self.total.add(newest);
        self.seen.add(newest);
        let Some(window) = self.steps else { return };
        self.spans.push_back(newest);
        while let Some(rest) = self.spans.front().map(|oldest| self.total.without(*oldest)) {
            if rest.steps < window && !self.has_lasted(rest) {
                break;
            }
            self.total = rest;
            self.spans.pop_front();
        }
    }

    fn has_lasted(&self, span: Span) -> bool {
        let seconds = span.time.as_secs_f64();
        self.limit.is_some_and(|limit| limit.is_reached((span.steps, seconds), limit.window_steps.max(1)))
    }

    /// Whether it has lasted as long as its limit says, so that it needs no more steps.
    pub(super) fn is_over(&self) -> bool {
        self.has_lasted(self.total)
    }

    /// Items per second.
    pub(super) fn rate(&self) -> Option<f64> {
        self.total.rate().filter(|rate| *rate > 0.0)
    }

    /// Whether the speed is that of a steady state; `None` when that cannot be told.
    pub(super) fn steady(&self) -> Option<bool> {
        let spans: Vec<_> = self.spans.iter().map(|span| (span.steps, span.time.as_secs_f64())).collect();
        is_steady(&spans)
    }

    /// Whether it is replaced by later steps, because it is not steady, and there were not enough of them yet.
    pub(super) fn is_extended(&self) -> bool {
        let most = |least: u64| least.saturating_mul(1 + EXTENSIONS);
        let few = self.steps.is_some_and(|window| self.seen.steps < most(window));
        let short = self.limit.is_none_or(|limit| {
            let seconds = limit.seconds * (1 + EXTENSIONS) as f64;
            self.seen.steps < most(limit.window_steps) || self.seen.time.as_secs_f64() < seconds
        });
        few && short && self.steady() == Some(false)
    }
}
