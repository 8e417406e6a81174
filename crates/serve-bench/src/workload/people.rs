//! Who asks, in which class, and when they hang up.

use serve_core::rng::Rng;

use super::HangUp;
use super::draw::{Purpose, draw_length, stream};
use crate::workload::spec::{Cancel, CancelAfter, Spec};

/// The tenants and classes of a workload, ready to be drawn.
#[derive(Clone, Debug)]
pub(super) struct People {
    /// Share, and the class that the tenant names.
    tenants: Vec<(f64, Option<usize>)>,
    /// The one tenant whose requests are sent; `None` where all are.
    only: Option<usize>,
    classes: Vec<f64>,
}

impl People {
    pub(super) fn new(spec: &Spec) -> Self {
        let place = |name: &String| spec.classes.iter().position(|class| class.name == *name);
        let tenants = spec
            .tenants
            .iter()
            .map(|tenant| (tenant.share.get(), tenant.class.as_ref().and_then(place)));
        Self {
            tenants: tenants.collect(),
            only: spec.only_tenant.as_ref().and_then(|only| {
                let mut tenants = spec.tenants.iter();
                tenants.position(|tenant| tenant.name == *only)
            }),
            classes: spec.classes.iter().map(|class| class.share.get()).collect(),
        }
    }

    /// Whether what a tenant asks for is sent.
    pub(super) fn is_sent(&self, tenant: Option<usize>) -> bool {
        self.only.is_none() || self.only == tenant
    }

    /// Tenant and class of a conversation.
    pub(super) fn draw(&self, seed: u64, number: u64) -> (Option<usize>, Option<usize>) {
        let draw = |shares: &mut dyn Iterator<Item = f64>, purpose| {
            place(shares, &mut stream(seed, purpose, number))
        };
        let tenant = draw(
            &mut self.tenants.iter().map(|tenant| tenant.0),
            Purpose::Tenant,
        );
        let named = tenant.and_then(|tenant| self.tenants[tenant].1);
        let class = named.or_else(|| draw(&mut self.classes.iter().copied(), Purpose::Class));
        (tenant, class)
    }
}

/// One of a list that is not empty, by their shares.
pub(super) fn pick<'a, T>(list: &'a [T], share: impl Fn(&T) -> f64, rng: &mut Rng) -> &'a T {
    let place = place(&mut list.iter().map(share), rng);
    &list[place.unwrap_or(0)]
}

/// A place in a list of shares; none in an empty one.
fn place(shares: &mut dyn Iterator<Item = f64>, rng: &mut Rng) -> Option<usize> {
    let shares = shares.collect::<Vec<_>>();
    let mut left = rng.next_f64() * shares.iter().sum::<f64>();
    let found = shares.iter().position(|share| {
        left -= share;
        left < 0.0
    });
    // Rounding can leave a crumb beyond the last share.
    found.or_else(|| shares.len().checked_sub(1))
}

/// Whether and when a request's client hangs up.
pub(super) fn hang_up(cancel: &Cancel, rng: &mut Rng) -> Option<HangUp> {
    let hangs_up = rng.next_f64() < cancel.probability.get();
    let after = match cancel.after()? {
        CancelAfter::Millis(millis) => {
            HangUp::AfterNanos(u64::from(draw_length(millis, rng)) * 1_000_000)
        }
        CancelAfter::Tokens(tokens) => HangUp::AfterTokens(draw_length(tokens, rng)),
    };
    hangs_up.then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_a_tenants_class_is_its_own() {
        let text = "[arrivals.poisson]\nrate_per_s = 1\n\
            [[tenants]]\nname = \"a\"\nshare = 3\nclass = \"free\"\n[[tenants]]\nname = \"b\"\n\
            [[classes]]\nname = \"paid\"\nshare = 0.5\n[[classes]]\nname = \"free\"\nshare = 0.5\n";
        let people = People::new(&Spec::parse("test", text).unwrap());
        let mut counts = [[0_u32; 2]; 2];
        for number in 0..40_000 {
            let (tenant, class) = people.draw(9, number);
            counts[tenant.unwrap()][class.unwrap()] += 1;
        }
        assert_eq!(counts[0][0], 0);
        assert!((29_500..30_500).contains(&counts[0][1]), "{counts:?}");
        assert!((4_800..5_200).contains(&counts[1][0]), "{counts:?}");
        assert!((4_800..5_200).contains(&counts[1][1]), "{counts:?}");
    }
}
