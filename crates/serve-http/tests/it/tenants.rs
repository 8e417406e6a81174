//! Who is let in, in which class, and at which rate.

use std::num::NonZeroU64;

use axum::body::Body;
use axum::http::{Request, request::Builder};
use serde_json::{Value, json};
use serve_core::{Class, Span, TenantId};
use serve_http::auth::{Identity, KeyHash, Keys};
use serve_http::{EdgeSettings, Loaded, Service};
use serve_sched::Policies;
use serve_sched::admit::{Cost, Quota, TokenBucket};

use crate::support::{Answer, Script, Server, loaded, serving};

const COMPLETION: &str = "/v1/completions";

fn settings() -> EdgeSettings {
    let identity = |tenant, class| Identity {
        tenant: TenantId::new(tenant),
        class: Class::new(class),
    };
    EdgeSettings {
        classes: ["gold", "silver", "free"].map(ToOwned::to_owned).to_vec(),
        keys: Keys::default()
            .with(KeyHash::of("key-of-a"), identity(1, 1))
            .with(KeyHash::of("key-of-b"), identity(2, 2)),
        shown: json!({"max_batch": 4}),
        ..EdgeSettings::default()
    }
}

fn ask(key: &str) -> Builder {
    Request::post(COMPLETION)
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
}

async fn send(server: &Server, request: Builder, body: Value) -> Answer {
    let body = Body::from(body.to_string());
    server.send(request.body(body).unwrap()).await
}

fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"]
        .as_str()
        .unwrap_or("")
        .to_owned()
}

#[tokio::test]
async fn with_keys_every_request_needs_one_and_health_needs_none() {
    let server = serving(Script::saying("a"), settings()).await;
    for path in ["/v1/models", "/v1/models/mock", "/v1/config"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 401, "{path}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        let request = Request::get(path).header("authorization", "Bearer key-of-b");
        let answer = server.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.body.contains("key-of"), "{}", answer.body);
    }
    for path in ["/", "/health/live", "/health/ready"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let body = json!({"prompt": "x"});
    assert_eq!(server.post(COMPLETION, body.clone()).await.status, 401);
    assert_eq!(
        server.post("/v1/requests/x/cancel", json!({})).await.status,
        401
    );
    let wrong = send(&server, ask("key-of-c"), body.clone()).await;
    assert_eq!(
        (wrong.status.as_u16(), code(&wrong).as_str()),
        (401, "invalid_api_key")
    );
    assert_eq!(send(&server, ask("key-of-a"), body).await.status, 200);
    server.settled().await;
}

#[tokio::test]
async fn a_class_is_granted_up_to_the_callers_own_and_never_above() {
    let server = serving(Script::saying("a"), settings()).await;
    // (key, header, body, status, code; or the class that it ran in)
    type Row = (
        &'static str,
        Option<&'static str>,
        Option<&'static str>,
        Result<u8, (u16, &'static str)>,
    );
    let table: &[Row] = &[
        ("key-of-a", None, None, Ok(1)),
        ("key-of-a", Some("silver"), None, Ok(1)),
        ("key-of-a", None, Some("free"), Ok(2)),
        ("key-of-a", Some("free"), Some("free"), Ok(2)),
        (
            "key-of-a",
            Some("gold"),
            None,
            Err((403, "class_forbidden")),
        ),
        (
            "key-of-b",
            None,
            Some("silver"),
            Err((403, "class_forbidden")),
        ),
        ("key-of-b", None, None, Ok(2)),
        ("key-of-b", Some("lead"), None, Err((400, "invalid_value"))),
        (
            "key-of-a",
            Some("free"),
            Some("silver"),
            Err((400, "conflicting_parameters")),
        ),
    ];
    let arrived = |rank: u8| {
        let stats = server.service.serving().unwrap().worker().stats();
        let classes = stats.classes.into_iter();
        let mut counts = classes.filter(|class| class.class == Class::new(rank));
        counts.next().map_or(0, |class| class.counters.arrived)
    };
    for &(key, header, body, expected) in table {
        let what = format!("{key} {header:?} {body:?}");
        let before: Vec<u64> = (0..3).map(arrived).collect();
        let mut request = ask(key);
        if let Some(class) = header {
            request = request.header("x-request-class", class);
        }
        let answer = send(
            &server,
            request,
            json!({"prompt": "x", "request_class": body}),
        )
        .await;
        server.settled().await;
        let after = (0..3).map(arrived);
        let more: Vec<u64> = after
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        match expected {
            Ok(rank) => {
                assert_eq!(answer.status, 200, "{what}: {}", answer.body);
                let own: Vec<u64> = (0..3).map(|other| u64::from(other == rank)).collect();
                assert_eq!(more, own, "{what}");
            }
            Err((status, expected)) => {
                assert_eq!(answer.status, status, "{what}: {}", answer.body);
                assert_eq!(code(&answer), expected, "{what}");
                assert_eq!(more, [0, 0, 0], "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_tenants_rate_is_its_own() {
    let one = NonZeroU64::MIN;
    let hourly = Quota::new(one, Span::from_secs(3_600), one);
    let policies = Policies {
        admit: vec![Box::new(TokenBucket::per_tenant(hourly, Cost::Request))],
        ..Policies::default()
    };
    let service = Service::new(settings());
    let loaded = Loaded {
        policies,
        ..loaded(Script::saying("a"))
    };
    // The warm-up is the anonymous tenant's.
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    let body = json!({"prompt": "x"});
    assert_eq!(
        send(&server, ask("key-of-a"), body.clone()).await.status,
        200
    );
    let refused = send(&server, ask("key-of-a"), body.clone()).await;
    assert_eq!(refused.status, 429);
    assert_eq!(code(&refused), "rate_limit_exceeded");
    let seconds: u64 = refused.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((3_000..=3_600).contains(&seconds), "{seconds}");
    assert_eq!(send(&server, ask("key-of-b"), body).await.status, 200);
}

#[tokio::test]
async fn mangled_headers_never_get_more_than_an_answer() {
    use serve_core::rng::Rng;

    let server = serving(Script::saying("a"), settings()).await;
    let good: [(&str, &[u8]); 4] = [
        ("authorization", b"Bearer key-of-a"),
        ("x-request-class", b"silver"),
        ("x-request-timeout-ms", b"60000"),
        ("x-request-id", b"mine"),
    ];
    let mut rng = Rng::new(7);
    for case in 0..1_000 {
        let mut request = Request::post(COMPLETION).header("content-type", "application/json");
        let mut is_short = false;
        for (name, value) in good {
            let mut value = value.to_vec();
            if rng.below(3) == 0 {
                let at = rng.below(value.len() as u64) as usize;
                match rng.below(3) {
                    // What no HTTP parser lets through is left out.
                    0 => value[at] = 32 + rng.below(95) as u8,
                    1 => value[at] = 128 + rng.below(128) as u8,
                    _ => value.truncate(at),
                }
            }
            // A few milliseconds can be too few.
            is_short |= name == "x-request-timeout-ms" && value.len() < 5;
            request = request.header(name, value);
        }
        let answer = send(&server, request, json!({"prompt": "x"})).await;
        let status = answer.status.as_u16();
        assert!(
            matches!(status, 200 | 400 | 401 | 403) || is_short && status == 504,
            "case {case}: {status}"
        );
    }
    server.settled().await;
}
