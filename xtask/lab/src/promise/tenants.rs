//! A light tenant, alone and beside one that floods, behind each admission under which somebody waits: with an order
//! that is fair between tenants and, as the control, first come, first served.

use std::time::Duration;

use serve_bench::experiments::servers::ServerSettings;

use super::offered::{Became, Offered, Row, Shape, Stream, Who};
use super::settings;
use super::simulated::{PromisesError, capacity_per_s};
use super::verdict::{Promise, Verdict};
use crate::percentile::percentile_ms;

const LIGHT: Who = Who::Tenant("light");
/// What the light tenant sends, of the capacity. Its share is half, and its bursts are to stay below that too: more
/// than six of its requests in the time of one batch are rarer than once in a thousand.
const LIGHT_LOAD: f64 = 0.1;
/// What the other sends.
const FLOOD_LOAD: f64 = 4.0;
/// Of the light tenant's requests so many are answered, at least.
const ANSWERED_MIN: f64 = 0.95;
/// Its p99 over that when it is alone, at most. Requests of the flood are alike and end together, so the next slot is
/// up to a whole answer away; then comes its own.
const P99_OVER_ALONE_MAX: f64 = 2.2;
/// Requests in one step.
const BATCH: u32 = 12;
const SHAPE: Shape = Shape {
    prompt_words: 16,
    output_tokens: 64,
    timeout: None,
};

/// Names and values of settings.
type Pairs = &'static [(&'static str, &'static str)];

/// Admissions: name, settings, and whether requests come with a time limit of 4 s.
const GUARDS: [(&str, Pairs, bool); 6] = [
    ("queue-cap", &[("queue_cap", "32")], false),
    ("in-flight-limits", &[("tenant_in_flight", "32")], false),
    // The rate is that of the device.
    (
        "token-bucket",
        &[("rate_burst", "2"), ("tenant_tokens_per_s", "840")],
        false,
    ),
    ("first-token-budget", &[("first_token_budget", "2")], false),
    ("latency-budget", &[("latency_budget", "4")], false),
    (
        "deadline-prediction",
        &[("deadline_admission", "true")],
        true,
    ),
];

/// An admission with what is behind it.
pub(super) struct Guard {
    name: &'static str,
    pub(super) fair: ServerSettings,
    pub(super) first_come: ServerSettings,
    pub(super) offered: Offered,
}

/// Everything that is measured.
pub(super) struct Tenants {
    pub(super) guards: Vec<Guard>,
    /// Nobody but the light tenant, and nobody refused.
    pub(super) alone: (ServerSettings, Offered),
}

/// All servers and what each is offered.
///
/// # Errors
///
/// [`PromisesError`] when the capacity cannot be simulated.
pub(super) fn tenants(lasts: Duration, seed: u64) -> Result<Tenants, PromisesError> {
    let base = settings()
        .with("max_batch", BATCH.to_string())
        .with("keys", "light,flood")
        .with("prefix_cache", "false");
    let tokens = (SHAPE.prompt_words as u32, SHAPE.output_tokens);
    let capacity_per_s = capacity_per_s(&base, tokens)?;
    let stream = |who, load: f64| Stream {
        who,
        rate_per_s: load * capacity_per_s,
    };
    // The light tenant is first, so that it sends the same whatever is beside it.
    let light = stream(LIGHT, LIGHT_LOAD);
    let alone = Offered {
        streams: vec![light],
        shape: SHAPE,
        lasts,
        patience: Duration::from_secs(15),
        seed,
    };
    let fair = base.clone().with("order", "fair-tenants");
    let guard = |(name, its, limited): (&'static str, Pairs, bool)| {
        let with = |order: &str| {
            let all = base.clone().with("order", order);
            its.iter()
                .fold(all, |all, (name, value)| all.with(name, *value))
        };
        let mut offered = alone.clone();
        offered.streams = vec![light, stream(Who::Tenant("flood"), FLOOD_LOAD)];
        offered.shape.timeout = limited.then_some(Duration::from_secs(4));
        Guard {
            name,
            fair: with("fair-tenants"),
            first_come: with("fifo"),
            offered,
        }
    };
    Ok(Tenants {
        guards: GUARDS.into_iter().map(guard).collect(),
        alone: (fair, alone),
    })
}

/// What the light tenant got.
#[derive(Clone, Copy, Debug)]
struct Got {
    answered: f64,
    p99_ms: f64,
}

impl Got {
    fn of(rows: &[Row]) -> Self {
        let own = rows.iter().filter(|row| row.who == LIGHT);
        let own = own.collect::<Vec<_>>();
        let answered = |row: &&&Row| matches!(row.became, Became::Answered { .. });
        let times = own.iter().filter(answered).map(|row| row.took());
        let times = times.collect::<Vec<_>>();
        Self {
            answered: times.len() as f64 / own.len() as f64,
            p99_ms: percentile_ms(&times, 99),
        }
    }

    fn is_served(self, alone: Self) -> bool {
        self.answered >= ANSWERED_MIN && self.p99_ms <= P99_OVER_ALONE_MAX * alone.p99_ms
    }
}

impl Guard {
    /// What is promised to the light tenant behind this admission: measured on the rows of the fair order beside those of
    /// the tenant alone; first come, first served must break it, by refusals or by time.
    pub(super) fn promises(&self, fair: &[Row], first_come: &[Row], alone: &[Row]) -> [Promise; 2] {
        let [fair, first_come, alone] = [fair, first_come, alone].map(Got::of);
        let control_kept = first_come.is_served(alone);
        let p99_max = P99_OVER_ALONE_MAX * alone.p99_ms;
        [
            Promise {
                name: format!("light answered, {}", self.name),
                promised: format!("at least {:.0}%", 100.0 * ANSWERED_MIN),
                measured: 100.0 * fair.answered,
                control: Some(100.0 * first_come.answered),
                unit: "%",
                verdict: Verdict::beside(fair.answered >= ANSWERED_MIN, control_kept),
            },
            Promise {
                name: format!("light p99, {}", self.name),
                promised: format!("{p99_max:.0} ms, {P99_OVER_ALONE_MAX} x alone"),
                measured: fair.p99_ms,
                control: Some(first_come.p99_ms),
                unit: "ms",
                verdict: Verdict::beside(fair.p99_ms <= p99_max, control_kept),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::offered::arrivals;
    use super::*;

    /// Of a hundred requests of the light tenant so many are answered, each in so long; the flood gets everything.
    fn rows(answered: usize, took_ms: u64) -> Vec<Row> {
        let row = |who, became, took_ms| Row {
            who,
            sent: Duration::ZERO,
            ended: Duration::from_millis(took_ms),
            became,
        };
        let queued = Duration::ZERO;
        let light = (0..100).map(|at| match at < answered {
            true => row(LIGHT, Became::Answered { queued }, took_ms),
            false => row(LIGHT, Became::Refused, 1),
        });
        let flood = row(Who::Tenant("flood"), Became::Answered { queued }, 1);
        light.chain(std::iter::repeat_n(flood, 400)).collect()
    }

    #[test]
    fn the_light_tenant_is_judged_by_answers_and_time_and_the_control_must_break_one() {
        use Verdict::{Broken, Kept, Void};
        let tenants = tenants(Duration::from_secs(10), 1).unwrap();
        let guard = &tenants.guards[0];
        let alone = rows(100, 1_000);
        let verdicts = |fair: &[Row], first_come: &[Row]| {
            guard
                .promises(fair, first_come, &alone)
                .map(|it| it.verdict)
        };
        let (good, slow, few) = (rows(100, 2_000), rows(100, 3_000), rows(50, 1_000));
        assert_eq!(verdicts(&good, &slow), [Kept, Kept]);
        assert_eq!(verdicts(&good, &few), [Kept, Kept]);
        assert_eq!(verdicts(&good, &good), [Void, Void]);
        assert_eq!(verdicts(&slow, &few), [Kept, Broken]);
        assert_eq!(verdicts(&few, &slow), [Broken, Kept]);
        assert_eq!(verdicts(&rows(0, 0), &slow), [Broken, Broken], "nobody");
    }

    #[test]
    fn the_light_tenant_sends_the_same_alone_and_beside_the_flood() {
        let tenants = tenants(Duration::from_secs(60), 3).unwrap();
        let alone = arrivals(&tenants.alone.1);
        assert!(alone.len() > 40);
        for guard in &tenants.guards {
            let mut beside = arrivals(&guard.offered);
            beside.retain(|(_, who)| *who == LIGHT);
            assert_eq!(beside, alone, "{}", guard.name);
            let apart = guard.fair.iter().zip(guard.first_come.iter());
            let apart = apart.filter(|(one, other)| one != other);
            let names = apart.map(|((name, _), _)| name).collect::<Vec<_>>();
            assert_eq!(names, ["order"], "{}", guard.name);
        }
    }
}
