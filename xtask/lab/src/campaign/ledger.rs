//! How the clients of a life have ended, and whether that agrees with what the server has counted.

use std::collections::BTreeMap;
use std::time::Duration;

use serve_sched::{Counters, Stats};

use super::ask::{Ask, Conduct};
use super::attempt::End;
use super::tally::Tally;

/// The book of one life, kept by its clients.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) requests: u64,
    pub(super) finished: u64,
    /// Of those, by a stop string.
    pub(super) stopped: u64,
    pub(super) refused: u64,
    /// Cancelled by the server.
    pub(super) cancelled: u64,
    pub(super) failed: u64,
    /// Gone away by themselves; what the server made of them only it knows.
    pub(super) left: u64,
    pub(super) unreached: u64,
    /// Given no answer, or a wrong one.
    pub(super) broken: u64,
    /// How often each end came for each reason.
    pub(super) reasons: BTreeMap<String, u64>,
    /// What must not have happened, with the request to which it did.
    pub(super) wrongs: Vec<String>,
}

/// What was left when a life was over.
pub(super) struct Lived {
    pub(super) ledger: Ledger,
    pub(super) stats: Stats,
    pub(super) tally: Tally,
    /// Requests that the server still knew.
    pub(super) live: usize,
    /// From the first request to the last end.
    pub(super) took: Duration,
    /// Requests that came after the drain had begun.
    pub(super) after_drain: u64,
}

impl Ledger {
    /// Books a client's end. `late`: it came when the server drained already; `draining`: the
    /// server did when it ended.
    pub(super) fn enter(&mut self, ask: &Ask, end: &End, late: bool, draining: bool) {
        self.requests += 1;
        let mut reason = None;
        match end {
            End::Finished { stopped } => {
                self.finished += 1;
                self.stopped += u64::from(*stopped);
            }
            End::Refused { code } => {
                self.refused += 1;
                reason = Some(format!("refused_{code}"));
                if code.starts_with("invalid") && ask.conduct != Conduct::Errs {
                    self.wrong(ask, code);
                }
            }
            End::Cancelled { code } => {
                self.cancelled += 1;
                reason = Some(format!("cancelled_{code}"));
            }
            End::Failed { code } => {
                self.failed += 1;
                reason = Some(format!("failed_{code}"));
            }
            End::Left => self.left += 1,
            End::Unreached => {
                self.unreached += 1;
                if !draining {
                    self.wrong(ask, "nobody answered");
                }
            }
            End::Broken { what } => {
                self.broken += 1;
                self.wrong(ask, what);
            }
        }
        let served = matches!(end, End::Finished { .. } | End::Failed { .. });
        if late && served {
            self.wrong(ask, "served, though it came after the drain had begun");
        }
        if let Some(reason) = reason {
            *self.reasons.entry(reason).or_default() += 1;
        }
    }

    fn wrong(&mut self, ask: &Ask, what: &str) {
        let (name, conduct) = (&ask.name, ask.conduct);
        self.wrongs.push(format!("{name} ({conduct:?}): {what}"));
    }

    /// Everything that is not as it should be, after the server has ended. `warm_ups` requests were
    /// the server's own.
    pub(super) fn audit(&self, lived: &Lived, warm_ups: u64) -> Vec<String> {
        let (stats, tally) = (&lived.stats, &lived.tally);
        let Counters {
            arrived,
            refused,
            finished,
            cancelled,
            failed,
            ..
        } = stats.counters;
        let ends = self.finished + self.refused + self.cancelled + self.failed;
        // Who went away may have been anything to the server by then, and so may, to the scheduler,
        // an answer that a stop string has cut short for its client.
        let left = self.left;
        let scheduler = |counted: u64, certain: u64| {
            (certain..=certain + left + self.stopped).contains(&counted)
        };
        let metrics = |counted: u64, certain: u64| (certain..=certain + left).contains(&counted);
        let invariants = [
            (
                "the scheduler's arrived = finished + refused + cancelled + failed",
                arrived == finished + refused + cancelled + failed,
            ),
            (
                "in /metrics arrived = finished + refused + cancelled + failed",
                tally.arrived == tally.finished + tally.refused + tally.cancelled + tally.failed,
            ),
            (
                "zero requests in flight",
                (stats.waiting, stats.running, lived.live, tally.in_flight) == (0, 0, 0, 0),
            ),
            ("zero blocks held", stats.blocks.held == 0),
            (
                "every client's request has one end",
                self.requests == ends + left + self.unreached + self.broken,
            ),
            (
                "clients and /metrics agree on what finished",
                metrics(tally.finished, self.finished),
            ),
            (
                "clients and /metrics agree on what was refused",
                metrics(tally.refused, self.refused),
            ),
            (
                "clients and /metrics agree on what was cancelled",
                metrics(tally.cancelled, self.cancelled),
            ),
            (
                "clients and /metrics agree on what failed",
                metrics(tally.failed, self.failed),
            ),
            (
                "clients and scheduler agree on what finished",
                scheduler(finished - warm_ups, self.finished - self.stopped),
            ),
            (
                "clients and scheduler agree on what was cancelled",
                scheduler(cancelled, self.cancelled),
            ),
            (
                "clients and scheduler agree on what failed",
                scheduler(failed, self.failed),
            ),
            (
                // The edge refuses most of what is refused before the scheduler hears of it.
                "clients and scheduler agree on what was refused",
                refused <= self.refused + left,
            ),
        ];
        let broken = invariants.into_iter().filter(|(_, holds)| !holds);
        let mut broken: Vec<String> = broken.map(|(name, _)| name.to_owned()).collect();
        broken.extend(self.wrongs.iter().cloned());
        if !broken.is_empty() {
            let counters = &stats.counters;
            let (waiting, running) = (stats.waiting, stats.running);
            broken.push(format!(
                "what was seen: {self:?}, {tally:?}, scheduler: {waiting} waiting, {running} \
                 running, {:?}, {counters:?}",
                stats.blocks
            ));
        }
        broken
    }
}
