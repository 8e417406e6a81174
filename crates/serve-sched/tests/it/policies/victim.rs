//! What the victim policies are good for, and how often a request should be preempted at most.

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::Rng;
use serve_core::{Limits, Request, RequestId, Span, TenantId, Time, TokenId};
use serve_sched::kv::KvSettings;
use serve_sched::order::{FairTenants, Fifo, Order};
use serve_sched::sim::{Arrivals, Report, Row, Simulation};
use serve_sched::victim::{
    LeastProgressLost, MostFreedForLeastLost, NewestOfLowestClass, OverShareFirst, Preemption,
    Victim,
};
use serve_sched::{Policies, Scheduler};

use super::percentile;
use crate::quoted::quoted;

fn request(id: u64, at: Time, prompt: u32, output: u32) -> Request {
    let tokens: Vec<_> = (0..prompt)
        .map(|position| TokenId::new((id as u32) << 12 | position))
        .collect();
    Request::new(RequestId::new(id), at, tokens, output).unwrap()
}

fn run(
    limits: Limits,
    cost: (u64, u64),
    policies: Policies,
    requests: impl IntoIterator<Item = Request>,
) -> Report {
    let (decode_us, token_us) = cost;
    let points = vec![(1, Span::from_micros(decode_us))];
    let cost = CostModel::new(points, Span::from_micros(token_us), Span::ZERO);
    let mock = Mock::new(MockConfig {
        limits,
        cost: cost.unwrap(),
        ..MockConfig::default()
    });
    let policies = Policies {
        admit: Vec::new(),
        kv: KvSettings {
            reuse_prefixes: false,
            ..KvSettings::default()
        },
        ..policies
    };
    let scheduler = Scheduler::new(limits, policies).unwrap();
    Simulation::new(scheduler, mock).run(&mut Arrivals::new(requests))
}

/// A tenant that floods and one that asks every four seconds, where blocks run out: how often a
/// request of each is preempted, and the light one's median response.
fn flood(victim: impl Victim + 'static, order: impl Order + 'static) -> ([f64; 2], f64) {
    let limits = Limits {
        sequences_max: 16,
        step_tokens_max: 512,
        context_max: 512,
        block_size: 16,
        blocks: 16 * 12 + 1,
    };
    let heavy = (0..400).map(|id| request(id, Time::ZERO, 100, 200).with_tenant(TenantId::new(1)));
    let light = (0..20).map(|n| {
        let at = Time::from_millis(3_000 + n * 4_000);
        request(1_000 + n, at, 100, 200).with_tenant(TenantId::new(2))
    });
    let policies = Policies {
        order: Box::new(order),
        victim: Box::new(victim),
        ..Policies::default()
    };
    let report = run(limits, (10_000, 10), policies, heavy.chain(light));
    let of = |tenant: u32| {
        let rows = report.rows.iter();
        rows.filter(move |row| row.tenant.get() == tenant)
    };
    let preempted = |tenant: u32| {
        let times: u32 = of(tenant).map(|row| row.usage.preemptions).sum();
        f64::from(times) / of(tenant).count() as f64
    };
    let median = percentile(of(2).map(Row::response_time), 50.0);
    ([preempted(1), preempted(2)], median)
}

#[test]
fn a_flood_gives_its_own_blocks_up_and_not_the_light_tenants() {
    let (newest, newest_median) = flood(NewestOfLowestClass, FairTenants::default());
    let (share, share_median) = flood(OverShareFirst::default(), FairTenants::default());
    assert!(newest[1] > 2.0 && newest[0] < 1.0, "{newest:?}");
    assert!(share[1] < 0.1, "{share:?}");
    assert!(share_median < newest_median);
    let row = |name, [heavy, light]: [f64; 2], median: f64| {
        format!("| {name} | {heavy:.2} | {light:.2} | {median:.2} s |")
    };
    quoted(
        "over-share-first",
        &row("newest-of-lowest-class", newest, newest_median),
    );
    quoted(
        "over-share-first",
        &row("over-share-first", share, share_median),
    );
}

/// What 200 requests ask for that wait together.
type Load = fn(&mut Rng) -> (u32, u32);

const ALIKE: Load = |_| (64, 900);
const MIXED: Load = |rng| (1 + rng.below(500) as u32, 1 + rng.below(500) as u32);
const LONG_PROMPTS: Load = |rng| match rng.below(10) < 3 {
    true => (700, 40),
    false => (50, 100 + rng.below(400) as u32),
};

/// 200 requests on 32 slots and `blocks`, of which each needs up to 63: seconds, and preemptions.
fn pressed(
    victim: Box<dyn Victim>,
    times_max: u32,
    token_us: u64,
    blocks: u32,
    load: Load,
) -> (f64, u64) {
    let limits = Limits {
        sequences_max: 32,
        step_tokens_max: 2_048,
        context_max: 1_024,
        block_size: 16,
        blocks: blocks + 1,
    };
    let policies = Policies {
        order: Box::new(Fifo),
        victim,
        preemption: Preemption {
            times_max,
            by_class: false,
        },
        ..Policies::default()
    };
    let mut rng = Rng::new(5);
    let requests = (0..200).map(|id| {
        let (prompt, output) = load(&mut rng);
        request(id, Time::ZERO, prompt, output)
    });
    let report = run(limits, (20_000, token_us), policies, requests);
    (report.end.as_secs_f64(), report.stats.counters.preempted)
}

#[test]
fn one_large_request_makes_room_in_the_place_of_several() {
    let loads = [
        ("all alike, 64 + 900 tokens", 512, ALIKE),
        ("up to 500 + 500 tokens", 512, MIXED),
        ("three in ten of 700 + 40", 256, LONG_PROMPTS),
    ];
    for (name, blocks, load) in loads {
        let cells = |victim: Box<dyn Victim>| {
            let (secs, preempted) = pressed(victim, 3, 50, blocks, load);
            (format!("{secs:.0} s, {preempted}"), preempted)
        };
        let (newest, times) = cells(Box::new(NewestOfLowestClass));
        let (least, _) = cells(Box::new(LeastProgressLost));
        let (most, fewer) = cells(Box::new(MostFreedForLeastLost));
        assert!(fewer < times, "{name}");
        quoted(
            "most-freed-for-least-lost",
            &format!("| {name} | {newest} | {least} | {most} |"),
        );
    }
}

#[test]
fn what_the_cap_on_preemptions_costs() {
    let loads = [
        ("all alike, 64 + 900 tokens", 512, ALIKE),
        ("up to 500 + 500 tokens", 512, MIXED),
        ("three in ten of 700 + 40", 512, LONG_PROMPTS),
    ];
    for token_us in [50, 500] {
        for (name, blocks, load) in loads {
            let secs = |times_max| {
                let victim = Box::new(NewestOfLowestClass);
                let (secs, _) = pressed(victim, times_max, token_us, blocks, load);
                format!("{secs:.0} s")
            };
            let cells = [0, 1, 3, 10].map(secs).join(" | ");
            quoted(
                "preemption-by-class",
                &format!("| {name} | {token_us} us | {cells} |"),
            );
        }
    }
}
