//! Where an axis has its marks, and how they are written.

/// An axis with its marks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// Whether equal distances are equal ratios.
    pub is_log: bool,
    /// The least value shown.
    pub min: f64,
    /// The greatest value shown.
    pub max: f64,
}

impl Axis {
    /// An axis from zero to a round number that is not below any value.
    pub(crate) fn linear(label: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let max = values
            .into_iter()
            .filter(|it| it.is_finite())
            .fold(0.0, f64::max);
        let max = if max > 0.0 { max } else { 1.0 };
        let step = step(max);
        Self {
            label: label.into(),
            is_log: false,
            min: 0.0,
            max: (max / step - 1e-9).ceil() * step,
        }
    }

    /// A logarithmic axis that holds all positive values, at least from one to four times the least.
    pub(crate) fn log(label: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values.into_iter().filter(|it| it.is_finite() && *it > 0.0);
        let (low, high) = positive.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
        let (mut min, mut max) = (below(low), above(high));
        while max / min < 3.9 {
            (min, max) = (below(min * 0.99), above(max * 1.01));
        }
        Self {
            label: label.into(),
            is_log: true,
            min,
            max,
        }
    }

    /// An axis for a share, from 0 to 100%.
    pub(crate) fn percent(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            is_log: false,
            min: 0.0,
            max: 100.0,
        }
    }

    /// Whether a value can be shown.
    pub(crate) fn holds(&self, value: f64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    /// Where a value lies, from 0 at the start of the axis to 1 at its end.
    pub(crate) fn share(&self, value: f64) -> f64 {
        match self.is_log {
            true => (value / self.min).ln() / (self.max / self.min).ln(),
            false => (value - self.min) / (self.max - self.min),
        }
    }

    /// The marks.
    pub(crate) fn marks(&self) -> Vec<f64> {
        if !self.is_log {
            let step = step(self.max);
            let count = ((self.max - self.min) / step + 1e-9).floor() as u32;
            return (0..=count)
                .map(|at| self.min + f64::from(at) * step)
                .collect();
        }
        let decades = (self.max / self.min).log10();
        let digits: &[f64] = match decades {
            few if few <= 2.5 => &[1.0, 2.0, 5.0],
            some if some <= 4.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let first = self.min.log10().floor() as i32;
        let last = self.max.log10().ceil() as i32;
        let marks = (first..=last)
            .flat_map(|decade| digits.iter().map(move |digit| digit * 10_f64.powi(decade)));
        let inside = |mark: &f64| (self.min * 0.999..=self.max * 1.001).contains(mark);
        marks.filter(inside).collect()
    }

    /// A mark in words.
    pub(crate) fn written(&self, mark: f64) -> String {
        match mark.abs() {
            size if size >= 1e6 => format!("{} M", trimmed(mark / 1e6)),
            size if size >= 1e4 => format!("{} k", trimmed(mark / 1e3)),
            _ => trimmed(mark),
        }
    }
}

/// The step between marks of an axis that ends at `max`: 1, 2 or 5 times a power of ten, for four to
/// nine marks.
fn step(max: f64) -> f64 {
    let decade = 10_f64.powf((max / 4.0).log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|digit| digit * decade);
    let fits = |step: &&f64| max / **step >= 4.0;
    steps.iter().find(fits).copied().unwrap_or(decade)
}

/// The greatest of 1, 2 or 5 times a power of ten that is not above a value.
fn below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let found = [5.0, 2.0, 1.0].map(|digit| digit * decade);
    found
        .into_iter()
        .find(|it| *it <= value * 1.000_001)
        .unwrap_or(decade)
}

/// The least of 1, 2 or 5 times a power of ten that is not below a value.
fn above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let found = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade);
    found
        .into_iter()
        .find(|it| *it >= value * 0.999_999)
        .unwrap_or(decade * 10.0)
}

/// Without zeros that say nothing.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(axis: &Axis) -> String {
        let marks = axis.marks().into_iter().map(|mark| axis.written(mark));
        marks.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn linear_axes_end_at_round_numbers() {
        assert_eq!(written(&Axis::linear("s", [7.3])), "0 2 4 6 8");
        assert_eq!(written(&Axis::linear("s", [4.2])), "0 1 2 3 4 5");
        assert_eq!(
            written(&Axis::linear("s", [0.31])),
            "0 0.05 0.1 0.15 0.2 0.25 0.3 0.35"
        );
        assert_eq!(
            written(&Axis::linear("n", [43_000.0])),
            "0 10 k 20 k 30 k 40 k 50 k"
        );
        assert_eq!(written(&Axis::linear("n", [])), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(written(&Axis::percent("%")), "0 20 40 60 80 100");
    }

    #[test]
    fn logarithmic_axes_hold_all_values() {
        let axis = Axis::log("ms", [3.2, 480.0, 0.0, f64::NAN]);
        assert_eq!((axis.min, axis.max), (2.0, 500.0));
        assert_eq!(written(&axis), "2 5 10 20 50 100 200 500");
        let narrow = Axis::log("ms", [40.0]);
        assert!(narrow.max / narrow.min >= 3.9, "{narrow:?}");
        assert!(narrow.holds(40.0) && !narrow.holds(0.0));
        let decades = Axis::log("ms", [1.0, 100.0]);
        assert!((decades.share(10.0) - 0.5).abs() < 1e-12);
        let wide = Axis::log("ms", [0.01, 20_000.0]);
        assert_eq!(written(&wide), "0.01 0.1 1 10 100 1000 10 k");
    }
}
