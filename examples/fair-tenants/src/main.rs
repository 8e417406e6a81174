//! First come, first served shares a server by who sends most. A virtual token counter shares it by
//! tokens: the waiting tenant that was served least goes first, so one that floods the queue waits
//! behind its own flood and nobody else does.

use std::error::Error;
use std::num::NonZeroU32;

use examples_support::{Options, Table, l4, percentile, request, secs, simulate};
use serve_core::{Request, Span, TenantId, Time};
use serve_sched::Policies;
use serve_sched::admit::{Admit, QueueCap};
use serve_sched::order::{FairTenants, Fifo, Order};
use serve_sched::sim::{Poisson, Report, Row};

const FLOOD: TenantId = TenantId::new(1);
const PERSON: TenantId = TenantId::new(2);
/// The default of `serve`.
const QUEUE_CAP: u32 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "A flood of 400 requests at once, and a person who sends one every 2 s, virtual time",
        |seed| Ok(flood_table(&flood(seed)?)),
    )?;
    options.show_over_seeds(
        "The same behind the queue cap that `serve` has by default, the flood five times as large",
        |seed| Ok(flood_table(&capped(seed)?)),
    )?;
    options.show(
        "Two tenants that always want more, in their first minute, virtual time",
        &share_table(&shares()?),
    )?;
    Ok(())
}

/// First come, first served beside fair shares, one tenant flooding.
fn flood(seed: u64) -> Result<[(&'static str, Report); 2], Box<dyn Error>> {
    let load = flood_and_person(seed, Vec::from([Time::ZERO; 400]));
    Ok([
        ("fifo", serve(Fifo, None, load.clone())?),
        ("fair-tenants", serve(FairTenants::default(), None, load)?),
    ])
}

/// The same where at most 256 requests wait, so that most of the flood is refused.
fn capped(seed: u64) -> Result<[(&'static str, Report); 2], Box<dyn Error>> {
    let load = flood_and_person(seed, Poisson::new(seed + 4, 50.0).take(2_000).collect());
    let cap = Some(QUEUE_CAP);
    Ok([
        ("fifo", serve(Fifo, cap, load.clone())?),
        ("fair-tenants", serve(FairTenants::default(), cap, load)?),
    ])
}

fn flood_and_person(seed: u64, flood: Vec<Time>) -> Vec<Request> {
    let person = (10_000..).zip(Poisson::new(seed + 3, 0.5)).take(20);
    let person = person.map(|(id, at)| request(id, at, 30, 64).with_tenant(PERSON));
    let flood = (0..).zip(flood);
    let flood = flood.map(|(id, at)| request(id, at, 30, 64).with_tenant(FLOOD));
    let mut load: Vec<Request> = flood.chain(person).collect();
    load.sort_by_key(Request::arrival);
    load
}

/// Equal shares and shares of 3 to 1, both tenants with more than there is to be had; the second
/// sends requests four times as long.
fn shares() -> Result<[(&'static str, Report); 3], Box<dyn Error>> {
    let first = (0..800).map(|id| request(id, Time::ZERO, 30, 32).with_tenant(FLOOD));
    let second = (800..1_200).map(|id| request(id, Time::ZERO, 30, 128).with_tenant(PERSON));
    // One of each in turn, as long as there are both.
    let mut load: Vec<Request> = first.chain(second).collect();
    load.sort_by_key(|request| request.id().get() % 800);
    let three = NonZeroU32::MIN.saturating_add(2);
    Ok([
        ("fifo", serve(Fifo, None, load.clone())?),
        (
            "fair, 1 to 1",
            serve(FairTenants::default(), None, load.clone())?,
        ),
        ("fair, 3 to 1", serve(weighted(three), None, load)?),
    ])
}

/// Both tenants named, so that each has a share of its own.
fn weighted(of_flood: NonZeroU32) -> FairTenants {
    FairTenants::default()
        .with_share(FLOOD, of_flood)
        .with_share(PERSON, NonZeroU32::MIN)
}

fn serve(
    order: impl Order + 'static,
    cap: Option<u32>,
    load: Vec<Request>,
) -> Result<Report, Box<dyn Error>> {
    let cap = cap.map(|cap| Box::new(QueueCap::new(cap)) as Box<dyn Admit>);
    let policies = Policies {
        admit: cap.into_iter().collect(),
        order: Box::new(order),
        ..Policies::default()
    };
    Ok(simulate(&l4(8)?, policies, load)?)
}

fn of(report: &Report, tenant: TenantId) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(move |row| row.tenant == tenant)
}

fn wait(report: &Report, tenant: TenantId, percent: u32) -> Span {
    percentile(percent, of(report, tenant).filter_map(Row::waited))
}

fn answered(report: &Report, tenant: TenantId) -> usize {
    of(report, tenant).filter(|row| row.is_finished()).count()
}

/// Service as the counters count it, prompt tokens and twice the output tokens, of what ended in
/// the first minute.
fn service(report: &Report, tenant: TenantId) -> u32 {
    let minute = of(report, tenant).filter(|row| row.end <= Time::from_secs(60));
    minute
        .map(|row| row.usage.prompt_tokens + 2 * row.usage.output_tokens)
        .sum()
}

fn flood_table(reports: &[(&'static str, Report)]) -> Table {
    let mut table = Table::new([
        "order",
        "person answered",
        "waits p50",
        "p99",
        "flood waits p50",
        "all done",
    ]);
    for (name, report) in reports {
        table.row([
            (*name).to_owned(),
            format!("{} of 20", answered(report, PERSON)),
            secs(wait(report, PERSON, 50)),
            secs(wait(report, PERSON, 99)),
            secs(wait(report, FLOOD, 50)),
            secs(report.end.since(Time::ZERO)),
        ]);
    }
    table
}

fn share_table(reports: &[(&'static str, Report)]) -> Table {
    let mut table = Table::new(["order", "32-token tenant", "128-token tenant", "ratio"]);
    for (name, report) in reports {
        let (first, second) = (service(report, FLOOD), service(report, PERSON));
        table.row([
            (*name).to_owned(),
            format!("{first} units"),
            format!("{second} units"),
            format!("{:.2}", f64::from(first) / f64::from(second)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_makes_nobody_wait_but_itself() {
        let [(_, fifo), (_, fair)] = flood(0).unwrap();
        assert!(wait(&fifo, PERSON, 50) > Span::from_secs(20));
        assert!(wait(&fair, PERSON, 99) < Span::from_secs(2));
        // The same work is done in about the same time.
        let (a, b) = (fifo.end.as_secs_f64(), fair.end.as_secs_f64());
        assert!((a / b - 1.0).abs() < 0.05, "{a} {b}");
    }

    #[test]
    fn a_full_queue_has_a_place_for_a_tenant_that_has_taken_none() {
        let [(_, fifo), (_, fair)] = capped(0).unwrap();
        assert!(answered(&fifo, PERSON) < 10);
        assert_eq!(answered(&fair, PERSON), 20);
        assert!(wait(&fair, PERSON, 99) < Span::from_secs(2));
    }

    #[test]
    fn shares_are_of_tokens_and_not_of_requests() {
        let [fifo, equal, weighted] = shares().unwrap();
        let gap = |(_, report): &(_, Report), share: u32| {
            let (first, second) = (service(report, FLOOD), service(report, PERSON));
            f64::from(first) / f64::from(share) - f64::from(second)
        };
        // The bound of the policy's documentation, 2 x max(1 x 30, 2 x 8 slots x 128), plus what ended
        // requests leave out: those that are still in the batch.
        let bound = f64::from(2 * 2 * 8 * 128 + 8 * (30 + 2 * 128));
        assert!(gap(&equal, 1).abs() < bound, "{}", gap(&equal, 1));
        assert!(gap(&weighted, 3).abs() < bound, "{}", gap(&weighted, 3));
        assert!(gap(&fifo, 1).abs() > 2.0 * bound, "{}", gap(&fifo, 1));
    }
}
