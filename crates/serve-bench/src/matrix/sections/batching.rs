//! Batching off, static and continuous; the cost of a step by its batch; eight clients.

use crate::calibrate::observe;
use crate::definitions::Metric;
use crate::matrix::beside::{Beside, L4, RTX_4090};
use crate::matrix::scale::BATCH;
use crate::matrix::seen::{Seen, median};
use crate::matrix::{Bench, MatrixError};
use crate::servers::Settings;
use crate::spec::{Lengths, Spec};
use crate::table::{Table, number};

fn off() -> Settings {
    Bench::usual().with("max_batch", "1")
}

fn with_static() -> Settings {
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
    let mut sixteen = [None, None, None];
    let all = bench.plan.effort.clients();
    let mut lines = Vec::new();
    // One server after the other, so that each starts once.
    for (at, (name, settings)) in [
        ("off", off()),
        ("static", with_static()),
        ("continuous", on),
    ]
    .into_iter()
    .enumerate()
    {
        for &clients in all {
            let id = format!("batching-{name}-{clients}");
            let point = bench
                .point(&id, &settings, bench.closed_of("batching", clients))
                .await?;
            let seen = Seen::of(&point);
            if clients == 16 {
                let p50_s = seen.ms(Metric::E2e, 0.5).map(|ms| ms / 1e3);
                sixteen[at] = Some((seen.answers_per_s(), p50_s));
            }
            let cells = [
                number(Some(seen.tokens_per_s())),
                number(seen.ms(Metric::Ttft, 0.5)),
                number(seen.ms(Metric::E2e, 0.5)),
                number(seen.ms(Metric::E2e, 0.99)),
                (seen.counts().scheduled() - seen.counts().ok).to_string(),
            ];
            lines.push((clients, at, name, seen.answers_per_s(), cells));
        }
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
    if let [Some(off), Some(fixed), Some(on)] = sixteen {
        let mut beside = Beside::new("16 clients, batching off and on");
        let rps = [Some(1.21), Some(9.02)];
        let p50 = [Some(13.2), Some(1.76)];
        beside.line(
            "answers/s, static batches",
            "answers/s",
            rps,
            [Some(off.0), Some(fixed.0)],
        );
        beside.line(
            "answers/s, continuous",
            "answers/s",
            [None, None],
            [Some(off.0), Some(on.0)],
        );
        beside.line("E2E p50 s, static batches", "s", p50, [off.1, fixed.1]);
        beside.line("E2E p50 s, continuous", "s", [None, None], [off.1, on.1]);
        let note = "published batches are of 8, ours of 16";
        bench.show(beside.note(L4).note(note));
        let gain = on.0 / off.0;
        bench.expect(
            "16 clients with batches do more than one at a time",
            gain > 1.1,
            format!("x{gain:.2}"),
        );
    }
    bench.section.tables.push(table);
    Ok(())
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
    beside.line("step", "ms", [Some(16.0), Some(17.8)], [at(1), at(16)]);
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
    let tokens = [Some(one.tokens_per_s()), Some(eight.tokens_per_s())];
    let p95 = |seen: &Seen<'_>| seen.ms(Metric::E2e, 0.95);
    let mean = |seen: &Seen<'_>, metric| seen.mean_ms(metric);
    let ttft = [mean(&one, Metric::Ttft), mean(&eight, Metric::Ttft)];
    let queue = [mean(&one, Metric::Queue), mean(&eight, Metric::Queue)];
    beside.line(
        "output tokens/s",
        "tokens/s",
        [Some(426.2), Some(1630.9)],
        tokens,
    );
    beside.line(
        "E2E p95 ms",
        "ms",
        [Some(539.6), Some(177.1)],
        [p95(&one), p95(&eight)],
    );
    beside.line("TTFT mean ms", "ms", [Some(250.5), Some(38.7)], ttft);
    beside.line("queue mean ms", "ms", [Some(235.2), Some(0.79)], queue);
    beside.line(
        "failed",
        "requests",
        [Some(0.0), Some(0.0)],
        [failed(&one), failed(&eight)],
    );
    bench.show(beside.note(RTX_4090));
    Ok(())
}
