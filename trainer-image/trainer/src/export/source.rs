//! The trained values of a checkpoint.

use crate::checkpoint::{Checkpoint, Described, Store, Tensors};
use crate::ending::Ending;
use pawl_contract::plan::LaunchPlan;
use pawl_graph::array::Array;
use pawl_graph::optim::AVERAGE;
use pawl_workloads::Job;
use std::collections::HashSet;

/// A checkpoint to export.
pub struct Source<'a> {
    store: &'a Store,
    found: &'a Described,
    workload: &'a str,
    averages: bool,
}

impl<'a> Source<'a> {
    /// The checkpoint `found` in `store`, with the moving averages of its states in their place if `averages`.
    ///
    /// # Errors
    /// [`Ending::InvalidPlan`] when it is of another workload or seed than `plan`.
    pub fn of(plan: &'a LaunchPlan, store: &'a Store, found: &'a Described, averages: bool) -> Result<Self, Ending> {
        let workload = plan.workload.name.as_deref().unwrap_or_default();
        let source = Self { store, found, workload, averages };
        source.require(Tensors::new(), |checkpoint| checkpoint.made_by(workload, plan.seed, &[]))?;
        Ok(source)
    }

    /// Passes the trained values of the states whose names are `wanted` to `take`, in no order. That of a state with a
    /// moving average may be passed before its average, but not after it. Returns the number of averages.
    ///
    /// # Errors
    /// [`Ending::CheckpointUnreadable`] when a file of the checkpoint differs from its hash, [`Ending::InvalidPlan`] when
    /// its frozen arrays are not those of `job`; when storage cannot be read, and what `take` returns.
    pub fn each(
        &self,
        job: &dyn Job,
        wanted: &dyn Fn(&str) -> bool,
        take: &mut dyn FnMut(&str, Array) -> Result<(), Ending>,
    ) -> Result<usize, Ending> {
        let extras = job.extras();
        let is_extra = |name: &str| extras.iter().any(|(known, _)| known == name);
        let chosen = |name: &str| is_extra(name) || wanted(self.averaged(name).unwrap_or(name));
        let (mut frozen, mut averaged) = (Tensors::new(), HashSet::new());
        self.store.each::<Ending>(self.found, &chosen, &mut |name, array| {
            if is_extra(name) {
                frozen.push((name.to_owned(), array.clone()));
            }
            match self.averaged(name) {
                Some(of) => {
                    averaged.insert(of.to_owned());
                    take(of, array)
                }
                None if averaged.contains(name) || !wanted(name) => Ok(()),
                None => take(name, array),
            }
        })?;
        self.require(frozen, |checkpoint| checkpoint.fits(self.workload, &extras))?;
        Ok(averaged.len())
    }

    /// The state whose moving average is called `name`, if averages are exported.
    fn averaged<'n>(&self, name: &'n str) -> Option<&'n str> {
        name.strip_prefix(AVERAGE).filter(|_| self.averages)
    }

    /// Checks a checkpoint of the same position with these tensors.
    fn require(&self, tensors: Tensors, check: impl Fn(&Checkpoint) -> Result<(), String>) -> Result<(), Ending> {
        let checkpoint = Checkpoint { position: self.found.position.clone(), tensors };
        check(&checkpoint).map_err(|foreign| {
            let name = &self.found.reference.name;
            let remedy = "export it with the plan and the initial weights of the launch that wrote it";
            Ending::InvalidPlan(format!("checkpoint {name}: {foreign}: {remedy}"))
        })
    }
}
