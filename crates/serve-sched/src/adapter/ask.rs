//! What a request asks for. Its id and the time come from the handle that it is given to.

use serve_core::{Class, Data, InvalidRequest, Request, RequestId, Span, TenantId, Time};

/// The size of a request, whose it is, and how long its client waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    prompt_tokens: u32,
    output_tokens_max: u32,
    class: Class,
    tenant: TenantId,
    patience: Option<Span>,
    start_within: Option<Span>,
    data: Data,
}

impl Ask {
    /// Of the anonymous tenant, in the highest class, and with all the time in the world.
    ///
    /// A service whose work is not counted in tokens gives `1, 1`, or whatever its work grows with. A
    /// length of zero, or lengths that exceed 32-bit positions, are [refused](super::Rejection::Invalid).
    pub const fn new(prompt_tokens: u32, output_tokens_max: u32) -> Self {
        Self {
            prompt_tokens,
            output_tokens_max,
            class: Class::HIGHEST,
            tenant: TenantId::new(0),
            patience: None,
            start_within: None,
            data: Data::NONE,
        }
    }

    /// Puts the request into `class`.
    #[must_use]
    pub const fn with_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Accounts the request to `tenant`.
    #[must_use]
    pub const fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = tenant;
        self
    }

    /// After so long the answer is of no use: the request is cancelled, wherever it is.
    #[must_use]
    pub const fn with_patience(mut self, patience: Option<Span>) -> Self {
        self.patience = patience;
        self
    }

    /// If it still waits after so long, it is cancelled.
    #[must_use]
    pub const fn with_start_within(mut self, wait: Option<Span>) -> Self {
        self.start_within = wait;
        self
    }

    /// Attaches what a policy of one's own is to know besides, as [`Request::with_data`] does. It lives at
    /// least as long as the permit, and is never dropped while the dispatcher is locked.
    #[must_use]
    pub fn with_data(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    /// Tokens in the prompt.
    pub const fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens that may be generated at most.
    pub const fn output_tokens_max(&self) -> u32 {
        self.output_tokens_max
    }

    pub(super) fn request(&self, id: RequestId, now: Time) -> Result<Request, InvalidRequest> {
        let (prompt, output) = (self.prompt_tokens, self.output_tokens_max);
        let request = Request::of_lengths(id, now, prompt, output)?;
        Ok(request
            .with_class(self.class)
            .with_tenant(self.tenant)
            .with_deadline(self.patience.map(|patience| now + patience))
            .with_start_by(self.start_within.map(|wait| now + wait))
            .with_data(self.data.clone()))
    }
}
