//! The loads under which policies are seen, each on the device of the examples, and whose requests are told apart.

use examples_support::request;
use serve_core::rng::Rng;
use serve_core::{Class, Request, RequestId, Span, TenantId, Time, TokenId};
use serve_sched::TenantSettings;
use serve_sched::settings::GroupId;
use serve_sched::sim::{Poisson, Row};

/// Requests a second of 30 tokens in and 64 out that 8 slots answer at most.
const CAPACITY: f64 = 7.13;
const PAID: Class = Class::HIGHEST;
const FREE: Class = Class::new(1);
const FLOOD: TenantId = TenantId::new(1);
const PERSON: TenantId = TenantId::new(2);
/// Where the ids of a load's second stream begin.
const SECOND: u64 = 1_000_000;

/// A load, and what it runs on.
pub(crate) struct Scene {
    /// What is sent, and to what.
    pub(crate) title: &'static str,
    /// Requests in a step, and blocks of KV cache for each of them.
    pub(crate) slots: u32,
    pub(crate) blocks: u32,
    /// What is said of tenants; their groups, to orders of groups.
    pub(crate) tenants: Vec<TenantSettings>,
    pub(crate) load: Vec<Request>,
    /// Whose requests are told apart, and which these are.
    pub(crate) groups: &'static [Group],
}

/// Those whose requests are told apart: who they are, and which requests are theirs.
type Group = (&'static str, fn(&Row) -> bool);

impl Scene {
    fn new(title: &'static str, load: impl IntoIterator<Item = Request>) -> Self {
        let mut load: Vec<Request> = load.into_iter().collect();
        load.sort_by_key(Request::arrival);
        Self {
            title,
            slots: 8,
            blocks: 8 * 256,
            tenants: Vec::new(),
            load,
            groups: &[("all", |_| true)],
        }
    }
}

/// Ids from `first` and random times, `rate` a second, for so many seconds.
fn arrivals(first: u64, seed: u64, rate: f64, secs: u64) -> impl Iterator<Item = (u64, Time)> {
    let end = Time::from_secs(secs);
    (first..).zip(Poisson::new(seed, rate).take_while(move |&at| at < end))
}

/// Chats at so many times the capacity.
fn chats(first: u64, seed: u64, load: f64, secs: u64) -> impl Iterator<Item = Request> {
    arrivals(first, seed, load * CAPACITY, secs).map(|(id, at)| request(id, at, 30, 64))
}

fn due(request: Request, secs: u64) -> Request {
    let deadline = request.arrival() + Span::from_secs(secs);
    request.with_deadline(Some(deadline))
}

pub(crate) fn overload(seed: u64) -> Scene {
    Scene::new(
        "Chats at twice what 8 slots can do, for a minute",
        chats(0, seed + 1, 2.0, 60),
    )
}

pub(crate) fn overload_with_deadlines(seed: u64) -> Scene {
    let load = chats(0, seed + 1, 2.0, 60).map(|request| due(request, 5));
    Scene::new(
        "Chats at twice what 8 slots can do, for a minute, each cut off after 5 s",
        load,
    )
}

pub(crate) fn long_and_short_prompts(seed: u64) -> Scene {
    let mut lengths = Rng::new(seed + 4);
    let load = arrivals(0, seed + 7, 24.0, 60).map(move |(id, at)| {
        let prompt = if lengths.below(5) == 0 { 3_000 } else { 50 };
        request(id, at, prompt, 2)
    });
    Scene {
        groups: &[
            ("short prompts", |row| row.usage.prompt_tokens == 50),
            ("long prompts", |row| row.usage.prompt_tokens > 50),
        ],
        ..Scene::new(
            "24 requests/s, prompts of 50 tokens and, one in five, of 3,000; 8 slots, a minute",
            load,
        )
    }
}

const JOB_AND_PERSON: &[Group] = &[
    ("job", |row| row.tenant == FLOOD),
    ("person", |row| row.tenant == PERSON),
];

pub(crate) fn bursts(seed: u64) -> Scene {
    let burst =
        |n: u64| (0..60).map(move |id| request(n * 60 + id, Time::from_secs(n * 10), 30, 64));
    let job = (0..6)
        .flat_map(burst)
        .map(|request| request.with_tenant(FLOOD));
    let person = arrivals(SECOND, seed + 9, 0.5, 60);
    let person = person.map(|(id, at)| request(id, at, 30, 64).with_tenant(PERSON));
    Scene {
        groups: JOB_AND_PERSON,
        ..Scene::new(
            "A job sends 60 chats at once every 10 s, a person one every 2 s; 8 slots, a minute",
            job.chain(person),
        )
    }
}

pub(crate) fn flood(seed: u64) -> Scene {
    let job = (0..400).map(|id| request(id, Time::ZERO, 30, 64).with_tenant(FLOOD));
    let person = arrivals(SECOND, seed + 3, 0.5, 40);
    let person = person.map(|(id, at)| request(id, at, 30, 64).with_tenant(PERSON));
    Scene {
        groups: JOB_AND_PERSON,
        ..Scene::new(
            "A job sends 400 chats at once, a person one every 2 s; 8 slots",
            job.chain(person),
        )
    }
}

/// One tenant, and a hundred that are one customer's.
pub(crate) fn keys(seed: u64) -> Scene {
    let of_many = |n: u64| TenantId::new(100 + (n % 100) as u32);
    let one = chats(0, seed + 1, 1.0, 60).map(|request| request.with_tenant(FLOOD));
    let many = chats(SECOND, seed + 2, 3.0, 60).map(move |request| {
        let tenant = of_many(request.id().get());
        request.with_tenant(tenant)
    });
    let member = |id, group| TenantSettings {
        id,
        group: Some(GroupId::new(group)),
        ..TenantSettings::default()
    };
    let members = (0..100).map(|n| member(of_many(n), 2));
    Scene {
        tenants: std::iter::once(member(FLOOD, 1)).chain(members).collect(),
        groups: &[
            ("one key", |row| row.tenant == FLOOD),
            ("a hundred keys", |row| row.tenant != FLOOD),
        ],
        ..Scene::new(
            "One key sends what 8 slots can do, a hundred keys of one customer three times that, for a minute",
            one.chain(many),
        )
    }
}

pub(crate) fn tiers(seed: u64) -> Scene {
    let paid = chats(0, seed + 3, 0.9, 90);
    let free = chats(SECOND, seed + 4, 0.07, 90).map(|request| request.with_class(FREE));
    Scene {
        groups: &[
            ("paid", |row| row.class == PAID),
            ("free", |row| row.class == FREE),
        ],
        ..Scene::new(
            "Paid chats at 90% of what 8 slots can do, free ones at 7%, for 90 s",
            paid.chain(free),
        )
    }
}

pub(crate) fn tiers_and_tenants(seed: u64) -> Scene {
    let paid = chats(0, seed + 1, 0.6, 60);
    let person = chats(SECOND, seed + 2, 0.1, 60);
    let person = person.map(|request| request.with_class(FREE).with_tenant(PERSON));
    let job = chats(2 * SECOND, seed + 3, 1.0, 60);
    let job = job.map(|request| request.with_class(FREE).with_tenant(FLOOD));
    Scene {
        groups: &[
            ("paid", |row| row.class == PAID),
            ("free, person", |row| {
                row.class == FREE && row.tenant == PERSON
            }),
            ("free, job", |row| row.class == FREE && row.tenant == FLOOD),
        ],
        ..Scene::new(
            "Paid chats at 60% of what 8 slots can do; of free ones a person's 10%, a job's 100%, for a minute",
            paid.chain(person).chain(job),
        )
    }
}

pub(crate) fn deadlines(seed: u64) -> Scene {
    let load = chats(0, seed + 5, 0.9, 200).map(|request| {
        let secs = if request.id().get().is_multiple_of(2) {
            2
        } else {
            10
        };
        due(request, secs)
    });
    Scene {
        groups: &[
            ("due in 2 s", |row| row.request.get().is_multiple_of(2)),
            ("due in 10 s", |row| !row.request.get().is_multiple_of(2)),
        ],
        ..Scene::new(
            "Chats at 90% of what 8 slots can do, half due in 2 s and half in 10 s, for 200 s",
            load,
        )
    }
}

const SHORT_AND_LONG: &[Group] = &[
    ("short answers", |row| row.usage.output_tokens <= 56),
    ("long answers", |row| row.usage.output_tokens > 56),
];

pub(crate) fn answers(seed: u64) -> Scene {
    let mut lengths = Rng::new(seed + 4);
    let short = arrivals(0, seed + 6, 12.5, 180);
    let short = short.map(move |(id, at)| request(id, at, 30, 8 + lengths.below(49) as u32));
    let long = arrivals(SECOND, seed + 7, 0.12, 180).map(|(id, at)| request(id, at, 30, 600));
    Scene {
        groups: SHORT_AND_LONG,
        ..Scene::new(
            "12.5 answers/s of 8 to 56 tokens, 0.12/s of 600: full load of 8 slots, for 3 min",
            short.chain(long),
        )
    }
}

pub(crate) fn batches(seed: u64) -> Scene {
    let mut lengths = Rng::new(seed + 2);
    let load = arrivals(0, seed + 1, 2.0, 120);
    let load = load.map(move |(id, at)| request(id, at, 30, 8 + lengths.below(240) as u32));
    Scene::new(
        "2 requests/s, answers of 8 to 247 tokens; 8 slots, 2 min",
        load,
    )
}

pub(crate) fn documents(seed: u64) -> Scene {
    let document = |id| request(id, Time::ZERO, 3_500, 2).with_class(FREE);
    let chats = arrivals(SECOND, seed + 1, 0.5, 60).map(|(id, at)| request(id, at, 30, 64));
    Scene {
        slots: 16,
        blocks: 16 * 256,
        groups: &[
            ("chats", |row| row.class == PAID),
            ("documents", |row| row.class == FREE),
        ],
        ..Scene::new(
            "120 documents of 3,500 tokens that all wait, in class 1, and a chat every 2 s in class 0; 16 slots",
            (0..120).map(document).chain(chats),
        )
    }
}

/// Blocks of the largest of these requests: a prompt of 500 tokens and an answer of 400.
const LARGEST: u32 = 57;

pub(crate) fn full_cache(seed: u64) -> Scene {
    let mut lengths = Rng::new(seed + 1);
    let load = (0..400).map(move |id| {
        let mut up_to = |most| 1 + lengths.below(most) as u32;
        request(id, Time::ZERO, up_to(500), up_to(400))
    });
    Scene {
        slots: 16,
        blocks: 7 * LARGEST,
        ..Scene::new(
            "400 requests of up to 57 blocks that all wait, a cache of 399 blocks; 16 slots",
            load,
        )
    }
}

pub(crate) fn full_cache_of_tenants(seed: u64) -> Scene {
    let heavy = (0..400).map(|id| request(id, Time::ZERO, 100, 200).with_tenant(FLOOD));
    let light = arrivals(SECOND, seed + 3, 0.25, 80);
    let light = light.map(|(id, at)| request(id, at, 100, 200).with_tenant(PERSON));
    Scene {
        slots: 16,
        blocks: 8 * 19,
        groups: JOB_AND_PERSON,
        ..Scene::new(
            "A job's 400 requests of 19 blocks, a person's one every 4 s, a cache of 152 blocks; 16 slots",
            heavy.chain(light),
        )
    }
}

pub(crate) fn low_class_holds_all(seed: u64) -> Scene {
    let low = (0..60).map(|id| request(id, Time::ZERO, 60, 400).with_class(FREE));
    let high = arrivals(SECOND, seed + 2, 1.0, 30).map(|(id, at)| request(id, at, 60, 40));
    Scene {
        groups: &[
            ("class 0", |row| row.class == PAID),
            ("class 1", |row| row.class == FREE),
        ],
        ..Scene::new(
            "8 slots full of class 1, answers of 400 tokens, and a request of class 0 every second",
            low.chain(high),
        )
    }
}

pub(crate) fn instructions(seed: u64) -> Scene {
    let load = arrivals(0, seed + 10, 4.0, 60).map(|(id, at)| {
        let own = (0..60).map(|n| 10_000 + id as u32 * 60 + n);
        let prompt = (0..1_500).chain(own).map(TokenId::new).collect::<Vec<_>>();
        Request::new(RequestId::new(id), at, prompt, 64)
            .expect("prompt and output fit in 32-bit positions")
    });
    Scene::new(
        "4 requests/s, prompts of 1,500 tokens of instructions and 60 of one's own; 8 slots, a minute",
        load,
    )
}
