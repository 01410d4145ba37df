//! A job for people: the same table, summary and page whether it ran on this machine or on a cluster. Text in, text out: no
//! terminal, no file and no network is touched here.
//!
//! - [`table`]: the phases, a line each;
//! - [`summary`]: the table, and settings, training, cost below it;
//! - [`headline`]: what the job does now, in one line;
//! - [`report`]: the HTML page of evidence;
//! - [`numbers`]: how numbers are written everywhere.

#![forbid(unsafe_code)]

pub mod event;
pub mod headline;
pub mod numbers;
pub mod report;
pub mod settings;
pub mod summary;
pub mod table;
pub mod verdict;
