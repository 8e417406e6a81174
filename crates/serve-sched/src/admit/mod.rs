//! Take this request, or refuse it, and when may it come back?
//!
//! Policies compose in order: the first that refuses decides, and only when all have agreed does any
//! of them count the request.

mod queue_cap;

pub use queue_cap::QueueCap;

use serve_core::{Class, Refusal, Request, RequestId, Span, Time};

use crate::Pace;
use crate::named::Named;

/// Every admission policy with its default parameters, by the name that a binary's settings use.
pub const ADMISSIONS: &[Named<dyn Admit>] = &[Named {
    name: "queue-cap",
    build: || Box::new(QueueCap::default()),
}];

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

    /// Every policy took the request: now it counts.
    fn admitted(&mut self, request: &Request, load: &Load<'_>) {
        let _ = (request, load);
    }

    /// A request that had been started has ended by itself, `took` after its start.
    fn ended(&mut self, request: &Request, took: Span, load: &Load<'_>) {
        let _ = (request, took, load);
    }
}

/// What a policy may know of the moment.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// The time.
    pub now: Time,
    /// Requests waiting.
    pub waiting: u32,
    /// Prompt tokens of the requests that wait.
    pub waiting_prompt_tokens: u64,
    /// Requests started and not ended.
    pub running: u32,
    /// Requests that can run side by side at most.
    pub slots: u32,
    /// Whether a waiting request may join what runs; not in a static batch.
    pub joinable: bool,
    /// How fast the engine has been.
    pub pace: &'a Pace,
    /// When each running request started, the longest-running first.
    pub(crate) started: &'a [(Time, RequestId)],
    pub(crate) waiting_by_class: &'a [u32],
}

impl Load<'_> {
    /// Requests of `class` waiting.
    pub fn waiting_of(&self, class: Class) -> u32 {
        let rank = usize::from(class.rank());
        self.waiting_by_class.get(rank).copied().unwrap_or(0)
    }

    /// How long the engine takes to end `requests`, from the measured drain rate; `None` while no
    /// request has ended yet.
    pub fn time_to_drain(&self, requests: u32) -> Option<Span> {
        let rate = self.pace.drain_rate()?;
        Some(Span::from_secs_f64(f64::from(requests) / rate))
    }
}
