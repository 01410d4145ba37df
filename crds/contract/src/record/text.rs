//! The text of a record, which only grows.

use super::{Begun, Entry, Launched, MAX_RECORD, Record};

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
            text = Self(earlier);
            begun.plan = begun.plan.filter(|plan| record.plan() != Some(plan));
            begun.provenance = begun.provenance.filter(|found| record.begun.provenance.as_ref() != Some(found));
        }
        if text.0.last().is_some_and(|last| *last != b'\n') {
            text.0.push(b'\n');
        }
        text.add(&Entry::Attempt(Box::new(begun)));
        text
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
