//! The text format of Prometheus, version 0.0.4: for each metric a line of help, one of type, and its
//! samples.

use std::fmt::{Display, Write};

use super::histogram::Histogram;

/// What [`Text`] is written in.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text that grows by one metric after the other. Names, help and labels are this program's own, so
/// nothing in them has to be escaped.
#[derive(Debug, Default)]
pub(crate) struct Text(String);

impl Text {
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(name, "", value);
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "gauge", help);
        self.sample(name, "", value);
    }

    /// A counter for each value of one label.
    pub(crate) fn counters<'a>(
        &mut self,
        (name, label): (&str, &str),
        help: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.family(name, "counter", help);
        self.samples(name, label, values);
    }

    /// A gauge for each value of one label.
    pub(crate) fn gauges<'a>(
        &mut self,
        (name, label): (&str, &str),
        help: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.family(name, "gauge", help);
        self.samples(name, label, values);
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let reading = histogram.read();
        let bucket = format!("{name}_bucket");
        for (bound, count) in &reading.cumulative {
            self.sample(&bucket, &format!("{{le=\"{bound}\"}}"), count);
        }
        self.sample(&bucket, "{le=\"+Inf\"}", reading.count);
        self.sample(&format!("{name}_sum"), "", reading.sum);
        self.sample(&format!("{name}_count"), "", reading.count);
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn samples<'a>(
        &mut self,
        name: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        for (of, value) in values {
            self.sample(name, &format!("{{{label}=\"{of}\"}}"), value);
        }
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        self.line(format_args!("{name}{labels} {value}"));
    }

    fn line(&mut self, line: impl Display) {
        // A string takes whatever is written to it.
        let _ = writeln!(self.0, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_documented_one() {
        let mut text = Text::default();
        text.counter("a_total", "All of them", 3);
        text.gauges(("b", "state"), "By state", [("free", 1), ("held", 2)]);
        let histogram = Histogram::doubling(0.5, 2);
        histogram.observe(0.75);
        text.histogram("c_seconds", "How long", &histogram);
        let expected = "\
# HELP a_total All of them
# TYPE a_total counter
a_total 3
# HELP b By state
# TYPE b gauge
b{state=\"free\"} 1
b{state=\"held\"} 2
# HELP c_seconds How long
# TYPE c_seconds histogram
c_seconds_bucket{le=\"0.5\"} 0
c_seconds_bucket{le=\"1\"} 1
c_seconds_bucket{le=\"+Inf\"} 1
c_seconds_sum 0.75
c_seconds_count 1
";
        assert_eq!(text.finish(), expected);
    }
}
