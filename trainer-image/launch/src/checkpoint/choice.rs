//! Choosing a checkpoint, and reading it one shard at a time, as an export does.

use super::manifest::{Manifest, Position, Problem, Shard};
use super::shards::decode_chosen;
use super::{Author, CheckpointError, Store, order};
use pawl_contract::checkpoint::CheckpointRef;
use pawl_graph::array::Array;
use std::convert::Infallible;
use std::str::FromStr;

/// A checkpoint of a storage, as a command line names it.
///
/// ```
/// use pawl_launch::checkpoint::Choice;
///
/// assert_eq!("best".parse(), Ok(Choice::Best));
/// assert_eq!("00000007-step-70-by-1.0".parse(), Ok(Choice::Named("00000007-step-70-by-1.0".to_owned())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The best one, by `train.checkpoint.best`; the newest one where no evaluation has chosen any.
    Best,
    /// The newest one.
    Last,
    /// The one of this name.
    Named(String),
}

impl FromStr for Choice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "best" => Self::Best,
            "last" => Self::Last,
            name => Self::Named(name.to_owned()),
        })
    }
}

/// Whether a checkpoint of this format may have this name.
///
/// ```
/// use pawl_launch::checkpoint::is_own_name;
///
/// assert!(is_own_name("00000007-step-70-by-1.0") && !is_own_name("checkpoint-70"));
/// ```
pub fn is_own_name(name: &str) -> bool {
    order(name).is_some()
}

/// A checkpoint whose manifest was read, and none of its tensors.
#[derive(Clone, Debug)]
pub struct Described {
    /// Name, step and items.
    pub reference: CheckpointRef,
    /// Position of the run.
    pub position: Position,
    /// Who wrote it.
    pub author: Author,
    shards: Vec<Shard>,
}

impl Described {
    fn new(name: String, manifest: Manifest) -> Self {
        let Manifest { author, position, shards, .. } = manifest;
        let reference = CheckpointRef { name, step: position.step, items: position.items };
        Self { reference, position, author, shards }
    }
}

impl Store {
    /// The checkpoint that `choice` names; its tensors are not read. An incomplete checkpoint is none.
    ///
    /// # Errors
    /// [`CheckpointError::Absent`] when there is none, [`CheckpointError::Unreadable`] when the newest one is of a
    /// later format; when storage cannot be read.
    pub fn choose(&self, choice: &Choice) -> Result<Described, CheckpointError> {
        if let Choice::Named(name) = choice {
            return self.described(name)?.map_err(|problem| self.absent(format!("checkpoint {name}: {problem}")));
        }
        let last = self.last()?;
        let best = last.position.best_checkpoint.as_ref().filter(|_| *choice == Choice::Best);
        let Some(best) = best.map(|best| best.checkpoint.name.clone()).filter(|best| *best != last.reference.name)
        else {
            return Ok(last);
        };
        self.described(&best)?.map_err(|problem| {
            let newest = &last.reference.name;
            self.absent(format!(
                "checkpoint {best}, the best one: {problem}; copy it here, or choose the newest one, {newest}, as last"
            ))
        })
    }

    /// The newest complete checkpoint; those of a training that had diverged do not count.
    fn last(&self) -> Result<Described, CheckpointError> {
        let diverged = self.diverged()?;
        for (_, name) in self.names()?.into_iter().filter(|(_, name)| !diverged.contains(name)) {
            match self.manifest(&name)? {
                Ok(manifest) => return Ok(Described::new(name, manifest)),
                Err(Problem::Unknown(problem)) => return Err(CheckpointError::Unreadable { name, problem }),
                Err(Problem::Damaged(problem)) => tracing::warn!(checkpoint = name, "skipped: {problem}"),
            }
        }
        Err(self.absent("contains no complete checkpoint: name the storage of a run that has trained".to_owned()))
    }

    /// The checkpoint called `name`, or why there is none.
    fn described(&self, name: &str) -> Result<Result<Described, String>, CheckpointError> {
        if !is_own_name(name) {
            let problem = "is no name of a checkpoint of this format: write best, last or a name such as \
                           00000007-step-70-by-1.0";
            return Ok(Err(problem.to_owned()));
        }
        let found = self.manifest(name)?;
        Ok(found.map(|manifest| Described::new(name.to_owned(), manifest)).map_err(|problem| problem.to_string()))
    }

    fn absent(&self, problem: String) -> CheckpointError {
        CheckpointError::Absent { storage: self.storage.name().to_owned(), problem }
    }

    /// Passes the tensors of `found` whose names are `wanted` to `take`, one shard at a time: each is compared with its
    /// hash before any of its tensors is passed. At most a shard and its tensors are in memory.
    ///
    /// # Errors
    /// [`CheckpointError::Unreadable`] names the first file that is missing or differs from its hash; when storage
    /// cannot be read, and what `take` returns.
    pub fn each<E: From<CheckpointError>>(
        &self,
        found: &Described,
        wanted: &dyn Fn(&str) -> bool,
        take: &mut dyn FnMut(&str, Array) -> Result<(), E>,
    ) -> Result<(), E> {
        let name = &found.reference.name;
        let unreadable = |problem: String| {
            let problem = format!("{problem}; choose another checkpoint");
            CheckpointError::Unreadable { name: name.clone(), problem }
        };
        for shard in &found.shards {
            let bytes = self.shard(name, shard)?.map_err(unreadable)?;
            let tensors = decode_chosen(&bytes, wanted);
            let tensors = tensors.map_err(|problem| unreadable(format!("{}: {problem}", shard.file)))?;
            drop(bytes);
            tensors.into_iter().try_for_each(|(name, array)| take(&name, array))?;
        }
        Ok(())
    }
}
