//! The physical fields of the tasks.

use super::config::Task;

/// A physical field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The advected quantity.
    Advection,
    /// The coefficient a.
    Coefficient,
    /// The pressure u.
    Pressure,
}

impl Field {
    /// The fields of `task`.
    pub fn of(task: Task) -> &'static [Field] {
        match task {
            Task::Advection1d => &[Field::Advection],
            Task::Darcy2d => &[Field::Coefficient, Field::Pressure],
        }
    }

    /// The task it belongs to.
    pub fn task(self) -> Task {
        match self {
            Self::Advection => Task::Advection1d,
            Self::Coefficient | Self::Pressure => Task::Darcy2d,
        }
    }

    /// Its name in the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Advection => "advection1d-u",
            Self::Coefficient => "darcy2d-a",
            Self::Pressure => "darcy2d-u",
        }
    }

    /// Name of its latents in the store.
    pub fn latent(self) -> &'static str {
        match self {
            Self::Advection => "advection1d-u-latent",
            Self::Coefficient => "darcy2d-a-latent",
            Self::Pressure => "darcy2d-u-latent",
        }
    }
}
