//! Display of a job: the same table, summary and HTML report for local runs and for clusters. All functions are pure:
//! they return text, and access no terminal, file or network.
//!
//! - [`table`]: the phases, one per line;
//! - [`summary`]: the table, followed by settings, training and cost;
//! - [`search`]: a search in words;
//! - [`compared`]: jobs beside each other;
//! - [`export`]: the trials of a search as CSV, JSON, or a study of Optuna;
//! - [`ending`]: how a launch ended;
//! - [`headline`]: the current activity of the job in one line;
//! - [`report`]: the HTML report with the evidence;
//! - [`ui`]: the pages of `pawl ui`;
//! - [`track`]: a job as the runs of an experiment tracker;
//! - [`numbers`]: formatting of numbers;
//! - [`payback`]: whether what judging cost is paid back;
//! - [`provenance`]: what attempts were measured with: machine, versions, source;
//! - [`url`]: percent-encoding of names in addresses;
//! - [`plain`]: texts without control characters, which all of them but the report and the pages use.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod columns;
pub mod compared;
pub mod ending;
pub mod event;
pub mod export;
pub mod headline;
pub mod jobs;
mod manifest;
pub mod numbers;
pub mod payback;
pub mod plain;
pub mod provenance;
pub mod report;
pub mod search;
pub mod sentence;
pub mod settings;
pub mod shell;
pub mod summary;
pub mod table;
mod together;
pub mod track;
mod trained;
pub mod ui;
pub mod url;
pub mod verdict;
