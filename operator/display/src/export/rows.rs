//! The trials as CSV (RFC 4180), a row each.

use super::Stage;
use csv::{Terminator, WriterBuilder};
use pawl_api::search::Recorded;
use pawl_search::history::State;
use pawl_search::space::Value;

const FIRST: [&str; 8] = ["stage", "trial", "state", "cause", "trained", "unit", "itemsPerSecond", "lastValue"];

/// Writes all stages; the columns of objectives and parameters are those of any stage.
pub fn render(stages: &[Stage<'_>]) -> String {
    let metrics = distinct(stages.iter().flat_map(Stage::metrics));
    let parameters = distinct(
        stages.iter().flat_map(|stage| &stage.history.space.parameters).map(|parameter| parameter.name.as_str()),
    );
    let mut writer = WriterBuilder::new().terminator(Terminator::Any(b'\n')).from_writer(Vec::new());
    let mut write =
        |record: Vec<String>| writer.write_record(record).expect("rows are of equal length, and memory has room");
    let header = FIRST.map(str::to_owned).into_iter();
    let header = header.chain(metrics.iter().map(|name| format!("value.{name}")));
    write(header.chain(parameters.iter().map(|name| format!("parameter.{name}"))).collect());
    for stage in stages {
        for recorded in &stage.history.trials {
            write(row(stage, recorded, &metrics, &parameters));
        }
    }
    let bytes = writer.into_inner().expect("memory has room");
    String::from_utf8(bytes).expect("texts are written as they are")
}

/// The texts in order, each once.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

fn row(stage: &Stage<'_>, recorded: &Recorded, metrics: &[&str], parameters: &[&str]) -> Vec<String> {
    let trial = &recorded.trial;
    let cause = if let State::Infeasible(cause) = trial.state { cause.name() } else { "" };
    let newest = trial.newest();
    let rate = recorded.items_per_second;
    let first = [
        stage.search.name.clone(),
        trial.number.to_string(),
        trial.state.name().to_owned(),
        cause.to_owned(),
        newest.map(|report| report.resource.to_string()).unwrap_or_default(),
        stage.unit().to_owned(),
        if rate > 0.0 { rate.to_string() } else { String::new() },
        newest.map(|report| report.value.to_string()).unwrap_or_default(),
    ];
    let value = |metric: &&str| {
        let index = stage.metrics().position(|known| known == *metric);
        index.and_then(|index| trial.values.get(index)).map(f64::to_string).unwrap_or_default()
    };
    let parameter = |name: &&str| trial.point.get(*name).map(Value::to_string).unwrap_or_default();
    first.into_iter().chain(metrics.iter().map(value)).chain(parameters.iter().map(parameter)).collect()
}
