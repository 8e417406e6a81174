//! The requests that run: since when, the longest-running first, and what they were expected to occupy.

use serve_core::{RequestId, Time};

use crate::demand::{Demand, Underway};

/// The running requests in the order in which they were taken.
#[derive(Debug, Default)]
pub(super) struct Started {
    list: Vec<(Time, RequestId)>,
    /// In the same order, what each occupies and after how many steps it started.
    demands: Vec<(u64, Demand)>,
    underway: Underway,
}

impl Started {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn as_slice(&self) -> &[(Time, RequestId)] {
        &self.list
    }

    /// What all of them together occupy, and since when.
    pub(super) fn underway(&self) -> &Underway {
        &self.underway
    }

    /// Adds a request that is taken now, after all others.
    pub(super) fn push(&mut self, now: Time, id: RequestId, steps: u64, demand: Demand) {
        self.list.push((now, id));
        self.demands.push((steps, demand));
        self.underway.add(steps, demand);
    }

    /// Takes a request out, if it is there. With the time `at` which it was taken only those taken
    /// with it are looked at; a wrong time costs a search of them all.
    pub(super) fn remove(&mut self, id: RequestId, at: Option<Time>) {
        let from = at.map_or(0, |at| {
            self.list.partition_point(|&(started, _)| started < at)
        });
        let (before, since) = self.list.split_at(from);
        let place = |list: &[(Time, RequestId)]| list.iter().position(|&(_, other)| other == id);
        let index = place(since).map(|index| from + index);
        if let Some(index) = index.or_else(|| place(before)) {
            self.list.remove(index);
            let (steps, demand) = self.demands.remove(index);
            self.underway.remove(steps, demand);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lengths::Expected;

    #[test]
    fn a_request_is_found_whatever_is_said_of_its_time() {
        let taken = [(0, 5), (10, 3), (10, 8), (20, 1)];
        let said = [None, Some(0), Some(10), Some(15), Some(20), Some(99)];
        for (_, id) in taken {
            for at in said {
                let mut started = Started::default();
                for (at, id) in taken {
                    let demand = Demand::of(id as u32, Expected::certain(1), 16);
                    started.push(Time::from_millis(at), RequestId::new(id), at, demand);
                }
                started.remove(RequestId::new(id), at.map(Time::from_millis));
                let left = started.as_slice().iter().map(|(_, id)| id.get());
                let others = taken.iter().map(|&(_, id)| id).filter(|&other| other != id);
                assert!(left.eq(others), "{id} at {at:?}");
                assert_eq!(started.underway().demand.prompt_tokens, 17 - id);
                started.remove(RequestId::new(id), at.map(Time::from_millis));
                assert_eq!(started.len(), 3, "it is gone");
            }
        }
    }
}
