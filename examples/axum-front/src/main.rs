//! An axum service behind a dispatcher: the same routes, once as they are and once behind a layer of
//! three lines, over sockets and in real time. Its clients ask for a stream of tokens and hang up when they
//! have waited too long.

mod client;
mod service;

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use examples_support::{Options, Table, Tiers, Told, tiers_table};
use serve_core::{Class, Span};
use serve_sched::Dispatcher;
use serve_sched::adapter::{Ask, AsyncDispatcher};
use serve_sched::admit::QueueCap;
use serve_sched::limit::Fixed;
use serve_sched::order::StrictTiers;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use service::{OUTPUT_TOKENS, SLOTS, Service};

const PAID: Class = Class::HIGHEST;
const FREE: Class = Class::new(1);

/// The load: a third of it paid.
#[derive(Clone, Copy, Debug)]
struct Load {
    requests: u32,
    gap: Duration,
    patience: Duration,
}

/// One and a half times what four slots of 40 tokens each can do.
const OVERLOAD: Load = Load {
    requests: 300,
    gap: Duration::from_micros(6_667),
    patience: Duration::from_millis(400),
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show(
        "150 requests/s, a third of them paid, at an axum service that does 100; patience 400 ms; real time",
        &table(&run(OVERLOAD).await?),
    )?;
    Ok(())
}

/// The same load at both, one after the other.
async fn run(load: Load) -> Result<[Tiers; 2], Box<dyn Error>> {
    let service = Service::new();
    let control = drive("as it is", load, &service, service.router()).await?;

    let service = Service::new();
    let app = behind(dispatcher(), service.router());
    let treated = drive("behind the layer", load, &service, app).await?;
    Ok([control, treated])
}

fn dispatcher() -> Dispatcher {
    let cap = QueueCap::default().with_class(FREE, 12);
    let slots = Box::new(Fixed::new(SLOTS));
    Dispatcher::new(vec![Box::new(cap)], Box::new(StrictTiers), slots)
}

/// The three lines.
fn behind(dispatcher: Dispatcher, app: Router) -> Router {
    let front = AsyncDispatcher::spawn(dispatcher);
    let ask = |request: &Request| Ask::new(30, OUTPUT_TOKENS).with_class(class_of(request));
    app.layer(front.layer(ask))
}

fn class_of(request: &Request) -> Class {
    match request.headers().get("x-tier") {
        Some(tier) if tier == "paid" => PAID,
        _ => FREE,
    }
}

/// Serves `app` on a socket and sends it the load at its times.
async fn drive(
    name: &'static str,
    load: Load,
    service: &Service,
    app: Router,
) -> Result<Tiers, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for n in 0..load.requests {
        sleep_until(begin + load.gap * n).await;
        clients.spawn(ask(address, n, load.patience));
    }
    let answers = clients.join_all().await;
    server.abort();
    Ok(Tiers::of(name, service.most_inside(), &answers))
}

async fn ask(address: SocketAddr, n: u32, patience: Duration) -> (Class, Told, Span) {
    let (class, tier) = match n % 3 {
        0 => (PAID, "paid"),
        _ => (FREE, "free"),
    };
    let begin = Instant::now();
    let answer = tokio::time::timeout(patience, client::ask(address, tier)).await;
    let answer = answer.unwrap_or(Told::Nothing);
    (class, answer, begin.elapsed().into())
}

fn table(services: &[Tiers]) -> Table {
    tiers_table(["axum service", "429", "most in the service"], services)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All at once, and everybody waits: what is tested does not depend on how fast the machine is.
    const CROWD: Load = Load {
        requests: 60,
        gap: Duration::ZERO,
        patience: Duration::from_secs(300),
    };

    #[tokio::test]
    async fn the_layer_keeps_the_queue_where_policies_decide() {
        let [control, treated] = run(CROWD).await.unwrap();
        assert!(control.most_inside > SLOTS, "{}", control.most_inside);
        assert_eq!(control.refused, 0);
        assert!(treated.most_inside <= SLOTS, "{}", treated.most_inside);
        // Of 40 free requests 12 may wait; nobody is lost without an answer.
        assert!(treated.refused > 0);
        assert_eq!(treated.paid.answered.len(), 20);
        let answered = treated.paid.answered.len() + treated.free.answered.len();
        assert_eq!(answered + treated.refused, 60);
    }

    #[tokio::test]
    async fn clients_that_hang_up_give_their_slots_to_others() {
        let service = Service::new();
        let front = AsyncDispatcher::spawn(dispatcher());
        let app = service.router();
        let app = app.layer(front.layer(|_: &Request| Ask::new(30, OUTPUT_TOKENS)));
        let impatient = Load {
            patience: Duration::from_millis(60),
            ..CROWD
        };
        drive("impatient", impatient, &service, app).await.unwrap();
        front.drain();
        front.drained().await;
        let stats = front.stats();
        assert_eq!((stats.waiting, stats.running, stats.aborting), (0, 0, 0));
        assert!(service.is_empty());
    }
}
