//! A rate and a burst for each tenant. A job that sends more than its rate is refused what is beyond
//! it, and told to the nanosecond when to come back; a person who stays within theirs never notices
//! that there is a bucket, or a job.

use std::error::Error;
use std::num::NonZeroU64;

use examples_support::{Options, Table, l4, percentile, request, secs, simulate};
use serve_core::{Request, Span, TenantId, Time};
use serve_sched::Policies;
use serve_sched::admit::{Admit, Cost, Quota, TokenBucket};
use serve_sched::sim::{Poisson, Report, Row};

const JOB: TenantId = TenantId::new(1);
const PERSON: TenantId = TenantId::new(2);
/// Three requests in a second.
const RATE: NonZeroU64 = NonZeroU64::MIN.saturating_add(2);
/// Eight of them at once.
const BURST: NonZeroU64 = NonZeroU64::MIN.saturating_add(7);

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "A job sends 60 at once every 10 s, a person one every 2 s, for a minute, virtual time",
        |seed| Ok(table(&run(seed)?, seed)),
    )?;
    Ok(())
}

/// Nothing beside a bucket for each tenant.
fn run(seed: u64) -> Result<[(&'static str, Report); 2], Box<dyn Error>> {
    let serve = |admit: Vec<Box<dyn Admit>>| {
        let policies = Policies {
            admit,
            ..Policies::default()
        };
        simulate(&l4(8)?, policies, load(seed)).map_err(Box::<dyn Error>::from)
    };
    Ok([
        ("none", serve(Vec::new())?),
        ("3/s, bursts of 8", serve(vec![Box::new(bucket())])?),
    ])
}

fn bucket() -> TokenBucket {
    let quota = Quota::new(RATE, Span::from_secs(1), BURST);
    TokenBucket::per_tenant(quota, Cost::Request)
}

fn load(seed: u64) -> Vec<Request> {
    let burst = |n: u64| (0..60).map(move |id| (n * 60 + id, Time::from_secs(n * 10)));
    let job = (0..6).flat_map(burst);
    let job = job.map(|(id, at)| request(id, at, 30, 64).with_tenant(JOB));
    let minute = Poisson::new(seed + 9, 0.5).take_while(|&at| at < Time::from_secs(60));
    let person = (1_000..).zip(minute);
    let person = person.map(|(id, at)| request(id, at, 30, 64).with_tenant(PERSON));
    let mut load: Vec<Request> = job.chain(person).collect();
    load.sort_by_key(Request::arrival);
    load
}

fn finished(report: &Report, tenant: TenantId) -> impl Iterator<Item = &Row> {
    let rows = report.rows.iter().filter(|row| row.is_finished());
    rows.filter(move |row| row.tenant == tenant)
}

fn waits(report: &Report, tenant: TenantId) -> impl Iterator<Item = Span> {
    finished(report, tenant).filter_map(Row::waited)
}

fn table(reports: &[(&'static str, Report)], seed: u64) -> Table {
    let mut table = Table::new([
        "bucket",
        "job served",
        "job waits p50",
        "person served",
        "person waits p50",
        "p99",
    ]);
    let served = |report, tenant| {
        let all = load(seed)
            .iter()
            .filter(|request| request.tenant() == tenant)
            .count();
        format!("{} of {all}", finished(report, tenant).count())
    };
    for (name, report) in reports {
        table.row([
            (*name).to_owned(),
            served(report, JOB),
            secs(percentile(50, waits(report, JOB))),
            served(report, PERSON),
            secs(percentile(50, waits(report, PERSON))),
            secs(percentile(99, waits(report, PERSON))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serve_sched::{Gate, order::Fifo};

    use super::*;

    #[test]
    fn a_job_beyond_its_rate_is_refused_and_a_person_within_theirs_is_not() {
        let [(_, none), (_, bucket)] = run(0).unwrap();
        let person = load(0)
            .iter()
            .filter(|request| request.tenant() == PERSON)
            .count();
        assert_eq!(finished(&bucket, PERSON).count(), person);
        assert_eq!(finished(&none, JOB).count(), 360);
        // The burst at first, then what ten seconds refill, which is the whole burst.
        assert_eq!(finished(&bucket, JOB).count(), 6 * 8);
        let p99 = |report| percentile(99, waits(report, PERSON));
        assert!(
            p99(&bucket) * 4 < p99(&none),
            "{} {}",
            p99(&bucket),
            p99(&none)
        );
    }

    #[test]
    fn the_time_to_come_back_is_exact() {
        let mut gate = Gate::new(vec![Box::new(bucket())], Box::new(Fifo), 8);
        let mut ask = |id, now| {
            let request = request(id, now, 30, 64).with_tenant(JOB);
            gate.submit(now, std::sync::Arc::new(request))
        };
        for id in 0..8 {
            assert!(ask(id, Time::ZERO).is_ok());
        }
        let after = ask(8, Time::ZERO).unwrap_err().retry_after().unwrap();
        let then = Time::ZERO + after;
        assert!(ask(8, then - Span::from_nanos(1)).is_err());
        assert!(ask(8, then).is_ok());
    }
}
