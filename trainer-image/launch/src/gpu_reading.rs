//! Clocks, temperature, power and errors of a GPU, as the driver reports them: the reasons why one GPU of a gang is
//! slow.

/// Reasons for which the driver lowers the clocks, by their bits in NVML (`nvmlClocksEventReasons`). That a GPU is idle
/// (bit 0) is not a reason.
const REASONS: [(u32, &str); 8] = [
    (0x2, "ApplicationsClocksSetting"),
    (0x4, "SwPowerCap"),
    (0x8, "HwSlowdown"),
    (0x10, "SyncBoost"),
    (0x20, "SwThermalSlowdown"),
    (0x40, "HwThermalSlowdown"),
    (0x80, "HwPowerBrakeSlowdown"),
    (0x100, "DisplayClockSetting"),
];
/// The bits of what disturbs a GPU: `HwSlowdown`, `SwThermalSlowdown`, `HwThermalSlowdown`, `HwPowerBrakeSlowdown`. The
/// power limit is where a busy GPU belongs.
const SLOWED: u32 = 0x8 | 0x20 | 0x40 | 0x80;
/// The bit of an idle GPU.
const IDLE: u32 = 0x1;

/// What the driver reports of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuReading {
    /// Clock of the multiprocessors, MHz.
    pub sm_clock: u32,
    /// Their highest clock, MHz.
    pub max_sm_clock: u32,
    /// Why the clock is lower than possible: bits of `nvmlClocksEventReasons`.
    pub throttled: u32,
    /// Temperature, °C.
    pub temperature: u32,
    /// Power draw, mW.
    pub power: u32,
    /// Limit of the power draw, mW.
    pub power_limit: u32,
    /// The newest Xid since the launch began; 0: none.
    pub xid: u32,
}

impl GpuReading {
    /// Number of words of [`GpuReading::to_words`].
    pub const WORDS: usize = 7;

    /// The reading as numbers, for messages between ranks; zeros for `None`.
    pub fn to_words(reading: Option<Self>) -> [f64; Self::WORDS] {
        let Self { sm_clock, max_sm_clock, throttled, temperature, power, power_limit, xid } =
            reading.unwrap_or_default();
        [sm_clock, max_sm_clock, throttled, temperature, power, power_limit, xid].map(f64::from)
    }

    /// The reading in such numbers; missing ones count as zero.
    pub fn of_words(words: &[f64]) -> Option<Self> {
        let word = |at: usize| words.get(at).map_or(0, |word| *word as u32);
        let reading = Self {
            sm_clock: word(0),
            max_sm_clock: word(1),
            throttled: word(2),
            temperature: word(3),
            power: word(4),
            power_limit: word(5),
            xid: word(6),
        };
        (reading != Self::default()).then_some(reading)
    }

    /// The reading of a window that also contains `newer`: the lowest clock of a busy GPU, the highest temperature and
    /// power, all reasons.
    #[must_use]
    pub fn and(self, newer: Self) -> Self {
        let clock = match (self.is_idle(), newer.is_idle()) {
            (false, true) => self.sm_clock,
            (true, false) => newer.sm_clock,
            _ => self.sm_clock.min(newer.sm_clock),
        };
        let idle = self.throttled & newer.throttled & IDLE;
        Self {
            sm_clock: clock,
            max_sm_clock: newer.max_sm_clock,
            throttled: (self.throttled | newer.throttled) & !IDLE | idle,
            temperature: self.temperature.max(newer.temperature),
            power: self.power.max(newer.power),
            power_limit: newer.power_limit,
            xid: newer.xid,
        }
    }

    /// Whether the clocks are lowered for the temperature or the power supply.
    pub fn is_slowed(self) -> bool {
        self.throttled & SLOWED != 0
    }

    fn is_idle(self) -> bool {
        self.throttled & IDLE != 0
    }

    /// All reasons for which the driver lowers clocks, and whether each holds.
    pub fn reasons(self) -> impl Iterator<Item = (&'static str, bool)> {
        REASONS.into_iter().map(move |(bit, name)| (name, self.throttled & bit != 0))
    }
}

impl std::fmt::Display for GpuReading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sm_clock, max_sm_clock, temperature, power, power_limit, xid, .. } = self;
        write!(
            f,
            "SM clock {sm_clock} of {max_sm_clock} MHz, {temperature} °C, {} of {} W",
            power / 1000,
            power_limit / 1000
        )?;
        let reasons: Vec<&str> = self.reasons().filter_map(|(name, holds)| holds.then_some(name)).collect();
        if !reasons.is_empty() {
            write!(f, ", throttled: {}", reasons.join(" "))?;
        }
        if *xid != 0 {
            write!(f, ", Xid {xid}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: GpuReading = GpuReading {
        sm_clock: 1980,
        max_sm_clock: 1980,
        throttled: 0x4,
        temperature: 61,
        power: 640_500,
        power_limit: 700_000,
        xid: 0,
    };

    #[test]
    fn a_reading_survives_the_wire_and_none_stays_none() {
        assert_eq!(GpuReading::of_words(&GpuReading::to_words(Some(BUSY))), Some(BUSY));
        assert_eq!(GpuReading::of_words(&GpuReading::to_words(None)), None);
        assert_eq!(GpuReading::of_words(&[]), None);
    }

    #[test]
    fn a_window_keeps_what_slows_a_gpu_down_and_ignores_its_idle_moments() {
        let hot = GpuReading { sm_clock: 1200, throttled: 0x40, temperature: 91, power: 300_000, ..BUSY };
        let idle = GpuReading { sm_clock: 345, throttled: 0x1, power: 90_000, xid: 63, ..BUSY };
        let window = idle.and(BUSY).and(hot).and(idle);
        let expected =
            "SM clock 1200 of 1980 MHz, 91 °C, 640 of 700 W, throttled: SwPowerCap HwThermalSlowdown, Xid 63";
        assert_eq!(window.to_string(), expected);
        assert_eq!(
            [BUSY, hot, idle].map(GpuReading::is_slowed),
            [false, true, false],
            "the power limit is no disturbance"
        );
        assert_eq!(idle.and(idle).sm_clock, 345, "a GPU that is always idle has no other clock");
    }
}
