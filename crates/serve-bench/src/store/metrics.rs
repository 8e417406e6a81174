//! Reads the Prometheus text that servers show at `GET /metrics`: as much of the format as numbers
//! need. Whatever a server does not show is absent, never zero.

use std::collections::BTreeMap;

/// The series of one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// By name and labels, as they stand in the text.
    series: BTreeMap<String, f64>,
}

impl Scrape {
    /// Reads a text; lines that are no series are skipped.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.filter_map(|line| {
            // Labels may hold spaces; a value, and perhaps a time, come after them.
            let at = line
                .rfind('}')
                .map_or_else(|| line.find(' '), |end| Some(end + 1))?;
            let (name, rest) = line.split_at(at);
            let value = rest.split_whitespace().next()?.parse().ok()?;
            Some((name.trim().to_owned(), value))
        });
        Self {
            series: series.collect(),
        }
    }

    /// The value of a series without labels.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.series.get(name).copied()
    }

    /// The value of the series whose labels hold this one.
    pub fn labelled(&self, name: &str, label: &str, value: &str) -> Option<f64> {
        let wanted = format!("{label}=\"{value}\"");
        self.of(name)
            .find(|(labels, _)| labels.contains(&wanted))
            .map(|(_, value)| value)
    }

    /// The sum over all labels; `None` if there is no series of this name.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.of(name)
            .map(|(_, value)| value)
            .fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// Labels and value of each series of this name.
    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let from = self.series.range(name.to_owned()..);
        let from = from.map_while(move |(key, value)| Some((key.strip_prefix(name)?, *value)));
        from.filter(|(rest, _)| rest.is_empty() || rest.starts_with('{'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_found_by_name_and_label() {
        let scrape = Scrape::parse(
            "# HELP serve_steps_total Steps.\n# TYPE serve_steps_total counter\n\
             serve_steps_total 41\n\
             serve_kv_blocks{state=\"free\"} 10\nserve_kv_blocks{state=\"held\"} 6 1700000000\n\
             serve_kv_blocks_max 99\n\
             serve_step_seconds_bucket{le=\"+Inf\"} 41\nserve_step_seconds_sum 0.5\n\
             odd{text=\"a b\"} 3e2\nbroken\n",
        );
        assert_eq!(scrape.get("serve_steps_total"), Some(41.0));
        assert_eq!(
            scrape.labelled("serve_kv_blocks", "state", "held"),
            Some(6.0)
        );
        assert_eq!(scrape.sum("serve_kv_blocks"), Some(16.0));
        assert_eq!(scrape.get("serve_step_seconds_sum"), Some(0.5));
        assert_eq!(scrape.labelled("odd", "text", "a b"), Some(300.0));
        assert_eq!(
            scrape.sum("serve_preemptions_total"),
            None,
            "absent is not zero"
        );
    }
}
