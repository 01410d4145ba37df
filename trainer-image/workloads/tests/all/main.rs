//! The crate's behaviour from outside; one binary, so that it links once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod atft;
mod atft_files;
mod atft_parity;
mod batches;
mod configuration;
mod differentiated;
mod forex;
mod forex_files;
mod forex_parity;
mod generation;
mod parity;
mod parquet;
mod pdebench;
mod slm;
mod slm_diagnosis;
mod slm_documents;
mod slm_families;
mod slm_parity;
mod slm_plans;
mod store;
mod training;
mod vision_bdh;
mod vision_bdh_parity;
