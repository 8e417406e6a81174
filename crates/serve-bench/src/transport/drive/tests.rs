//! The schedule, the retries and the ends of attempts, in virtual time: every number is exact.

use std::sync::Mutex as StdMutex;

use proptest::prelude::*;

use super::testing::{TALK, any_workload, balance, rows_until, workload};
use super::*;

/// What a server in virtual time does with one attempt.
#[derive(Clone, Debug)]
enum Act {
    /// Answers with chunks at these ms after the send, one token each.
    Answer(Vec<u64>),
    /// Refuses after so many ms, and says when to come back.
    Refuse(u64, Option<u64>),
    /// Breaks after so many ms, with so many chunks sent.
    Break(u64, usize),
}

/// Does with the n-th attempt what the n-th act says, and with all others what the last one says.
#[derive(Clone)]
struct Scripted {
    acts: Arc<Vec<Act>>,
    seen: Arc<StdMutex<Vec<Seen>>>,
}

/// What a server saw of an attempt.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    request: u64,
    answers_before: Vec<String>,
    time_left_ms: Option<u128>,
}

impl Scripted {
    fn new(acts: &[Act]) -> Self {
        Self {
            acts: Arc::new(acts.to_vec()),
            seen: Arc::default(),
        }
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

impl Transport for Scripted {
    const SOURCE: Source = Source::Http;

    async fn send(&self, call: &Call<'_>, attempt: &mut Attempt) -> Result<(), AttemptError> {
        let act = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(Seen {
                request: call.planned.index,
                answers_before: call
                    .history
                    .iter()
                    .map(|(_, answer)| answer.to_string())
                    .collect(),
                time_left_ms: call.time_left.map(|left| left.as_millis()),
            });
            self.acts[(seen.len() - 1).min(self.acts.len() - 1)].clone()
        };
        match act {
            Act::Answer(chunks) => {
                let start = Instant::now();
                for at in chunks {
                    sleep_until(start + Duration::from_millis(at)).await;
                    attempt.text(attempt.now(), None, "word ")?;
                }
                Ok(())
            }
            Act::Refuse(after, retry_after) => {
                pause(after).await;
                attempt.headers(503, None);
                Err(AttemptError::Refused {
                    code: "overloaded".to_owned(),
                    message: "busy".to_owned(),
                    retry_after: retry_after.map(Duration::from_millis),
                })
            }
            Act::Break(after, chunks) => {
                pause(after).await;
                for _ in 0..chunks {
                    attempt.text(attempt.now(), None, "word ")?;
                }
                Err(AttemptError::failed("cut_short", "reset"))
            }
        }
    }
}

/// A server in virtual time that freezes for a while.
#[derive(Clone)]
struct Frozen {
    start: Instant,
    from: Duration,
    until: Duration,
}

impl Transport for Frozen {
    const SOURCE: Source = Source::Http;

    async fn send(&self, _: &Call<'_>, attempt: &mut Attempt) -> Result<(), AttemptError> {
        let now = self.start.elapsed();
        if (self.from..self.until).contains(&now) {
            sleep_until(self.start + self.until).await;
        }
        attempt.headers(200, None);
        pause(1).await;
        attempt.text(attempt.now(), None, "")
    }
}

async fn rows<T: Transport>(workload: &Workload, transport: T) -> Vec<Record> {
    let (_keep, stop) = watch::channel(false);
    rows_until(workload, transport, stop).await
}

const EACH_SECOND: &str = "[arrivals.constant]\nrate_per_s = 1\n";

fn each_second(requests: u64, rest: &str) -> Workload {
    workload(&format!("requests = {requests}\n{EACH_SECOND}{rest}"))
}

fn frozen(from_ms: u64, until_ms: u64) -> Frozen {
    Frozen {
        start: Instant::now(),
        from: Duration::from_millis(from_ms),
        until: Duration::from_millis(until_ms),
    }
}

fn ms(nanos: Option<u64>) -> Option<u64> {
    nanos.map(|nanos| nanos / 1_000_000)
}

#[tokio::test(start_paused = true)]
async fn a_stall_of_four_seconds_makes_four_late_requests_not_one() {
    let rows = rows(&each_second(10, ""), frozen(2_500, 6_500)).await;
    let latency_ms = rows
        .iter()
        .map(|row| (row.end_ns.unwrap() - row.scheduled_ns) / 1_000_000);
    let expected = [1, 1, 1, 3_501, 2_501, 1_501, 501, 1, 1, 1];
    assert_eq!(latency_ms.collect::<Vec<_>>(), expected);
    assert!(rows.iter().all(|row| row.sent_ns == Some(row.scheduled_ns)));
}

#[tokio::test(start_paused = true)]
async fn a_closed_loop_keeps_its_clients_busy_and_no_more() {
    let closed = workload("requests = 9\n[arrivals.closed]\nclients = 3\n");
    let rows = rows(&closed, frozen(0, 1_000)).await;
    let sent_ms = rows.iter().map(|row| ms(row.sent_ns).unwrap());
    let expected = [0, 0, 0, 1_001, 1_001, 1_001, 1_002, 1_002, 1_002];
    assert_eq!(sent_ms.collect::<Vec<_>>(), expected);
    assert!(
        rows.iter()
            .all(|row| row.outcome == Outcome::Ok && row.client.is_some())
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_before_the_run_begins() {
    let (_keep, stop) = watch::channel(false);
    for arrivals in ["closed]\nclients = 2\n", "constant]\nrate_per_s = 1\n"] {
        let workload = workload(&format!("requests = 2\n[arrivals.{arrivals}"));
        let driving = Driving {
            origin: Instant::now() + Duration::from_millis(50),
            patience: Duration::from_secs(60),
            timer: Timer::Runtime,
            stop: stop.clone(),
        };
        let mut rows = Vec::new();
        let transport = Scripted::new(&[Act::Answer(vec![30])]);
        drive(&workload, transport, driving, |row| rows.push(row)).await;
        let first = rows
            .iter()
            .map(|row| row.first_token_ns().unwrap() - row.sent_ns.unwrap());
        assert!(
            first.clone().all(|ns| ns == 30_000_000),
            "{:?}",
            first.collect::<Vec<_>>()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_thinks_between_its_requests() {
    let text = "requests = 3\n[arrivals.closed]\nclients = 1\nthink_ms = { fixed = 400 }\n";
    let rows = rows(&workload(text), Scripted::new(&[Act::Answer(vec![100])])).await;
    let sent = rows
        .iter()
        .map(|row| ms(row.sent_ns).unwrap())
        .collect::<Vec<_>>();
    assert_eq!(sent, [0, 500, 1_000]);
    assert!(rows.iter().all(|row| row.sent_ns == Some(row.scheduled_ns)));
}

#[tokio::test(start_paused = true)]
async fn a_stop_leaves_a_row_for_every_request() {
    let (sender, stop) = watch::channel(false);
    tokio::spawn(async move {
        pause(3_500).await;
        sender.send(true).unwrap();
        std::future::pending::<()>().await;
    });
    let rows = rows_until(&each_second(6, ""), frozen(1_500, 100_000), stop).await;
    use Outcome::{Cancelled, NotSent, Ok};
    let outcomes = rows.iter().map(|row| row.outcome).collect::<Vec<_>>();
    assert_eq!(outcomes, [Ok, Ok, Cancelled, Cancelled, NotSent, NotSent]);
    assert_eq!(ms(rows[3].end_ns), Some(3_500));
    assert_eq!(
        (rows[5].sent_ns, rows[5].scheduled_ns),
        (None, 5_000_000_000)
    );
    assert!(
        rows[2..]
            .iter()
            .all(|row| row.cause.as_deref() == Some("stopped"))
    );
}

#[tokio::test(start_paused = true)]
async fn patience_ends() {
    let rows = rows(&each_second(1, ""), frozen(0, 1_000_000)).await;
    assert_eq!(
        (rows[0].outcome, rows[0].cause.as_deref()),
        (Outcome::Failed, Some("timeout"))
    );
    assert_eq!(
        rows[0].error.as_deref(),
        Some("no end of the answer within 60s")
    );
    assert_eq!(ms(rows[0].end_ns), Some(60_000));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_scheduled_send_and_the_server_is_told_what_is_left() {
    let class = "[[classes]]\nname = \"fast\"\ndeadline_ms = 250\n";
    let server = Scripted::new(&[Act::Answer(vec![249]), Act::Answer(vec![10, 251])]);
    let rows = rows(&each_second(2, class), server.clone()).await;
    assert_eq!(
        (rows[0].outcome, rows[0].deadline_ns),
        (Outcome::Ok, Some(250_000_000))
    );
    assert_eq!(
        (rows[1].outcome, rows[1].cause.as_deref()),
        (Outcome::Failed, Some("deadline"))
    );
    assert_eq!((ms(rows[1].end_ns), rows[1].chunks.len()), (Some(1_250), 1));
    assert!(rows.iter().all(|row| row.class.as_deref() == Some("fast")));
    let seen = server.seen.lock().unwrap();
    assert!(
        seen.iter().all(|seen| seen.time_left_ms == Some(250)),
        "{seen:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_hangs_up_after_a_time_or_after_some_tokens() {
    let class = |after: &str| {
        format!("[[classes]]\nname = \"c\"\ncancel = {{ probability = 1, {after} }}\n")
    };
    let server = || Scripted::new(&[Act::Answer(vec![100, 200, 300, 400])]);
    let by_time = rows(
        &each_second(1, &class("after_ms = { fixed = 250 }")),
        server(),
    )
    .await
    .remove(0);
    assert_eq!(
        (by_time.outcome, by_time.cause.as_deref()),
        (Outcome::Cancelled, Some("planned"))
    );
    assert_eq!((ms(by_time.end_ns), by_time.chunks.len()), (Some(250), 2));
    let by_tokens = rows(
        &each_second(1, &class("after_tokens = { fixed = 3 }")),
        server(),
    )
    .await
    .remove(0);
    assert_eq!(
        (by_tokens.outcome, by_tokens.cause.as_deref()),
        (Outcome::Cancelled, Some("planned"))
    );
    assert_eq!(
        (ms(by_tokens.end_ns), by_tokens.chunks.len()),
        (Some(300), 3)
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_attempt_is_made_again_after_its_hint_and_a_part_of_the_backoff() {
    let retry = "[retry]\nattempts_max = 3\nbackoff_ms = 100\nreserve = 10\n";
    let acts = [
        Act::Refuse(5, Some(2_000)),
        Act::Refuse(5, None),
        Act::Answer(vec![50]),
    ];
    let rows = rows(&each_second(1, retry), Scripted::new(&acts)).await;
    let outcomes = rows
        .iter()
        .map(|row| (row.attempt, row.outcome, row.retried))
        .collect::<Vec<_>>();
    use Outcome::{Ok, Refused};
    assert_eq!(
        outcomes,
        [(0, Refused, true), (1, Refused, true), (2, Ok, false)]
    );
    assert_eq!(rows[0].cause.as_deref(), Some("overloaded"));
    assert_eq!(
        (rows[0].status, rows[0].retry_after_ms),
        (Some(503), Some(2_000))
    );
    let waits = rows
        .windows(2)
        .map(|pair| pair[1].scheduled_ns - pair[0].end_ns.unwrap());
    let waits = waits.collect::<Vec<_>>();
    // Up to 100 ms beyond the hint, and then up to 200 ms without one.
    assert!(
        (2_000_000_000..=2_100_000_000).contains(&waits[0]),
        "{waits:?}"
    );
    assert!(
        waits[0] > 2_000_000_000,
        "those who are told the same do not come together"
    );
    assert!(waits[1] <= 200_000_000, "{waits:?}");
    assert!(
        rows[1..]
            .iter()
            .all(|row| row.sent_ns.unwrap() - row.scheduled_ns < 1_000_000)
    );
}

#[tokio::test(start_paused = true)]
async fn what_cannot_go_better_is_not_tried_again() {
    let retry = "[retry]\nattempts_max = 5\nreserve = 100\n";
    // Text came: again would be twice. A success. Out of attempts. Out of budget.
    let broken = rows(&each_second(1, retry), Scripted::new(&[Act::Break(5, 1)])).await;
    assert_eq!(broken.len(), 1);
    let connect = rows(&each_second(1, retry), Scripted::new(&[Act::Break(5, 0)])).await;
    assert_eq!(connect.len(), 5);
    assert!(connect[..4].iter().all(|row| row.retried) && !connect[4].retried);
    let poor = "[retry]\nattempts_max = 5\nreserve = 2\nretries_percent = 0\n";
    let poor = rows(
        &each_second(3, poor),
        Scripted::new(&[Act::Refuse(5, None)]),
    )
    .await;
    assert_eq!(poor.iter().filter(|row| row.retried).count(), 2);
    let never = rows(&each_second(1, ""), Scripted::new(&[Act::Refuse(5, None)])).await;
    assert_eq!(never.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_later_turn_waits_for_the_answer_and_carries_it() {
    let server = Scripted::new(&[Act::Answer(vec![100, 200])]);
    let rows = rows(&each_second(3, TALK), server.clone()).await;
    let sent = rows
        .iter()
        .map(|row| ms(row.sent_ns).unwrap())
        .collect::<Vec<_>>();
    assert_eq!(sent, [0, 900, 1_800]);
    assert!(
        rows.iter()
            .zip(0..)
            .all(|(row, turn)| row.session == Some(0) && row.turn == Some(turn))
    );
    let seen = server.seen.lock().unwrap();
    let before = seen
        .iter()
        .map(|seen| seen.answers_before.len())
        .collect::<Vec<_>>();
    assert_eq!(before, [0, 1, 2]);
    assert_eq!(seen[2].answers_before, ["word word ", "word word "]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_without_an_answer_ends_the_conversation_with_rows_for_the_rest() {
    let acts = [Act::Answer(vec![10]), Act::Break(5, 0)];
    let rows = rows(&each_second(3, TALK), Scripted::new(&acts)).await;
    let ends = rows
        .iter()
        .map(|row| (row.outcome, row.cause.as_deref()))
        .collect::<Vec<_>>();
    use Outcome::{Failed, NotSent, Ok};
    assert_eq!(
        ends,
        [
            (Ok, None),
            (Failed, Some("cut_short")),
            (NotSent, Some("earlier_turn"))
        ]
    );
    assert!(rows[2].scheduled_ns >= rows[1].end_ns.unwrap());
}

#[tokio::test(start_paused = true)]
async fn scripted_answers_are_carried_whatever_the_server_says() {
    let talk = format!("{EACH_SECOND}{TALK}[request]\nhistory = \"scripted\"\n");
    let server = Scripted::new(&[Act::Answer(vec![10])]);
    let workload = workload(&format!("requests = 2\n{talk}"));
    rows(&workload, server.clone()).await;
    let planned = workload.plan().next().unwrap().turns[0]
        .scripted_answer
        .clone()
        .unwrap();
    assert_eq!(
        server.seen.lock().unwrap()[1].answers_before,
        [planned.to_string()]
    );
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        proptest::collection::vec(0..3_000_u64, 0..4).prop_map(|mut chunks| {
            chunks.sort_unstable();
            Act::Answer(chunks)
        }),
        (0..500_u64, proptest::option::of(0..3_000_u64))
            .prop_map(|(after, hint)| Act::Refuse(after, hint)),
        (0..2_000_u64, 0..3_usize).prop_map(|(after, chunks)| Act::Break(after, chunks)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever the server does and whenever the run is stopped: every request has its attempts, in
    /// order, each with one end, and the books balance.
    #[test]
    fn every_attempt_is_accounted_for(
        text in any_workload(),
        acts in proptest::collection::vec(act(), 1..12),
        stop_after_ms in proptest::option::of(0..12_000_u64),
    ) {
        let workload = workload(&text);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let rows = runtime.block_on(async {
            let (sender, stop) = watch::channel(false);
            tokio::spawn(async move {
                if let Some(ms) = stop_after_ms {
                    pause(ms).await;
                    sender.send(true).unwrap();
                }
                std::future::pending::<()>().await;
            });
            rows_until(&workload, Scripted::new(&acts), stop).await
        });
        balance(&rows, workload.requests())?;
    }
}
