//! From rows to promises: what was promised, what was measured, what the control did.

use std::time::Duration;

use super::offered::{Became, Row, Who};
use super::{AGE_AFTER, BATCH, TARGET, service_time};
use crate::percentile::percentile_ms;
use serve_bench::figure::Figure;

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
pub(crate) struct Promise {
    /// What is promised.
    pub(crate) name: String,
    /// The bound, in words.
    pub(crate) promised: String,
    /// What the server did.
    pub(crate) measured: f64,
    /// What the control did, where there is one.
    pub(crate) control: Option<f64>,
    /// Of both.
    pub(crate) unit: &'static str,
    /// What came of it.
    pub(crate) verdict: Verdict,
}

/// What came of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was kept.
    Kept,
    /// It was not.
    Broken,
    /// The control, which should break it, kept it as well: nothing is proved.
    Void,
}

impl Verdict {
    /// Of a promise that a control must break: what was measured, and whether the control kept it.
    pub(super) fn beside(kept: bool, control_kept: bool) -> Self {
        match (kept, control_kept) {
            (false, _) => Self::Broken,
            (true, true) => Self::Void,
            (true, false) => Self::Kept,
        }
    }
}

impl From<bool> for Verdict {
    fn from(kept: bool) -> Self {
        if kept { Self::Kept } else { Self::Broken }
    }
}

impl Promise {
    /// The same as figures.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let own = self.name.replace(',', "").replace([' ', '-'], "_");
        let name = |what: &str| format!("promise_{own}{what}");
        let control = self.control;
        let control = control.map(|value| Figure::new(name("_control"), value, self.unit));
        let mut figures = vec![
            Figure::new(name(""), self.measured, self.unit),
            Figure::text(name("_promised"), self.promised.clone()),
        ];
        figures.extend(control);
        let kept = self.verdict == Verdict::Kept;
        figures.push(Figure::new(name("_kept"), f64::from(kept), "1"));
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
        let goodput = |rows| in_time_per_s(rows, TARGET, self.lasts);
        let (with, without) = (goodput(self.budget), goodput(self.everybody));
        let refusals = times(self.budget, |row| row.became == Became::Refused);
        let refusal = percentile_ms(&refusals, 99);
        let live = percentile_ms(&self.live, 99);
        vec![
            Promise {
                name: "p99 of accepted".to_owned(),
                promised: format!("{target_ms:.0} ms, at most 5% off"),
                measured: p99,
                control: Some(percentile_ms(&times(self.everybody, was_taken), 99)),
                unit: "ms",
                verdict: ((p99 / target_ms - 1.0).abs() <= P99_MISS_MAX).into(),
            },
            Promise {
                name: "answers in time".to_owned(),
                promised: "no fewer than the control".to_owned(),
                measured: with,
                control: Some(without),
                unit: "1/s",
                verdict: (with >= without).into(),
            },
            Promise {
                name: "refusal p99".to_owned(),
                promised: format!("under {REFUSAL_MS_MAX:.0} ms"),
                measured: refusal,
                control: None,
                unit: "ms",
                verdict: (refusal < REFUSAL_MS_MAX).into(),
            },
            Promise {
                name: "live p99".to_owned(),
                promised: format!("under {LIVE_MS_MAX:.0} ms"),
                measured: live,
                control: None,
                unit: "ms",
                verdict: (live < LIVE_MS_MAX).into(),
            },
        ]
    }
}

/// That no answer of all these was anything but an answer, a refusal, or late by its own time limit.
pub(super) fn none_wrong<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Promise {
    let rows = rows.into_iter();
    let wrong = rows.filter(|row| row.became == Became::Wrong).count();
    Promise {
        name: "wrong answers".to_owned(),
        promised: "none".to_owned(),
        measured: wrong as f64,
        control: None,
        unit: "1",
        verdict: (wrong == 0).into(),
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
                name: "free waits beyond their bound".to_owned(),
                promised: "none; without aging some".to_owned(),
                measured: with as f64,
                control: Some(without as f64),
                unit: "1",
                verdict: (with == 0 && without > 0).into(),
            },
            Promise {
                name: "longest free wait".to_owned(),
                promised: "shorter than the control's".to_owned(),
                measured: longest(self.aging),
                control: Some(longest(self.no_aging)),
                unit: "ms",
                verdict: (longest(self.aging) < longest(self.no_aging)).into(),
            },
        ]
    }
}

/// Answers within a target, a second.
pub(super) fn in_time_per_s(rows: &[Row], target: Duration, lasts: Duration) -> f64 {
    let in_time = |row: &&Row| row.started().is_some() && row.took() <= target;
    rows.iter().filter(in_time).count() as f64 / lasts.as_secs_f64()
}

pub(super) fn was_taken(row: &Row) -> bool {
    matches!(
        row.became,
        Became::Answered { .. } | Became::Late | Became::Waiting
    )
}

pub(super) fn times(rows: &[Row], which: impl Fn(&Row) -> bool) -> Vec<Duration> {
    let rows = rows.iter().filter(|row| which(row));
    rows.map(Row::took).collect()
}

fn free(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter()
        .filter(|row| row.who == Who::Class("free") && was_taken(row))
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
            who: Who::Class(class),
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
