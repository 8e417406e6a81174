//! Reads figures of a server from its `GET /metrics`.

/// The value of `series`, a name with or without a label, such as `serve_requests_ended_total{end="failed"}`: the
/// sum over whatever other labels there are. `None` where there is no such series.
pub(crate) fn value(text: &str, series: &str) -> Option<f64> {
    let (name, label) = series.split_once('{').unwrap_or((series, ""));
    let label = label.trim_end_matches('}');
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        labels
            .contains(label)
            .then(|| value.trim().parse::<f64>().ok())?
    });
    values.reduce(|sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_the_sum_over_the_labels_that_are_not_named() {
        let text = "# TYPE a_total counter\na_total{class=\"x\",end=\"failed\"} 2\na_total{class=\"y\",end=\"failed\"} 3\n\
                    a_total{class=\"x\",end=\"finished\"} 7\na_total_more 9\nb 1.5\n";
        assert_eq!(value(text, "a_total"), Some(12.0));
        assert_eq!(value(text, "a_total{end=\"failed\"}"), Some(5.0));
        assert_eq!(value(text, "b"), Some(1.5));
        assert_eq!(value(text, "a"), None);
        assert_eq!(value(text, "a_total{end=\"refused\"}"), None);
    }
}
