//! A panel of stocks from Parquet files, a row per date and stock: an index that is kept in memory, and features that
//! are read when they are used.

use super::config::{DataConfig, HORIZONS, Horizon, WARM_UP_DAYS, feature_column};
use super::panel::LIMIT;
use crate::store::parquet::{Date, Part, Reader, Table};
use crate::store::{OnProgress, StoreError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The columns that identify a row, and those of its groups.
const DATE: &str = "date";
const CODE: &str = "code";
const SEGMENT: &str = "market";
const SECTOR: &str = "sector33";
/// The column of whether a stock belongs to the universe of a date.
const IS_VALID: &str = "is_valid";

/// What is known of the stocks without their features; tables are row-major.
#[derive(Debug, Default)]
pub struct Index {
    /// Market segment and sector of each stock, of its last row.
    pub segments: Vec<u8>,
    /// The sector.
    pub sectors: Vec<u8>,
    /// Whether a stock can be chosen on a day, because it is valid and has all targets: (days, stocks).
    pub chosen: Vec<bool>,
    /// Returns to the horizons, 0 where a stock cannot be chosen: (days, stocks, horizons).
    pub targets: Vec<f32>,
    /// The return of a day, which is the target of one day on the day before; NaN where there is none: (days, stocks).
    pub daily: Vec<f32>,
}

/// The features in the files.
#[derive(Debug)]
pub struct Files {
    files: Vec<File>,
    /// The rows of each day.
    days: Vec<Day>,
    /// The place of each code.
    places: HashMap<i32, usize>,
    stocks: usize,
    columns: Vec<String>,
    /// Standardized values of the features of the market by their number, one per day.
    market: BTreeMap<usize, Vec<f32>>,
    cache: Mutex<Cache>,
}

/// A file that is open.
#[derive(Debug)]
struct File {
    path: PathBuf,
    reader: Reader,
    /// The first row of each row group.
    starts: Vec<usize>,
}

/// A day of the table, in one or more row groups.
#[derive(Debug)]
struct Day {
    date: Date,
    rows: Vec<Rows>,
}

/// Some rows of a row group.
#[derive(Clone, Debug)]
struct Rows {
    file: usize,
    group: usize,
    rows: Range<usize>,
}

/// The features of days, the newest last.
#[derive(Debug)]
struct Cache {
    most: usize,
    order: VecDeque<usize>,
    days: HashMap<usize, Arc<[f32]>>,
}

impl Cache {
    fn keep(&mut self, day: usize, features: &Arc<[f32]>) {
        if self.days.insert(day, Arc::clone(features)).is_some() {
            return;
        }
        if self.order.len() == self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.days.remove(&oldest);
        }
        self.order.push_back(day);
    }
}

/// The days of all files.
fn days(files: &[File], parts: &[Part], progress: OnProgress<'_>) -> Result<Vec<Day>, StoreError> {
    let mut days = Days::default();
    for (number, (file, part)) in files.iter().zip(parts).enumerate() {
        progress("dates", number as u64, files.len() as u64);
        days.add(number, file, part)?;
    }
    Ok(days.days)
}

fn wrong(path: &Path, problem: impl Display) -> StoreError {
    StoreError::Source(format!("{}: {problem}", path.display()))
}

impl File {
    fn open(part: &Part) -> Result<Self, StoreError> {
        let reader = part.open()?;
        let mut rows = 0;
        let starts = (0..reader.groups()).map(|group| {
            let start = rows;
            rows += reader.group_rows(group);
            start
        });
        Ok(Self { path: part.path().to_owned(), starts: starts.collect(), reader })
    }

    /// An error in a row of a row group.
    fn wrong(&self, group: usize, row: usize, problem: impl Display) -> StoreError {
        wrong(&self.path, format!("row {}: {problem}", self.starts[group] + row))
    }
}

impl Files {
    /// Opens the table of `config`, and reads all but its features.
    ///
    /// # Errors
    /// [`StoreError::Source`], naming the file, the row or date, and the remedy: when a column is missing or has
    /// another type, when rows are not sorted by date and code, repeat, or are in the partition of another year, when a
    /// target is infinite or a group is no small number, when a feature of the market differs between stocks, and when
    /// there are too few dates or too many codes.
    pub fn open(config: &DataConfig, progress: OnProgress<'_>) -> Result<(Self, Index), StoreError> {
        let directory = Path::new(config.directory.as_deref().unwrap_or("."));
        let table = Table::open(directory)?;
        let files = table.files().iter().map(File::open).collect::<Result<Vec<_>, _>>()?;
        let mut days = days(&files, table.files(), progress)?;
        let Some(spare) = days.len().checked_sub(config.days) else {
            let (has, uses) = (days.len(), config.days);
            return Err(wrong(
                directory,
                format!("has {has} dates, and the configuration uses {uses}: lower data.days"),
            ));
        };
        let days = days.split_off(spare);
        let columns: Vec<String> = (0..config.features).map(feature_column).collect();
        let bytes = config.stocks * columns.len() * size_of::<f32>();
        let most = (config.cache_mib << 20) / bytes;
        let cache = Cache { most: most.max(1), order: VecDeque::new(), days: HashMap::new() };
        let mut files = Self {
            files,
            days,
            places: HashMap::new(),
            stocks: config.stocks,
            columns,
            market: BTreeMap::new(),
            cache: Mutex::new(cache),
        };
        files.places = files.places(directory)?;
        let index = files.index(progress)?;
        for name in &config.market_features {
            if let Some(number) = files.columns.iter().position(|column| column == name) {
                files.market.insert(number, files.market_feature(name)?);
            }
        }
        tracing::info!(
            days = files.days.len(),
            stocks = files.places.len(),
            cached = most.min(files.days.len()),
            "read the index of {}",
            directory.display()
        );
        Ok((files, index))
    }

    /// The date of a day.
    pub fn date(&self, day: usize) -> Date {
        self.days[day].date
    }

    /// The features of all stocks on a day: (stocks, width), 0 where a stock is not valid or has no value.
    ///
    /// # Errors
    /// [`StoreError::Source`], naming the file, the column, the row and the remedy: when a feature is missing as a
    /// column, has another type or is infinite, and when the file is damaged.
    pub fn day(&self, day: usize) -> Result<Arc<[f32]>, StoreError> {
        if let Some(known) = self.cache.lock().days.get(&day) {
            return Ok(Arc::clone(known));
        }
        let features: Arc<[f32]> = self.read(day)?.into();
        self.cache.lock().keep(day, &features);
        Ok(features)
    }

    fn read(&self, day: usize) -> Result<Vec<f32>, StoreError> {
        let width = self.columns.len();
        let mut out = vec![0.0; self.stocks * width];
        let parts = self.days[day].rows.iter().map(|rows| Ok((rows, self.valid(rows)?)));
        let parts = parts.collect::<Result<Vec<_>, StoreError>>()?;
        for (number, name) in self.columns.iter().enumerate() {
            let market = self.market.get(&number).map(|values| values[day]);
            let mut column = Vec::new();
            for (rows, places) in &parts {
                let values = if market.is_some() { Vec::new() } else { self.floats(rows, name)? };
                let of_stocks = places.iter().enumerate().filter_map(|(row, place)| Some((row, (*place)?)));
                column.extend(of_stocks.map(|(row, place)| (place, market.unwrap_or_else(|| values[row]))));
            }
            if market.is_none() {
                standardize(&mut column);
            }
            column.into_iter().for_each(|(place, value)| out[place * width + number] = value);
        }
        Ok(out)
    }

    /// The places of the stocks in some rows; none for a row that is not valid.
    fn valid(&self, rows: &Rows) -> Result<Vec<Option<usize>>, StoreError> {
        let reader = &self.files[rows.file].reader;
        let codes: Vec<i32> = reader.read_rows(rows.group, CODE, rows.rows.clone())?;
        let valid: Vec<bool> = reader.read_rows(rows.group, IS_VALID, rows.rows.clone())?;
        let place = |(code, valid): (&i32, bool)| self.places.get(code).copied().filter(|_| valid);
        Ok(codes.iter().zip(valid).map(place).collect())
    }

    /// Numbers in some rows; NaN where one is missing.
    fn floats(&self, rows: &Rows, column: &str) -> Result<Vec<f32>, StoreError> {
        let file = &self.files[rows.file];
        let values: Vec<f32> = file.reader.read_rows(rows.group, column, rows.rows.clone())?;
        match values.iter().position(|value| value.is_infinite()) {
            None => Ok(values),
            Some(row) => {
                let problem = format!("{column} is {}: correct it, or leave it empty", values[row]);
                Err(file.wrong(rows.group, rows.rows.start + row, problem))
            }
        }
    }

    /// The place of each code, ascending.
    fn places(&self, directory: &Path) -> Result<HashMap<i32, usize>, StoreError> {
        let mut codes = BTreeSet::new();
        for rows in self.days.iter().flat_map(|day| &day.rows) {
            let reader = &self.files[rows.file].reader;
            codes.extend(reader.read_rows::<i32>(rows.group, CODE, rows.rows.clone())?);
        }
        if codes.len() > self.stocks {
            let problem = format!("has {} codes in {} dates", codes.len(), self.days.len());
            return Err(wrong(directory, format!("{problem}: set data.stocks to at least {}", codes.len())));
        }
        Ok(codes.into_iter().zip(0..).collect())
    }

    fn index(&self, progress: OnProgress<'_>) -> Result<Index, StoreError> {
        let (stocks, days) = (self.stocks, self.days.len());
        let mut index = Index {
            segments: vec![0; stocks],
            sectors: vec![0; stocks],
            chosen: vec![false; days * stocks],
            targets: vec![0.0; days * stocks * HORIZONS.len()],
            daily: vec![f32::NAN; days * stocks],
        };
        for (number, day) in self.days.iter().enumerate() {
            progress("index", number as u64, days as u64);
            for rows in &day.rows {
                self.add(&mut index, number, rows)?;
            }
        }
        Ok(index)
    }

    /// Adds rows of day `number` to the index.
    fn add(&self, index: &mut Index, number: usize, rows: &Rows) -> Result<(), StoreError> {
        let (stocks, horizons) = (self.stocks, HORIZONS.len());
        let places = self.valid(rows)?;
        let (segments, sectors) = (self.groups(rows, SEGMENT)?, self.groups(rows, SECTOR)?);
        let target = |horizon: &Horizon| self.floats(rows, &format!("target_{}", horizon.name));
        let targets = HORIZONS.iter().map(target).collect::<Result<Vec<_>, _>>()?;
        for (row, place) in places.into_iter().enumerate() {
            let Some(place) = place else { continue };
            (index.segments[place], index.sectors[place]) = (segments[row], sectors[row]);
            if number + 1 < self.days.len() {
                index.daily[(number + 1) * stocks + place] = targets[0][row];
            }
            let at = number * stocks + place;
            if targets.iter().all(|target| target[row].is_finite()) {
                index.chosen[at] = true;
                let out = &mut index.targets[at * horizons..(at + 1) * horizons];
                out.iter_mut().zip(&targets).for_each(|(out, target)| *out = target[row]);
            }
        }
        Ok(())
    }

    /// Groups of the stocks in some rows, as bytes.
    fn groups(&self, rows: &Rows, column: &str) -> Result<Vec<u8>, StoreError> {
        let file = &self.files[rows.file];
        let values: Vec<i32> = file.reader.read_rows(rows.group, column, rows.rows.clone())?;
        let number = |(row, value): (usize, &i32)| {
            let [byte] = i8::try_from(*value).map(i8::to_le_bytes).map_err(|_| {
                let problem = format!("{column} is {value}: number the groups from -128 to 127");
                file.wrong(rows.group, rows.rows.start + row, problem)
            })?;
            Ok(byte)
        };
        values.iter().enumerate().map(number).collect()
    }

    /// A feature of the market: its value of each day, as a score of the last 60 days.
    fn market_feature(&self, name: &str) -> Result<Vec<f32>, StoreError> {
        let mut values = Vec::with_capacity(self.days.len());
        for day in &self.days {
            let mut of_day = f32::NAN;
            for rows in &day.rows {
                for (row, value) in self.floats(rows, name)?.into_iter().enumerate() {
                    if of_day.is_nan() {
                        of_day = value;
                    } else if !value.is_nan() && value != of_day {
                        let problem = format!("{name} is {value}, and {of_day} for another stock of {}", day.date);
                        let problem = format!("{problem}: remove it from data.marketFeatures");
                        return Err(self.files[rows.file].wrong(rows.group, rows.rows.start + row, problem));
                    }
                }
            }
            values.push(of_day);
        }
        let of_day = |day: usize| {
            let window = &values[(day + 1).saturating_sub(WARM_UP_DAYS)..=day];
            let known = window.iter().filter(|value| !value.is_nan()).map(|value| f64::from(*value));
            score(values[day], moments(known))
        };
        Ok((0..values.len()).map(of_day).collect())
    }
}

/// The days of a table, as its files are read one after the other.
#[derive(Debug, Default)]
struct Days {
    days: Vec<Day>,
    /// Date and code of the last row.
    last: Option<(Date, i32)>,
}

impl Days {
    /// Adds the rows of file `number`.
    fn add(&mut self, number: usize, file: &File, part: &Part) -> Result<(), StoreError> {
        let year = part.partitions().iter().find(|(column, _)| column == "year").map(|(_, year)| year.as_str());
        for group in 0..file.reader.groups() {
            let dates: Vec<Date> = file.reader.read(group, DATE)?;
            let codes: Vec<i32> = file.reader.read(group, CODE)?;
            for (row, key) in dates.into_iter().zip(codes).enumerate() {
                self.follow(key, year).map_err(|problem| file.wrong(group, row, problem))?;
                self.push(key.0, (number, group), row);
            }
        }
        Ok(())
    }

    /// Checks that a row of the partition `year` follows the last one.
    fn follow(&mut self, key: (Date, i32), year: Option<&str>) -> Result<(), String> {
        let (date, code) = key;
        let Some(civil) = date.civil() else {
            return Err(format!("{DATE} is {date}: write a date of the calendar"));
        };
        let of_partition = year.and_then(|year| year.parse::<i64>().ok());
        if let Some(year) = of_partition.filter(|year| *year != i64::from(civil.year())) {
            return Err(format!("{DATE} {date} is in the partition year={year}: move the row to that of its year"));
        }
        match self.last.replace(key) {
            Some(last) if last == key => {
                Err(format!("{DATE} {date}, {CODE} {code} repeats: leave out one of the two rows"))
            }
            Some(last) if last > key => {
                let problem = format!("{DATE} {date}, {CODE} {code} follows {}, {}", last.0, last.1);
                Err(format!("{problem}: sort the rows by date and code, and the files by name"))
            }
            _ => Ok(()),
        }
    }

    /// Adds a row to its day.
    fn push(&mut self, date: Date, (file, group): (usize, usize), row: usize) {
        if self.days.last().is_none_or(|day| day.date != date) {
            self.days.push(Day { date, rows: Vec::new() });
        }
        let Some(day) = self.days.last_mut() else { return };
        match day.rows.last_mut() {
            Some(rows) if (rows.file, rows.group) == (file, group) => rows.rows.end = row + 1,
            _ => day.rows.push(Rows { file, group, rows: row..row + 1 }),
        }
    }
}

/// Turns the values of a date into scores.
fn standardize(column: &mut [(usize, f32)]) {
    let known = column.iter().map(|(_, value)| f64::from(*value)).filter(|value| !value.is_nan());
    let moments = moments(known);
    column.iter_mut().for_each(|(_, value)| *value = score(*value, moments));
}

/// The distance from the mean in standard deviations, limited; 0 for a missing value.
fn score(value: f32, [mean, deviation]: [f64; 2]) -> f32 {
    if value.is_nan() {
        return 0.0;
    }
    (((f64::from(value) - mean) / (deviation + 1e-8)) as f32).clamp(-LIMIT, LIMIT)
}

/// Mean and standard deviation.
fn moments(values: impl Iterator<Item = f64> + Clone) -> [f64; 2] {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    let squares: f64 = values.map(|value| (value - mean) * (value - mean)).sum();
    [mean, (squares / count).sqrt()]
}
