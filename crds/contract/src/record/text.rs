//! The text of a record, which only grows.

use super::{Begun, Entry, Launched, MAX_EVENTS, MAX_RECORD, Record};
use crate::happened::Happened;

/// Room that is left for the end of the attempt, bytes: its message may be six times as long in JSON.
const END_ROOM: usize = 4 << 10;

/// The text of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Vec<u8>);

impl Text {
    /// The text that goes on after what `earlier` contains, if that is a record of the attempt that `begun` begins;
    /// else a new one. A plan and a provenance that are there are not repeated.
    pub fn resumed(earlier: Option<Vec<u8>>, mut begun: Begun) -> Self {
        let read = |text: Vec<u8>| {
            let record = Record::read(&text).ok().filter(|record| record.begun.is_same(&begun))?;
            Some((text, record))
        };
        let mut text = Self::default();
        if let Some((earlier, record)) = earlier.and_then(read) {
            text = Self::after(earlier);
            begun.plan = begun.plan.filter(|plan| record.plan() != Some(plan));
            begun.provenance = begun.provenance.filter(|found| record.begun.provenance.as_ref() != Some(found));
        }
        text.add(&Entry::Attempt(Box::new(begun)));
        text
    }

    /// `earlier`, which another line may follow.
    fn after(mut earlier: Vec<u8>) -> Self {
        if earlier.last().is_some_and(|last| *last != b'\n') {
            earlier.push(b'\n');
        }
        Self(earlier)
    }

    /// The record in `earlier` of an attempt that runs no more, with those of `events`, oldest first, that it does not
    /// have; `None` when it has them all, and when it is no record.
    pub fn with_events(earlier: Vec<u8>, events: &[Happened]) -> Option<Self> {
        Record::read(&earlier).ok()?;
        let before = earlier.len();
        let mut text = Self::after(earlier);
        text.add_events(events);
        (text.0.len() > before + 1).then_some(text)
    }

    /// Adds those of `events`, oldest first, that it does not have; of very many, the newest.
    pub fn add_events(&mut self, events: &[Happened]) {
        let there = Record::read(&self.0).map(|record| record.happened).unwrap_or_default();
        let newest = &events[events.len().saturating_sub(MAX_EVENTS)..];
        for event in newest.iter().filter(|event| !there.contains(event)) {
            self.add(&Entry::Event(event.clone()));
        }
    }

    /// Adds a line. Where there is no room for a launch, it is added without its curve; a line for which there still
    /// is no room is left out.
    pub fn add(&mut self, entry: &Entry) {
        if self.try_add(entry) {
            return;
        }
        if let Entry::Launch(launch) = entry {
            let (time, report, curve, evaluations) = (launch.time, launch.report.clone(), Vec::new(), Vec::new());
            self.try_add(&Entry::Launch(Box::new(Launched { time, report, curve, evaluations })));
        }
    }

    /// Adds a line if there is room for it. Returns whether there was.
    fn try_add(&mut self, entry: &Entry) -> bool {
        let Ok(mut line) = serde_json::to_vec(entry) else { return false };
        line.push(b'\n');
        let kept = if matches!(entry, Entry::End(_)) { 0 } else { END_ROOM };
        let fits = self.0.len() + line.len() + kept <= MAX_RECORD;
        if fits {
            self.0.extend(line);
        }
        fits
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
