//! Where the time goes for one request: the stages of the median request, of a slow one and of the
//! slowest in a hundred, one below the other.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{DrawError, FONT, FONT_SIZE, Figure, Hue, Legend, Mark, draw, mesh_of_x};
use super::ticks::Axis;
use crate::analysis::request::Request;
use crate::analysis::table::{Table, number};

const QUANTILES: [(f64, &str); 3] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")];
/// It stands alone in its row of the page.
const WIDTH: u32 = 1_130;
const ROW: u32 = 52;
const BELOW: u32 = 52;
/// More chunks than this are not drawn one by one.
const CHUNKS_MAX: usize = 150;

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Earlier attempts, and the waits between.
    Retries,
    /// The client was late.
    SendLag,
    /// Opening a connection.
    Connect,
    /// Waiting at the server.
    Queue,
    /// Running the prompt.
    Prefill,
    /// The rest of the time to the first chunk.
    Other,
    /// First chunk to last.
    Stream,
    /// Last chunk to end.
    Close,
}

impl Stage {
    const ALL: [(Self, &'static str, Hue); 8] = [
        (Self::Retries, "earlier attempts", Hue::Red),
        (Self::SendLag, "send lag", Hue::Gold),
        (Self::Connect, "connect", Hue::Teal),
        (Self::Queue, "queue (server)", Hue::Orange),
        (Self::Prefill, "prefill (server)", Hue::Purple),
        (
            Self::Other,
            "to first chunk, not explained by the server",
            Hue::Faint,
        ),
        (Self::Stream, "first chunk to last", Hue::Blue),
        (Self::Close, "last chunk to end", Hue::Green),
    ];
}

/// The stages of an answered request, in order and in milliseconds, which add up to its E2E; stages
/// that took no time are left out. The server's own durations are taken from the time between send and
/// first chunk, as far as that reaches: two clocks are never subtracted from each other.
pub(crate) fn stages(request: &Request<'_>) -> Vec<(Stage, f64)> {
    let Some(answer) = request.answer() else {
        return Vec::new();
    };
    let (Some(sent), Some(end)) = (answer.sent_ns, answer.end_ns) else {
        return Vec::new();
    };
    let first = answer.first_token_ns().unwrap_or(end);
    let last = answer.last_token_ns().unwrap_or(end);
    let connected = answer
        .connected_ns
        .unwrap_or(sent)
        .clamp(sent, first.max(sent));
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let timings = answer.timings.unwrap_or_default();
    let mut unexplained = ms(connected, first);
    let mut take = |said: Option<f64>| {
        let taken = said.unwrap_or(0.0).clamp(0.0, unexplained);
        unexplained -= taken;
        taken
    };
    let (queue, prefill) = (take(timings.queue_ms), take(timings.prefill_ms));
    let stages = [
        (
            Stage::Retries,
            ms(request.scheduled_ns(), answer.scheduled_ns),
        ),
        (Stage::SendLag, ms(answer.scheduled_ns, sent)),
        (Stage::Connect, ms(sent, connected)),
        (Stage::Queue, queue),
        (Stage::Prefill, prefill),
        (Stage::Other, unexplained),
        (Stage::Stream, ms(first, last)),
        (Stage::Close, ms(last, end)),
    ];
    stages.into_iter().filter(|stage| stage.1 > 0.0).collect()
}

/// The answered requests that stand at the percentiles of E2E.
fn chosen<'r, 'a>(requests: &'r [Request<'a>]) -> Vec<(&'static str, &'r Request<'a>)> {
    let mut answered = requests
        .iter()
        .filter(|it| it.e2e_ns().is_some())
        .collect::<Vec<_>>();
    answered.sort_by_key(|request| (request.e2e_ns(), request.index()));
    let count = answered.len();
    let at = |quantile: f64| ((quantile * count as f64 - 1e-9).ceil() as usize).clamp(1, count) - 1;
    match count {
        0 => Vec::new(),
        _ => QUANTILES
            .map(|(quantile, name)| (name, answered[at(quantile)]))
            .into(),
    }
}

/// Draws them; `None` when nothing was answered.
///
/// # Errors
///
/// What the drawing library says.
pub(crate) fn figure(requests: &[Request<'_>]) -> Result<Option<Figure>, DrawError> {
    let bars = chosen(requests);
    if bars.is_empty() {
        return Ok(None);
    }
    let longest = bars.iter().filter_map(|(_, request)| request.e2e_ns());
    let x = Axis::linear(
        "time since it was due (ms)",
        longest.map(|ns| ns as f64 / 1e6),
    );
    let rows = Axis {
        label: String::new(),
        is_log: false,
        min: 0.0,
        max: bars.len() as f64,
    };
    let svg = draw((WIDTH, ROW * bars.len() as u32 + BELOW), |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(4)
            .margin_right(18)
            .x_label_area_size(46)
            .y_label_area_size(62)
            .build_cartesian_2d(x.clone(), rows.clone())?;
        mesh_of_x(&mut chart, &x)?;
        for (place, (name, request)) in bars.iter().enumerate() {
            let middle = rows.max - place as f64 - 0.5;
            let label = (FONT, FONT_SIZE).into_font().color(&Hue::Ink.stand_in());
            let label = label.pos(Pos::new(HPos::Right, VPos::Center));
            let at = chart.backend_coord(&(0.0, middle));
            root.draw(&Text::new(*name, (at.0 - 10, at.1), label))?;
            let mut from = 0.0;
            for (stage, ms) in stages(request) {
                let found = Stage::ALL.iter().find(|it| it.0 == stage);
                let color = found.map_or(Hue::Faint, |it| it.2).stand_in();
                let corners = [(from, middle - 0.3), (from + ms, middle + 0.3)];
                chart.draw_series([Rectangle::new(corners, color.filled())])?;
                from += ms;
            }
            let chunks = chunks_ms(request);
            let ticks = chunks.iter().map(|&at| {
                let ends = vec![(at, middle - 0.3), (at, middle - 0.12)];
                PathElement::new(ends, Hue::Ground.stand_in().stroke_width(1))
            });
            chart.draw_series(ticks)?;
        }
        Ok(())
    })?;
    let seen = bars.iter().flat_map(|(_, request)| stages(request));
    let seen = seen.map(|stage| stage.0).collect::<Vec<_>>();
    let legend = Stage::ALL.iter().filter(|it| seen.contains(&it.0));
    let legend = legend.map(|(_, name, hue)| Legend {
        name: (*name).to_owned(),
        color: hue.variable(),
        mark: Mark::Line,
    });
    let note = "the requests that stand at these percentiles of E2E; small notches are chunks. Queue and \
        prefill are durations that the server reported; they are drawn first in the time to the first \
        chunk, and the rest after them";
    Ok(Some(Figure {
        title: "Where the time goes for one request".to_owned(),
        note: note.to_owned(),
        legend: legend.collect(),
        svg,
    }))
}

fn chunks_ms(request: &Request<'_>) -> Vec<f64> {
    let chunks = request.answer().map_or(&[][..], |answer| &answer.chunks);
    if chunks.len() > CHUNKS_MAX {
        return Vec::new();
    }
    let since = |at: u64| at.saturating_sub(request.scheduled_ns()) as f64 / 1e6;
    chunks.iter().map(|chunk| since(chunk.at_ns)).collect()
}

/// The same in numbers; `None` when nothing was answered.
pub(crate) fn table(requests: &[Request<'_>]) -> Option<Table> {
    let bars = chosen(requests);
    if bars.is_empty() {
        return None;
    }
    let mut columns = vec!["stage (ms)"];
    columns.extend(bars.iter().map(|(name, _)| *name));
    let mut table = Table::new("", &columns);
    for (stage, name, _) in Stage::ALL {
        let of = |request: &Request<'_>| {
            let found = stages(request).into_iter().find(|it| it.0 == stage);
            found.map(|it| it.1)
        };
        let cells = bars
            .iter()
            .map(|(_, request)| of(request))
            .collect::<Vec<_>>();
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().map(number);
            table.row([name.to_owned()].into_iter().chain(cells));
        }
    }
    let total = bars
        .iter()
        .map(|(_, request)| number(request.e2e_ns().map(|ns| ns as f64 / 1e6)));
    table.row(["E2E".to_owned()].into_iter().chain(total));
    let which = bars.iter().map(|(_, request)| request.index().to_string());
    table.row(["request".to_owned()].into_iter().chain(which));
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{MS, answer, numbered, refused};
    use crate::store::record::{Record, Timings};

    #[test]
    fn stages_add_up_to_what_the_user_waited() {
        // Refused at 0, tried again at 40, sent at 41, connected at 43, chunks at 100 and 160, ended
        // at 162. The server says 20 ms of queue and 30 of prefill.
        let mut again = answer(40, &[100, 160], Some(5));
        again.attempt = 1;
        again.connected_ns = Some(43 * MS);
        again.timings = Some(Timings {
            queue_ms: Some(20.0),
            prefill_ms: Some(30.0),
            ..Timings::default()
        });
        let rows = [refused(0), again];
        let found = stages(&Request::all(&rows, 0)[0]);
        let expected = [
            (Stage::Retries, 40.0),
            (Stage::SendLag, 1.0),
            (Stage::Connect, 2.0),
            (Stage::Queue, 20.0),
            (Stage::Prefill, 30.0),
            (Stage::Other, 7.0),
            (Stage::Stream, 60.0),
            (Stage::Close, 2.0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_server_that_claims_more_than_there_was_is_cut_short() {
        let row = Record {
            timings: Some(Timings {
                queue_ms: Some(5.0),
                prefill_ms: Some(1_000.0),
                ..Timings::default()
            }),
            ..answer(0, &[30], Some(1))
        };
        let rows = [row];
        let requests = Request::all(&rows, 0);
        let found = stages(&requests[0]);
        assert_eq!(found[2], (Stage::Prefill, 24.0));
        let sum = found.iter().map(|stage| stage.1).sum::<f64>();
        assert!((sum - 32.0).abs() < 1e-9);
        assert!(stages(&Request::all(&[refused(0)], 0)[0]).is_empty());
    }

    #[test]
    fn the_requests_shown_are_those_at_the_percentiles() {
        let rows = numbered((0..100).map(|i| answer(0, &[100 - i], Some(1))));
        let requests = Request::all(&rows, 0);
        let shown = chosen(&requests);
        let shown = shown.iter().map(|(name, request)| (*name, request.index()));
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [("p50", 50), ("p90", 10), ("p99", 1)]
        );
        let figure = figure(&requests).unwrap().unwrap();
        assert!(figure.svg.contains("\np99\n"), "{}", figure.svg);
        assert!(table(&requests).unwrap().text().contains("E2E"));
        assert!(super::figure(&[]).unwrap().is_none());
    }
}
