//! Batching off, static and continuous; the cost of a step by its batch; eight clients.

use std::collections::BTreeMap;

use crate::analysis::definitions::Metric;
use crate::analysis::table::{Table, number};
use crate::experiments::calibrate::observe;
use crate::experiments::matrix::beside::{Beside, L4, RTX_4090};
use crate::experiments::matrix::scale::BATCH;
use crate::experiments::matrix::seen::{Seen, median};
use crate::experiments::matrix::{Bench, MatrixError};
use crate::experiments::servers::ServerSettings;
use crate::report::chart::{Chart, Hue, Mark, Series};
use crate::report::ticks::Axis;
use crate::workload::spec::{Lengths, Spec};

fn off() -> ServerSettings {
    Bench::usual().with("max_batch", "1")
}

fn with_static() -> ServerSettings {
    Bench::usual().with("batch", "static")
}

/// All three ways to batch, for each number of clients.
pub(super) async fn modes(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let on = Bench::usual();
    bench
        .prove("batching: one at a time / continuous", &off(), &on)
        .await?;
    bench
        .prove("batching: continuous / static", &on, &with_static())
        .await?;
    let eight = with_static().with("max_batch", "8");
    bench
        .prove(
            "batching: static batches of 16 / of 8",
            &with_static(),
            &eight,
        )
        .await?;
    let columns = [
        "clients",
        "batching",
        "answers/s",
        "factor",
        "output tokens/s",
        "TTFT p50 ms",
        "E2E p50 ms",
        "E2E p99 ms",
        "not ok",
    ];
    let mut table = Table::new("closed loops, same requests", &columns);
    // Answers a second and E2E p50 of 16 clients, by the way of batching.
    let mut sixteen = BTreeMap::new();
    let all = bench.plan.effort.clients();
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    // One server after the other, so that each starts once.
    for (at, (name, settings)) in [
        ("off", off()),
        ("static", with_static()),
        // As many as the published batches have.
        ("static, 8", eight),
        ("continuous", on),
    ]
    .into_iter()
    .enumerate()
    {
        let mut curve = Vec::new();
        let all = all
            .iter()
            .filter(|&&clients| clients == 16 || name != "static, 8");
        for &clients in all {
            let id = format!("batching-{}-{clients}", name.replace(", ", ""));
            let point = bench
                .point(&id, &settings, bench.closed_of("batching", clients))
                .await?;
            let seen = Seen::of(&point);
            if clients == 16 {
                let p50_s = seen.ms(Metric::E2e, 0.5).map(|ms| ms / 1e3);
                sixteen.insert(name, (seen.answers_per_s(), p50_s));
            }
            let cells = [
                number(seen.tokens_per_s()),
                number(seen.ms(Metric::Ttft, 0.5)),
                number(seen.ms(Metric::E2e, 0.5)),
                number(seen.ms(Metric::E2e, 0.99)),
                (seen.counts().scheduled() - seen.counts().ok).to_string(),
            ];
            lines.push((clients, at, name, seen.answers_per_s(), cells));
            curve.push((f64::from(clients), seen.answers_per_s()));
        }
        curves.push((name, curve));
    }
    lines.sort_by_key(|(clients, at, ..)| (*clients, *at));
    let mut control = 0.0;
    for (clients, at, name, per_s, cells) in lines {
        control = if at == 0 { per_s } else { control };
        let head = [
            clients.to_string(),
            name.to_owned(),
            number(Some(per_s)),
            format!("x{:.2}", per_s / f64::max(control, 1e-9)),
        ];
        table.row(head.into_iter().chain(cells));
    }
    table.note(format!(
        "{BATCH} sequences in a step at most; the factor is to batching off"
    ));
    let chart = throughput(&curves);
    bench.section.charts.push(chart);
    let of = |name| sixteen.get(name).copied().unwrap_or((0.0, None));
    let mut beside = Beside::new("16 clients, batching off and on");
    let rates = |name| [Some(of("off").0), Some(of(name).0)];
    let p50_s = |name| [of("off").1, of(name).1];
    beside.headline(
        "answers/s, static batches of 8",
        "answers/s",
        [1.21, 9.02],
        rates("static, 8"),
    );
    beside.headline(
        "E2E p50 s, static batches of 8",
        "s",
        [13.2, 1.76],
        p50_s("static, 8"),
    );
    for (label, name) in [
        (format!("static batches of {BATCH}"), "static"),
        (format!("continuous, {BATCH} at most"), "continuous"),
    ] {
        let none = [None, None];
        beside.line(
            &format!("answers/s, {label}"),
            "answers/s",
            none,
            rates(name),
        );
        beside.line(&format!("E2E p50 s, {label}"), "s", none, p50_s(name));
    }
    bench.show(beside.note(L4));
    let gain = of("continuous").0 / of("off").0;
    bench.expect(
        "16 clients with batches do more than one at a time",
        gain > 1.1,
        format!("x{gain:.2}"),
    );
    bench.section.tables.push(table);
    Ok(())
}

/// Answers a second over clients, a line for each way to batch.
fn throughput(curves: &[(&str, Vec<(f64, f64)>)]) -> Chart {
    let curves = curves.iter().filter(|(_, points)| points.len() > 1);
    let series = curves.enumerate().map(|(at, (name, points))| {
        let mark = if at == 0 { Mark::Dashed } else { Mark::Dotted };
        Series::new(*name, Hue::of_series(at), mark, points.clone())
    });
    let series = series.collect::<Vec<_>>();
    let all = || series.iter().flat_map(|it| &it.points);
    Chart {
        title: "Answers a second by clients".to_owned(),
        note: format!("closed loops; {BATCH} sequences in a step at most"),
        x: Axis::linear("clients", all().map(|point| point.0)),
        y: Axis::linear("answers/s", all().map(|point| point.1)),
        series,
    }
}

/// What a step takes when so many sequences are in it, from the continuous points.
pub(super) async fn steps(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let columns = [
        "sequences in a step",
        "step ms",
        "of one",
        "tokens/s of the step",
    ];
    let mut table = Table::new("one decode step", &columns);
    let mut measured: Vec<(u32, f64)> = Vec::new();
    for &clients in bench
        .plan
        .effort
        .clients()
        .iter()
        .filter(|&&clients| clients <= BATCH)
    {
        let id = format!("batching-continuous-{clients}");
        let spec = bench.closed_of("batching", clients);
        let point = bench.point(&id, &Bench::usual(), spec).await?;
        let steps = observe::from_tokens(&point.run.records, clients);
        let Some(step_s) = median(steps.into_iter().map(|step| step.seconds)) else {
            continue;
        };
        measured.push((clients, step_s));
        let first = measured[0].1;
        table.row([
            clients.to_string(),
            format!("{:.3}", step_s * 1e3),
            format!("x{:.2}", step_s / first),
            number(Some(f64::from(clients) / step_s)),
        ]);
    }
    table.note("the median gap between two tokens while that many answers are under way");
    let at = |batch| {
        measured
            .iter()
            .find(|(size, _)| *size == batch)
            .map(|(_, secs)| secs * 1e3)
    };
    let mut beside = Beside::new("a decode step of 16 sequences against one of 1, ms");
    beside.headline(
        "step ms, 1 and 16 sequences",
        "ms",
        [16.0, 17.8],
        [at(1), at(16)],
    );
    bench.show(beside.note(L4));
    bench.section.tables.push(table);
    Ok(())
}

/// Eight clients with answers of 32 tokens.
pub(super) async fn eight(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let on = Bench::usual().with("max_batch", "8");
    bench
        .prove("concurrency-8: one place / eight", &off(), &on)
        .await?;
    let spec = |bench: &Bench<'_>| -> Spec {
        let mut spec = bench.closed("concurrency-8", 8, 32);
        spec.prompts[0].output_tokens = Lengths::Fixed(32);
        spec
    };
    let one = bench
        .point("concurrency-8-off", &off(), spec(bench))
        .await?;
    let eight = bench.point("concurrency-8-on", &on, spec(bench)).await?;
    let (one, eight) = (Seen::of(&one), Seen::of(&eight));
    let failed = |seen: &Seen<'_>| Some((seen.counts().scheduled() - seen.counts().ok) as f64);
    let mut beside = Beside::new("32 requests of 32 tokens, 8 clients");
    let tokens = [one.tokens_per_s(), eight.tokens_per_s()];
    let p95 = |seen: &Seen<'_>| seen.ms(Metric::E2e, 0.95);
    let mean = |seen: &Seen<'_>, metric| seen.mean_ms(metric);
    let ttft = [mean(&one, Metric::Ttft), mean(&eight, Metric::Ttft)];
    let queue = [mean(&one, Metric::Queue), mean(&eight, Metric::Queue)];
    beside.headline("output tokens/s", "tokens/s", [426.2, 1630.9], tokens);
    beside.headline("E2E p95 ms", "ms", [539.6, 177.1], [p95(&one), p95(&eight)]);
    beside.headline("TTFT mean ms", "ms", [250.5, 38.7], ttft);
    beside.headline("queue mean ms", "ms", [235.2, 0.79], queue);
    beside.line(
        "failed",
        "requests",
        [Some(0.0), Some(0.0)],
        [failed(&one), failed(&eight)],
    );
    bench.show(beside.note(RTX_4090));
    Ok(())
}
