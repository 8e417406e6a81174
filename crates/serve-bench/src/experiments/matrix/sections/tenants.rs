//! A light tenant with a key of its own, alone and beside one that floods, in a fair order and first come, first served.

use std::num::NonZeroU64;

use crate::analysis::definitions::Metric;
use crate::analysis::group::Group;
use crate::analysis::table::number;
use crate::experiments::matrix::beside::Beside;
use crate::experiments::matrix::scale::positive;
use crate::experiments::matrix::seen::Seen;
use crate::experiments::matrix::{Bench, Effort, MatrixError};
use crate::experiments::servers::ServerSettings;
use crate::workload::spec::{Arrivals, Positive, Spec, Tenant};

const LIGHT: &str = "light";
const FLOOD: &str = "flood";
/// What each sends, of the capacity. The light tenant's share is half, and its bursts are to stay below that too.
const LOADS: [(&str, f64); 2] = [(LIGHT, 0.1), (FLOOD, 4.0)];
/// Of the light tenant's requests so many are answered beside the flood, at least.
const ANSWERED_MIN: f64 = 95.0;
/// Its p99 beside the flood over that alone, at most. Requests of the flood are alike and end together, so the next place
/// is up to a whole answer away; then comes its own.
const P99_OVER_ALONE_MAX: f64 = 2.2;
/// Requests that may wait.
const QUEUE: u32 = 64;
/// How long an accepted answer may take, in answers of one request alone.
const BUDGET: f64 = 4.0;

fn load(bench: &Bench<'_>, only: Option<&str>) -> Result<Spec, MatrixError> {
    let total: f64 = LOADS.iter().map(|(_, load)| load).sum();
    let rate_per_s = positive(total * bench.scale.capacity_per_s)?;
    let mut spec = bench.spec("tenants", Arrivals::Poisson { rate_per_s });
    spec.requests = NonZeroU64::new(match bench.plan.effort {
        Effort::Smoke => 250,
        Effort::Full => 1_500,
    });
    spec.request.stream = false;
    spec.only_tenant = only.map(str::to_owned);
    let tenant = |(name, load): (&str, f64)| {
        Ok(Tenant {
            name: name.to_owned(),
            share: Positive::try_from(load).map_err(MatrixError::Load)?,
            api_key_env: None,
            class: None,
        })
    };
    spec.tenants = LOADS.into_iter().map(tenant).collect::<Result<_, _>>()?;
    Ok(spec)
}

/// What the light tenant got.
struct Got {
    answered_percent: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
}

impl Got {
    fn of(group: &Group) -> Self {
        let counts = group.requests;
        Self {
            answered_percent: 100.0 * counts.ok as f64 / counts.scheduled().max(1) as f64,
            p50_ms: group.percentile_ms(Metric::E2e, 0.5),
            p99_ms: group.percentile_ms(Metric::E2e, 0.99),
        }
    }

    fn is_served(&self, alone: &Self) -> bool {
        let both = self.p99_ms.zip(alone.p99_ms);
        let in_time = both.is_some_and(|(p99, alone)| p99 <= P99_OVER_ALONE_MAX * alone);
        self.answered_percent >= ANSWERED_MIN && in_time
    }
}

/// Alone and beside the flood, behind a queue cap and behind a latency budget.
pub(super) async fn tenants(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let base = Bench::usual().with("keys", format!("{LIGHT},{FLOOD}"));
    let queue = base.clone().with("queue_cap", QUEUE.to_string());
    let budget = base.with("latency_budget", bench.answers_s(BUDGET).to_string());
    behind(bench, "queue", "a queue cap", &queue).await?;
    behind(bench, "budget", "a latency budget", &budget).await
}

async fn behind(
    bench: &mut Bench<'_>,
    id: &str,
    name: &str,
    guard: &ServerSettings,
) -> Result<(), MatrixError> {
    let fair = guard.clone().with("order", "fair-tenants");
    let first_come = guard.clone().with("order", "fifo");
    let pair = |what: &str| format!("tenants: {what}, behind {name}");
    let (alone, beside) = (load(bench, Some(LIGHT))?, load(bench, None)?);
    bench.prove_load(&pair("alone / beside the flood"), &alone, &beside)?;
    let order = pair("first come / fair order");
    bench.prove(&order, &first_come, &fair).await?;
    let point = |which: &str| format!("tenants-{id}-{which}");
    let alone = bench.point(&point("alone"), &fair, alone).await?;
    let fair = bench.point(&point("fair"), &fair, beside.clone()).await?;
    let first_come = bench.point(&point("fifo"), &first_come, beside).await?;
    let seen = [&alone, &fair, &first_come].map(Seen::of);
    let got = seen
        .iter()
        .map(|seen| Got::of(seen.tenant(LIGHT)))
        .collect::<Vec<_>>();
    if let [alone, fair, first_come] = &got[..] {
        show(bench, name, alone, fair, first_come);
    }
    Ok(())
}

fn show(bench: &mut Bench<'_>, name: &str, alone: &Got, fair: &Got, first_come: &Got) {
    for (pair, off, on) in [
        ("alone / beside the flood", alone, fair),
        ("first come / fair order", first_come, fair),
    ] {
        let title = format!("the light tenant behind {name}: {pair} (off / on)");
        let mut beside = Beside::new(&title);
        let mut line = |what: &str, unit, ours| {
            let what = format!("{name}, {pair}: {what}");
            beside.line(&what, unit, [None, None], ours);
        };
        let answered = [off, on].map(|got| Some(got.answered_percent));
        line("answered %", "%", answered);
        line("E2E p50 ms", "ms", [off.p50_ms, on.p50_ms]);
        line("E2E p99 ms", "ms", [off.p99_ms, on.p99_ms]);
        let [(_, light), (_, flood)] = LOADS;
        let note = format!(
            "the light tenant sends {light} of the capacity, the other {flood} times the capacity, each with its own key; \
             in a fair order its share is half. First come, first served is beside the flood as well, and the fair order \
             is the same run in both tables. No experiment is published with such a pair"
        );
        bench.show(beside.note(&note));
    }
    let seen = |got: &Got| {
        let (p99, alone) = (number(got.p99_ms), number(alone.p99_ms));
        format!(
            "{}% answered, p99 {p99} ms, {alone} ms alone",
            number(Some(got.answered_percent))
        )
    };
    let what = |order: &str| format!("behind {name}, {order}");
    bench.expect(
        &what(&format!(
            "a fair order answers the light tenant within {P99_OVER_ALONE_MAX} times its p99 alone"
        )),
        fair.is_served(alone),
        seen(fair),
    );
    bench.expect(
        &what("first come does not"),
        !first_come.is_served(alone),
        seen(first_come),
    );
}
