//! Panels of the workload atft-gat-fan from Parquet files of pyarrow; `fixtures/atft/panel.py` says what they hold.

use pawl_contract::settings::Settings;
use pawl_graph::array::Data as Elements;
use pawl_workloads::atft::AtftGatFan;
use pawl_workloads::atft::config::{Config, DataConfig};
use pawl_workloads::atft::dataset::Dataset;
use pawl_workloads::atft::files::Files;
use pawl_workloads::{At, Batch, Request, Workload, WorkloadError};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const DAYS: usize = 170;
const CODES: usize = 26;
/// Places of the panel, of which the last two have no code.
const STOCKS: usize = 28;
const HORIZONS: [usize; 4] = [1, 5, 10, 20];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/atft/panel").join(name)
}

fn config(more: Value) -> Value {
    let directory = fixture("table");
    let mut config = json!({"preset": "smoke", "data": {
        "source": "Parquet", "directory": directory.to_string_lossy(), "marketFeatures": ["f03"],
        "stocks": STOCKS, "chunk": 20, "days": DAYS, "features": 4, "cacheMib": 1,
    }});
    pawl_workloads::layered::overlay(&mut config, &more);
    config
}

fn parsed(config: &Value) -> Result<Config, String> {
    Config::parse(config.as_object().unwrap(), &Map::new()).map_err(|error| error.to_string())
}

fn data(more: Value) -> DataConfig {
    parsed(&config(json!({ "data": more }))).unwrap().data
}

fn dataset(more: Value) -> Result<Dataset, String> {
    Dataset::read(&data(more), &|_, _, _| {}).map_err(|error| error.to_string())
}

/// Whether a row of day `d` and code number `i` exists, and whether it is valid.
fn exists(d: usize, i: usize) -> bool {
    !((5 * d + i) % 41 == 7 || (i == CODES - 1 && d < 100) || i >= CODES)
}

fn valid(d: usize, i: usize) -> bool {
    exists(d, i) && (d + 3 * i) % 29 != 4
}

fn feature(number: usize, d: usize, i: usize) -> Option<f32> {
    let value = match number {
        0 => ((37 * d + 101 * i) % 997) as f64 / 100.0,
        1 => ((53 * d + 211 * i) % 1009) as f64 / 50.0 - 10.0,
        2 => ((i * i + d) % 11) as f64,
        _ => (71 * d % 127) as f64 / 10.0,
    };
    let missing = [(d + i) % 23 == 5, d * i % 31 == 11, false, d % 37 == 3][number];
    (!missing).then_some(value as f32)
}

fn target(d: usize, i: usize, days: usize) -> f32 {
    (((13 * d + 29 * i + 17 * days) % 201) as f64 - 100.0) as f32 / 2000.0
}

/// The score of `value` among `all`, of float64.
fn score(value: f32, all: &[f32]) -> f64 {
    let all: Vec<f64> = all.iter().map(|value| f64::from(*value)).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let variance = all.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / all.len() as f64;
    ((f64::from(value) - mean) / (variance.sqrt() + 1e-8)).clamp(-5.0, 5.0)
}

/// The features of the specification: scores within the date, of the market over 60 days, 0 where there is none.
fn expected(number: usize, d: usize, i: usize) -> f64 {
    let Some(value) = feature(number, d, i).filter(|_| valid(d, i)) else { return 0.0 };
    let all: Vec<f32> = match number {
        3 => (d.saturating_sub(59)..=d).filter_map(|d| feature(3, d, i)).collect(),
        _ => (0..CODES).filter(|i| valid(d, *i)).filter_map(|i| feature(number, d, i)).collect(),
    };
    score(value, &all)
}

#[test]
fn features_are_those_of_the_files_as_scores() {
    let features = dataset(json!({})).unwrap().features().unwrap();
    assert_eq!(features.len(), DAYS * STOCKS * 4);
    for (at, got) in features.iter().enumerate() {
        let (d, i, number) = (at / 4 / STOCKS, at / 4 % STOCKS, at % 4);
        let wanted = expected(number, d, i);
        assert!((f64::from(*got) - wanted).abs() < 1e-5, "day {d}, code {i}, feature {number}: {got} is not {wanted}");
    }
    // Cells of each kind were compared.
    let cells = || (0..DAYS).flat_map(|d| (0..CODES).map(move |i| (d, i)));
    assert!(cells().any(|(d, i)| exists(d, i) && !valid(d, i)) && cells().any(|(d, i)| !exists(d, i)));
    assert!(cells().any(|(d, i)| valid(d, i) && feature(0, d, i).is_none()));
}

#[test]
fn stocks_are_chosen_where_they_are_valid_and_have_all_targets() {
    let dataset = dataset(json!({})).unwrap();
    for d in 0..DAYS {
        let wanted: Vec<u32> = (0..CODES).filter(|i| valid(d, *i) && d + 20 < DAYS).map(|i| i as u32).collect();
        assert_eq!(dataset.chosen(d), wanted, "day {d}");
        let (returns, scores) = (dataset.returns(d), dataset.scores(d, &wanted));
        for (place, stock) in wanted.iter().enumerate() {
            for (number, days) in HORIZONS.into_iter().enumerate() {
                let own = target(d, *stock as usize, days);
                assert_eq!(returns[*stock as usize * 4 + number], own, "day {d}, code {stock}");
                let all: Vec<f32> = wanted.iter().map(|stock| target(d, *stock as usize, days)).collect();
                assert!((f64::from(scores[place * 4 + number]) - score(own, &all)).abs() < 1e-5);
            }
        }
    }
}

/// The edges of a day are those of the returns before its block: targets of one day are the returns of the next.
#[test]
fn graphs_join_stocks_by_the_returns_of_valid_rows() {
    let day = dataset(json!({})).unwrap().graph(130);
    // 60 days until 120, with the mean in place of a missing return.
    let returns: Vec<Vec<Option<f64>>> = (60..120)
        .map(|d| (0..CODES).map(|i| valid(d - 1, i).then(|| f64::from(target(d - 1, i, 1)))).collect())
        .collect();
    let centred = |row: &Vec<Option<f64>>| {
        let known: Vec<f64> = row.iter().flatten().copied().collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        row.iter().map(|value| value.map_or(0.0, |value| value - mean)).collect::<Vec<f64>>()
    };
    let rows: Vec<Vec<f64>> = returns.iter().map(centred).collect();
    let column = |i: usize| rows.iter().map(|row| row[i]).collect::<Vec<f64>>();
    for node in 0..STOCKS as u32 {
        let sources: BTreeSet<u32> =
            day.sources.iter().zip(&day.targets).filter(|(_, target)| **target == node).map(|edge| *edge.0).collect();
        assert!(sources.contains(&node), "a loop at {node}");
        if node as usize >= CODES {
            assert_eq!(sources.len(), 1, "a place without a code has no neighbours");
            continue;
        }
        let own = column(node as usize);
        let mut others: Vec<(f64, u32)> = (0..CODES as u32)
            .filter(|other| *other != node)
            .map(|other| (pawl_workloads::atft::metrics::pearson(&own, &column(other as usize)), other))
            .collect();
        others.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, nearest) in &others[..4] {
            assert!(sources.contains(nearest), "{nearest} is near {node}: {sources:?}");
        }
    }
}

#[test]
fn windows_are_of_chosen_stocks_whatever_is_kept_in_memory() {
    let batches = |placement: &str, seed: u64| {
        let config = config(json!({"data": {"placement": placement}})).as_object().unwrap().clone();
        let settings: Settings = serde_json::from_value(json!({"batchPerGpu": 40, "evalBatch": 40})).unwrap();
        let job = AtftGatFan.prepare(&Request { config, settings, seed, rank: 0, world: 1 }).unwrap();
        let data = job.open(Path::new("unused"), &|_, _, _| {}).unwrap();
        let mut batch = Batch::default();
        data.train(At { items: 80, micro: 0 }, &mut batch).unwrap();
        assert_eq!(data.evaluations(), 3, "6 dates");
        data.evaluation(2).unwrap();
        assert!(data.test_split().is_some());
        (batch, data.resident().unwrap())
    };
    let ((host, none), (device, table)) = (batches("Host", 1), batches("Device", 1));
    assert!(none.is_empty() && host.inputs[1..] == device.inputs[1..]);
    let (Elements::F32(windows), Elements::U32(rows), Elements::F32(table)) =
        (host.inputs[0].data(), device.inputs[0].data(), table[0].1.data())
    else {
        panic!("windows, rows and a table")
    };
    for (sample, row) in rows.iter().map(|row| *row as usize).enumerate() {
        let (day, stock) = (row / STOCKS, row % STOCKS);
        assert!((68..97).contains(&day) && valid(day, stock), "day {day}, stock {stock}");
        for back in 0..8 {
            let (from, to) = ((row - back * STOCKS) * 4, (sample * 8 + 7 - back) * 4);
            assert_eq!(table[from..from + 4], windows[to..to + 4], "{back} days before day {day}");
        }
    }
    assert_ne!(host, batches("Host", 2).0);
}

#[test]
fn folds_walk_forward() {
    let splits = |fold: Value| {
        let data = data(json!({"days": 700, "fold": fold}));
        let [train, validation, test] = data.splits();
        assert!(train.start == 68 && train.end + 20 == validation.start, "{train:?} {validation:?}");
        (validation, test)
    };
    assert_eq!(splits(json!(null)).1.end, 679);
    let folds: Vec<_> = (1..=5).map(|fold| splits(json!(fold))).collect();
    // At least 252 days are trained on, and the periods follow each other to the last day with all returns.
    assert!(folds[0].0.start - 20 - 68 >= 252 && folds[4].0.end == 679);
    for pair in folds.windows(2) {
        assert!(pair[0].0.end == pair[1].0.start && pair[0].0.len() == pair[1].0.len());
    }
    assert!(folds.iter().all(|(_, test)| test.is_empty()), "there is no test");
}

#[test]
fn a_defect_names_the_file_the_row_and_the_remedy() {
    let read = |name: &str| {
        let directory = fixture(name);
        let data = DataConfig {
            directory: Some(directory.to_string_lossy().into_owned()),
            days: 2,
            ..data(json!({"marketFeatures": ["f03"]}))
        };
        let read = || -> Result<(), WorkloadError> {
            let (files, _) = Files::open(&data, &|_, _, _| {})?;
            (0..2).try_for_each(|day| files.day(day).map(|_| ()))?;
            Ok(())
        };
        read().expect_err(name).to_string()
    };
    for (name, parts) in [
        ("unsorted.parquet", ["row 5: date 2024-01-02, code 1300 follows 2024-01-02, 1301", "sort the rows"]),
        ("repeated.parquet", ["row 5: date 2024-01-02, code 1301 repeats", "leave out one of the two rows"]),
        ("null.parquet", ["column `code`, row group 0: row 5 has no value", "leave the row out"]),
        ("infinite.parquet", ["row 5: f01 is inf", "leave it empty"]),
        ("target.parquet", ["row 5: target_5d is -inf", "leave it empty"]),
        ("group.parquet", ["row 5: sector33 is 300", "from -128 to 127"]),
        ("market.parquet", ["row 5: f03 is 9.5, and 1.9 for another stock of 2024-01-02", "data.marketFeatures"]),
        ("type.parquet", ["column `f02`, row group 0: has type INT32", "write it as float32"]),
        ("year", ["row 0: date 2024-01-01 is in the partition year=2023", "move the row"]),
    ] {
        let error = read(&format!("damaged-{name}"));
        for part in parts.into_iter().chain([name]) {
            assert!(error.contains(part), "{name}: {part:?} in: {error}");
        }
    }
}

#[test]
fn a_table_that_does_not_fit_the_configuration_says_what_to_set() {
    for (more, parts) in [
        (json!({"days": 171}), ["has 170 dates, and the configuration uses 171", "lower data.days"]),
        (json!({"stocks": 24}), ["has 26 codes in 170 dates", "set data.stocks to at least 26"]),
        (json!({"chunk": 26}), [" valid stocks with all targets, and data.chunk is 26", "lower data.chunk"]),
        (json!({"features": 5}), ["column `f04`", "does not exist"]),
    ] {
        let read = dataset(more.clone()).and_then(|dataset| dataset.features().map_err(|error| error.to_string()));
        let error = read.map(|_| ()).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{more}: {part:?} in: {error}");
        }
    }
    for (more, parts) in [
        (json!({"data": {"directory": null}}), ["data.directory", "must name the directory"]),
        (json!({"data": {"source": "Generated"}}), ["data.directory", "only used with `source: Parquet`"]),
        (json!({"data": {"marketFeatures": ["f04"]}}), ["data.marketFeatures: f04", "f00 to f03"]),
        (json!({"data": {"fold": 6}}), ["data.fold: 6", "between 1 and 5"]),
        (json!({"data": {"fold": 1}}), ["data.days: 170", "between 461"]),
        (json!({"data": {"cacheMib": 0}}), ["data.cacheMib: 0", "between 1"]),
    ] {
        let error = parsed(&config(more.clone())).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{more}: {part:?} in: {error}");
        }
    }
}
