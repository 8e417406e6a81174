//! Other settings while requests wait and run: which policies take them, and what becomes of the queue.

use std::sync::Arc;

use serve_core::{Request, Time};

use super::{Asked, Gate};
use crate::admit::{ADMISSIONS, Admission, Admit, Load};
use crate::demand::Demand;
use crate::journal::Decision;
use crate::order::InFlight;
use crate::pace::Queued;
use crate::settings::{Change, Row};

impl Gate {
    /// Whether a setting is one that the gate's policies take while they run: of any admission policy, as
    /// those can be switched on and off, and of the order if it says so.
    pub(crate) fn takes(&self, row: &Row) -> bool {
        let mut rows = ADMISSIONS.iter().flat_map(|policy| policy.settings);
        rows.any(|of| of.name == row.name) || self.order.takes(row)
    }

    /// Makes a change that it [takes](Self::takes). Who waits goes on waiting, in the place that the order
    /// has for it now. O(n log n) in the requests in flight.
    pub(crate) fn change(&mut self, now: Time, change: &Change, running: &[Arc<Request>]) {
        self.change_order(now, change, running);
        for admission in ADMISSIONS {
            let concerned = admission.settings.iter().any(|row| change.concerns(row));
            if concerned || admission.reads_tenants && change.concerns_tenants() {
                self.change_admission(now, change, admission, running);
            }
        }
        let watch = self.admit.iter().map(|policy| policy.watches()).max();
        self.watch = watch.unwrap_or_default();
        self.refused = vec![0; self.admit.len()];
        let change = || Decision::Changed {
            change: Box::new(change.clone()),
        };
        self.journal.write(now, None, change);
    }

    fn change_order(&mut self, now: Time, change: &Change, running: &[Arc<Request>]) {
        let waiting: Vec<_> = self.queue.oldest_first().collect();
        let again = waiting.iter().filter(|waiting| waiting.preemptions > 0);
        let again = again.map(|waiting| waiting.request);
        let in_flight = InFlight {
            begun: running.iter().map(|it| &**it).chain(again).collect(),
            waiting,
        };
        self.order.change(change, &in_flight, now);
        self.queue.place_all_again(&mut *self.order, now);
    }

    /// What runs of a policy takes the change, what is switched off goes, and what is switched on comes in
    /// the place that the table gives it, with everything in flight counted.
    fn change_admission(
        &mut self,
        now: Time,
        change: &Change,
        admission: &Admission,
        running: &[Arc<Request>],
    ) {
        let wanted = (admission.build)(change.settings());
        let is_of = |policy: &dyn Admit| policy.name() == admission.name;
        if wanted.is_empty() && !self.admit.iter().any(|policy| is_of(&**policy)) {
            return;
        }
        let all = std::mem::take(&mut self.admit);
        let at = place_of(admission, &all);
        let before = all[..at].iter().filter(|policy| is_of(&***policy)).count();
        let (mut present, mut others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|policy| is_of(&**policy));
        let mut now_there = Vec::new();
        for mut policy in wanted {
            let same = present.iter().position(|it| it.part() == policy.part());
            if let Some(same) = same {
                policy = present.remove(same);
                policy.change(change.settings(), now);
            } else {
                self.count_in_flight(now, &mut *policy, running);
            }
            now_there.push(policy);
        }
        let at = at - before;
        others.splice(at..at, now_there);
        self.admit = others;
    }

    /// Tells a policy that comes of everybody who is there already.
    fn count_in_flight(&self, now: Time, policy: &mut dyn Admit, running: &[Arc<Request>]) {
        let asked = Asked {
            ahead: Demand::default(),
            own: Demand::default(),
            queued: Queued::default(),
        };
        let load = self.load_of(now, &asked);
        let waiting = self.queue.oldest_first().map(|waiting| waiting.request);
        for request in running.iter().map(|it| &**it).chain(waiting) {
            policy.admitted(request, &load);
        }
    }

    fn load_of(&self, now: Time, asked: &Asked) -> Load<'_> {
        load!(self, now, asked)
    }
}

/// Before which policy one of the table comes: the first of a later row, or at the end.
fn place_of(admission: &Admission, running: &[Box<dyn Admit>]) -> usize {
    let row = |name| ADMISSIONS.iter().position(|it| it.name == name);
    let own = row(admission.name);
    let later = running
        .iter()
        .position(|policy| row(policy.name()).is_some_and(|other| Some(other) > own));
    later.unwrap_or(running.len())
}
