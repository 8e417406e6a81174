//! The search for the last load that passes. It measures nothing and knows no clock: it says which load
//! is to be measured next, and is told what came of it.
//!
//! 1. **Bracket.** From the first load it doubles until one does not pass. Where the first does not pass
//!    it goes down to the rate at which the server did answer, and at least by a factor of 2, then 4, 16,
//!    256, and doubles once from there: a beginning that is far too high costs few loads.
//! 2. **Bisect.** It halves the interval (in the logarithm) until its ends are as close as asked.
//! 3. **Repeat.** A load whose share of good requests is too close to call, or that was not delivered, is
//!    measured again with another seed and decided by all its requests; so are both ends of the answer,
//!    which rests on them. A flipped end sends the search on.
//!
//! A load that the client could not deliver never passes, and does not fail either: nothing is known of
//! the server there.

use std::fmt;

use serde::Serialize;

/// What is looked for, and how carefully.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Goal {
    /// The load to begin with, requests a second.
    pub from_per_s: f64,
    /// No load below it is tried.
    pub least_per_s: f64,
    /// No load above it is tried.
    pub most_per_s: f64,
    /// The search ends when the first load that does not pass is above the last that does by at most
    /// this share of it.
    pub resolution: f64,
    /// The share of all requests that must keep the objective for a load to pass.
    pub pass_share: f64,
    /// How often each load is measured.
    pub repeats: u32,
    /// How often a load is measured that is too close to call, undelivered, or an end of the answer.
    pub repeats_max: u32,
}

/// What one measurement of a load said.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// Requests that kept the objective.
    pub good: u64,
    /// All of them: those that failed, were refused or never sent are among them.
    pub requests: u64,
    /// Whole answers a second.
    pub answers_per_s: f64,
    /// Whether the client was the bottleneck.
    pub void: bool,
}

/// What is known of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Judged {
    /// Enough of its requests kept the objective.
    Passes,
    /// Too few did.
    Fails,
    /// It was never delivered.
    Void,
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passes => "passes",
            Self::Fails => "fails",
            Self::Void => "VOID",
        })
    }
}

impl Judged {
    /// By all delivered measurements of a load together.
    pub(crate) fn of(measured: &[Measured], pass_share: f64) -> Self {
        match together(measured) {
            None => Self::Void,
            // Multiplied, not divided: no requests keep no objective.
            Some((good, requests)) if requests > 0.0 && good >= pass_share * requests => {
                Self::Passes
            }
            Some(_) => Self::Fails,
        }
    }
}

/// Good and all requests of the measurements that were delivered.
fn together(measured: &[Measured]) -> Option<(f64, f64)> {
    let delivered = measured.iter().filter(|it| !it.void);
    let counts = delivered.map(|it| (it.good as f64, it.requests as f64));
    counts.reduce(|sum, more| (sum.0 + more.0, sum.1 + more.1))
}

/// Why a load is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Why {
    /// The search begins here.
    First,
    /// All so far pass.
    Up,
    /// None so far passes.
    Down,
    /// It lies between one that passes and one that does not.
    Between,
    /// So many measurements were asked for of each load.
    Repeat,
    /// Its share of good requests was too close to call.
    Borderline,
    /// It was not delivered.
    Undelivered,
    /// It is an end of the answer.
    Confirm,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first",
            Self::Up => "up",
            Self::Down => "down",
            Self::Between => "between",
            Self::Repeat => "repeat",
            Self::Borderline => "again: too close to call",
            Self::Undelivered => "again: not delivered",
            Self::Confirm => "again: an end of the answer",
        })
    }
}

/// A measurement that is to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Next {
    /// At this load, requests a second.
    pub load: f64,
    /// For the so-manieth time, from 0.
    pub repeat: u32,
    /// The reason.
    pub why: Why,
}

/// A step of the way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    /// The load.
    pub load: f64,
    /// For the so-manieth time, from 0.
    pub repeat: u32,
    /// The reason.
    pub why: Why,
    /// What came of it.
    #[serde(flatten)]
    pub measured: Measured,
    /// What was known of the load then.
    pub judged: Judged,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Found {
    /// The highest load below all that do not pass; `None` if none passes.
    pub passes: Option<f64>,
    /// The lowest load that does not pass, and why it does not; `None` if all pass.
    pub stops_at: Option<(f64, Judged)>,
}

/// A search under way.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    goal: Goal,
    /// By load.
    points: Vec<Point>,
    path: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Point {
    load: f64,
    /// Why it was measured first.
    why: Why,
    measured: Vec<Measured>,
}

impl Search {
    /// A search that has measured nothing yet.
    pub(crate) fn new(goal: Goal) -> Self {
        Self {
            goal,
            points: Vec::new(),
            path: Vec::new(),
        }
    }

    /// What is to be measured next; `None` when the answer is known. O(points).
    pub(crate) fn next(&self) -> Option<Next> {
        let again = |point: &Point| Some(self.next_of(point, self.undecided(point)?));
        if let Some(next) = self.points.iter().find_map(again) {
            return Some(next);
        }
        let (load, why) = match self.ends() {
            (None, None) => (self.goal.from_per_s, Why::First),
            (Some(last), None) if last.load < self.goal.most_per_s => {
                ((2.0 * last.load).min(self.goal.most_per_s), Why::Up)
            }
            (None, Some(stop)) if stop.load > self.goal.least_per_s => {
                (self.below(stop), Why::Down)
            }
            // What the server answered under too much load is near to what it can do.
            (Some(last), Some(stop)) if last.why == Why::Down && 2.0 * last.load < stop.load => {
                (2.0 * last.load, Why::Up)
            }
            (Some(last), Some(stop)) => match self.between(last.load, stop.load) {
                Some(load) => (load, Why::Between),
                None => return self.confirm(),
            },
            _ => return self.confirm(),
        };
        Some(Next {
            load,
            repeat: 0,
            why,
        })
    }

    /// Takes what the measurement that [`next`](Self::next) asked for said.
    pub(crate) fn saw(&mut self, next: Next, measured: Measured) {
        let at = self.points.partition_point(|it| it.load < next.load);
        if self.points.get(at).is_none_or(|it| it.load > next.load) {
            let point = Point {
                load: next.load,
                why: next.why,
                measured: Vec::new(),
            };
            self.points.insert(at, point);
        }
        self.points[at].measured.push(measured);
        self.path.push(Step {
            load: next.load,
            repeat: next.repeat,
            why: next.why,
            measured,
            judged: self.judged(&self.points[at]),
        });
    }

    /// What is known so far; it is the answer when nothing is [`next`](Self::next).
    pub(crate) fn found(&self) -> Found {
        let (last, stop) = self.ends();
        Found {
            passes: last.map(|it| it.load),
            stops_at: stop.map(|it| (it.load, self.judged(it))),
        }
    }

    /// Every measurement so far, in order.
    pub(crate) fn path(&self) -> &[Step] {
        &self.path
    }

    fn judged(&self, point: &Point) -> Judged {
        Judged::of(&point.measured, self.goal.pass_share)
    }

    /// The lowest point that does not pass, and the highest below it, which passes.
    fn ends(&self) -> (Option<&Point>, Option<&Point>) {
        let passes = |point: &&Point| self.judged(point) == Judged::Passes;
        let stop = self.points.iter().position(|point| !passes(&point));
        let last = stop.unwrap_or(self.points.len()).checked_sub(1);
        (
            last.and_then(|at| self.points.get(at)),
            stop.and_then(|at| self.points.get(at)),
        )
    }

    /// Why a point has to be measured again before it decides anything.
    fn undecided(&self, point: &Point) -> Option<Why> {
        let times = point.measured.len() as u32;
        if times < self.goal.repeats {
            return Some(Why::Repeat);
        }
        if times >= self.goal.repeats_max {
            return None;
        }
        match together(&point.measured) {
            None => Some(Why::Undelivered),
            Some((good, requests)) => {
                let close = is_close(good, requests, self.goal.pass_share);
                close.then_some(Why::Borderline)
            }
        }
    }

    /// An end of the answer that was measured only once.
    fn confirm(&self) -> Option<Next> {
        let (last, stop) = self.ends();
        let once = |point: &&Point| point.measured.len() == 1 && self.goal.repeats_max > 1;
        let point = last.into_iter().chain(stop).find(once)?;
        Some(self.next_of(point, Why::Confirm))
    }

    fn next_of(&self, point: &Point, why: Why) -> Next {
        Next {
            load: point.load,
            repeat: point.measured.len() as u32,
            why,
        }
    }

    /// A load below the lowest of all, none of which passes.
    fn below(&self, stop: &Point) -> f64 {
        let steps = self.points.len().clamp(1, 8) as u32 - 1;
        let lower = stop.load / 2_f64.powi(2_i32.pow(steps));
        // What the server does when it is asked for too much is about what it can do.
        let answered = stop.measured.iter().map(|it| it.answers_per_s);
        let answered = answered.fold(0.0, f64::max);
        let is_hint = answered > 0.0 && answered < stop.load / 2.0;
        let lower = if is_hint { answered } else { lower };
        rounded(lower).max(self.goal.least_per_s)
    }

    /// A load in the middle, unless the two are close enough.
    fn between(&self, last: f64, stop: f64) -> Option<f64> {
        let middle = rounded((last * stop).sqrt());
        let apart = stop > last * (1.0 + self.goal.resolution);
        (apart && last < middle && middle < stop).then_some(middle)
    }
}

/// To three digits: a load is a folder's name.
fn rounded(load: f64) -> f64 {
    format!("{load:.2e}").parse().unwrap_or(load)
}

/// Whether another seed could well have decided otherwise: whether the Wilson interval (1927; 95%) of the
/// share of good requests holds the share that is asked for. Where all are good there is nothing to
/// doubt that a repeat of the same length would show.
fn is_close(good: f64, requests: f64, pass_share: f64) -> bool {
    const Z: f64 = 1.96;
    let share = good / requests;
    let middle = (share + Z * Z / (2.0 * requests)) / (1.0 + Z * Z / requests);
    let spread = share * (1.0 - share) / requests + (Z / (2.0 * requests)).powi(2);
    let half = Z * spread.sqrt() / (1.0 + Z * Z / requests);
    good < requests && (middle - half..=middle + half).contains(&pass_share)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn goal(from: f64, most: f64) -> Goal {
        Goal {
            from_per_s: from,
            least_per_s: from / 1e4,
            most_per_s: most,
            resolution: 0.1,
            pass_share: 0.99,
            repeats: 1,
            repeats_max: 3,
        }
    }

    fn said(good: u64, requests: u64, answers_per_s: f64) -> Measured {
        Measured {
            good,
            requests,
            answers_per_s,
            void: false,
        }
    }

    /// A server that answers all in time up to its capacity, and beyond it as many as it can.
    fn server(capacity: f64) -> impl FnMut(Next) -> Measured {
        move |next| match next.load <= capacity {
            true => said(400, 400, next.load),
            false => said(
                (400.0 * capacity / next.load * 0.5) as u64,
                400,
                capacity.min(next.load),
            ),
        }
    }

    fn search(goal: Goal, mut server: impl FnMut(Next) -> Measured) -> Search {
        let mut search = Search::new(goal);
        while let Some(next) = search.next() {
            assert!(search.path().len() < 200, "it ends: {:?}", search.path());
            let measured = server(next);
            search.saw(next, measured);
        }
        search
    }

    fn loads(search: &Search) -> Vec<f64> {
        search.path().iter().map(|step| step.load).collect()
    }

    #[test]
    fn it_doubles_then_halves_the_interval_then_measures_both_ends_again() {
        let search = search(goal(1.0, 1_000.0), server(11.2));
        let expected = [1.0, 2.0, 4.0, 8.0, 16.0, 11.3, 9.51, 10.4, 10.4, 11.3];
        assert_eq!(loads(&search), expected);
        let found = Found {
            passes: Some(10.4),
            stops_at: Some((11.3, Judged::Fails)),
        };
        assert_eq!(search.found(), found);
    }

    #[test]
    fn a_beginning_that_is_far_too_high_goes_down_to_what_the_server_answers() {
        let fast = search(goal(5_000.0, 10_000.0), server(3.0));
        assert_eq!(loads(&fast)[..4], [5_000.0, 3.0, 6.0, 4.24]);
        assert!(fast.path().len() <= 9, "{:?}", loads(&fast));
        // A server that answers nothing at all beyond its capacity gives no hint.
        let silent = |next: Next| match next.load <= 3.0 {
            true => said(50, 50, next.load),
            false => said(0, 50, 0.0),
        };
        let search = search(goal(5_000.0, 10_000.0), silent);
        assert_eq!(loads(&search)[..4], [5_000.0, 2_500.0, 625.0, 39.1]);
        assert!(search.path().len() <= 14, "{:?}", loads(&search));
    }

    #[test]
    fn it_ends_at_its_bounds_and_says_so() {
        let all = search(goal(1.0, 6.0), server(100.0));
        assert_eq!(loads(&all), [1.0, 2.0, 4.0, 6.0, 6.0]);
        let found = all.found();
        assert_eq!((found.passes, found.stops_at), (Some(6.0), None));
        let none = search(goal(8.0, 100.0), server(0.0));
        let found = none.found();
        assert_eq!(found.passes, None);
        assert_eq!(found.stops_at, Some((8.0 / 1e4, Judged::Fails)));
    }

    #[test]
    fn a_load_that_is_too_close_to_call_is_measured_again_and_decided_by_all_its_requests() {
        // 99 of 100 would pass; with 97 and 98 the three together do not.
        let mut shares = [99, 97, 98].into_iter();
        let mut search = Search::new(goal(8.0, 8.0));
        while let Some(next) = search.next().filter(|next| next.load == 8.0) {
            search.saw(next, said(shares.next().unwrap(), 100, 8.0));
        }
        let steps = search.path().iter();
        let steps = steps.map(|step| (step.why, step.judged));
        let expected = [
            (Why::First, Judged::Passes),
            (Why::Borderline, Judged::Fails),
            (Why::Borderline, Judged::Fails),
        ];
        assert_eq!(steps.collect::<Vec<_>>(), expected);
        assert!(!is_close(10.0, 100.0, 0.99) && !is_close(100.0, 100.0, 0.99));
    }

    #[test]
    fn an_end_that_flips_when_it_is_measured_again_sends_the_search_on() {
        let flips = |next: Next| match (next.load, next.repeat) {
            (load, 0) if load <= 4.0 => said(100, 100, load),
            (load, _) if load <= 2.0 => said(100, 100, load),
            (load, _) => said(10, 100, load),
        };
        let found = search(goal(1.0, 8.0), flips).found();
        assert!((2.0..2.2).contains(&found.passes.unwrap()), "{found:?}");
        assert!(found.stops_at.unwrap().0 <= 2.2, "{found:?}");
    }

    #[test]
    fn a_load_that_was_not_delivered_never_passes_and_is_tried_again() {
        let void = |next: Next| Measured {
            // One that the machine spoiled, and a client that cannot do more than 100 a second.
            void: next.load > 100.0 || (next.load == 8.0 && next.repeat == 0),
            ..said(100, 100, next.load)
        };
        let search = search(goal(8.0, 1_000.0), void);
        let first = search.path()[..2]
            .iter()
            .map(|step| (step.why, step.judged));
        let expected = [
            (Why::First, Judged::Void),
            (Why::Undelivered, Judged::Passes),
        ];
        assert_eq!(first.collect::<Vec<_>>(), expected);
        let found = search.found();
        assert!((91.0..=100.0).contains(&found.passes.unwrap()), "{found:?}");
        assert_eq!(found.stops_at.map(|(_, why)| why), Some(Judged::Void));
    }

    #[test]
    fn failures_count_and_no_request_is_no_pass() {
        assert_eq!(Judged::of(&[said(98, 100, 1.0)], 0.99), Judged::Fails);
        assert_eq!(Judged::of(&[said(99, 100, 1.0)], 0.99), Judged::Passes);
        assert_eq!(Judged::of(&[said(0, 0, 0.0)], 0.99), Judged::Fails);
        assert_eq!(Judged::of(&[], 0.99), Judged::Void);
    }

    proptest! {
        /// Whatever the beginning, the capacity is found to within the resolution, in few loads.
        #[test]
        fn the_capacity_lies_between_what_passes_and_what_does_not(
            capacity in 0.05_f64..5_000.0,
            from in 0.05_f64..5_000.0,
            resolution in 0.02_f64..0.5,
            hints in any::<bool>(),
        ) {
            let goal = Goal { least_per_s: 0.01, resolution, ..goal(from, 10_000.0) };
            let mut server = server(capacity);
            let search = search(goal, |next| {
                let said = server(next);
                Measured { answers_per_s: if hints { said.answers_per_s } else { 0.0 }, ..said }
            });
            let found = search.found();
            let (passes, (stops, why)) = (found.passes.unwrap(), found.stops_at.unwrap());
            prop_assert!(passes <= capacity && capacity < stops, "{:?}", found);
            prop_assert_eq!(why, Judged::Fails);
            // Three digits of a load are 1% at worst, on either side.
            prop_assert!(stops / passes <= 1.0 + resolution.max(0.021), "{:?}", found);
            let ratio = (capacity / from).max(from / capacity).max(2.0);
            let bracket = ratio.log2() + 1.0;
            let bisect = ((bracket * 2_f64.ln() * 2.0).max(0.7) / (1.0 + resolution).ln()).log2();
            let most = 3.0 + bracket + bisect.max(0.0).ceil() + 2.0;
            prop_assert!(search.path().len() as f64 <= most, "{most}: {:?}", loads(&search));
        }

        /// On a server whose answers are a matter of luck, and a client that sometimes cannot, the search
        /// ends, calls nothing passing that is void or short of the share, and keeps within its bounds.
        #[test]
        fn luck_does_not_keep_it_from_ending_or_from_the_truth(
            capacity in 1.0_f64..500.0,
            from in 0.5_f64..1_000.0,
            draws in prop::collection::vec((0_u64..100, 0.0_f64..1.0), 200),
        ) {
            let goal = goal(from, 2_000.0);
            let mut draws = draws.into_iter();
            let search = search(goal, |next| {
                let (luck, void) = draws.next().unwrap();
                // Around the capacity between all and none are good.
                let share = 1.0 / (1.0 + (next.load / capacity).powi(12));
                let bad = (200.0 * (1.0 - share)) as u64 + luck % 4;
                let void = void < 0.1;
                Measured { void, ..said(200_u64.saturating_sub(bad), 200, next.load.min(capacity)) }
            });
            let path = search.path();
            prop_assert!(path.iter().all(|it| it.load >= goal.least_per_s && it.load <= goal.most_per_s));
            prop_assert!(path.iter().all(|it| it.repeat < goal.repeats_max));
            let of = |load: f64| {
                let steps = path.iter().filter(move |it| it.load == load && !it.measured.void);
                steps.fold((0, 0), |sum, it| (sum.0 + it.measured.good, sum.1 + it.measured.requests))
            };
            let found = search.found();
            if let Some(passes) = found.passes {
                let (good, requests) = of(passes);
                prop_assert!(requests > 0 && good as f64 >= 0.99 * requests as f64);
                let times = path.iter().filter(|it| it.load == passes).count();
                prop_assert!(times >= 2, "an end is measured at least twice");
            }
            if let Some((stops, why)) = found.stops_at {
                let (good, requests) = of(stops);
                prop_assert_eq!(why == Judged::Void, requests == 0);
                prop_assert!(requests == 0 || (good as f64) < 0.99 * requests as f64);
            }
        }
    }
}
