//! The trained values of a checkpoint.

use crate::checkpoint::{Checkpoint, Described, Store, Tensors};
use crate::ending::Ending;
use pawl_contract::plan::LaunchPlan;
use pawl_graph::array::Array;
use pawl_graph::optim::AVERAGE;
use pawl_workloads::Job;
use std::collections::HashMap;

/// A checkpoint to export.
pub struct Source<'a> {
    store: &'a Store,
    found: &'a Described,
    workload: &'a str,
    averages: bool,
}

impl<'a> Source<'a> {
    /// The checkpoint `found` in `store`: of states that have one, the moving average if `averages`, else the value.
    ///
    /// # Errors
    /// [`Ending::InvalidPlan`] when it is of another workload or seed than `plan`.
    pub fn of(plan: &'a LaunchPlan, store: &'a Store, found: &'a Described, averages: bool) -> Result<Self, Ending> {
        let workload = plan.workload.name.as_deref().unwrap_or_default();
        let source = Self { store, found, workload, averages };
        source.require(Tensors::new(), |checkpoint| checkpoint.made_by(workload, plan.seed, &[]))?;
        Ok(source)
    }

    /// Passes the trained values of the states whose names are `wanted` to `take`, in no order. Of value and average of
    /// a state, the one that is not exported may be passed too, before the other one: the last one counts. Returns the
    /// number of averages that count.
    ///
    /// # Errors
    /// [`Ending::CheckpointUnreadable`] when a file of the checkpoint differs from its hash, [`Ending::InvalidPlan`]
    /// when its frozen arrays are not those of `job`; when storage cannot be read, and what `take` returns.
    pub fn each(
        &self,
        job: &dyn Job,
        wanted: &dyn Fn(&str) -> bool,
        take: &mut dyn FnMut(&str, Array) -> Result<(), Ending>,
    ) -> Result<usize, Ending> {
        let extras = job.extras();
        let is_extra = |name: &str| extras.iter().any(|(known, _)| known == name);
        let chosen = |name: &str| is_extra(name) || wanted(name.strip_prefix(AVERAGE).unwrap_or(name));
        // Names, and whether the average was passed last.
        let (mut frozen, mut passed) = (Tensors::new(), HashMap::<String, bool>::new());
        self.store.each::<Ending>(self.found, &chosen, &mut |name, array| {
            if is_extra(name) {
                frozen.push((name.to_owned(), array.clone()));
            }
            let average = name.strip_prefix(AVERAGE);
            let state = average.unwrap_or(name);
            if !wanted(state) || passed.get(state) == Some(&self.averages) {
                return Ok(());
            }
            passed.insert(state.to_owned(), average.is_some());
            take(state, array)
        })?;
        self.require(frozen, |checkpoint| checkpoint.fits(self.workload, &extras))?;
        Ok(passed.values().filter(|average| **average).count())
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
