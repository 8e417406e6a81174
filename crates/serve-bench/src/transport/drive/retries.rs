//! Which failed attempts are made again, and when: the workload's budgets, over [`RetryBudget`].

use std::sync::{Mutex, PoisonError};

use serve_core::{Limit, Refusal, Span, Time};
use serve_sched::{FailedAttempt, RetryBudget};

use crate::store::record::{Outcome, Record};
use crate::workload::Conversation;
use crate::workload::spec::Spec;

/// The budget of each class that has one, and the one that the others share.
#[derive(Debug)]
pub(crate) struct Retries {
    classes: Vec<Option<Mutex<RetryBudget>>>,
    shared: Option<Mutex<RetryBudget>>,
}

impl Retries {
    pub(crate) fn new(spec: &Spec) -> Self {
        let budget = |retry: &crate::workload::spec::Retry| {
            Mutex::new(RetryBudget::new((*retry).into(), spec.seed))
        };
        Self {
            classes: spec
                .classes
                .iter()
                .map(|class| class.retry.as_ref().map(budget))
                .collect(),
            shared: spec.retry.as_ref().map(budget),
        }
    }

    /// An original is sent, which pays into its budget.
    pub(crate) fn original(&self, conversation: &Conversation) {
        if let Some(budget) = self.budget(conversation) {
            budget
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .original();
        }
    }

    /// When to make an attempt again that ended like this.
    pub(crate) fn again(
        &self,
        conversation: &Conversation,
        ended: &Record,
        deadline_ns: Option<u64>,
        now_ns: u64,
    ) -> Option<u64> {
        let budget = self.budget(conversation)?;
        if !may_pass(ended) {
            return None;
        }
        let failed = FailedAttempt {
            number: ended.attempt + 1,
            deadline: deadline_ns.map(Time::from_nanos),
            // The budget asks only when to come back; which limit it was, nobody can tell from outside.
            refusal: ended.retry_after_ms.map(|wait| Refusal::Later {
                limit: Limit::GlobalRate,
                retry_after: Some(Span::from_millis(wait)),
            }),
        };
        let mut budget = budget.lock().unwrap_or_else(PoisonError::into_inner);
        budget
            .retry(Time::from_nanos(now_ns), &failed)
            .map(Time::as_nanos)
    }

    fn budget(&self, conversation: &Conversation) -> Option<&Mutex<RetryBudget>> {
        let own = conversation
            .class
            .and_then(|class| self.classes[class].as_ref());
        own.or(self.shared.as_ref())
    }
}

/// Whether the same attempt may go well later: the server was busy or broken, and nothing of an answer
/// has come that would come twice.
fn may_pass(ended: &Record) -> bool {
    match ended.outcome {
        Outcome::Refused => true,
        Outcome::Failed => {
            let broken = ended
                .status
                .is_none_or(|status| !(400..500).contains(&status));
            let out_of_time = matches!(ended.cause.as_deref(), Some("timeout" | "deadline"));
            ended.chunks.is_empty() && broken && !out_of_time
        }
        Outcome::Ok | Outcome::Cancelled | Outcome::NotSent => false,
    }
}
