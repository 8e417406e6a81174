//! The times at which conversations begin, each computed from the start and not from the one before,
//! so that nothing drifts.

use std::sync::Arc;

use serve_core::Span;
use serve_core::rng::Rng;

use super::draw::{Purpose, gamma, stream};
use super::trace::Traced;
use crate::workload::spec::{Arrivals, Spec};

/// The times of an open loop, in order; none for a closed one.
pub(super) fn times(
    spec: &Spec,
    trace: Option<Arc<[Traced]>>,
) -> Box<dyn Iterator<Item = Span> + Send> {
    let mut rng = stream(spec.seed, Purpose::Gaps, 0);
    match spec.arrivals.clone() {
        Arrivals::Constant { rate_per_s } => {
            Box::new((0_u64..).map(move |index| secs(index as f64 / rate_per_s.get())))
        }
        Arrivals::Poisson { rate_per_s } => {
            Box::new(masses(rng).map(move |mass| secs(mass / rate_per_s.get())))
        }
        Arrivals::Gamma { rate_per_s, cv } => {
            // A gamma distribution of shape k has the CV 1 / sqrt(k).
            let shape = cv.get().powi(-2);
            let mut clock_s = 0.0;
            Box::new(std::iter::repeat_with(move || {
                clock_s += gamma(shape, &mut rng) / shape / rate_per_s.get();
                secs(clock_s)
            }))
        }
        Arrivals::Bursts {
            rate_per_s,
            burst_rate_per_s,
            burst_s,
            every_s,
        } => {
            let burst = Burst {
                rate: rate_per_s,
                burst_rate: burst_rate_per_s.get(),
                burst_s: burst_s.get(),
                every_s: every_s.get(),
            };
            Box::new(masses(rng).map(move |mass| secs(burst.time_s(mass))))
        }
        Arrivals::Ramp {
            from_per_s,
            to_per_s,
            over_s,
        } => Box::new(
            masses(rng)
                .map(move |mass| secs(ramp_time_s(from_per_s, to_per_s.get(), over_s.get(), mass))),
        ),
        Arrivals::Waves { size, every_s } => Box::new(
            (0_u64..)
                .map(move |index| secs((index / u64::from(size.get())) as f64 * every_s.get())),
        ),
        Arrivals::Closed { .. } => Box::new(std::iter::empty()),
        Arrivals::Azure(_) | Arrivals::Mooncake(_) | Arrivals::ServeLog(_) => {
            let times = trace.unwrap_or_else(|| Arc::from([]));
            Box::new((0..times.len()).map(move |index| times[index].due))
        }
    }
}

fn secs(secs: f64) -> Span {
    Span::from_secs_f64(secs)
}

/// The arrivals of a Poisson process of rate 1. A process whose rate changes has its arrivals where
/// the integral of the rate takes these values.
fn masses(mut rng: Rng) -> impl Iterator<Item = f64> + Send {
    let mut mass = 0.0;
    std::iter::repeat_with(move || {
        mass += rng.exponential(1.0);
        mass
    })
}

/// A rate that is higher at the start of every period.
#[derive(Clone, Copy)]
struct Burst {
    rate: f64,
    burst_rate: f64,
    burst_s: f64,
    every_s: f64,
}

impl Burst {
    /// Where the integral of the rate is `mass`.
    fn time_s(&self, mass: f64) -> f64 {
        let in_burst = self.burst_rate * self.burst_s;
        let in_period = in_burst + self.rate * (self.every_s - self.burst_s);
        let periods = (mass / in_period).floor();
        let rest = mass - periods * in_period;
        let within_s = match rest < in_burst || self.rate == 0.0 {
            true => rest / self.burst_rate,
            false => self.burst_s + (rest - in_burst) / self.rate,
        };
        periods * self.every_s + within_s
    }
}

/// Where the integral of a rate that goes from `from` to `to` over `over_s`, and stays there, is
/// `mass`.
fn ramp_time_s(from: f64, to: f64, over_s: f64, mass: f64) -> f64 {
    let in_ramp = (from + to) / 2.0 * over_s;
    if mass >= in_ramp {
        return over_s + (mass - in_ramp) / to;
    }
    // from t + slope t^2 / 2 = mass, in the form that stays exact when the slope is near 0.
    let slope = (to - from) / over_s;
    2.0 * mass / (from + (from * from + 2.0 * slope * mass).max(0.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_a_ramp_come_where_the_integral_of_the_rate_says() {
        // 10/s for 1 s, then 2/s for 4 s: 18 in a period of 5 s.
        let burst = Burst {
            rate: 2.0,
            burst_rate: 10.0,
            burst_s: 1.0,
            every_s: 5.0,
        };
        for (mass, time_s) in [
            (0.0, 0.0),
            (5.0, 0.5),
            (10.0, 1.0),
            (14.0, 3.0),
            (18.0, 5.0),
            (23.0, 5.5),
        ] {
            assert!((burst.time_s(mass) - time_s).abs() < 1e-9, "{mass}");
        }
        let silent = Burst { rate: 0.0, ..burst };
        assert!((silent.time_s(15.0) - 5.5).abs() < 1e-9);

        // From 0/s to 10/s over 10 s: t^2 / 2, then 10/s.
        for (mass, time_s) in [(0.5, 1.0), (8.0, 4.0), (50.0, 10.0), (70.0, 12.0)] {
            assert!(
                (ramp_time_s(0.0, 10.0, 10.0, mass) - time_s).abs() < 1e-9,
                "{mass}"
            );
        }
        assert!((ramp_time_s(4.0, 4.0, 10.0, 8.0) - 2.0).abs() < 1e-9);
        assert!((ramp_time_s(10.0, 2.0, 4.0, 16.0) - 2.0).abs() < 1e-9);
    }
}
