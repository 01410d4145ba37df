//! The text of a record, which only grows.

use super::{Begun, Entry, Launched, MAX_RECORD, Record};

/// The text of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Vec<u8>);

impl Text {
    /// The text that goes on after what `earlier` contains, if that is a record of the attempt that `begun` begins;
    /// else a new one.
    pub fn resumed(earlier: Option<Vec<u8>>, begun: Begun) -> Self {
        let same = |text: &Vec<u8>| Record::read(text).is_ok_and(|record| record.begun.is_same(&begun));
        let mut text = Self(earlier.filter(same).unwrap_or_default());
        if text.0.last().is_some_and(|last| *last != b'\n') {
            text.0.push(b'\n');
        }
        text.add(&Entry::Attempt(Box::new(begun)));
        text
    }

    /// Adds a line. Where there is no room for a launch, it is added without its curve; a line for which there still
    /// is no room is left out.
    pub fn add(&mut self, entry: &Entry) {
        let short = match entry {
            Entry::Launch(launch) => Some(Entry::Launch(Box::new(Launched {
                curve: Vec::new(),
                evaluations: Vec::new(),
                ..Launched::clone(launch)
            }))),
            Entry::Attempt(_) | Entry::End(_) => None,
        };
        for entry in std::iter::once(entry).chain(&short) {
            let Ok(mut line) = serde_json::to_vec(entry) else { continue };
            line.push(b'\n');
            if self.0.len() + line.len() <= MAX_RECORD {
                self.0.extend(line);
                return;
            }
        }
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
