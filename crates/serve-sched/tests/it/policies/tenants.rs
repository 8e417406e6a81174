//! Tenants that compete for the places of a full queue: who is refused, who is displaced, and who is
//! answered whatever others send.

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{
    Backend as _, Limits, Refusal, Request, RequestId, Span, TenantId, Time, TokenId, Usage,
};
use serve_sched::admit::{Admit, Cause, Ended, QueueCap};
use serve_sched::kv::KvSettings;
use serve_sched::order::{FairTenants, Fifo, Order, Served};
use serve_sched::settings::GroupId;
use serve_sched::sim::{Arrivals, Poisson, Report, Row, Simulation, Terminal};
use serve_sched::{Gate, Policies, Scheduler};

use crate::quoted::quoted;

/// The one whose requests are to be answered.
const LIGHT: TenantId = TenantId::new(1);
/// Its requests' ids begin here.
const LIGHT_IDS: u64 = 1 << 32;

fn share(share: u32) -> NonZeroU32 {
    NonZeroU32::new(share).unwrap()
}

/// What a device runs out of first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Slots,
    Blocks,
    StepTokens,
}

fn device(limit: Limit) -> Mock {
    let (sequences_max, step_tokens_max, blocks) = match limit {
        Limit::Slots => (12, 2_048, 4_097),
        Limit::Blocks => (256, 2_048, 24 * 12 + 1),
        Limit::StepTokens => (64, 96, 4_097),
    };
    let decode = vec![(1, Span::from_millis(17))];
    let cost = CostModel::new(decode, Span::from_micros(60), Span::ZERO);
    Mock::new(MockConfig {
        limits: Limits {
            sequences_max,
            step_tokens_max,
            context_max: 2_048,
            block_size: 16,
            blocks,
        },
        cost: cost.unwrap(),
        ..MockConfig::default()
    })
}

fn request(id: u64, at: Time, (prompt, output): (u32, u32), tenant: TenantId) -> Request {
    let prompt: Arc<[TokenId]> = vec![TokenId::new(7); prompt as usize].into();
    let request = Request::new(RequestId::new(id), at, prompt, output).unwrap();
    request.with_tenant(tenant)
}

fn serve(mock: Mock, order: impl Order + 'static, cap: Option<u32>, load: Vec<Request>) -> Report {
    let admit = cap.map(|cap| Box::new(QueueCap::new(cap)) as Box<dyn Admit>);
    let policies = Policies {
        admit: admit.into_iter().collect(),
        order: Box::new(order),
        kv: KvSettings {
            reuse_prefixes: false,
            ..KvSettings::default()
        },
        ..Policies::default()
    };
    let mut load = load;
    load.sort_by_key(Request::arrival);
    let asked = load.len();
    let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let report = Simulation::new(scheduler, mock).run(&mut Arrivals::new(load));
    assert_eq!(report.rows.len(), asked, "everybody is told something");
    let counters = report.stats.counters;
    assert_eq!(counters.arrived, counters.finished + counters.refused);
    report
}

fn of_light(report: &Report) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(|row| row.tenant == LIGHT)
}

fn answered(report: &Report) -> usize {
    of_light(report).filter(|row| row.is_finished()).count()
}

/// 18,000 requests in 100 seconds of one tenant, ten times what the device can do, and one a second
/// of another.
fn flood_and_light() -> Vec<Request> {
    let flood = (0..).zip(Poisson::new(1, 180.0)).take(18_000);
    let flood = flood.map(|(id, at)| request(id, at, (30, 50), TenantId::new(2)));
    let light = (5..95).map(|n| {
        let at = Time::from_millis(n * 1_000 + 137);
        request(LIGHT_IDS + n, at, (30, 50), LIGHT)
    });
    flood.chain(light).collect()
}

#[test]
fn a_flood_does_not_shut_the_light_tenant_out() {
    let read = |report: Report| {
        let mut waits: Vec<_> = of_light(&report).filter_map(Row::waited).collect();
        waits.sort();
        (answered(&report), waits[waits.len() / 2].as_secs_f64())
    };
    let device = || device(Limit::Slots);
    let fair = |cap| serve(device(), FairTenants::default(), cap, flood_and_light());
    let fifo = read(serve(device(), Fifo, Some(256), flood_and_light()));
    let (fair, open) = (read(fair(Some(256))), read(fair(None)));
    assert_eq!((fair.0, open.0), (90, 90));
    assert!(fifo.0 < 30, "{fifo:?}");
    let said = format!(
        "of the light tenant's 90 requests behind a queue cap of 256, {} were answered first come, first \
         served, after waits of {:.1} s in the median, and {} under fair-tenants, after {:.2} s; without a cap \
         {}, after {:.2} s",
        fifo.0, fifo.1, fair.0, fair.1, open.0, open.1,
    );
    quoted("fair-tenants", &said);
}

/// A client that makes an id up for each request, and a tenant that has more than there is.
fn made_up_ids(named: bool) -> usize {
    let mut load = Vec::new();
    for n in 0..300 {
        let stranger = TenantId::new(100 + n as u32);
        load.push(request(n, Time::ZERO, (20, 20), stranger));
        load.push(request(LIGHT_IDS + n, Time::ZERO, (20, 20), LIGHT));
    }
    let order = match named {
        true => FairTenants::default().with_share(LIGHT, NonZeroU32::MIN),
        false => FairTenants::default(),
    };
    let report = serve(device(Limit::Slots), order, None, load);
    let mut rows: Vec<_> = report.rows.iter().collect();
    rows.sort_by_key(|row| (row.started, row.request));
    rows[..300].iter().filter(|row| row.tenant == LIGHT).count()
}

#[test]
fn an_id_for_each_request_wins_nothing_against_who_is_named() {
    let (named, unnamed) = (made_up_ids(true), made_up_ids(false));
    assert!((145..=155).contains(&named), "{named}");
    let said = format!(
        "of the first 300 requests served, {named} were those of the named tenant; unnamed among the \
         unnamed, it had {unnamed}"
    );
    quoted("fair-groups", &said);
}

/// Three keys of one organisation against one of another.
#[test]
fn the_keys_of_an_organisation_share_one_counter() {
    let (ours, theirs) = (GroupId::new(1), GroupId::new(2));
    let order = || {
        let order = FairTenants::default().with_group(LIGHT, ours);
        (10..13).fold(order, |order, key| {
            order.with_group(TenantId::new(key), theirs)
        })
    };
    let load = || {
        let of = move |key| {
            (0..400).map(move |n| {
                request(
                    u64::from(key) << 32 | n,
                    Time::ZERO,
                    (20, 20),
                    TenantId::new(key),
                )
            })
        };
        [1, 10, 11, 12].into_iter().flat_map(of).collect()
    };
    let served = |order: FairTenants| {
        let report = serve(device(Limit::Slots), order, None, load());
        let mut rows: Vec<_> = report.rows.iter().collect();
        rows.sort_by_key(|row| (row.started, row.request));
        let of = |key| {
            rows[..600]
                .iter()
                .filter(|row| row.tenant.get() == key)
                .count()
        };
        [1, 10, 11, 12].map(of)
    };
    let [ours_served, rest @ ..] = served(order());
    assert!((297..=303).contains(&ours_served), "{ours_served}");
    assert!(rest.iter().all(|of| (97..=103).contains(of)), "{rest:?}");
    let [weighted, ..] = served(order().with_group_share(theirs, share(3)));
    assert!((147..=153).contains(&weighted), "{weighted}");
}

/// What a device gives in a second to a crowd whose requests are like this, in weighted tokens.
fn capacity(limit: Limit, shape: (u32, u32)) -> f64 {
    let load = (0..300).map(|id| request(id, Time::ZERO, shape, LIGHT));
    let report = serve(device(limit), Fifo, None, load.collect());
    300.0 * weight(shape) / report.end.as_secs_f64()
}

fn weight((prompt, output): (u32, u32)) -> f64 {
    f64::from(prompt) + 2.0 * f64::from(output)
}

#[derive(Clone, Debug)]
struct Scene {
    limit: Limit,
    cap: Option<u32>,
    /// Of the light tenant, where the flood's group has one of 1.
    share: u32,
    light: (u32, u32),
    flood: (u32, u32),
    /// How many times what the device can do.
    times: f64,
    /// How many tenants send the flood, all of them one group.
    flooders: u32,
    grouped: bool,
    /// Requests that the light tenant sends at once.
    burst: u64,
    seed: u64,
}

fn scenes() -> impl Strategy<Value = Scene> {
    let limit = prop_oneof![
        Just(Limit::Slots),
        Just(Limit::Blocks),
        Just(Limit::StepTokens)
    ];
    let shape = || {
        prop_oneof![
            Just((40, 45)),
            Just((40, 12)),
            Just((300, 90)),
            Just((2, 3))
        ]
    };
    let flood = (
        shape(),
        2.0..50.0,
        prop_oneof![Just(1_u32), 2_u32..20, Just(1 << 20)],
        any::<bool>(),
    );
    let cap = prop::option::weighted(0.8, 16_u32..300);
    let light = (1_u32..4, shape(), 1_u64..4);
    (limit, cap, light, flood, any::<u64>()).prop_map(
        |(limit, cap, (share, light, burst), (flood, times, flooders, grouped), seed)| Scene {
            limit,
            cap,
            share,
            light,
            flood,
            times,
            flooders,
            grouped,
            burst,
            seed,
        },
    )
}

impl Scene {
    /// Its part of what the device gives in a second, in weighted tokens: that of the slower of the
    /// two kinds of requests, and a fifth less, as a mixture packs worse.
    fn rate(&self) -> f64 {
        let part = f64::from(self.share) / f64::from(self.share + 1);
        part * 0.8 * capacity(self.limit, self.light).min(capacity(self.limit, self.flood))
    }

    /// How long the light tenant can be kept from its part: the gap that the counters allow.
    fn lag(&self) -> f64 {
        let limits = device(self.limit).limits();
        let tokens = |(prompt, output): (u32, u32)| prompt + output;
        let longest = tokens(self.light).max(tokens(self.flood));
        let held = (limits.sequences_max * longest).min(limits.usable_blocks() * limits.block_size);
        // 2 x output weight x M / the smaller share, the flood's, for each share of the light tenant's.
        f64::from(self.share) * 2.0 * 2.0 * f64::from(held) / self.rate()
    }

    /// The light tenant sends `burst` requests in each: as many as are its part, and no more than its
    /// places hold until they have been served.
    fn window(&self) -> f64 {
        let burst = self.burst as f64;
        let share = burst * weight(self.light) / self.rate();
        let Some(cap) = self.cap else { return share };
        let places = f64::from(cap * self.share / (self.share + 1)) - 1.0;
        share.max(burst * self.lag() / (places - burst))
    }

    fn run(&self) -> Report {
        let order = FairTenants::default().with_share(LIGHT, share(self.share));
        let named = self.flooders.min(64);
        let (order, flooders) = match self.grouped {
            true => {
                let order = (0..named).fold(order, |order, n| {
                    order.with_group(TenantId::new(100 + n), GroupId::new(5))
                });
                (order, named)
            }
            false => (order, self.flooders),
        };
        let rate = self.times * capacity(self.limit, self.flood) / weight(self.flood);
        let secs = 12.0 * (self.window() + 0.2);
        let flood = (0..).zip(Poisson::new(self.seed, rate));
        let flood = flood.take((rate * secs).clamp(500.0, 10_000.0) as usize);
        let flood = flood.map(|(id, at)| {
            let tenant = TenantId::new(100 + (id % u64::from(flooders)) as u32);
            request(id, at, self.flood, tenant)
        });
        let mut load: Vec<_> = flood.collect();
        let end = load.last().map_or(Time::ZERO, Request::arrival);
        let window = Span::from_secs_f64(self.window());
        let mut id = LIGHT_IDS;
        let mut at = Time::ZERO + window / 2;
        while at < end {
            for _ in 0..self.burst {
                load.push(request(id, at, self.light, LIGHT));
                id += 1;
            }
            at += window;
        }
        serve(device(self.limit), order, self.cap, load)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The promise of fair-tenants, behind a full queue and without one: a tenant that offers no more
    /// than its part in each window is answered, and starts within the window and the lag.
    #[test]
    fn a_tenant_within_its_share_is_answered_whatever_others_send(scene in scenes()) {
        let report = scene.run();
        let (within, asked) = (scene.window() + scene.lag(), of_light(&report).count());
        prop_assert_eq!(answered(&report), asked);
        for row in of_light(&report) {
            let waited = row.waited().unwrap().as_secs_f64();
            prop_assert!(waited <= within, "{} of {}", waited, within);
        }
    }
}

/// At every instant at most as many wait as may, and those displaced are told when to come again.
#[test]
fn the_displaced_are_told_later_and_when() {
    let load = flood_and_light();
    let report = serve(device(Limit::Slots), FairTenants::default(), Some(16), load);
    let displaced = report
        .rows
        .iter()
        .filter(|row| matches!(row.terminal, Terminal::Refused(_)) && row.end > row.arrival);
    let mut told = 0;
    for row in displaced {
        let Terminal::Refused(refusal) = row.terminal else {
            continue;
        };
        assert_ne!(row.tenant, LIGHT);
        assert_eq!(row.started, None);
        assert!(
            matches!(
                refusal,
                Refusal::Later {
                    retry_after: Some(_),
                    ..
                }
            ),
            "{refusal:?}"
        );
        told += 1;
    }
    assert!(told > 50, "{told}");
}

/// How many of those that wait are taken before a newcomer, one after the other, if nobody comes later.
fn taken_before(gate: &mut Gate, newcomer: &Request) -> u64 {
    gate.submit(Time::ZERO, Arc::new(newcomer.clone())).unwrap();
    let mut before = 0;
    loop {
        let taken = gate.take(Time::ZERO).unwrap();
        if taken.request.id() == newcomer.id() {
            return before;
        }
        before += 1;
        let served = Served {
            prompt_tokens: taken.request.prompt_tokens(),
            output_tokens: taken.request.output_tokens_max(),
        };
        gate.served(&taken.request, served);
        gate.ended(
            Time::ZERO,
            &Ended {
                request: &taken.request,
                cause: Cause::Finished,
                usage: Usage::default(),
                ran: Some(Span::ZERO),
            },
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// What is said to go before a newcomer under a fair order is what does, to a request: requests are
    /// alike, and what each tenant was given before is its own.
    #[test]
    fn what_goes_before_a_newcomer_is_foreseen(
        tenants in prop::collection::vec((0_u64..30, 0_u32..400, 1_u32..4), 2..8),
        named: bool,
        newcomer in 0_u32..8,
    ) {
        let order = tenants.iter().zip(0..).fold(FairTenants::default(), |order, (&(.., of), n)| {
            match named {
                true => order.with_share(TenantId::new(n), share(of)),
                false => order,
            }
        });
        let mut gate = Gate::new(Vec::new(), Box::new(order), 1);
        let mut id = 0;
        let mut next = |tenant| {
            id += 1;
            request(id, Time::ZERO, (10, 20), TenantId::new(tenant))
        };
        for (&(waiting, lead, _), tenant) in tenants.iter().zip(0..) {
            for _ in 0..waiting {
                gate.submit(Time::ZERO, Arc::new(next(tenant))).unwrap();
            }
            if waiting > 0 {
                let given = Served {
                    prompt_tokens: 0,
                    output_tokens: lead,
                };
                gate.served(&next(tenant), given);
            }
        }
        let newcomer = next(newcomer);
        let foreseen = gate.ahead(Time::ZERO, &newcomer).requests;
        let taken = taken_before(&mut gate, &newcomer);
        prop_assert!(
            foreseen.abs_diff(taken) <= 1,
            "{} foreseen, {} taken",
            foreseen,
            taken
        );
    }
}
