//! Filter and order of the list, as in its address: `?q=TEXT&state=STAGE&sort=COLUMN`.

use super::listed::Listed;
use crate::url::{encode, pairs};
use jiff::Timestamp;
use pawl_api::status::Stage;
use std::cmp::Ordering;

/// The states of a job, in the order of its life.
pub const STAGES: [Stage; 8] = [
    Stage::Pending,
    Stage::Preflight,
    Stage::Optimizing,
    Stage::Searching,
    Stage::Training,
    Stage::Complete,
    Stage::Failed,
    Stage::Suspended,
];

/// A column by which the list is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Name of the job.
    Name,
    /// Its stage.
    State,
    /// Its speedup.
    Speedup,
    /// Device time saved.
    Saved,
    /// Accepted phases.
    Phases,
    /// Start of the job.
    Started,
    /// Newest change of its status.
    Changed,
}

impl Column {
    /// All of them, as displayed.
    pub const ALL: [Self; 7] =
        [Self::Name, Self::State, Self::Speedup, Self::Saved, Self::Phases, Self::Started, Self::Changed];

    /// Its name in an address.
    pub const fn parameter(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::State => "state",
            Self::Speedup => "speedup",
            Self::Saved => "saved",
            Self::Phases => "phases",
            Self::Started => "started",
            Self::Changed => "changed",
        }
    }

    /// Its heading.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Name => "Job",
            Self::State => "State",
            Self::Speedup => "Speedup",
            Self::Saved => "Net saved",
            Self::Phases => "Accepted",
            Self::Started => "Started (UTC)",
            Self::Changed => "Last change (UTC)",
        }
    }

    /// Whether it holds numbers or times, of which the largest come first at the first click.
    pub const fn is_number(self) -> bool {
        !matches!(self, Self::Name | Self::State)
    }
}

/// Which jobs the list shows, in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Part of a name, a state directory, or a progress, in upper or lower case; empty: all.
    pub text: String,
    /// Only jobs in this state.
    pub state: Option<Stage>,
    /// Column of the order.
    pub column: Column,
    /// Whether the largest come first.
    pub descending: bool,
}

impl Default for Query {
    /// All jobs, those that started last first.
    fn default() -> Self {
        Self { text: String::new(), state: None, column: Column::Started, descending: true }
    }
}

/// Error of an address of the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// There is no such state.
    #[error(
        "state: \"{0}\": not a state of a job: choose one of {choices}",
        choices = states()
    )]
    State(String),
    /// There is no such column.
    #[error(
        "sort: \"{0}\": not a column: choose one of {choices}, with - before it for the reverse order",
        choices = columns()
    )]
    Sort(String),
}

fn states() -> String {
    STAGES.map(|stage| stage.to_string()).join(", ")
}

fn columns() -> String {
    Column::ALL.map(Column::parameter).join(", ")
}

impl Query {
    /// Reads the query of an address. Unknown parameters are ignored.
    ///
    /// # Errors
    /// A state or a column that does not exist.
    pub fn parse(query: &str) -> Result<Self, QueryError> {
        let mut parsed = Self::default();
        for (name, value) in pairs(query) {
            match name.as_str() {
                "q" => parsed.text = value,
                "state" if value.is_empty() => parsed.state = None,
                "state" => {
                    let found = STAGES.into_iter().find(|stage| stage.to_string() == value);
                    parsed.state = Some(found.ok_or(QueryError::State(value))?);
                }
                "sort" if value.is_empty() => {}
                "sort" => {
                    let (column, descending) = value.strip_prefix('-').map_or((value.as_str(), false), |it| (it, true));
                    let found = Column::ALL.into_iter().find(|known| known.parameter() == column);
                    parsed.descending = descending;
                    parsed.column = found.ok_or_else(|| QueryError::Sort(value.clone()))?;
                }
                _ => {}
            }
        }
        Ok(parsed)
    }

    /// This query in an address, without what is so by default.
    pub fn parameters(&self) -> String {
        let default = Self::default();
        let mut parts = Vec::new();
        if !self.text.is_empty() {
            parts.push(format!("q={}", encode(&self.text)));
        }
        parts.extend(self.state.map(|state| format!("state={state}")));
        if (self.column, self.descending) != (default.column, default.descending) {
            parts.push(format!("sort={}", self.sort()));
        }
        parts.join("&")
    }

    /// The address of a page about the jobs that it selects, with `more` parameters at the end.
    pub fn address(&self, path: &str, more: &str) -> String {
        let parts = [self.parameters(), more.to_owned()];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if parts.is_empty() { path.to_owned() } else { format!("{path}?{}", parts.join("&")) }
    }

    /// The order in an address, such as `-speedup`.
    pub fn sort(&self) -> String {
        format!("{}{}", if self.descending { "-" } else { "" }, self.column.parameter())
    }

    /// The same jobs by `column`; in reverse when they already are.
    pub fn sorted_by(&self, column: Column) -> Self {
        let descending = if self.column == column { !self.descending } else { column.is_number() };
        Self { column, descending, ..self.clone() }
    }

    /// The jobs that it selects, in its order.
    pub fn select<'a>(&self, jobs: impl Iterator<Item = &'a Listed>) -> Vec<&'a Listed> {
        let wanted = self.text.to_lowercase();
        let contains = |text: &str| text.to_lowercase().contains(&wanted);
        let mut selected: Vec<&Listed> = jobs
            .filter(|job| self.state.is_none_or(|state| job.stage == state))
            .filter(|job| [&job.name, &job.place, &job.progress].into_iter().any(|text| contains(text)))
            .collect();
        selected.sort_by(|a, b| self.order(a, b));
        selected
    }

    fn order(&self, a: &Listed, b: &Listed) -> Ordering {
        let directed = |order: Ordering| if self.descending { order.reverse() } else { order };
        let numbers = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => directed(a.total_cmp(&b)),
            // A job without the number comes last in both orders.
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        let seconds = |time: Option<Timestamp>| time.map(|time| time.as_second() as f64);
        let order = match self.column {
            Column::Name => directed(a.name.cmp(&b.name)),
            Column::State => directed(a.stage.cmp(&b.stage)),
            Column::Speedup => numbers(a.speedup, b.speedup),
            Column::Saved => numbers(a.saved_percent, b.saved_percent),
            Column::Phases => directed(a.accepted.cmp(&b.accepted)),
            Column::Started => numbers(seconds(a.started), seconds(b.started)),
            Column::Changed => numbers(seconds(a.changed), seconds(b.changed)),
        };
        order.then_with(|| a.key.cmp(&b.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Entry;
    use serde_json::{Value, json};

    fn listed(name: &str, status: Value) -> Listed {
        let job = json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"}}});
        let (job, status) = (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap());
        Listed::new(Entry { job: &job, status: &status, place: ".pawl/here", measured_with: &[], stopped: false }, None)
    }

    fn jobs() -> [Listed; 3] {
        [
            listed("b", json!({"stage": "Complete", "speedup": "1.2", "startTime": "2026-01-03T00:00:00Z"})),
            listed("A-long", json!({"stage": "Failed", "startTime": "2026-01-02T00:00:00Z"})),
            listed("c", json!({"stage": "Complete", "speedup": "9", "startTime": "2026-01-01T00:00:00Z"})),
        ]
    }

    fn names(query: &str) -> String {
        let jobs = jobs();
        let selected = Query::parse(query).unwrap().select(jobs.iter());
        selected.into_iter().map(|job| job.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn jobs_are_filtered_and_sorted() {
        let cases = [
            ("", "b A-long c"),
            ("sort=started", "c A-long b"),
            ("sort=name", "A-long b c"),
            ("sort=speedup", "b c A-long"),
            ("sort=-speedup", "c b A-long"),
            ("state=Complete&sort=name", "b c"),
            ("q=LONG", "A-long"),
            ("q=.pawl%2Fhere&sort=-name", "c b A-long"),
            ("q=none&unknown=1", ""),
            ("state=&q=&sort=", "b A-long c"),
        ];
        for (query, expected) in cases {
            assert_eq!(names(query), expected, "{query}");
        }
    }

    #[test]
    fn an_error_names_the_parameter_its_value_and_the_choices() {
        let error = |query: &str| Query::parse(query).unwrap_err().to_string();
        assert!(error("state=Done").starts_with("state: \"Done\"") && error("state=Done").contains("Complete, Failed"));
        assert!(error("sort=-size").starts_with("sort: \"-size\"") && error("sort=-size").contains("speedup, saved"));
    }

    #[test]
    fn a_query_survives_its_address_and_a_second_click_reverses_it() {
        let query = Query { text: "a&b c".to_owned(), state: Some(Stage::Failed), ..Query::default() };
        assert_eq!(Query::default().parameters(), "");
        for column in Column::ALL {
            let sorted = query.sorted_by(column);
            assert_eq!(Query::parse(&sorted.parameters()), Ok(sorted.clone()), "{}", sorted.parameters());
            assert_eq!(sorted.sorted_by(column).descending, !sorted.descending);
        }
    }
}
