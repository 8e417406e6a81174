//! Every request of an application begins with the same instructions. Blocks of the KV cache that
//! hold a prefix are kept, and the next request that begins with the same tokens runs only the rest:
//! an earlier first token, and time on the device that others can use. Sharing stays within a tenant
//! unless it is allowed to cross: a fast first token would tell one tenant what another has sent.

use std::error::Error;

use examples_support::{Options, Table, l4, ms, percentile, secs, simulate};
use serve_core::{InvalidRequest, Request, RequestId, Span, TenantId, TokenId};
use serve_sched::Policies;
use serve_sched::kv::KvSettings;
use serve_sched::sim::{Poisson, Report, Row};

/// Tokens of the instructions that every prompt begins with, and of what is its own.
const SHARED_TOKENS: u32 = 1_500;
const OWN_TOKENS: u32 = 60;
const REQUESTS: u64 = 300;
const TENANTS: u32 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "1,500 tokens of instructions and 60 of one's own, 10 tenants, 4 requests/s, virtual time",
        |seed| Ok(table(&run(seed)?)),
    )?;
    Ok(())
}

fn run(seed: u64) -> Result<[(&'static str, Report); 3], Box<dyn Error>> {
    let kv = |reuse_prefixes, isolate_tenants| KvSettings {
        reuse_prefixes,
        isolate_tenants,
        ..KvSettings::default()
    };
    Ok([
        ("off", serve(seed, kv(false, true))?),
        ("within a tenant", serve(seed, kv(true, true))?),
        ("across tenants", serve(seed, kv(true, false))?),
    ])
}

fn serve(seed: u64, kv: KvSettings) -> Result<Report, Box<dyn Error>> {
    let policies = Policies {
        kv,
        ..Policies::default()
    };
    let load: Result<Vec<Request>, _> = load(seed).collect();
    Ok(simulate(&l4(8)?, policies, load?)?)
}

fn load(seed: u64) -> impl Iterator<Item = Result<Request, InvalidRequest>> {
    (0..REQUESTS)
        .zip(Poisson::new(seed + 10, 4.0))
        .map(|(id, at)| {
            let shared = (0..SHARED_TOKENS).map(TokenId::new);
            let own = (0..OWN_TOKENS).map(|n| TokenId::new(10_000 + id as u32 * OWN_TOKENS + n));
            let prompt: Vec<TokenId> = shared.chain(own).collect();
            let request = Request::new(RequestId::new(id), at, prompt, 64)?;
            Ok(request.with_tenant(TenantId::new(id as u32 % TENANTS)))
        })
}

fn first_token(report: &Report, percent: u32) -> Span {
    percentile(
        percent,
        report.rows.iter().filter_map(Row::first_token_time),
    )
}

fn table(reports: &[(&'static str, Report)]) -> Table {
    let mut table = Table::new([
        "reuse",
        "first token p50",
        "p99",
        "prompt tokens run",
        "found in the cache",
        "latency p50",
    ]);
    for (name, report) in reports {
        let counters = report.stats.counters;
        table.row([
            (*name).to_owned(),
            ms(first_token(report, 50)),
            ms(first_token(report, 99)),
            counters.prefill_tokens.to_string(),
            counters.cached_tokens.to_string(),
            secs(percentile(50, report.rows.iter().map(Row::response_time))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_run_once_for_each_tenant_or_once_for_all() {
        let [(_, off), (_, within), (_, across)] = run(0).unwrap();
        let whole = REQUESTS * u64::from(SHARED_TOKENS + OWN_TOKENS);
        assert_eq!(off.stats.counters.prefill_tokens, whole);
        assert_eq!(off.stats.counters.cached_tokens, 0);
        // Blocks are reused when they are full: 93 of 16 tokens in 1,500.
        let reused = u64::from(SHARED_TOKENS / 16 * 16);
        let hits = |report: &Report| report.stats.counters.cached_tokens / reused;
        assert_eq!(hits(&within), REQUESTS - u64::from(TENANTS));
        assert_eq!(hits(&across), REQUESTS - 1);
        for report in [&within, &across] {
            let counters = report.stats.counters;
            assert_eq!(counters.prefill_tokens + counters.cached_tokens, whole);
        }
    }

    #[test]
    fn what_is_not_run_is_not_waited_for() {
        let [(_, off), (_, within), (_, across)] = run(0).unwrap();
        assert!(first_token(&within, 50) * 2 < first_token(&off, 50));
        assert!(first_token(&across, 99) < first_token(&off, 99));
        assert!(within.busy < off.busy);
    }
}
