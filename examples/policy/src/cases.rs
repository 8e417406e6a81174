//! Which policy is seen under which load, made of which settings, and beside what.

use crate::scene::{self, Scene};

/// A policy that settings choose, by the name of its page, and its controls.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) scene: fn(u64) -> Scene,
    /// Settings of the policy and of its controls alike.
    pub(crate) both: &'static [(&'static str, &'static str)],
    /// What makes the policy, in the words of a table.
    pub(crate) policy: Choice,
    /// What it is compared with.
    pub(crate) controls: &'static [Choice],
}

/// What a line of the table is called, and the settings that make it.
pub(crate) type Choice = (&'static str, &'static [(&'static str, &'static str)]);

const ALL_WAIT: Choice = ("all may wait", &[]);
const FIFO: Choice = ("fifo", &[]);
const NO_CAP: &[(&str, &str)] = &[("queue_cap", "0")];

/// Every policy that settings choose, in the order of the pages' index.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "queue-cap",
        scene: scene::overload,
        both: &[],
        policy: ("10 may wait", &[("queue_cap", "10")]),
        controls: &[("all may wait", NO_CAP)],
    },
    Case {
        name: "token-bucket",
        scene: scene::bursts,
        both: NO_CAP,
        policy: (
            "3/s, bursts of 8",
            &[("tenant_requests_per_s", "3"), ("rate_burst", "2.67")],
        ),
        controls: &[ALL_WAIT],
    },
    Case {
        name: "latency-budget",
        scene: scene::overload,
        both: NO_CAP,
        policy: ("a budget of 2.5 s", &[("latency_budget", "2.5")]),
        controls: &[ALL_WAIT],
    },
    Case {
        name: "deadline-prediction",
        scene: scene::overload_with_deadlines,
        both: NO_CAP,
        policy: ("predicted", &[("deadline_admission", "true")]),
        controls: &[ALL_WAIT],
    },
    Case {
        name: "first-token-budget",
        scene: scene::long_and_short_prompts,
        both: NO_CAP,
        policy: ("a budget of 1 s", &[("first_token_budget", "1")]),
        controls: &[ALL_WAIT],
    },
    Case {
        name: "concurrency-limit",
        scene: scene::overload,
        both: NO_CAP,
        policy: ("nobody waits", &[("concurrency_limit", "true")]),
        controls: &[ALL_WAIT],
    },
    Case {
        name: "in-flight-limits",
        scene: scene::bursts,
        both: NO_CAP,
        policy: ("6 in flight for each", &[("tenant_in_flight", "6")]),
        controls: &[ALL_WAIT],
    },
    Case {
        name: "fifo",
        scene: scene::answers,
        both: NO_CAP,
        policy: FIFO,
        controls: &[(
            "response-ratio",
            &[("order", "response-ratio"), ("wait_max", "0")],
        )],
    },
    Case {
        name: "strict-tiers",
        scene: scene::tiers,
        both: NO_CAP,
        policy: ("strict-tiers", &[("order", "strict-tiers")]),
        controls: &[FIFO],
    },
    Case {
        name: "aging-tiers",
        scene: scene::tiers,
        both: NO_CAP,
        policy: (
            "aging after 3 s",
            &[("order", "aging-tiers"), ("age_after", "3")],
        ),
        controls: &[("strict-tiers", &[("order", "strict-tiers")]), FIFO],
    },
    Case {
        name: "fair-tenants",
        scene: scene::flood,
        both: NO_CAP,
        policy: ("fair-tenants", &[("order", "fair-tenants")]),
        controls: &[FIFO],
    },
    Case {
        name: "fair-groups",
        scene: scene::keys,
        both: NO_CAP,
        policy: ("fair-groups", &[("order", "fair-groups")]),
        controls: &[("fair-tenants", &[("order", "fair-tenants")]), FIFO],
    },
    Case {
        name: "composed-orders",
        scene: scene::tiers_and_tenants,
        both: NO_CAP,
        policy: (
            "tiers of fair tenants",
            &[("order", "strict-tiers/fair-tenants")],
        ),
        controls: &[("strict-tiers", &[("order", "strict-tiers")]), FIFO],
    },
    Case {
        name: "earliest-deadline",
        scene: scene::deadlines,
        both: NO_CAP,
        policy: ("earliest-deadline", &[("order", "earliest-deadline")]),
        controls: &[FIFO],
    },
    Case {
        name: "response-ratio",
        scene: scene::answers,
        both: NO_CAP,
        policy: ("response-ratio", &[("order", "response-ratio")]),
        controls: &[FIFO],
    },
    Case {
        name: "one-at-a-time",
        scene: scene::batches,
        both: NO_CAP,
        policy: ("one-at-a-time", &[("batch", "one-at-a-time")]),
        controls: &[("continuous", &[])],
    },
    Case {
        name: "static-batch",
        scene: scene::batches,
        both: NO_CAP,
        policy: ("static", &[("batch", "static")]),
        controls: &[("one-at-a-time", &[("batch", "one-at-a-time")])],
    },
    Case {
        name: "continuous",
        scene: scene::batches,
        both: NO_CAP,
        policy: ("continuous", &[]),
        controls: &[("static", &[("batch", "static")])],
    },
    Case {
        name: "first-come",
        scene: scene::documents,
        both: &[("queue_cap", "0"), ("order", "strict-tiers")],
        policy: ("first-come", &[]),
        controls: &[("class-first", &[("budget", "class-first")])],
    },
    Case {
        name: "class-first",
        scene: scene::documents,
        both: &[("queue_cap", "0"), ("order", "strict-tiers")],
        policy: ("class-first", &[("budget", "class-first")]),
        controls: &[("first-come", &[])],
    },
    Case {
        name: "inter-token-target",
        scene: scene::documents,
        both: &[("queue_cap", "0"), ("order", "strict-tiers")],
        policy: (
            "a target of 40 ms",
            &[
                ("budget", "inter-token-target"),
                ("inter_token_target", "0.04"),
            ],
        ),
        controls: &[("first-come", &[])],
    },
    Case {
        name: "newest-of-lowest-class",
        scene: scene::full_cache,
        both: NO_CAP,
        policy: ("16 slots, the newest goes", &[]),
        controls: &[("7 slots, which surely fit", &[("max_batch", "7")])],
    },
    Case {
        name: "least-progress-lost",
        scene: scene::full_cache,
        both: NO_CAP,
        policy: ("least progress lost", &[("victim", "least-progress-lost")]),
        controls: &[("the newest", &[])],
    },
    Case {
        name: "most-freed-for-least-lost",
        scene: scene::full_cache,
        both: NO_CAP,
        policy: (
            "most freed for least lost",
            &[("victim", "most-freed-for-least-lost")],
        ),
        controls: &[("the newest", &[])],
    },
    Case {
        name: "over-share-first",
        scene: scene::full_cache_of_tenants,
        both: &[("queue_cap", "0"), ("order", "fair-tenants")],
        policy: ("over share first", &[("victim", "over-share-first")]),
        controls: &[("the newest", &[])],
    },
    Case {
        name: "preemption-by-class",
        scene: scene::low_class_holds_all,
        both: &[("queue_cap", "0"), ("order", "strict-tiers")],
        policy: ("takes a slot", &[("preempt_by_class", "true")]),
        controls: &[("waits for one", &[])],
    },
    Case {
        name: "prefix-cache",
        scene: scene::instructions,
        both: NO_CAP,
        policy: ("prefixes are kept", &[("prefix_cache", "true")]),
        controls: &[("every prompt is run", &[("prefix_cache", "false")])],
    },
];
