//! More than the server can do: a limit on the queue, classes, aging.

use crate::analysis::definitions::Metric;
use crate::analysis::group::Group;
use crate::analysis::table::{Table, number, percent};
use crate::experiments::matrix::beside::{Beside, L4};
use crate::experiments::matrix::seen::Seen;
use crate::experiments::matrix::{Bench, MatrixError};
use crate::workload::spec::{Class, Positive, Spec};

/// How long an accepted answer may take, in answers of one request alone: 2.5 s where one takes 1.09.
const TARGET: f64 = 2.3;

/// The queue that keeps accepted answers within the target, as the published formula has it: what the
/// target leaves beside an answer's own time, at the rate at which the queue drains.
fn depth(bench: &Bench<'_>) -> u32 {
    let left_s = (TARGET - 1.0) * bench.scale.answer_s;
    ((left_s * bench.scale.capacity_per_s) as u32).max(1)
}

/// Twice the capacity, with and without a limit on the queue.
pub(super) async fn admission(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let off = Bench::usual();
    let on = off.clone().with("queue_cap", depth(bench).to_string());
    bench
        .prove("admission: no limit / a queue cap", &off, &on)
        .await?;
    let one = bench
        .point("admission-off", &off, bench.open("admission", 2.0)?)
        .await?;
    let two = bench
        .point("admission-on", &on, bench.open("admission", 2.0)?)
        .await?;
    let (one, two) = (Seen::of(&one), Seen::of(&two));
    let secs = |seen: &Seen<'_>, quantile| seen.ms(Metric::E2e, quantile).map(|ms| ms / 1e3);
    let waiting = |seen: &Seen<'_>| seen.most(|sample| sample.waiting);
    let refused = |seen: &Seen<'_>| Some(seen.counts().refused as f64);
    let rates = [Some(one.answers_per_s()), Some(two.answers_per_s())];
    let mut beside = Beside::new("twice the capacity, a limit on the queue off and on");
    beside.headline(
        "E2E p99 s, of answers",
        "s",
        [31.0, 2.98],
        [secs(&one, 0.99), secs(&two, 0.99)],
    );
    beside.line(
        "E2E p50 s, of answers",
        "s",
        [None, None],
        [secs(&one, 0.5), secs(&two, 0.5)],
    );
    beside.headline("answers/s", "answers/s", [7.09, 6.75], rates);
    beside.line(
        "longest queue",
        "requests",
        [Some(220.0), None],
        [waiting(&one), waiting(&two)],
    );
    beside.line(
        "refused",
        "requests",
        [Some(0.0), None],
        [refused(&one), refused(&two)],
    );
    beside.line(
        "a refusal takes, ms",
        "ms",
        [None, Some(3.0)],
        [None, two.refusal_ms()],
    );
    let requests = one.counts().scheduled();
    let note = format!(
        "{requests} requests; the cap is {}, for accepted answers within {TARGET} times that of one alone \
         ({:.2} s)",
        depth(bench),
        bench.answers_s(TARGET),
    );
    bench.show(beside.note(L4).note(&note));
    let (off, on) = (one.counts().refused, two.counts().refused);
    bench.expect(
        "nobody is refused without a limit",
        off == 0,
        format!("{off} refused"),
    );
    bench.expect(
        "somebody is refused with one",
        on > 0,
        format!("{on} refused of {requests}"),
    );
    Ok(())
}

fn class(name: &str, share: f64) -> Result<Class, MatrixError> {
    Ok(Class {
        name: name.to_owned(),
        share: Positive::try_from(share).map_err(MatrixError::Load)?,
        deadline_ms: None,
        cancel: None,
        retry: None,
        slo: None,
        extra: toml::Table::new(),
    })
}

fn classes(bench: &Bench<'_>, name: &str, load: f64, paid: f64) -> Result<Spec, MatrixError> {
    let mut spec = bench.open(name, load)?;
    spec.classes = vec![class("paid", paid)?, class("free", 1.0 - paid)?];
    Ok(spec)
}

/// Order by class, and a shallower queue for the lower one.
pub(super) async fn tiers(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let depth = depth(bench);
    let base = Bench::usual().with("queue_cap", depth.to_string());
    let order = base.clone().with("order", "strict-tiers");
    let shallow = base
        .clone()
        .with("class_queue_cap", format!("free={}", (depth / 3).max(1)));
    bench
        .prove("tiers: first come / paid first", &base, &order)
        .await?;
    bench
        .prove(
            "tiers: one queue cap / a shallower one for free",
            &base,
            &shallow,
        )
        .await?;
    let mut seen = Vec::new();
    for (name, settings) in [("flat", &base), ("order", &order), ("depth", &shallow)] {
        let id = format!("tiers-{name}");
        let spec = classes(bench, "tiers", 2.0, 0.55)?;
        seen.push(bench.point(&id, settings, spec).await?);
    }
    let [flat, order, depth] = [0, 1, 2].map(|at| Seen::of(&seen[at]));
    let share = |seen: &Seen<'_>, name| {
        let of = seen.class(name)?.requests;
        (of.scheduled() > 0).then(|| 100.0 * of.ok as f64 / of.scheduled() as f64)
    };
    let answered = |seen: &Seen<'_>| Some(seen.counts().ok as f64);
    let mut beside =
        Beside::new("twice the capacity, one queue cap against a shallower one for free");
    let all = [Some(147.0), Some(147.0)];
    beside.headline(
        "accepted, paid %",
        "%",
        [42.0, 50.0],
        [share(&flat, "paid"), share(&depth, "paid")],
    );
    beside.headline(
        "accepted, free %",
        "%",
        [38.0, 18.0],
        [share(&flat, "free"), share(&depth, "free")],
    );
    beside.line(
        "accepted in all",
        "requests",
        all,
        [answered(&flat), answered(&depth)],
    );
    bench.show(beside.note(L4));
    let columns = [
        "condition",
        "class",
        "answered",
        "TTFT p50 ms",
        "TTFT p99 ms",
    ];
    let mut table = Table::new("by class", &columns);
    for (name, seen) in [
        ("first come", &flat),
        ("paid first", &order),
        ("shallower for free", &depth),
    ] {
        for class in ["paid", "free"] {
            let Some(group) = seen.class(class) else {
                continue;
            };
            table.row(class_line(name, class, group));
        }
    }
    bench.section.tables.push(table);
    let (before, after) = (share(&flat, "free"), share(&depth, "free"));
    let shown = before
        .zip(after)
        .is_some_and(|(before, after)| after < before);
    bench.expect(
        "free is refused more at a shallower depth",
        shown,
        format!("{}% and {}%", number(before), number(after)),
    );
    Ok(())
}

fn class_line(name: &str, class: &str, group: &Group) -> [String; 5] {
    let counts = group.requests;
    [
        name.to_owned(),
        class.to_owned(),
        percent(Some(counts.ok as f64 / counts.scheduled().max(1) as f64)),
        number(group.percentile_ms(Metric::Ttft, 0.5)),
        number(group.percentile_ms(Metric::Ttft, 0.99)),
    ]
}

/// Strict tiers starve; aging bounds the wait.
pub(super) async fn aging(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let age_s = bench.answers_s(2.0);
    let base = Bench::usual().with("order", "aging-tiers");
    let off = base.clone().with("age_after", "0");
    let on = base.with("age_after", age_s.to_string());
    bench
        .prove("aging: never / after a while", &off, &on)
        .await?;
    let spec = |bench: &Bench<'_>| classes(bench, "aging", 1.25, 0.78);
    let never = bench.point("aging-off", &off, spec(bench)?).await?;
    let aged = bench.point("aging-on", &on, spec(bench)?).await?;
    let (never, aged) = (Seen::of(&never), Seen::of(&aged));
    let wait = |class| [never.longest_wait_s(class), aged.longest_wait_s(class)];
    let p99 = |class| {
        let of =
            |seen: &Seen<'_>| Some(seen.class(class)?.percentile_ms(Metric::Ttft, 0.99)? / 1e3);
        [of(&never), of(&aged)]
    };
    let mut beside = Beside::new("paid at capacity, aging off and on");
    beside.headline("longest wait of free s", "s", [5.5, 2.2], wait("free"));
    beside.line("longest wait of paid s", "s", [None, None], wait("paid"));
    beside.line("TTFT p99 of free s", "s", [None, None], p99("free"));
    beside.line("TTFT p99 of paid s", "s", [None, None], p99("paid"));
    let note = format!(
        "a waiting request goes before all classes after {age_s:.2} s; the load is 1.25 times the capacity, \
         78% of it paid, so the aged themselves come to wait for each other"
    );
    bench.show(beside.note(L4).note(&note));
    let [off, on] = wait("free");
    let shown = off.zip(on).is_some_and(|(off, on)| on < off);
    bench.expect(
        "free waits less with aging",
        shown,
        format!("{} s and {} s", number(off), number(on)),
    );
    Ok(())
}
