//! The decision core, tested as a shell would use it.

#![allow(clippy::unwrap_used)]

mod alike;
mod budget;
mod crashes;
mod damage;
mod effect;
mod examples;
mod gates;
mod guard;
mod history;
mod inputs;
mod judging;
mod model;
mod model_search;
mod order;
mod parallel;
mod policy;
mod preflight;
mod protocol;
mod recorded;
mod records;
mod reference;
mod replay;
mod resume;
mod search;
mod search_edits;
mod search_parts;
mod search_winner;
mod slowdown;
mod steady;
#[path = "../storage/mod.rs"]
mod storage;
mod trained;
mod trainer;
mod training;
mod trouble;
mod utilization;
mod versions;
mod waiting;
mod world;
