//! A light tenant beside a flood, behind every admission policy: what of its requests is answered and how long
//! they wait, whatever the device runs out of and however large the flood is.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{
    Backend as _, Limit, Limits, Refusal, Request, RequestId, Span, TenantId, Time, TokenId, Usage,
};
use serve_sched::admit::{
    ADMISSIONS, Admit, Bound, Cause, ConcurrencyLimit, Cost, DeadlinePrediction, Ended,
    FirstTokenBudget, InFlightLimits, LatencyBudget, Load, QueueCap, Quota, TokenBucket,
};
use serve_sched::kv::KvSettings;
use serve_sched::order::{FairGroups, FairTenants, Fifo, Members, Order, Served};
use serve_sched::settings::GroupId;
use serve_sched::sim::{Arrivals, Poisson, Report, Row, Simulation};
use serve_sched::victim::{NewestOfLowestClass, OverShareFirst, Victim};
use serve_sched::{Gate, Policies, Scheduler};

use super::percentile;
use crate::quoted::quoted;

const LIGHT: TenantId = TenantId::new(1);
const FLOOD: TenantId = TenantId::new(2);
/// The ids of the light tenant's requests begin here.
const LIGHT_IDS: u64 = 1 << 32;
/// The light tenant's part of what the device can do is one of so many.
const LIGHT_PART: f64 = 20.0;
/// Requests of the light tenant.
const ASKED: usize = 150;
const LOADS: [f64; 3] = [1.2, 2.0, 4.0];
const SEEDS: u64 = 2;

/// A device and requests that run out of one thing on it.
#[derive(Clone, Copy, Debug)]
struct World {
    /// What there is least of.
    name: &'static str,
    sequences_max: u32,
    step_tokens_max: u32,
    blocks: u32,
    /// Tokens of prompt and answer of each request.
    tokens: (u32, u32),
}

const WORLDS: [World; 3] = [
    World {
        name: "slots",
        sequences_max: 12,
        step_tokens_max: 2_048,
        blocks: 4_097,
        tokens: (30, 50),
    },
    World {
        name: "memory",
        sequences_max: 256,
        step_tokens_max: 2_048,
        blocks: 24 * 12 + 1,
        tokens: (200, 50),
    },
    World {
        name: "steps",
        sequences_max: 64,
        step_tokens_max: 96,
        blocks: 4_097,
        tokens: (300, 8),
    },
];

/// An order, with the light tenant and the flood known to those that are fair between groups.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Fifo,
    FairTenants,
    FairGroups,
}

impl By {
    fn order(self) -> Box<dyn Order> {
        let members = [(LIGHT, 1), (FLOOD, 2)]
            .into_iter()
            .fold(Members::new(), |members, (tenant, group)| {
                members.with_group(tenant, GroupId::new(group))
            });
        match self {
            Self::Fifo => Box::new(Fifo),
            Self::FairTenants => Box::new(FairTenants::default()),
            Self::FairGroups => grouped(members),
        }
    }
}

fn grouped(members: Members) -> Box<dyn Order> {
    let fifo = Arc::new(|| Box::new(Fifo) as Box<dyn Order>);
    Box::new(FairGroups::over(Arc::new(members), 1, 2, fifo))
}

/// What decides who is taken in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guard {
    None,
    QueueCap,
    Concurrency,
    /// And no tenant may have more than three quarters of what the device can hold in flight.
    ConcurrencyAndTenants,
    InFlight,
    TokenBucket,
    GlobalBucket,
    FirstToken,
    Latency,
    Deadline,
}

const TARGET: Span = Span::from_secs(4);

impl Guard {
    fn policies(self, world: &World) -> Vec<Box<dyn Admit>> {
        let capacity = world.capacity();
        let requests = |requests: u32| {
            let bound = Bound {
                requests,
                positions: 0,
            };
            Box::new(InFlightLimits::new(bound)) as Box<dyn Admit>
        };
        let quota = || {
            let (prompt, output) = world.tokens;
            let per_s = (capacity * f64::from(prompt + output)) as u64;
            let units = |units: u64| NonZeroU64::new(units).unwrap();
            Quota::new(units(per_s), Span::from_secs(1), units(2 * per_s))
        };
        match self {
            Self::None => Vec::new(),
            Self::QueueCap => vec![Box::new(QueueCap::new(64))],
            Self::Concurrency => vec![Box::new(ConcurrencyLimit)],
            Self::ConcurrencyAndTenants => {
                vec![Box::new(ConcurrencyLimit), requests(world.held() * 3 / 4)]
            }
            Self::InFlight => vec![requests(64)],
            Self::TokenBucket => vec![Box::new(TokenBucket::per_tenant(quota(), Cost::Tokens))],
            Self::GlobalBucket => vec![Box::new(TokenBucket::global(quota(), Cost::Tokens))],
            Self::FirstToken => vec![Box::new(FirstTokenBudget::new(Span::from_secs(2)))],
            Self::Latency => vec![Box::new(LatencyBudget::new(TARGET))],
            Self::Deadline => vec![Box::new(DeadlinePrediction::default())],
        }
    }
}

impl World {
    fn device(&self) -> Mock {
        let decode = vec![(1, Span::from_millis(17))];
        let cost = CostModel::new(decode, Span::from_micros(60), Span::ZERO);
        Mock::new(MockConfig {
            limits: Limits {
                sequences_max: self.sequences_max,
                step_tokens_max: self.step_tokens_max,
                context_max: 2_048,
                block_size: 16,
                blocks: self.blocks,
            },
            cost: cost.unwrap(),
            ..MockConfig::default()
        })
    }

    fn serve(
        &self,
        admit: Vec<Box<dyn Admit>>,
        order: Box<dyn Order>,
        load: Vec<Request>,
    ) -> Report {
        self.serve_with(admit, order, Box::new(NewestOfLowestClass), load)
    }

    fn serve_with(
        &self,
        admit: Vec<Box<dyn Admit>>,
        order: Box<dyn Order>,
        victim: Box<dyn Victim>,
        mut load: Vec<Request>,
    ) -> Report {
        let policies = Policies {
            admit,
            order,
            victim,
            kv: KvSettings {
                reuse_prefixes: false,
                ..KvSettings::default()
            },
            ..Policies::default()
        };
        load.sort_by_key(Request::arrival);
        let asked = load.len();
        let mock = self.device();
        let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
        let report = Simulation::new(scheduler, mock).run(&mut Arrivals::new(load));
        assert_eq!(report.rows.len(), asked, "everybody is told something");
        report
    }

    fn requests(
        &self,
        ids: u64,
        arrivals: impl Iterator<Item = Time>,
        tenant: impl Fn(u64) -> TenantId,
    ) -> Vec<Request> {
        let (prompt, output) = self.tokens;
        let prompt: Arc<[TokenId]> = vec![TokenId::new(7); prompt as usize].into();
        let request = |(n, at): (u64, Time)| {
            let id = RequestId::new(ids + n);
            let request = Request::new(id, at, Arc::clone(&prompt), output).unwrap();
            request.with_tenant(tenant(n))
        };
        (0..).zip(arrivals).map(request).collect()
    }

    fn at_once(&self, requests: usize) -> Report {
        let arrivals = std::iter::repeat_n(Time::ZERO, requests);
        let load = self.requests(0, arrivals, |_| FLOOD);
        self.serve(Vec::new(), Box::new(Fifo), load)
    }

    /// Requests that it answers in a second when many wait.
    fn capacity(&self) -> f64 {
        600.0 / self.at_once(600).end.as_secs_f64()
    }

    /// Requests that it has in flight when it is full: its capacity times what a request takes, once started.
    fn held(&self) -> u32 {
        let report = self.at_once(600);
        let took = |row: &Row| row.end.since(row.started.unwrap()).as_secs_f64();
        let sum: f64 = report.rows.iter().map(took).sum();
        (sum / report.end.as_secs_f64()) as u32
    }

    /// The light tenant's requests, and so many times what the device can do from the flood.
    fn load(&self, times: f64, seed: u64, deadlines: bool) -> Vec<Request> {
        let capacity = self.capacity();
        let light = Poisson::new(900 + seed, capacity / LIGHT_PART).take(ASKED);
        let mut load = self.requests(LIGHT_IDS, light, |_| LIGHT);
        let end = load.last().unwrap().arrival();
        if times > 0.0 {
            let flood = Poisson::new(seed, capacity * times).take_while(|at| *at < end);
            load.extend(self.requests(0, flood, |_| FLOOD));
        }
        let due = |request: Request| {
            let due = request.arrival() + TARGET;
            request.with_deadline(deadlines.then_some(due))
        };
        load.into_iter().map(due).collect()
    }

    fn light(&self, guard: Guard, by: By, times: f64) -> Kept {
        let runs = (0..SEEDS).map(|seed| {
            let load = self.load(times, seed, guard == Guard::Deadline);
            let report = self.serve(guard.policies(self), by.order(), load);
            Kept::of(&report)
        });
        runs.reduce(Kept::worse).unwrap()
    }
}

/// What came of the light tenant's requests.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// The share of them that was answered.
    answered: f64,
    /// How long 99 of 100 of those waited at most, in seconds.
    wait: f64,
    end: f64,
}

impl Kept {
    fn of(report: &Report) -> Self {
        let rows = || report.rows.iter().filter(|row| row.tenant == LIGHT);
        let finished = || rows().filter(|row| row.is_finished());
        assert!(finished().count() > 0, "nobody was answered");
        Self {
            answered: finished().count() as f64 / rows().count() as f64,
            wait: percentile(finished().filter_map(Row::waited), 99.0),
            end: percentile(finished().map(Row::response_time), 99.0),
        }
    }

    fn worse(self, other: Self) -> Self {
        Self {
            answered: self.answered.min(other.answered),
            wait: self.wait.max(other.wait),
            end: self.end.max(other.end),
        }
    }
}

/// Every policy, what its row of the table is called, and whether a light tenant is served behind it.
const GUARDS: [(Guard, &str, Beside); 9] = [
    (Guard::QueueCap, "queue-cap", Beside::ByOrder),
    (Guard::InFlight, "in-flight-limits", Beside::ByOrder),
    (
        Guard::TokenBucket,
        "token-bucket, of each tenant",
        Beside::ByOrder,
    ),
    (Guard::FirstToken, "first-token-budget", Beside::ByOrder),
    (Guard::Latency, "latency-budget", Beside::ByOrder),
    (Guard::Deadline, "deadline-prediction", Beside::ByOrder),
    (
        Guard::ConcurrencyAndTenants,
        "concurrency-limit and in-flight-limits",
        Beside::Anyway,
    ),
    (Guard::Concurrency, "concurrency-limit", Beside::No),
    (Guard::GlobalBucket, "token-bucket, of all", Beside::No),
];

/// What serves a light tenant behind a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Beside {
    /// A fair order, and no other.
    ByOrder,
    /// The policy, under any order.
    Anyway,
    /// Nothing.
    No,
}

impl Beside {
    /// Fails unless a fair order, and the control, did what is promised.
    fn check(self, kept: Kept, control: Kept, alone: Kept, which: &str) {
        let is_served = |kept: Kept| kept.answered >= 0.95 && kept.wait <= 1.1 * alone.end;
        let served = (is_served(kept), is_served(control));
        let promised = match self {
            Self::ByOrder => (true, false),
            Self::Anyway => (true, true),
            Self::No => (false, false),
        };
        assert_eq!(
            served, promised,
            "{which}: {kept:?}, control {control:?}, alone {alone:?}"
        );
    }
}

/// A light tenant beside a flood, behind every policy: at each load a row's cells are the share that was answered and
/// the wait that 99 of 100 kept to.
fn check(world: &World) {
    let alone = world.light(Guard::None, By::FairTenants, 0.0);
    for (guard, name, served) in GUARDS {
        // A prompt that is being run leaves no step token, whichever tenant has sent it.
        let served = match (served, world.name) {
            (Beside::Anyway, "steps") => Beside::No,
            _ => served,
        };
        let mut cells = [String::new(), String::new()];
        for times in LOADS {
            let control = world.light(guard, By::Fifo, times);
            for by in [By::FairTenants, By::FairGroups] {
                let kept = world.light(guard, by, times);
                let which = format!("{} {name} {by:?} {times}", world.name);
                served.check(kept, control, alone, &which);
                if by == By::FairTenants {
                    for (cells, kept) in cells.iter_mut().zip([control, kept]) {
                        let answered = 100.0 * kept.answered;
                        cells.push_str(&format!(" {answered:.0}%, {:.2} s |", kept.wait));
                    }
                }
            }
        }
        let [fifo, fair] = cells;
        quoted(
            "fair-tenants",
            &format!("| {} | {name} |{fifo}{fair}", world.name),
        );
    }
    let said = format!("{}: {:.2} s", world.name, alone.end);
    quoted("fair-tenants", &said);
}

#[test]
fn a_light_tenant_is_served_beside_a_flood_where_slots_are_scarce() {
    check(&WORLDS[0]);
}

#[test]
fn a_light_tenant_is_served_beside_a_flood_where_memory_is_scarce() {
    check(&WORLDS[1]);
}

#[test]
fn a_light_tenant_is_served_beside_a_flood_where_step_tokens_are_scarce() {
    check(&WORLDS[2]);
}

/// What has joined last makes room where memory is short, and that is often the light tenant, unless the one that holds
/// most for its share makes it.
#[test]
fn what_a_light_tenant_has_begun_is_kept_where_the_tenant_that_holds_most_makes_room() {
    let world = &WORLDS[1];
    let alone = world.light(Guard::None, By::FairTenants, 0.0);
    let end = |victim: fn() -> Box<dyn Victim>| {
        let load = world.load(2.0, 0, false);
        let order = By::FairTenants.order();
        let report = world.serve_with(Guard::QueueCap.policies(world), order, victim(), load);
        Kept::of(&report).end / alone.end
    };
    let newest = end(|| Box::new(NewestOfLowestClass));
    let over_share = end(|| Box::new(OverShareFirst::default()));
    let said = format!(
        "99 of 100 of its requests ended within {newest:.1} times what they take alone where the newest makes room, \
         and within {over_share:.1} times under over-share-first"
    );
    quoted("fair-tenants", &said);
    assert!(over_share < 0.8 * newest, "{said}");
}

/// Guards that know of nobody in particular and behind which somebody can wait.
const FAIR_GUARDS: [Guard; 6] = [
    Guard::QueueCap,
    Guard::InFlight,
    Guard::TokenBucket,
    Guard::FirstToken,
    Guard::Latency,
    Guard::Deadline,
];

/// A tenant alone in its group beside many tenants of another one.
#[derive(Clone, Copy, Debug)]
struct Sides {
    many: u32,
    /// The share of the group of one, where the other has a share of one.
    share: u32,
    /// What the one sends, and the many, in what the device can do.
    loads: (f64, f64),
    seed: u64,
}

impl Default for Sides {
    fn default() -> Self {
        Self {
            many: 100,
            share: 1,
            loads: (1.0, 3.0),
            seed: 0,
        }
    }
}

impl Sides {
    fn of_many(self, n: u64) -> TenantId {
        TenantId::new(100 + (n % u64::from(self.many)) as u32)
    }

    fn members(self) -> Members {
        let (one, other) = (GroupId::new(1), GroupId::new(2));
        let share = NonZeroU32::new(self.share).unwrap();
        let members = Members::new()
            .with_group(LIGHT, one)
            .with_group_share(one, share);
        (0..u64::from(self.many)).fold(members, |members, n| {
            members.with_group(self.of_many(n), other)
        })
    }

    fn load(self, world: &World, deadlines: bool) -> Vec<Request> {
        let capacity = world.capacity();
        let secs = 8_000.0 / capacity / (self.loads.0 + self.loads.1);
        let end = Time::ZERO + Span::from_secs_f64(secs);
        let arrivals =
            |seed, times: f64| Poisson::new(seed, times * capacity).take_while(move |at| *at < end);
        let (one, many) = (3 + 100 * self.seed, 4 + 100 * self.seed);
        let mut load = world.requests(LIGHT_IDS, arrivals(one, self.loads.0), |_| LIGHT);
        load.extend(world.requests(0, arrivals(many, self.loads.1), |n| self.of_many(n)));
        let due = |request: Request| {
            let due = request.arrival() + TARGET;
            request.with_deadline(deadlines.then_some(due))
        };
        load.into_iter().map(due).collect()
    }

    /// The part that the one has of what is started while both have something waiting.
    fn part_of_one(self, world: &World, guard: Guard, by: By) -> f64 {
        let order: Box<dyn Order> = match by {
            By::Fifo => Box::new(Fifo),
            By::FairTenants => Box::new(FairTenants::among(Arc::new(self.members()), 1, 2)),
            By::FairGroups => grouped(self.members()),
        };
        let load = self.load(world, guard == Guard::Deadline);
        let end = load.iter().map(Request::arrival).max().unwrap();
        let report = world.serve(guard.policies(world), order, load);
        let within =
            Time::ZERO + end.since(Time::ZERO) / 4..Time::ZERO + end.since(Time::ZERO) * 3 / 4;
        let started = |row: &&Row| row.started.is_some_and(|at| within.contains(&at));
        let all = report.rows.iter().filter(started).count();
        let of_one = report
            .rows
            .iter()
            .filter(started)
            .filter(|row| row.tenant == LIGHT);
        of_one.count() as f64 / all as f64
    }
}

/// What a group of one is given beside a group of many, of its part, behind every policy: as many or more tenants, a
/// share of three, and whichever sends more.
#[test]
fn a_group_of_one_has_its_part_beside_a_group_of_a_hundred() {
    let base = Sides::default();
    let variants = [
        base,
        Sides { share: 3, ..base },
        Sides {
            many: 10,
            seed: 1,
            ..base
        },
        Sides {
            loads: (3.0, 1.0),
            seed: 2,
            ..base
        },
    ];
    let mut parts = [(f64::MAX, 0.0_f64); 3];
    let mut fifo_most = 0.0_f64;
    for world in &WORLDS {
        for guard in FAIR_GUARDS {
            // The target is that of two batches, which start and end together.
            let (which, least) = match (guard, world.name) {
                (Guard::QueueCap | Guard::InFlight | Guard::TokenBucket, _) => (0, 0.98),
                (Guard::FirstToken, "slots") => (2, 0.87),
                _ => (1, 0.96),
            };
            for (by, sides) in [By::FairTenants, By::FairGroups]
                .into_iter()
                .flat_map(|by| variants.map(|sides| (by, sides)))
            {
                let part = sides.part_of_one(world, guard, by);
                let owed = f64::from(sides.share) / f64::from(sides.share + 1);
                let (one, many) = (part / owed, (1.0 - part) / (1.0 - owed));
                let name = world.name;
                assert!(
                    one >= least && many >= 0.92,
                    "{name} {guard:?} {by:?} {sides:?}: {one} and {many}"
                );
                let (low, high) = parts[which];
                parts[which] = (low.min(one), high.max(one));
            }
        }
        fifo_most = fifo_most.max(base.part_of_one(world, Guard::QueueCap, By::Fifo));
    }
    assert!(fifo_most < 0.3, "{fifo_most}");
    let [counts, predictions, tight] = parts.map(|(low, high)| {
        let (low, high) = (100.0 * low, 100.0 * high);
        format!("{low:.0}% to {high:.0}%")
    });
    let said = format!(
        "the group of one had {counts} of its part behind limits by count, {predictions} behind predictions, and {tight} \
         where whole batches start and end together and a first token is due within the time of two; under fifo, behind a \
         queue cap, it had at most {:.0}%",
        200.0 * fifo_most
    );
    quoted("fair-groups", &said);
}

/// Each group has at most so many requests in flight.
struct InFlightOfGroup {
    max: u32,
    one: u32,
    many: u32,
}

impl InFlightOfGroup {
    fn of(&mut self, request: &Request) -> &mut u32 {
        match request.tenant() {
            LIGHT => &mut self.one,
            _ => &mut self.many,
        }
    }
}

impl Admit for InFlightOfGroup {
    fn name(&self) -> &'static str {
        "in-flight-of-group"
    }

    fn admit(&mut self, request: &Request, _: &Load<'_>) -> Result<(), Refusal> {
        let (tenant, max) = (request.tenant(), self.max);
        let in_flight = *self.of(request);
        let limit = Limit::TenantInFlight {
            tenant,
            in_flight,
            max,
        };
        match in_flight < max {
            true => Ok(()),
            false => Err(Refusal::Later {
                limit,
                retry_after: None,
            }),
        }
    }

    fn admitted(&mut self, request: &Request, _: &Load<'_>) {
        *self.of(request) += 1;
    }

    fn ended(&mut self, ended: &Ended<'_>, _: &Load<'_>) {
        *self.of(ended.request) -= 1;
    }
}

/// What the group of one lacks is not lost, and a control that knows that batches end together gives it its part.
#[test]
fn what_a_group_of_one_lacks_where_batches_end_together_the_other_has() {
    let sides = Sides {
        many: 10,
        seed: 1,
        ..Sides::default()
    };
    let world = &WORLDS[0];
    let load = sides.load(world, false);
    let end = load.iter().map(Request::arrival).max().unwrap();
    let secs = end.since(Time::ZERO).as_secs_f64();
    let started = |admit: Vec<Box<dyn Admit>>| {
        let report = world.serve(admit, grouped(sides.members()), load.clone());
        let from = Time::ZERO + Span::from_secs_f64(secs / 4.0);
        let to = Time::ZERO + Span::from_secs_f64(secs * 3.0 / 4.0);
        let within = |row: &&Row| row.started.is_some_and(|at| from <= at && at < to);
        let rows = || report.rows.iter().filter(within);
        let of_one = rows().filter(|row| row.tenant == LIGHT).count();
        let able = world.capacity() * secs / 2.0;
        let part = 2.0 * of_one as f64 / rows().count() as f64;
        (part, rows().count() as f64 / able)
    };
    let budget = started(Guard::FirstToken.policies(world));
    let control = started(vec![Box::new(InFlightOfGroup {
        max: world.sequences_max,
        one: 0,
        many: 0,
    })]);
    assert!(
        budget.1 > 0.98 && control.1 > 0.98,
        "{budget:?} {control:?}"
    );
    assert!(control.0 > 0.97, "{control:?}");
    let text = |(part, all): (f64, f64)| {
        format!("{:.0}% of its part, of {:.0}%", 100.0 * part, 100.0 * all)
    };
    let (budget, control) = (text(budget), text(control));
    let said = format!(
        "the group of one had {budget} that the device can start, and {control}, behind the control"
    );
    quoted("fair-groups", &said);
}

/// Serves one request of each of these tenants, one after the other.
fn pass_through(gate: &mut Gate, tenants: std::ops::Range<u32>, prompt: &Arc<[TokenId]>) {
    for tenant in tenants {
        let now = Time::from_millis(u64::from(tenant) * 10);
        let id = RequestId::new(LIGHT_IDS + u64::from(tenant));
        let request = Request::new(id, now, Arc::clone(prompt), 5).unwrap();
        let request = Arc::new(request.with_tenant(TenantId::new(tenant)));
        gate.submit(now, Arc::clone(&request)).unwrap();
        // The one that waits throughout may be the next.
        let mut taken = gate.take(now).unwrap();
        if taken.request.id() != id {
            let first = taken;
            taken = gate.take(now).unwrap();
            gate.put_back(now, first);
        }
        let served = Served {
            prompt_tokens: 4,
            output_tokens: 5,
        };
        gate.served(&taken.request, served);
        let usage = Usage {
            prompt_tokens: 4,
            output_tokens: 5,
            ..Usage::default()
        };
        let ended = Ended {
            request: &request,
            cause: Cause::Finished,
            usage,
            ran: Some(Span::ZERO),
        };
        gate.ended(now, &ended);
    }
}

/// Two hundred thousand tenants come once each and are forgotten, by the order, the gate and every policy: no byte
/// is held that was not held after the first tenth of them. Where somebody waits all along, those who have been given
/// more are remembered, and no more than 65,536 of them.
#[test]
fn tenants_that_come_once_leave_no_memory_behind() {
    const TENANTS: u32 = 200_000;
    let prompt: Arc<[TokenId]> = vec![TokenId::new(7); 4].into();
    for by in [By::FairTenants, By::FairGroups, By::Fifo] {
        for waits in [false, true] {
            let admit = ADMISSIONS
                .iter()
                .filter(|policy| policy.name != "concurrency-limit")
                .map(|policy| (policy.by_default)());
            let mut gate = Gate::new(admit.collect(), by.order(), 8);
            if waits {
                let request = Request::new(RequestId::new(1), Time::ZERO, Arc::clone(&prompt), 5);
                let request = request.unwrap().with_tenant(TenantId::new(u32::MAX));
                gate.submit(Time::ZERO, Arc::new(request)).unwrap();
            }
            pass_through(&mut gate, 10..TENANTS / 10, &prompt);
            let later = allocation_counter::measure(|| {
                pass_through(&mut gate, TENANTS / 10..TENANTS, &prompt);
            });
            // A table of twice 65,536 accounts of 80 bytes that has grown to the next power of two.
            let most = if waits && by == By::FairTenants {
                32 << 20
            } else {
                64 << 10
            };
            assert!(
                later.bytes_current <= most,
                "{by:?} {waits}: {}",
                later.bytes_current
            );
        }
    }
}
