//! What a scheduler needs of a device.

use crate::{
    BackendError, Limits, RequestId, Span, StepId, StepLoad, StepOutcome, StepPlan, TokenId,
};

/// Something that runs steps: a GPU, a CPU, a mock.
///
/// The contract, which a conformance suite checks of every implementation:
///
/// - A call blocks until the step is done, and exactly one thread makes calls: a device serialises.
/// - The token sampled for a request depends on that request alone: not on what else is in the plan,
///   how its prompt was cut into segments, which blocks it was given and when, or whether it was
///   preempted and recomputed.
/// - A request that asks for log-probabilities is given them with each of its tokens, in
///   [`StepOutcome::logprobs`](crate::StepOutcome::logprobs), and nobody else is.
/// - A segment may start at position 0 again after a preemption; the tokens sampled before it are
///   then part of what is run, and the backend still knows them.
/// - After an error the next plan runs as if the failed one had not been asked for. The requests of
///   the failed plan are not named again, or with a block table that starts over.
pub trait Backend {
    /// What this device can hold. Constant for its lifetime.
    fn limits(&self) -> Limits;

    /// Runs one step and writes what came of it over `outcome`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Step`] fails the plan's requests and no others; after
    /// [`BackendError::Lost`] every live request has lost its state.
    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError>;

    /// How long `step` would take with this load, if that is known without running it and the step
    /// would not fail. A device does not know; a model of one does, which lets a simulation jump
    /// over steps that decide nothing.
    fn price(&self, step: StepId, load: &StepLoad) -> Option<Span> {
        let _ = (step, load);
        None
    }

    /// The token that would be sampled for `request` at `position`, if that is known without running
    /// anything: of all tokens or of none. A simulation that jumps needs it where prefixes are reused,
    /// as a prefix is told by its tokens.
    fn foresee(&self, request: RequestId, position: u32) -> Option<TokenId> {
        let _ = (request, position);
        None
    }
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    fn limits(&self) -> Limits {
        (**self).limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        (**self).execute(plan, outcome)
    }

    fn price(&self, step: StepId, load: &StepLoad) -> Option<Span> {
        (**self).price(step, load)
    }

    fn foresee(&self, request: RequestId, position: u32) -> Option<TokenId> {
        (**self).foresee(request, position)
    }
}
