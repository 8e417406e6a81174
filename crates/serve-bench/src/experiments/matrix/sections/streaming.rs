//! When a reader sees the first word.

use crate::analysis::definitions::Metric;
use crate::analysis::table::{Table, number};
use crate::experiments::matrix::beside::{Beside, L4};
use crate::experiments::matrix::seen::Seen;
use crate::experiments::matrix::{Bench, MatrixError};

/// One client, streamed and not. The conditions differ in the request, not in the server.
pub(super) async fn on_and_off(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let requests = bench.plan.effort.requests(4);
    let usual = Bench::usual();
    let on = bench.closed("streaming", 1, requests);
    let mut off = on.clone();
    off.request.stream = false;
    let off = bench.point("streaming-off", &usual, off).await?;
    let on = bench.point("streaming-on", &usual, on).await?;
    let (off, on) = (Seen::of(&off), Seen::of(&on));
    let first = |seen: &Seen<'_>| seen.ms(Metric::Ttft, 0.5);
    let whole = |seen: &Seen<'_>| seen.ms(Metric::E2e, 0.5);
    let mut beside = Beside::new("one client, ms");
    beside.headline(
        "first text, p50",
        "ms",
        [840.0, 31.0],
        [first(&off), first(&on)],
    );
    beside.line(
        "whole answer, p50",
        "ms",
        [Some(840.0), None],
        [whole(&off), whole(&on)],
    );
    beside.line(
        "first text, one request of 43 tokens in, 63 out",
        "ms",
        [Some(1_395.0), Some(36.0)],
        [first(&off), first(&on)],
    );
    beside.line(
        "whole answer of that request",
        "ms",
        [Some(1_395.0), Some(1_293.0)],
        [whole(&off), whole(&on)],
    );
    let other = "published, last two lines: Qwen2.5-0.5B FP16 on an RTX 5070 Ti, one request (LLM Serving Mastery 1)";
    bench.show(beside.note(L4).note(other));
    let mut load = Table::new(
        "from the start of the server to ready",
        &["", "published s", "ours s"],
    );
    load.row([
        "model load".to_owned(),
        "4.51".to_owned(),
        number(bench.scale.ready_s),
    ]);
    load.note("ours is absent where the matrix went on with points that were measured before");
    bench.section.tables.push(load);
    let pieces = |seen: &Seen<'_>| seen.rows().iter().map(|row| row.chunks.len()).max();
    let (of_off, of_on) = (pieces(&off), pieces(&on));
    bench.expect(
        "an answer that is not streamed comes in one piece",
        of_off == Some(1),
        format!("{} pieces", of_off.unwrap_or(0)),
    );
    bench.expect(
        "a streamed answer comes in pieces",
        of_on > Some(1),
        format!("{} pieces", of_on.unwrap_or(0)),
    );
    Ok(())
}

/// Static and continuous batches of 8, below and above capacity.
pub(super) async fn first_token(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let on = Bench::usual().with("max_batch", "8");
    let off = on.clone().with("batch", "static");
    bench
        .prove("first token: static / continuous", &off, &on)
        .await?;
    // Published p50 by clients of static batches of 8.
    let published = [
        (1, Some(31.0)),
        (4, Some(36.0)),
        (8, Some(44.0)),
        (16, Some(919.0)),
    ];
    let columns = [
        "load",
        "published, static",
        "ours, static",
        "ours, continuous",
    ];
    let mut table = Table::new("first token p50, ms", &columns);
    let mut lines = Vec::new();
    for (name, settings) in [("static", &off), ("continuous", &on)] {
        for (clients, _) in published {
            let id = format!("first-token-{name}-{clients}");
            let point = bench
                .point(&id, settings, bench.closed_of("first-token", clients))
                .await?;
            lines.push(Seen::of(&point).ms(Metric::Ttft, 0.5));
        }
        for (load, label) in [(0.4, "0.4"), (1.5, "1.5")] {
            // The capacity was measured with batches of 16; batches of 8 can do less.
            let id = format!("first-token-{name}-load-{label}");
            let point = bench
                .point(&id, settings, bench.open("first-token", load / 2.0)?)
                .await?;
            lines.push(Seen::of(&point).ms(Metric::Ttft, 0.5));
        }
    }
    let (fixed, joining) = lines.split_at(lines.len() / 2);
    let clients = published.map(|(clients, known)| (format!("clients: {clients}"), known));
    let open = ["open loop, 0.4 of capacity", "open loop, 1.5 of capacity"];
    let open = open.map(|load| (load.to_owned(), None));
    for ((load, known), (fixed, joining)) in clients
        .into_iter()
        .chain(open)
        .zip(fixed.iter().zip(joining))
    {
        table.row([load, number(known), number(*fixed), number(*joining)]);
    }
    table.note(L4);
    table.note("capacity here is half of that with batches of 16");
    bench.section.tables.push(table);
    let (below, above) = (joining[0], joining[3]);
    let shown = below.zip(above).is_some_and(|(below, above)| above > below);
    bench.expect(
        "above capacity the first token comes later",
        shown,
        format!("{} and {} ms", number(below), number(above)),
    );
    Ok(())
}
