//! Permits where there is no HTTP and no tower: a server of lines over TCP, once as it is and once behind a dispatcher that
//! is asked for a permit for each line. Over sockets and in real time.

mod server;

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use examples_support::{Options, Table, Tiers, Told, tiers_table};
use serve_core::{Class, Span};
use serve_sched::Dispatcher;
use serve_sched::adapter::AsyncDispatcher;
use serve_sched::admit::QueueCap;
use serve_sched::limit::Fixed;
use serve_sched::order::{Fifo, StrictTiers};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use server::{Engine, FREE, PAID, SLOTS};

/// Lines, a third of them paid, and how far apart they are sent.
#[derive(Clone, Copy, Debug)]
struct Load {
    lines: u32,
    gap: Duration,
    patience: Duration,
}

/// One and a half times what four slots of 40 tokens each can do.
const OVERLOAD: Load = Load {
    lines: 300,
    gap: Duration::from_micros(6_667),
    patience: Duration::from_millis(400),
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show(
        "150 lines/s, a third of them paid, at an engine that does 100; patience 400 ms; real time",
        &table(&run(OVERLOAD).await?),
    )?;
    Ok(())
}

/// The same load at both, one after the other.
async fn run(load: Load) -> Result<[Tiers; 2], Box<dyn Error>> {
    Ok([
        drive("sent at once", load, at_once()).await?,
        drive("a permit for each", load, tiers()).await?,
    ])
}

/// The control: a permit for everybody at once.
fn at_once() -> Dispatcher {
    Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(u32::MAX)))
}

fn tiers() -> Dispatcher {
    let cap = QueueCap::default().with_class(FREE, 12);
    let slots = Box::new(Fixed::new(SLOTS));
    Dispatcher::new(vec![Box::new(cap)], Box::new(StrictTiers), slots)
}

async fn drive(
    name: &'static str,
    load: Load,
    dispatcher: Dispatcher,
) -> Result<Tiers, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, engine) = (listener.local_addr()?, Engine::new());
    let front = AsyncDispatcher::spawn(dispatcher);
    let server = tokio::spawn(server::serve(listener, front, engine.clone()));
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for n in 0..load.lines {
        sleep_until(begin + load.gap * n).await;
        clients.spawn(client(address, n, load.patience));
    }
    let lines = clients.join_all().await;
    server.abort();
    Ok(Tiers::of(name, engine.inside.most(), &lines))
}

/// Sends a line and hangs up when it has waited too long; then nothing has come back.
async fn client(address: SocketAddr, n: u32, patience: Duration) -> (Class, Told, Span) {
    let (class, tier) = match n % 3 {
        0 => (PAID, "paid"),
        _ => (FREE, "free"),
    };
    let begin = Instant::now();
    let exchanged = tokio::time::timeout(patience, exchange(address, tier)).await;
    let line = exchanged.ok().and_then(Result::ok).unwrap_or_default();
    let told = match line.get(..3) {
        Some("ok ") => Told::Answer,
        Some("no ") => Told::Refusal,
        _ => Told::Nothing,
    };
    (class, told, begin.elapsed().into())
}

async fn exchange(address: SocketAddr, tier: &str) -> std::io::Result<String> {
    let mut socket = BufReader::new(TcpStream::connect(address).await?);
    let said = format!("{tier} my dear sister\n");
    socket.write_all(said.as_bytes()).await?;
    let mut line = String::new();
    socket.read_line(&mut line).await?;
    Ok(line)
}

fn table(services: &[Tiers]) -> Table {
    tiers_table(
        ["server of lines", "refused", "most in the engine"],
        services,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All at once, and everybody waits: what is tested does not depend on how fast the machine is.
    const CROWD: Load = Load {
        lines: 60,
        gap: Duration::ZERO,
        patience: Duration::from_secs(300),
    };

    /// A server, and what it stands on.
    async fn connected() -> (AsyncDispatcher, Engine, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (front, engine) = (AsyncDispatcher::spawn(tiers()), Engine::new());
        let server = server::serve(listener, front.clone(), engine.clone());
        tokio::spawn(server);
        (front, engine, address)
    }

    async fn drained(front: &AsyncDispatcher, engine: &Engine) {
        front.drain();
        front.drained().await;
        let stats = front.stats();
        assert_eq!((stats.waiting, stats.running, stats.aborting), (0, 0, 0));
        assert!(engine.inside.is_empty());
    }

    #[tokio::test]
    async fn permits_keep_the_queue_where_policies_decide() {
        let [control, treated] = run(CROWD).await.unwrap();
        assert!(control.most_inside > SLOTS, "{}", control.most_inside);
        assert_eq!(control.refused, 0);
        assert!(treated.most_inside <= SLOTS, "{}", treated.most_inside);
        // Of 40 free lines 12 may wait; nobody is without an answer.
        assert!(treated.refused > 0);
        assert_eq!(treated.paid.answered.len(), 20);
        let answered = treated.paid.answered.len() + treated.free.answered.len();
        assert_eq!(answered + treated.refused, 60);
    }

    #[tokio::test]
    async fn lines_of_one_connection_are_answered_in_their_order() {
        let (front, engine, address) = connected().await;
        let mut socket = BufReader::new(TcpStream::connect(address).await.unwrap());
        let sent = (0..40).map(|n| format!("paid line {n}\n"));
        let sent = sent.collect::<String>();
        socket.write_all(sent.as_bytes()).await.unwrap();
        for n in 0..40 {
            let mut line = String::new();
            socket.read_line(&mut line).await.unwrap();
            assert_eq!(line, format!("ok LINE {n}\n"));
        }
        drop(socket);
        drained(&front, &engine).await;
    }

    #[tokio::test]
    async fn what_is_refused_has_a_code_and_a_reason() {
        let (front, _engine, address) = connected().await;
        front.drain();
        let said = exchange(address, "paid").await.unwrap();
        assert!(said.starts_with("no shutting_down"), "{said}");
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_gives_its_place_to_others() {
        let (front, engine, address) = connected().await;
        // Nothing is answered before all have gone.
        let slots = engine
            .slots
            .clone()
            .acquire_many_owned(SLOTS)
            .await
            .unwrap();
        let mut sockets = Vec::new();
        for _ in 0..12 {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(b"paid a\npaid b\n").await.unwrap();
            sockets.push(socket);
        }
        while front.stats().counters.arrived < 12 {
            tokio::task::yield_now().await;
        }
        drop(sockets);
        drained(&front, &engine).await;
        assert_eq!(front.stats().counters.cancelled, 12);
        drop(slots);
    }
}
