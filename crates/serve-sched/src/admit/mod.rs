//! Take this request, or refuse it, and when may it come back?
//!
//! Policies compose in order: the first that refuses decides, and only when all have agreed does any
//! of them count the request.

mod concurrency_limit;
mod deadline_prediction;
mod first_token_budget;
mod in_flight_limits;
mod latency_budget;
mod queue_cap;
mod token_bucket;

pub use crate::load::Load;
pub(crate) use crate::load::Room;
pub use concurrency_limit::ConcurrencyLimit;
pub use deadline_prediction::DeadlinePrediction;
pub use first_token_budget::FirstTokenBudget;
pub use in_flight_limits::{Bound, InFlightLimits};
pub use latency_budget::LatencyBudget;
pub use queue_cap::{QUEUE_CAP, QueueCap};
pub use token_bucket::{Cost, Quota, TokenBucket};

use serve_core::{CancelReason, Refusal, Request, Span, Time, Usage};

use crate::settings::{CLASSES, Row, Setting, Settings};

/// Every admission policy with its settings, in the order in which they are asked: cheap and certain
/// limits first, predictions last, as the first that refuses names the reason.
pub const ADMISSIONS: &[Admission] = &[
    queue_cap::POLICY,
    concurrency_limit::POLICY,
    in_flight_limits::POLICY,
    token_bucket::POLICY,
    deadline_prediction::POLICY,
    first_token_budget::POLICY,
    latency_budget::POLICY,
];

/// Every class that a setting names is there.
fn check_classes(settings: &Settings, of: &Setting<Vec<(String, u32)>>) -> Result<(), String> {
    let mut names = settings.get(of).into_iter();
    match names.find(|(name, _)| settings.class(name).is_none()) {
        None => Ok(()),
        Some((name, _)) => {
            let known = settings.get(&CLASSES).join(", ");
            Err(format!("there is no class {name:?}; known are {known}"))
        }
    }
}

/// One admission policy. Unlike those of other families, any number of them hold at once.
pub struct Admission {
    /// The name, in the spelling of journals.
    pub name: &'static str,
    /// The settings that it owns. With their defaults it may be off.
    pub settings: &'static [&'static Row],
    /// Whether what is said of single tenants concerns it.
    pub reads_tenants: bool,
    /// Makes the policies that the settings ask for, in the order in which they are asked; none where
    /// it is off.
    pub build: fn(&Settings) -> Vec<Box<dyn Admit>>,
    /// Makes the policy with its default parameters, as library users have it.
    pub by_default: fn() -> Box<dyn Admit>,
}

/// A rule for taking requests in. The one method that matters is [`admit`](Self::admit).
///
/// A request that was preempted is not asked about again: it has been admitted.
pub trait Admit: Send {
    /// The name in the journal.
    fn name(&self) -> &'static str;

    /// Takes the request or refuses it. Counts nothing: a later policy may still refuse.
    ///
    /// # Errors
    ///
    /// The [`Refusal`]: *later*, with a time where one is known, or *never*.
    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal>;

    /// Whether it refuses no request of a tenant and class that it would not refuse the shortest of, so that it
    /// can be asked before a request's length is known, and no work is done for what it refuses.
    fn refuses_any_length(&self) -> bool {
        false
    }

    /// Work is going to be done for a request of which tenant, class and id are known, and that it comes to `tokens`
    /// at most. Every policy that [can be asked so early](Self::refuses_any_length) has taken it, and no other is
    /// told of it: now the work counts, until the request is admitted under its id or the work is
    /// [released](Self::release).
    fn reserve(&mut self, request: &Request, tokens: u32, load: &Load<'_>) {
        let _ = (request, tokens, load);
    }

    /// A request for which work was [reserved](Self::reserve) does not come, or was refused. The work has come to
    /// `tokens`; 0 where nothing is to count. Without effect on one that was admitted.
    fn release(&mut self, request: &Request, tokens: u32, load: &Load<'_>) {
        let _ = (request, tokens, load);
    }

    /// Every policy took the request: now it counts.
    fn admitted(&mut self, request: &Request, load: &Load<'_>) {
        let _ = (request, load);
    }

    /// Until when [`gives_up`](Self::gives_up) is asked about admitted requests.
    fn watches(&self) -> Watch {
        Watch::Nobody
    }

    /// Whether to cancel an admitted request, of which `done` tokens have been generated, as it cannot be in
    /// time any more. Asked when it would join a batch, and as it goes on where the policy
    /// [watches](Self::watches) those that run; `load.own` is what it has left.
    fn gives_up(&mut self, request: &Request, done: u32, load: &Load<'_>) -> bool {
        let _ = (request, done, load);
        false
    }

    /// Which of several policies of its [name](Self::name) it is, as one setting makes one for all and
    /// another makes one for each tenant.
    fn part(&self) -> u8 {
        0
    }

    /// Takes its settings anew while requests wait and run, and goes on with what it has counted. Said to
    /// the policies of [`ADMISSIONS`] alone, which are made of settings.
    fn change(&mut self, settings: &Settings, now: Time) {
        let _ = (settings, now);
    }

    /// A request that was [admitted](Self::admitted) has ended, however it did: said once of each.
    fn ended(&mut self, ended: &Ended<'_>, load: &Load<'_>) {
        let _ = (ended, load);
    }
}

/// Which admitted requests a policy may still give up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// None.
    #[default]
    Nobody,
    /// Those that are about to join a batch.
    Joining,
    /// Those, and those that run.
    Running,
}

/// How an admitted request has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// The request.
    pub request: &'a Request,
    /// Why it is over.
    pub cause: Cause,
    /// What it used.
    pub usage: Usage,
    /// How long after its first start; `None` if it never started.
    pub ran: Option<Span>,
}

/// Why an admitted request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself.
    Finished,
    /// It was cancelled, by its client, by a time limit or by a drain.
    Cancelled(CancelReason),
    /// The engine failed under it.
    Failed,
    /// It was displaced from a full queue.
    Displaced,
}
