//! Which waiting request is next?
//!
//! A policy does not keep the queue. It says where a request stands, as a lane and a key within the
//! lane, and the [`Gate`](crate::Gate) keeps the requests sorted in O(log n). An order that changes
//! with time says when to ask again, and the request is moved at that moment; nothing is scanned.
//!
//! Orders compose: [`Tiers`] and [`FairGroups`] keep an order of its own in each class and group,
//! [`Aging`] lets a request that has waited too long go before an order. A place is then a path of lanes,
//! the outermost first, and each level of it compares its lanes in its own way.

mod aging_tiers;
mod by_name;
mod compose;
mod earliest_deadline;
mod fair_groups;
mod fair_tenants;
mod fifo;
mod in_flight;
mod response_ratio;
mod share;
mod strict_tiers;

pub use aging_tiers::AgingTiers;
pub(crate) use by_name::OUTER;
pub use by_name::{InvalidOrder, OrderSettings};
pub use compose::{Aging, Factory, LEVELS_MAX, Path, Tiers};
pub use earliest_deadline::EarliestDeadline;
pub use fair_groups::FairGroups;
pub use fair_tenants::FairTenants;
pub use fifo::Fifo;
pub use in_flight::InFlight;
pub use response_ratio::ResponseRatio;
pub use share::Members;
pub use strict_tiers::StrictTiers;

use std::num::NonZeroU32;

use serve_core::{Request, Time};

use crate::demand::Demand;
use crate::settings::{Change, Named, Row, Setting};

/// Which order it is.
pub const ORDER: Setting<String> = Setting::path(
    "order",
    "Which waiting request is next",
    "fifo",
    || by_name::OUTER.iter().map(|outer| outer.name).collect(),
    || Named::names(ORDERS),
)
.checked(|settings| {
    let order = OrderSettings::of(settings).order(&settings.get(&ORDER));
    order.map(drop).map_err(|error| error.to_string())
});

/// Every order policy, with its settings.
pub const ORDERS: &[Named<dyn Order>] = &[
    fifo::POLICY,
    strict_tiers::POLICY,
    aging_tiers::POLICY,
    fair_tenants::POLICY,
    fair_groups::POLICY,
    earliest_deadline::POLICY,
    response_ratio::POLICY,
];

/// An order among waiting requests.
///
/// The one method that matters is [`place`](Self::place). The simplest policy gives every request
/// the same [`Place`] and gets first come, first served:
///
/// ```
/// use serve_core::Time;
/// use serve_sched::order::{Order, Place, Waiting};
///
/// /// The shortest prompt first.
/// struct ShortestPrompt;
///
/// impl Order for ShortestPrompt {
///     fn name(&self) -> &'static str {
///         "shortest-prompt"
///     }
///
///     fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
///         Place::by_key(u64::from(waiting.request.prompt_tokens()))
///     }
/// }
/// ```
pub trait Order: Send {
    /// The name in settings.
    fn name(&self) -> &str;

    /// Where a request stands from `now` on.
    ///
    /// Asked when the request begins to wait, when it comes back after a preemption, and at the
    /// time that the last answer named in [`Place::again`]; and of a newcomer, to tell what waits
    /// before it, although it may then be refused. So it counts nothing:
    /// [`arrived`](Self::arrived) does.
    fn place(&mut self, waiting: &Waiting<'_>, now: Time) -> Place;

    /// How the lanes compare, in an order of one level. By default the lane with the lowest number
    /// goes first.
    fn lanes(&self) -> Lanes {
        Lanes::Numbered
    }

    /// How the lanes of each level compare, the outermost first; at most [`LEVELS_MAX`].
    fn levels(&self) -> Vec<Lanes> {
        vec![self.lanes()]
    }

    /// How a lane stands among the others of its level, the lowest first, given the request at its
    /// head. `path` is the lane and those that it lies in, the outermost first. Of equals the lane
    /// with the lower number goes first. Asked for [`Lanes::Scanned`].
    fn lane_key(&self, path: &[u32], head: &Waiting<'_>, now: Time) -> u64 {
        let _ = (path, head, now);
        0
    }

    /// What a lane has been given for each share, the lowest first; asked for [`Lanes::Rising`].
    fn lane_counter(&self, path: &[u32]) -> u128 {
        let _ = path;
        0
    }

    /// The share of a lane where others have one of 1, for [`Lanes::Rising`]: of a full queue it may
    /// hold as large a part as its share is of those of all who wait.
    fn lane_share(&self, path: &[u32]) -> NonZeroU32 {
        let _ = path;
        NonZeroU32::MIN
    }

    /// What of `others`, the demand that waits in other lanes of a level, goes before a newcomer to
    /// the lane at the end of `path`, which has `own` before it in that lane. Asked for
    /// [`Lanes::Rising`]; all of it, if nothing better is known.
    fn others_ahead(&mut self, path: &[u32], own: &Demand, others: &Demand) -> Demand {
        let _ = (path, own);
        *others
    }

    /// From when on nobody passes this request, of whatever class: it is not displaced by a class
    /// once it has joined after that, nor do newer prompts go before its own. `None`, the default, is
    /// never.
    fn ages_at(&self, request: &Request) -> Option<Time> {
        let _ = request;
        None
    }

    /// A request begins to wait, or waits again after a preemption; told before it is placed.
    fn arrived(&mut self, waiting: &Waiting<'_>, now: Time) {
        let _ = (waiting, now);
    }

    /// A request waits no longer. `started` says that it was taken, and not cancelled.
    fn left(&mut self, waiting: &Waiting<'_>, started: bool, now: Time) {
        let _ = (waiting, started, now);
    }

    /// A running request was served. Several steps may be told at once, so what a policy makes of
    /// it must add up.
    fn served(&mut self, request: &Request, served: Served) {
        let _ = (request, served);
    }

    /// A request that had been taken has ended, however it did; it will not be served again.
    fn ended(&mut self, request: &Request) {
        let _ = request;
    }

    /// Whether it can take another value of this setting while requests wait and run.
    fn takes(&self, row: &Row) -> bool {
        let _ = row;
        false
    }

    /// Some of the settings that it [takes](Self::takes) are to be others, or something else holds of tenants.
    /// It goes on with what it has counted. Every waiting request is placed again afterwards; `in_flight`
    /// is for an order that has to move them from one count to another.
    fn change(&mut self, change: &Change, in_flight: &InFlight<'_>, now: Time) {
        let _ = (change, in_flight, now);
    }

    /// A request that had been taken counts here from now on, as a [change](Self::change) has moved it here.
    fn moved_here(&mut self, request: &Request) {
        let _ = request;
    }
}

/// A waiting request as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// The request.
    pub request: &'a Request,
    /// Its place in the order of arrival at the gate, kept through preemptions.
    pub sequence: u64,
    /// Since when it waits; after a preemption, since then.
    pub since: Time,
    /// How often it has been preempted, or put back for another reason; 0 if it has never started.
    pub preemptions: u32,
}

/// Where a waiting request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The lane at each level, the outermost first. A lane is a queue of its own: a class, a tenant, a
    /// group of similar requests.
    pub path: Path,
    /// The order within the innermost lane, the lowest first; of equals, the one that arrived first.
    pub key: u64,
    /// When to ask again, if the answer changes with time.
    pub again: Option<Time>,
}

impl Place {
    /// A place by `key` in the only lane.
    pub const fn by_key(key: u64) -> Self {
        Self::in_lane(0).keyed(key)
    }

    /// A place by arrival in `lane`.
    pub const fn in_lane(lane: u32) -> Self {
        Self {
            path: Path::of(lane),
            key: 0,
            again: None,
        }
    }

    /// The same lane, with a place by `key` in it.
    #[must_use]
    pub const fn keyed(mut self, key: u64) -> Self {
        self.key = key;
        self
    }

    /// The same place, to be asked for again at `again`.
    #[must_use]
    pub const fn until(mut self, again: Time) -> Self {
        self.again = Some(again);
        self
    }

    /// The same place inside of `lane`, at a level outside of those that it has.
    #[must_use]
    pub fn under(mut self, lane: u32) -> Self {
        self.path = self.path.under(lane);
        self
    }
}

/// How lanes compare, and so what a choice among them costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// By number, the lowest first. O(log n) in the requests that wait.
    Numbered,
    /// By [`Order::lane_counter`], which never falls while something waits in the lane (a counter of
    /// tokens served). O(log lanes) on average.
    Rising,
    /// By [`Order::lane_key`], which may change in any way (a ratio that depends on the time). Every
    /// lane is asked at every choice: keep to some tens of lanes.
    Scanned,
}

/// What running requests were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Prompt tokens run for the first time; those found in the prefix cache are not among them.
    pub prompt_tokens: u32,
    /// Tokens sampled.
    pub output_tokens: u32,
}
