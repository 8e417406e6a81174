//! The row of a request before anything has happened to it.

use crate::store::record::Record;
use crate::workload::Conversation;
use crate::workload::spec::Spec;

/// A turn of a conversation that is due at `due_ns` and has not been sent.
pub(crate) fn of_turn(
    spec: &Spec,
    conversation: &Conversation,
    turn: usize,
    client: Option<u32>,
    due_ns: u64,
) -> Record {
    let planned = &conversation.turns[turn];
    let class = conversation.class.map(|class| &spec.classes[class]);
    let deadline = class.and_then(|class| class.deadline_ms);
    Record {
        client,
        session: conversation.is_session.then_some(conversation.number),
        turn: conversation.is_session.then_some(turn as u32),
        prompt_set: Some(conversation.prompt_set.to_string()),
        tenant: conversation
            .tenant
            .map(|tenant| spec.tenants[tenant].name.clone()),
        class: class.map(|class| class.name.clone()),
        prompt_tokens_planned: Some(planned.prompt_tokens),
        output_tokens_max: Some(planned.output_tokens_max),
        deadline_ns: deadline.map(|deadline| deadline.millis().as_nanos()),
        ..Record::not_sent(planned.index, due_ns)
    }
}
