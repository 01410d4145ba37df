//! Five-minute bars from Parquet files.

use super::bars::{Bars, MINUTES};
use super::config::{DataConfig, TIMEFRAMES};
use crate::store::StoreError;
use crate::store::parquet::{Part, Reader, Table, Timestamp};
use std::fmt::Display;
use std::iter::StepBy;
use std::ops::Range;
use std::path::Path;

/// The column of times, at which bars begin, and those of prices and volumes.
const TIME: &str = "ts_utc";
const COLUMNS: [&str; 5] = ["open", "high", "low", "close", "volume"];
/// Milliseconds of a bar, and of a day.
const STEP: i64 = MINUTES as i64 * 60_000;
const DAY: i64 = 86_400_000;
/// Times before 2200, in milliseconds.
const TIMES: Range<i64> = 0..7_258_118_400_000;
/// Bars of the longest timeframe: a group begins at a multiple of its time.
const GROUP: usize = TIMEFRAMES[TIMEFRAMES.len() - 1].factor;
/// Largest share of bars that no file has.
const MOST_FILLED: f64 = 0.25;
/// Most bars that are read.
const MOST: u64 = 20_000_000;

/// Reads the last bars of `config.directory`: exactly `config.bars`.
///
/// Longer timeframes begin at multiples of their length in UTC. For that, every four hours with at least one bar get
/// all 48: a bar that is missing repeats the last price, with no volume. Four hours without any bar, such as those of a
/// weekend, are left out.
///
/// # Errors
/// [`StoreError::Source`], naming the file, the row and the remedy: when a column is missing or has another type, when
/// times are not sorted, repeat or are not multiples of five minutes, when a price or volume is impossible or not a
/// number, when more than a quarter of the bars are missing, and when there are too few.
pub fn read(config: &DataConfig) -> Result<Bars, StoreError> {
    let directory = Path::new(config.directory.as_deref().unwrap_or("."));
    let table = Table::open(directory)?;
    let files = of_one_symbol(directory, table.files())?;
    let rows: u64 = files.iter().map(|file| file.rows()).sum();
    if rows > MOST {
        return Err(wrong(
            directory,
            format!("has {rows} bars, and at most {MOST} are read: name a part of the files"),
        ));
    }
    let mut rows = Rows::default();
    for file in files {
        rows.append(file)?;
    }
    let all: usize = rows.groups().map(|group| group.count()).sum();
    let missing = all - rows.times.len();
    if missing as f64 > MOST_FILLED * all as f64 {
        let most = MOST_FILLED * 100.0;
        return Err(wrong(
            directory,
            format!(
                "{missing} of {all} bars are missing, and at most {most} % may be: choose a symbol with fewer gaps, or a later start"
            ),
        ));
    }
    let filled = rows.filled();
    tracing::info!(bars = rows.bars.len(), missing, "read the bars of {}", directory.display());
    // The first bar that is used begins a group, so that up to 47 of the last bars are not.
    let start = filled.len().checked_sub(config.bars).map(|spare| spare / GROUP * GROUP);
    let Some(start) = start else {
        let has = filled.len();
        return Err(wrong(
            directory,
            format!("has {has} bars, and the configuration uses {}: lower data.bars", config.bars),
        ));
    };
    Ok(filled.slice(start..start + config.bars))
}

fn wrong(path: &Path, problem: impl Display) -> StoreError {
    StoreError::Source(format!("{}: {problem}", path.display()))
}

/// The files of five-minute bars of one symbol: a table can be partitioned by `symbol` and `tf`.
fn of_one_symbol<'a>(directory: &Path, files: &'a [Part]) -> Result<Vec<&'a Part>, StoreError> {
    let value = |file: &'a Part, name: &str| {
        let mut partitions = file.partitions().iter();
        partitions.find(|(column, _)| column == name).map(|(_, value)| value.as_str())
    };
    let chosen: Vec<&Part> =
        files.iter().filter(|file| value(file, "tf").is_none_or(|timeframe| timeframe == TIMEFRAMES[0].name)).collect();
    let Some(first) = chosen.first() else {
        return Err(wrong(directory, "has no partition tf=5m: longer timeframes are made from five-minute bars"));
    };
    let symbol = value(first, "symbol");
    if let Some(other) = chosen.iter().map(|file| value(file, "symbol")).find(|other| *other != symbol) {
        let [first, other] = [symbol, other].map(|symbol| symbol.unwrap_or("none"));
        return Err(wrong(
            directory,
            format!("has bars of several symbols ({first}, {other}): name the directory of one"),
        ));
    }
    Ok(chosen)
}

/// Bars as files have them, and the times at which they begin.
#[derive(Default)]
struct Rows {
    times: Vec<i64>,
    bars: Bars,
}

impl Rows {
    fn append(&mut self, file: &Part) -> Result<(), StoreError> {
        let reader = file.open()?;
        let mut first = 0;
        for group in 0..reader.groups() {
            let times = times(&reader, group)?;
            let [open, high, low, close, volume] = columns(&reader, group)?;
            for row in 0..times.len() {
                let bar = [open[row], high[row], low[row], close[row], volume[row]];
                self.push(times[row], bar)
                    .map_err(|problem| wrong(file.path(), format!("row {}: {problem}", first + row)))?;
            }
            first += times.len();
        }
        Ok(())
    }

    fn push(&mut self, time: i64, bar: [f64; 5]) -> Result<(), String> {
        if !TIMES.contains(&time) {
            return Err(format!("{TIME} is {time}: write milliseconds since 1970, or a timestamp"));
        }
        if time % STEP != 0 {
            return Err(format!("{TIME} {time} ms is not a multiple of five minutes: write times at which bars begin"));
        }
        match self.times.last() {
            Some(&last) if last == time => {
                return Err(format!("{TIME} {time} ms repeats: leave out one of the two rows"));
            }
            Some(&last) if last > time => {
                return Err(format!("{TIME} {time} ms follows {last} ms: sort the rows, and the files by name"));
            }
            _ => {}
        }
        let [open, high, low, close, _] = bar;
        for (name, value) in COLUMNS.iter().zip(bar) {
            let least = if *name == "volume" { 0.0 } else { f64::MIN_POSITIVE };
            if !(least..=1e15).contains(&value) {
                return Err(format!(
                    "{name} is {value}: leave the row out, and its price is taken from the one before"
                ));
            }
        }
        if low > open.min(close) || high < open.max(close) {
            return Err(format!(
                "open {open} and close {close} are not between low {low} and high {high}: correct the row"
            ));
        }
        self.times.push(time);
        self.bars.push(bar, calendar(time));
        Ok(())
    }

    /// Times of the bars of every group that has one.
    fn groups(&self) -> impl Iterator<Item = StepBy<Range<i64>>> {
        let span = STEP * GROUP as i64;
        let last = self.times.last().copied().unwrap_or_default();
        let starts = self.times.iter().map(move |time| time - time % span);
        let mut before = None;
        let starts = starts.filter(move |start| before.replace(*start) != Some(*start));
        // The last group ends with the last bar: a later one is not known to be missing.
        starts.map(move |start| (start..(start + span).min(last + STEP)).step_by(STEP as usize))
    }

    /// The bars of every group that has one.
    fn filled(&self) -> Bars {
        let mut filled = Bars::default();
        let mut next = 0;
        for time in self.groups().flatten() {
            if self.times.get(next) == Some(&time) {
                filled.push(self.bars.at(next), calendar(time));
                next += 1;
            } else {
                // Before the first bar, its own first price.
                let price = filled.close.last().copied().unwrap_or(self.bars.open[0]);
                filled.push([price, price, price, price, 0.0], calendar(time));
            }
        }
        filled
    }
}

/// Times in milliseconds: of type timestamp, or an integer of milliseconds.
fn times(reader: &Reader, group: usize) -> Result<Vec<i64>, StoreError> {
    if reader.is::<i64>(TIME) {
        return reader.read(group, TIME);
    }
    Ok(reader.read::<Timestamp>(group, TIME)?.into_iter().map(|time| time.0).collect())
}

fn columns(reader: &Reader, group: usize) -> Result<[Vec<f64>; 5], StoreError> {
    let mut all: [Vec<f64>; 5] = Default::default();
    for (column, name) in all.iter_mut().zip(COLUMNS) {
        *column = reader.read(group, name)?;
    }
    Ok(all)
}

/// Minute of the day, and day of the week as the calendar's features count it: trading begins on a Sunday evening,
/// which is of Monday's session.
fn calendar(time: i64) -> (f64, f64) {
    let minute = time % DAY / 60_000;
    // 1970-01-01 was a Thursday.
    let weekday = (time / DAY + 3) % 7;
    let day = match weekday {
        6 => 0,
        5 => 4,
        day => day,
    };
    (minute as f64, day as f64)
}
