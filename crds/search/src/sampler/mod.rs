//! Samplers: which point the next trial has.

mod enumerate;
mod gp;
mod quasi;
mod tpe;

use crate::history::{self, Goal, Observation, Trial};
use crate::random::{Draws, Purpose};
use crate::space::{Point, Problem, Space, problem};
use crate::value::is_same;

/// How the next point is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampler {
    /// Every combination, in lexicographic order; every parameter is discrete.
    Grid,
    /// Uniformly at random.
    Random,
    /// A scrambled Sobol sequence: covers the space more evenly than random points.
    Sobol,
    /// Tree-structured Parzen estimator, multivariate: any space, from some ten trials on.
    Tpe,
    /// Gaussian process with expected improvement: few parameters without conditions, one objective.
    Gp,
}

/// What a sampler needs to know of a stage of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Index of the stage, so that stages with one seed draw different points.
    pub stage: u32,
    /// Where points are chosen from.
    pub space: Space,
    /// How.
    pub sampler: Sampler,
    /// Directions of the objectives; at least one.
    pub goals: Vec<Goal>,
    /// The settings accepted so far: the point of trial 0, as far as they are in the space.
    pub accepted: Point,
    /// Results of earlier searches of this space: TPE and GP begin with what they tell.
    pub warm: Vec<Observation>,
    /// Points of the trials that follow that of the accepted settings, such as the best ones of an earlier stage. A
    /// grid, which has every point anyway, ignores them.
    pub first: Vec<Point>,
}

/// Draws of a point that no trial has, before all points are looked at.
const TRIES: usize = 1000;
/// Largest number of points that are looked at. No search has trials for more, and of those that constraints leave of a
/// larger space a draw has found one.
const COUNTABLE: usize = 1 << 20;

/// Largest number of parameters of a GP search: beyond it TPE is better and faster.
const GP_PARAMETERS: usize = 20;

impl Study {
    /// All errors of the space, and of its use with the sampler.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = self.space.validate();
        if self.goals.is_empty() {
            problems.push(problem("objectives", "", "is empty", "name at least one metric"));
        }
        for parameter in &self.space.parameters {
            let field = format!("parameters[{}]", parameter.name);
            if self.sampler == Sampler::Grid && parameter.domain.size().is_none() {
                let remedy = "give a step, list values, or use another sampler";
                problems.push(problem(field, "", "is continuous, which a grid cannot enumerate", remedy));
            } else if self.sampler == Sampler::Gp && parameter.condition.is_some() {
                let remedy = "use sampler TPE";
                problems.push(problem(field, "", "has a condition, which sampler GP does not model", remedy));
            }
        }
        let count = self.space.parameters.len();
        if self.sampler == Sampler::Gp && count > GP_PARAMETERS {
            let message = format!("are too many for sampler GP (at most {GP_PARAMETERS})");
            problems.push(problem("parameters", count, &message, "use sampler TPE"));
        }
        if self.sampler == Sampler::Gp && self.goals.len() > 1 {
            problems.push(problem(
                "objectives",
                self.goals.len(),
                "are too many for sampler GP (one)",
                "use sampler TPE",
            ));
        }
        problems
    }

    /// The point of trial `number`, given the trials so far: one that none of them has. `None` if the space has no
    /// further point, or if none that satisfies the constraints was found.
    ///
    /// The result is a function of the study, of `number` and of the *set* of trials: their order in `trials`, and the
    /// order in which they ended, have no effect. Grid, Random and Sobol depend on the points of the trials only, not
    /// on their results. TPE and GP depend on which trials have ended when they are asked: for a replay, the points of
    /// trials that were proposed are recorded and not proposed again.
    pub fn propose(&self, trials: &[Trial], number: u32) -> Option<Point> {
        let accepted = self.accepted_point();
        let taken = |point: &Point| trials.iter().any(|trial| is_same(&trial.point, point));
        if let Some(point) = self.known(accepted.as_ref()).nth(number as usize).filter(|point| !taken(point)) {
            return Some(point);
        }
        let point = match self.sampler {
            Sampler::Grid => {
                // The trials before this one that are not known are those of the points before it.
                let known = trials.iter().filter(|trial| trial.number < number).count() as u32;
                let is_known = trials.iter().any(|trial| trial.number == 0);
                let first = accepted.as_ref().filter(|_| !is_known);
                let unknown = number.saturating_sub(known + u32::from(first.is_some()));
                return enumerate::nth(
                    &self.space,
                    |point| first.is_some_and(|f| is_same(f, point)) || taken(point),
                    unknown,
                );
            }
            Sampler::Random => self.random(number),
            Sampler::Sobol => quasi::sobol(self, number).or_else(|| self.random(number)),
            Sampler::Tpe => self.learn(trials, number, tpe::propose),
            Sampler::Gp => self.learn(trials, number, gp::propose),
        };
        point.and_then(|point| if taken(&point) { self.another(taken, number) } else { Some(point) })
    }

    /// A point that is not `taken`, by chance; `None` when the space has no other.
    fn another(&self, taken: impl Fn(&Point) -> bool, number: u32) -> Option<Point> {
        let mut draws = Draws::new(self.seed, self.stage, number, Purpose::Uniform);
        let found = (0..TRIES).map_while(|_| self.space.draw(&mut draws)).find(|point| !taken(point));
        let countable = || self.space.combinations().is_some_and(|count| count <= COUNTABLE);
        found.or_else(|| countable().then(|| enumerate::remaining(&self.space, taken, &mut draws)).flatten())
    }

    /// The point of the accepted settings.
    fn accepted_point(&self) -> Option<Point> {
        self.whole(&self.accepted)
    }

    /// The settings as a point, if they have a value for every active parameter and satisfy the constraints.
    fn whole(&self, settings: &Point) -> Option<Point> {
        let point = self.space.restrict(settings);
        let whole = self.space.parameters.iter().all(|p| !p.active(&point) || point.contains_key(&p.name));
        (whole && !point.is_empty() && self.space.permits(&point)).then_some(point)
    }

    /// The points of the first trials, which no sampler chooses.
    fn known(&self, accepted: Option<&Point>) -> impl Iterator<Item = Point> {
        let mut known: Vec<Point> = accepted.cloned().into_iter().collect();
        for settings in self.first.iter().filter(|_| self.sampler != Sampler::Grid) {
            if let Some(point) = self.whole(settings).filter(|point| !known.contains(point)) {
                known.push(point);
            }
        }
        known.into_iter()
    }

    fn random(&self, number: u32) -> Option<Point> {
        self.space.draw(&mut Draws::new(self.seed, self.stage, number, Purpose::Uniform))
    }

    /// A point by a model of the observations, or of the Sobol sequence while there are too few of them.
    fn learn(
        &self,
        trials: &[Trial],
        number: u32,
        model: impl Fn(&Space, &[Observation], &mut Draws) -> Option<Point>,
    ) -> Option<Point> {
        let mut observed = self.warm.clone();
        observed.extend(history::observations(trials, &self.goals));
        let mut draws = Draws::new(self.seed, self.stage, number, Purpose::Candidates);
        model(&self.space, &observed, &mut draws).or_else(|| quasi::sobol(self, number)).or_else(|| self.random(number))
    }
}
