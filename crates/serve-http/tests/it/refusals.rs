//! Every refusal in one table: status, type, code and header; and the documentation has the same
//! table.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;

use axum::response::IntoResponse;
use serde_json::{Value, json};
use serve_core::{
    Blame, CancelReason, Class, InvalidRequest, InvalidSampling, Limit, Reason, Refusal, Request,
    Sampling, Span, TenantId, TokenId,
};
use serve_http::api::Message;
use serve_http::error::Problem;
use serve_http::lifecycle::State;
use serve_http::text::{Detokenize, MockText, Text, TextError};
use serve_http::{CapacityStatus, EdgeSettings, Loaded, Service};
use serve_sched::admit::{Admit, Cost, Load, Quota, TokenBucket};
use serve_sched::{Policies, Settings};

use crate::support::{Script, Server, Word, loaded, user};

const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

/// What is refused, and the status, type and code that it has. The header goes with the limit.
fn table() -> Vec<(Problem, u16, &'static str, &'static str)> {
    let text = || "x".to_owned();
    let later = |limit| {
        Problem::Refused(Refusal::Later {
            limit,
            retry_after: Some(Span::from_millis(1_200)),
        })
    };
    let never = |limit| Problem::Refused(Refusal::Never { limit });
    let span = Span::from_secs(1);
    let late = Limit::Deadline {
        predicted: span,
        left: Span::ZERO,
    };
    let (param, accepted, given) = (text(), text(), text());
    let value = Problem::Value {
        param: text(),
        accepted: text(),
        given: text(),
    };
    let tenant = TenantId::new(1);
    let class = Class::new(1);
    vec![
        (
            Problem::Syntax {
                cause: text(),
                line: 1,
                column: 1,
            },
            400,
            INVALID,
            "invalid_json",
        ),
        (Problem::Body, 400, INVALID, "incomplete_body"),
        (
            Problem::Type {
                param,
                accepted,
                given,
            },
            400,
            INVALID,
            "invalid_type",
        ),
        (value, 400, INVALID, "invalid_value"),
        (
            Problem::Sampling(InvalidSampling::Temperature(-1.0)),
            400,
            INVALID,
            "invalid_value",
        ),
        (
            Problem::Request(InvalidRequest::EmptyPrompt),
            400,
            INVALID,
            "invalid_value",
        ),
        (
            Problem::Missing {
                param: text(),
                accepted: "x",
            },
            400,
            INVALID,
            "missing_required_parameter",
        ),
        (
            Problem::Unsupported {
                param: text(),
                accepted: "x",
            },
            400,
            INVALID,
            "unsupported_parameter",
        ),
        (
            Problem::UnknownParameter { param: text() },
            400,
            INVALID,
            "unknown_parameter",
        ),
        (
            Problem::Conflict {
                param: "x",
                other: "y",
                cause: "z",
            },
            400,
            INVALID,
            "conflicting_parameters",
        ),
        (
            Problem::Encoding {
                param: "x",
                cause: text(),
            },
            400,
            INVALID,
            "invalid_text",
        ),
        (
            Problem::ContextLength {
                param: "x",
                prompt: 1,
                output: 1,
                max: 1,
            },
            400,
            INVALID,
            "context_length_exceeded",
        ),
        (
            never(Limit::Context { needed: 2, max: 1 }),
            400,
            INVALID,
            "context_length_exceeded",
        ),
        (
            never(Limit::KvBlocks { needed: 2, max: 1 }),
            400,
            INVALID,
            "kv_capacity_exceeded",
        ),
        (
            never(Limit::TenantKv {
                tenant,
                positions: 2,
                max: 1,
            }),
            400,
            INVALID,
            "kv_capacity_exceeded",
        ),
        (
            never(Limit::ClassKv {
                class,
                positions: 2,
                max: 1,
            }),
            400,
            INVALID,
            "kv_capacity_exceeded",
        ),
        (never(Limit::DuplicateId), 400, INVALID, "never_served"),
        (never(Limit::NoTokens), 400, INVALID, "never_served"),
        (
            Problem::Cancelled(CancelReason::Client),
            400,
            INVALID,
            "cancelled",
        ),
        (
            Problem::SlowReader { buffered: 1 },
            400,
            INVALID,
            "slow_reader",
        ),
        (Problem::Unauthorized("x"), 401, INVALID, "invalid_api_key"),
        (Problem::WrongKey, 401, INVALID, "invalid_api_key"),
        (
            Problem::ClassForbidden {
                param: "x",
                asked: text(),
                highest: text(),
            },
            403,
            INVALID,
            "class_forbidden",
        ),
        (
            Problem::NotFound {
                method: text(),
                path: text(),
            },
            404,
            INVALID,
            "not_found",
        ),
        (
            Problem::ModelNotFound {
                asked: text(),
                served: text(),
            },
            404,
            INVALID,
            "model_not_found",
        ),
        (
            Problem::RequestNotFound { id: text() },
            404,
            INVALID,
            "request_not_found",
        ),
        (
            Problem::MethodNotAllowed {
                method: text(),
                path: text(),
            },
            405,
            INVALID,
            "method_not_allowed",
        ),
        (
            Problem::SlowBody { seconds: 1.0 },
            408,
            INVALID,
            "body_timeout",
        ),
        (Problem::TooLarge { max: 1 }, 413, INVALID, "body_too_large"),
        (
            Problem::MediaType { given: text() },
            415,
            INVALID,
            "unsupported_media_type",
        ),
        (Problem::KeyReused, 422, INVALID, "idempotency_key_reused"),
        (
            later(Limit::TenantRate { tenant }),
            429,
            "rate_limit_error",
            "rate_limit_exceeded",
        ),
        (
            later(Limit::TenantInFlight {
                tenant,
                in_flight: 1,
                max: 1,
            }),
            429,
            "rate_limit_error",
            "tenant_limit_exceeded",
        ),
        (
            later(Limit::TenantKv {
                tenant,
                positions: 2,
                max: 1,
            }),
            429,
            "rate_limit_error",
            "tenant_limit_exceeded",
        ),
        (
            Problem::Backend { cause: text() },
            500,
            SERVER,
            "backend_error",
        ),
        (
            later(Limit::QueueDepth { waiting: 1, max: 1 }),
            429,
            SERVER,
            "overloaded",
        ),
        (
            later(Limit::ClassQueueDepth {
                class,
                waiting: 1,
                max: 1,
            }),
            429,
            SERVER,
            "overloaded",
        ),
        (
            later(Limit::ClassInFlight {
                class,
                in_flight: 1,
                max: 1,
            }),
            429,
            SERVER,
            "overloaded",
        ),
        (
            later(Limit::ClassKv {
                class,
                positions: 2,
                max: 1,
            }),
            429,
            SERVER,
            "overloaded",
        ),
        (
            later(Limit::LatencyBudget {
                predicted: span,
                target: span,
            }),
            429,
            SERVER,
            "overloaded",
        ),
        (
            later(Limit::FirstTokenBudget {
                predicted: span,
                target: span,
            }),
            429,
            SERVER,
            "overloaded",
        ),
        (
            later(Limit::Concurrency {
                in_flight: 1,
                max: 1,
            }),
            429,
            SERVER,
            "overloaded",
        ),
        (
            later(Limit::GlobalRate),
            429,
            SERVER,
            "server_rate_exceeded",
        ),
        (later(late), 429, SERVER, "deadline_unreachable"),
        (Problem::BodiesFull { max: 1 }, 429, SERVER, "overloaded"),
        (
            Problem::TooManyConnections { max: 1 },
            429,
            SERVER,
            "too_many_connections",
        ),
        (
            Problem::Cancelled(CancelReason::QueueTimeout),
            429,
            SERVER,
            "queue_timeout",
        ),
        (Problem::NotReady(State::Loading), 503, SERVER, "not_ready"),
        (Problem::NotReady(State::Warming), 503, SERVER, "not_ready"),
        (
            Problem::NotReady(State::Rebuilding),
            503,
            SERVER,
            "not_ready",
        ),
        (
            Problem::NotReady(State::Draining),
            503,
            SERVER,
            "shutting_down",
        ),
        (
            Problem::NotReady(State::Stopped),
            503,
            SERVER,
            "shutting_down",
        ),
        (
            Problem::Refused(Refusal::Later {
                limit: Limit::Draining,
                retry_after: None,
            }),
            503,
            SERVER,
            "shutting_down",
        ),
        (
            Problem::Cancelled(CancelReason::Drain),
            503,
            SERVER,
            "shutting_down",
        ),
        (
            Problem::NotReady(State::Failed),
            503,
            SERVER,
            "engine_stopped",
        ),
        (Problem::EngineStopped, 503, SERVER, "engine_stopped"),
        (Problem::Unreachable, 503, SERVER, "engine_unreachable"),
        (
            Problem::UpstreamBusy {
                said: "status 503".to_owned(),
                retry_after: Some("2".to_owned()),
            },
            429,
            SERVER,
            "overloaded",
        ),
        (never(late), 504, SERVER, "deadline_exceeded"),
        (
            Problem::Cancelled(CancelReason::Deadline),
            504,
            SERVER,
            "deadline_exceeded",
        ),
    ]
}

/// The row of the documentation: status, type, code, header.
fn documented() -> BTreeSet<[String; 4]> {
    let cells = |line: &str| {
        let mut cells = line
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().replace('`', ""));
        let mut next = || cells.next().unwrap_or_default();
        [next(), next(), next(), next()]
    };
    let is_refusal = |line: &&str| line.starts_with("| 4") || line.starts_with("| 5");
    let rows = OPERATIONS.lines().filter(is_refusal).map(cells);
    // The other table that begins so has exit codes.
    rows.filter(|[status, ..]| status.len() == 3).collect()
}

#[tokio::test]
async fn every_refusal_has_its_status_type_code_and_header_and_is_documented() {
    let mut seen = BTreeSet::new();
    for (problem, status, family, code) in table() {
        let message = problem.to_string();
        let response = problem.into_response();
        assert_eq!(response.status(), status, "{message}");
        let headers = response.headers();
        let retry_after = headers
            .get("retry-after")
            .map(|value| value.to_str().unwrap());
        let authenticate = headers
            .get("www-authenticate")
            .map(|value| value.to_str().unwrap());
        let header = match (retry_after, authenticate) {
            // Rounded up: a client that comes a moment too early is refused again.
            (Some("2"), None) => "Retry-After",
            (None, Some("Bearer")) => "WWW-Authenticate",
            (None, None) => "",
            other => panic!("{message}: {other:?}"),
        };
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        let body: Value = serde_json::from_slice(&bytes).unwrap();
        let keys: Vec<&String> = body["error"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["message", "type", "param", "code"], "{message}");
        assert_eq!(body["error"]["message"], message);
        assert_eq!(body["error"]["type"], family, "{message}");
        assert_eq!(body["error"]["code"], code, "{message}");
        seen.insert([
            status.to_string(),
            family.to_owned(),
            code.to_owned(),
            header.to_owned(),
        ]);
    }
    assert_eq!(documented(), seen, "docs/operations.md has another table");
}

/// Whatever the scheduler can say has a row, also what nobody has thought of above.
#[test]
fn every_limit_and_every_reason_is_told_by_its_code_and_documented() {
    let refused = Limit::each().flat_map(|limit| {
        let retry_after = Some(Span::from_secs(1));
        [
            Refusal::Later { limit, retry_after },
            Refusal::Never { limit },
        ]
    });
    let refused = refused.map(|refusal| (refusal.code(), Problem::Refused(refusal)));
    let cancelled = CancelReason::each().map(|it| (it.code(), Problem::Cancelled(it)));
    for (code, problem) in refused.chain(cancelled) {
        let kind = problem.kind();
        assert_eq!((kind.status.as_u16(), kind.code), (code.status, code.name));
        let is_row = |row: &[String; 4]| {
            row[0] == code.status.to_string() && row[1] == kind.family() && row[2] == code.name
        };
        // Of a policy of one's own the documentation knows the kind and not the code.
        let own = matches!(&problem, Problem::Refused(refusal)
            if matches!(refusal.limit(), Limit::Policy { .. }));
        assert!(
            own || documented().iter().any(is_row),
            "{code:?} is not documented"
        );
        assert_eq!(problem.is_capacity(), code.blame == Blame::Capacity);
        // 503 is of this replica alone: another one should be asked.
        assert_eq!(
            problem.is_capacity(),
            kind.status == 429 && code.blame != Blame::Tenant
        );
    }
}

/// No request of more than so many tokens, in this house's own words.
struct ShortPrompts(&'static Reason);

impl Admit for ShortPrompts {
    fn name(&self) -> &'static str {
        "short-prompts"
    }

    fn admit(&mut self, request: &Request, _load: &Load<'_>) -> Result<(), Refusal> {
        let (value, max) = (request.prompt_tokens(), 4);
        let limit = Limit::Policy {
            reason: self.0,
            value,
            max,
        };
        let retry_after = Some(Span::from_millis(1_200));
        match value > max {
            true => Err(Refusal::Later { limit, retry_after }),
            false => Ok(()),
        }
    }
}

#[tokio::test]
async fn a_policy_of_ones_own_refuses_in_its_own_words() {
    static REASONS: [(Reason, u16, &str); 4] = [
        (
            Reason::new("own_client", Blame::Client, "prompt tokens"),
            400,
            INVALID,
        ),
        (
            Reason::new("own_tenant", Blame::Tenant, "prompt tokens"),
            429,
            "rate_limit_error",
        ),
        (
            Reason::new("own_capacity", Blame::Capacity, "prompt tokens"),
            429,
            SERVER,
        ),
        (
            Reason::new("own_server", Blame::Server, "prompt tokens"),
            500,
            SERVER,
        ),
    ];
    for (reason, status, family) in &REASONS {
        let service = Service::new(EdgeSettings::default());
        let policies = Policies {
            admit: vec![Box::new(ShortPrompts(reason))],
            ..Policies::default()
        };
        let loaded = Loaded {
            policies,
            ..loaded(Script::saying("a"))
        };
        service.launch(loaded).await.unwrap();
        let server = Server::over(service);
        let prompt = "many words in a prompt that is longer than four tokens";
        let body = json!({"prompt": prompt, "max_tokens": 1});
        let refused = server.post("/v1/completions", body).await;
        assert_eq!(refused.status, *status);
        assert_eq!(refused.headers["retry-after"], "2");
        let error = &refused.json()["error"];
        let code = reason.code().name;
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!(family), &json!(code))
        );
        let message = error["message"].as_str().unwrap();
        assert!(
            message.ends_with("prompt tokens, and at most 4 may be"),
            "{message}"
        );
        let scrape = crate::metrics::Scrape::of(&server).await;
        let counted = format!("serve_refusals_total{{code=\"{code}\"}}");
        assert_eq!(scrape.get(&counted), 1.0);
    }
}

/// The mock's text, with a count of the texts that have become tokens.
#[derive(Default)]
pub(crate) struct CountedText {
    inner: MockText,
    encoded: Arc<AtomicU32>,
    /// Tokens of all texts together.
    pub(crate) tokens: Arc<AtomicU32>,
}

impl CountedText {
    fn counted(&self, tokens: Result<Vec<TokenId>, TextError>) -> Result<Vec<TokenId>, TextError> {
        self.encoded.fetch_add(1, Ordering::SeqCst);
        let made = tokens.as_ref().map_or(0, Vec::len) as u32;
        self.tokens.fetch_add(made, Ordering::SeqCst);
        tokens
    }
}

/// A server that counts what becomes tokens, under these settings, and whose engine gets no further: what to count
/// is told by `of`.
pub(crate) async fn counting(
    settings: &Settings,
    of: impl FnOnce(&CountedText) -> &Arc<AtomicU32>,
) -> (Server, Arc<AtomicU32>, SyncSender<Word>) {
    let (script, gate) = Script::saying("abc").gated();
    // The warm-up's steps.
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let text = CountedText::default();
    let count = Arc::clone(of(&text));
    let loaded = Loaded {
        text: Arc::new(text),
        policies: settings.policies().unwrap(),
        ..loaded(script)
    };
    let service = Service::new(EdgeSettings::default());
    service.launch(loaded).await.unwrap();
    (Server::over(service), count, gate)
}

impl Text for CountedText {
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        self.counted(self.inner.encode(text))
    }

    fn encode_chat(
        &self,
        messages: &[Message],
        variables: &serde_json::Map<String, Value>,
    ) -> Result<Vec<TokenId>, TextError> {
        self.counted(self.inner.encode_chat(messages, variables))
    }

    fn detokenizer(&self, prompt: &[TokenId]) -> Box<dyn Detokenize> {
        self.inner.detokenizer(prompt)
    }

    fn bytes(&self, token: TokenId) -> Vec<u8> {
        self.inner.bytes(token)
    }

    fn vocabulary(&self) -> u32 {
        self.inner.vocabulary()
    }

    fn stop_tokens(&self) -> &Arc<[TokenId]> {
        self.inner.stop_tokens()
    }

    fn sampling(&self) -> Sampling {
        self.inner.sampling()
    }
}

/// A rate that is used up, and a limit on what is in flight, cost nothing but the reading of the body.
#[tokio::test]
async fn what_a_rate_or_a_limit_in_flight_refuses_is_never_encoded() {
    let table = [
        (
            &[("requests_per_s", "0.001"), ("rate_burst", "2000")][..],
            "server_rate_exceeded",
        ),
        (
            &[("tokens_per_s", "0.001"), ("rate_burst", "4000")],
            "server_rate_exceeded",
        ),
        (
            &[("tenant_requests_per_s", "0.001"), ("rate_burst", "2000")],
            "rate_limit_exceeded",
        ),
        (&[("tenant_in_flight", "1")], "tenant_limit_exceeded"),
        (&[("class_in_flight", "paid=1")], "overloaded"),
    ];
    for (chosen, code) in table {
        let mut settings = Settings::default();
        for (name, value) in chosen {
            settings.set_text(name, value).unwrap();
        }
        let (server, encoded, gate) = counting(&settings, |text| &text.encoded).await;
        let ask = json!({"prompt": "x", "messages": null});
        let first = server.clone();
        let first = tokio::spawn(async move { first.post("/v1/completions", ask).await });
        while server.service.serving().unwrap().worker().live() < 1 {
            assert!(!first.is_finished(), "{chosen:?}: the first is let in");
            tokio::task::yield_now().await;
        }
        for _ in 0..5 {
            for (path, body) in [
                ("/v1/completions", json!({"prompt": "x"})),
                ("/v1/chat/completions", json!({"messages": user("x")})),
            ] {
                let refused = server.post(path, body);
                // One that is taken waits for the gate.
                let refused =
                    tokio::time::timeout(std::time::Duration::from_secs(10), refused).await;
                let refused = refused.unwrap_or_else(|_| panic!("{chosen:?} {path} takes it"));
                assert_eq!(
                    (
                        refused.status.as_u16(),
                        &*refused.json()["error"]["code"].to_string()
                    ),
                    (429, &*format!("{code:?}")),
                    "{chosen:?}"
                );
            }
        }
        assert_eq!(encoded.load(Ordering::SeqCst), 1, "{chosen:?}");
        let counters = server.service.serving().unwrap().worker().stats().counters;
        assert_eq!(
            (counters.arrived, counters.refused),
            (12, 10),
            "the warm-up and one more are in"
        );
        drop(gate);
        assert_eq!(first.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn the_settings_choose_the_status_of_what_is_refused_for_capacity() {
    let statuses = [
        (CapacityStatus::Unavailable, 503),
        (CapacityStatus::TooManyRequests, 429),
    ];
    for (capacity_status, expected) in statuses {
        let (one, two) = (NonZeroU64::MIN, NonZeroU64::MIN.saturating_add(1));
        // The warm-up and one more.
        let hourly = Quota::new(one, Span::from_secs(3_600), two);
        let service = Service::new(EdgeSettings {
            capacity_status,
            ..EdgeSettings::default()
        });
        let policies = Policies {
            admit: vec![Box::new(TokenBucket::global(hourly, Cost::Request))],
            ..Policies::default()
        };
        let loaded = Loaded {
            policies,
            ..loaded(Script::saying("a"))
        };
        service.launch(loaded).await.unwrap();
        let server = Server::over(service);
        let body = json!({"prompt": "x"});
        assert_eq!(
            server.post("/v1/completions", body.clone()).await.status,
            200
        );
        let refused = server.post("/v1/completions", body.clone()).await;
        assert_eq!(refused.status, expected);
        assert_eq!(refused.json()["error"]["code"], "server_rate_exceeded");
        let seconds: u64 = refused.headers["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((3_000..=3_600).contains(&seconds), "{seconds}");
        server.service.drain().await;
        let refused = server.post("/v1/completions", body).await;
        assert_eq!(refused.status, 503, "going away is no lack of capacity");
    }
}
