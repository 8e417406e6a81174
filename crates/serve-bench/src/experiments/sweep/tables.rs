//! What a sweep found, as tables.

use super::search::{Found, Judged, Search, Step};
use super::{Line, Results, Searched};
use crate::analysis::definitions::Metric;
use crate::analysis::table::{Table, number, percent};
use crate::workload::slo::Slo;

/// The lines as a table.
pub(crate) fn table(lines: &[Line], slo: &Slo) -> Table {
    let columns = [
        "settings",
        "load",
        "runs",
        "answered",
        "not ok",
        "TTFT p50 ms",
        "TTFT p99 ms",
        "TPOT p50 ms",
        "E2E p50 ms",
        "E2E p99 ms",
        "output tokens/s",
        "goodput/s",
        "good",
        "",
    ];
    let mut table = Table::new("", &columns);
    for line in lines {
        let all = line.analysis.all();
        let ms = |metric, quantile| number(all.percentile_ms(metric, quantile));
        let scheduled = all.requests.scheduled();
        table.row([
            line.settings.to_string(),
            number(line.load),
            line.analysis.runs.to_string(),
            all.requests.ok.to_string(),
            (scheduled - all.requests.ok).to_string(),
            ms(Metric::Ttft, 0.5),
            ms(Metric::Ttft, 0.99),
            ms(Metric::Tpot, 0.5),
            ms(Metric::E2e, 0.5),
            ms(Metric::E2e, 0.99),
            all.output_tokens.per_s(line.analysis.rates.wall_s),
            number(line.analysis.rates.goodput_per_s),
            all.good_cell(),
            line.judged.map_or_else(String::new, |it| it.to_string()),
        ]);
    }
    if slo.is_empty() {
        table.note("no objective: give slo in the workload, or --slo-ttft-ms and the like");
    }
    table
}

/// Of each combination, the highest tested load that passed, and the lowest that did not.
pub(crate) fn last_passing(results: &Results) -> Table {
    let columns = ["settings", "passes", "does not", "", "measurements"];
    let mut table = Table::new("last passing load", &columns);
    let mut combinations = results
        .lines
        .iter()
        .map(|line| &line.settings)
        .collect::<Vec<_>>();
    // Those of a combination follow each other.
    combinations.dedup();
    for settings in combinations {
        let of = results.lines.iter().filter(|it| it.settings == *settings);
        let of = of.collect::<Vec<_>>();
        let search = results.searches.iter().find(|it| it.settings == *settings);
        let found = search.map_or_else(|| of_lines(&of), |search| search.found);
        table.row([
            settings.to_string(),
            number(found.passes),
            number(found.stops_at.map(|(load, _)| load)),
            found
                .stops_at
                .map_or_else(String::new, |(_, why)| why.to_string()),
            of.iter()
                .map(|line| line.folders.len())
                .sum::<usize>()
                .to_string(),
        ]);
    }
    table.note("the highest tested load below all that do not pass, not the exact capacity");
    for searched in &results.searches {
        table.note(end_of(searched, results.whole));
    }
    table
}

/// The same of loads that were given, lowest first.
fn of_lines(lines: &[&Line]) -> Found {
    let mut loads = lines
        .iter()
        .filter_map(|line| Some((line.load?, line.judged?)))
        .collect::<Vec<_>>();
    loads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let stop = loads.iter().position(|(_, it)| *it != Judged::Passes);
    let last = stop.unwrap_or(loads.len()).checked_sub(1);
    Found {
        passes: last.map(|at| loads[at].0),
        stops_at: stop.map(|at| loads[at]),
    }
}

/// Why a search ended where it did.
fn end_of(searched: &Searched, whole: bool) -> String {
    let Searched {
        settings,
        goal,
        found,
        ..
    } = searched;
    let why = match (found.passes, found.stops_at) {
        _ if !whole => "stopped before its end".to_owned(),
        (_, None) => format!(
            "all pass, up to the highest load that may be tried (--search-to {})",
            goal.most_per_s
        ),
        (None, Some(_)) => format!(
            "none passes, down to the lowest load that may be tried (--search-down-to {})",
            goal.least_per_s
        ),
        (Some(_), Some((load, Judged::Void))) => {
            format!("the client could not deliver {load}/s; the server may carry more")
        }
        (Some(passes), Some((load, _))) => {
            format!("known to {:.1}% of it", (load / passes - 1.0) * 100.0)
        }
    };
    format!("{settings}: {why}")
}

/// The way of each search, measurement by measurement.
pub(crate) fn paths(searches: &[Searched]) -> Vec<Table> {
    let one = |searched: &Searched| {
        let columns = [
            "step",
            "load",
            "why",
            "good",
            "of",
            "answers/s",
            "so far it",
        ];
        let title = format!("the search's path: {}", searched.settings);
        let mut table = Table::new(title, &columns);
        for (number_of, step) in (1..).zip(&searched.path) {
            table.row(cells(number_of, step));
        }
        table.note(format!(
            "a load passes when {} of all its requests keep the objective",
            percent(Some(searched.goal.pass_share))
        ));
        table
    };
    searches.iter().map(one).collect()
}

fn cells(number_of: usize, step: &Step) -> [String; 7] {
    let void = if step.measured.void { " VOID" } else { "" };
    [
        number_of.to_string(),
        number(Some(step.load)),
        format!("{}{void}", step.why),
        step.measured.good.to_string(),
        step.measured.requests.to_string(),
        number(Some(step.measured.answers_per_s)),
        step.judged.to_string(),
    ]
}

/// The last step of a search in words, for those who wait.
pub(super) fn sentence(search: &Search) -> String {
    let Some(step) = search.path().last() else {
        return String::new();
    };
    let Step {
        load,
        why,
        measured,
        judged,
        ..
    } = step;
    let found = search.found();
    format!(
        "search     {load}/s ({why}): {} of {} good, {judged}; between {} and {}",
        measured.good,
        measured.requests,
        number(found.passes),
        number(found.stops_at.map(|(load, _)| load)),
    )
}
