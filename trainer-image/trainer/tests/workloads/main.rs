//! Each workload through the real program `pawl-trainer`.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

mod atft;
mod candle;
mod export;
mod forex;
mod one_rank;
mod results;
mod slm;
mod two_ranks;
mod vision_bdh;
