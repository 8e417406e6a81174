//! The gate's lanes inside of lanes against a list that is searched: who is next, who goes last, what
//! waits before a newcomer, under orders of one level and of several.
//!
//! The reference holds a second order of the same name, tells it the same things, and asks it about
//! everybody who waits at every choice.

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;
use serve_core::{Class, Request, RequestId, Span, TenantId, Time, TokenId, Usage};
use serve_sched::admit::{Cause, Ended, QueueCap};
use serve_sched::lengths::{Expected, Lengths, Unseen};
use serve_sched::order::{Lanes, Members, Order, OrderSettings, Place, Served, Waiting};
use serve_sched::settings::GroupId;
use serve_sched::{Demand, Gate, Taken};

/// Every answer is as long as it may be, whatever is seen.
struct ToTheLimit;

impl Lengths for ToTheLimit {
    fn expected(&self, request: &Request, _unseen: Unseen) -> Expected {
        Expected::certain(request.output_tokens_max())
    }

    fn chance(&self, _request: &Request, _done: u32, _more: u32) -> f64 {
        1.0
    }

    fn ended(&mut self, _request: &Request, _output_tokens: u32, _by_itself: bool) {}
}

const ORDERS: [&str; 15] = [
    "fifo",
    "strict-tiers",
    "aging-tiers",
    "fair-tenants",
    "fair-groups",
    "earliest-deadline",
    "response-ratio",
    "strict-tiers/fair-tenants",
    "aging-tiers/fair-tenants",
    "fair-groups/strict-tiers",
    "fair-groups/earliest-deadline",
    "fair-groups/response-ratio",
    "aging/fair-tenants",
    "aging/fair-groups/strict-tiers",
    "aging/fair-groups/strict-tiers/fair-tenants",
];

#[derive(Clone, Debug)]
enum Input {
    Submit {
        prompt: u32,
        output: u32,
        class: u8,
        tenant: u32,
        committed: bool,
        deadline_s: Option<u64>,
    },
    Take,
    Cancel(Index),
    PutBack(Index),
    Serve(Index, u32),
    End(Index),
    Wait(u64),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let numbers = (1_u32..50, 1_u32..50, 0_u8..3, 0_u32..7);
    let submit = (numbers, any::<bool>(), prop::option::of(1_000_u64..2_000)).prop_map(
        |((prompt, output, class, tenant), committed, deadline_s)| Input::Submit {
            prompt,
            output,
            class,
            tenant,
            committed,
            deadline_s,
        },
    );
    let input = prop_oneof![
        10 => submit,
        4 => Just(Input::Take),
        1 => any::<Index>().prop_map(Input::Cancel),
        1 => any::<Index>().prop_map(Input::PutBack),
        3 => (any::<Index>(), 1_u32..40).prop_map(|(index, tokens)| Input::Serve(index, tokens)),
        2 => any::<Index>().prop_map(Input::End),
        2 => (1_u64..400).prop_map(Input::Wait),
    ];
    prop::collection::vec(input, 50..250)
}

/// Tenant 1 has a share of its own, 2 and 3 are of a group, nobody has named the others.
fn settings() -> OrderSettings {
    let two = NonZeroU32::new(2).unwrap();
    let group = GroupId::new(1);
    let members = Members::new()
        .with_share(TenantId::new(1), two)
        .with_group(TenantId::new(2), group)
        .with_group(TenantId::new(3), group)
        .with_share(TenantId::new(3), two)
        .with_group_share(group, NonZeroU32::new(3).unwrap());
    OrderSettings {
        age_after: Span::from_millis(500),
        wait_max: Span::from_millis(700),
        members: Arc::new(members),
        ..OrderSettings::default()
    }
}

/// A request that waits, in the reference.
#[derive(Clone, Debug)]
struct Waiter {
    request: Arc<Request>,
    sequence: u64,
    since: Time,
    preemptions: u32,
    place: Place,
    /// When it entered its lane, in the order of such events.
    entered: u64,
}

impl Waiter {
    fn view(&self) -> Waiting<'_> {
        Waiting {
            request: &self.request,
            sequence: self.sequence,
            since: self.since,
            preemptions: self.preemptions,
        }
    }

    fn lane(&self, level: usize) -> u32 {
        self.place.path.lanes().get(level).copied().unwrap_or(0)
    }

    fn may_be_displaced(&self) -> bool {
        self.preemptions == 0 && !self.request.is_committed()
    }
}

struct World {
    gate: Gate,
    order: Box<dyn Order>,
    levels: Vec<Lanes>,
    cap: u32,
    waiting: Vec<Waiter>,
    running: Vec<Taken>,
    now: Time,
    next: u64,
    sequence: u64,
    entered: u64,
    displaced: u32,
}

impl World {
    fn new(name: &str, cap: u32) -> Self {
        let order = settings().order(name).unwrap();
        let admit = vec![Box::new(QueueCap::new(cap)) as _];
        let mut gate = Gate::new(admit, settings().order(name).unwrap(), 0);
        gate.set_lengths(Box::new(ToTheLimit));
        Self {
            // No slots: whatever waits is queued.
            gate,
            levels: order.levels(),
            order,
            cap,
            waiting: Vec::new(),
            running: Vec::new(),
            now: Time::ZERO,
            next: 0,
            sequence: 0,
            entered: 0,
            displaced: 0,
        }
    }

    fn give(&mut self, input: &Input) {
        match input {
            Input::Submit { .. } => self.submit(input),
            Input::Take => self.take(),
            Input::Cancel(index) => self.cancel(index),
            Input::PutBack(index) => self.put_back(index),
            Input::Serve(index, output_tokens) => {
                let Some(taken) = pick(&self.running, index) else {
                    return;
                };
                let request = Arc::clone(&self.running[taken].request);
                let served = Served {
                    prompt_tokens: 0,
                    output_tokens: *output_tokens,
                };
                self.gate.served(&request, served);
                self.order.served(&request, served);
            }
            Input::End(index) => self.end(index),
            Input::Wait(millis) => self.wait(Span::from_millis(*millis)),
        }
        assert_eq!(self.gate.len() as usize, self.waiting.len());
        let head = self.gate.head(self.now).map(|head| head.request.id());
        let everybody: Vec<_> = (0..self.waiting.len()).collect();
        let first = self.first(&everybody, 0);
        assert_eq!(head, first.map(|first| self.waiting[first].request.id()));
    }

    fn submit(&mut self, input: &Input) {
        let Input::Submit {
            prompt,
            output,
            class,
            tenant,
            committed,
            deadline_s,
        } = *input
        else {
            return;
        };
        let prompt: Arc<[TokenId]> = vec![TokenId::new(1); prompt as usize].into();
        let id = RequestId::new(self.next);
        self.next += 1;
        let request = Request::new(id, self.now, prompt, output).unwrap();
        let request = request
            .with_class(Class::new(class))
            .with_tenant(TenantId::new(tenant))
            .with_deadline(deadline_s.map(|s| self.now + Span::from_secs(s)))
            .with_committed(committed);
        let request = Arc::new(request);
        let mut newcomer = Waiter {
            request: Arc::clone(&request),
            sequence: self.sequence,
            since: self.now,
            preemptions: 0,
            place: Place::default(),
            entered: 0,
        };
        newcomer.place = self.order.place(&newcomer.view(), self.now);
        self.check_ahead(&newcomer);
        let full = self.waiting.len() >= self.cap as usize;
        let last = full.then(|| self.last(&newcomer)).flatten();
        let taken = self.gate.submit(self.now, request);
        let displaced = self.gate.next_displaced();
        assert!(self.gate.next_displaced().is_none());
        assert_eq!(
            displaced.map(|(request, _)| request.id()),
            last.map(|last| self.waiting[last].request.id())
        );
        assert_eq!(taken.is_ok(), !full || last.is_some());
        if let Some(last) = last {
            let last = self.waiting.remove(last);
            self.order.left(&last.view(), false, self.now);
            self.displaced += 1;
        }
        if taken.is_ok() {
            self.sequence += 1;
            self.enter(newcomer);
        }
        assert!(
            self.waiting.len() <= self.cap as usize,
            "a full queue grows no further"
        );
    }

    fn enter(&mut self, mut waiter: Waiter) {
        self.order.arrived(&waiter.view(), self.now);
        waiter.place = self.order.place(&waiter.view(), self.now);
        waiter.entered = self.entered;
        self.entered += 1;
        self.waiting.push(waiter);
    }

    fn take(&mut self) {
        let everybody: Vec<_> = (0..self.waiting.len()).collect();
        let first = self.first(&everybody, 0);
        let taken = self.gate.take(self.now);
        assert_eq!(
            taken.as_ref().map(|taken| taken.request.id()),
            first.map(|first| self.waiting[first].request.id())
        );
        if let (Some(taken), Some(first)) = (taken, first) {
            let first = self.waiting.remove(first);
            self.order.left(&first.view(), true, self.now);
            self.running.push(taken);
        }
    }

    fn cancel(&mut self, index: &Index) {
        let Some(index) = pick(&self.waiting, index) else {
            return;
        };
        let waiter = self.waiting.remove(index);
        assert!(self.gate.cancel(self.now, waiter.request.id()).is_some());
        self.order.left(&waiter.view(), false, self.now);
        if waiter.preemptions > 0 {
            self.ended(&waiter.request);
        }
    }

    fn put_back(&mut self, index: &Index) {
        // The queue may be full: who has begun comes back all the same.
        let Some(index) = pick(&self.running, index) else {
            return;
        };
        if self.waiting.len() >= self.cap as usize {
            return;
        }
        let taken = self.running.remove(index);
        self.gate.put_back(self.now, taken.clone());
        self.enter(Waiter {
            request: taken.request,
            sequence: taken.sequence,
            since: self.now,
            preemptions: taken.preemptions.max(1),
            place: Place::default(),
            entered: 0,
        });
    }

    fn end(&mut self, index: &Index) {
        let Some(index) = pick(&self.running, index) else {
            return;
        };
        let taken = self.running.remove(index);
        self.ended(&taken.request);
    }

    fn ended(&mut self, request: &Request) {
        let ended = Ended {
            request,
            cause: Cause::Finished,
            usage: Usage::default(),
            ran: Some(Span::ZERO),
        };
        self.gate.ended(self.now, &ended);
        self.order.ended(request);
    }

    fn wait(&mut self, span: Span) {
        self.now += span;
        assert!(
            self.gate.next_due(self.now).is_none(),
            "no deadline is near"
        );
        loop {
            let due = self.waiting.iter().enumerate();
            let due = due.filter_map(|(index, w)| Some((w.place.again?, w.sequence, index)));
            let Some((_, _, index)) = due.filter(|&(at, ..)| at <= self.now).min() else {
                break;
            };
            let waiter = &mut self.waiting[index];
            let place = self.order.place(&waiter.view(), self.now);
            waiter.place = place;
            waiter.entered = self.entered;
            self.entered += 1;
        }
        assert!(self.gate.next_timeout().is_none_or(|at| at > self.now));
    }

    /// The one of `some` that is next, by their lanes from `level` on.
    fn first(&self, some: &[usize], level: usize) -> Option<usize> {
        let Some(lanes) = self.levels.get(level) else {
            let key =
                |&&index: &&usize| (self.waiting[index].place.key, self.waiting[index].sequence);
            return some.iter().min_by_key(key).copied();
        };
        let key = |&lane: &u32| {
            let inside = self.in_lane(some, level, lane);
            let first = self.first(&inside, level + 1)?;
            let path = self.path(&self.waiting[first], level);
            let key = match lanes {
                Lanes::Numbered => 0,
                Lanes::Rising => self.order.lane_counter(&path),
                Lanes::Scanned => {
                    let view = self.waiting[first].view();
                    u128::from(self.order.lane_key(&path, &view, self.now))
                }
            };
            Some((key, lane, first))
        };
        let lanes = self.lanes(some, level);
        lanes.iter().filter_map(key).min().map(|(.., first)| first)
    }

    /// Who gives its place up to `newcomer`, if anybody.
    fn last(&self, newcomer: &Waiter) -> Option<usize> {
        let mut inside: Vec<_> = (0..self.waiting.len()).collect();
        let mut own = true;
        for level in 0..self.levels.len() {
            let places = |lane: u32, more: usize| match self.levels[level] {
                Lanes::Rising => {
                    let mut path = self.path(newcomer, level);
                    if !own {
                        path =
                            self.path(&self.waiting[self.in_lane(&inside, level, lane)[0]], level);
                    }
                    path[level] = lane;
                    let count = self.in_lane(&inside, level, lane).len() + more;
                    ((count as u64) << 32) / u64::from(self.order.lane_share(&path).get())
                }
                _ => 0,
            };
            let may = |&lane: &u32| {
                let lane = self.in_lane(&inside, level, lane);
                lane.iter()
                    .any(|&index| self.waiting[index].may_be_displaced())
            };
            let lanes = self.lanes(&inside, level);
            let last = lanes
                .into_iter()
                .filter(may)
                .map(|lane| (places(lane, 0), lane))
                .max()?;
            let mine = newcomer.lane(level);
            let passes = match self.levels[level] {
                Lanes::Numbered => last.1 > mine,
                Lanes::Rising => own && last.0 > places(mine, 1),
                Lanes::Scanned => false,
            };
            if own && self.levels[level] == Lanes::Scanned {
                return None;
            }
            let lane = if own && !passes { mine } else { last.1 };
            own &= !passes;
            inside = self.in_lane(&inside, level, lane);
        }
        let may = inside
            .into_iter()
            .filter(|&index| self.waiting[index].may_be_displaced());
        may.max_by_key(|&index| self.waiting[index].entered)
            .filter(|_| !own)
    }

    fn check_ahead(&mut self, newcomer: &Waiter) {
        let ahead = self.gate.ahead(self.now, &newcomer.request);
        let everybody: Vec<_> = (0..self.waiting.len()).collect();
        let mut own = everybody.clone();
        let mut certain = Vec::new();
        let mut exact = true;
        for (level, lanes) in self.levels.iter().enumerate() {
            match lanes {
                Lanes::Numbered => {
                    let before = own.iter().copied();
                    let lane = newcomer.lane(level);
                    certain.extend(before.filter(|&index| self.waiting[index].lane(level) < lane));
                }
                Lanes::Rising => exact = false,
                Lanes::Scanned => {
                    certain.extend(&own);
                    own.clear();
                }
            }
            own = self.in_lane(&own, level, newcomer.lane(level));
        }
        certain.extend(&own);
        let sum = |some: &[usize]| {
            some.iter().fold(Demand::default(), |mut sum, &index| {
                let request = &self.waiting[index].request;
                let output = Expected::certain(request.output_tokens_max());
                sum += Demand::of(request.prompt_tokens(), output, 1);
                sum
            })
        };
        let (least, most) = (sum(&certain), sum(&everybody));
        if exact {
            assert_eq!(ahead, least);
        }
        let lies = |of: fn(&Demand) -> u64| (of(&least)..=of(&most)).contains(&of(&ahead));
        assert!(
            lies(|demand| demand.requests),
            "{least:?} {ahead:?} {most:?}"
        );
        assert!(lies(|demand| demand.prompt_tokens));
        assert!(lies(|demand| demand.output_tokens));
    }

    fn lanes(&self, some: &[usize], level: usize) -> Vec<u32> {
        let mut lanes: Vec<_> = some
            .iter()
            .map(|&index| self.waiting[index].lane(level))
            .collect();
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    }

    fn in_lane(&self, some: &[usize], level: usize, lane: u32) -> Vec<usize> {
        let inside = some.iter().copied();
        inside
            .filter(|&index| self.waiting[index].lane(level) == lane)
            .collect()
    }

    fn path(&self, waiter: &Waiter, level: usize) -> Vec<u32> {
        (0..=level).map(|level| waiter.lane(level)).collect()
    }
}

fn pick<T>(some: &[T], index: &Index) -> Option<usize> {
    (!some.is_empty()).then(|| index.index(some.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn lanes_inside_of_lanes_are_a_list_that_is_searched(
        order in 0..ORDERS.len(),
        cap in 3_u32..40,
        inputs in inputs(),
    ) {
        let mut world = World::new(ORDERS[order], cap);
        inputs.iter().for_each(|input| world.give(input));
    }
}

/// The property above is about something: under each order that can displace, somebody is.
#[test]
fn somebody_is_displaced_under_every_order_that_knows_who_goes_last() {
    let displaced = |name: &str| {
        let mut world = World::new(name, 8);
        for n in 0..200_u32 {
            world.give(&Input::Submit {
                prompt: 10,
                output: 10,
                class: 2 - (n / 10 % 3) as u8,
                tenant: 6 - n / 10 % 6,
                committed: false,
                deadline_s: None,
            });
            if n % 10 == 9 {
                world.give(&Input::Take);
            }
        }
        world.displaced
    };
    for name in ORDERS {
        let never = ["fifo", "earliest-deadline", "response-ratio"].contains(&name);
        assert_eq!(displaced(name) == 0, never, "{name}");
    }
}
