//! The chain of a model: the parts that a checkpoint's manifest names, as the trainer that resumed it reports them.
//!
//! A shell does not see all that an attempt does: several in a row may train, save and be lost before anything is
//! observed. The manifest of each checkpoint names the launches that trained it, and what a launch trains with is in
//! the status from before it was started: in the segment that it was to train, or, if that is not a part of the model
//! as far as it is known, among the unseen.

use pawl_api::status::{SegmentStatus, TrainingStatus, differing};
use pawl_contract::checkpoint::{MAX_REPORTED_PARTS, TrainedPart};

/// Maximum number of unseen descriptions; the oldest are dropped. A part that is not known any more is said to be so.
const MAX_UNSEEN: usize = 8;

/// Whether two segments were trained with the same. Their attempts and their items do not count.
pub(crate) fn same(a: &SegmentStatus, b: &SegmentStatus) -> bool {
    (&a.workload, &a.numerics, &a.phases) == (&b.workload, &b.numerics, &b.phases)
        && differing(&a.settings, &b.settings).is_empty()
}

/// Notes that `launches` train with what a segment describes.
pub(crate) fn add_launches(segment: &mut SegmentStatus, launches: &[String]) {
    for launch in launches {
        segment.launches.retain(|known| known != launch);
        segment.launches.push(launch.clone());
    }
    segment.launches.drain(..segment.launches.len().saturating_sub(MAX_REPORTED_PARTS));
}

/// Keeps the descriptions of `before` that are not in the segments any more: their attempts may have saved what nobody
/// saw.
pub(crate) fn keep_unseen(training: &mut TrainingStatus, before: &[SegmentStatus]) {
    let is_kept = |old: &SegmentStatus| {
        let has = |new: &SegmentStatus| old.launches.iter().all(|launch| new.launches.contains(launch));
        old.launches.is_empty() || training.segments.iter().any(|new| same(new, old) && has(new))
    };
    let gone: Vec<SegmentStatus> = before.iter().filter(|old| !is_kept(old)).cloned().collect();
    for old in gone {
        match training.unseen.iter_mut().find(|known| same(known, &old)) {
            Some(known) => add_launches(known, &old.launches),
            None => training.unseen.push(SegmentStatus { from_items: 0, to_items: 0, merged: false, ..old }),
        }
    }
    let segments = &training.segments;
    let is_part = |launch: &String| segments.iter().any(|part| part.launches.contains(launch));
    training.unseen.retain(|known| !known.launches.iter().all(is_part));
    training.unseen.drain(..training.unseen.len().saturating_sub(MAX_UNSEEN));
}

/// Whether a chain ends with a launch of the newest segment: then the trainer has reported it of the present attempt.
pub(crate) fn is_of(chain: &[TrainedPart], segments: &[SegmentStatus]) -> bool {
    match (chain.last(), segments.last()) {
        (Some(part), Some(last)) => last.launches.contains(&part.launch),
        _ => false,
    }
}

/// The segments of a model of `items` items with this chain. The newest of `segments` is the present attempt's, whose
/// trainer is of `build` and has resumed at `resumed` items.
pub(crate) fn follow(
    segments: &[SegmentStatus],
    unseen: &[SegmentStatus],
    chain: &[TrainedPart],
    (items, resumed): (u64, Option<u64>),
    build: &str,
) -> Vec<SegmentStatus> {
    let mut found = Vec::new();
    let (Some(first), Some(newest), Some(own)) = (chain.first(), chain.last(), segments.last()) else { return found };
    // The oldest parts are not reported: what is known of them may be of another chain.
    for part in covering(segments, (0, first.from_items)) {
        let merged = part.merged || !part.launches.is_empty();
        push(&mut found, SegmentStatus { merged, ..part });
    }
    for pair in chain.windows(2) {
        for part in described(segments, unseen, &pair[0], pair[1].from_items) {
            push(&mut found, part);
        }
    }
    let end = items.max(newest.from_items);
    let begin = resumed.unwrap_or(newest.from_items).clamp(newest.from_items, end);
    for part in described(segments, unseen, newest, begin) {
        push(&mut found, part);
    }
    let trainer = if build.is_empty() { own.trainer.clone() } else { build.to_owned() };
    let last = SegmentStatus { from_items: begin, to_items: end, trainer, merged: false, ..own.clone() };
    append(&mut found, last);
    found
}

/// What trained a part of a chain, which ends at `end`.
fn described(segments: &[SegmentStatus], unseen: &[SegmentStatus], part: &TrainedPart, end: u64) -> Vec<SegmentStatus> {
    let of_launch = |all: &[SegmentStatus]| -> Vec<SegmentStatus> {
        all.iter().filter(|known| known.launches.contains(&part.launch)).cloned().collect()
    };
    let mut known = of_launch(segments);
    if known.is_empty() {
        known = of_launch(unseen);
    }
    if known.is_empty() {
        // Recorded by an earlier version, or merged with others. Anything else was trained by other launches than this
        // one.
        let vague = |known: &&SegmentStatus| known.launches.is_empty() || known.merged;
        let vague: Vec<SegmentStatus> = segments.iter().filter(vague).cloned().collect();
        return covering(&vague, (part.from_items, end));
    }
    // Several builds of the trainer, or names of phases: each until the next one began.
    let begins = |index: usize| match index {
        0 => part.from_items,
        _ => known.get(index).map_or(end, |it| it.from_items.clamp(part.from_items, end)),
    };
    let clip = |(index, it): (usize, &SegmentStatus)| SegmentStatus {
        from_items: begins(index),
        to_items: begins(index + 1),
        ..it.clone()
    };
    known.iter().enumerate().map(clip).collect()
}

/// What `segments` say of these items; nothing is known of the rest.
fn covering(segments: &[SegmentStatus], (from, to): (u64, u64)) -> Vec<SegmentStatus> {
    let unknown =
        |from_items, to_items| SegmentStatus { from_items, to_items, merged: true, ..SegmentStatus::default() };
    let (mut parts, mut at) = (Vec::new(), from);
    for known in segments {
        let (begin, end) = (known.from_items.max(at), known.to_items.min(to));
        if begin < end {
            parts.push(unknown(at, begin));
            parts.push(SegmentStatus { from_items: begin, to_items: end, ..known.clone() });
            at = end;
        }
    }
    parts.push(unknown(at, to.max(at)));
    parts
}

/// Adds a part that has items.
fn push(parts: &mut Vec<SegmentStatus>, part: SegmentStatus) {
    if part.from_items < part.to_items {
        append(parts, part);
    }
}

/// Adds a part; to the one before, if the same trained it.
fn append(parts: &mut Vec<SegmentStatus>, part: SegmentStatus) {
    match parts.last_mut().filter(|last| same(last, &part) && last.trainer == part.trainer) {
        Some(last) => {
            (last.to_items, last.attempt) = (part.to_items, part.attempt);
            last.merged |= part.merged;
            add_launches(last, &part.launches);
        }
        None => parts.push(part),
    }
}
