//! The times of a run as high-dynamic-range histograms, one for each metric and class, in a file of
//! the run's folder. They can be added to those of other runs, and other tools read the format: an
//! HdrHistogram interval log, each line a V2 histogram in base64.
//!
//! The tables of this crate are computed from rows; these agree with them within 0.1%, the
//! histograms' precision.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag,
};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use thiserror::Error;

use super::rates::wall_s;
use super::request::Request;
use super::requests_of;
use crate::analysis::definitions::Metric;
use crate::store::folder::{FolderError, Run, RunFolder};

/// Values are whole microseconds with this many significant digits.
const DIGITS: u8 = 3;
/// Stands for the class of requests that name none.
const NO_CLASS: &str = "-";

/// Histograms of microseconds by tag, `METRIC/CLASS`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histograms(BTreeMap<String, Histogram<u64>>);

/// A file that holds no histograms.
#[derive(Debug, Error)]
pub enum HistogramsError {
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("no HdrHistogram interval log: entry {entry} {cause}")]
    Shape {
        /// The entry, from 1.
        entry: usize,
        /// What is wrong.
        cause: String,
    },
}

impl Histograms {
    /// The times of requests.
    pub fn of(requests: &[Request<'_>]) -> Self {
        let mut histograms = Self::default();
        let mut values = Vec::new();
        for request in requests {
            let class = request.first().class.as_deref().unwrap_or(NO_CLASS);
            for metric in Metric::ALL {
                values.clear();
                metric.values(request, &mut values);
                if values.is_empty() {
                    continue;
                }
                let histogram = histograms.0.entry(tag(metric, class));
                let histogram = histogram.or_insert_with(empty);
                for ms in &values {
                    // An auto-resizing histogram takes every value.
                    let _ = histogram.record((ms * 1e3).round() as u64);
                }
            }
        }
        histograms
    }

    /// The histogram of a metric in a class; `None` stands for requests without one.
    pub fn get(&self, metric: Metric, class: Option<&str>) -> Option<&Histogram<u64>> {
        self.0.get(&tag(metric, class.unwrap_or(NO_CLASS)))
    }

    /// Adds those of other requests.
    pub fn merge(&mut self, other: &Self) {
        for (tag, histogram) in &other.0 {
            let sum = self.0.entry(tag.clone()).or_insert_with(empty);
            // Fails only for values that the sum cannot hold, and it resizes.
            let _ = sum.add(histogram);
        }
    }

    /// Computes those of a run and writes them into its folder.
    ///
    /// # Errors
    ///
    /// [`FolderError::Io`] names the file.
    pub fn keep(run: &Run, folder: &RunFolder) -> Result<(), FolderError> {
        let requests = requests_of(run);
        let path = folder.histograms();
        let wall = Duration::from_secs_f64(wall_s(&requests));
        let written = File::create(&path)
            .map(BufWriter::new)
            .and_then(|mut file| {
                Self::of(&requests).write(wall, &mut file)?;
                file.flush()
            });
        written.map_err(|source| FolderError::Io { path, source })
    }

    /// Writes them as an interval log of one interval that lasts as long as the run.
    ///
    /// # Errors
    ///
    /// What the writer says.
    pub fn write(&self, wall: Duration, out: &mut impl Write) -> io::Result<()> {
        let mut serializer = V2DeflateSerializer::new();
        let mut log = IntervalLogWriterBuilder::new();
        log.add_comment("serve-bench: microseconds, tagged METRIC/CLASS")
            .with_base_time(UNIX_EPOCH);
        let mut log = log.begin_log_with(out, &mut serializer)?;
        for (tag, histogram) in &self.0 {
            log.write_histogram(histogram, Duration::ZERO, wall, Tag::new(tag))
                .map_err(|error| io::Error::other(format!("{error:?}")))?;
        }
        Ok(())
    }

    /// Reads an interval log. Histograms with the same tag are added up.
    ///
    /// # Errors
    ///
    /// [`HistogramsError::Shape`] names the first entry that is none.
    pub fn read(log: &[u8]) -> Result<Self, HistogramsError> {
        let mut histograms = Self::default();
        let mut deserializer = Deserializer::new();
        for (index, found) in IntervalLogIterator::new(log).enumerate() {
            let shape = |cause: String| HistogramsError::Shape {
                entry: index + 1,
                cause,
            };
            let found = found.map_err(|error| shape(format!("cannot be parsed: {error:?}")))?;
            let LogEntry::Interval(interval) = found else {
                continue;
            };
            let tag = interval
                .tag()
                .ok_or_else(|| shape("has no tag".to_owned()))?;
            let bytes = STANDARD.decode(interval.encoded_histogram());
            let bytes = bytes.map_err(|error| shape(error.to_string()))?;
            let histogram = deserializer.deserialize::<u64, _>(&mut bytes.as_slice());
            let histogram = histogram.map_err(|error| shape(error.to_string()))?;
            let one = Self([(tag.as_str().to_owned(), histogram)].into());
            histograms.merge(&one);
        }
        Ok(histograms)
    }
}

fn empty() -> Histogram<u64> {
    let histogram = Histogram::new(DIGITS);
    histogram.unwrap_or_else(|_| unreachable!("three digits are a valid precision"))
}

/// A tag may hold neither a comma nor white space.
fn tag(metric: Metric, class: &str) -> String {
    let class = class.replace(|c: char| c == ',' || c.is_whitespace(), "_");
    let name = metric.key().trim_end_matches("_ms");
    format!("{name}/{class}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, numbered};

    fn histograms(times_ms: impl Iterator<Item = u64>, class: Option<&str>) -> Histograms {
        let rows = times_ms.map(|ms| crate::store::record::Record {
            class: class.map(str::to_owned),
            ..answer(0, &[ms], Some(1))
        });
        let rows = numbered(rows);
        Histograms::of(&Request::all(&rows, 0))
    }

    #[test]
    fn they_survive_the_file_and_add_up() {
        let mut low = histograms(1..=50, Some("free, or so"));
        let high = histograms(51..=100, Some("free, or so"));
        low.merge(&high);
        low.merge(&histograms(7..=7, None));
        let mut file = Vec::new();
        low.write(Duration::from_secs(3), &mut file).unwrap();
        let read = Histograms::read(&file).unwrap();
        assert_eq!(read, low);
        let free = read.get(Metric::Ttft, Some("free, or so")).unwrap();
        assert_eq!(free.len(), 100);
        for (q, ms) in [(0.5, 50.0), (0.99, 99.0)] {
            let found = free.value_at_quantile(q) as f64 / 1e3;
            assert!((found / ms - 1.0).abs() < 1e-3, "{q}: {found}");
        }
        assert_eq!(read.get(Metric::Ttft, None).unwrap().len(), 1);
        assert!(read.get(Metric::Tpot, None).is_none());
        // Two files end to end are the sum, as for any two parts of a run.
        let twice = Histograms::read(&[file.clone(), file].concat()).unwrap();
        assert_eq!(twice.get(Metric::Ttft, None).unwrap().len(), 2);
    }

    #[test]
    fn another_file_is_no_log() {
        let error = Histograms::read(b"{\"a\":1}\n").unwrap_err().to_string();
        assert!(
            error.starts_with("no HdrHistogram interval log: entry 1"),
            "{error}"
        );
    }
}
