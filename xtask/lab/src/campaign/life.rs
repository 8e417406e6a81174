//! One life of a server under the campaign: started, loaded beyond its capacity, drained while
//! requests keep coming, and looked at when it is over.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serve_core::rng::{Rng, mix2};
use serve_http::lifecycle::State;
use serve_http::text::MockText;
use serve_http::{EdgeSettings, LaunchError, Loaded, Service, run};
use serve_sched::Policies;
use serve_sched::admit::QueueCap;
use serve_sched::order::AgingTiers;
use serve_sched::victim::Preemption;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::ask::{Ask, OUTPUT_TOKENS_MAX};
use super::attempt::{End, attempt};
use super::chaos::{Chaos, Faults, Rates, mock};
use super::ledger::{Ledger, Lived};
use super::tally::Tally;

/// Requests that may wait.
const QUEUE_CAP: u32 = 64;

/// How much more is asked for than the device can do.
const OVERLOAD: f64 = 2.0;

/// After this a client that has no end is taken for forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Which requests make up a life, and when its end begins.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Which life of the campaign it is.
    pub(super) life: u64,
    pub(super) requests: std::ops::Range<u64>,
    /// Whether no client goes away by itself; then both sides know how each request ended.
    pub(super) patient: bool,
}

struct Server {
    address: SocketAddr,
    service: Arc<Service>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<io::Result<()>>,
}

/// Why a life could not begin or end.
#[derive(Debug, thiserror::Error)]
pub enum LifeError {
    /// No port, or the listener broke.
    #[error("the server's socket: {0}")]
    Socket(#[from] io::Error),
    /// The server did not start.
    #[error("the server did not start: {0}")]
    Launch(#[from] LaunchError),
    /// The server's task panicked.
    #[error("the server's task ended by {0}")]
    Task(#[from] tokio::task::JoinError),
    /// Its metrics lack a figure.
    #[error("GET /metrics does not say how many requests came and how they ended")]
    NoMetrics,
    /// The server was never launched, though it had said so.
    #[error("the server has no model after its end")]
    NoModel,
}

/// Runs one life to its end.
pub(super) async fn live(plan: &Plan, faults: &Arc<Faults>) -> Result<Lived, LifeError> {
    let mut rng = Rng::new(mix2(plan.seed, plan.life ^ 0xD8A1));
    let server = start(plan, faults, &mut rng).await?;
    let begun = Instant::now();
    let rate = OVERLOAD * capacity_per_s();
    let count = plan.requests.end - plan.requests.start;
    // Late, so that most come before it, and not so late that none comes after it.
    let late = (count / 20).max(30).min(count / 2);
    let drain_at = plan.requests.end - late - rng.below(late);
    let mut clients = JoinSet::new();
    let mut due = begun;
    let mut after_drain = 0;
    let mut stop = Some(server.stop);
    for index in plan.requests.clone() {
        due += Duration::from_secs_f64(rng.exponential(1.0 / rate));
        sleep_until(due).await;
        if index >= drain_at
            && let Some(stop) = stop.take()
        {
            // Only a server that has ended by itself does not listen.
            let _ = stop.send(());
        }
        after_drain += u64::from(stop.is_none());
        let (seed, patient, address) = (plan.seed, plan.patient, server.address);
        let service = Arc::clone(&server.service);
        clients.spawn(async move {
            let ask = Ask::drawn(seed, index, patient);
            let late = service.lifecycle().state() >= State::Draining;
            let end = timeout(FORGOTTEN_AFTER, attempt(address, &ask)).await;
            let end = end.unwrap_or_else(|_| End::Broken {
                what: format!("no end after {} s", FORGOTTEN_AFTER.as_secs()),
            });
            let draining = service.lifecycle().state() >= State::Draining;
            (ask, end, late, draining)
        });
    }
    let mut ledger = Ledger::default();
    while let Some(client) = clients.join_next().await {
        let (ask, end, late, draining) = client?;
        ledger.enter(&ask, &end, late, draining);
    }
    server.ended.await??;
    let model = server.service.launched().ok_or(LifeError::NoModel)?;
    Ok(Lived {
        ledger,
        stats: model.worker().stats(),
        tally: Tally::of(&server.service)
            .await
            .ok_or(LifeError::NoMetrics)?,
        live: model.worker().live(),
        took: begun.elapsed(),
        after_drain,
    })
}

async fn start(plan: &Plan, faults: &Arc<Faults>, rng: &mut Rng) -> Result<Server, LifeError> {
    // None at all, one that cuts some, and one that nobody needs.
    let drain_timeouts = [0, 60, 10_000];
    let service = Service::new(EdgeSettings {
        queue_cap: QUEUE_CAP,
        drain_timeout: Duration::from_millis(drain_timeouts[rng.below(3) as usize]),
        ..EdgeSettings::default()
    });
    let count = plan.requests.end - plan.requests.start;
    let rates = rates(count);
    let loaded = Loaded {
        name: "mock".to_owned(),
        text: Arc::new(MockText::new()),
        backend: Box::new(Chaos::new(plan.seed, rates, Arc::clone(faults))),
        policies: policies(),
        rebuild: Some(Chaos::rebuild(
            plan.seed,
            rates,
            Arc::clone(faults),
            policies,
        )),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    faults.armed.store(false, Ordering::Relaxed);
    service.launch(loaded).await?;
    faults.armed.store(true, Ordering::Relaxed);
    let (stop, stopped) = oneshot::channel();
    let shutdown = async {
        // A campaign that fails drops the sender, and that ends the server as well.
        let _ = stopped.await;
    };
    let ended = tokio::spawn(run(Arc::clone(&service), listener, shutdown));
    Ok(Server {
        address,
        service,
        stop,
        ended,
    })
}

fn policies() -> Policies {
    Policies {
        admit: vec![Box::new(QueueCap::new(QUEUE_CAP))],
        order: Box::new(AgingTiers::new(serve_core::Span::from_millis(40))),
        preemption: Preemption {
            by_class: true,
            ..Preemption::default()
        },
        ..Policies::default()
    }
}

/// Answers a second that the device can make.
fn capacity_per_s() -> f64 {
    let mock = mock(0);
    let batch = mock.limits.sequences_max;
    let tokens = (1 + OUTPUT_TOKENS_MAX) as f64 / 2.0;
    f64::from(batch) / (tokens * mock.cost.decode(batch).as_secs_f64())
}

/// A few panics and losses in each life, and many failed steps, however short it is.
fn rates(requests: u64) -> Rates {
    let steps = requests as f64 / (OVERLOAD * capacity_per_s()) * 1_000.0;
    let often = |times: f64, most: f64| (1e6 * times / steps).min(most) as u64;
    Rates {
        panics: often(10.0, 20_000.0),
        losses: often(5.0, 5_000.0),
        errors: often(50.0, 10_000.0),
        stalls: often(20.0, 10_000.0),
    }
}
