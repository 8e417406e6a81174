//! Nobody waits: a request is taken while there is a slot for it and refused when there is none.
//!
//! Rule: refuse when `running + waiting >= slots`, of which those that memory keeps empty are none. In front
//! of a [`Dispatcher`](crate::Dispatcher) whose slots are [adaptive](crate::limit) this is load shedding by measured
//! latency: the number of requests in flight follows what the engine can do, and the rest is told at
//! once. Right where a client has somewhere else to go, such as another replica; otherwise a short
//! queue rides out a burst better.

use serve_core::{Limit, Refusal, Request};

use super::{Admission, Admit, Load};
use crate::settings::Setting;

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "concurrency-limit",
    settings: &[&CONCURRENCY_LIMIT.row],
    reads_tenants: false,
    build: |settings| match settings.get(&CONCURRENCY_LIMIT) {
        false => Vec::new(),
        true => vec![Box::new(ConcurrencyLimit)],
    },
    by_default: || Box::new(ConcurrencyLimit),
};

const CONCURRENCY_LIMIT: Setting<bool> = Setting::switch(
    "concurrency_limit",
    "Refuse whatever would have to wait",
    false,
);

/// Nobody waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencyLimit;

impl Admit for ConcurrencyLimit {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn admit(&mut self, _request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        // Slots that memory keeps empty are none.
        let max = load
            .slots
            .min(load.running.saturating_add(load.slots_free()));
        let in_flight = load.running.saturating_add(load.waiting);
        if in_flight < max {
            return Ok(());
        }
        let excess = (in_flight - max).saturating_add(1);
        Err(Refusal::Later {
            limit: Limit::Concurrency { in_flight, max },
            retry_after: load.retry_after(load.time_to_drain(excess)),
        })
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Time, TokenId};

    use super::*;
    use crate::Pace;

    #[test]
    fn a_burst_counts_before_any_of_it_has_started() {
        let pace = Pace::default();
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        let admit = |running, waiting| {
            let load = Load {
                running,
                waiting,
                ..Load::idle(4, &pace)
            };
            ConcurrencyLimit.admit(&request, &load)
        };
        assert_eq!(admit(3, 0), Ok(()));
        assert_eq!(admit(0, 3), Ok(()));
        let limit = Limit::Concurrency {
            in_flight: 4,
            max: 4,
        };
        assert_eq!(admit(2, 2).unwrap_err().limit(), limit);
    }
}
