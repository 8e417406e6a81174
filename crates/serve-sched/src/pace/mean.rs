//! Moving averages. Plain arithmetic only: the same samples give the same bits anywhere.

/// A moving average that starts at its first sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Mean(Option<f64>);

impl Mean {
    pub(super) fn add(&mut self, sample: f64, weight: f64) {
        self.0 = Some(match self.0 {
            Some(mean) => mean + weight * (sample - mean),
            None => sample,
        });
    }

    pub(super) fn read(&self) -> Option<f64> {
        self.0
    }
}

/// Two sums that forget alike, and their ratio: work over the time that it took, so that a batch whose
/// requests end together counts as what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Ratio {
    work: f64,
    secs: f64,
}

impl Ratio {
    pub(super) fn add(&mut self, work: f64, secs: f64, weight: f64) {
        self.work = self.work * (1.0 - weight) + work;
        self.secs = self.secs * (1.0 - weight) + secs;
    }

    pub(super) fn read(&self) -> Option<f64> {
        (self.work > 0.0 && self.secs > 0.0).then(|| self.work / self.secs)
    }
}

/// A line through the last samples: what a step takes without prompt tokens, and what each of them adds
/// (least squares, forgetting).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Line {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    pub(crate) fn add(&mut self, x: f64, y: f64, forget: f64) {
        let keep = 1.0 - forget;
        self.weight = self.weight * keep + 1.0;
        self.x = self.x * keep + x;
        self.y = self.y * keep + y;
        self.xx = self.xx * keep + x * x;
        self.xy = self.xy * keep + x * y;
    }

    /// How many samples there are, each for what is left of it.
    pub(crate) fn weight(&self) -> f64 {
        self.weight
    }

    /// The line through the samples of two.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            weight: self.weight + other.weight,
            x: self.x + other.x,
            y: self.y + other.y,
            xx: self.xx + other.xx,
            xy: self.xy + other.xy,
        }
    }

    /// `(y at 0, y for each x)`, neither below 0; `None` before any sample. Samples that all have the same
    /// x are put down to it.
    pub(crate) fn read(&self) -> Option<(f64, f64)> {
        if self.weight <= 0.0 {
            return None;
        }
        let (x, y) = (self.x / self.weight, self.y / self.weight);
        if x <= 0.0 {
            return Some((y, 0.0));
        }
        let variance = self.xx / self.weight - x * x;
        let covariance = self.xy / self.weight - x * y;
        if variance <= 1e-6 * x * x {
            return Some((0.0, y / x));
        }
        let slope = (covariance / variance).clamp(0.0, y / x);
        Some((y - slope * x, slope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_followed() {
        let mut line = Line::default();
        assert_eq!(line.read(), None);
        line.add(100.0, 2.0, 0.03);
        assert_eq!(
            line.read(),
            Some((0.0, 0.02)),
            "all of one sample is its x's"
        );
        (0..600).for_each(|n| line.add(f64::from(n % 7), 5.0 + 0.5 * f64::from(n % 7), 0.03));
        let near = |(a, b): (f64, f64), (c, d): (f64, f64)| {
            assert!((a - c).abs() < 0.01 && (b - d).abs() < 0.01, "{a} {b}");
        };
        near(line.read().unwrap(), (5.0, 0.5));
        (0..600).for_each(|n| line.add(f64::from(n % 7), 10.0 + f64::from(n % 7), 0.03));
        near(line.read().unwrap(), (10.0, 1.0));
    }
}
