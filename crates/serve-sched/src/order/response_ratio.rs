//! Short requests go first, and waiting makes up for being long (Brinch Hansen, *Short-term
//! scheduling in multiprogramming systems*, SOSP 1971: highest response ratio next).
//!
//! Rule: the highest `(wait + work) / work` goes first, where work = prompt tokens + output limit.
//! How long a token takes does not matter, as it is the same for everybody, so `wait / work` in
//! nanoseconds for each token is what is compared.
//!
//! Ratios change with time, each at its own rate, so a sorted queue cannot hold them. Requests of
//! similar work share a lane, in the order of arrival: four lanes for each doubling, the widest
//! spanning a factor of 5/4. A choice compares the heads of the lanes, at most 123 of them however
//! many requests wait.
//!
//! *Error of the lanes:* the head of a lane has waited longest, and nobody in it has less than 4/5 of
//! its work, so the ratio of the request chosen is at least 4/5 of the highest.
//!
//! Bound: a request of `n` tokens is chosen before any newcomer that has waited less than
//! `wait x work / n x 4/5`. Where the queue is stable, that ends every wait. Overloaded without end,
//! the short ones' own waits grow too and can keep a long one out, so after `wait_max` a request goes
//! before everybody, in the order of arrival: as in
//! [`AgingTiers`](super::AgingTiers), `wait <= wait_max + in service + older ones`.

use serve_core::{Request, Span, Time};

use super::{InFlight, Lanes, Order, Place, Waiting};
use crate::settings::{Change, Named, Row, Setting};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Order> = Named {
    name: "response-ratio",
    settings: &[&WAIT_MAX.row],
    build: |settings| Box::new(ResponseRatio::new(settings.get(&WAIT_MAX))),
};

/// Nobody is passed any more after a minute.
pub(super) const WAIT_MAX: Setting<Span> = Setting::seconds(
    "wait_max",
    "Seconds after which a waiting request goes before everybody; 0 is never",
    Span::from_secs(60),
);

/// The highest response ratio first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseRatio {
    wait_max: Span,
}

const STARVING: u32 = 0;

impl ResponseRatio {
    /// A request that has waited for `wait_max` goes before all others; zero is never, and leaves the ratio
    /// alone to decide.
    pub const fn new(wait_max: Span) -> Self {
        Self { wait_max }
    }
}

impl Default for ResponseRatio {
    /// As the setting `wait_max` is by default.
    fn default() -> Self {
        Self::new(WAIT_MAX.usual())
    }
}

impl Order for ResponseRatio {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn place(&mut self, waiting: &Waiting<'_>, now: Time) -> Place {
        let arrival = waiting.request.arrival();
        let place = Place::in_lane(1 + lane_of(work(waiting))).keyed(arrival.as_nanos());
        match self.ages_at(waiting.request) {
            None => place,
            Some(starves_at) if now < starves_at => place.until(starves_at),
            Some(_) => Place::in_lane(STARVING).keyed(place.key),
        }
    }

    fn takes(&self, row: &Row) -> bool {
        row.name == WAIT_MAX.row.name
    }

    fn change(&mut self, change: &Change, _in_flight: &InFlight<'_>, _now: Time) {
        self.wait_max = change.value(&WAIT_MAX).unwrap_or(self.wait_max);
    }

    fn ages_at(&self, request: &Request) -> Option<Time> {
        (!self.wait_max.is_zero()).then(|| request.arrival() + self.wait_max)
    }

    fn lanes(&self) -> Lanes {
        Lanes::Scanned
    }

    fn lane_key(&self, path: &[u32], head: &Waiting<'_>, now: Time) -> u64 {
        if path == [STARVING] {
            return 0;
        }
        let waited = now.since(head.request.arrival()).as_nanos();
        // 2^20 keeps the fraction of a nanosecond for each token; the highest ratio is the lowest key.
        let ratio = (u128::from(waited) << 20) / u128::from(work(head));
        u64::MAX - u64::try_from(ratio).unwrap_or(u64::MAX - 1)
    }
}

/// Tokens that a request can take, at least 2: one of prompt and one of output.
fn work(waiting: &Waiting<'_>) -> u32 {
    waiting.request.positions_max() + 1
}

/// Four lanes for each power of two: the two bits after the leading one.
fn lane_of(work: u32) -> u32 {
    let exponent = work.max(1).ilog2();
    let fraction = match exponent {
        0 | 1 => (work << (2 - exponent)) & 3,
        _ => (work >> (exponent - 2)) & 3,
    };
    exponent * 4 + fraction
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serve_core::{RequestId, TokenId};

    use super::*;
    use crate::Settings;

    fn request(arrival_ns: u64, prompt: u32, output: u32) -> Request {
        let prompt = vec![TokenId::new(1); prompt as usize];
        Request::new(
            RequestId::new(1),
            Time::from_nanos(arrival_ns),
            prompt,
            output,
        )
        .unwrap()
    }

    fn waiting(request: &Request) -> Waiting<'_> {
        Waiting {
            request,
            sequence: 0,
            since: request.arrival(),
            preemptions: 0,
        }
    }

    #[test]
    fn a_lane_spans_a_factor_of_five_quarters_at_most() {
        for lane in 0..64 {
            let members: Vec<u32> = (1..20_000).filter(|&work| lane_of(work) == lane).collect();
            if let (Some(&low), Some(&high)) = (members.first(), members.last()) {
                assert!(f64::from(high) / f64::from(low) < 1.25, "{low} to {high}");
            }
        }
        assert!(lane_of(u32::MAX) <= 127);
    }

    proptest! {
        /// The bucketing costs at most a fifth of the best ratio.
        #[test]
        fn the_chosen_ratio_is_at_least_four_fifths_of_the_highest(
            queue in prop::collection::vec((0_u64..1_000_000, 1_u32..600, 1_u32..4_000), 1..60),
        ) {
            let mut order = ResponseRatio::new(Span::ZERO);
            let now = Time::from_nanos(1_000_001);
            let requests: Vec<Request> =
                queue.iter().map(|&(at, prompt, output)| request(at, prompt, output)).collect();
            let ratio = |request: &Request| {
                now.since(request.arrival()).as_nanos() as f64 / f64::from(work(&waiting(request)))
            };
            let chosen = requests.iter().map(|request| {
                let place = order.place(&waiting(request), now);
                ((place.path.lanes()[0], place.key), request)
            });
            // The head of each lane, and of those the lowest lane key, as the gate chooses.
            let mut heads = std::collections::BTreeMap::new();
            for ((lane, key), request) in chosen {
                let head = heads.entry(lane).or_insert((key, request));
                if key < head.0 {
                    *head = (key, request);
                }
            }
            let chosen = heads
                .iter()
                .min_by_key(|(lane, (_, head))| order.lane_key(&[**lane], &waiting(head), now))
                .map(|(_, (_, head))| ratio(head))
                .unwrap();
            let highest = requests.iter().map(ratio).fold(0.0, f64::max);
            prop_assert!(chosen >= highest * 0.8 - 1e-9, "{chosen} of {highest}");
        }
    }

    #[test]
    fn the_longest_wait_is_that_of_the_settings() {
        let request = request(1_000, 5, 5);
        for wait_max in [WAIT_MAX.usual(), Span::from_millis(50)] {
            let mut order = (POLICY.build)(&Settings::default().with(&WAIT_MAX, wait_max));
            let again = order.place(&waiting(&request), request.arrival()).again;
            assert_eq!(again, Some(request.arrival() + wait_max));
        }
    }

    #[test]
    fn a_long_wait_beats_a_short_request_and_the_longest_beats_all() {
        let mut order = ResponseRatio::new(Span::from_millis(10));
        let (long, short) = (request(0, 500, 500), request(900_000, 5, 5));
        let mut key = |request: &Request, now_ns| {
            let now = Time::from_nanos(now_ns);
            let place = order.place(&waiting(request), now);
            order.lane_key(place.path.lanes(), &waiting(request), now)
        };
        // 905 us for 1,000 tokens against 5 us for 10.
        assert!(key(&long, 905_000) < key(&short, 905_000));
        // 1 ms for 1,000 against 100 us for 10.
        assert!(key(&short, 1_000_000) < key(&long, 1_000_000));
        // After 10 ms, before everybody.
        assert_eq!(key(&long, 10_000_000), 0);
        assert!(key(&short, 10_000_000) > 0);
    }
}
