//! Validation rules of a configuration beyond its types.

use super::{AdvectionConfig, Config, DarcyConfig, OperatorConfig, Source, Task};
use crate::rules::{Validated, dropout, wrong};

impl Config {
    /// Validates what the types cannot express: compatible sizes, ranges, options that depend on each other.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub(super) fn validate(&self) -> Validated {
        self.distinct_tasks()?;
        self.positive()?;
        self.operator_and_decoder()?;
        if self.has(Task::Advection1d) {
            self.advection_fits()?;
        }
        if self.has(Task::Darcy2d) {
            self.darcy_fits()?;
        }
        self.losses()?;
        self.source()
    }

    fn distinct_tasks(&self) -> Validated {
        if self.tasks.is_empty() || (self.tasks.len() == 2 && self.tasks[0] == self.tasks[1]) || self.tasks.len() > 2 {
            let names: Vec<_> = self.tasks.iter().map(|task| task.name()).collect();
            return wrong("tasks", &format!("[{}]", names.join(", ")), "name advection1d, darcy2d or both, each once");
        }
        Ok(())
    }

    fn positive(&self) -> Validated {
        let positive = [
            ("advection.cells", self.advection.cells),
            ("advection.trajectories", self.advection.trajectories),
            ("darcy.grid", self.darcy.grid),
            ("darcy.samples", self.darcy.samples),
            ("operator.width", self.operator.width),
            ("operator.hidden", self.operator.hidden),
            ("operator.depth", self.operator.depth),
            ("operator.heads", self.operator.heads),
            ("operator.mlpRatio", self.operator.mlp_ratio),
            ("decoder.hidden", self.decoder.hidden),
            ("decoder.heads", self.decoder.heads),
            ("decoder.layers", self.decoder.layers),
            ("pairs", self.pairs),
            ("loss.inversePairs", self.loss.inverse_pairs),
        ];
        match positive.into_iter().find(|&(_, value)| value == 0 || value > 1 << 24) {
            Some((field, value)) => wrong(field, &value, "must be between 1 and 16777216"),
            None => Ok(()),
        }
    }

    fn operator_and_decoder(&self) -> Validated {
        let OperatorConfig { tokens, width, hidden, heads, drop_path, .. } = self.operator;
        if !tokens.is_power_of_two() || tokens < 2 {
            return wrong("operator.tokens", &tokens, "must be a power of two, at least 2");
        }
        if hidden % heads != 0 {
            return wrong("operator.heads", &heads, &format!("must divide operator.hidden ({hidden})"));
        }
        if width % 2 != 0 {
            return wrong("operator.width", &width, "must be even, for the spectral loss");
        }
        if !self.decoder.hidden.is_multiple_of(self.decoder.heads) {
            let remedy = format!("must divide decoder.hidden ({})", self.decoder.hidden);
            return wrong("decoder.heads", &self.decoder.heads, &remedy);
        }
        dropout("operator.dropPath", drop_path)
    }

    fn advection_fits(&self) -> Validated {
        let tokens = self.operator.tokens;
        let AdvectionConfig { cells, frames, betas, .. } = &self.advection;
        if cells % tokens != 0 {
            return wrong("advection.cells", cells, &format!("must be a multiple of operator.tokens ({tokens})"));
        }
        if self.pairs >= *frames {
            return wrong("pairs", &self.pairs, &format!("must be less than advection.frames ({frames})"));
        }
        if betas.values().is_empty() || betas.values().iter().any(|beta| !beta.is_finite()) {
            let text = format!("{:?}", betas.values());
            return wrong("advection.betas", &text, "must be `all` or a list of at least one finite speed");
        }
        Ok(())
    }

    fn darcy_fits(&self) -> Validated {
        let tokens = self.operator.tokens;
        let (rows, columns) = self.operator.darcy_tiles();
        let DarcyConfig { grid, samples } = self.darcy;
        if grid % rows != 0 || grid % columns != 0 {
            let remedy = format!("must be a multiple of {rows}: {tokens} tokens tile it {rows} x {columns}");
            return wrong("darcy.grid", &grid, &remedy);
        }
        if samples < self.pairs {
            let remedy = format!("must be at least pairs ({}): an item bundles that many distinct samples", self.pairs);
            return wrong("darcy.samples", &samples, &remedy);
        }
        Ok(())
    }

    fn losses(&self) -> Validated {
        if self.loss.inverse_pairs > self.pairs {
            let remedy = format!("must be at most pairs ({})", self.pairs);
            return wrong("loss.inversePairs", &self.loss.inverse_pairs, &remedy);
        }
        let weights = [
            ("loss.spectral", self.loss.spectral),
            ("loss.inverse", self.loss.inverse),
            ("loss.inverseStart", self.loss.inverse_start),
            ("loss.inverseRamp", self.loss.inverse_ramp),
            ("loss.boundary", self.loss.boundary),
            ("loss.norm", self.loss.norm),
            ("loss.diversity", self.loss.diversity),
        ];
        match weights.into_iter().find(|(_, value)| !(0.0..=1e6).contains(value)) {
            Some((field, value)) => wrong(field, &value, "must be between 0 and 1000000"),
            None => Ok(()),
        }
    }

    fn source(&self) -> Validated {
        match (self.data.source, &self.data.directory) {
            (Source::PdeBench, None) => {
                wrong("data.directory", &"null", "must name the directory of PDEBench's files for `source: PdeBench`")
            }
            (Source::Generated, Some(directory)) => {
                wrong("data.directory", directory, "is only used with `source: PdeBench`: set that, or remove it")
            }
            _ => Ok(()),
        }
    }
}
