//! Which waiting request is next?
//!
//! A policy does not keep the queue. It says where a request stands, as a lane and a key within the
//! lane, and the [`Gate`](crate::Gate) keeps the requests sorted in O(log n). An order that changes
//! with time says when to ask again, and the request is moved at that moment; nothing is scanned.

mod aging_tiers;
mod earliest_deadline;
mod fair_tenants;
mod fifo;
mod response_ratio;
mod strict_tiers;

pub use aging_tiers::AgingTiers;
pub use earliest_deadline::EarliestDeadline;
pub use fair_tenants::FairTenants;
pub use fifo::Fifo;
pub use response_ratio::ResponseRatio;
pub use strict_tiers::StrictTiers;

use serve_core::{Request, Time};

use crate::named::Named;
use crate::settings::Setting;

/// Which order it is.
pub const ORDER: Setting<&'static str> =
    Setting::name("order", "Which waiting request is next", "fifo", || {
        Named::names(ORDERS)
    });

/// Every order policy, with its settings.
pub const ORDERS: &[Named<dyn Order>] = &[
    fifo::POLICY,
    strict_tiers::POLICY,
    aging_tiers::POLICY,
    fair_tenants::POLICY,
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
    /// The name in the journal.
    fn name(&self) -> &'static str;

    /// Where a request stands from `now` on.
    ///
    /// Asked when the request begins to wait, when it comes back after a preemption, and at the
    /// time that the last answer named in [`Place::again`].
    fn place(&mut self, waiting: &Waiting<'_>, now: Time) -> Place;

    /// How the lanes compare. By default the lane with the lowest number goes first.
    fn lanes(&self) -> Lanes {
        Lanes::Numbered
    }

    /// How a lane stands among the others, the lowest first, given the request at its head. Of
    /// equals the lane with the lower number goes first. Not asked for [`Lanes::Numbered`].
    fn lane_key(&self, lane: u32, head: &Waiting<'_>, now: Time) -> u64 {
        let _ = (head, now);
        u64::from(lane)
    }

    /// The lane that a request will stand in if it is taken at `now`, where that tells who goes
    /// before it: all in lanes of lower numbers, and all in its own. Admission predicts its wait
    /// from them; `None`, the default, is everybody. For [`Lanes::Numbered`]; such an arrival costs
    /// O(lanes).
    fn lane_on_arrival(&self, request: &Request, now: Time) -> Option<u32> {
        let _ = (request, now);
        None
    }

    /// A request begins to wait, or waits again after a preemption; told before it is placed.
    fn arrived(&mut self, waiting: &Waiting<'_>, now: Time) {
        let _ = (waiting, now);
    }

    /// A request waits no longer. `started` says that it was taken, and not called off.
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
    /// How often it has been preempted.
    pub preemptions: u32,
}

/// Where a waiting request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The lane, a queue of its own: a class, a tenant, a group of similar requests.
    pub lane: u32,
    /// The order within the lane, the lowest first; of equals, the one that arrived first.
    pub key: u64,
    /// When to ask again, if the answer changes with time.
    pub again: Option<Time>,
}

impl Place {
    /// A place by `key` in the only lane.
    pub const fn by_key(key: u64) -> Self {
        Self {
            lane: 0,
            key,
            again: None,
        }
    }

    /// A place by arrival in `lane`.
    pub const fn in_lane(lane: u32) -> Self {
        Self {
            lane,
            key: 0,
            again: None,
        }
    }

    /// The same place, to be asked for again at `again`.
    #[must_use]
    pub const fn until(mut self, again: Time) -> Self {
        self.again = Some(again);
        self
    }
}

/// How lanes compare, and so what a choice among them costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// By number, the lowest first. O(log n) in the requests that wait.
    Numbered,
    /// By [`Order::lane_key`], which never falls while something waits in the lane (a counter of
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
