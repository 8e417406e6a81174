//! The text formats that Prometheus reads: for each family of metrics a line of help, one of type, and its samples.
//! Version 0.0.4 of the old format, and OpenMetrics 1.0, which has examples beside buckets.

use std::fmt::{Display, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, header};

use super::histogram::{Example, Reading};

/// In which format metrics are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// What everybody reads.
    #[default]
    Prometheus,
    /// For those that ask for it.
    OpenMetrics,
}

impl Format {
    /// The one that these headers ask for.
    pub(crate) fn asked(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(header::ACCEPT).iter();
        let mut accepted = accepted.filter_map(|value| value.to_str().ok());
        match accepted.any(|value| value.contains("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// The `Content-Type`.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What kind of metric a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The names and values of a sample's labels.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A text that grows by one family after the other.
#[derive(Debug, Default)]
pub(crate) struct Text {
    out: String,
    format: Format,
}

/// A family that is being written.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    text: &'a mut Text,
    name: &'static str,
}

impl Text {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            out: String::new(),
            format,
        }
    }

    /// Begins a family. The name of a counter ends with `_total`.
    pub(crate) fn family(&mut self, kind: Kind, name: &'static str, help: &str) -> Family<'_> {
        let (of, kind) = match (self.format, kind) {
            (Format::OpenMetrics, Kind::Counter) => {
                (name.strip_suffix("_total").unwrap_or(name), "counter")
            }
            (_, Kind::Counter) => (name, "counter"),
            (_, Kind::Gauge) => (name, "gauge"),
            (_, Kind::Histogram) => (name, "histogram"),
        };
        self.line(format_args!("# HELP {of} {help}"));
        self.line(format_args!("# TYPE {of} {kind}"));
        Family { text: self, name }
    }

    /// A counter without labels.
    pub(crate) fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(Kind::Counter, name, help).sample(&[], value);
    }

    /// A gauge without labels.
    pub(crate) fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(Kind::Gauge, name, help).sample(&[], value);
    }

    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.line("# EOF");
        }
        self.out
    }

    fn line(&mut self, line: impl Display) {
        // A string takes whatever is written to it.
        let _ = writeln!(self.out, "{line}");
    }
}

impl Family<'_> {
    pub(crate) fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.write("", labels, None, value, None);
    }

    pub(crate) fn histogram(&mut self, labels: Labels<'_>, reading: &Reading) {
        let mut examples = reading.examples.iter();
        for (bound, count) in &reading.cumulative {
            let example = examples.next().and_then(Option::as_ref);
            self.write("_bucket", labels, Some(&float(*bound)), count, example);
        }
        let example = examples.next().and_then(Option::as_ref);
        self.write("_bucket", labels, Some("+Inf"), reading.count, example);
        self.write("_sum", labels, None, reading.sum, None);
        self.write("_count", labels, None, reading.count, None);
    }

    fn write(
        &mut self,
        part: &str,
        labels: Labels<'_>,
        bound: Option<&str>,
        value: impl Display,
        example: Option<&Example>,
    ) {
        let out = &mut self.text.out;
        out.push_str(self.name);
        out.push_str(part);
        let bound = bound.map(|bound| ("le", bound));
        for (index, (name, value)) in labels.iter().copied().chain(bound).enumerate() {
            out.push(if index == 0 { '{' } else { ',' });
            out.push_str(name);
            out.push_str("=\"");
            escape(value, out);
            out.push('"');
        }
        if !labels.is_empty() || bound.is_some() {
            out.push('}');
        }
        // A string takes whatever is written to it.
        let _ = write!(out, " {value}");
        if let (Format::OpenMetrics, Some(example)) = (self.text.format, example) {
            out.push_str(" # {request_id=\"");
            escape(&example.id, out);
            let _ = write!(out, "\"}} {} {:.3}", example.value, unix(example.at));
        }
        out.push('\n');
    }
}

/// As OpenMetrics and clients in Python write it, so that a rule that names a bound finds it.
fn float(value: f64) -> String {
    match value.fract() == 0.0 {
        true => format!("{value:.1}"),
        false => value.to_string(),
    }
}

fn unix(at: SystemTime) -> f64 {
    let since = at.duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

fn escape(value: &str, out: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reading() -> Reading {
        let example = Example {
            id: "cmpl-1".to_owned(),
            value: 0.75,
            at: UNIX_EPOCH + Duration::from_millis(1_500),
        };
        Reading {
            cumulative: vec![(0.5, 0), (1.0, 1)],
            count: 1,
            sum: 0.75,
            examples: vec![None, Some(example), None],
        }
    }

    fn written(format: Format) -> String {
        let mut text = Text::new(format);
        text.counter("a_total", "All of them", 3);
        let mut family = text.family(Kind::Gauge, "b", "By state");
        family.sample(&[("state", "free"), ("of", "a \"b\"\\\n")], 1);
        family.sample(&[("state", "held"), ("of", "c")], 0.5);
        let mut family = text.family(Kind::Histogram, "c_seconds", "How long");
        family.histogram(&[("class", "paid")], &reading());
        text.finish()
    }

    #[test]
    fn the_format_is_the_documented_one() {
        let expected = r#"# HELP a_total All of them
# TYPE a_total counter
a_total 3
# HELP b By state
# TYPE b gauge
b{state="free",of="a \"b\"\\\n"} 1
b{state="held",of="c"} 0.5
# HELP c_seconds How long
# TYPE c_seconds histogram
c_seconds_bucket{class="paid",le="0.5"} 0
c_seconds_bucket{class="paid",le="1.0"} 1
c_seconds_bucket{class="paid",le="+Inf"} 1
c_seconds_sum{class="paid"} 0.75
c_seconds_count{class="paid"} 1
"#;
        assert_eq!(written(Format::Prometheus), expected);
    }

    #[test]
    fn open_metrics_names_counters_without_total_and_has_examples_and_an_end() {
        let text = written(Format::OpenMetrics);
        assert!(
            text.starts_with("# HELP a All of them\n# TYPE a counter\na_total 3\n"),
            "{text}"
        );
        let bucket =
            "c_seconds_bucket{class=\"paid\",le=\"1.0\"} 1 # {request_id=\"cmpl-1\"} 0.75 1.500\n";
        assert!(text.contains(bucket), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn what_is_accepted_decides_the_format() {
        let asked = |accept: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for accept in accept {
                headers.append(header::ACCEPT, accept.parse().unwrap());
            }
            Format::asked(&headers)
        };
        assert_eq!(asked(&[]), Format::Prometheus);
        assert_eq!(asked(&["text/plain;version=0.0.4"]), Format::Prometheus);
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(asked(&[prometheus]), Format::OpenMetrics);
        assert_eq!(
            asked(&["text/plain", "application/openmetrics-text"]),
            Format::OpenMetrics
        );
    }
}
