//! Where the answer is expected to end first: what is ahead, what is cached and how fast the upstream has been, all in seconds.

use super::{Candidate, Route, Work};

/// Where the answer is predicted to end first.
///
/// ```text
/// end    = wait + service(prompt - credit)
/// credit = cached there, or 0 where given > 5/4 x least given + 4 x service(prompt)
/// ```
///
/// *Wait* is what the prompts ahead take, *service* what this request takes alone, both at the measured
/// [speed](super::Speed). So a cached prefix is worth the seconds that it saves and no more, and an upstream that is ahead of
/// the others for its prefixes alone has no credit until they have come after.
///
/// Two bounds follow, however the prefixes lie. A request that the policy has sent is predicted to end no later than it would
/// at any other candidate with nothing cached; so where upstreams are alike and hold as much in their KV caches, the one that
/// got it has no more work ahead than any other would have with the whole of that request (greedy list scheduling: Graham,
/// *Bounds on multiprocessing timing anomalies*, 1969). And of upstreams that are alike and have nothing ahead, none is given more than 5/4 of
/// the least given and five requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictedEnd;

/// An upstream that has been given this many times what the least has been given ..
const LEAD: f64 = 1.25;

/// .. and so many requests like this one more, has no credit for what is cached there.
const LEAD_REQUESTS: f64 = 4.0;

impl Route for PredictedEnd {
    fn name(&self) -> &'static str {
        "predicted-end"
    }

    fn cost(&self, work: &Work<'_>, candidate: &Candidate) -> f64 {
        let lead = LEAD * candidate.given_least_secs + LEAD_REQUESTS * candidate.whole_secs;
        let credit = match candidate.given_secs <= lead {
            true => candidate.cached_tokens,
            false => 0,
        };
        candidate.wait_secs + candidate.service_secs(work, credit)
    }
}
