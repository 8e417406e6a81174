//! Four times the load where slots are the limit and where memory is, with a latency budget and without.
//!
//! The servers of both halves have the same memory, for as many of these requests as an ordinary batch has, and differ
//! in their places: fewer than that, or far more. So the admission must find out which of the two binds.

use std::num::NonZeroU64;

use crate::analysis::definitions::Metric;
use crate::analysis::table::number;
use crate::experiments::matrix::beside::Beside;
use crate::experiments::matrix::scale::{BATCH, positive, set};
use crate::experiments::matrix::seen::Seen;
use crate::experiments::matrix::{Bench, Effort, MatrixError};
use crate::experiments::servers::ServerSettings;
use crate::store::record::Outcome;
use crate::workload::spec::{Arrivals, Spec};

/// Tokens of a long prompt and of its answer: together they fit the smallest model's context.
const PROMPT: u32 = 448;
const ANSWER: u32 = 48;
const LOAD: f64 = 4.0;
/// How long an accepted answer may take, in answers of a full batch.
const TARGET: f64 = 2.3;
/// The p99 over the target, at most: beyond twice the capacity a tenth more is promised.
const P99_OVER_TARGET_MAX: f64 = 1.10;
/// What binds, and the places that make it so.
const BINDING: [(&str, u32); 2] = [("slots", BATCH * 3 / 4), ("memory", 256)];

fn server(places: u32) -> ServerSettings {
    let kv_tokens = BATCH * (PROMPT + ANSWER).next_multiple_of(16);
    Bench::usual()
        .with("max_batch", places.to_string())
        .with("kv_tokens", kv_tokens.to_string())
}

/// What such requests take where memory is the limit.
struct Full {
    capacity_per_s: f64,
    target_s: f64,
}

async fn full(bench: &mut Bench<'_>) -> Result<Full, MatrixError> {
    let mut spec = bench.closed("limits-full", BATCH, 4 * BATCH);
    shape(&mut spec);
    let point = bench.point("limits-full", &server(256), spec).await?;
    let seen = Seen::of(&point);
    let answer_s = seen.ms(Metric::E2e, 0.5).unwrap_or(0.0) / 1e3;
    Ok(Full {
        capacity_per_s: seen.answers_per_s(),
        // To the millisecond, so that the setting reads back as it was asked.
        target_s: (TARGET * answer_s * 1e3).ceil() / 1e3,
    })
}

fn shape(spec: &mut Spec) {
    spec.prompts = vec![set("long", 1.0, PROMPT, ANSWER)];
    // What is promised is the end; without the pieces in between rows are small.
    spec.request.stream = false;
}

fn load(bench: &Bench<'_>, full: &Full) -> Result<Spec, MatrixError> {
    let rate_per_s = positive(LOAD * full.capacity_per_s)?;
    let mut spec = bench.spec("limits", Arrivals::Poisson { rate_per_s });
    shape(&mut spec);
    // A server that has measured nothing takes everybody; what is promised begins when it has.
    spec.measure.warmup_s = full.target_s;
    spec.requests = NonZeroU64::new(match bench.plan.effort {
        Effort::Smoke => 300,
        Effort::Full => 1_000,
    });
    Ok(spec)
}

/// Each limit without a budget and with one.
pub(super) async fn limits(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let full = full(bench).await?;
    let budget = |off: &ServerSettings| {
        off.clone()
            .with("latency_budget", full.target_s.to_string())
    };
    let [few, many] = BINDING.map(|(_, places)| budget(&server(places)));
    bench
        .prove("limits: slots bind / memory binds", &few, &many)
        .await?;
    for (name, places) in BINDING {
        let off = server(places);
        let on = budget(&off);
        let pair = format!("limits: no budget / one, {name} bind");
        bench.prove(&pair, &off, &on).await?;
        let id = |on: &str| format!("limits-{name}-{on}");
        let one = bench.point(&id("off"), &off, load(bench, &full)?).await?;
        let two = bench.point(&id("on"), &on, load(bench, &full)?).await?;
        show(bench, name, &full, [&Seen::of(&one), &Seen::of(&two)]);
    }
    Ok(())
}

/// Answers within the target, a second of those in which requests came. Those of the beginning count.
fn in_time_per_s(seen: &Seen<'_>, target_s: f64) -> f64 {
    let took_s = |from_ns: u64, to_ns: u64| (to_ns - from_ns) as f64 / 1e9;
    let rows = seen.rows();
    let in_time = rows.iter().filter(|row| {
        let ended = row.end_ns.filter(|_| row.outcome == Outcome::Ok);
        ended.is_some_and(|end_ns| took_s(row.scheduled_ns, end_ns) <= target_s)
    });
    let last_ns = rows.iter().map(|row| row.scheduled_ns).max().unwrap_or(0);
    in_time.count() as f64 / took_s(0, last_ns)
}

fn show(bench: &mut Bench<'_>, name: &str, full: &Full, seen: [&Seen<'_>; 2]) {
    let title = format!("four times the load where {name} bind, a latency budget off and on");
    let mut beside = Beside::new(&title);
    let secs = |quantile| seen.map(|it| it.ms(Metric::E2e, quantile).map(|ms| ms / 1e3));
    let in_time = seen.map(|it| in_time_per_s(it, full.target_s));
    let refused = seen.map(|it| Some(it.counts().refused as f64));
    let (p50, p99) = (secs(0.5), secs(0.99));
    let line = |what: &str| format!("{name}: {what}");
    let none = [None, None];
    beside.line(&line("E2E p50 s, of answers"), "s", none, p50);
    beside.line(&line("E2E p99 s, of answers"), "s", none, p99);
    let rate = "answers/s";
    beside.line(&line("in time/s"), rate, none, in_time.map(Some));
    beside.line(&line("refused"), "requests", none, refused);
    let note = format!(
        "{} requests of {PROMPT} tokens in and {ANSWER} out, at {LOAD} times the {:.2} answers/s of {BATCH} clients, for \
         whom the memory does; the budget is {:.2} s, {TARGET} times what they are answered in. Times and refusals are of requests \
         that come later than that: a server that has measured nothing takes everybody. No experiment is published with \
         such a pair",
        seen[0].counts().scheduled(),
        full.capacity_per_s,
        full.target_s,
    );
    bench.show(beside.note(&note));
    let bound_s = full.target_s * P99_OVER_TARGET_MAX;
    let keeps = |p99: Option<f64>| p99.is_some_and(|p99| p99 <= bound_s);
    let both = format!("{} s and {} s", number(p99[0]), number(p99[1]));
    let kept = line(&format!("a budget keeps p99 within {bound_s:.2} s"));
    bench.expect(&kept, keeps(p99[1]), &both);
    let broken = line(&format!("without one p99 is beyond {bound_s:.2} s"));
    bench.expect(&broken, !keeps(p99[0]), &both);
    bench.expect(
        &line("more answers are in time with a budget"),
        in_time[1] > in_time[0],
        format!("{:.2}/s and {:.2}/s", in_time[0], in_time[1]),
    );
}
