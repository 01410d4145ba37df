//! The records of a run. Numbers of fields are those of `wandb/proto/wandb_internal.proto` of
//! <https://github.com/wandb/wandb>.

use super::Place;
use super::log::Log;
use crate::tracking::protobuf::{Wire, key, text, varint};
use jiff::Timestamp;
use pawl_display::track::{Run, RunState};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The oldest wandb with which reading what is written here was tried.
const OLDEST_READER: &str = "0.18.0";

/// The values of all metrics at each step, as wandb logs them. A step is a number of items.
pub(super) type Rows = BTreeMap<u64, Map<String, Value>>;

pub(super) fn rows(run: &Run, began: Timestamp) -> Rows {
    let mut rows = Rows::new();
    for (name, curve) in &run.metrics {
        for (step, value) in curve {
            let empty = || Map::from_iter(own(*step, began));
            rows.entry(*step).or_insert_with(empty).insert(name.clone(), (*value).into());
        }
    }
    rows
}

/// What wandb itself writes into each row.
fn own(step: u64, began: Timestamp) -> [(String, Value); 2] {
    [("_step".to_owned(), step.into()), ("_timestamp".to_owned(), began.as_second().into())]
}

/// The settings, numbers and booleans as such.
pub(super) fn config(run: &Run) -> Map<String, Value> {
    let typed = |value: &String| match serde_json::from_str(value) {
        Ok(typed @ (Value::Number(_) | Value::Bool(_))) => typed,
        _ => value.as_str().into(),
    };
    run.settings.iter().map(|(name, value)| (name.clone(), typed(value))).collect()
}

/// The last value of each metric, and the verdict with its explanation.
pub(super) fn summary(run: &Run, rows: &Rows) -> Map<String, Value> {
    let last = rows.values().flatten().map(|(name, value)| (name.clone(), value.clone()));
    last.chain(run.tags.iter().map(|(name, said)| ((*name).to_owned(), said.as_str().into()))).collect()
}

/// The file of a run. Without a result yet, it has no end.
pub(super) fn encode(place: &Place<'_>, id: &str, run: &Run, rows: &Rows, began: Timestamp) -> Vec<u8> {
    let version = [field(1, env!("CARGO_PKG_VERSION")), field(2, OLDEST_READER)].concat();
    let mut records = vec![text(21, &text(1, &version)), answered("run", &text(17, &of_run(place, id, run, began)))];
    let row = |(step, row): (&u64, &Map<String, Value>)| text(2, &[items(row), text(2, &number(1, *step))].concat());
    records.extend(rows.iter().map(row));
    records.push(text(3, &items(&summary(run, rows))));
    let code = match run.state {
        RunState::Running => None,
        RunState::Finished => Some(0),
        RunState::Failed => Some(1),
    };
    // `exit`, `final` and `footer`.
    let end = |code| [answered("exit", &text(18, &number(1, code))), text(20, &[]), text(22, &[])];
    records.extend(code.into_iter().flat_map(end));
    let mut log = Log::new();
    let numbered = (1..).zip(records);
    numbered.for_each(|(count, record)| log.add(&[number(1, count), record].concat()));
    log.into_bytes()
}

/// A record with the name under which its sender waits for an answer. `wandb sync` 0.28 waits for one without a limit
/// where none is asked for.
fn answered(mailbox: &str, record: &[u8]) -> Vec<u8> {
    [record, &text(16, &field(4, mailbox))].concat()
}

/// A `RunRecord`.
fn of_run(place: &Place<'_>, id: &str, run: &Run, began: Timestamp) -> Vec<u8> {
    let mut fields = field(1, id);
    fields.extend(place.entity.iter().flat_map(|entity| field(2, entity)));
    fields.extend(field(3, place.project));
    fields.extend(text(4, &items(&config(run))));
    fields.extend(field(6, &place.group));
    fields.extend(field(7, run.kind()));
    fields.extend(field(8, &run.name));
    fields.extend(text(17, &number(1, began.as_second().unsigned_abs())));
    fields
}

/// Names and values, which are JSON: the first field of a `ConfigRecord`, a `HistoryRecord` and a `SummaryRecord`.
fn items(values: &Map<String, Value>) -> Vec<u8> {
    let item = |(name, value): (&String, &Value)| text(1, &[field(1, name), field(16, &value.to_string())].concat());
    values.iter().flat_map(item).collect()
}

fn field(number: u64, content: &str) -> Vec<u8> {
    text(number, content.as_bytes())
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [key(field, Wire::Varint), varint(value)].concat()
}
