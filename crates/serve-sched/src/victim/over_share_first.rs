//! Of the lowest class, a request of the tenant that holds most of the KV cache for its share goes.
//!
//! Rule: greatest `(class, blocks of its tenant / share of its tenant)`; of one tenant's, the newest.
//! What a flood of one tenant has brought into the batch makes room for the flood itself, and a
//! tenant that holds less than its part keeps what it has, however late its requests came.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serve_core::TenantId;

use super::{Candidate, Victim};
use crate::settings::{Named, Settings};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Victim> = Named {
    name: "over-share-first",
    settings: &[],
    build: |settings| Box::new(OverShareFirst::of(settings)),
};

/// Of the lowest class, a request of the tenant that holds most blocks for its share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverShareFirst {
    shares: BTreeMap<TenantId, NonZeroU32>,
}

/// How finely blocks divided by a share are told apart.
const RESOLUTION: u64 = 1 << 16;

impl OverShareFirst {
    /// With the weights of the settings' tenants.
    fn of(settings: &Settings) -> Self {
        let tenants = settings.tenants.iter();
        tenants.fold(Self::default(), |victim, tenant| match tenant.weight {
            Some(weight) => victim.with_share(tenant.id, weight),
            None => victim,
        })
    }

    /// Gives `tenant` a share of `share` where others have one of 1.
    #[must_use]
    pub fn with_share(mut self, tenant: TenantId, share: NonZeroU32) -> Self {
        self.shares.insert(tenant, share);
        self
    }
}

impl Victim for OverShareFirst {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn rank(&self, candidate: &Candidate<'_>) -> [u64; 2] {
        let share = self.shares.get(&candidate.request.tenant());
        let share = u64::from(share.map_or(1, |share| share.get()));
        let held = u64::from(candidate.tenant_blocks) * RESOLUTION / share;
        [u64::from(candidate.request.class().rank()), held]
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{Class, Request, RequestId, Time, TokenId};

    use super::*;

    fn rank(victim: &OverShareFirst, class: u8, tenant: u32, tenant_blocks: u32) -> [u64; 2] {
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1)
            .unwrap()
            .with_class(Class::new(class))
            .with_tenant(TenantId::new(tenant));
        victim.rank(&Candidate {
            request: &request,
            sequence: 0,
            computed: 0,
            output_left: 1,
            blocks: 1,
            tenant_blocks,
        })
    }

    #[test]
    fn the_class_comes_before_the_share_and_the_share_divides_the_blocks() {
        let share = NonZeroU32::new(3).unwrap();
        let victim = OverShareFirst::default().with_share(TenantId::new(7), share);
        let of = |class, tenant, blocks| rank(&victim, class, tenant, blocks);
        assert!(of(0, 1, 99) < of(1, 1, 1));
        assert!(of(0, 1, 10) < of(0, 2, 11));
        assert!(of(0, 7, 29) < of(0, 1, 10));
        assert!(of(0, 7, 31) > of(0, 1, 10));
    }
}
