//! What a rank has for the whole launch.

use crate::average::Average;
use crate::hardware::Watch;
use crate::settings::Reader;
use candle_core::Device;
use pawl_contract::settings::Settings;
use pawl_launch::collective::Gang;
use pawl_launch::launch::Launch;
use pawl_launch::progress::Publisher;
use pawl_launch::signals::StopRequest;
use std::sync::Arc;

/// The part of a launch that does not change once training has begun.
pub(crate) struct Core {
    pub launch: Launch,
    pub stop: StopRequest,
    pub by_hand: bool,
    pub device: Device,
    pub gpu: Watch,
    pub settings: Reader,
    /// As in the plan, with the program's batch size where the plan has none.
    pub given: Settings,
    pub publisher: Publisher,
    pub gang: Arc<Gang>,
    pub average: Average,
}
