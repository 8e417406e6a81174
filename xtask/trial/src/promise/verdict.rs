//! From rows to promises: what was promised, what was measured, what the control did.

use std::time::Duration;

use super::offered::{Became, Row};
use super::{AGE_AFTER, BATCH, TARGET, service_time};
use crate::figure::Figure;
use crate::percentile::percentile_ms;

/// By how much the p99 may miss its target.
const P99_MISS_MAX: f64 = 0.05;
/// What a refusal may take.
const REFUSAL_MS_MAX: f64 = 5.0;
/// What `/health/live` may take.
const LIVE_MS_MAX: f64 = 10.0;
/// Steps and sleeps end a little late in real time.
const LATE: Duration = Duration::from_millis(100);

/// One promise and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    /// What is promised.
    pub name: &'static str,
    /// The bound, in words.
    pub promised: String,
    /// What the server did.
    pub measured: f64,
    /// What the control did, where there is one.
    pub control: Option<f64>,
    /// Of both.
    pub unit: &'static str,
    /// Whether it was kept.
    pub kept: bool,
}

impl Promise {
    /// The same as figures.
    pub fn figures(&self) -> Vec<Figure> {
        let name = |what: &str| format!("promise_{}{what}", self.name.replace(' ', "_"));
        let control = self.control;
        let control = control.map(|value| Figure::new(name("_control"), value, self.unit));
        let mut figures = vec![
            Figure::new(name(""), self.measured, self.unit),
            Figure::text(name("_promised"), self.promised.clone()),
        ];
        figures.extend(control);
        figures.push(Figure::new(name("_kept"), f64::from(self.kept), "1"));
        figures
    }
}

/// What became of twice the load that the server can do.
pub(super) struct Overload<'a> {
    pub(super) lasts: Duration,
    pub(super) budget: &'a [Row],
    pub(super) everybody: &'a [Row],
    pub(super) live: Vec<Duration>,
}

impl Overload<'_> {
    pub(super) fn promises(&self) -> Vec<Promise> {
        let target_ms = TARGET.as_secs_f64() * 1e3;
        let p99 = percentile_ms(&times(self.budget, was_taken), 99);
        let goodput = |rows: &[Row]| {
            let in_time = |row: &&Row| row.started().is_some() && row.took() <= TARGET;
            rows.iter().filter(in_time).count() as f64 / self.lasts.as_secs_f64()
        };
        let (with, without) = (goodput(self.budget), goodput(self.everybody));
        let refusals = times(self.budget, |row| row.became == Became::Refused);
        let refusal = percentile_ms(&refusals, 99);
        let live = percentile_ms(&self.live, 99);
        let wrong = |row: &&Row| row.became == Became::Wrong;
        let wrong = [self.budget, self.everybody]
            .concat()
            .iter()
            .filter(wrong)
            .count();
        vec![
            Promise {
                name: "p99 of accepted",
                promised: format!("{target_ms:.0} ms, at most 5% off"),
                measured: p99,
                control: Some(percentile_ms(&times(self.everybody, was_taken), 99)),
                unit: "ms",
                kept: (p99 / target_ms - 1.0).abs() <= P99_MISS_MAX,
            },
            Promise {
                name: "answers in time",
                promised: "no fewer than the control".to_owned(),
                measured: with,
                control: Some(without),
                unit: "1/s",
                kept: with >= without,
            },
            Promise {
                name: "refusal p99",
                promised: format!("under {REFUSAL_MS_MAX:.0} ms"),
                measured: refusal,
                control: None,
                unit: "ms",
                kept: refusal < REFUSAL_MS_MAX,
            },
            Promise {
                name: "live p99",
                promised: format!("under {LIVE_MS_MAX:.0} ms"),
                measured: live,
                control: None,
                unit: "ms",
                kept: live < LIVE_MS_MAX,
            },
            Promise {
                name: "wrong answers",
                promised: "none".to_owned(),
                measured: wrong as f64,
                control: None,
                unit: "1",
                kept: wrong == 0,
            },
        ]
    }
}

/// What became of paid requests at capacity and some free ones.
pub(super) struct Aging<'a> {
    pub(super) aging: &'a [Row],
    pub(super) no_aging: &'a [Row],
}

impl Aging<'_> {
    pub(super) fn promises(&self) -> Vec<Promise> {
        let (with, without) = (beyond_bound(self.aging), beyond_bound(self.no_aging));
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        let longest = |rows: &[Row]| millis(free(rows).map(waited).max().unwrap_or_default());
        vec![
            Promise {
                name: "free waits beyond their bound",
                promised: "none; without aging some".to_owned(),
                measured: with as f64,
                control: Some(without as f64),
                unit: "1",
                kept: with == 0 && without > 0,
            },
            Promise {
                name: "longest free wait",
                promised: "shorter than the control's".to_owned(),
                measured: longest(self.aging),
                control: Some(longest(self.no_aging)),
                unit: "ms",
                kept: longest(self.aging) < longest(self.no_aging),
            },
        ]
    }
}

fn was_taken(row: &Row) -> bool {
    matches!(row.became, Became::Answered { .. } | Became::Waiting)
}

fn times(rows: &[Row], which: impl Fn(&Row) -> bool) -> Vec<Duration> {
    let rows = rows.iter().filter(|row| which(row));
    rows.map(Row::took).collect()
}

fn free(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter()
        .filter(|row| row.class == "free" && was_taken(row))
}

/// How long a request waited for its first step; to the end of the run if none came.
fn waited(row: &Row) -> Duration {
    match row.became {
        Became::Answered { queued } => queued,
        _ => row.took(),
    }
}

/// Free requests that waited longer than aging bounds: `age_after`, then what is in service by then,
/// then the batches that the older requests which still wait then fill.
fn beyond_bound(rows: &[Row]) -> usize {
    let service = service_time();
    let beyond = |row: &&Row| {
        let aged = row.sent + AGE_AFTER;
        let older = rows.iter().take_while(|other| other.sent < row.sent);
        let still_wait = older.filter(|other| {
            was_taken(other) && other.started().is_none_or(|started| started > aged)
        });
        let batches = 1 + still_wait.count().div_ceil(BATCH as usize) as u32;
        waited(row) > AGE_AFTER + service * batches + LATE
    };
    free(rows).filter(beyond).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(class: &'static str, sent_ms: u64, queued_ms: u64) -> Row {
        let (sent, queued) = (
            Duration::from_millis(sent_ms),
            Duration::from_millis(queued_ms),
        );
        Row {
            class,
            sent,
            ended: sent + queued + Duration::from_millis(1_000),
            became: Became::Answered { queued },
        }
    }

    #[test]
    fn a_wait_counts_against_the_older_ones_that_still_wait_when_it_has_aged() {
        let batch_ms = service_time().as_millis() as u64;
        let wait = 2_000 + batch_ms + 90;
        assert_eq!(beyond_bound(&[row("free", 0, wait)]), 0);
        assert_eq!(beyond_bound(&[row("free", 0, wait + 20)]), 1);
        assert_eq!(beyond_bound(&[row("paid", 0, wait + 20)]), 0, "no promise");
        // An older one that waits as long accounts for one batch more, a younger one for none.
        let free = row("free", 10, wait + 20);
        assert_eq!(beyond_bound(&[row("paid", 0, 9_000), free.clone()]), 0);
        assert_eq!(beyond_bound(&[row("paid", 0, 1_000), free.clone()]), 1);
        assert_eq!(beyond_bound(&[free, row("paid", 20, 9_000)]), 1);
    }
}
