//! Bars of the forex workload from Parquet files of pyarrow; `fixtures/forex/bars.py` says what they hold.

use pawl_contract::settings::Settings;
use pawl_graph::array::Data as Elements;
use pawl_workloads::forex::Forex;
use pawl_workloads::forex::bars::Bars;
use pawl_workloads::forex::config::{Config, DataConfig};
use pawl_workloads::forex::files;
use pawl_workloads::{At, Batch, Request, Workload};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Bars of EURUSD after gaps are filled, of the file and until the weekend, and the filled ones around the weekend.
const FILLED: usize = 2451;
const FRIDAY: usize = 1416;
const WEEKEND: usize = 48;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/forex/bars").join(name)
}

fn config(directory: &Path, bars: usize) -> Value {
    json!({"preset": "smoke", "data": {"source": "Parquet", "directory": directory.to_string_lossy(), "bars": bars}})
}

fn parsed(config: &Value) -> Result<Config, String> {
    Config::parse(config.as_object().unwrap(), &Map::new()).map_err(|error| error.to_string())
}

fn read(name: &str, bars: usize) -> Result<Bars, String> {
    // Fewer bars than training needs.
    let data = DataConfig { bars, ..parsed(&config(&fixture(name), 2000)).unwrap().data };
    files::read(&data).map_err(|error| error.to_string())
}

fn open_of(number: usize) -> f64 {
    let points = (37 * number % 101) as f64;
    ((1.1 + points / 1e5) * 1e5).round() / 1e5
}

#[test]
fn bars_of_a_week_are_those_of_the_files_and_gaps_repeat_the_last_price() {
    let bars = read("symbol=EURUSD", FILLED).unwrap();
    let close = |number: usize| ((open_of(number) + 0.00005) * 1e5).round() / 1e5;
    let missing = [100, 101, 700].into_iter().chain(FRIDAY..FRIDAY + WEEKEND).collect::<Vec<usize>>();
    let mut last = 0;
    for bar in 0..FILLED {
        let number = if bar < FRIDAY { bar } else { bar.saturating_sub(WEEKEND) };
        if missing.contains(&bar) {
            let price = close(last);
            let filled = [bars.open[bar], bars.high[bar], bars.low[bar], bars.close[bar], bars.volume[bar]];
            assert_eq!(filled, [price, price, price, price, 0.0], "bar {bar}");
        } else {
            let is = (bars.open[bar], bars.close[bar], bars.volume[bar]);
            assert_eq!(is, (open_of(number), close(number), (10 + number % 13) as f64), "bar {bar}");
            assert!(bars.low[bar] < bars.open[bar] && bars.high[bar] > bars.close[bar], "bar {bar}");
            last = number;
        }
    }
    let time = |bar: usize| (bars.day[bar], bars.minute[bar]);
    // Monday 00:00, Friday 21:55, Sunday 20:00 and 22:00 (of Monday's session), Monday 00:00.
    assert_eq!(
        [0, 1415, 1440, 1464, 1488].map(time),
        [(0.0, 0.0), (4.0, 1315.0), (0.0, 1200.0), (0.0, 1320.0), (0.0, 0.0)]
    );
}

/// The last completed bar of a timeframe is found by the number of a five-minute bar: it is one that has ended by the
/// clock.
#[test]
fn longer_bars_begin_at_multiples_of_their_length() {
    for bars in [FILLED, FILLED - 1, 2000] {
        let bars = read("symbol=EURUSD", bars).unwrap();
        for factor in [3, 12, 48] {
            let joined = bars.joined(factor);
            let minutes = joined.minute.iter().map(|minute| (minute + 5.0) % (5 * factor) as f64);
            assert_eq!(minutes.fold(0.0, f64::max), 0.0, "the last five minutes of a bar of {factor}");
        }
    }
    let (all, some) = (read("symbol=EURUSD", FILLED).unwrap(), read("symbol=EURUSD", 2400).unwrap());
    assert_eq!(some.close, all.close[48..2448], "the last bars, from a multiple of four hours on");
}

#[test]
fn times_can_be_timestamps_and_volumes_integers() {
    let (pound, euro) = (read("symbol=GBPUSD/tf=5m", 96).unwrap(), read("symbol=EURUSD", FILLED).unwrap());
    assert_eq!((&pound.close[..], &pound.volume[..]), (&euro.close[..96], &euro.volume[..96]));
}

#[test]
fn a_defect_names_the_file_the_row_and_the_remedy() {
    for (name, parts) in [
        ("damaged-unsorted.parquet", ["row 3: ts_utc 1704067200000 ms follows 1704067800000 ms", "sort the rows"]),
        ("damaged-repeated.parquet", ["row 7: ts_utc 1704069000000 ms repeats", "leave out one of the two rows"]),
        (
            "damaged-seconds.parquet",
            ["row 3: ts_utc 1704068101000 ms is not a multiple of five minutes", "write times"],
        ),
        ("damaged-nanoseconds.parquet", ["row 3: ts_utc is 1704067200000000000", "milliseconds since 1970"]),
        ("damaged-nan.parquet", ["row 3: high is NaN", "leave the row out"]),
        ("damaged-null.parquet", ["row 7: volume is NaN", "leave the row out"]),
        ("damaged-zero.parquet", ["row 3: low is 0", "leave the row out"]),
        ("damaged-above.parquet", ["row 7: open 1.10057 and close 1.2 are not between", "correct the row"]),
        ("damaged-sparse.parquet", ["423 of 433 bars are missing", "fewer gaps"]),
        ("symbol=GBPUSD", ["has 96 bars, and the configuration uses 2000", "lower data.bars"]),
        ("symbol=EURUSD/tf=15m/part-0.parquet", ["has 1 bars", "lower data.bars"]),
        (".", ["several symbols (none, EURUSD)", "name the directory of one"]),
    ] {
        let error = read(name, 2000).expect_err(name);
        for part in parts {
            assert!(error.contains(part), "{name}: {part:?} in: {error}");
        }
    }
}

#[test]
fn the_configuration_requires_a_directory_for_files_only() {
    let missing = parsed(&json!({"data": {"source": "Parquet"}})).unwrap_err();
    assert!(missing.contains("data.directory") && missing.contains("must name Parquet files"), "{missing}");
    let unused = parsed(&json!({"data": {"directory": "bars"}})).unwrap_err();
    assert!(unused.contains("data.directory") && unused.contains("source: Parquet"), "{unused}");
}

#[test]
fn windows_are_cut_from_the_bars_of_files() {
    let config = config(&fixture("symbol=EURUSD"), FILLED).as_object().unwrap().clone();
    let request = Request { config, settings: Settings::default(), seed: 42, rank: 0, world: 1 };
    let job = Forex.prepare(&request).unwrap();
    let data = job.open(Path::new("unused"), &|_, _, _| {}).unwrap();
    let mut batch = Batch::default();
    data.train(At { items: 0, micro: 0 }, &mut batch).unwrap();
    for (array, decl) in batch.inputs.iter().zip(&job.programs().train[0].inputs) {
        if let Elements::F32(values) = array.data() {
            assert!(values.iter().all(|value| value.is_finite()), "{}", decl.name);
            assert!(decl.name == "kl_weight" || values.iter().any(|value| *value != 0.0), "{}", decl.name);
        }
    }
    assert!(data.evaluations() > 0);
}
