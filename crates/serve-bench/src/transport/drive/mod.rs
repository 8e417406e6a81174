//! Keeps the schedule, whatever the server does.
//!
//! In an open loop a request is sent when it is due, however many are still under way: a client that
//! waits for a slow server hides its slowness (coordinated omission). The schedule is absolute, so a
//! late request does not delay the next. A closed loop keeps a fixed number under way, which is what
//! so many patient users do. It knows neither HTTP nor files.

mod attempt;
mod retries;
pub(crate) mod row;
mod timer;

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use serve_core::Span;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, sleep_until};

pub(crate) use attempt::note_end;
pub(crate) use attempt::{Attempt, AttemptError, Said};
pub(crate) use timer::Timer;

use crate::store::manifest::Source;
use crate::store::record::{Outcome, Record};
use crate::workload::{Conversation, HangUp, Planned, Prompt, Workload};
pub(crate) use retries::Retries;

/// Sends one request and reads its answer to the end.
pub(crate) trait Transport: Clone + Send + Sync + 'static {
    /// What its rows say of where they come from.
    const SOURCE: Source;

    /// Makes the attempt and notes on `attempt` what happens when it happens. When the future is
    /// dropped, the request is cancelled.
    fn send(
        &self,
        call: &Call<'_>,
        attempt: &mut Attempt,
    ) -> impl Future<Output = Result<(), AttemptError>> + Send;
}

/// What is asked in one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// The request.
    pub planned: &'a Planned,
    /// The conversation that it belongs to.
    pub conversation: &'a Conversation,
    /// What was said before, and answered.
    pub history: &'a [(Prompt, Arc<str>)],
    /// How much is left of its deadline.
    pub time_left: Option<Duration>,
}

/// How a workload is sent.
#[derive(Clone, Debug)]
pub(crate) struct Driving {
    /// The start of the run's clock.
    pub origin: Instant,
    /// How long an answer may take.
    pub patience: Duration,
    /// What wakes the open loop.
    pub timer: Timer,
    /// Turns true when nothing more is to be sent; what is under way is cancelled then.
    pub stop: watch::Receiver<bool>,
}

/// Sends a whole workload and hands over each row as its attempt ends, in that order; the requests
/// that a stop keeps from being sent come last.
pub(crate) async fn drive<T: Transport>(
    workload: &Workload,
    transport: T,
    driving: Driving,
    mut on_record: impl FnMut(Record),
) {
    let (rows, mut receiver) = mpsc::unbounded_channel();
    let run = Run {
        transport,
        retries: Arc::new(Retries::new(workload.spec())),
        workload: Arc::new(workload.clone()),
        timer: driving.timer,
        patience: driving.patience,
        origin: driving.origin,
        stop: driving.stop,
        rows,
    };
    match (workload.spec().arrivals.clients(), run.timer) {
        (Some(clients), _) => {
            let plan = Arc::new(Mutex::new(workload.plan()));
            for client in 0..clients.get() {
                tokio::spawn(run.clone().client(client, Arc::clone(&plan)));
            }
        }
        (None, Timer::Runtime) => {
            tokio::spawn(run.clone().open_loop(workload.plan()));
        }
        (None, Timer::Thread) => {
            let (run, plan, handle) = (run.clone(), prepared(workload), Handle::current());
            std::thread::spawn(move || handle.block_on(run.open_loop(plan)));
        }
    }
    drop(run); // the channel closes when the last attempt has ended
    while let Some(record) = receiver.recv().await {
        on_record(record);
    }
}

/// A plan that is drawn ahead of its time, so that a long prompt does not make its request late.
fn prepared(workload: &Workload) -> impl Iterator<Item = Conversation> + Send + use<> {
    let plan = workload.plan();
    let (sender, receiver) = sync_channel(256);
    std::thread::spawn(move || {
        for conversation in plan {
            if sender.send(conversation).is_err() {
                return;
            }
        }
    });
    receiver.into_iter()
}

/// What every attempt of a run needs.
#[derive(Clone)]
struct Run<T> {
    transport: T,
    workload: Arc<Workload>,
    retries: Arc<Retries>,
    timer: Timer,
    patience: Duration,
    origin: Instant,
    stop: watch::Receiver<bool>,
    rows: mpsc::UnboundedSender<Record>,
}

/// What ends an attempt that nothing else has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Patience,
    Deadline,
    HangUp,
}

impl<T: Transport> Run<T> {
    async fn open_loop(self, plan: impl Iterator<Item = Conversation> + Send) {
        let mut stop = self.stop.clone();
        for conversation in plan {
            let due = conversation.due.unwrap_or(Span::ZERO);
            let stopped = self.timer.wait(self.origin + due.into(), &mut stop).await;
            if stopped {
                self.not_sent(&conversation, 0, None, due.as_nanos(), "stopped");
            } else {
                tokio::spawn(self.clone().converse(conversation, None, due.as_nanos()));
            }
        }
    }

    async fn client(
        self,
        client: u32,
        plan: Arc<Mutex<impl Iterator<Item = Conversation> + Send>>,
    ) {
        let mut is_first = true;
        loop {
            let Some(conversation) = plan.lock().await.next() else {
                return;
            };
            let think_ns = conversation.turns.first().map_or(0, |turn| turn.think_ns);
            let think_ns = if is_first { 0 } else { think_ns };
            is_first = false;
            let due = self.now() + think_ns;
            if self.sleep_until(due).await {
                self.not_sent(&conversation, 0, Some(client), due, "stopped");
            } else {
                self.clone().converse(conversation, Some(client), due).await;
            }
        }
    }

    /// All turns of a conversation, one after another.
    async fn converse(self, conversation: Conversation, client: Option<u32>, due: u64) {
        let mut history = Vec::new();
        let mut due = due;
        for (turn, planned) in conversation.turns.iter().enumerate() {
            if turn > 0 {
                due = self.now() + planned.think_ns;
                if self.sleep_until(due).await {
                    return self.not_sent(&conversation, turn, client, due, "stopped");
                }
            }
            let call = Call {
                planned,
                conversation: &conversation,
                history: &history,
                time_left: None,
            };
            let row = self.row(&conversation, turn, client, due);
            let Some(text) = self.request(call, row).await else {
                return self.not_sent(&conversation, turn + 1, client, self.now(), "earlier_turn");
            };
            let answer = planned
                .scripted_answer
                .clone()
                .unwrap_or_else(|| text.into());
            history.push((planned.prompt.clone(), answer));
        }
    }

    /// One request with its retries; the text of its answer, if it got one.
    async fn request(&self, mut call: Call<'_>, mut row: Record) -> Option<String> {
        let deadline_ns = row.deadline_ns.map(|deadline| row.scheduled_ns + deadline);
        self.retries.original(call.conversation);
        loop {
            let left = deadline_ns.map(|deadline| deadline.saturating_sub(self.now()));
            call.time_left = left.map(Duration::from_nanos);
            let (mut ended, text) = self.attempt(&call, row.clone(), deadline_ns).await;
            let again = self
                .retries
                .again(call.conversation, &ended, deadline_ns, self.now());
            ended.retried = again.is_some();
            let well = ended.outcome == Outcome::Ok;
            self.report(ended);
            match again {
                None => return well.then_some(text),
                Some(at) => {
                    row.attempt += 1;
                    row.scheduled_ns = at;
                    if self.sleep_until(at).await {
                        row.cause = Some("stopped".to_owned());
                        self.report(row);
                        return None;
                    }
                }
            }
        }
    }

    /// One attempt, to its end; its row, and the text of the answer.
    async fn attempt(
        &self,
        call: &Call<'_>,
        row: Record,
        deadline_ns: Option<u64>,
    ) -> (Record, String) {
        let keeps_text =
            call.conversation.turns.len() > 1 && call.planned.scripted_answer.is_none();
        let tokens_max = match call.planned.hang_up {
            Some(HangUp::AfterTokens(tokens)) => Some(tokens),
            _ => None,
        };
        let mut attempt = Attempt::new(self.origin, row, keeps_text, tokens_max);
        let (until_ns, limit) = self.limit(call, attempt.sent_ns(), deadline_ns);
        let mut stop = self.stop.clone();
        let until = self.origin + Duration::from_nanos(until_ns);
        let ended = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => Err(AttemptError::Cancelled("stopped")),
            ended = self.transport.send(call, &mut attempt) => ended,
            () = sleep_until(until) => Err(match limit {
                Limit::HangUp => AttemptError::Cancelled("planned"),
                Limit::Deadline => AttemptError::failed("deadline", "the deadline has passed"),
                Limit::Patience => {
                    let patience = Span::from(self.patience);
                    AttemptError::failed("timeout", format!("no end of the answer within {patience}"))
                }
            }),
        };
        attempt.close(ended)
    }

    /// When an attempt that was sent at `sent_ns` is given up, and why.
    fn limit(&self, call: &Call<'_>, sent_ns: u64, deadline_ns: Option<u64>) -> (u64, Limit) {
        let patience = Span::from(self.patience).as_nanos();
        let hang_up = match call.planned.hang_up {
            Some(HangUp::AfterNanos(nanos)) => Some((sent_ns + nanos, Limit::HangUp)),
            _ => None,
        };
        let deadline = deadline_ns.map(|at| (at, Limit::Deadline));
        let limits = [hang_up, deadline].into_iter().flatten();
        let earliest = limits.min_by_key(|(at, _)| *at);
        let patience = (sent_ns.saturating_add(patience), Limit::Patience);
        earliest
            .filter(|limit| limit.0 <= patience.0)
            .unwrap_or(patience)
    }

    /// The row of a request before anything has happened to it.
    fn row(
        &self,
        conversation: &Conversation,
        turn: usize,
        client: Option<u32>,
        due: u64,
    ) -> Record {
        Record {
            source: T::SOURCE,
            ..row::of_turn(self.workload.spec(), conversation, turn, client, due)
        }
    }

    /// Rows for all turns from the given one on.
    fn not_sent(
        &self,
        conversation: &Conversation,
        from: usize,
        client: Option<u32>,
        due: u64,
        why: &str,
    ) {
        for turn in from..conversation.turns.len() {
            let row = self.row(conversation, turn, client, due);
            self.report(Record {
                cause: Some(why.to_owned()),
                ..row
            });
        }
    }

    /// Sleeps; true if the run was stopped meanwhile.
    async fn sleep_until(&self, at_ns: u64) -> bool {
        let mut stop = self.stop.clone();
        // Not by `now()`, which is 0 for as long as the run has not begun.
        let at = self.origin + Duration::from_nanos(at_ns);
        if at <= Instant::now() {
            return *stop.borrow();
        }
        Timer::Runtime.wait(at, &mut stop).await
    }

    fn now(&self) -> u64 {
        attempt::nanos_since(self.origin)
    }

    fn report(&self, record: Record) {
        // Nobody receives only when the caller has dropped the whole run.
        let _ = self.rows.send(record);
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
