//! What policies say to a newcomer, whole or known by its tenant and class alone.

use serve_core::{Refusal, Request, Time};

use super::{Asked, Gate};
use crate::admit::{Admit, Load};
use crate::demand::Demand;
use crate::lengths::Unseen;
use crate::order::{Place, Waiting};
use crate::pace::Queued;

impl Gate {
    /// Refuses a request of which only tenant and class are known, where a policy would refuse it whatever its
    /// length. One that is not refused counts with those policies as one of `tokens` tokens until it is taken
    /// when it is [submitted](Self::submit) under its id, or [released](Self::release).
    pub fn pre_admit(&mut self, now: Time, least: &Request, tokens: u32) -> Result<(), Refusal> {
        // What would be ahead of it need not be known where nobody asks.
        if !self.asks_early() {
            return Ok(());
        }
        let (_, asked) = self.newcomer(now, least);
        for index in 0..self.admit.len() {
            if self.admit[index].refuses_any_length()
                && let Err((by, refusal)) = self.ask(index, now, least, &asked)
            {
                return Err(self.refuse(now, least.id(), by, refusal));
            }
        }
        let (policies, load) = self.policies_and_load(now, &asked);
        for policy in policies.iter_mut().filter(asked_early) {
            policy.reserve(least, tokens, &load);
        }
        Ok(())
    }

    /// A request that was [asked about](Self::pre_admit) does not come, and has cost `tokens` all the same.
    pub fn release(&mut self, now: Time, least: &Request, tokens: u32) {
        if !self.asks_early() {
            return;
        }
        let nobody = Asked {
            ahead: self.queue.demand(),
            own: Demand::default(),
            queued: Queued::default(),
        };
        let (policies, load) = self.policies_and_load(now, &nobody);
        for policy in policies.iter_mut().filter(asked_early) {
            policy.release(least, tokens, &load);
        }
    }

    fn asks_early(&self) -> bool {
        self.admit.iter().any(|policy| policy.refuses_any_length())
    }

    /// What one policy says to a newcomer, with its name if it refuses.
    pub(super) fn ask(
        &mut self,
        index: usize,
        now: Time,
        request: &Request,
        asked: &Asked,
    ) -> Result<(), (&'static str, Refusal)> {
        let refused = self.refused[index];
        let (policies, load) = self.policies_and_load(now, asked);
        let load = Load { refused, ..load };
        let policy = &mut policies[index];
        let (by, said) = (policy.name(), policy.admit(request, &load));
        if let Err(Refusal::Later { .. }) = said {
            self.refused[index] = refused.saturating_add(1);
        }
        said.map_err(|refusal| (by, refusal))
    }

    /// Where a newcomer would wait, and what the policies are asked with.
    pub(super) fn newcomer(&mut self, now: Time, request: &Request) -> (Place, Asked) {
        let place = self.place_of_newcomer(now, request);
        let asked = Asked {
            ahead: self.queue.ahead(&place.path, &mut *self.order),
            own: self.demand_of(request, Unseen::Short),
            queued: Queued::new(request.class(), self.queue.group(&place.path)),
        };
        (place, asked)
    }

    pub(super) fn place_of_newcomer(&mut self, now: Time, request: &Request) -> Place {
        let newcomer = Waiting {
            request,
            sequence: self.sequence,
            since: now,
            preemptions: 0,
        };
        self.order.place(&newcomer, now)
    }
}

/// Whether a policy is asked about requests that are not whole yet.
fn asked_early(policy: &&mut Box<dyn Admit>) -> bool {
    policy.refuses_any_length()
}
