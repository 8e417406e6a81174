//! What happened when: rates, how many were in flight, and each request's latency at the time when it
//! was due.

use super::chart::{Chart, Hue, Mark, Series};
use super::ticks::Axis;
use crate::analysis::request::Request;
use crate::store::record::{Outcome, Record};

/// Into how many parts a run's time is cut at most, and at least.
const PARTS: [usize; 2] = [60, 10];
/// So many requests are due in a part on average, unless that takes too many parts or too few.
const REQUESTS_IN_PART: usize = 8;
/// A line or a cloud has at most so many points.
const POINTS_MAX: usize = 1_200;

/// Output tokens a second, as chunks arrived.
pub(crate) fn tokens_per_s(requests: &[Request<'_>]) -> Chart {
    let clock = Clock::of(requests);
    let tokens = requests
        .iter()
        .flat_map(Request::attempts)
        .flat_map(|row| tokens(row));
    let rates = clock.rates(tokens);
    let attempts = requests.iter().flat_map(Request::attempts);
    let uncounted = |row: &&&Record| row.chunk_tokens().is_none() && row.output_tokens.is_none();
    let guessed = match attempts
        .filter(|row| !row.chunks.is_empty())
        .filter(uncounted)
        .count()
    {
        0 => String::new(),
        some => format!(
            "; {some} attempts have no count, and each of their chunks is drawn as one token"
        ),
    };
    Chart {
        title: "Output tokens over time".to_owned(),
        note: format!(
            "by the arrival of their chunks, in parts of {}; where the tokens of a chunk are not known, an answer's tokens are spread evenly over its chunks{guessed}",
            clock.part()
        ),
        x: clock.axis(),
        y: Axis::linear("output tokens/s", rates.iter().map(|point| point.1)),
        series: vec![Series::new("output tokens", Hue::Blue, Mark::Line, rates)],
    }
}

/// Requests a second: due, answered, and gone wrong.
pub(crate) fn requests_per_s(requests: &[Request<'_>]) -> Chart {
    let clock = Clock::of(requests);
    let ends = |wanted: fn(Outcome) -> bool| {
        let ended = requests.iter().map(Request::last);
        let ended = ended.filter(|row| wanted(row.outcome));
        clock.rates(
            ended
                .filter_map(|row| Some((row.end_ns?, 1.0)))
                .collect::<Vec<_>>(),
        )
    };
    let due = clock.rates(requests.iter().map(|it| (it.scheduled_ns(), 1.0)));
    let wrong = ends(|outcome| matches!(outcome, Outcome::Refused | Outcome::Failed));
    let mut series = vec![
        Series::new("due", Hue::Faint, Mark::Dashed, due),
        Series::new(
            "answered",
            Hue::Green,
            Mark::Line,
            ends(|it| it == Outcome::Ok),
        ),
    ];
    if wrong.iter().any(|point| point.1 > 0.0) {
        series.push(Series::new(
            "refused or failed",
            Hue::Red,
            Mark::Line,
            wrong,
        ));
    }
    let values = series
        .iter()
        .flat_map(|it| it.points.iter().map(|point| point.1));
    Chart {
        title: "Requests over time".to_owned(),
        note: format!(
            "in parts of {}, by the time when they were due or ended",
            clock.part()
        ),
        x: clock.axis(),
        y: Axis::linear("requests/s", values.collect::<Vec<_>>()),
        series,
    }
}

/// How many attempts were with the server, as the client saw it.
pub(crate) fn in_flight(requests: &[Request<'_>]) -> Chart {
    let clock = Clock::of(requests);
    let attempts = || requests.iter().flat_map(Request::attempts);
    let stays = attempts().filter_map(|row| Some((row.sent_ns?, row.end_ns?)));
    let mut changes = stays
        .flat_map(|(sent, end)| [(sent, 1), (end, -1)])
        .collect::<Vec<_>>();
    changes.sort_unstable();
    let mut now = 0_i64;
    let mut points = vec![(0.0, 0.0)];
    for (at, change) in changes {
        points.push((clock.seconds(at), now as f64));
        now += change;
        points.push((clock.seconds(at), now as f64));
    }
    let points = thinned(points);
    Chart {
        title: "In flight".to_owned(),
        note: "attempts that were sent and had not ended, as the client saw it".to_owned(),
        x: clock.axis(),
        y: Axis::linear("attempts in flight", points.iter().map(|point| point.1)),
        series: vec![Series::new("in flight", Hue::Blue, Mark::Line, points)],
    }
}

/// Each request's TTFT and E2E at the time when it was due; what got no answer stands on the floor.
pub(crate) fn latencies(requests: &[Request<'_>]) -> Chart {
    let clock = Clock::of(requests);
    let cloud = |time: fn(&Request<'_>) -> Option<u64>| {
        let points = requests.iter().filter_map(|request| {
            let ms = time(request)? as f64 / 1e6;
            Some((clock.seconds(request.scheduled_ns()), ms))
        });
        thinned(points.collect())
    };
    let (ttft, e2e) = (cloud(|it| it.ttft_ns()), cloud(|it| it.e2e_ns()));
    let values = ttft.iter().chain(&e2e).map(|point| point.1);
    let y = Axis::log("time (ms)", values.collect::<Vec<_>>());
    let unanswered = requests.iter().filter(|request| {
        let outcome = request.last().outcome;
        matches!(outcome, Outcome::Refused | Outcome::Failed)
    });
    let floor = unanswered.map(|it| (clock.seconds(it.scheduled_ns()), y.min));
    let floor = thinned(floor.collect());
    let mut series = vec![
        Series::new("E2E", Hue::Orange, Mark::Dots, e2e),
        Series::new("TTFT", Hue::Blue, Mark::Dots, ttft),
    ];
    if !floor.is_empty() {
        series.push(Series::new(
            "refused or failed (on the floor)",
            Hue::Red,
            Mark::Dots,
            floor,
        ));
    }
    Chart {
        title: "Latency of each request".to_owned(),
        note: format!("at the time when it was due; at most {POINTS_MAX} of each are drawn"),
        x: clock.axis(),
        y,
        series,
    }
}

/// The time of a run, from its first scheduled send.
struct Clock {
    start_ns: u64,
    end_ns: u64,
    parts: usize,
}

impl Clock {
    fn of(requests: &[Request<'_>]) -> Self {
        let start = requests.iter().map(Request::scheduled_ns).min();
        let attempts = requests.iter().flat_map(Request::attempts);
        let ends = attempts.map(|row| row.end_ns.unwrap_or(row.scheduled_ns));
        let start_ns = start.unwrap_or(0);
        Self {
            start_ns,
            end_ns: ends.max().unwrap_or(0).max(start_ns + 1),
            parts: (requests.len() / REQUESTS_IN_PART).clamp(PARTS[1], PARTS[0]),
        }
    }

    fn seconds(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }

    fn axis(&self) -> Axis {
        Axis::linear(
            "time since the first was due (s)",
            [self.seconds(self.end_ns)],
        )
    }

    fn part_s(&self) -> f64 {
        self.seconds(self.end_ns) / self.parts as f64
    }

    fn part(&self) -> String {
        format!("{} s", crate::analysis::table::number(Some(self.part_s())))
    }

    /// Events a second in each part, at its middle.
    fn rates(&self, events: impl IntoIterator<Item = (u64, f64)>) -> Vec<(f64, f64)> {
        let mut sums = vec![0.0; self.parts];
        for (at, count) in events {
            let part = (self.seconds(at) / self.part_s()) as usize;
            sums[part.min(self.parts - 1)] += count;
        }
        let middle = |part: usize| (part as f64 + 0.5) * self.part_s();
        let points = sums.iter().enumerate();
        points
            .map(|(part, sum)| (middle(part), sum / self.part_s()))
            .collect()
    }
}

/// When tokens came, and how many.
fn tokens(row: &Record) -> Vec<(u64, f64)> {
    let chunks = row.chunks.len();
    let each = match row.chunk_tokens() {
        Some(tokens) => tokens.into_iter().map(f64::from).collect(),
        None => {
            let known = row.output_tokens.map_or(chunks as f64, f64::from);
            vec![known / chunks as f64; chunks]
        }
    };
    row.chunks
        .iter()
        .map(|chunk| chunk.at_ns)
        .zip(each)
        .collect()
}

/// At most [`POINTS_MAX`] of them, evenly.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let stride = points.len().div_ceil(POINTS_MAX).max(1);
    points.into_iter().step_by(stride).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, numbered, refused};

    fn area(chart: &Chart, series: usize, run_s: f64) -> f64 {
        let sum = chart.series[series].points.iter().map(|point| point.1);
        sum.sum::<f64>() * run_s / PARTS[1] as f64
    }

    #[test]
    fn rates_add_up_to_what_came() {
        let rows = numbered([
            answer(0, &[100, 200, 400], Some(7)),
            answer(300, &[598], Some(1)),
            refused(500),
        ]);
        let requests = Request::all(&rows, 0);
        // The last ends at 600 ms.
        let tokens = tokens_per_s(&requests);
        assert!((area(&tokens, 0, 0.6) - 8.0).abs() < 1e-9);
        let rates = requests_per_s(&requests);
        let names = rates.series.iter().map(|series| series.name.as_str());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["due", "answered", "refused or failed"]
        );
        let areas = [0, 1, 2].map(|series| area(&rates, series, 0.6).round());
        assert_eq!(areas, [3.0, 2.0, 1.0]);
    }

    #[test]
    fn in_flight_rises_when_sent_and_falls_when_ended() {
        let rows = numbered([answer(0, &[8], Some(1)), answer(2, &[4], Some(1))]);
        let chart = in_flight(&Request::all(&rows, 0));
        // Sent at 1 and 3 ms, ended at 6 and 10.
        let high = chart.series[0].points.iter().map(|point| point.1);
        let expected = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 0.0];
        assert_eq!(high.collect::<Vec<_>>(), expected);
        assert_eq!(chart.series[0].points[4].0, 0.003);
    }

    #[test]
    fn what_got_no_answer_is_seen() {
        let rows = numbered([answer(0, &[8], Some(1)), refused(2)]);
        let chart = latencies(&Request::all(&rows, 0));
        assert_eq!(chart.series[2].points, [(0.002, chart.y.min)]);
        assert!(chart.figure().is_ok());
    }
}
