//! Sixty-four clients at the same moment, three times, with little patience.

use std::num::{NonZeroU32, NonZeroU64};

use crate::analysis::definitions::Metric;
use crate::experiments::matrix::beside::{Beside, T4};
use crate::experiments::matrix::scale::positive;
use crate::experiments::matrix::seen::Seen;
use crate::experiments::matrix::{Bench, MatrixError};
use crate::workload::spec::{Arrivals, Spec};

/// Clients of a wave.
const CLIENTS: u32 = 64;
/// How long clients wait, in answers of one request alone: 60 s where the first took 4.2.
const PATIENCE: f64 = 14.3;

pub(super) async fn waves(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let off = Bench::usual().with("max_batch", "1");
    let on = Bench::usual().with("max_batch", CLIENTS.to_string());
    bench
        .prove("waves: one place / a place for each", &off, &on)
        .await?;
    let waves = 3;
    let spec = |bench: &Bench<'_>| -> Result<Spec, MatrixError> {
        let size = NonZeroU32::new(CLIENTS).unwrap_or(NonZeroU32::MIN);
        // The next wave comes when the last has been answered or given up.
        let every_s = positive(bench.answers_s(PATIENCE * 1.1))?;
        let mut spec = bench.spec("waves", Arrivals::Waves { size, every_s });
        spec.requests = NonZeroU64::new(u64::from(waves * CLIENTS));
        spec.measure.timeout_s = positive(bench.answers_s(PATIENCE))?;
        Ok(spec)
    };
    let one = bench.point("waves-off", &off, spec(bench)?).await?;
    let many = bench.point("waves-on", &on, spec(bench)?).await?;
    let (one, many) = (Seen::of(&one), Seen::of(&many));
    let answered = |seen: &Seen<'_>| Some(seen.counts().ok as f64);
    let late = |seen: &Seen<'_>| Some((seen.counts().scheduled() - seen.counts().ok) as f64);
    let p95_s = |seen: &Seen<'_>| seen.ms(Metric::Ttft, 0.95).map(|ms| ms / 1e3);
    let mut beside = Beside::new("64 clients at once, three times: one place against one for each");
    beside.headline(
        "answered of 192",
        "requests",
        [38.0, 192.0],
        [answered(&one), answered(&many)],
    );
    beside.line(
        "timed out or failed",
        "requests",
        [Some(154.0), Some(0.0)],
        [late(&one), late(&many)],
    );
    beside.headline(
        "TTFT p95 s, of answers",
        "s",
        [53.251, 0.523],
        [p95_s(&one), p95_s(&many)],
    );
    let note = format!(
        "clients wait {PATIENCE} times as long as an answer alone takes ({:.2} s), as the published did",
        bench.answers_s(PATIENCE)
    );
    bench.show(beside.note(T4).note(&note));
    let (ours, theirs) = (one.counts().ok, many.counts().ok);
    bench.expect(
        "a place for each answers more in time",
        theirs > ours,
        format!("{ours} and {theirs}"),
    );
    Ok(())
}
