//! What a bucket takes and gives back, and when.

use proptest::prelude::*;
use serve_core::{CancelReason, TokenId, Usage};

use super::*;
use crate::Pace;
use crate::admit::Cause;

fn quota(units: u64, per: Span, burst: u64) -> Quota {
    let some = |n| NonZeroU64::new(n).unwrap();
    Quota::new(some(units), per, some(burst))
}

fn request(tenant: u32, prompt: usize) -> Request {
    asking(1, tenant, prompt, 4)
}

fn asking(id: u64, tenant: u32, prompt: usize, output: u32) -> Request {
    let prompt = vec![TokenId::new(1); prompt];
    let request = Request::new(RequestId::new(id), Time::ZERO, prompt, output).unwrap();
    request.with_tenant(TenantId::new(tenant))
}

/// Asks at a time and charges if taken, as the gate does.
fn ask(bucket: &mut TokenBucket, request: &Request, now: Time) -> Result<(), Refusal> {
    let pace = Pace::default();
    let load = Load {
        now,
        ..Load::idle(1, &pace)
    };
    bucket.admit(request, &load)?;
    bucket.admitted(request, &load);
    Ok(())
}

/// The request ends with so many output tokens; `None` if it never started.
fn end(bucket: &mut TokenBucket, request: &Request, output: Option<u32>, now: Time) {
    let pace = Pace::default();
    let load = Load {
        now,
        ..Load::idle(1, &pace)
    };
    let ended = Ended {
        request,
        cause: Cause::Cancelled(CancelReason::Client),
        usage: Usage {
            prompt_tokens: request.prompt_tokens(),
            output_tokens: output.unwrap_or(0),
            ..Usage::default()
        },
        ran: output.map(|_| Span::ZERO),
    };
    bucket.ended(&ended, &load);
}

/// Asks, and ends at once having used all that it asked for.
fn spend(bucket: &mut TokenBucket, request: &Request, now: Time) -> Result<(), Refusal> {
    ask(bucket, request, now)?;
    end(bucket, request, Some(request.output_tokens_max()), now);
    Ok(())
}

#[test]
fn a_burst_is_taken_at_once_and_then_the_rate() {
    let quota = quota(10, Span::from_secs(1), 3);
    let mut bucket = TokenBucket::per_tenant(quota, Cost::Request);
    let mut at = |ms| spend(&mut bucket, &request(1, 1), Time::from_millis(ms));
    assert!(at(5_000).is_ok() && at(5_000).is_ok() && at(5_000).is_ok());
    let refusal = at(5_000).unwrap_err();
    assert_eq!(
        refusal.limit(),
        Limit::TenantRate {
            tenant: TenantId::new(1)
        }
    );
    assert_eq!(refusal.retry_after(), Some(Span::from_millis(100)));
    assert!(at(5_099).is_err());
    assert!(at(5_100).is_ok());
    assert!(at(5_100).is_err());
}

#[test]
fn more_than_the_burst_is_taken_and_paid_off_before_the_next() {
    // A client that leaves its limit at the default asks for four times the burst.
    let quota = quota(100, Span::from_secs(1), 1_000);
    let mut bucket = TokenBucket::per_tenant(quota, Cost::Tokens);
    let long = asking(1, 1, 20, 4_096);
    assert_eq!(ask(&mut bucket, &long, Time::ZERO), Ok(()));
    let next = asking(2, 1, 20, 4_096);
    let refusal = ask(&mut bucket, &next, Time::ZERO).unwrap_err();
    let debt = Span::from_millis((4_116 - 1_000 + 1) * 10);
    assert_eq!(refusal.retry_after(), Some(debt));
    // It has used 220 of them after all.
    let at = Time::from_secs(2);
    end(&mut bucket, &long, Some(200), at);
    assert_eq!(ask(&mut bucket, &next, at), Ok(()));
    let refusal = ask(&mut bucket, &asking(3, 1, 20, 4_096), at).unwrap_err();
    // 20 of the 220 were still missing when the second came.
    let debt = Span::from_millis((4_116 + 20 - 1_000 + 1) * 10);
    assert_eq!(refusal.retry_after(), Some(debt));
}

#[test]
fn what_never_started_costs_nothing_and_what_started_costs_its_prompt() {
    for cost in [Cost::Request, Cost::PromptTokens, Cost::Tokens] {
        let quota = quota(1, Span::from_secs(1_000), 8);
        let mut bucket = TokenBucket::global(quota, cost);
        let waits = asking(1, 1, 8, 8);
        for _ in 0..100 {
            assert_eq!(ask(&mut bucket, &waits, Time::ZERO), Ok(()), "{cost:?}");
            end(&mut bucket, &waits, None, Time::ZERO);
        }
        for taken in 0..8 {
            let taken = ask(&mut bucket, &waits, Time::ZERO).is_ok() || taken > 0;
            assert!(taken, "{cost:?}");
            end(&mut bucket, &waits, Some(0), Time::ZERO);
        }
        assert!(ask(&mut bucket, &waits, Time::ZERO).is_err(), "{cost:?}");
    }
}

#[test]
fn an_engine_that_counts_more_than_was_asked_for_is_believed() {
    let quota = quota(1, Span::from_secs(1), 10);
    let mut bucket = TokenBucket::global(quota, Cost::Tokens);
    let request = asking(1, 1, 1, 1);
    assert_eq!(ask(&mut bucket, &request, Time::ZERO), Ok(()));
    end(&mut bucket, &request, Some(19), Time::ZERO);
    let refusal = ask(&mut bucket, &request, Time::ZERO).unwrap_err();
    assert_eq!(refusal.retry_after(), Some(Span::from_secs(11)));
}

#[test]
fn a_refund_does_not_fill_a_bucket_beyond_its_burst() {
    // While the first runs, the bucket fills up again, and what follows spends it whole.
    let quota = quota(100, Span::from_secs(1), 1_000);
    let mut bucket = TokenBucket::global(quota, Cost::Tokens);
    let first = asking(1, 1, 1, 4_000);
    assert_eq!(ask(&mut bucket, &first, Time::ZERO), Ok(()));
    let at = Time::from_secs(100);
    let second = asking(2, 1, 1, 999);
    assert_eq!(spend(&mut bucket, &second, at), Ok(()));
    end(&mut bucket, &first, Some(9), at);
    assert!(ask(&mut bucket, &asking(3, 1, 1, 1), at).is_err());
}

#[test]
fn tenants_do_not_share_a_bucket_unless_it_is_global() {
    let one = quota(1, Span::from_secs(1), 1);
    let mut tenants = TokenBucket::per_tenant(one, Cost::Request)
        .with_tenant(TenantId::new(9), quota(1, Span::from_secs(1), 2));
    assert!(ask(&mut tenants, &request(1, 1), Time::ZERO).is_ok());
    assert!(ask(&mut tenants, &request(2, 1), Time::ZERO).is_ok());
    assert!(ask(&mut tenants, &request(2, 1), Time::ZERO).is_err());
    assert!(ask(&mut tenants, &request(9, 1), Time::ZERO).is_ok());
    assert!(ask(&mut tenants, &request(9, 1), Time::ZERO).is_ok());
    let mut global = TokenBucket::global(one, Cost::Request);
    assert!(ask(&mut global, &request(1, 1), Time::ZERO).is_ok());
    let refusal = ask(&mut global, &request(2, 1), Time::ZERO).unwrap_err();
    assert_eq!(refusal.limit(), Limit::GlobalRate);
}

#[test]
fn a_refused_request_is_not_charged() {
    let mut bucket = TokenBucket::global(quota(1, Span::from_secs(1), 1), Cost::Request);
    assert!(ask(&mut bucket, &request(1, 1), Time::ZERO).is_ok());
    for ms in 0..1_000 {
        assert!(ask(&mut bucket, &request(1, 1), Time::from_millis(ms)).is_err());
    }
    assert!(ask(&mut bucket, &request(1, 1), Time::from_secs(1)).is_ok());
}

#[test]
fn a_million_tenants_that_are_gone_take_no_memory() {
    let mut bucket = TokenBucket::per_tenant(quota(1, Span::from_secs(1), 1), Cost::Request);
    for tenant in 0..1_000_000 {
        let now = Time::from_millis(u64::from(tenant) * 10);
        assert!(spend(&mut bucket, &request(tenant, 1), now).is_ok());
    }
    // A hundred of them have spent something within the last second.
    let kept = bucket.accounts.len();
    assert!(kept <= 2 * 101, "{kept}");
    assert!(bucket.charges.is_empty());
}

#[test]
fn a_tenant_in_flight_is_remembered_among_many() {
    let mut bucket = TokenBucket::per_tenant(quota(1, Span::from_secs(1), 1), Cost::Tokens);
    let long = asking(0, 0, 1, 1);
    assert!(ask(&mut bucket, &long, Time::ZERO).is_ok());
    let mut now = Time::from_secs(100);
    for tenant in 1..1_000 {
        now += Span::from_secs(10);
        assert!(spend(&mut bucket, &asking(1, tenant, 1, 1), now).is_ok());
    }
    end(&mut bucket, &long, Some(50_000), now);
    let refusal = ask(&mut bucket, &long, now).unwrap_err();
    assert!(
        refusal.retry_after().is_some(),
        "it has used more than was asked"
    );
}

/// What happens to a bucket, drawn by the property tests.
#[derive(Clone, Copy, Debug)]
struct Ask {
    gap_ns: u64,
    prompt: usize,
    output: u32,
    /// Of the output; none if it never starts.
    used: Option<u32>,
    /// How many more come before it ends.
    lasts: usize,
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let one = (
        0_u64..3_000_000_000,
        1_usize..40,
        1_u32..90,
        proptest::option::weighted(0.9, 0_u32..90),
        0_usize..8,
    );
    let one = one.prop_map(|(gap_ns, prompt, output, used, lasts)| Ask {
        gap_ns,
        prompt,
        output,
        used: used.map(|used| used.min(output)),
        lasts,
    });
    proptest::collection::vec(one, 1..60)
}

/// A request that was taken.
struct Took {
    at: Time,
    /// What it is charged: at first what it may use, then what it did.
    charge: u64,
    ends: Option<(usize, Request, Option<u32>)>,
}

/// Plays the requests, each ending just before one that comes after it, and checks every refusal: one
/// nanosecond before its hint it is refused again, at its hint it is taken.
fn play(quota: Quota, cost: Cost, asks: &[Ask]) -> Vec<Took> {
    let mut bucket = TokenBucket::per_tenant(quota, cost);
    let mut now = Time::from_secs(7);
    let mut took: Vec<Took> = Vec::new();
    for (nth, it) in asks.iter().enumerate() {
        now += Span::from_nanos(it.gap_ns);
        let request = asking(nth as u64, 1, it.prompt, it.output);
        let before_ends = ask(&mut bucket.clone(), &request, now);
        for old in &mut took {
            if old.ends.as_ref().is_some_and(|(ends, ..)| *ends <= nth)
                && let Some((_, request, used)) = old.ends.take()
            {
                end(&mut bucket, &request, used, now);
                old.charge = used.map_or(0, |used| cost.of(request.prompt_tokens(), used));
            }
        }
        let told = |answer: Result<(), Refusal>| {
            answer.map_or_else(|it| it.retry_after().unwrap(), |()| Span::ZERO)
        };
        let before = told(before_ends);
        let after = told(ask(&mut bucket.clone(), &request, now));
        assert!(after <= before, "an end makes nobody wait longer");
        if !after.is_zero() {
            let early = now + after - Span::from_nanos(1);
            assert!(ask(&mut bucket.clone(), &request, early).is_err());
        }
        now += after;
        assert_eq!(ask(&mut bucket, &request, now), Ok(()));
        took.push(Took {
            at: now,
            charge: cost.at_most(&request),
            ends: Some((nth + 1 + it.lasts, request, it.used)),
        });
    }
    took
}

proptest! {
    /// What it says is what happens, to the nanosecond, at rates that do not divide a second, and
    /// over any span no more is used than the burst, the rate, and what one request overdraws.
    #[test]
    fn the_time_to_come_back_is_exact_and_the_bound_holds_whatever_is_refunded(
        units in 1_u64..2_000,
        per_ms in 1_u64..10_000,
        burst in 1_u64..300,
        cost in prop::sample::select(vec![Cost::Request, Cost::PromptTokens, Cost::Tokens]),
        asks in asks(),
    ) {
        let took = play(quota(units, Span::from_millis(per_ms), burst), cost, &asks);
        let per = u128::from(per_ms) * 1_000_000;
        for (first, from) in took.iter().enumerate() {
            let mut used = 0;
            for to in &took[first..] {
                used += to.charge;
                let span = u128::from(to.at.since(from.at).as_nanos());
                let most = u128::from(burst + to.charge.saturating_sub(1));
                let allowed = most * per + span * u128::from(units);
                prop_assert!(u128::from(used) * per <= allowed);
            }
        }
    }

    /// Of requests that come one after the other, what counts is what they used: asking for more
    /// changes nothing.
    #[test]
    fn what_has_ended_has_cost_what_it_used(
        units in 1_u64..2_000,
        burst in 1_u64..300,
        asks in asks(),
    ) {
        let quota = quota(units, Span::from_millis(1_700), burst);
        let mut asks_more = TokenBucket::global(quota, Cost::Tokens);
        let mut asks_exactly = TokenBucket::global(quota, Cost::Tokens);
        let mut now = Time::from_secs(7);
        for it in asks {
            now += Span::from_nanos(it.gap_ns);
            let used = it.used.unwrap_or(0).max(1);
            let (more, exactly) = (asking(1, 1, it.prompt, it.output), asking(1, 1, it.prompt, used));
            let answer = ask(&mut asks_more, &more, now);
            prop_assert_eq!(answer, ask(&mut asks_exactly, &exactly, now));
            if answer.is_ok() {
                now += Span::from_millis(u64::from(used));
                end(&mut asks_more, &more, Some(used), now);
                end(&mut asks_exactly, &exactly, Some(used), now);
            }
        }
    }
}

#[test]
fn the_settings_give_each_rate_its_bucket_with_a_burst_of_so_many_seconds() {
    let tenth = Span::from_millis(100);
    let settings = Settings::default().with(&RATE_BURST, Span::from_secs(3));
    let of = |rate, per_s| buckets(&settings.clone().with(rate, per_s)).len();
    assert!(buckets(&settings).is_empty());
    for rate in [
        &REQUESTS_PER_S,
        &TOKENS_PER_S,
        &TENANT_REQUESTS_PER_S,
        &TENANT_TOKENS_PER_S,
    ] {
        assert_eq!((of(rate, 0.0), of(rate, 0.001)), (0, 1));
    }
    // Ten in a second, thirty at once; then one each tenth of a second.
    let ten = settings.with(&TENANT_REQUESTS_PER_S, 10.0);
    let pace = Pace::default();
    let taken_at = |now: Time, buckets: &mut Vec<TokenBucket>| {
        let load = Load {
            now,
            ..Load::idle(1, &pace)
        };
        let taken = (0..100).take_while(|_| {
            let taken = buckets[0].admit(&request(1, 1), &load).is_ok();
            buckets[0].admitted(&request(1, 1), &load);
            taken
        });
        taken.count()
    };
    assert_eq!(taken_at(Time::ZERO, &mut buckets(&ten)), 30);
    let mut bucket = buckets(&ten);
    for _ in 0..30 {
        bucket[0].admitted(&request(1, 1), &Load::idle(1, &pace));
    }
    assert_eq!(taken_at(Time::ZERO + tenth, &mut bucket), 1);
}

#[test]
fn a_tenant_with_a_rate_of_its_own_has_it_beside_others_without() {
    let tenant = |id, requests_per_s| TenantSettings {
        id: TenantId::new(id),
        requests_per_s,
        ..TenantSettings::default()
    };
    let tenants = vec![tenant(1, Some(0.1)), tenant(2, Some(0.0))];
    let settings = Settings::default().with_tenants(tenants);
    let pace = Pace::default();
    let taken = |settings: &Settings, id| {
        let mut all = buckets(settings);
        let load = Load::idle(1, &pace);
        let taken = (0..50).take_while(|_| {
            let taken = all[0].admit(&request(id, 1), &load).is_ok();
            all[0].admitted(&request(id, 1), &load);
            taken
        });
        taken.count()
    };
    let seen = [1, 2, 3].map(|id| taken(&settings, id));
    assert_eq!(seen, [1, 50, 50], "0 is no limit, and nobody else has one");
    let settings = settings.with(&TENANT_REQUESTS_PER_S, 0.2);
    assert_eq!([1, 2, 3].map(|id| taken(&settings, id)), [1, 50, 2]);
}

/// What is full is looked for once for each doubling, so that a tenant costs O(1) on average.
#[test]
fn accounts_that_stay_are_not_looked_through_at_each_request() {
    let mut bucket = TokenBucket::per_tenant(quota(1, Span::from_secs(3_600), 2), Cost::Request);
    for tenant in 0..1_000 {
        ask(&mut bucket, &request(tenant, 1), Time::ZERO).unwrap();
        let (accounts, next) = (bucket.accounts.len(), bucket.forget_at);
        assert!(
            next >= accounts && next <= 2 * accounts.max(FORGET_AT_LEAST),
            "{accounts}: {next}"
        );
    }
    assert!(bucket.forget_at > 1_000);
}

/// A text that is made tokens before its request is whole, and what becomes of the request.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    gap_ns: u64,
    tokens: u32,
    /// By how many its bytes are more.
    more: u32,
    /// How many more texts come before its own is made.
    lasts: usize,
    fate: Fate,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is too long, or its client has left meanwhile.
    NeverComes,
    /// It waits, and its client leaves, or set it a time that is over.
    Leaves,
    /// It is answered with so many tokens.
    Answered(u32),
}

fn prepared() -> impl Strategy<Value = Vec<Prepared>> {
    let fate = prop_oneof![
        Just(Fate::NeverComes),
        Just(Fate::Leaves),
        (0_u32..50).prop_map(Fate::Answered),
    ];
    let one = (0_u64..900_000_000, 1_u32..40, 0_u32..90, 0_usize..6, fate);
    let one = one.prop_map(|(gap_ns, tokens, more, lasts, fate)| Prepared {
        gap_ns,
        tokens,
        more,
        lasts,
        fate,
    });
    proptest::collection::vec(one, 1..60)
}

fn at(now: Time, pace: &Pace) -> Load<'_> {
    Load {
        now,
        ..Load::idle(1, pace)
    }
}

/// A text has been made tokens.
fn is_made(bucket: &mut TokenBucket, id: u64, it: Prepared, now: Time) {
    let (pace, least) = (Pace::default(), asking(id, 1, 1, 1));
    let load = at(now, &pace);
    let output = match it.fate {
        Fate::NeverComes => return bucket.release(&least, it.tokens, &load),
        Fate::Leaves => None,
        Fate::Answered(output) => Some(output),
    };
    let request = asking(id, 1, it.tokens as usize, 50);
    match ask(bucket, &request, now) {
        Ok(()) => end(bucket, &request, output, now),
        // Others have used the rate up meanwhile.
        Err(_) => bucket.release(&least, it.tokens, &load),
    }
}

proptest! {
    /// However many texts are made tokens at once, and whatever becomes of them: over any span no more tokens
    /// are made than the burst, the rate, and what the last one overdraws.
    #[test]
    fn no_more_texts_are_made_tokens_than_the_rate_pays_for(
        units in 1_u64..200,
        burst in 1_u64..200,
        per_tenant in any::<bool>(),
        texts in prepared(),
    ) {
        let (quota, pace) = (quota(units, Span::from_secs(1), burst), Pace::default());
        let mut bucket = match per_tenant {
            true => TokenBucket::per_tenant(quota, Cost::Tokens),
            false => TokenBucket::global(quota, Cost::Tokens),
        };
        let mut now = Time::from_secs(7);
        // When each was begun, its tokens, and what is to come of it.
        type Open = Option<(usize, u64, Prepared)>;
        let mut begun: Vec<(Time, u64, Open)> = Vec::new();
        for (nth, it) in texts.into_iter().enumerate() {
            now += Span::from_nanos(it.gap_ns);
            for (_, _, open) in &mut begun {
                if let Some((_, id, it)) = open.take_if(|(ready, ..)| *ready <= nth) {
                    is_made(&mut bucket, id, it, now);
                }
            }
            let id = nth as u64;
            let least = asking(id, 1, 1, 1);
            if bucket.admit(&least, &at(now, &pace)).is_ok() {
                bucket.reserve(&least, it.tokens + it.more, &at(now, &pace));
                begun.push((now, u64::from(it.tokens), Some((nth + 1 + it.lasts, id, it))));
            }
        }
        for (first, from) in begun.iter().enumerate() {
            let mut made = 0;
            for to in &begun[first..] {
                made += u128::from(to.1);
                let span = u128::from(to.0.since(from.0).as_nanos()) * u128::from(units);
                let most = u128::from(burst + to.1 - 1);
                prop_assert!(made * 1_000_000_000 <= most * 1_000_000_000 + span);
            }
        }
    }
}

/// What the server does not take for want of room, or gives up by itself, costs nothing.
#[test]
fn a_reservation_is_given_back_where_the_client_is_not_to_blame() {
    for cost in [Cost::Request, Cost::PromptTokens, Cost::Tokens] {
        let (quota, pace) = (quota(1, Span::from_secs(1_000), 8), Pace::default());
        let mut bucket = TokenBucket::per_tenant(quota, cost);
        let (least, load) = (asking(1, 1, 1, 1), at(Time::ZERO, &pace));
        let whole = asking(1, 1, 8, 8);
        for round in 0..100 {
            assert_eq!(bucket.admit(&least, &load), Ok(()), "{cost:?} {round}");
            bucket.reserve(&least, 32, &load);
            if round % 2 == 0 {
                bucket.release(&least, 0, &load);
                continue;
            }
            bucket.admitted(&whole, &load);
            let causes = [
                Cause::Displaced,
                Cause::Failed,
                Cause::Cancelled(CancelReason::Drain),
            ];
            let ended = Ended {
                request: &whole,
                cause: causes[round / 2 % 3],
                usage: Usage::default(),
                ran: None,
            };
            bucket.ended(&ended, &load);
        }
        assert!(bucket.charges.is_empty());
        // What has been settled once is not settled again.
        bucket.release(&least, 5, &load);
        assert_eq!(bucket.accounts[&TenantId::new(1)].full_at, 0, "{cost:?}");
    }
}

/// Of several that were prepared at once one may still overdraw the rate, as of those that come whole, and what
/// the others' texts have cost is paid.
#[test]
fn preparing_at_once_lets_no_more_in_than_coming_at_once() {
    let (quota, pace) = (quota(10, Span::from_secs(1), 100), Pace::default());
    let mut bucket = TokenBucket::per_tenant(quota, Cost::Tokens);
    let load = at(Time::ZERO, &pace);
    for id in 0..6 {
        let least = asking(id, 1, 1, 1);
        assert_eq!(bucket.admit(&least, &load), Ok(()), "{id}");
        bucket.reserve(&least, 15, &load);
    }
    let mut taken = 0;
    for id in 0..6 {
        let whole = asking(id, 1, 10, 1_000);
        taken += u32::from(ask(&mut bucket, &whole, Time::ZERO).is_ok());
        bucket.release(&whole, 10, &load);
    }
    assert_eq!(taken, 1);
    end(&mut bucket, &asking(0, 1, 10, 1_000), Some(0), Time::ZERO);
    // Six texts of 10 tokens.
    assert_eq!(
        bucket.accounts[&TenantId::new(1)].full_at,
        quota.time_for(60)
    );
}
