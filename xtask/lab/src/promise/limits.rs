//! Four times the load on one server that is short of slots and on one that is short of memory, with admission by a
//! latency target and, as the control, without.
//!
//! The two servers differ in `max_batch` alone: at 12 the memory would do for four requests more, at 256 it is the
//! limit. So the admission has to find out which of the two binds.

use std::time::Duration;

use serve_bench::experiments::servers::ServerSettings;

use super::offered::{Offered, Row, Shape, Stream, Who};
use super::simulated::{PromisesError, capacity_per_s};
use super::verdict::{Promise, Verdict, in_time_per_s, times, was_taken};
use super::{TARGET, settings};
use crate::percentile::percentile_ms;

/// The load, as a multiple of the capacity.
const LOAD: f64 = 4.0;
/// Times are of requests that come later than this: a server that has measured nothing takes everybody, and some of the
/// first second's are late.
const WARM_UP: Duration = TARGET;
/// The p99 over the target, at most: beyond twice the capacity a tenth more is promised.
const P99_OVER_TARGET_MAX: f64 = 1.10;
/// Answers in time, of those that the device can give, at least: steps end a little late in real time.
const IN_TIME_MIN: f64 = 0.90;
const SHAPE: Shape = Shape {
    prompt_words: 480,
    output_tokens: 48,
    timeout: None,
};

/// What binds, and its `max_batch`.
const LIMITS: [(&str, &str); 2] = [("slots", "12"), ("memory", "256")];

/// A server short of one thing.
pub(super) struct Limit {
    name: &'static str,
    pub(super) on: ServerSettings,
    pub(super) off: ServerSettings,
    pub(super) offered: Offered,
    capacity_per_s: f64,
}

/// Both servers and what each is offered.
///
/// # Errors
///
/// [`PromisesError`] when a capacity cannot be simulated.
pub(super) fn limits(lasts: Duration, seed: u64) -> Result<Vec<Limit>, PromisesError> {
    let limit = |(name, max_batch)| {
        let off = settings()
            .with("max_batch", max_batch)
            .with("kv_tokens", "8448")
            .with("prefix_cache", "false")
            .with("latency_budget", "0");
        let tokens = (SHAPE.prompt_words as u32, SHAPE.output_tokens);
        let capacity_per_s = capacity_per_s(&off, tokens)?;
        Ok(Limit {
            name,
            on: off
                .clone()
                .with("latency_budget", TARGET.as_secs_f64().to_string()),
            off,
            offered: Offered {
                streams: vec![Stream {
                    who: Who::Class("paid"),
                    rate_per_s: LOAD * capacity_per_s,
                }],
                shape: SHAPE,
                lasts,
                patience: Duration::from_secs(5),
                seed,
            },
            capacity_per_s,
        })
    };
    LIMITS.into_iter().map(limit).collect()
}

/// What came of one server's requests.
#[derive(Clone, Copy, Debug)]
struct Kept {
    p50_ms: f64,
    p99_ms: f64,
    in_time_per_s: f64,
}

impl Limit {
    fn kept(&self, rows: &[Row]) -> Kept {
        let taken = times(rows, |row| was_taken(row) && row.sent >= WARM_UP);
        Kept {
            p50_ms: percentile_ms(&taken, 50),
            p99_ms: percentile_ms(&taken, 99),
            in_time_per_s: in_time_per_s(rows, TARGET, self.offered.lasts),
        }
    }

    /// What is promised of it, measured on the rows of `on`; those of `off` must break it.
    pub(super) fn promises(&self, on: &[Row], off: &[Row]) -> Vec<Promise> {
        let target_ms = TARGET.as_secs_f64() * 1e3;
        let (p99_max, in_time_min) = (
            target_ms * P99_OVER_TARGET_MAX,
            self.capacity_per_s * IN_TIME_MIN,
        );
        let p50_is_kept = |kept: Kept| kept.p50_ms <= target_ms;
        let p99_is_kept = |kept: Kept| kept.p99_ms <= p99_max;
        let rate_is_kept = |kept: Kept| kept.in_time_per_s >= in_time_min;
        let (on, off) = (self.kept(on), self.kept(off));
        let verdict = |is_kept: &dyn Fn(Kept) -> bool| Verdict::beside(is_kept(on), is_kept(off));
        let promise = |what: &str, promised, of: fn(Kept) -> f64, unit, verdict| Promise {
            name: format!("{what}, {}", self.name),
            promised,
            measured: of(on),
            control: Some(of(off)),
            unit,
            verdict,
        };
        vec![
            promise(
                "p50 of accepted",
                format!("at most {target_ms:.0} ms"),
                |kept| kept.p50_ms,
                "ms",
                verdict(&p50_is_kept),
            ),
            promise(
                "p99 of accepted",
                format!("at most {p99_max:.0} ms"),
                |kept| kept.p99_ms,
                "ms",
                verdict(&p99_is_kept),
            ),
            promise(
                "answers in time",
                format!("at least {in_time_min:.1}/s of {:.1}", self.capacity_per_s),
                |kept| kept.in_time_per_s,
                "1/s",
                verdict(&rate_is_kept),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::offered::Became;
    use super::*;

    /// So many answers, each taking so long.
    fn rows(answers: usize, took_ms: u64) -> Vec<Row> {
        let row = |at: usize| {
            let sent = WARM_UP + Duration::from_millis(at as u64);
            Row {
                who: Who::Class("paid"),
                sent,
                ended: sent + Duration::from_millis(took_ms),
                became: Became::Answered {
                    queued: Duration::ZERO,
                },
            }
        };
        (0..answers).map(row).collect()
    }

    #[test]
    fn a_promise_is_kept_in_time_and_in_number_and_void_where_the_control_keeps_it_too() {
        use Verdict::{Broken, Kept, Void};
        let limits = limits(Duration::from_secs(10), 1).unwrap();
        for limit in &limits {
            let able = (limit.capacity_per_s * 10.0) as usize;
            let verdicts = |on: &[Row], off: &[Row]| -> Vec<Verdict> {
                let promises = limit.promises(on, off);
                promises.iter().map(|promise| promise.verdict).collect()
            };
            let (good, late) = (rows(able, 2_900), rows(able, 9_000));
            assert_eq!(verdicts(&good, &late), [Kept, Kept, Kept]);
            assert_eq!(verdicts(&good, &good), [Void, Void, Void]);
            assert_eq!(verdicts(&late, &late), [Broken, Broken, Broken]);
            let mut cold = good.clone();
            cold.extend(rows(5, 9_000).into_iter().map(|mut row| {
                row.sent -= WARM_UP;
                row.ended -= WARM_UP;
                row
            }));
            assert_eq!(verdicts(&cold, &late), [Kept, Kept, Kept]);
            let few = rows(able / 2, 2_900);
            assert_eq!(verdicts(&few, &late), [Kept, Kept, Broken]);
        }
    }

    #[test]
    fn the_two_servers_are_one_setting_apart_and_the_one_with_more_slots_can_do_more() {
        let limits = limits(Duration::from_secs(10), 1).unwrap();
        let [slots, memory] = &limits[..] else {
            panic!("two of them");
        };
        let apart = slots.on.iter().zip(memory.on.iter());
        let apart = apart.filter(|(one, other)| one != other);
        let names = apart.map(|((name, _), _)| name).collect::<Vec<_>>();
        assert_eq!(names, ["max_batch"]);
        // Where memory is the limit it holds 16 or 17, not 256.
        let ratio = memory.capacity_per_s / slots.capacity_per_s;
        assert!((1.05..1.4).contains(&ratio), "{ratio}");
    }
}
