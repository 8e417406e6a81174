//! How many times the demand a server sees when clients try again.

use serde::Serialize;

use super::request::Request;

/// Attempts beside the requests that caused them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Retries {
    /// Requests of which at least one attempt was sent.
    pub requests: u64,
    /// Attempts that were sent.
    pub attempts: u64,
    /// Requests that were tried more than once.
    pub retried: u64,
    /// Of these, how many were answered in the end.
    pub rescued: u64,
    /// Attempts / requests; absent without a request.
    pub amplification: Option<f64>,
}

impl Retries {
    /// Counts.
    pub fn of(requests: &[Request<'_>]) -> Self {
        let sent = |request: &Request<'_>| {
            let sent = request.attempts().iter().filter(|it| it.sent_ns.is_some());
            sent.count() as u64
        };
        let tried_again = |request: &&Request<'_>| sent(request) > 1;
        let retried = requests.iter().filter(tried_again);
        let attempts = requests.iter().map(sent).sum::<u64>();
        let count = requests.iter().filter(|it| sent(it) > 0).count() as u64;
        Self {
            requests: count,
            attempts,
            retried: retried.clone().count() as u64,
            rescued: retried.filter(|it| it.answer().is_some()).count() as u64,
            amplification: (count > 0).then(|| attempts as f64 / count as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, refused};
    use crate::store::record::Record;

    #[test]
    fn a_hundred_with_twenty_retries_are_120_attempts() {
        let mut rows = Vec::new();
        for request in 0..100 {
            let first = match request < 20 {
                true => refused(request),
                false => answer(request, &[request + 5], Some(1)),
            };
            rows.push(Record { request, ..first });
        }
        // Of the twenty that were refused and tried again, four are refused again.
        for request in 0..20 {
            let again = match request < 4 {
                true => refused(request + 50),
                false => answer(request + 50, &[request + 60], Some(1)),
            };
            rows.push(Record {
                request,
                attempt: 1,
                ..again
            });
        }
        rows.push(Record::not_sent(100, 0));
        let retries = Retries::of(&Request::all(&rows, 0));
        let expected = Retries {
            requests: 100,
            attempts: 120,
            retried: 20,
            rescued: 16,
            amplification: Some(1.2),
        };
        assert_eq!(retries, expected);
    }
}
