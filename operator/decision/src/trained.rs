//! What trained the model: the record in the status, and what a change of the spec does to a training that has begun.
//!
//! A model is never presented as trained with what it was not. The record is a list of segments, each with the
//! workload, the settings, the seed and the build of the trainer that trained these items. When the spec asks for
//! something else than the last segment, the training continues with another segment, or a new one begins in a
//! directory of its own, beside the old one:
//!
//! | changed since the last segment | under way | finished |
//! |---|---|---|
//! | workload, its config, command or arguments; the first seed | new training | new training |
//! | settings that change the numerics | `train.onChange`, default `Continue` | `train.onChange`, default `Restart` |
//! | other settings | continues | nothing |
//! | the script, where the shell knows its build before it runs | continues | new training |
//! | `train.items`, `train.epochs` | continues | continues |
//!
//! What training itself reverts, or replaces by a fallback, always continues from the last good checkpoint.

use crate::chain::{add_launches, follow, is_of, keep_unseen, same};
use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::launch::seed;
use crate::observed::AttemptFacts;
use crate::reason::Reason;
use crate::revision::{accepted, judged_fold, revision};
use crate::storage::outlives_pods;
use crate::task::Task;
use crate::trainer::short;
use pawl_api::spec::OnChange;
use pawl_api::status::{EarlierTraining, Purpose, SegmentStatus, Stage, TrainingStatus, differing};
use pawl_contract::checkpoint::training_directory;
use pawl_contract::plausible;
use pawl_contract::report::truncated;
use pawl_contract::settings::Settings;
use serde_json::json;
use std::collections::BTreeMap;

/// Maximum number of segments of a training; the oldest are merged.
const MAX_SEGMENTS: usize = 16;
/// Maximum number of segments of an earlier training.
const MAX_EARLIER_SEGMENTS: usize = 4;
/// Maximum number of earlier trainings in the status.
const MAX_EARLIER: usize = 4;
/// Maximum number of settings of a segment, and maximum length of the value of one, bytes.
const MAX_SETTINGS: usize = 48;

/// Hash of what is trained, whatever the settings.
fn workload(draft: &Draft<'_>) -> String {
    let workload = &draft.spec.workload;
    let what = json!([workload.name, workload.config, workload.command, workload.args]);
    fingerprint(&json!([what, seed(draft.spec, 0)]), 12)
}

/// Hash of the settings on which the model depends.
fn numerics(draft: &Draft<'_>, settings: &Settings) -> String {
    fingerprint(&pawl_api::numerics(settings, draft.spec.trainer.world_size()), 12)
}

/// As [`numerics`], of the settings as a user has them: without what training reverted, or replaced by a fallback.
fn wanted(draft: &Draft<'_>) -> String {
    let judged =
        |phase: &pawl_api::status::PhaseStatus| accepted(phase) || phase.held && !Reason::Pinned.is(&phase.reason);
    numerics(draft, &draft.with_winners(judged_fold(draft.spec, &draft.status, |_, phase| judged(phase))))
}

/// The settings as a segment names them, with the length of the training: a learning rate that decays does so over all
/// of it.
fn described(draft: &Draft<'_>, settings: &Settings) -> BTreeMap<String, String> {
    let texts = settings.flat().into_iter().take(MAX_SETTINGS);
    let bounded = |(name, value): (String, String)| {
        (truncated(&name, MAX_SETTINGS).to_owned(), truncated(&value, MAX_SETTINGS).to_owned())
    };
    texts.map(bounded).chain(draft.spec.train.length()).collect()
}

/// The segment that `settings` would train from `items` on.
fn segment(draft: &Draft<'_>, settings: &Settings, attempt: &str, items: u64) -> SegmentStatus {
    SegmentStatus {
        from_items: items,
        to_items: items,
        workload: workload(draft),
        numerics: numerics(draft, settings),
        settings: described(draft, settings),
        phases: draft.accepted_names(),
        seed: seed(draft.spec, 0),
        trainer: String::new(),
        attempt: attempt.to_owned(),
        launches: Vec::new(),
        merged: false,
    }
}

/// Records a training that an earlier version has begun: all of it, if the settings are still those with which it
/// trained.
fn adopt(draft: &mut Draft<'_>, settings: &Settings) {
    let Some(training) = &draft.status.training else { return };
    let items = training.measured.items;
    if training.segments.is_empty() && items > 0 && training.revision == revision(settings) {
        let attempt = draft.training_attempt().map_or("", |attempt| attempt.name.as_str());
        let whole = SegmentStatus { from_items: 0, to_items: items, ..segment(draft, settings, attempt, 0) };
        let wanted = wanted(draft);
        if let Some(training) = draft.status.training.as_mut() {
            training.segments.push(whole);
            training.wanted = wanted;
        }
    }
}

/// Whether a segment was trained by the script as it is now; also if that is not known.
fn has_build(draft: &Draft<'_>, segment: &SegmentStatus) -> bool {
    let unknown = draft.spec.workload.command.is_empty() || draft.build.is_empty() || segment.trainer.is_empty();
    unknown || segment.trainer == short(draft.build)
}

/// Why the training is not continued, if the spec asks for another model than it trains.
fn cause(draft: &Draft<'_>, settings: &Settings) -> Option<String> {
    let training = draft.status.training.as_ref()?;
    let last = training.segments.last()?;
    if last.workload != workload(draft) {
        return Some("the workload, its command or the seed has changed".to_owned());
    }
    if !training.completed.is_empty() && !has_build(draft, last) {
        return Some("the script has changed".to_owned());
    }
    if last.numerics == numerics(draft, settings) {
        return None;
    }
    let restarts = match (draft.spec.train.on_change, training.completed.is_empty()) {
        (Some(OnChange::Continue), _) | (None, true) => false,
        (Some(OnChange::Restart) | None, false) => true,
        (Some(OnChange::Restart), true) => training.wanted != wanted(draft),
    };
    restarts.then(|| format!("the settings have changed ({})", changes(&last.settings, &described(draft, settings))))
}

/// The settings that differ, in a message.
fn changes(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> String {
    let side = |all: &BTreeMap<String, String>, name: &str| all.get(name).map_or("default", String::as_str).to_owned();
    let text = |name: &str| format!("{name}: {}, was {}", side(after, name), side(before, name));
    let texts: Vec<String> = differing(before, after).into_iter().map(text).collect();
    if texts.is_empty() { "items of a step".to_owned() } else { texts.join("; ") }
}

/// Begins a training beside the one so far when the spec asks for another model; returns to an earlier one that is this
/// model.
pub(crate) fn renew(draft: &mut Draft<'_>, settings: &Settings) {
    adopt(draft, settings);
    let Some(cause) = cause(draft, settings) else { return };
    let (workload, numerics) = (workload(draft), numerics(draft, settings));
    let number = draft.status.attempts.saturating_add(1);
    let Some(mut old) = draft.status.training.take() else { return };
    let mut earlier = std::mem::take(&mut old.earlier);
    let wanted = |known: &EarlierTraining| {
        known
            .segments
            .last()
            .is_some_and(|last| (&last.workload, &last.numerics) == (&workload, &numerics) && has_build(draft, last))
    };
    let returned = earlier.iter().position(wanted).map(|index| earlier.remove(index));
    let place = |directory: &Option<String>| directory.clone().unwrap_or_else(|| "the storage itself".to_owned());
    let (items, before) = (old.measured.items, place(&old.directory));
    let (storage, stop_seconds) = (old.storage.clone(), old.stop_seconds);
    earlier.push(retired(old));
    earlier.drain(..earlier.len().saturating_sub(MAX_EARLIER));
    let new = match returned {
        Some(known) => resumed(known),
        None => TrainingStatus { directory: Some(training_directory(number)), ..TrainingStatus::default() },
    };
    let message = format!(
        "{cause}: the model so far, of {items} items, stays in {before}, and is no longer trained; training is in {}",
        place(&new.directory)
    );
    draft.status.training = Some(TrainingStatus { storage, stop_seconds, earlier, ..new });
    draft.status.retry.take_if(|retry| retry.task == Task::Train.to_string());
    draft.normal(Reason::TrainingRestarted, message, None);
}

/// A training that is no longer continued, for the status.
fn retired(training: TrainingStatus) -> EarlierTraining {
    let mut segments = training.segments;
    merge(&mut segments, MAX_EARLIER_SEGMENTS);
    EarlierTraining {
        directory: training.directory,
        steps: training.measured.steps,
        items: training.measured.items,
        last_checkpoint: training.last_checkpoint,
        best_checkpoint: training.best_checkpoint,
        completed: training.completed,
        resume_not_after_items: training.resume_not_after_items,
        segments,
    }
}

/// An earlier training that is continued.
fn resumed(earlier: EarlierTraining) -> TrainingStatus {
    let mut training = TrainingStatus {
        directory: earlier.directory,
        last_checkpoint: earlier.last_checkpoint,
        best_checkpoint: earlier.best_checkpoint,
        completed: earlier.completed,
        resume_not_after_items: earlier.resume_not_after_items,
        segments: earlier.segments,
        ..TrainingStatus::default()
    };
    (training.measured.steps, training.measured.items) = (earlier.steps, earlier.items);
    training
}

/// Merges the oldest segments until there are `most`.
fn merge(segments: &mut Vec<SegmentStatus>, most: usize) {
    while segments.len() > most.max(1) {
        let oldest = segments.remove(0);
        segments[0].from_items = oldest.from_items;
        segments[0].merged = true;
    }
}

/// Opens the segment that the attempt, which is about to start, will train.
pub(crate) fn begin(draft: &mut Draft<'_>) {
    let Some(attempt) = draft.training_attempt() else { return };
    let limit = draft.status.training.as_ref().and_then(|training| training.resume_not_after_items);
    // The checkpoints of a script that is followed are not known: it is taken to continue where it was, until it
    // reports.
    let followed = draft.spec.workload.monitor.is_some();
    let reached = draft.status.training.as_ref().and_then(|training| training.segments.last());
    let reached = reached.filter(|_| followed).map(|last| last.to_items);
    let newest = attempt.resumes.as_ref().map(|newest| newest.items).or(reached);
    let from = newest.filter(|_| outlives_pods(draft.job)).unwrap_or(0).min(limit.unwrap_or(u64::MAX));
    let (name, launches, settings) = (attempt.name.clone(), attempt.launches.clone(), draft.tuned());
    let (new, wanted) = (SegmentStatus { launches, ..segment(draft, &settings, &name, from) }, wanted(draft));
    let Some(training) = draft.status.training.as_mut() else { return };
    training.wanted = wanted;
    let before = training.segments.clone();
    open(&mut training.segments, new, from);
    keep_unseen(training, &before);
}

/// Opens the segment `new`, which begins at `from` items.
fn open(segments: &mut Vec<SegmentStatus>, new: SegmentStatus, from: u64) {
    // What is trained again is not part of the model. A segment of which nothing was seen may be: the trainer says
    // where it resumes.
    segments.retain(|segment| segment.from_items <= from);
    // Of attempts in a row with the same, two are enough: what those before the newest have trained, and nobody saw, is
    // the first's.
    let repeats = matches!(&segments[..], [.., a, b] if a.from_items == a.to_items && same(a, b));
    match segments.last_mut() {
        Some(last) => {
            last.to_items = last.to_items.min(from);
            let unseen = last.from_items == last.to_items;
            if same(last, &new) && (!unseen || repeats) {
                add_launches(last, &new.launches);
                last.attempt = new.attempt;
                return;
            }
        }
        None if from > 0 => {
            // Trained by an earlier version with settings that are not known.
            let unknown = SegmentStatus { to_items: from, ..SegmentStatus::default() };
            segments.push(unknown);
        }
        None => {}
    }
    segments.push(new);
    merge(segments, MAX_SEGMENTS);
}

/// Limits where the training of an attempt resumes, which has diverged after `items`; it may be an earlier one by now.
pub(crate) fn limit(draft: &mut Draft<'_>, attempt: &str, items: u64) {
    let Some(training) = draft.status.training.as_mut() else { return };
    let of_attempt = |segments: &[SegmentStatus]| segments.last().is_some_and(|last| last.attempt == attempt);
    let limit = if of_attempt(&training.segments) {
        Some(&mut training.resume_not_after_items)
    } else {
        let mut earlier = training.earlier.iter_mut().filter(|earlier| of_attempt(&earlier.segments));
        earlier.next().map(|earlier| &mut earlier.resume_not_after_items)
    };
    if let Some(limit) = limit {
        *limit = Some(limit.map_or(items, |old| old.min(items)));
    }
}

/// Lifts the limit with which the present attempt was started, when it has trained: the damaged checkpoints were
/// deleted before its first step, or moved aside, and those that it writes are not damaged, even if its settings are
/// not in effect any more. A limit that was set since remains.
pub(crate) fn lift(draft: &mut Draft<'_>) {
    let attempt = draft.training_attempt_mut();
    let discards = attempt.and_then(|attempt| attempt.discards_after_items.take());
    if let (Some(training), Some(_)) = (draft.status.training.as_mut(), discards) {
        training.resume_not_after_items.take_if(|limit| Some(*limit) == discards);
    }
}

/// Whether what this attempt reports is about another training than the present one, which began since it was started.
pub(crate) fn is_stale(draft: &Draft<'_>, attempt: &str) -> bool {
    let Some(training) = &draft.status.training else { return false };
    match training.segments.last() {
        Some(last) => !last.attempt.is_empty() && last.attempt != attempt,
        None => training.directory.is_some(),
    }
}

/// Extends the newest segment to what its attempt has trained.
pub(crate) fn extend(draft: &mut Draft<'_>, facts: &AttemptFacts) {
    let trains = draft.attempt(&facts.name).is_some_and(|attempt| attempt.purpose == Purpose::Train);
    let progress = facts.progress.iter().filter(|progress| plausible::progress(progress).is_none());
    let results = facts.results.iter().filter(|result| plausible::of_result(result).is_none());
    let progress = progress.map(|it| (it.items, it.step, it.resumed_items, &it.trained[..]));
    let results = results.map(|it| (it.measured.items, it.measured.steps, it.resumed_items, &it.trained[..]));
    let (items, steps, resumed, chain) = results.chain(progress).max().unwrap_or_default();
    let build = draft.status.trainer.as_ref().map(|trainer| short(&trainer.build).to_owned()).unwrap_or_default();
    let Some(training) = draft.status.training.as_mut() else { return };
    if !trains || items == 0 || training.segments.last().is_none_or(|last| last.attempt != facts.name) {
        return;
    }
    let before = training.segments.clone();
    if is_of(chain, &before) {
        training.segments = follow(&before, &training.unseen, chain, (items, resumed), &build);
        merge(&mut training.segments, MAX_SEGMENTS);
    } else {
        grow(&mut training.segments, (items, steps, resumed), build);
    }
    keep_unseen(training, &before);
}

/// Extends the newest segment, whose trainer does not report the chain of its model.
fn grow(segments: &mut Vec<SegmentStatus>, (items, steps, resumed): (u64, u64, Option<u64>), build: String) {
    begin_at(segments, resumed.map(|resumed| resumed.min(items)));
    let Some(last) = segments.last_mut() else { return };
    if last.trainer.is_empty() || last.from_items == last.to_items {
        last.trainer = build;
    } else if last.trainer != build {
        let new = SegmentStatus { from_items: last.to_items, trainer: build, merged: false, ..last.clone() };
        segments.push(new);
        merge(segments, MAX_SEGMENTS);
    }
    // It resumed from an older checkpoint than the newest known one.
    if let Some(mut last) = segments.pop() {
        if items < last.from_items {
            last.from_items = items - items.checked_div(steps).unwrap_or(0);
        }
        segments.retain(|segment| segment.from_items < last.from_items);
        if let Some(before) = segments.last_mut() {
            before.to_items = before.to_items.min(last.from_items);
        } else {
            last.from_items = 0;
        }
        last.to_items = last.to_items.max(items);
        segments.push(last);
    }
}

/// Moves the beginning of the newest segment to where its trainer resumed. What was trained before, and not seen,
/// belongs to the segment before: its attempt was the last one that may have written a checkpoint.
fn begin_at(segments: &mut Vec<SegmentStatus>, resumed: Option<u64>) {
    let Some(mut last) = segments.pop() else { return };
    let is_new = last.from_items == last.to_items;
    match resumed {
        Some(resumed) if is_new || resumed < last.from_items => {
            let known = segments.iter().take_while(|segment| segment.from_items < resumed).count();
            let unseen: Vec<SegmentStatus> = segments.drain(known..).collect();
            match segments.last_mut() {
                Some(before) => {
                    before.to_items = resumed;
                    // One that resumed earlier than was known, and was lost before it said so, may have trained a part
                    // of it.
                    before.merged |= unseen.iter().any(|part| part.from_items == part.to_items && !same(part, before));
                }
                None if resumed > 0 => segments.push(SegmentStatus { to_items: resumed, ..SegmentStatus::default() }),
                None => {}
            }
            last.to_items = if is_new { resumed } else { last.to_items };
            last.from_items = resumed;
        }
        Some(_) | None => segments.retain(|segment| segment.from_items < segment.to_items),
    }
    if let Some(before) = segments.last().filter(|before| same(before, &last) && before.trainer == last.trainer) {
        last.from_items = before.from_items;
        segments.pop();
    }
    segments.push(last);
}

/// Says that an edited job has nothing to train, once for each edit: when the job, or its spec, was not done before.
pub(crate) fn nothing_to_do(draft: &mut Draft<'_>, settings: &Settings) {
    let said = |draft: &Draft<'_>| draft.events.iter().any(|event| Reason::TrainingDone.is(&event.reason));
    let news = draft.spec_is_new || draft.status.stage != Stage::Complete;
    let Some(training) = draft.status.training.as_ref().filter(|_| news && !said(draft)) else { return };
    let items = training.measured.items;
    let last = training.segments.last();
    let present = described(draft, settings);
    let differs = last.filter(|last| !differing(&last.settings, &present).is_empty());
    let note = differs.map(|last| {
        let changed = changes(&last.settings, &present);
        let why = if last.numerics == numerics(draft, settings) {
            "which keep the numerics"
        } else {
            "train.onChange: Continue"
        };
        format!("; it was not trained with the present settings ({changed}; {why})")
    });
    let message = format!("already trained: nothing to do; the model has {items} items{}", note.unwrap_or_default());
    draft.normal(Reason::TrainingDone, message, None);
}
